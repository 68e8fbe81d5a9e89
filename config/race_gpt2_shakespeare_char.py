# GPT-2 at nanoGPT's own laptop settings on characters of tiny Shakespeare: the time that
# race_aot_shakespeare_char.py has to beat. The race is not in the paper.
#
#   python train.py config/race_gpt2_shakespeare_char.py
#   python bench.py config/race_aot_shakespeare_char.py config/race_gpt2_shakespeare_char.py \
#          --target_loss=1.88
#
# 4 layers, width 128, AdamW at 1e-3, 2000 iterations of 12 x 64, no dropout and float32 are what
# nanoGPT's README types; the rest is its config/train_shakespeare_char.py.
#
# hardware   2 CPU cores
# minutes    1.5, evaluations included
# expected   validation loss 1.89 to 1.91 (three seeds); nanoGPT's README gives 1.88, estimated on
#            20 random batches
dataset = 'shakespeare_char'
out_dir = 'out/race_gpt2_shakespeare_char'

# network
model = 'aot'
attn = 'mhsa'
mlp = True
n_layer = 4
n_head = 4
n_embd = 128
block_size = 64

# training
batch_size = 12
max_iters = 2000
optimizer = 'adamw'
learning_rate = 1e-3
min_lr = 1e-4
beta2 = 0.99
weight_decay = 0.1
grad_clip = 1.0
warmup_iters = 100
dtype = 'float32'

# validation
eval_interval = 100
eval_iters = 100
