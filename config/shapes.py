# What the three runs on the drawn shapes share. Not a run by itself: `from config.shapes import *` stands in each.
dataset = 'shapes'
patch_size = 4

batch_size = 128
max_iters = 900
optimizer = 'muon'
learning_rate = 2e-3  # of tokens, positions, norms and the patch map
muon_lr = 0.02        # of the matrices inside layers; both as on CIFAR-10
schedule = 'linear'
min_lr = 0.0
beta2 = 0.99
weight_decay = 0.05
grad_clip = 0.0
warmup_iters = 50
eval_interval = 150
eval_iters = 1000     # all of the validation split
log_interval = 25

crop_scale = 0.6
eval_crop = 1.0
