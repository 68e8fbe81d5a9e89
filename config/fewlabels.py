# What the runs on a tenth of the shapes' labels share. Not a run by itself: `from config.fewlabels import *` stands in each.
from config.shapes import *

train_share = 0.1
max_iters = 600
eval_interval = 150
