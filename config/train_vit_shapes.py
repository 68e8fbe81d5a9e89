# ViT on drawn shapes, the baseline of train_crate_shapes.py: the same budget.
#
#   python train.py config/train_vit_shapes.py
#
# hardware   2 CPU cores
# minutes    4 of training on one of them
# expected   top-1 94.7 ± 0.3 on the test split (two seeds)
from config.shapes import *

model = 'vit'
out_dir = 'out/vit_shapes'
n_layer = 4
n_head = 4
n_embd = 128
