# What the in-context runs share: AoT, section 4.2.2 and Appendix B.2, after Garg et al. 2022. Not a run by itself.
#
# The paper tries learning_rate 5e-5, 1e-4, 2e-4 and 4e-4 with grad_clip 5, 10 and 50, and does not say which it took.
# Sparse functions: --dataset=sparse_linear, with another --out_dir. A curriculum as Garg et al. have it: --curriculum=2000
dataset = 'linear'
n_dims = 20
block_size = 82  # 41 examples, two tokens each
n_embd = 128
n_head = 8

batch_size = 64
max_iters = 50_000
optimizer = 'adam'
learning_rate = 1e-4
min_lr = 0.0
schedule = 'constant'
warmup_iters = 0
beta1, beta2 = 0.9, 0.999
weight_decay = 0.0
grad_clip = 10.0
dtype = 'float32'  # what is left of the error is smaller than bfloat16 can tell apart
eval_interval = 1000
eval_iters = 20  # 1280 prompts
log_interval = 50
