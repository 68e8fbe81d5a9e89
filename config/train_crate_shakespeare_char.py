# CRATE-GPT, which is CRATE with causal attention, on characters of tiny Shakespeare: about as many
# parameters as train_aot_shakespeare_char.py and the same budget. A small version of CRATE-GPT in
# the JMLR version of the CRATE paper (Appendix C.4).
#
#   python prepare/shakespeare_char.py
#   python train.py config/train_crate_shakespeare_char.py
#
# hardware   2 CPU cores
# minutes    1.3 of training
# expected   validation loss 1.805 ± 0.010 (three seeds, standard deviation)
dataset = 'shakespeare_char'
out_dir = 'out/crate_shakespeare_char'

# network
model = 'crate'
image_size = 0  # reads text
n_layer = 7
n_head = 6
n_embd = 192
block_size = 64

# training: nanoGPT's laptop budget
batch_size = 12
max_iters = 2000
optimizer = 'muon'
learning_rate = 1e-2  # for embeddings, norms and biases
muon_lr = 0.01        # for the matrices inside layers; the best of five rates
schedule = 'linear'
min_lr = 0.0
beta2 = 0.99
grad_clip = 0.0
warmup_iters = 50

# validation
eval_interval = 250
eval_iters = 100
