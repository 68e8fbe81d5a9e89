# CRATE-LM on OpenWebText: CRATE's compression with CRATE-alpha's sparse codes, which are decoded by
# the dictionary that coded them, without a skip (Bai and Ma, CPAL 2025). This file has 12 layers,
# as the network whose weights prepare/crate_lm_weights.py fetches.
#
#   python prepare/openwebtext.py
#   python train.py config/train_crate_lm_owt.py  # on one GPU
#   torchrun --standalone --nproc_per_node=8 train.py config/train_crate_lm_owt.py
#
# The authors' other sizes, and CRATE-alpha on text, need these flags:
#   1 layer       --n_layer=1 --n_head=4 --n_embd=128 --out_dir=out/crate_lm_1_owt
#   2 layers      --n_layer=2 --n_head=4 --n_embd=128 --out_dir=out/crate_lm_2_owt
#   3 layers      --n_layer=3 --n_head=4 --n_embd=128 --out_dir=out/crate_lm_3_owt
#   6 layers      --n_layer=6 --out_dir=out/crate_lm_6_owt
#   alpha Small   --decoupled=true --skip=true --n_head=8 --n_embd=512
#                 --out_dir=out/crate_alpha_small_owt
#   alpha Base    --decoupled=true --skip=true --out_dir=out/crate_alpha_owt
#
# The authors trained CRATE-LM on the Pile, by nanoGPT's script, whose settings these are. Their
# textbook (Buchanan et al., section 7.5.1) trains CRATE-alpha on OpenWebText and gives no shapes;
# those here are ours.
#
# hardware   GPUs of 80 GB; with fewer than eight, the same global batch takes longer
# minutes    not run here
# expected   not run here. Of CRATE-alpha with 57M and 120M parameters the textbook reports
#            validation losses of 3.28 and 3.14, of CRATE-GPT 3.37, of GPT-2 2.85
#              12 layers     81.93M parameters
#              1 layer        6.67M parameters
#              2 layers       6.77M parameters
#              3 layers       6.87M parameters
#              6 layers      60.68M parameters
#              alpha Small   57.77M parameters
#              alpha Base    110.25M parameters
from config.base.owt import *

out_dir = 'out/crate_lm_owt'
model = 'crate_alpha'
image_size = 0  # reads text
decoupled = False
skip = False
n_layer = 12
n_embd = 768
n_head = 12
