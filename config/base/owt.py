# What the four OpenWebText runs share: nanoGPT's pipeline, which the AoT paper says it uses and of which it gives
# no other numbers (section 4.2.1). Not a run by itself: `from config.owt import *` stands in each.
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
