# What CRATE-MAE's transfer runs share (appendix B.1): the encoder of CRATE-MAE-Base under a new head, all of it trained.
# CRATE's transfer recipe, with half its batch. Not a run by itself: `from config.finetunemasked import *` stands in each.
#
# From the authors' weights, which do not say how many heads they have (small and base 12):
#   python train.py config/finetune_crate_mae_cifar10.py --init_from=official:PATH --n_head=12
# From a run of one's own, at its own resolution:
#   python train.py config/finetune_crate_mae_cifar10.py --init_from=out/crate_mae_shapes --image_size=32
from config.base.transfer import *

init_from = 'out/crate_mae_base_imagenet'
gradient_accumulation_steps = 4  # 256 pictures a step, over all processes
