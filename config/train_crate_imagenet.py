# CRATE on ImageNet-1K in the paper's four sizes (CRATE, section 3.2, Table 1). This file is Base.
#
#   python prepare/imagenet.py --from PATH
#   python train.py config/train_crate_imagenet.py  # on one GPU
#   torchrun --standalone --nproc_per_node=8 train.py config/train_crate_imagenet.py
#
# The other sizes need these flags:
#   Tiny    --n_embd=384 --n_head=6 --out_dir=out/crate_tiny_imagenet
#   Small   --n_embd=576 --out_dir=out/crate_small_imagenet
#   Large   --n_layer=24 --n_embd=1024 --n_head=16 --out_dir=out/crate_large_imagenet
#
# hardware   GPUs of 40 GB; with fewer than eight, the same global batch takes longer
# minutes    not run here. An epoch of CRATE-Base takes the authors 240 s on 16 A100s
# expected   not run here. The paper's Table 1:
#              Tiny     6.09M parameters, top-1 66.7, ReaL 74.0
#              Small   13.12M parameters, top-1 69.2, ReaL 76.0
#              Base    22.80M parameters, top-1 70.8, ReaL 76.5
#              Large   77.64M parameters, top-1 71.3, ReaL 77.4
from config.base.imagenet import *

out_dir = 'out/crate_imagenet'
model = 'crate'
n_layer = 12
n_embd = 768
n_head = 12
