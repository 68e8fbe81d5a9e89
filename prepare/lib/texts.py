"""Text to datasets, which tasks/files.py describes; and to the test splits on which language models are scored without
training.

The folder of a test split has test.jsonl, one JSON object per line, and meta.json with the length and the sha256 of
test.jsonl: scoring/benchmarks.py refuses a file that differs. The objects are, by task:

  text        {"text": ..}
  last_word   {"context": .., "word": ..}
  cloze       {"context": [..], "question": .., "answer": .., "choices": [..]}
"""
import hashlib
import json

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
    characters = sorted(set().union(*texts.values())) if tokenizer == 'chars' else []
    made = Tokenizer(tokenizer, ''.join(characters))

    def part(split, text):
        content = text.encode()  # bytes stay bytes: a list of them would take eight times the memory
        return split, np.frombuffer(content, np.uint8) if tokenizer == 'bytes' else made.encode(text), len(content)
    write_tokens(out, made, (part(*item) for item in texts.items()))


def write_tokens(out, tokenizer, parts, counted=None):
    """Write a text dataset and print its counts. parts: (split, ids (n,), UTF-8 bytes of its text, for bits per byte)
    of each split; one at a time is in memory. counted: {split: which tokens a network learns, bool (n,)}; None: all."""
    dtype, splits = np.dtype(np.uint16 if tokenizer.vocab_size <= 2 ** 16 else np.uint32), {}
    with new_folder(out) as new:
        for split, ids, n_bytes in parts:
            np.save(new / f'{split}.npy', np.asarray(ids, dtype))
            splits[split] = {'tokens': len(ids), 'dtype': str(dtype), 'bytes': n_bytes}
            if counted is not None:
                np.save(new / f'{split}.counted.npy', counted[split])
                splits[split]['some_counted'] = True
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


def save_benchmark(out, task, rows, source):
    """Writes the folder. rows: dicts as the task needs them; source: the name of the file that they come from."""
    if not rows:
        raise Mistake(f'{source} is empty; get it again')
    content = ''.join(json.dumps(row, ensure_ascii=False) + '\n' for row in rows).encode()
    test = {'count': len(rows), 'bytes': len(content), 'sha256': hashlib.sha256(content).hexdigest()}
    with new_folder(out) as new:
        (new / 'test.jsonl').write_bytes(content)
        write_meta(new, {'kind': 'benchmark', 'task': task, 'source': source, 'splits': {'test': test}})
    print(f'{out}: {len(rows):,} rows')


def save_text(out, text, source):
    """save_benchmark of a text; prints its counts."""
    save_benchmark(out, 'text', [{'text': text}], source)
    print(f'{text.count(chr(10)):,} lines, {len(text.split()):,} words, {len(text.encode()):,} bytes')
