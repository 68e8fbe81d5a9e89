# What the three runs on CIFAR-10 share: the same budget for each. Not a run by itself: `from config.cifar10 import *`
# stands in each.
dataset = 'cifar10'
patch_size = 4

batch_size = 128
epochs = 6
optimizer = 'muon'
learning_rate = 2e-3  # of tokens, positions, norms and the patch map
muon_lr = 0.02        # of the matrices inside layers; for each of the three the best of three after an epoch
schedule = 'linear'
min_lr = 0.0
beta2 = 0.99
weight_decay = 0.05
grad_clip = 0.0
warmup_iters = 50
eval_epochs = 1
eval_iters = 1000     # all of the test split
log_interval = 50

crop_scale = 0.4
eval_crop = 1.0
