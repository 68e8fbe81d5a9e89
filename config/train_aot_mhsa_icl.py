# AoT-MHSA learns to regress in context: the AoT paper's Table 5, 32 layers of 128.
#
#   python train.py config/train_aot_mhsa_icl.py
#   python eval.py --ckpt=out/aot_mhsa_icl
#
# hardware   one GPU
# minutes    not run here
# expected   not run here. The paper's Figure 6: close to least squares
from config.icl import *

out_dir = 'out/aot_mhsa_icl'
attn = 'mhsa'
n_layer = 32
