# CRATE-Small, 13.12M parameters, on ImageNet-1K (CRATE, section 3.2, Table 1).
#
#   python train.py config/train_crate_small_imagenet.py                                    on one GPU
#   torchrun --standalone --nproc_per_node=8 train.py config/train_crate_small_imagenet.py  on eight
#
# hardware   GPUs of 40 GB; with fewer than eight the global batch stays and a step takes longer
# minutes    not run here
# expected   not run here. The paper's Table 1: top-1 69.2, ReaL 76.0
from config.base.imagenet import *

out_dir = 'out/crate_small_imagenet'
model = 'crate'
n_layer = 12
n_embd = 576
n_head = 12
