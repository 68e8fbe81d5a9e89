# AoT-MSSA on characters of tiny Shakespeare, at nanoGPT's laptop budget: 2000 iterations of 12 x 64, on a CPU.
#
#   python prepare/shakespeare_char.py
#   python train.py config/train_aot_shakespeare_char.py
#
# hardware   2 CPU cores
# minutes    1.2 of training
# expected   validation loss 1.739 ± 0.007 (three seeds); nanoGPT publishes 1.88 for its GPT on a laptop
#
# nanoGPT's GPU result, 1.47 with 256 characters of context, is this budget (not run here):
#   python train.py config/train_aot_shakespeare_char.py --block_size=256 --n_layer=18 --n_embd=384 --batch_size=64 \
#          --max_iters=5000 --dropout=0.2 --out_dir=out/aot_shakespeare_char_gpu
from config.shakespeare import *

out_dir = 'out/aot_shakespeare_char'
attn = 'mssa'
n_layer = 10
n_head = 6
n_embd = 192
muon_lr = 0.02
