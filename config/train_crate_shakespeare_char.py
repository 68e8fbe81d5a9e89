# CRATE-GPT, which is CRATE with causal attention, on characters of tiny Shakespeare: about as many
# parameters as train_aot_shakespeare_char.py and the same budget. A small version of
# train_crate_owt.py.
#
#   python prepare/shakespeare_char.py
#   python train.py config/train_crate_shakespeare_char.py
#
# hardware   2 CPU cores
# minutes    1.3 of training
# expected   validation loss 1.805 ± 0.010 (three seeds, standard deviation)
from config.base.shakespeare_char import *

out_dir = 'out/crate_shakespeare_char'

model = 'crate'
image_size = 0  # reads text
n_layer = 7
n_head = 6
n_embd = 192

muon_lr = 0.01        # for the matrices inside layers; the best of five rates
