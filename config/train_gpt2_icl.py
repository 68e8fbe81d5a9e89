# GPT-2 learns regression in context, the baseline of train_aot_icl.py: 16 layers of width 128, with
# MLPs (AoT, section 4.2.2, Appendix B.2, Table 5, after Garg et al. 2022).
#
#   python train.py config/train_gpt2_icl.py
#   python eval.py --ckpt=out/gpt2_icl
#
# Its variants need these flags; the last is the curriculum of Garg et al.:
#   sparse       --dataset=sparse_linear --out_dir=out/gpt2_icl_sparse
#   curriculum   --curriculum=2000 --out_dir=out/gpt2_icl_curriculum
#
# hardware   one GPU
# minutes    not run here
# expected   not run here. The paper's Figure 6: AoT is close. Table 5 counts a table of
#            50257 x 128 token embeddings that the task does not need; without it:
#              GPT-2        3.19M parameters (9.63M in Table 5)
#              sparse       3.19M parameters
#              curriculum   3.19M parameters
from config.base.icl import *

out_dir = 'out/gpt2_icl'

model = 'aot'
attn = 'mhsa'
mlp = True
bias = True  # as in GPT-2
n_layer = 16
