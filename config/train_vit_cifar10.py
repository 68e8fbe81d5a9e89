# ViT on CIFAR-10, the baseline of train_crate_cifar10.py: the same budget.
#
#   python prepare/cifar10.py
#   python train.py config/train_vit_cifar10.py
#
# hardware   2 CPU cores
# minutes    11 to 15 on one of two busy cores
# expected   top-1 72.3 ± 0.5 (three seeds) on the test split after the last step
from config.cifar10 import *

model = 'vit'
out_dir = 'out/vit_cifar10'
n_layer = 4
n_head = 4
n_embd = 120
