# AoT-MSSA-V on ImageNet-21K (AoT, section 4.1); finetune_aot_imagenet.py starts from its result.
#
#   python prepare/imagenet.py --from PATH --out data/imagenet21k
#   python train.py config/pretrain_aot_imagenet21k.py  # on one GPU
#   torchrun --standalone --nproc_per_node=8 train.py config/pretrain_aot_imagenet21k.py
#
# hardware   GPUs of 40 GB; with fewer than eight, the same global batch takes longer
# minutes    not run here
# expected   not run here; finetune_aot_imagenet.py has the accuracy after fine-tuning
from config.base.imagenet import *

out_dir = 'out/aot_imagenet21k'
model = 'aot'
attn = 'mssa'
n_layer = 32  # the paper gives no shape; this one has the 22M parameters of its Table 1
n_embd = 576
n_head = 12
label_smoothing = 0.2

dataset = 'imagenet21k'
gradient_accumulation_steps = 32  # 4096 pictures a step
epochs = 90
warmup_epochs = 10  # as in CRATE; the paper gives none
learning_rate = 2e-4
weight_decay = 0.7
randaugment_n = 2
randaugment_m = 14.0  # as in CRATE's fine-tuning; the paper gives no numbers
