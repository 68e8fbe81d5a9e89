# CRATE on a smaller dataset, starting from ImageNet-1K (CRATE, section 3.2, Table 1). This file is
# CRATE-Base on CIFAR-10.
#
#   python prepare/cifar10.py
#   python train.py config/train_crate_imagenet.py
#   python train.py config/finetune_crate.py  # on one GPU
#   torchrun --standalone --nproc_per_node=8 train.py config/finetune_crate.py
#
# The other datasets (prepare/cifar100.py and so on) need these flags. An epoch has two steps on
# Flowers and seven on Pets, hence the fewer validations and the authors' 400 epochs:
#   cifar100     --dataset=cifar100 --out_dir=out/finetune_crate_cifar100
#   flowers102   --dataset=flowers102 --epochs=400 --eval_epochs=10
#                --out_dir=out/finetune_crate_flowers102
#   pets         --dataset=pets --epochs=400 --eval_epochs=10
#                --out_dir=out/finetune_crate_pets
# The rate is the paper's 5e-5. The authors' README has --learning_rate=1e-4 for Flowers and Pets.
#
# Another size starts from its own run, such as --init_from=out/crate_tiny_imagenet. The authors'
# weights become a RUN first (Tiny has 6 heads, Small and Base 12, Large 16):
#   python prepare/official_weights.py FILE --model crate --n_head 12 --out_dir RUN
#   python train.py config/finetune_crate.py --init_from=RUN
# From a run on small pictures, at its own resolution:
#   python train.py config/finetune_crate.py --init_from=out/crate_shapes --image_size=32
#
# hardware   one GPU
# minutes    not run here
# expected   not run here. The paper's Table 1, top-1:
#              cifar10      Tiny 95.5, Small 96.0, Base 96.8, Large 97.2
#              cifar100     Tiny 78.9, Small 81.0, Base 82.7, Large 83.6
#              flowers102   Tiny 84.6, Small 87.1, Base 88.7, Large 88.3
#              pets         Tiny 81.4, Small 84.9, Base 85.3, Large 87.4
from config.base.transfer import *

out_dir = 'out/finetune_crate'
dataset = 'cifar10'
