# CRATE-BERT on the source code of Python's standard library, read as bytes: every byte sees every
# other, and the network predicts the hidden ones. A small version of CRATE-BERT in the JMLR version
# of the CRATE paper (Appendix C.4).
#
#   python train.py config/train_crate_bert_stdlib.py    # prepares its data; nothing is downloaded
#   python sample.py --ckpt=out/crate_bert_stdlib --start="for i in ran[MASK]e(10):"
#
# hardware   2 CPU cores
# minutes    4 of training where bfloat16 is fast, else 17 on one of them
# expected   predicts 60.4 ± 0.5% of the hidden bytes of the validation split (three seeds, standard
#            deviation); always guessing a space: 28.6%
dataset = 'stdlib'
out_dir = 'out/crate_bert_stdlib'

# network
model = 'crate'
image_size = 0  # reads text
causal = False  # and predicts hidden tokens, not the next one
n_layer = 6
n_head = 8
n_embd = 256
block_size = 64

# training
batch_size = 32
max_iters = 3000
optimizer = 'muon'
learning_rate = 1e-2  # for embeddings, norms and biases
muon_lr = 0.01        # for the matrices inside layers
schedule = 'linear'
min_lr = 0.0
beta2 = 0.99
grad_clip = 0.0
warmup_iters = 50

# validation and log
eval_interval = 500
eval_iters = 50
log_interval = 20
