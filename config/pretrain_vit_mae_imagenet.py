# ViT-MAE-Base of He et al. on ImageNet-1K with their settings: the baseline in the CRATE-MAE paper
# (section 3, Tables 1 and 4).
#
#   python prepare/imagenet.py --from PATH
#   python train.py config/pretrain_vit_mae_imagenet.py  # on one GPU
#   torchrun --standalone --nproc_per_node=8 train.py config/pretrain_vit_mae_imagenet.py
#
# CRATE-MAE's Table 1 has a Small too, and counts Base with a decoder as wide as the encoder:
#   Small          --n_embd=384 --n_head=6 --out_dir=out/vit_mae_small_imagenet
#   wide decoder   --decoder_n_embd=768 --out_dir=out/vit_mae_wide_imagenet
#
# hardware   GPUs of 40 GB; with fewer than eight, the same global batch takes longer
# minutes    not run here
# expected   not run here. CRATE-MAE's Table 4: loss 0.240 in training, 0.267 in validation; it does
#            not say how the pixels are normalized
#              Small           47.4M parameters (47.6M in Table 1, with the fixed positions)
#              Base           111.7M parameters
#              wide decoder   143.5M parameters (143.8M in Table 1, with the fixed positions)
from config.base.masked import *

out_dir = 'out/vit_mae_imagenet'
model = 'vit_mae'
n_layer = 12
n_embd = 768
n_head = 12
decoder_n_layer = 8
decoder_n_embd = 512
decoder_n_head = 16
norm_pix_loss = True

learning_rate = 2.4e-3  # 1.5e-4 per 256 pictures of the batch
weight_decay = 0.05
randaugment_n = 0  # crops and flips, nothing else
