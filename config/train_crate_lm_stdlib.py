# CRATE-LM, which is CRATE-GPT with CRATE-alpha's sparse codes, on the source code of Python's
# standard library, read as bytes: about as many parameters as train_aot_stdlib.py and the same
# budget. A small version of the networks of Bai and Ma (CPAL 2025).
#
#   python train.py config/train_crate_lm_stdlib.py    # prepares its data; nothing is downloaded
#
# hardware   2 CPU cores
# minutes    9 to 13 of training on one of two busy cores
# expected   validation loss 1.265 ± 0.002 (three seeds)
from config.base.stdlib import *

out_dir = 'out/crate_lm_stdlib'

model = 'crate_alpha'
image_size = 0  # reads text
decoupled = False
skip = False
n_layer = 6
n_head = 8
n_embd = 152

muon_lr = 0.02        # for the matrices inside layers
