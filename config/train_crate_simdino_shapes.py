# CRATE that teaches itself on drawn shapes as in SimDINO: no outputs, centre or temperatures, but a
# coding rate that keeps the features of different pictures apart.
#
#   python train.py config/train_crate_simdino_shapes.py
#   python eval.py --ckpt=out/crate_simdino_shapes --knn=20 --probe=true
#
# The ViT of train_vit_dino_shapes.py:
#   ViT       --backbone=vit --n_layer=2 --n_embd=96 --out_dir=out/vit_simdino_shapes
#
# hardware   2 CPU cores
# minutes    6 of training on one of two busy cores
# expected   on the test split 53.5 ± 1.0 by 20 neighbours and 61.8 ± 0.1 by a linear probe
#            (three seeds)
#              ViT       28.1 ± 1.9 and 38.1 ± 1.9
from config.base.dino_shapes import *

out_dir = 'out/crate_simdino_shapes'

objective = 'simdino'
backbone = 'crate'
n_layer = 4
n_embd = 128
bottleneck_dim = 128        # numbers in a feature
eps = 0.4                   # the published 0.05 times 8 processes; see docs/papers.md
alignment_weight = 2.0
pair = False
