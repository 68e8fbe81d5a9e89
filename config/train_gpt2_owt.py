# GPT-2 Base on OpenWebText, the baseline of the AoT language models (AoT, section 4.2, Tables 3
# and 4).
#
#   python prepare/openwebtext.py
#   python train.py config/train_gpt2_owt.py  # on one GPU
#   torchrun --standalone --nproc_per_node=8 train.py config/train_gpt2_owt.py
#
# hardware   GPUs of 80 GB; with fewer than eight, the same global batch takes longer
# minutes    not run here
# expected   not run here. nanoGPT reports a validation loss of about 2.85. The paper's Table 3,
#            zero-shot, and parameters without positions:
#              Base   124M parameters, loss 4.32 on LAMBADA, 4.13 on WikiText
from config.base.owt import *

out_dir = 'out/gpt2_owt'
model = 'aot'
attn = 'mhsa'
mlp = True
n_layer = 12
n_embd = 768
n_head = 12
