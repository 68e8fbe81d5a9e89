# AoT-MSSA-L Base, 102M parameters: 24 layers of nothing but subspace self-attention (AoT, section 4.2, Table 4).
#
#   python train.py config/train_aot_owt.py                                    on one GPU
#   torchrun --standalone --nproc_per_node=8 train.py config/train_aot_owt.py  on eight
#
# hardware   GPUs of 80 GB; with fewer than eight the global batch stays and a step takes longer
# minutes    not run here
# expected   not run here. The paper's Table 3: loss 4.70 on LAMBADA, 4.65 on WikiText, zero-shot
from config.base.owt import *

out_dir = 'out/aot_owt'
attn = 'mssa'
n_layer = 24
n_embd = 1024
n_head = 16
