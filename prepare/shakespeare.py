"""Tiny Shakespeare (1.1 MB, from karpathy/char-rnn) as GPT-2 tokens.

The last tenth is held out for validation, as in nanoGPT, and the twentieth before it for testing.

    python prepare/shakespeare.py                       # downloads 1.1 MB and the tokenizer
    python prepare/shakespeare.py --from input.txt      # or reads your copy

Expect 284,734 tokens for training, 36,059 for validation, 17,233 for testing, 50257 in the vocabulary.
"""
from lib.command_line import run
from lib.texts import tiny_shakespeare


def main(argv=None):
    tiny_shakespeare(argv, __doc__, 'data/shakespeare', 'gpt2')


if __name__ == '__main__':
    run(main)
