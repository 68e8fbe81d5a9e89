# Settings that networks share which teach themselves on drawn shapes. Not a run by itself: each run
# starts with `from config.base.dino_shapes import *`.
dataset = 'shapes'
model = 'dino'
n_head = 4
patch_size = 4
pool = 'mean'
hidden_dim = 256
momentum_teacher = 0.97     # DINO's 0.996 and 1 are for runs of 100,000 steps
momentum_teacher_end = 0.99

max_iters = 1500
batch_size = 64
optimizer = 'muon'
muon_lr = 0.01
learning_rate = 1e-3
schedule = 'cosine'
min_lr = 1e-5
beta2 = 0.99
weight_decay = 0.04
weight_decay_end = 0.4
grad_clip = 3.0
warmup_iters = 30

crop_scale = 0.6
local_crops = 0             # two did not help
hue = 0.25                  # colours alone should not give away which picture a crop is from
blur = 0.7

eval_crop = 1.0
eval_interval = 300
eval_iters = 8
log_interval = 50
