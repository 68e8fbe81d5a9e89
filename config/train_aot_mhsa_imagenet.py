# AoT-MHSA-V, 15M parameters, from scratch on ImageNet-1K (AoT, section 4.1, Table 2).
#
#   python train.py config/train_aot_mhsa_imagenet.py                                    on one GPU
#   torchrun --standalone --nproc_per_node=8 train.py config/train_aot_mhsa_imagenet.py  on eight
#
# hardware   GPUs of 40 GB; with fewer than eight the global batch stays and a step takes longer
# minutes    not run here
# expected   not run here. The paper's Table 2: top-1 69.5, ViT of 22M 72.4
from config.base.imagenet import *

out_dir = 'out/aot_mhsa_imagenet'
model = 'aot'
n_layer = 24
n_embd = 384
n_head = 6
attn = 'mhsa'

learning_rate = 5e-4
weight_decay = 0.1
randaugment_n = 2
randaugment_m = 14.0  # as CRATE's fine-tuning; the paper gives no numbers
