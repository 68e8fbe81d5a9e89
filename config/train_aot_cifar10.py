# AoT-MSSA on CIFAR-10: the same budget as train_crate_cifar10.py.
#
#   python prepare/cifar10.py
#   python train.py config/train_aot_cifar10.py
#
# hardware   2 CPU cores
# minutes    15 to 16 on one of two busy cores
# expected   top-1 63.8 ± 0.1 (two seeds) on the test split after the last step
from config.cifar10 import *

model = 'aot'
out_dir = 'out/aot_cifar10'
n_layer = 9
n_head = 6
n_embd = 192
