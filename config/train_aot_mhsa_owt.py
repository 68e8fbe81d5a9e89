# AoT-MHSA-L Base, 122M parameters: attention only, with free query, key and value (AoT, eq. 5, section 4.2, Table 4).
#
#   python train.py config/train_aot_mhsa_owt.py                                    on one GPU
#   torchrun --standalone --nproc_per_node=8 train.py config/train_aot_mhsa_owt.py  on eight
#
# hardware   GPUs of 80 GB; with fewer than eight the global batch stays and a step takes longer
# minutes    not run here
# expected   not run here. The paper's Table 3: loss 4.42 on LAMBADA, 4.19 on WikiText, zero-shot
from config.base.owt import *

out_dir = 'out/aot_mhsa_owt'
attn = 'mhsa'
n_layer = 24
n_embd = 896
n_head = 14
