# Settings that runs on functions in context share (AoT, section 4.2.2, Appendix B.2). Not a run by
# itself: each run starts with `from config.base.icl import *`.
dataset = 'linear'
n_dims = 20
block_size = 82       # 41 examples, two tokens each
n_embd = 128
n_head = 8

batch_size = 64
max_iters = 50_000
optimizer = 'adamw'   # without weight decay it is Adam
learning_rate = 1e-4  # the paper tries 5e-5, 1e-4, 2e-4 and 4e-4, and does not report its choice
grad_clip = 10.0      # the paper tries 5, 10 and 50, and does not report its choice
schedule = 'constant'
min_lr = 0.0
warmup_iters = 0
beta1, beta2 = 0.9, 0.999
weight_decay = 0.0
dtype = 'float32'     # the remaining error is too small for bfloat16

eval_interval = 1000
eval_iters = 20       # 1280 prompts
log_interval = 50
