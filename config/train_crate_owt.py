# CRATE-GPT Base on OpenWebText: CRATE's layers with causal attention. The network is the authors'
# released one. They trained it by nanoGPT's script, and the settings here are nanoGPT's, as in the
# other OpenWebText runs. (The contents of the JMLR version of the CRATE paper name CRATE-GPT,
# Appendix C.4; we did not have that part.)
#
#   python prepare/openwebtext.py
#   python train.py config/train_crate_owt.py  # on one GPU
#   torchrun --standalone --nproc_per_node=8 train.py config/train_crate_owt.py
#
# hardware   GPUs of 80 GB; with fewer than eight, the same global batch takes longer
# minutes    not run here
# expected   not run here. The authors' textbook (Buchanan et al., section 7.4.6), in batches of 384
#            (--gradient_accumulation_steps=32): validation loss 3.37; zero-shot 4.91 on LAMBADA,
#            4.61 on WikiText, 5.53 on PTB
#              Base   60.70M parameters
from config.base.owt import *

out_dir = 'out/crate_owt'
model = 'crate'
image_size = 0  # reads text
n_layer = 12
n_embd = 768
n_head = 12
