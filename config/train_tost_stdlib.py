# ToST on the source code of Python's standard library, read as bytes, with about as many parameters
# as the AoT-MSSA of train_aot_stdlib.py, 0.87M.
#
#   python train.py config/train_tost_stdlib.py    # prepares its data; nothing is downloaded
#
# hardware   2 CPU cores
# minutes    not measured
# expected   not run here to its end
dataset = 'stdlib'
out_dir = 'out/tost_stdlib'

# network
model = 'tost'
n_layer = 5
n_head = 4
n_embd = 128
block_size = 64

# training
batch_size = 32
max_iters = 2000
optimizer = 'muon'
learning_rate = 1e-2  # for embeddings, norms, scales and the temperatures of memberships
muon_lr = 0.03        # for the matrices inside layers
schedule = 'linear'
min_lr = 0.0
beta2 = 0.99
grad_clip = 0.0
warmup_iters = 30

# validation and log
eval_interval = 200
eval_iters = 50
log_interval = 20
