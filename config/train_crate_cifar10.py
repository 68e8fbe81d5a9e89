# CRATE on CIFAR-10, small and from scratch. The CRATE paper reports CIFAR-10 after pre-training on
# ImageNet (section 3.2, Table 1; finetune_crate.py).
#
#   python prepare/cifar10.py
#   python train.py config/train_crate_cifar10.py
#
# hardware   2 CPU cores
# minutes    15 to 16 of training on one of two busy cores
# expected   top-1 59.5 ± 0.2 on the test split of whole pictures, --eval_crop=1, after the
#            last step (three seeds, standard deviation); 79.8 of the centre crop with
#            --epochs=30 (one seed)
from config.base.small_pictures import *

dataset = 'cifar10'
out_dir = 'out/crate_cifar10'

model = 'crate'
n_layer = 6
n_head = 6
n_embd = 192

epochs = 3
crop_scale = 0.4
eval_epochs = 1
log_interval = 50
