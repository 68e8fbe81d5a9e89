# AoT-MSSA on the source code of Python's standard library, read as bytes: a small version of the
# language models in the AoT paper (section 4.2). A bare `python train.py` trains it.
#
#   python train.py                               # prepares its data; nothing is downloaded
#   python train.py config/train_aot_stdlib.py    # the same
#
# Its baselines, with about as many parameters, need these flags:
#   AoT-MHSA   --attn=mhsa --n_layer=3 --max_iters=2350 --out_dir=out/aot_mhsa_stdlib
#   GPT-2      --attn=mhsa --mlp=true --n_layer=4 --n_embd=128 --n_head=4
#              --max_iters=2240 --out_dir=out/gpt2_128_stdlib
#
# hardware   2 CPU cores
# minutes    2 to 3 of training with bfloat16, 6 without
# expected   validation loss, mean and standard deviation of five seeds:
#              AoT-MSSA   1.268 ± 0.003 nats, 1.829 ± 0.004 bits per byte
#              AoT-MHSA   1.190 ± 0.011 nats, 1.717 ± 0.015 bits per byte
#              GPT-2      1.136 ± 0.004 nats, 1.639 ± 0.006 bits per byte
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
