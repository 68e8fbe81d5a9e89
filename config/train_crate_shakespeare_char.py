# CRATE-GPT, CRATE with causal attention, on characters of tiny Shakespeare:
# as many parameters as train_aot_shakespeare_char.py has, and the same budget.
#
#   python prepare/shakespeare_char.py
#   python train.py config/train_crate_shakespeare_char.py
#
# hardware   2 CPU cores
# minutes    1.3 of training
# expected   validation loss 1.80 to 1.82 (four runs of three seeds)
from config.shakespeare import *

out_dir = 'out/crate_shakespeare_char'
model = 'crate'
image_size = 0  # reads text
n_layer = 7
n_head = 6
n_embd = 192
muon_lr = 0.01
