# CRATE that teaches itself on drawn shapes as in SimDINO: no outputs, centre or temperatures, but a
# coding rate that keeps the features of different pictures apart.
#
#   python train.py config/train_crate_simdino_shapes.py
#   python eval.py --ckpt=out/crate_simdino_shapes --knn=20 --probe=true
#
# The other settings are those of train_crate_dino_shapes.py. The ViT of train_vit_dino_shapes.py:
#   ViT       --backbone=vit --n_layer=2 --n_embd=96 --out_dir=out/vit_simdino_shapes
#
# hardware   2 CPU cores
# minutes    not run here
# expected   not run here:
#              ViT       not run here
dataset = 'shapes'
out_dir = 'out/crate_simdino_shapes'

# network
model = 'dino'
objective = 'simdino'
backbone = 'crate'
n_layer = 4
n_head = 4
n_embd = 128
patch_size = 4
pool = 'mean'
hidden = 256
bottleneck = 128            # numbers in a feature
eps = 0.4                   # the published 0.05 times 8 processes; see docs/papers.md
c = 2.0
pair = False
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
local_crops = 0
hue = 0.25                  # colours alone should not give away which picture a crop is from
blur = 0.7

# validation and log
eval_crop = 1.0
eval_interval = 300
eval_iters = 8
log_interval = 50
