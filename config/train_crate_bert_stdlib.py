# CRATE-BERT on the source code of Python's standard library, read as bytes: every byte sees every
# other, and the network predicts the hidden ones. A small version of train_crate_bert_owt.py.
#
#   python train.py config/train_crate_bert_stdlib.py    # prepares its data; nothing is downloaded
#   python sample.py --ckpt=out/crate_bert_stdlib --start="for i in ran[MASK]e(10):"
#
# hardware   2 CPU cores
# minutes    4 of training where bfloat16 is fast, else 17 on one of them
# expected   predicts 60.4 ± 0.5% of the hidden bytes of the validation split (three seeds, standard
#            deviation); always guessing a space: 28.6%
from config.base.stdlib import *

out_dir = 'out/crate_bert_stdlib'

model = 'crate'
image_size = 0  # reads text
causal = False  # and predicts hidden tokens, not the next one
n_layer = 6
n_head = 8
n_embd = 256

max_iters = 3000
muon_lr = 0.01        # for the matrices inside layers
warmup_iters = 50
eval_interval = 500
