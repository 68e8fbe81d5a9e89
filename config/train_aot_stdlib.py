dataset = 'stdlib'
out_dir = 'out/aot_stdlib'

attn = 'mssa'
n_layer = 6
n_embd = 256
n_head = 8
block_size = 128

batch_size = 16
max_iters = 1500
optimizer = 'muon'
learning_rate = 1e-2
muon_lr = 0.03
min_lr = 0.0
beta2 = 0.99
grad_clip = 0.0
warmup_iters = 50
eval_interval = 250
eval_iters = 100
