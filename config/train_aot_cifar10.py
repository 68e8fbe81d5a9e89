# AoT-MSSA on CIFAR-10: the same budget as train_crate_cifar10.py.
#
#   python prepare/cifar10.py
#   python train.py config/train_aot_cifar10.py
#
# hardware   2 CPU cores
# minutes    ?
# expected   ?
from config.cifar10 import *

model = 'aot'
out_dir = 'out/aot_cifar10'
n_layer = 9
n_head = 6
n_embd = 192
