# ViT-Tiny, 5.72M parameters, the baseline of CRATE on ImageNet-1K (CRATE, section 3.2, Table 1).
#
#   python train.py config/train_vit_tiny_imagenet.py                                    on one GPU
#   torchrun --standalone --nproc_per_node=8 train.py config/train_vit_tiny_imagenet.py  on eight
#
# hardware   GPUs of 40 GB; with fewer than eight the global batch stays and a step takes longer
# minutes    not run here
# expected   not run here. The paper's Table 1: top-1 71.5, ReaL 78.3
from config.base.imagenet import *

out_dir = 'out/vit_tiny_imagenet'
model = 'vit'
n_layer = 12
n_embd = 192
n_head = 3
