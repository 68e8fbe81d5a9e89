# CRATE on Oxford Flowers-102, from a network trained on ImageNet-1K (CRATE, section 3.2, Table 1).
#
#   python prepare/flowers102.py
#   python train.py config/finetune_crate_flowers102.py                                    on one GPU
#   torchrun --standalone --nproc_per_node=8 train.py config/finetune_crate_flowers102.py  on eight
#
# hardware   one GPU
# minutes    not run here
# expected   not run here. The paper's Table 1: top-1 84.6 tiny, 87.1 small, 88.7 base, 88.3 large
from config.base.transfer import *

out_dir = 'out/finetune_crate_flowers102'
dataset = 'flowers102'
epochs = 500       # of two steps each
warmup_epochs = 20
eval_epochs = 25
