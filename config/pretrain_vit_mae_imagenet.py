# ViT-MAE-Base of He et al., 111.7M parameters, pre-trained on ImageNet-1K by their recipe. CRATE-MAE's Table 1 counts it with
# a decoder as wide as the encoder (--decoder_n_embd=768, 143.5M parameters, 143.8M with the fixed positions).
#
#   python train.py config/train_vit_mae_base_imagenet.py                                    on one GPU
#   torchrun --standalone --nproc_per_node=8 train.py config/train_vit_mae_base_imagenet.py  on eight
#
# hardware   GPUs of 40 GB; with fewer than eight the global batch stays and a step takes longer
# minutes    not run here
# expected   not run here. CRATE-MAE's Table 4: 0.240 in training, 0.267 in validation, of pixels normalized in a way it does
#            not say
from config.base.masked import *

out_dir = 'out/vit_mae_base_imagenet'
model = 'vit_mae'
n_layer = 12
n_embd = 768
n_head = 12
decoder_n_layer = 8
decoder_n_embd = 512
decoder_n_head = 16
norm_pix_loss = True

learning_rate = 2.4e-3  # 1.5e-4 for each 256 pictures
weight_decay = 0.05
randaugment_n = 0
