# Settings that runs on the source code of Python's standard library share; those of
# train_aot_stdlib.py, which is written out. Not a run by itself: each run starts with
# `from config.base.stdlib import *`.
dataset = 'stdlib'
block_size = 64

batch_size = 32
max_iters = 2000
optimizer = 'muon'
learning_rate = 1e-2  # for embeddings, norms, biases and scales
muon_lr = 0.03        # for the matrices inside layers
schedule = 'linear'
min_lr = 0.0
beta2 = 0.99
grad_clip = 0.0
warmup_iters = 30

eval_interval = 200
eval_iters = 50
log_interval = 20
