# AoT-MHSA-V, from scratch on ImageNet-1K (AoT, section 4.1, Table 2).
#
#   python prepare/imagenet.py --from PATH
#   python train.py config/train_aot_mhsa_imagenet.py  # on one GPU
#   torchrun --standalone --nproc_per_node=8 train.py config/train_aot_mhsa_imagenet.py
#
# hardware   GPUs of 40 GB; with fewer than eight, the same global batch takes longer
# minutes    not run here
# expected   not run here. The paper's Table 2, where a ViT of 22M parameters has top-1 72.4:
#              MHSA   15M parameters, top-1 69.5
#            The paper gives no shape: 24 layers of width 384 have 15M.
from config.base.imagenet import *

out_dir = 'out/aot_mhsa_imagenet'
model = 'aot'
attn = 'mhsa'
n_layer = 24
n_embd = 384
n_head = 6

# warm-up and schedule are CRATE's, as the paper gives none
learning_rate = 5e-4
weight_decay = 0.1
randaugment_n = 2
randaugment_m = 14.0  # as in CRATE's fine-tuning; the paper gives no numbers
