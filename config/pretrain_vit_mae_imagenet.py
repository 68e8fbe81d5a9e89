# ViT-MAE-Base of He et al. on ImageNet-1K with their settings: the baseline in the CRATE-MAE paper
# (section 3, Tables 1 and 4).
#
#   python prepare/imagenet.py --from PATH
#   python train.py config/pretrain_vit_mae_imagenet.py  # on one GPU
#   torchrun --standalone --nproc_per_node=8 train.py config/pretrain_vit_mae_imagenet.py
#
# CRATE-MAE's Table 1 counts its parameters with a decoder as wide as the encoder:
#   wide decoder   --decoder_n_embd=768 --out_dir=out/vit_mae_wide_imagenet
#
# hardware   GPUs of 40 GB; with fewer than eight, the same global batch takes longer
# minutes    not run here
# expected   not run here. CRATE-MAE's Table 4: loss 0.240 in training, 0.267 in validation; it does
#            not say how the pixels are normalized
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
