# AoT-MSSA learns regression in context, small enough for a laptop: linear functions of 5 dimensions
# in prompts of 11 examples. A small version of AoT's section 4.2.2.
#
#   python train.py config/train_aot_linear.py
#   python eval.py --ckpt=out/aot_linear
#
# Its baselines, whose depths have the proportions of the paper's Table 5, need these flags:
#   AoT-MHSA   --attn=mhsa --learning_rate=3e-3 --out_dir=out/aot_mhsa_linear
#   GPT-2      --attn=mhsa --mlp=true --n_layer=3 --learning_rate=1e-3 --out_dir=out/gpt2_linear
#
# hardware   2 CPU cores
# minutes    4 of training
# expected   squared error, divided by that of predicting zero (three seeds, standard deviation):
#            0.035 ± 0.009 after 10 examples, 0.344 ± 0.013 averaged over the prompt
#              AoT-MHSA   0.002 ± 0.001 after 10 examples, 0.293 ± 0.001 over the prompt
#              GPT-2      0.006 ± 0.001 after 10 examples, 0.310 ± 0.003 over the prompt
dataset = 'linear'
out_dir = 'out/aot_linear'

# network
model = 'aot'
attn = 'mssa'
n_dims = 5
block_size = 22  # 11 examples, two tokens each
n_layer = 6
n_head = 4
n_embd = 64

# training
batch_size = 64
max_iters = 10_000
optimizer = 'muon'
learning_rate = 5e-4  # for embeddings, norms, biases and the maps into and out of the network
muon_lr = 0.01        # for the matrices inside layers
schedule = 'linear'
min_lr = 0.0
beta2 = 0.99
grad_clip = 0.0
warmup_iters = 30
dtype = 'float32'     # the remaining error is too small for bfloat16

# validation and log
eval_interval = 1000
eval_iters = 20       # 1280 prompts
log_interval = 50
