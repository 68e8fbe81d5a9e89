# CRATE-GPT, which is CRATE with causal attention, on the source code of Python's standard library,
# read as bytes: about as many parameters as train_crate_lm_stdlib.py and the same budget. A small
# version of CRATE-GPT in the JMLR version of the CRATE paper (Appendix C.4).
#
#   python train.py config/train_crate_stdlib.py    # prepares its data; nothing is downloaded
#
# hardware   2 CPU cores
# minutes    6 of training on one of two busy cores
# expected   validation loss 1.308 ± 0.002 (three seeds)
from config.base.stdlib import *

out_dir = 'out/crate_stdlib'

model = 'crate'
image_size = 0  # reads text
n_layer = 6
n_head = 8
n_embd = 208

muon_lr = 0.01        # for the matrices inside layers; the best on tiny Shakespeare
