# CRATE-MAE-Small, 24.85M parameters (25.4M as the paper counts), pre-trained on ImageNet-1K (CRATE-MAE, appendix B.1).
#
#   python train.py config/train_crate_mae_small_imagenet.py                                    on one GPU
#   torchrun --standalone --nproc_per_node=8 train.py config/train_crate_mae_small_imagenet.py  on eight
#
# hardware   GPUs of 40 GB; with fewer than eight the global batch stays and a step takes longer
# minutes    not run here, and the paper gives none
# expected   not run here. The paper gives no loss for this size; Table 2 has what is learned from it
from config.base.masked import *

out_dir = 'out/crate_mae_small_imagenet'
model = 'crate_mae'
n_layer = 12
n_embd = 576
n_head = 12
lam = 0.5
eta = 0.1
