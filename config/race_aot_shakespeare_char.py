# AoT-MSSA to nanoGPT's published laptop result, a validation loss of 1.88 on characters of tiny Shakespeare.
#
#   python train.py config/race_aot_shakespeare_char.py
#   python bench.py config/race_aot_shakespeare_char.py config/race_gpt2_shakespeare_char.py --target_loss=1.88
#
# hardware   2 CPU cores
# minutes    0.4, evaluations included
# expected   validation loss 1.86 to 1.88 at step 700 or 750 (three seeds)
#
# The clock decides here, so the model is small, precision chooses itself, and the batch is twice nanoGPT's: a step of
# Muon costs the same whatever the batch, and less noise makes more of it. The context is nanoGPT's.
dataset = 'shakespeare_char'
out_dir = 'out/race_aot_shakespeare_char'

attn = 'mssa'
n_layer = 4
n_head = 8
n_embd = 192
block_size = 64

batch_size = 24
max_iters = 750
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
