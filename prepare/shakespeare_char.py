"""Tiny Shakespeare (1.1 MB, from karpathy/char-rnn) as characters; nanoGPT's split: the last tenth validates.

    python prepare/shakespeare_char.py                       # downloads 1.1 MB
    python prepare/shakespeare_char.py --from input.txt      # or takes your copy

Expect 1,003,854 tokens for training, 111,540 for validation, 65 in the vocabulary.
"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from engine.settings import one_line_errors
from prepare.text import tiny_shakespeare

if __name__ == '__main__':
    with one_line_errors():
        tiny_shakespeare('chars', 'data/shakespeare_char', __doc__)
