# GPT-2 on characters of tiny Shakespeare, the baseline of train_aot_shakespeare_char.py: the same
# budget and the same optimizer. The AoT paper compares with GPT-2 in section 4.2.
#
#   python prepare/shakespeare_char.py
#   python train.py config/train_gpt2_shakespeare_char.py
#
# hardware   2 CPU cores
# minutes    1 of training
# expected   validation loss 1.594 ± 0.002 (three seeds); nanoGPT publishes 1.88
#            for its GPT on a laptop
dataset = 'shakespeare_char'
out_dir = 'out/gpt2_shakespeare_char'

# network
model = 'aot'
attn = 'mhsa'
mlp = True
n_layer = 4
n_head = 4
n_embd = 128
block_size = 64

# training: nanoGPT's laptop budget
batch_size = 12
max_iters = 2000
optimizer = 'muon'
learning_rate = 1e-2  # for embeddings and norms
muon_lr = 0.01        # for the matrices inside layers; the best of five rates
schedule = 'linear'
min_lr = 0.0
beta2 = 0.99
grad_clip = 0.0
warmup_iters = 50

# validation
eval_interval = 250
eval_iters = 100
