# AoT-MSSA on drawn shapes: the same budget as train_crate_shapes.py.
#
#   python train.py config/train_aot_shapes.py
#
# hardware   2 CPU cores
# minutes    5 of training on one of them
# expected   top-1 91.5 ± 0.3 on the test split (two seeds)
from config.shapes import *

model = 'aot'
out_dir = 'out/aot_shapes'
n_layer = 9
n_head = 6
n_embd = 192
