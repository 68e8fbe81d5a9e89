# ViT on drawn shapes, the baseline of train_crate_shapes.py with the same budget. The CRATE paper
# compares with ViT in section 3.2.
#
#   python train.py config/train_vit_shapes.py
#
# hardware   2 CPU cores
# minutes    4 of training on one of them
# expected   top-1 93.4 ± 0.4 on the test split of whole pictures, --eval_crop=1 (five
#            seeds, standard deviation)
from config.base.small_pictures import *

dataset = 'shapes'
out_dir = 'out/vit_shapes'

model = 'vit'
n_layer = 4
n_head = 4
n_embd = 128

max_iters = 900
crop_scale = 0.6
eval_interval = 150
log_interval = 25
