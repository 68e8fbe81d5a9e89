# ViT on ImageNet-1K in two sizes, the baseline of CRATE (CRATE, section 3.2, Table 1). This file is
# Small.
#
#   python prepare/imagenet.py --from PATH
#   python train.py config/train_vit_imagenet.py  # on one GPU
#   torchrun --standalone --nproc_per_node=8 train.py config/train_vit_imagenet.py
#
# The other size needs these flags:
#   Tiny   --n_embd=192 --n_head=3 --out_dir=out/vit_tiny_imagenet
#
# hardware   GPUs of 40 GB; with fewer than eight, the same global batch takes longer
# minutes    not run here
# expected   not run here. The paper's Table 1:
#              Tiny     5.72M parameters, top-1 71.5, ReaL 78.3
#              Small   22.05M parameters, top-1 72.4, ReaL 78.4
from config.base.imagenet import *

out_dir = 'out/vit_imagenet'
model = 'vit'
n_layer = 12
n_embd = 384
n_head = 6
