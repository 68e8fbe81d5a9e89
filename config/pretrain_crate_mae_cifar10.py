# CRATE-MAE on CIFAR-10, without its labels: a small version of CRATE-MAE's section 3.
#
#   python prepare/cifar10.py
#   python train.py config/pretrain_crate_mae_cifar10.py
#
# hardware   2 CPU cores
# minutes    26 of training on one of two busy cores
# expected   loss 0.401 on the test split (one seed); predicting the mean colour of the visible
#            patches: 0.908
from config.base.small_pictures import *

dataset = 'cifar10'
out_dir = 'out/crate_mae_cifar10'

model = 'crate_mae'
n_layer = 6
n_head = 6
n_embd = 192

epochs = 3
crop_scale = 0.4
eval_crop = 1.0  # hides patches of the whole picture
eval_epochs = 1
log_interval = 50
