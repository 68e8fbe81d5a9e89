# GPT-2 with what the AoT racer has, Muon, batch and precision: how much of the head start is not the architecture.
#
#   python train.py config/race_gpt2_muon_shakespeare_char.py
#   python bench.py config/race_aot_shakespeare_char.py config/race_gpt2_muon_shakespeare_char.py --target_loss=1.88
#
# hardware   2 CPU cores
# minutes    0.3, evaluations included
# expected   validation loss 1.83 to 1.85 at step 350 (three seeds, target 1.88)
dataset = 'shakespeare_char'
out_dir = 'out/race_gpt2_muon_shakespeare_char'

attn = 'mhsa'
mlp = True
n_layer = 4
n_head = 4
n_embd = 128
block_size = 64

batch_size = 24
max_iters = 400
optimizer = 'muon'
learning_rate = 1e-2
muon_lr = 0.035
schedule = 'linear'
min_lr = 0.0
beta2 = 0.99
grad_clip = 0.0
warmup_iters = 30
eval_interval = 50
eval_iters = 50
