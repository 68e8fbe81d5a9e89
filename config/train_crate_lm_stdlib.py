# CRATE-LM, which is CRATE-GPT with CRATE-alpha's sparse codes, on the source code of Python's
# standard library, read as bytes: about as many parameters as train_aot_stdlib.py and the same
# budget. A small version of the networks of Bai and Ma (CPAL 2025).
#
#   python train.py config/train_crate_lm_stdlib.py    # prepares its data; nothing is downloaded
#
# hardware   2 CPU cores
# minutes    not run here
# expected   not run here
dataset = 'stdlib'
out_dir = 'out/crate_lm_stdlib'

# network
model = 'crate_alpha'
image_size = 0  # reads text
decoupled = False
skip = False
n_layer = 6
n_head = 8
n_embd = 152
block_size = 64

# training
batch_size = 32
max_iters = 2000
optimizer = 'muon'
learning_rate = 1e-2  # for embeddings, norms and biases
muon_lr = 0.02        # for the matrices inside layers
schedule = 'linear'
min_lr = 0.0
beta2 = 0.99
grad_clip = 0.0
warmup_iters = 30

# validation and log
eval_interval = 200
eval_iters = 50
log_interval = 20
