# GPT-2 learns to regress in context, the baseline of the AoT paper's Table 5: 16 layers of 128 with MLPs.
#
#   python train.py config/train_gpt2_icl.py
#   python eval.py --ckpt=out/gpt2_icl
#
# hardware   one GPU
# minutes    not run here
# expected   not run here. The paper's Figure 6: close to least squares
from config.icl import *

out_dir = 'out/gpt2_icl'
attn = 'mhsa'
mlp = True
n_layer = 16
bias = True  # as GPT-2's
