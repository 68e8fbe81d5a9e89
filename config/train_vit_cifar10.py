# ViT on CIFAR-10, the baseline of train_crate_cifar10.py with the same budget. The CRATE paper
# compares with ViT in section 3.2.
#
#   python prepare/cifar10.py
#   python train.py config/train_vit_cifar10.py
#
# hardware   2 CPU cores
# minutes    11 to 12 of training on one of two busy cores
# expected   top-1 65.3 ± 0.6 on the test split after the last step (three seeds, standard
#            deviation)
dataset = 'cifar10'
out_dir = 'out/vit_cifar10'

# network
model = 'vit'
n_layer = 4
n_head = 4
n_embd = 120
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
