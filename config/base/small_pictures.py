# Settings that small runs on pictures of 32 x 32 pixels share: drawn shapes, CIFAR-10. Not a run by
# itself: each run starts with `from config.base.small_pictures import *`.
patch_size = 4

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

# Random crops of training are resized, so objects look larger in them than in whole pictures. A
# centre crop shows them as large in evaluation. 0.84 is the best for CRATE and ViT on validation.
eval_crop = 0.84
eval_iters = 1000  # the whole held-out split
