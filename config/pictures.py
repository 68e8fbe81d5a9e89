# What the small runs on a CPU share, config/shapes.py and config/cifar10.py: small pictures in patches of 4. Not a run by
# itself.
patch_size = 4

batch_size = 128
optimizer = 'muon'
learning_rate = 2e-3  # of tokens, positions, norms and the patch map
muon_lr = 0.02        # of the matrices inside layers; for each network the best of three after an epoch of CIFAR-10
schedule = 'linear'
min_lr = 0.0
beta2 = 0.99
weight_decay = 0.05
grad_clip = 0.0
warmup_iters = 50
eval_iters = 1000     # all of the held-out split
eval_crop = 1.0
