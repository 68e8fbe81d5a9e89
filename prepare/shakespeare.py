"""Tiny Shakespeare (1.1 MB, from karpathy/char-rnn) as GPT-2 tokens.

The last tenth is held out for validation, as in nanoGPT, and the twentieth before it for testing.

    python prepare/shakespeare.py                       # downloads 1.1 MB and the tokenizer
    python prepare/shakespeare.py --from input.txt      # or reads your copy

Expect 284,734 tokens for training, 36,059 for validation, 17,233 for testing, vocabulary 50257.
"""
from lib.inputs import arguments, local, local_or_fetch, run
from lib.texts import decode, write_text

COPY = local('a local copy of input.txt instead of the download')
URL = 'https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt'
SHA256 = '86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed'


def read_splits(args):
    """{split: text} of the user's copy or the download."""
    path = local_or_fetch(args, URL, SHA256, 'tinyshakespeare.txt')
    text = decode(path.read_bytes(), path)
    test_begins = int(0.85 * len(text))
    val_begins = int(0.9 * len(text))
    return {
        'train': text[:test_begins],
        'test': text[test_begins:val_begins],
        'val': text[val_begins:],
    }


def main(argv=None):
    args = arguments(__doc__, argv, COPY, out='data/shakespeare')
    write_text(args.out, 'gpt2', read_splits(args))


if __name__ == '__main__':
    run(main)
