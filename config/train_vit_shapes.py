# ViT on drawn shapes, the baseline of train_crate_shapes.py with the same budget. The CRATE paper
# compares with ViT in section 3.2.
#
#   python train.py config/train_vit_shapes.py
#
# hardware   2 CPU cores
# minutes    4 of training on one of them
# expected   top-1 93.4 ± 0.4 on the test split (five seeds, standard deviation)
dataset = 'shapes'
out_dir = 'out/vit_shapes'

# network
model = 'vit'
n_layer = 4
n_head = 4
n_embd = 128
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
