# ToST on OpenWebText: attention by statistics of the tokens, at a cost linear in their number (Wu
# et al., ICLR 2025). Networks and settings are those of the authors' code. The settings are
# nanoGPT's, except for the weight decay of Base.
#
#   python prepare/openwebtext.py
#   python train.py config/train_tost_owt.py  # on one GPU
#   torchrun --standalone --nproc_per_node=8 train.py config/train_tost_owt.py
#
# The other sizes need these flags:
#   Medium   --n_layer=24 --n_embd=1024 --n_head=16 --weight_decay=0.1
#            --out_dir=out/tost_medium_owt
#   Large    --n_layer=36 --n_embd=1280 --n_head=20 --weight_decay=0.1
#            --out_dir=out/tost_large_owt
#
# hardware   GPUs of 80 GB; with fewer than eight, the same global batch takes longer
# minutes    not run here
# expected   not run here. The README of the authors' code (github.com/RobinWu218/ToST), where GPT-2
#            Base has a validation loss of 2.84:
#              Base     110.38M parameters, validation loss 3.20
#              Medium   304.71M parameters, validation loss 2.88
#              Large    656.45M parameters, validation loss 2.72
from config.base.owt import *

out_dir = 'out/tost_owt'
model = 'tost'
n_layer = 12
n_embd = 768
n_head = 12
weight_decay = 0.01
