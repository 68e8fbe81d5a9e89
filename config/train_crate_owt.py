# CRATE-GPT Base on OpenWebText: CRATE's layers with causal attention (JMLR version of the CRATE
# paper, Appendix C.4). The network is the authors' released one. They trained it by nanoGPT's
# script, and the settings here are nanoGPT's, as in the other OpenWebText runs.
#
#   python prepare/openwebtext.py
#   python train.py config/train_crate_owt.py  # on one GPU
#   torchrun --standalone --nproc_per_node=8 train.py config/train_crate_owt.py
#
# hardware   GPUs of 80 GB; with fewer than eight, the same global batch takes longer
# minutes    not run here
# expected   not run here
#              Base   60.70M parameters
from config.base.owt import *

out_dir = 'out/crate_owt'
model = 'crate'
image_size = 0  # reads text
n_layer = 12
n_embd = 768
n_head = 12
