# CRATE on drawn shapes, 32 x 32 pixels in ten classes: a small version of CRATE's section 3.2.
# `python train.py --model=crate` trains it too.
#
#   python train.py config/train_crate_shapes.py    # draws its data first; nothing is downloaded
#
# hardware   2 CPU cores
# minutes    3 to 4 of training, and 0.25 to draw the pictures
# expected   top-1 92.8 ± 0.6 on the test split (five seeds, standard deviation)
dataset = 'shapes'
out_dir = 'out/crate_shapes'

# network
model = 'crate'
n_layer = 6
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
