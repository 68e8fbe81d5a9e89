# Settings for fine-tuning a pre-trained CRATE on another dataset (CRATE, appendix B.1.2). Not a run
# by itself: each run starts with `from config.base.transfer import *`.
#
# Resolution, optimizer, learning rate, weight decay, batch size and augmentation are the paper's.
# It gives no epochs and no schedule; these are our choice.
model = 'crate'
init_from = 'out/crate_imagenet'
new_head = True  # the new dataset has other classes
image_size = 224

batch_size = 64
gradient_accumulation_steps = 8  # 512 pictures a step, over all processes
epochs = 50
warmup_epochs = 2
optimizer = 'adamw'
learning_rate = 5e-5
min_lr = 0.0
beta1, beta2 = 0.9, 0.999
weight_decay = 0.01
grad_clip = 0.0
schedule = 'cosine'

crop_scale = 0.08
flip = True
randaugment_n = 2
randaugment_m = 14.0

eval_crop = 0.875
eval_epochs = 1
eval_iters = 1_000_000  # the whole held-out split
