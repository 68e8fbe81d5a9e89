# CRATE-MAE on drawn shapes, without their labels: a small version of CRATE-MAE's section 3.
#
#   python train.py config/pretrain_crate_mae_shapes.py    # draws its data first; no download
#
# hardware   2 CPU cores
# minutes    5 to 6 of training where bfloat16 is fast, else 22 to 30 on one of them; 0.25 to draw
#            the pictures
# expected   loss 0.290 ± 0.004 on the test split (three seeds, standard deviation); predicting the
#            mean colour of the visible patches: 0.577
from config.base.small_pictures import *

dataset = 'shapes'
out_dir = 'out/crate_mae_shapes'

model = 'crate_mae'
n_layer = 6
n_head = 6
n_embd = 192

max_iters = 1000
crop_scale = 0.6
eval_crop = 1.0  # hides patches of the whole picture
eval_interval = 200
log_interval = 25
