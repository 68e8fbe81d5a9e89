# CRATE-Base from ImageNet-21K to ImageNet-1K (CRATE, appendix B.6): pretrain_crate_base_imagenet21k.py comes before.
#
#   python train.py config/finetune_crate_base_imagenet.py                                    on one GPU
#   torchrun --standalone --nproc_per_node=8 train.py config/finetune_crate_base_imagenet.py  on eight
#
# hardware   GPUs of 40 GB; with fewer than eight the global batch stays and a step takes longer
# minutes    not run here
# expected   not run here. The paper's Table 5: top-1 80.2
from config.base.imagenet import *

out_dir = 'out/finetune_crate_base_imagenet'
model = 'crate'
init_from = 'out/crate_base_imagenet21k'
new_head = True

epochs = 50
learning_rate = 5e-5
