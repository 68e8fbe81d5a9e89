# CRATE-BERT Base, 60M parameters: CRATE's layers, in which every token sees every other, fill in hidden tokens of OpenWebText.
#
#   python train.py config/train_crate_bert_owt.py
#   python sample.py --ckpt=out/crate_bert_owt --start="The capital of France is[MASK]."
#
# hardware   GPUs of 80 GB; with fewer than eight the global batch stays and a step takes longer
# minutes    not run here
# expected   not run here
#
# Tokens and text are GPT-2's, so that it needs nothing that CRATE-GPT does not; the paper has BERT's. The recipe is that of
# the other OpenWebText runs, not that of the paper (Appendix C.4 of the JMLR version); sequences of 512, as BERT.
from config.base.owt import *

out_dir = 'out/crate_bert_owt'
model = 'crate'
image_size = 0  # reads text
causal = False  # and fills in what is hidden
block_size = 512
batch_size = 24
n_layer = 12
n_embd = 768
n_head = 12
