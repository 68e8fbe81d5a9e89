# Settings for fine-tuning a pre-trained CRATE on another dataset (CRATE, appendix B.1.2). Not a run
# by itself: each run starts with `from config.base.transfer import *`.
#
# Resolution, optimizer, learning rate, weight decay, batch size and augmentation are the paper's.
# The paper gives no epochs. The table in the README of the authors' code has 200 for CIFAR at 5e-5,
# and 400 at 1e-4 for Flowers and Pets, where the paper has 5e-5 for all; its batches are 256, the
# paper's 512. (Without flags their finetune.py takes 400 epochs, 1e-4 and batches of 50.) Schedule,
# the loss without label smoothing and the view of evaluation are those of their finetune.py.
model = 'crate'
init_from = 'out/crate_imagenet'
new_head = True  # the new dataset has other classes
new_norm = True  # the authors' script loads no part of the classifier
image_size = 224
label_smoothing = 0.0  # whatever the weights were trained with

batch_size = 64
gradient_accumulation_steps = 8  # 512 pictures a step, over all processes
epochs = 200  # for CIFAR
warmup_epochs = 0
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
randaugment_m = 14.0  # of torchvision's 30

eval_view = 'squash'  # all of the picture, resized to 224 x 224
eval_epochs = 1
eval_iters = 1_000_000  # the whole held-out split
