# Settings that the supervised ImageNet runs share (CRATE, appendix B.1.2). Not a run by itself:
# each of them starts with `from config.base.imagenet import *`.
dataset = 'imagenet'
image_size = 224
patch_size = 16
label_smoothing = 0.1

batch_size = 128
gradient_accumulation_steps = 16  # 2048 pictures a step, over all processes
epochs = 150
warmup_epochs = 5
optimizer = 'lion'
learning_rate = 2.4e-4
min_lr = 0.0
beta1, beta2 = 0.9, 0.99
weight_decay = 0.5
grad_clip = 0.0
schedule = 'cosine_from_start'  # the curve of the authors' script

crop_scale = 0.08  # random crops and flips, nothing else
flip = True

eval_crop = 0.875
eval_epochs = 1
eval_iters = 1_000_000  # the whole validation split
