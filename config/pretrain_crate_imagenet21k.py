# CRATE-Base on ImageNet-21K (CRATE, appendix B.6, Table 5); finetune_crate_base_imagenet.py goes on from it.
#
#   python prepare/imagenet.py --from PATH --out data/imagenet21k
#   python train.py config/pretrain_crate_base_imagenet21k.py                                    on one GPU
#   torchrun --standalone --nproc_per_node=8 train.py config/pretrain_crate_base_imagenet21k.py  on eight
#
# hardware   GPUs of 40 GB; with fewer than eight the global batch stays and a step takes longer
# minutes    not run here
# expected   not run here; after fine-tuning see there
from config.base.imagenet import *

out_dir = 'out/crate_base_imagenet21k'
model = 'crate'
n_layer = 12
n_embd = 768
n_head = 12

dataset = 'imagenet21k'
gradient_accumulation_steps = 32  # 4096 pictures a step
epochs = 90
warmup_epochs = 10
learning_rate = 1e-4
weight_decay = 0.05
