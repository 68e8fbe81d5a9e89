# ViT that teaches itself on drawn shapes, the baseline of train_crate_dino_shapes.py with the same
# budget.
#
#   python train.py config/train_vit_dino_shapes.py
#   python eval.py --ckpt=out/vit_dino_shapes --knn=20
#
# hardware   2 CPU cores
# minutes    not measured
# expected   not measured
dataset = 'shapes'
out_dir = 'out/vit_dino_shapes'

# network
model = 'dino'
backbone = 'vit'
n_layer = 4
n_head = 4
n_embd = 128
patch_size = 4
n_out = 1024
hidden = 256
bottleneck = 64
freeze_share = 0.1
teacher_momentum = 0.95  # with DINO's 0.996 a third of the start would be left after 600 steps
teacher_momentum_end = 0.99  # with DINO's 1 the last tenth of 600 steps would weigh 2.5%

# training
max_iters = 600
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
warmup_iters = 60

# augmentation
crop_scale = 0.4
local_crops = 4
local_size = 16
local_scale = 0.1
blur = 0.7

# validation and log
eval_crop = 1.0
eval_interval = 150
eval_iters = 8
log_interval = 25
