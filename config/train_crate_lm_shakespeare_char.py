# CRATE-LM, which is CRATE-GPT with CRATE-alpha's sparse codes, on characters of tiny Shakespeare:
# about as many parameters as train_aot_shakespeare_char.py and the same budget. A small version of
# the networks of Bai and Ma (CPAL 2025).
#
#   python prepare/shakespeare_char.py
#   python train.py config/train_crate_lm_shakespeare_char.py
#
# hardware   2 CPU cores
# minutes    4 of training on one of two busy cores
# expected   validation loss 1.881 ± 0.008 (three seeds)
from config.base.shakespeare_char import *

out_dir = 'out/crate_lm_shakespeare_char'

model = 'crate_alpha'
image_size = 0  # reads text
decoupled = False
skip = False
n_layer = 6
n_head = 6
n_embd = 144
