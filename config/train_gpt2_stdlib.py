# GPT-2 on the source code of Python's standard library, read as bytes: the baseline of
# train_crate_lm_stdlib.py and train_crate_stdlib.py, with about as many parameters and the same
# budget. Bai and Ma (CPAL 2025) compare their CRATE-LM with GPT-2.
#
#   python train.py config/train_gpt2_stdlib.py    # prepares its data; nothing is downloaded
#
# hardware   2 CPU cores
# minutes    5 of training on one of two busy cores
# expected   validation loss 1.146 ± 0.004 (three seeds)
from config.base.stdlib import *

out_dir = 'out/gpt2_stdlib'

model = 'aot'
attn = 'mhsa'
mlp = True
n_layer = 4
n_head = 4
n_embd = 132
