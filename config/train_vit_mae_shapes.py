# x
from config.shapes import *

model = 'vit_mae'
out_dir = 'out/vit_mae_shapes'
n_layer = 6
n_head = 6
n_embd = 192
