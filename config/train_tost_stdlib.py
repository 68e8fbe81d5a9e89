# ToST on the source code of Python's standard library, read as bytes, with about as many parameters
# as the AoT-MSSA of train_aot_stdlib.py, 0.87M.
#
#   python train.py config/train_tost_stdlib.py    # prepares its data; nothing is downloaded
#
# hardware   2 CPU cores
# minutes    4 to 5 of training on one of two busy cores
# expected   validation loss 1.354 ± 0.035 (three seeds)
from config.base.stdlib import *

out_dir = 'out/tost_stdlib'

model = 'tost'
n_layer = 5
n_head = 4
n_embd = 128
