# CRATE on a tenth of the labels of the drawn shapes, starting from the encoder of
# pretrain_crate_mae_shapes.py: a small version of CRATE-MAE's Table 3.
#
#   python train.py config/pretrain_crate_mae_shapes.py
#   python train.py config/finetune_crate_mae_shapes.py
#
# ViT, starting from the encoder of pretrain_vit_mae_shapes.py, needs these flags:
#   ViT   --model=vit --init_from=out/vit_mae_shapes --out_dir=out/finetune_vit_mae_shapes
#
# hardware   2 CPU cores
# minutes    7 to 8 of training on one of two busy cores; ViT 5 to 8
# expected   top-1 on the test split of whole pictures, --eval_crop=1 (three seeds, standard
#            deviation):
#              CRATE   86.5 ± 2.1; from scratch 81.4 ± 1.6
#              ViT     95.4 ± 0.4; from scratch 86.8 ± 0.9
from config.base.small_pictures import *

dataset = 'shapes'
out_dir = 'out/finetune_crate_mae_shapes'

# network: that of the run, with a new head
model = 'crate'
init_from = 'out/crate_mae_shapes'
new_head = True

train_share = 0.1  # of the pictures of each class
max_iters = 600
crop_scale = 0.6
eval_interval = 150
log_interval = 25
