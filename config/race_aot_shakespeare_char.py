# AoT-MSSA in a race against the clock: how soon it reaches nanoGPT's published laptop result, a
# validation loss of 1.88 on characters of tiny Shakespeare. The race is not in the paper.
#
#   python train.py config/race_aot_shakespeare_char.py
#   python bench.py config/race_aot_shakespeare_char.py config/race_gpt2_shakespeare_char.py \
#          --target_loss=1.88
#
# The context is nanoGPT's. The model is small, the precision is chosen for the machine, and the
# batch is twice nanoGPT's: a step of Muon costs the same at any batch size, and a larger batch
# gives it a less noisy gradient.
#
# hardware   2 CPU cores
# minutes    0.4 to 0.7, evaluations included
# expected   validation loss 1.86 to 1.88 at step 700 or 750 (three seeds)
from config.base.shakespeare_char import *

out_dir = 'out/race_aot_shakespeare_char'

model = 'aot'
attn = 'mssa'
n_layer = 4
n_head = 8
n_embd = 192

batch_size = 24
max_iters = 750
muon_lr = 0.035       # for the matrices inside layers
warmup_iters = 30
eval_interval = 50
eval_iters = 50
