# AoT-MSSA on drawn shapes: the same budget as train_crate_shapes.py.
#
#   python train.py config/train_aot_shapes.py
#
# hardware   2 CPU cores
# minutes    ?
# expected   ?
from config.shapes import *

model = 'aot'
out_dir = 'out/aot_shapes'
n_layer = 9
n_head = 6
n_embd = 192
