# ViT-MAE on drawn shapes, the baseline of pretrain_crate_mae_shapes.py with the same budget. The
# CRATE-MAE paper compares with ViT-MAE in section 3.
#
#   python train.py config/pretrain_vit_mae_shapes.py
#
# hardware   2 CPU cores
# minutes    4 to 5 of training on one of them where bfloat16 is fast, else 11
# expected   loss 0.228 ± 0.001 on the test split (three seeds, standard deviation); predicting the
#            mean colour of the visible patches: 0.577
dataset = 'shapes'
out_dir = 'out/vit_mae_shapes'

# network
model = 'vit_mae'
n_layer = 4
n_head = 4
n_embd = 128
patch_size = 4
decoder_n_layer = 3
decoder_n_head = 4
decoder_n_embd = 128

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
