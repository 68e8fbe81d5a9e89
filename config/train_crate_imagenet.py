# CRATE-Base, 22.80M parameters, on ImageNet-1K (CRATE, section 3.2, Table 1).
#
#   python train.py config/train_crate_base_imagenet.py                                    on one GPU
#   torchrun --standalone --nproc_per_node=8 train.py config/train_crate_base_imagenet.py  on eight
#
# hardware   GPUs of 40 GB; with fewer than eight the global batch stays and a step takes longer
# minutes    not run here. An epoch of CRATE-Base takes the authors 240 s on 16 A100s
# expected   not run here. The paper's Table 1: top-1 70.8, ReaL 76.5
from config.base.imagenet import *

out_dir = 'out/crate_base_imagenet'
model = 'crate'
n_layer = 12
n_embd = 768
n_head = 12
