# CRATE-LM, which is CRATE-GPT with CRATE-alpha's sparse codes, on characters of tiny Shakespeare:
# about as many parameters as train_aot_shakespeare_char.py and the same budget. A small version of
# the networks of Bai and Ma (CPAL 2025).
#
#   python prepare/shakespeare_char.py
#   python train.py config/train_crate_lm_shakespeare_char.py
#
# hardware   2 CPU cores
# minutes    not run here in full
# expected   not run here in full; one seed, with --max_iters=250: validation loss 2.29 (2.35 with
#            --muon_lr=0.01)
dataset = 'shakespeare_char'
out_dir = 'out/crate_lm_shakespeare_char'

# network
model = 'crate_alpha'
image_size = 0  # reads text
decoupled = False
skip = False
n_layer = 6
n_head = 6
n_embd = 144
block_size = 64

# training: nanoGPT's laptop budget
batch_size = 12
max_iters = 2000
optimizer = 'muon'
learning_rate = 1e-2  # for embeddings, norms and biases
muon_lr = 0.02        # for the matrices inside layers; after 250 steps ahead of 0.01
schedule = 'linear'
min_lr = 0.0
beta2 = 0.99
grad_clip = 0.0
warmup_iters = 50

# validation
eval_interval = 250
eval_iters = 100
