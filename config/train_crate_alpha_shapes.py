# CRATE-alpha on drawn shapes, with about as many parameters as CRATE in train_crate_shapes.py, and
# the same budget otherwise.
#
#   python train.py config/train_crate_alpha_shapes.py
#
# With as many operations as that CRATE, and one by one without the three changes to it:
#   equal compute        --n_layer=3 --n_embd=136 --out_dir=out/crate_alpha_compute_shapes
#   not overcomplete     --atoms=1 --out_dir=out/crate_alpha_atoms_shapes
#   not decoupled        --decoupled=false --out_dir=out/crate_alpha_coupled_shapes
#   no skip              --skip=false --out_dir=out/crate_alpha_noskip_shapes
#
# hardware   2 CPU cores
# minutes    11 of training on one of two busy cores
# expected   top-1 93.0 ± 0.8 on the test split (three seeds, standard deviation), and
#            84.6 ± 0.9 of whole pictures, --eval_crop=1. Of whole pictures, too:
#              equal compute      83.0 ± 1.1
#              not overcomplete   82.6 ± 1.2
#              not decoupled      77.7 ± 2.0
#              no skip            87.5 ± 0.3
from config.base.small_pictures import *

dataset = 'shapes'
out_dir = 'out/crate_alpha_shapes'

model = 'crate_alpha'
n_layer = 4
n_head = 4
n_embd = 128

max_iters = 900
crop_scale = 0.6
eval_interval = 150
log_interval = 25
