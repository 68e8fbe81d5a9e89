# AoT-MSSA on CIFAR-10, with the same budget as train_crate_cifar10.py: a small version of AoT's
# section 4.1.
#
#   python prepare/cifar10.py
#   python train.py config/train_aot_cifar10.py
#
# hardware   2 CPU cores
# minutes    15 to 17 of training on one of two busy cores
# expected   top-1 57.2 ± 0.9 on the test split of whole pictures, --eval_crop=1, after the
#            last step (three seeds, standard deviation)
from config.base.small_pictures import *

dataset = 'cifar10'
out_dir = 'out/aot_cifar10'

model = 'aot'
n_layer = 9
n_head = 6
n_embd = 192

epochs = 3
crop_scale = 0.4
eval_epochs = 1
log_interval = 50
