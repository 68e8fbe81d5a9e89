# Settings that the OpenWebText runs share. Not a run by itself: each of them starts with
# `from config.base.owt import *`.
#
# The AoT paper says that it uses nanoGPT's pipeline and gives no numbers (section 4.2.1), so these
# are nanoGPT's.
dataset = 'openwebtext'
vocab_size = 50304  # GPT-2's 50257, rounded up to a multiple of 64 for the GPU
block_size = 1024

batch_size = 12
gradient_accumulation_steps = 5 * 8  # 12 x 40 x 1024 = 491,520 tokens a step, over all processes
max_iters = 600_000
optimizer = 'adamw'
learning_rate = 6e-4
min_lr = 6e-5
beta1, beta2 = 0.9, 0.95
weight_decay = 0.1
grad_clip = 1.0
warmup_iters = 2000

eval_interval = 1000
eval_iters = 200
