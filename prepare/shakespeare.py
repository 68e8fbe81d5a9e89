"""Tiny Shakespeare (1.1 MB, from karpathy/char-rnn) as GPT-2 tokens; nanoGPT's split: the last tenth validates.

    python prepare/shakespeare.py                       # downloads 1.1 MB, and once GPT-2's tokenizer
    python prepare/shakespeare.py --from input.txt      # or takes your copy

Expect 301,966 tokens for training, 36,059 for validation, 50257 in the vocabulary.
"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from engine.settings import one_line_errors
from prepare.text import tiny_shakespeare

if __name__ == '__main__':
    with one_line_errors():
        tiny_shakespeare('gpt2', 'data/shakespeare', __doc__)
