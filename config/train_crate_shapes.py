# CRATE on drawn shapes, 32 x 32 pixels in ten classes: a small version of CRATE's section 3.2.
#
#   python train.py config/train_crate_shapes.py    # draws its data first; nothing is downloaded
#
# hardware   2 CPU cores
# minutes    3 to 4 of training, and 0.25 to draw the pictures
# expected   top-1 96.1 ± 0.4 on the test split (three seeds, standard deviation), and
#            92.8 ± 0.6 of whole pictures, --eval_crop=1 (five seeds)
from config.base.small_pictures import *

dataset = 'shapes'
out_dir = 'out/crate_shapes'

model = 'crate'
n_layer = 6
n_head = 6
n_embd = 192

max_iters = 900
crop_scale = 0.6
eval_interval = 150
log_interval = 25
