# Settings that runs on characters of tiny Shakespeare share: nanoGPT's laptop budget of 2000
# iterations of 12 x 64 characters, with Muon. Not a run by itself: each run starts with
# `from config.base.shakespeare_char import *`.
dataset = 'shakespeare_char'
block_size = 64

batch_size = 12
max_iters = 2000
optimizer = 'muon'
learning_rate = 1e-2  # for embeddings, norms and biases
muon_lr = 0.02        # for the matrices inside layers
schedule = 'linear'
min_lr = 0.0
beta2 = 0.99
grad_clip = 0.0
warmup_iters = 50

eval_interval = 250
eval_iters = 100
