# x
from config.shapes import *

model = 'crate_mae'
out_dir = 'out/crate_mae_shapes'
n_layer = 6
n_head = 6
n_embd = 192
