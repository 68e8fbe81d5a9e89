# AoT learns regression in context, with 32 layers of width 128 (AoT, section 4.2.2, Appendix B.2,
# Table 5, after Garg et al. 2022). This file is AoT-MSSA on linear functions of 20 dimensions.
#
#   python train.py config/train_aot_icl.py
#   python eval.py --ckpt=out/aot_icl
#
# Its variants need these flags; the last is the curriculum of Garg et al.:
#   MHSA         --attn=mhsa --out_dir=out/aot_mhsa_icl
#   sparse       --dataset=sparse_linear --out_dir=out/aot_icl_sparse
#   curriculum   --curriculum=2000 --out_dir=out/aot_icl_curriculum
#
# hardware   one GPU
# minutes    not run here
# expected   not run here. The paper's Figure 6: close to GPT-2. Table 5 counts a table of
#            50257 x 128 token embeddings that the task does not need; without it:
#              MSSA         1.07M parameters (7.5M in Table 5)
#              MHSA         2.11M parameters (8.55M in Table 5)
#              sparse       1.07M parameters
#              curriculum   1.07M parameters
from config.base.icl import *

out_dir = 'out/aot_icl'

model = 'aot'
attn = 'mssa'
n_layer = 32
