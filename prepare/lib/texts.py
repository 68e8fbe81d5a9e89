"""What the scripts that prepare text share."""
from itertools import pairwise
from pathlib import Path

import numpy as np

from lib.command_line import parse, parser
from lib.download import local_or_fetch
from lib.files import write_text
from tasks.tokenizer import Tokenizer

REPLACED = '\ufffd'  # stands for bytes that are not UTF-8


def decode(content):
    """Bytes -> (text, how many places were not UTF-8 and were replaced). A byte order mark at the
    beginning is dropped."""
    text = content.decode('utf-8-sig', errors='replace')
    return text, text.count(REPLACED) - content.count(REPLACED.encode())


def tokenize_and_save(paths, tokenizer, out, held_out):
    """Write a text dataset of UTF-8 files, joined by new lines. held_out: {split: share} of the
    characters at the end, in this order; the rest is for training. tokenizer: its name; the alphabet
    of 'chars' is that of the text."""
    texts, replaced = zip(*(decode(Path(path).read_bytes()) for path in paths))
    if sum(replaced):
        print(f'{sum(replaced):,} places that are not UTF-8 were replaced')
    text, names, shares = '\n'.join(texts), ['train', *held_out], [*held_out.values()]
    made = Tokenizer(tokenizer, ''.join(sorted(set(text))) if tokenizer == 'chars' else '')
    starts = [0, *(int(len(text) * (1 - sum(shares[i:]))) for i in range(len(shares))), len(text)]
    parts = (text[start:end] for start, end in pairwise(starts))
    write_text(out, made, ((name, ids_of(part, made), len(part.encode())) for name, part in zip(names, parts)))


def ids_of(text, tokenizer):
    """The ids of a text, (n,)."""
    if tokenizer.spec['name'] == 'bytes':
        return np.frombuffer(text.encode(), np.uint8)
    return np.array(tokenizer.encode(text), np.uint32)


def tiny_shakespeare(argv, doc, out, tokenizer):
    """All that shakespeare.py and shakespeare_char.py do."""
    args = parse(parser(doc, out, 'a local copy of input.txt instead of the download'), argv)
    url = 'https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt'
    path = local_or_fetch(args, url, '86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed',
                          'tinyshakespeare.txt')
    tokenize_and_save([path], tokenizer, args.out, {'test': 0.05, 'val': 0.1})  # val is nanoGPT's
