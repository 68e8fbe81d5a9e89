# ViT that teaches itself on drawn shapes, the baseline of train_crate_dino_shapes.py with the same
# budget and about as many parameters.
#
#   python train.py config/train_vit_dino_shapes.py
#   python eval.py --ckpt=out/vit_dino_shapes --knn=20 --probe=true
#
# hardware   2 CPU cores
# minutes    7 of training on one of two busy cores
# expected   on the test split 16.1 ± 1.1 by 20 neighbours (with random weights 10.9 ± 0.4) and
#            26.7 ± 1.1 by a linear probe (16.6 ± 0.7); three seeds, standard deviation
dataset = 'shapes'
out_dir = 'out/vit_dino_shapes'

# network
model = 'dino'
backbone = 'vit'
n_layer = 2
n_head = 4
n_embd = 96
patch_size = 4
pool = 'mean'
n_out = 1024
hidden = 256
bottleneck = 64
freeze_share = 0.1
centre_momentum = 0.0       # DINO's 0.9 is out of date when a network learns fast
first_temperature = 0.01    # with DINO's 0.04 every output soon gets the same probability
teacher_temperature = 0.01
teacher_momentum = 0.97     # DINO's 0.996 and 1 are for runs of 100,000 steps
teacher_momentum_end = 0.99

# training
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

# augmentation
crop_scale = 0.6
local_crops = 0             # two did not help
hue = 0.25                  # colours alone should not give away which picture a crop is from
blur = 0.7

# validation and log
eval_crop = 1.0
eval_interval = 300
eval_iters = 8
log_interval = 50
