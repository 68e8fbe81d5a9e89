"""Text to datasets, which tasks/files.py describes."""
import numpy as np

from engine.settings import Mistake
from lib.files import new_folder, write_meta
from tasks.tokenizer import Tokenizer


def decode(content, name):
    """Bytes -> text. Places that are not UTF-8 are replaced, and counted in a line that is printed. A byte order mark
    at the beginning is dropped."""
    text = content.decode('utf-8-sig', errors='replace')
    if replaced := text.count('\ufffd') - content.count('\ufffd'.encode()):
        print(f'{name}: {replaced:,} places that are not UTF-8 were replaced')
    return text


def write_text(out, tokenizer, texts):
    """Write a text dataset and print its counts. tokenizer: its name; the alphabet of 'chars' is that of all texts.
    texts: {split: text}."""
    made = Tokenizer(tokenizer, ''.join(sorted(set().union(*texts.values()))) if tokenizer == 'chars' else '')

    def part(split, text):
        content = text.encode()  # bytes stay bytes: a list of them would take eight times the memory
        return split, np.frombuffer(content, np.uint8) if tokenizer == 'bytes' else made.encode(text), len(content)
    write_tokens(out, made, (part(*item) for item in texts.items()))


def write_tokens(out, tokenizer, parts):
    """Write a text dataset and print its counts. parts: (split, ids (n,), UTF-8 bytes of its text, for bits per byte)
    of each split; one at a time is in memory."""
    dtype, splits = np.dtype(np.uint16 if tokenizer.vocab_size <= 2 ** 16 else np.uint32), {}
    with new_folder(out) as new:
        for split, ids, n_bytes in parts:
            np.save(new / f'{split}.npy', np.asarray(ids, dtype))
            splits[split] = {'tokens': len(ids), 'dtype': str(dtype), 'bytes': n_bytes}
        write_text_meta(new, tokenizer, splits)
    for split, s in splits.items():
        print(f'{out}/{split}.npy: {s["tokens"]:,} tokens of {s["bytes"]:,} bytes, vocabulary {tokenizer.vocab_size}')


def write_text_meta(out, tokenizer, splits):
    """Write meta.json of a text dataset. splits: {split: {'tokens': how many, 'dtype': their type, 'bytes': of UTF-8}}.
    """
    for split, s in splits.items():
        if s['tokens'] < 2:
            raise Mistake(f'too little text: {s["tokens"]} tokens for {split}; give more, or another --val')
    write_meta(out, {'kind': 'text', 'tokenizer': tokenizer.spec, 'vocab_size': tokenizer.vocab_size, 'splits': splits})
