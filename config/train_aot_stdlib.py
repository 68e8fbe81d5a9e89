# AoT-MSSA on the source code of Python's standard library, as bytes: what a bare `python train.py` trains.
#
#   python train.py                                   prepares its data by itself, without a network
#   python train.py config/train_aot_stdlib.py        the same
#
# hardware   2 CPU cores
# minutes    2 of training
# expected   validation loss 1.265 ± 0.004 nats, 1.824 ± 0.005 bits per byte (three seeds)
#
# The baselines of the README's table are this file with other layers:
#   AoT-MHSA   --attn=mhsa --n_layer=3 --muon_lr=0.05
#   GPT-2      --attn=mhsa --mlp=true --n_layer=4 --n_embd=128 --n_head=4 --muon_lr=0.05
dataset = 'stdlib'
out_dir = 'out/aot_stdlib'

attn = 'mssa'
n_layer = 6
n_head = 8
n_embd = 256
block_size = 64

batch_size = 32
max_iters = 2000
optimizer = 'muon'
learning_rate = 1e-2  # of embeddings and norms
muon_lr = 0.03        # of the matrices inside layers
schedule = 'linear'
min_lr = 0.0
beta2 = 0.99
grad_clip = 0.0
warmup_iters = 30
eval_interval = 200
eval_iters = 50
log_interval = 20
