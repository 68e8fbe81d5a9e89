# ViT-MAE on drawn shapes, the baseline of pretrain_crate_mae_shapes.py with the same budget. The
# CRATE-MAE paper compares with ViT-MAE in section 3.
#
#   python train.py config/pretrain_vit_mae_shapes.py
#
# hardware   2 CPU cores
# minutes    4 to 5 of training on one of them where bfloat16 is fast, else 11
# expected   loss 0.228 ± 0.001 on the test split (three seeds, standard deviation); predicting the
#            mean colour of the visible patches: 0.577
from config.base.small_pictures import *

dataset = 'shapes'
out_dir = 'out/vit_mae_shapes'

model = 'vit_mae'
n_layer = 4
n_head = 4
n_embd = 128
decoder_n_layer = 3
decoder_n_head = 4
decoder_n_embd = 128

max_iters = 1000
crop_scale = 0.6
eval_crop = 1.0  # hides patches of the whole picture
eval_interval = 200
log_interval = 25
