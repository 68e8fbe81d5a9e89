# CRATE-MAE-Base, 43.75M parameters (44.6M as the paper counts), pre-trained on ImageNet-1K (CRATE-MAE, appendix B.1).
#
#   python train.py config/train_crate_mae_base_imagenet.py                                    on one GPU
#   torchrun --standalone --nproc_per_node=8 train.py config/train_crate_mae_base_imagenet.py  on eight
#
# hardware   GPUs of 40 GB; with fewer than eight the global batch stays and a step takes longer
# minutes    not run here, and the paper gives none
# expected   not run here. The paper's Table 4: loss 0.265 in training, 0.302 in validation
from config.base.masked import *

out_dir = 'out/crate_mae_base_imagenet'
model = 'crate_mae'
n_layer = 12
n_embd = 768
n_head = 12
lam = 0.5
eta = 0.1
