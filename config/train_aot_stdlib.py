# AoT-MSSA on the source code of Python's standard library, read as bytes: a small version of the
# language models in the AoT paper (section 4.2). A bare `python train.py` trains it.
#
#   python train.py                               # prepares its data; nothing is downloaded
#   python train.py config/train_aot_stdlib.py    # the same
#
# Its baselines, with about as many parameters and the same training time, need these flags:
#   AoT-MHSA   --attn=mhsa --n_layer=3 --max_iters=2350 --out_dir=out/aot_mhsa_stdlib
#   GPT-2      --attn=mhsa --mlp=true --n_layer=4 --n_embd=128 --n_head=4
#              --max_iters=2240 --out_dir=out/gpt2_stdlib
#
# hardware   2 CPU cores
# minutes    2 of training
# expected   validation loss, mean and standard deviation of three seeds or four:
#              AoT-MSSA   1.267 ± 0.001 nats, 1.827 ± 0.001 bits per byte
#              AoT-MHSA   1.192 ± 0.014 nats, 1.719 ± 0.020 bits per byte
#              GPT-2      1.135 ± 0.005 nats, 1.638 ± 0.007 bits per byte
dataset = 'stdlib'
out_dir = 'out/aot_stdlib'

# network
model = 'aot'
attn = 'mssa'
n_layer = 6
n_head = 8
n_embd = 256
block_size = 64

# training
batch_size = 32
max_iters = 2000
optimizer = 'muon'
learning_rate = 1e-2  # for embeddings and norms
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
