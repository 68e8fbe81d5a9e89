# ViT's classifier on a tenth of the shapes' labels, from the encoder of train_vit_mae_shapes.py.
#
#   python train.py config/train_vit_mae_shapes.py
#   python train.py config/finetune_vit_mae_shapes.py
#
# hardware   2 CPU cores
# minutes    TODO
# expected   TODO
from config.fewlabels import *

model = 'vit'
init_from = 'out/vit_mae_shapes/last.pt'
new_head = True
out_dir = 'out/finetune_vit_mae_shapes'
