# What the runs on CIFAR-10 share. Not a run by itself: `from config.cifar10 import *` stands in each.
from config.pictures import *

dataset = 'cifar10'
epochs = 6
eval_epochs = 1
log_interval = 50
crop_scale = 0.4
