# CRATE-BERT on OpenWebText: every token sees every other, and the network predicts hidden tokens.
# The contents of the JMLR version of the CRATE paper name CRATE-BERT (Appendix C.4), but we did not
# have that part. This file has the layers and widths of BERT-Base.
#
#   python prepare/openwebtext.py
#   python train.py config/train_crate_bert_owt.py  # on one GPU
#   torchrun --standalone --nproc_per_node=8 train.py config/train_crate_bert_owt.py
#   python sample.py --ckpt=out/crate_bert_owt --start="The capital of France is[MASK]."
#
# The other size needs these flags:
#   Medium   --n_layer=8 --n_embd=512 --n_head=8 --out_dir=out/crate_bert_medium_owt
#
# Text, tokens and training settings are those of the other OpenWebText runs. Sequences have 512
# tokens, as in BERT.
#
# hardware   GPUs of 80 GB; with fewer than eight, the same global batch takes longer
# minutes    not run here
# expected   not run here
#              Base     60M parameters
#              Medium   32M parameters
from config.base.owt import *

out_dir = 'out/crate_bert_owt'
model = 'crate'
image_size = 0  # reads text
causal = False  # and predicts hidden tokens, not the next one
n_layer = 12
n_embd = 768
n_head = 12

block_size = 512
batch_size = 24  # 24 x 40 x 512 = 491,520 tokens a step
