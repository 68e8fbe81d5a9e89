# ViT that teaches itself on drawn shapes, the baseline of train_crate_dino_shapes.py with the same
# budget and about as many parameters.
#
#   python train.py config/train_vit_dino_shapes.py
#   python eval.py --ckpt=out/vit_dino_shapes --knn=20 --probe=true
#
# hardware   2 CPU cores
# minutes    7 of training on one of two busy cores
# expected   on the test split 16.1 ± 1.1 by 20 neighbours (with random weights 10.9 ± 0.4) and
#            26.7 ± 1.1 by a linear probe (16.6 ± 0.7); three seeds, standard deviation
from config.base.dino_shapes import *

out_dir = 'out/vit_dino_shapes'

backbone = 'vit'
n_layer = 2
n_embd = 96
out_dim = 1024
bottleneck_dim = 64
freeze_share = 0.1
centre_momentum = 0.0       # DINO's 0.9 is out of date when a network learns fast
warmup_teacher_temp = 0.01  # with DINO's 0.04 every output soon gets the same probability
teacher_temp = 0.01
