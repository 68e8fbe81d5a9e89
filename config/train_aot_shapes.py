# AoT-MSSA on drawn shapes, with the same budget as train_crate_shapes.py: a small version of AoT's
# section 4.1.
#
#   python train.py config/train_aot_shapes.py
#
# hardware   2 CPU cores
# minutes    5 of training on one of them
# expected   top-1 90.5 ± 0.6 on the test split (five seeds, standard deviation)
dataset = 'shapes'
out_dir = 'out/aot_shapes'

# network
model = 'aot'
n_layer = 9
n_head = 6
n_embd = 192
patch_size = 4

# training
max_iters = 900
batch_size = 128
optimizer = 'muon'
muon_lr = 0.02        # for the matrices inside layers
learning_rate = 2e-3  # for everything else
schedule = 'linear'
min_lr = 0.0
beta2 = 0.99
weight_decay = 0.05
grad_clip = 0.0
warmup_iters = 50

# augmentation
crop_scale = 0.6

# validation and log
eval_crop = 1.0
eval_interval = 150
eval_iters = 1000  # the whole held-out split
log_interval = 25
