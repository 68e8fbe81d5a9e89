# What the runs on the drawn shapes share. Not a run by itself: `from config.shapes import *` stands in each.
from config.pictures import *

dataset = 'shapes'
max_iters = 900
eval_interval = 150
log_interval = 25
crop_scale = 0.6
