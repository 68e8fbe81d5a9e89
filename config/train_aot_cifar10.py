# AoT-MSSA on CIFAR-10, with the same budget as train_crate_cifar10.py: a small version of AoT's
# section 4.1.
#
#   python prepare/cifar10.py
#   python train.py config/train_aot_cifar10.py
#
# hardware   2 CPU cores
# minutes    15 to 17 of training on one of two busy cores
# expected   top-1 57.2 ± 0.9 on the test split after the last step (three seeds, standard
#            deviation)
dataset = 'cifar10'
out_dir = 'out/aot_cifar10'

# network
model = 'aot'
n_layer = 9
n_head = 6
n_embd = 192
patch_size = 4

# training
epochs = 3
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
crop_scale = 0.4

# validation and log
eval_crop = 1.0
eval_epochs = 1
eval_iters = 1000  # the whole held-out split
log_interval = 50
