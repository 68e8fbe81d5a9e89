# CRATE-alpha on CIFAR-10, small and from scratch, with about as many parameters as CRATE in
# train_crate_cifar10.py, and the same budget otherwise.
#
#   python prepare/cifar10.py
#   python train.py config/train_crate_alpha_cifar10.py
#
# With as many operations as that CRATE:
#   equal compute   --n_layer=3 --n_embd=136 --out_dir=out/crate_alpha_compute_cifar10
#
# hardware   2 CPU cores
# minutes    16 to 17 of training on one of two busy cores
# expected   top-1 59.8 ± 0.9 on the test split of whole pictures, --eval_crop=1, after the
#            last step (three seeds, standard deviation)
#              equal compute   58.9 ± 0.4
from config.base.small_pictures import *

dataset = 'cifar10'
out_dir = 'out/crate_alpha_cifar10'

model = 'crate_alpha'
n_layer = 4
n_head = 4
n_embd = 128

epochs = 3
crop_scale = 0.4
eval_epochs = 1
log_interval = 50
