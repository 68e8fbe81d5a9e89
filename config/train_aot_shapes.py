# AoT-MSSA on drawn shapes, with the same budget as train_crate_shapes.py: a small version of AoT's
# section 4.1.
#
#   python train.py config/train_aot_shapes.py
#
# hardware   2 CPU cores
# minutes    5 of training on one of them
# expected   top-1 93.5 ± 0.7 on the test split (three seeds, standard deviation), and
#            90.5 ± 0.6 of whole pictures, --eval_crop=1 (five seeds)
from config.base.small_pictures import *

dataset = 'shapes'
out_dir = 'out/aot_shapes'

model = 'aot'
n_layer = 9
n_head = 6
n_embd = 192

max_iters = 900
crop_scale = 0.6
eval_interval = 150
log_interval = 25
