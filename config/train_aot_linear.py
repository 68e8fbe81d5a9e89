# AoT-MSSA learns to regress in context, small enough for a laptop: linear functions of 5 dimensions, prompts of 11 examples.
# What a bare `python train.py --dataset=linear` trains.
#
#   python train.py config/train_aot_icl_small.py
#   python eval.py --ckpt=out/aot_icl_small
#
# hardware   2 CPU cores
# minutes    4 of training
# expected   error after 10 examples 0.018 ± 0.002 of that of predicting zero (three seeds), 0.327 ± 0.003 over the prompt
#
# AoT-MHSA and GPT-2, as deep in proportion as in the paper's Table 5:
#   --attn=mhsa --learning_rate=3e-3
#   --attn=mhsa --mlp=true --n_layer=3 --learning_rate=3e-3
dataset = 'linear'
out_dir = 'out/aot_icl_small'

attn = 'mssa'
n_dims = 5
block_size = 22  # 11 examples, two tokens each
n_layer = 6
n_head = 4
n_embd = 64

batch_size = 64
max_iters = 10_000
optimizer = 'muon'
learning_rate = 5e-4  # of embeddings, norms, biases and the maps in and out
muon_lr = 0.01        # of the matrices inside layers
schedule = 'linear'
min_lr = 0.0
beta2 = 0.99
grad_clip = 0.0
warmup_iters = 30
dtype = 'float32'     # what is left of the error is smaller than bfloat16 can tell apart
eval_interval = 1000
eval_iters = 20       # 1280 prompts
log_interval = 50
