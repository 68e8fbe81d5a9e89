# CRATE on a smaller dataset, starting from the encoder of a CRATE-MAE trained on ImageNet-1K; all
# layers are trained (CRATE-MAE, section 3, Tables 2 and 3, appendix B.1). This file is Base on
# CIFAR-10.
#
#   python prepare/cifar10.py
#   python train.py config/pretrain_crate_mae_imagenet.py
#   python train.py config/finetune_crate_mae.py  # on one GPU
#   torchrun --standalone --nproc_per_node=8 train.py config/finetune_crate_mae.py
#
# The other datasets (prepare/cifar100.py and so on) need these flags:
#   cifar100     --dataset=cifar100 --out_dir=out/finetune_crate_mae_cifar100
#   flowers102   --dataset=flowers102 --epochs=400 --eval_epochs=10
#                --out_dir=out/finetune_crate_mae_flowers102
#   pets         --dataset=pets --epochs=400 --eval_epochs=10
#                --out_dir=out/finetune_crate_mae_pets
#
# The epochs are those of finetune_crate.py, as this paper gives none. The rate is its 5e-5. The
# README of the authors' code has --learning_rate=1e-4 for Flowers and Pets, with CRATE.
#
# Small starts from its own run: --init_from=out/crate_mae_small_imagenet. The authors' weights
# become a RUN first (Small and Base have 12 heads):
#   python prepare/official_weights.py FILE --model crate_mae --n_head 12 --out_dir RUN
#   python train.py config/finetune_crate_mae.py --init_from=RUN
# From a run on small pictures, at its own resolution:
#   python train.py config/finetune_crate_mae.py --init_from=out/crate_mae_shapes --image_size=32
#
# hardware   one GPU
# minutes    not run here
# expected   not run here. The paper's Tables 2 and 3, top-1 (from scratch: random weights):
#              cifar10      Small 96.2, Base 96.8, Base from scratch 85.1
#              cifar100     Small 79.0, Base 80.3, Base from scratch 58.8
#              flowers102   Small 71.7, Base 78.5, Base from scratch 38.0
#              pets         Small 73.7, Base 76.7, Base from scratch 28.8
from config.base.transfer import *

out_dir = 'out/finetune_crate_mae'
init_from = 'out/crate_mae_imagenet'
dataset = 'cifar10'
gradient_accumulation_steps = 4  # 256 pictures a step, over all processes
