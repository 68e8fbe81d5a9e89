# CRATE-alpha on ImageNet-1K. This file is Base with patches of 16.
#
#   python prepare/imagenet.py --from PATH
#   python train.py config/train_crate_alpha_imagenet.py  # on one GPU
#   torchrun --standalone --nproc_per_node=8 train.py config/train_crate_alpha_imagenet.py
#
# Other sizes and patches need these flags:
#   Base/32   --patch_size=32 --out_dir=out/crate_alpha_base32_imagenet
#   Base/8    --patch_size=8 --out_dir=out/crate_alpha_base8_imagenet
#   Large     --n_layer=24 --n_embd=1024 --n_head=16 --patch_size=14
#             --out_dir=out/crate_alpha_large_imagenet
#
# The recipe is that of train_crate_imagenet.py. The authors' one, in docs/papers.md, trains on
# ImageNet-21K first, with mixup and cutmix. prepare/crate_alpha_weights.py fetches what it led to.
#
# hardware   GPUs of 40 GB; with fewer than eight, the same global batch takes longer
# minutes    not run here
# expected   not run here. The authors' README, after ImageNet-21K:
#              Base       72.33M parameters, top-1 81.2
#              Base/32   top-1 76.5
#              Base/8    top-1 83.2
#              Large     253.65M parameters, top-1 83.9
from config.base.imagenet import *

out_dir = 'out/crate_alpha_imagenet'
model = 'crate_alpha'
n_layer = 12
n_embd = 768
n_head = 12
