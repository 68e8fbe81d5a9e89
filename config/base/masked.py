# What CRATE-MAE's pre-training on ImageNet shares (appendix B.1). The paper gives rate, decay, batch and augmentation; epochs,
# warm-up and betas are those of He et al., whose code the authors train in. Not a run by itself: `from config.masked import *`
# stands in each.
#
# That code scales its base rate by batch / 256. Should the paper's 3e-5 be meant so, the peak rate is --learning_rate=4.8e-4.
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
eval_epochs = 10
eval_iters = 1_000_000  # all of the validation split

crop_scale = 0.2
flip = True
randaugment_n = 2
randaugment_m = 14.0
eval_crop = 0.875
