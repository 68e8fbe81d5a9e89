# AoT-MSSA-L on OpenWebText: layers of nothing but subspace self-attention (AoT, section 4.2,
# Tables 3 and 4). This file is Base, with 24 layers.
#
#   python prepare/openwebtext.py
#   python train.py config/train_aot_owt.py  # on one GPU
#   torchrun --standalone --nproc_per_node=8 train.py config/train_aot_owt.py
#
# The other size needs these flags:
#   Medium   --n_layer=36 --n_embd=1280 --n_head=20 --out_dir=out/aot_medium_owt
#
# hardware   GPUs of 80 GB; with fewer than eight, the same global batch takes longer
# minutes    not run here
# expected   not run here. The paper's Table 3, zero-shot, and parameters without positions:
#              Base     102M parameters, loss 4.70 on LAMBADA, 4.65 on WikiText
#              Medium   182M parameters, loss 4.47 on LAMBADA, 4.22 on WikiText
from config.base.owt import *

out_dir = 'out/aot_owt'
model = 'aot'
attn = 'mssa'
n_layer = 24
n_embd = 1024
n_head = 16
