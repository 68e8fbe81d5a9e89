# CRATE-MAE on drawn shapes, without their labels: what `python train.py --model=crate_mae` trains.
#
#   python train.py config/train_crate_mae_shapes.py
#
# hardware   2 CPU cores
# minutes    TODO
# expected   TODO
from config.shapes import *

model = 'crate_mae'
out_dir = 'out/crate_mae_shapes'
n_layer = 6
n_head = 6
n_embd = 192
max_iters = 1000
eval_interval = 200
