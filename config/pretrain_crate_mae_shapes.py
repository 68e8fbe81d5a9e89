# CRATE-MAE on drawn shapes, without their labels: a small version of CRATE-MAE's section 3.
# `python train.py --model=crate_mae` trains it too.
#
#   python train.py config/pretrain_crate_mae_shapes.py    # draws its data first; no download
#
# hardware   2 CPU cores
# minutes    5 to 6 of training where bfloat16 is fast, else 22 to 30 on one of them; 0.25 to draw
#            the pictures
# expected   loss 0.290 ± 0.004 on the test split (three seeds, standard deviation); predicting the
#            mean colour of the visible patches: 0.577
dataset = 'shapes'
out_dir = 'out/crate_mae_shapes'

# network
model = 'crate_mae'
n_layer = 6
n_head = 6
n_embd = 192
patch_size = 4

# training
max_iters = 1000
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
eval_interval = 200
eval_iters = 1000  # the whole held-out split
log_interval = 25
