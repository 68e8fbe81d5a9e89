# CRATE on drawn shapes: what `python train.py --model=crate` trains. It prepares its data by itself, without a network.
#
#   python train.py config/train_crate_shapes.py
#
# hardware   2 CPU cores
# minutes    3 to 4 of training, and a quarter to draw the pictures
# expected   top-1 93.5 ± 0.3 on the test split (three seeds)
from config.shapes import *

model = 'crate'
out_dir = 'out/crate_shapes'
n_layer = 6
n_head = 6
n_embd = 192
