# ViT-Small, 22.05M parameters, the baseline of CRATE on ImageNet-1K (CRATE, section 3.2, Table 1).
#
#   python train.py config/train_vit_small_imagenet.py                                    on one GPU
#   torchrun --standalone --nproc_per_node=8 train.py config/train_vit_small_imagenet.py  on eight
#
# hardware   GPUs of 40 GB; with fewer than eight the global batch stays and a step takes longer
# minutes    not run here
# expected   not run here. The paper's Table 1: top-1 72.4, ReaL 78.4
from config.base.imagenet import *

out_dir = 'out/vit_small_imagenet'
model = 'vit'
n_layer = 12
n_embd = 384
n_head = 6
