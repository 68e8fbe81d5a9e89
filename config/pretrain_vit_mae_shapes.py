# ViT-MAE on drawn shapes, the baseline of train_crate_mae_shapes.py: the same budget.
#
#   python train.py config/train_vit_mae_shapes.py
#
# hardware   2 CPU cores
# minutes    4 to 5 of training on one of them
# expected   loss 0.227 ± 0.002 on the test split (three seeds), where a flat colour has 0.577
from config.shapes import *

model = 'vit_mae'
out_dir = 'out/vit_mae_shapes'
n_layer = 4
n_head = 4
n_embd = 128
decoder_n_layer = 3
decoder_n_head = 4
decoder_n_embd = 128
max_iters = 1000
eval_interval = 200
