# GPT-2 Base, 124M parameters: the baseline of AoT's section 4.2 (Table 4).
#
#   python train.py config/train_gpt2_owt.py                                    on one GPU
#   torchrun --standalone --nproc_per_node=8 train.py config/train_gpt2_owt.py  on eight
#
# hardware   GPUs of 80 GB; with fewer than eight the global batch stays and a step takes longer
# minutes    not run here
# expected   not run here. nanoGPT reports about 2.85 validation loss; the paper's Table 3: loss 4.32 on LAMBADA, 4.13
#            on WikiText, zero-shot
from config.base.owt import *

out_dir = 'out/gpt2_owt'
attn = 'mhsa'
mlp = True
n_layer = 12
n_embd = 768
n_head = 12
