# CRATE-alpha on CIFAR-10, small and from scratch, with about as many parameters as CRATE in
# train_crate_cifar10.py, and the same budget otherwise.
#
#   python prepare/cifar10.py
#   python train.py config/train_crate_alpha_cifar10.py
#
# With as many operations as that CRATE:
#   equal compute   --n_layer=3 --n_embd=136 --out_dir=out/crate_alpha_compute_cifar10
#
# hardware   2 CPU cores
# minutes    16 to 17 of training on one of two busy cores
# expected   top-1 59.8 ± 0.9 on the test split after the last step (three seeds, standard
#            deviation)
#              equal compute   58.9 ± 0.4
dataset = 'cifar10'
out_dir = 'out/crate_alpha_cifar10'

# network
model = 'crate_alpha'
n_layer = 4
n_head = 4
n_embd = 128
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
