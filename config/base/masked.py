# Settings that masked autoencoders on ImageNet share (CRATE-MAE, appendix B.1). Not a run by
# itself: each run starts with `from config.base.masked import *`.
#
# The paper gives learning rate, weight decay, batch size and augmentation. Epochs, warm-up and
# betas are those of He et al., whose code the authors train with. That code multiplies the learning
# rate by batch / 256. If the paper's 3e-5 is the rate before that, use --learning_rate=4.8e-4.
dataset = 'imagenet'
image_size = 224
patch_size = 16
mask_ratio = 0.75

batch_size = 64
gradient_accumulation_steps = 64  # 4096 pictures a step, over all processes
epochs = 800
warmup_epochs = 40
optimizer = 'adamw'
learning_rate = 3e-5
min_lr = 0.0
beta1, beta2 = 0.9, 0.95
weight_decay = 0.1
grad_clip = 0.0
schedule = 'cosine'

crop_scale = 0.2
flip = True
randaugment_n = 2
randaugment_m = 14.0

eval_crop = 0.875
eval_epochs = 10
eval_iters = 1_000_000  # the whole validation split
