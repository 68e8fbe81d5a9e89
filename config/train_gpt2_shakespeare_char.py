# GPT-2, the baseline of train_aot_shakespeare_char.py: the same budget, the same optimizer.
#
#   python prepare/shakespeare_char.py
#   python train.py config/train_gpt2_shakespeare_char.py
#
# hardware   2 CPU cores
# minutes    1 of training
# expected   validation loss 1.602 ± 0.005 (three seeds); nanoGPT publishes 1.88 for its GPT on a laptop
from config.shakespeare import *

out_dir = 'out/gpt2_shakespeare_char'
attn = 'mhsa'
mlp = True
n_layer = 4
n_head = 4
n_embd = 128
muon_lr = 0.01
