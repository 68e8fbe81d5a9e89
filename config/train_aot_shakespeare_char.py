# AoT-MSSA on characters of tiny Shakespeare, at nanoGPT's laptop budget of 2000 iterations of
# 12 x 64 characters: a small version of the language models in the AoT paper (section 4.2).
#
#   python prepare/shakespeare_char.py
#   python train.py config/train_aot_shakespeare_char.py
#
# nanoGPT's GPU result is a loss of 1.47, with 256 characters of context. Its budget (not run here):
#   GPU   --block_size=256 --n_layer=18 --n_embd=384 --batch_size=64 --max_iters=5000 --dropout=0.2
#         --out_dir=out/aot_shakespeare_char_gpu
#
# hardware   2 CPU cores
# minutes    1.2 of training where bfloat16 is fast, else 3.3 on one of two busy cores
# expected   validation loss 1.741 ± 0.005 (three seeds, standard deviation, in float32); nanoGPT
#            publishes 1.88 for its GPT on a laptop
#              GPU   not run here
from config.base.shakespeare_char import *

out_dir = 'out/aot_shakespeare_char'

model = 'aot'
attn = 'mssa'
n_layer = 10
n_head = 6
n_embd = 192
