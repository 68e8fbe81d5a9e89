# GPT-2 on characters of tiny Shakespeare, the baseline of train_aot_shakespeare_char.py: the same
# budget and the same optimizer. The AoT paper compares with GPT-2 in section 4.2.
#
#   python prepare/shakespeare_char.py
#   python train.py config/train_gpt2_shakespeare_char.py
#
# hardware   2 CPU cores
# minutes    1 of training
# expected   validation loss 1.594 ± 0.002 (three seeds); nanoGPT publishes 1.88
#            for its GPT on a laptop
from config.base.shakespeare_char import *

out_dir = 'out/gpt2_shakespeare_char'

model = 'aot'
attn = 'mhsa'
mlp = True
n_layer = 4
n_head = 4
n_embd = 128

muon_lr = 0.01        # for the matrices inside layers; the best of five rates
