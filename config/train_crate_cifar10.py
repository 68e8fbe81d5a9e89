# CRATE on CIFAR-10, small and from scratch.
#
#   python prepare/cifar10.py
#   python train.py config/train_crate_cifar10.py
#
# hardware   2 CPU cores
# minutes    12 to 18 on one of two busy cores
# expected   top-1 67.5 ± 0.2 (three seeds) on the test split after the last step
from config.cifar10 import *

model = 'crate'
out_dir = 'out/crate_cifar10'
n_layer = 6
n_head = 6
n_embd = 192
