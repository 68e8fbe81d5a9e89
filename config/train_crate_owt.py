# CRATE-GPT Base, 61M parameters: CRATE's layers, causal, on OpenWebText.
#
#   python train.py config/train_crate_owt.py                                    on one GPU
#   torchrun --standalone --nproc_per_node=8 train.py config/train_crate_owt.py  on eight
#
# hardware   GPUs of 80 GB; with fewer than eight the global batch stays and a step takes longer
# minutes    not run here
# expected   not run here
from config.base.owt import *

out_dir = 'out/crate_owt'
model = 'crate'
image_size = 0  # reads text
n_layer = 12
n_embd = 768
n_head = 12
