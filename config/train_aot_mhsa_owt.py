# AoT-MHSA-L Base on OpenWebText: attention only, with separate query, key and value (AoT, eq. 5,
# section 4.2, Tables 3 and 4).
#
#   python prepare/openwebtext.py
#   python train.py config/train_aot_mhsa_owt.py  # on one GPU
#   torchrun --standalone --nproc_per_node=8 train.py config/train_aot_mhsa_owt.py
#
# hardware   GPUs of 80 GB; with fewer than eight, the same global batch takes longer
# minutes    not run here
# expected   not run here. The paper's Table 3, zero-shot, and parameters without positions:
#              Base   122M parameters, loss 4.42 on LAMBADA, 4.19 on WikiText
from config.base.owt import *

out_dir = 'out/aot_mhsa_owt'
model = 'aot'
attn = 'mhsa'
n_layer = 24
n_embd = 896
n_head = 14
