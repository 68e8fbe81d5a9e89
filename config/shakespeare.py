# What the three runs on characters of tiny Shakespeare share: nanoGPT's laptop budget, 2000 iterations of 12 x 64. Not a run
# by itself: `from config.shakespeare import *` stands in each. muon_lr is the best of four or five for each network.
dataset = 'shakespeare_char'
block_size = 64

batch_size = 12
max_iters = 2000
optimizer = 'muon'
learning_rate = 1e-2  # of embeddings, norms, biases
schedule = 'linear'
min_lr = 0.0
beta2 = 0.99
grad_clip = 0.0
warmup_iters = 50
eval_interval = 250
eval_iters = 100
