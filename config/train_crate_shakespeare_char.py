# CRATE-GPT, CRATE with causal attention, on characters of tiny Shakespeare:
# as many parameters as train_aot_shakespeare_char.py has, and the same budget.
#
#   python prepare/shakespeare_char.py
#   python train.py config/train_crate_shakespeare_char.py
#
# hardware   2 CPU cores
# minutes    2 of training
# expected   X
dataset = 'shakespeare_char'
out_dir = 'out/crate_shakespeare_char'

model = 'crate'
image_size = 0  # reads text
n_layer = 7
n_head = 6
n_embd = 192
block_size = 64

batch_size = 12
max_iters = 2000
optimizer = 'muon'
learning_rate = 1e-2
muon_lr = 0.03
schedule = 'linear'
min_lr = 0.0
beta2 = 0.99
grad_clip = 0.0
warmup_iters = 50
eval_interval = 250
eval_iters = 100
