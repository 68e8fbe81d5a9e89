"""Tiny Shakespeare (1.1 MB, from karpathy/char-rnn) as characters.

The last tenth is held out for validation, as in nanoGPT, and the twentieth before it for testing.

    python prepare/shakespeare_char.py                       # downloads 1.1 MB
    python prepare/shakespeare_char.py --from input.txt      # or reads your copy

Expect 948,084 tokens for training, 111,540 for validation, 55,770 for testing, vocabulary 65.
"""
from lib.inputs import dataset
from prepare import shakespeare

main = dataset(__name__, 'data/shakespeare_char', shakespeare.COPY)(lambda args: shakespeare.save(args, 'chars'))
