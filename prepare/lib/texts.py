"""What the scripts that prepare text share. Files are read in pieces, so they may be larger than the
memory."""
import codecs
import itertools
import os
import re
from pathlib import Path

import numpy as np
from tqdm import tqdm

from prepare.lib.command_line import parse, parser
from prepare.lib.download import local_or_fetch
from prepare.lib.files import write_text
from tasks.tokenizer import Tokenizer

PIECE = 2 ** 20      # bytes read at once
REPLACED = '\ufffd'  # stands for bytes that are not UTF-8
# GPT-2 first splits a text into words, such as ' word', '123', "'ll" and '  ', with the space before a word in the
# word. These are places where it always splits: before white space that follows something else; after ASCII letters or
# digits, before another ASCII character that is neither space nor of their kind. The first part matches up to the last
# such place of a text.
LAST_SPLIT = re.compile(r'(?s).*(?:(?<=\S)(?=[ \t\r\n])|(?<=[A-Za-z])(?=[!-@[-`{-~])|(?<=[0-9])(?=[!-/:-~]))')


def decode(content):
    """Bytes -> (text, how many places were not UTF-8 and were replaced). A byte order mark at the
    beginning is dropped."""
    text = content.decode('utf-8-sig', errors='replace')
    return text, text.count(REPLACED) - content.count(REPLACED.encode())


def joined(paths, label):
    """decode of files in pieces, with a new line between two files: (text, change of the number of replaced places).
    Shows its progress on a terminal."""
    with tqdm(total=sum(map(os.path.getsize, paths)), desc=label, unit='B', unit_scale=True, disable=None) as bar:
        for i, path in enumerate(paths):
            if i:
                yield '\n', 0
            decoder, tail, begun = codecs.getincrementaldecoder('utf-8')('replace'), b'', False
            with open(path, 'rb') as f:
                for content in itertools.chain(iter(lambda: f.read(PIECE), b''), [b'']):
                    text, tail = decoder.decode(content, final=not content), tail + content
                    places = text.count(REPLACED) - tail.count(REPLACED.encode())
                    yield text if begun else text.removeprefix('\ufeff'), places
                    begun, tail = begun or bool(text), tail[-2:]  # a replacement mark may lie across pieces
                    bar.update(len(content))


def tokenize_and_save(paths, tokenizer, out, held_out):
    """Write a text dataset of UTF-8 files, joined by new lines. held_out: {split: share} of the
    characters at the end, in this order; the rest is for training. tokenizer: its name; the alphabet
    of 'chars' is that of the text. Reads the files twice, because the first time they are counted."""
    paths, alphabet, characters, replaced = [Path(path) for path in paths], set(), 0, 0
    made = None if tokenizer == 'chars' else Tokenizer(tokenizer)  # GPT-2's may fail, so before the work
    for piece, places in joined(paths, 'counting'):
        characters, replaced = characters + len(piece), replaced + places
        if not made:
            alphabet.update(piece)
    if replaced:
        print(f'{replaced:,} places that are not UTF-8 were replaced')
    made, shares = made or Tokenizer(tokenizer, ''.join(sorted(alphabet))), [*held_out.values()]
    starts = {'train': 0} | {split: int(characters * (1 - sum(shares[i:]))) for i, split in enumerate(held_out)}
    parts = itertools.groupby(divided((text for text, _ in joined(paths, 'tokenizing')), starts), lambda part: part[0])
    write_text(out, made, list(starts), ((split, *piece) for split, texts in parts
                                         for piece in encode_pieces(made, (text for _, text in texts))))


def divided(pieces, starts):
    """The pieces of a text as (split, text). starts: {split: its first character}, in order."""
    begins = list(starts.values())                                      # counted from the piece
    for piece in pieces:
        for split, begin, end in zip(starts, begins, [*begins[1:], len(piece)]):
            if part := piece[max(0, begin):max(0, end)]:
                yield split, part
        begins = [begin - len(piece) for begin in begins]


def tiny_shakespeare(argv, doc, out, tokenizer):
    """All that shakespeare.py and shakespeare_char.py do."""
    args = parse(parser(doc, out, 'a local copy of input.txt instead of the download'), argv)
    url = 'https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt'
    path = local_or_fetch(args, url, '86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed',
                          'tinyshakespeare.txt')
    tokenize_and_save([path], tokenizer, args.out, {'test': 0.05, 'val': 0.1})  # val is nanoGPT's


def encode_pieces(tokenizer, pieces):
    """A text that comes in pieces of any length -> (ids (n,), UTF-8 bytes) of pieces of it; all together are the ids of
    the whole text. Needs the memory of a few pieces; with gpt2, of as much text as there is without a place where GPT-2
    always splits."""
    name = tokenizer.spec['name']
    for text in between_words(pieces) if name == 'gpt2' else pieces:
        encoded = text.encode()
        if name == 'bytes':
            yield np.frombuffer(encoded, np.uint8), len(encoded)
        else:
            ids = tokenizer.bpe.encode_ordinary(text) if name == 'gpt2' else tokenizer.encode(text)
            yield np.array(ids, np.uint32), len(encoded)


def between_words(pieces):
    """The same text in other pieces: GPT-2 would split it wherever one of them ends."""
    held = []
    for piece in filter(None, pieces):
        before = held[-1][-1] if held else ''
        found = LAST_SPLIT.match(before + piece)
        if found:
            cut = found.end() - len(before)
            yield ''.join((*held, piece[:cut]))
            held, piece = [], piece[cut:]
        held.append(piece)
    yield ''.join(held)
