# CRATE-MAE on drawn shapes, without their labels: what `python train.py --model=crate_mae` trains.
#
#   python train.py config/train_crate_mae_shapes.py
#
# hardware   2 CPU cores
# minutes    5 to 6 of training, and a quarter to draw the pictures
# expected   loss 0.291 ± 0.002 on the test split (three seeds), where a flat colour has 0.577
from config.shapes import *

model = 'crate_mae'
out_dir = 'out/crate_mae_shapes'
n_layer = 6
n_head = 6
n_embd = 192
max_iters = 1000
eval_interval = 200
