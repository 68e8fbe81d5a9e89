# CRATE-Base on ImageNet-21K (CRATE, appendix B.6); finetune_crate_imagenet.py starts from its
# result.
#
#   python prepare/imagenet.py --from PATH --out data/imagenet21k
#   python train.py config/pretrain_crate_imagenet21k.py  # on one GPU
#   torchrun --standalone --nproc_per_node=8 train.py config/pretrain_crate_imagenet21k.py
#
# hardware   GPUs of 40 GB; with fewer than eight, the same global batch takes longer
# minutes    not run here
# expected   not run here; finetune_crate_imagenet.py has the accuracy after fine-tuning
from config.base.imagenet import *

out_dir = 'out/crate_imagenet21k'
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
