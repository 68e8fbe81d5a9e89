# AoT-MSSA-V, 22M parameters, on ImageNet-21K (AoT, section 4.1); finetune_aot_mssa_imagenet.py goes on from it.
#
#   python prepare/imagenet.py --from PATH --out data/imagenet21k
#   python train.py config/train_aot_mssa_imagenet21k.py                                    on one GPU
#   torchrun --standalone --nproc_per_node=8 train.py config/train_aot_mssa_imagenet21k.py  on eight
#
# hardware   GPUs of 40 GB; with fewer than eight the global batch stays and a step takes longer
# minutes    not run here
# expected   not run here; after fine-tuning see there
from config.base.imagenet import *

out_dir = 'out/aot_mssa_imagenet21k'
model = 'aot'  # the paper gives no shape; this one has the 22M parameters of its Table 1
n_layer = 32
n_embd = 576
n_head = 12
attn = 'mssa'
label_smoothing = 0.2

dataset = 'imagenet21k'
gradient_accumulation_steps = 32  # 4096 pictures a step
epochs = 90
warmup_epochs = 10  # as CRATE's; the paper does not say
learning_rate = 2e-4
weight_decay = 0.7
randaugment_n = 2
randaugment_m = 14.0  # as CRATE's fine-tuning; the paper gives no numbers
