# AoT-MSSA-L Medium, 182M parameters: 36 layers of nothing but subspace self-attention (AoT, section 4.2, Table 4).
#
#   python train.py config/train_aot_medium_owt.py                                    on one GPU
#   torchrun --standalone --nproc_per_node=8 train.py config/train_aot_medium_owt.py  on eight
#
# hardware   GPUs of 80 GB; with fewer than eight the global batch stays and a step takes longer
# minutes    not run here
# expected   not run here. The paper's Table 3: loss 4.47 on LAMBADA, 4.22 on WikiText, zero-shot
from config.base.owt import *

out_dir = 'out/aot_medium_owt'
attn = 'mssa'
n_layer = 36
n_embd = 1280
n_head = 20
