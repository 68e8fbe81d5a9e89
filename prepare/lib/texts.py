"""Text to datasets, which tasks/files.py describes; and to the test splits on which language models
are scored without training.

The folder of a test split has test.jsonl, one JSON object per line, and meta.json with the length
and the sha256 of test.jsonl: scoring/benchmarks.py refuses a file that differs. The objects are, by
task:

  text        {"text": ..}
  last_word   {"context": .., "word": ..}
  cloze       {"context": [..], "question": .., "answer": .., "choices": [..]}
"""
import codecs
import hashlib
import json

import numpy as np

from engine.settings import Mistake
from lib.files import new_folder, write_meta
from tasks.tokenizer import Tokenizer


# {byte order mark: its encoding}. That of UTF-32 comes first, because it begins with that of UTF-16
MARKS = {
    codecs.BOM_UTF32_LE: 'utf-32',
    codecs.BOM_UTF32_BE: 'utf-32',
    codecs.BOM_UTF16_LE: 'utf-16',
    codecs.BOM_UTF16_BE: 'utf-16',
}


def decode(content, name):
    """Bytes -> text, from UTF-8, or the encoding that a byte order mark at the beginning tells. The
    mark is dropped. Places that cannot be decoded are replaced, and counted in a line that is
    printed. Raises Mistake if the file is no text: more than a tenth of it are such places or NUL
    characters."""
    encoding = 'utf-8-sig'
    for mark, of_mark in MARKS.items():
        if content.startswith(mark):
            encoding = of_mark
            break
    text = content.decode(encoding, errors='replace')
    replaced = text.count('\ufffd')
    if replaced:  # those that were in the file already do not count
        replaced -= content.decode(encoding, errors='ignore').count('\ufffd')
    if replaced + text.count('\0') > 0.1 * len(text):
        raise Mistake(f'{name} is no text in UTF-8; save it as UTF-8, or leave it out')
    if replaced:
        print(f'{name}: {replaced:,} places that are no text were replaced')
    return text


# ---- datasets -----------------------------------------------------------------------------------

def write_text(out, tokenizer_name, texts):
    """Write a text dataset and print its counts. The alphabet of the tokenizer 'chars' is that of
    all texts. texts: {split: text}."""
    characters = set()
    if tokenizer_name == 'chars':
        for text in texts.values():
            characters.update(text)
    tokenizer = Tokenizer(tokenizer_name, ''.join(sorted(characters)))
    write_tokens(out, tokenizer, encoded(tokenizer, texts))


def encoded(tokenizer, texts):
    """Yield (split, ids (n,), UTF-8 bytes) of {split: text}."""
    for split, text in texts.items():
        content = text.encode()
        if tokenizer.spec['name'] == 'bytes':  # a list of them would take eight times the memory
            ids = np.frombuffer(content, np.uint8)
        else:
            ids = tokenizer.encode(text)
        yield split, ids, len(content)


def write_tokens(out, tokenizer, parts, counted=None):
    """Write a text dataset and print its counts. parts: iterable of (split, ids (n,), UTF-8 bytes
    of its text, for bits per byte); one at a time is in memory. counted: {split: which tokens a
    network learns, bool (n,)}; None: all."""
    dtype = np.dtype(np.uint16 if tokenizer.vocab_size <= 2 ** 16 else np.uint32)
    splits = {}
    with new_folder(out) as new:
        for split, ids, n_bytes in parts:
            np.save(new / f'{split}.npy', np.asarray(ids, dtype))
            splits[split] = {'tokens': len(ids), 'dtype': str(dtype), 'bytes': n_bytes}
            if counted is not None:
                np.save(new / f'{split}.counted.npy', counted[split])
                splits[split]['some_counted'] = True
        write_text_meta(new, tokenizer, splits)

    for split, entry in splits.items():
        print(f'{out}/{split}.npy: {entry["tokens"]:,} tokens of {entry["bytes"]:,} bytes, '
              f'vocabulary {tokenizer.vocab_size}')


def write_text_meta(out, tokenizer, splits):
    """Write meta.json of a text dataset. splits: {split: {'tokens': how many, 'dtype': their type,
    'bytes': of UTF-8}}, with 'some_counted' where not all count. Raises Mistake for a split of
    fewer than two tokens."""
    for split, entry in splits.items():
        if entry['tokens'] < 2:
            raise Mistake(f'too little text: {entry["tokens"]} tokens for {split}; give more, or '
                          'another --val')
    write_meta(out, {'kind': 'text', 'tokenizer': tokenizer.spec,
                     'vocab_size': tokenizer.vocab_size, 'splits': splits})


# ---- test splits --------------------------------------------------------------------------------

def save_benchmark(out, task, rows, source):
    """Write the folder of a test split. rows: dicts as the task needs them; source: the name of the
    file that they come from. Raises Mistake if there are no rows."""
    if not rows:
        raise Mistake(f'{source} is empty; get it again')
    lines = [json.dumps(row, ensure_ascii=False) + '\n' for row in rows]
    content = ''.join(lines).encode()
    digest = hashlib.sha256(content).hexdigest()
    test = {'count': len(rows), 'bytes': len(content), 'sha256': digest}
    meta = {'kind': 'benchmark', 'task': task, 'source': source, 'splits': {'test': test}}
    with new_folder(out) as new:
        (new / 'test.jsonl').write_bytes(content)
        write_meta(new, meta)
    print(f'{out}: {len(rows):,} rows')


def save_text(out, text, source):
    """save_benchmark of a text; prints its counts."""
    save_benchmark(out, 'text', [{'text': text}], source)
    lines = text.count('\n')
    words = len(text.split())
    n_bytes = len(text.encode())
    print(f'{lines:,} lines, {words:,} words, {n_bytes:,} bytes')
