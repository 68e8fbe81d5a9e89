# ViT on CIFAR-10, the baseline of train_crate_cifar10.py with the same budget. The CRATE paper
# compares with ViT in section 3.2.
#
#   python prepare/cifar10.py
#   python train.py config/train_vit_cifar10.py
#
# hardware   2 CPU cores
# minutes    11 to 12 of training on one of two busy cores
# expected   top-1 65.3 ± 0.6 on the test split of whole pictures, --eval_crop=1, after the
#            last step (three seeds, standard deviation)
from config.base.small_pictures import *

dataset = 'cifar10'
out_dir = 'out/vit_cifar10'

model = 'vit'
n_layer = 4
n_head = 4
n_embd = 120

epochs = 3
crop_scale = 0.4
eval_epochs = 1
log_interval = 50
