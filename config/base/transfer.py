# What CRATE's transfer runs share (appendix B.1.2): pictures resized to 224, AdamW, RandAugment. Epochs and schedule are
# ours, the paper does not give them. Not a run by itself: `from config.finetune import *` stands in each.
#
# From the authors' weights, which do not say how many heads they have (tiny 6, small and base 12, large 16):
#   python train.py config/finetune_crate_cifar10.py --init_from=official:PATH --n_head=12
# From a run of one's own, at its own resolution:
#   python train.py config/finetune_crate_cifar10.py --init_from=out/crate_shapes --image_size=32
model = 'crate'
init_from = 'out/crate_base_imagenet'
new_head = True
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
eval_epochs = 1
eval_iters = 1_000_000  # all of the split

crop_scale = 0.08
flip = True
randaugment_n = 2
randaugment_m = 14.0
eval_crop = 0.875
