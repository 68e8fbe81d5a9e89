"""Tiny Shakespeare (1.1 MB, from karpathy/char-rnn) as characters.

The last tenth is held out for validation, as in nanoGPT, and the twentieth before it for testing.

    python prepare/shakespeare_char.py                       # downloads 1.1 MB
    python prepare/shakespeare_char.py --from input.txt      # or reads your copy

Expect 948,084 tokens for training, 111,540 for validation, 55,770 for testing, vocabulary 65.
"""
from lib.inputs import arguments, run
from lib.texts import write_text
from prepare import shakespeare


def main(argv=None):
    args = arguments(__doc__, argv, shakespeare.COPY, out='data/shakespeare_char')
    write_text(args.out, 'chars', shakespeare.read_splits(args))


if __name__ == '__main__':
    run(main)
