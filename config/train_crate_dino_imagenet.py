# CRATE that teaches itself on ImageNet-1K, without its labels, with the default settings of DINO's
# released code, in batches of 1024. This file is CRATE Small with patches of 16.
#
#   python prepare/imagenet.py --from PATH
#   python train.py config/train_crate_dino_imagenet.py  # on one GPU
#   torchrun --standalone --nproc_per_node=8 train.py config/train_crate_dino_imagenet.py
#   python eval.py --ckpt=out/crate_dino_imagenet --knn=10,20,100,200 --eval_view=crop
#
# Other sizes, and the ViT of the DINO paper, need these flags:
#   Small/8   --patch_size=8 --dtype=float32 --out_dir=out/crate_dino_small8_imagenet
#   Base      --n_embd=768 --out_dir=out/crate_dino_base_imagenet
#   Base/8    --n_embd=768 --patch_size=8 --dtype=float32 --out_dir=out/crate_dino_base8_imagenet
#   ViT-S     --backbone=vit --n_embd=384 --n_head=6 --out_dir=out/vit_dino_imagenet
#   paper     --teacher_temp=0.07 --out_dir=out/crate_dino_paper_imagenet
# The last one warms the teacher's temperature up over 30 epochs, as DINO's paper does.
#
# hardware   GPUs of 40 GB; with fewer than eight, the same global batch takes longer
# minutes    not run here
# expected   not run here. No accuracy of CRATE-DINO is at hand:
#              Small/8   not run here
#              Base      not run here
#              Base/8    not run here
#              ViT-S     not run here
#              paper     not run here
from config.base.imagenet import *

del label_smoothing  # there are no labels
out_dir = 'out/crate_dino_imagenet'
model = 'dino'
backbone = 'crate'
n_layer = 12
n_embd = 576
n_head = 12

# training
epochs = 100
warmup_epochs = 10
optimizer = 'adamw'
batch_size = 128
gradient_accumulation_steps = 8
learning_rate = 2e-3  # 5e-4 for each 256 pictures of a step
schedule = 'cosine'
min_lr = 1e-6
beta2 = 0.999
weight_decay = 0.04
weight_decay_end = 0.4
grad_clip = 3.0

# augmentation
crop_scale = 0.4
randaugment_n = 0
