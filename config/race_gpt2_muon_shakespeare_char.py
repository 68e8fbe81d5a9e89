# GPT-2 with the optimizer, batch and precision of race_aot_shakespeare_char.py: shows how much of
# that run's lead does not come from the architecture. The race is not in the paper.
#
#   python train.py config/race_gpt2_muon_shakespeare_char.py
#   python bench.py config/race_aot_shakespeare_char.py config/race_gpt2_muon_shakespeare_char.py \
#          --target_loss=1.88
#
# hardware   2 CPU cores
# minutes    0.5, evaluations included
# expected   validation loss 1.83 to 1.87 at step 300 or 350 (three seeds, target 1.88)
from config.base.shakespeare_char import *

out_dir = 'out/race_gpt2_muon_shakespeare_char'

model = 'aot'
attn = 'mhsa'
mlp = True
n_layer = 4
n_head = 4
n_embd = 128

batch_size = 24
max_iters = 400
muon_lr = 0.035       # for the matrices inside layers
warmup_iters = 30
eval_interval = 50
eval_iters = 50
