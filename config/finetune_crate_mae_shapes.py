# CRATE's classifier on a tenth of the shapes' labels, from the encoder of train_crate_mae_shapes.py.
#
#   python train.py config/train_crate_mae_shapes.py
#   python train.py config/finetune_crate_mae_shapes.py
#
# hardware   2 CPU cores
# minutes    TODO
# expected   TODO
from config.fewlabels import *

model = 'crate'
init_from = 'out/crate_mae_shapes/last.pt'
new_head = True
out_dir = 'out/finetune_crate_mae_shapes'
