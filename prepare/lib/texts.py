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
import re

import numpy as np

from engine.mistakes import Mistake
from lib.files import Growing, new_folder, write_meta
from tasks.tokenizer import Tokenizer


# {byte order mark: its encoding}. That of UTF-32 comes first, because it begins with that of UTF-16
MARKS = {
    codecs.BOM_UTF32_LE: 'utf-32-le',
    codecs.BOM_UTF32_BE: 'utf-32-be',
    codecs.BOM_UTF16_LE: 'utf-16-le',
    codecs.BOM_UTF16_BE: 'utf-16-be',
    codecs.BOM_UTF8: 'utf-8',
}
# A text up to the last place where white space follows a character that is none: of "two words  an"
# it is "two words". GPT-2 splits a text into words before it merges bytes, and no word goes on
# there. Only common white space is named, because \s of Python has four control characters that
# are none for tiktoken.
LAST_CUT = re.compile(r'.*\S(?=[ \t\r\n])', re.DOTALL)
PIECE = 2 ** 16     # how many bytes of a file are read at once


# ---- reading ------------------------------------------------------------------------------------

def encoding_of(content):
    """(encoding, length of the byte order mark) of a text in bytes, by the mark that it begins
    with; UTF-8 if there is no mark."""
    for mark, encoding in MARKS.items():
        if content.startswith(mark):
            return encoding, len(mark)
    return 'utf-8', 0


def decode(content, name):
    """Bytes -> text, from UTF-8, or the encoding that a byte order mark at the beginning tells. The
    mark is dropped. Places that cannot be decoded are replaced, and counted in a line that is
    printed. Raises Mistake if the file is no text."""
    encoding, begin = encoding_of(content)
    text = content[begin:].decode(encoding, errors='replace')
    # one character stands for each place, and none if they are ignored
    n_replaced = len(text) - len(content[begin:].decode(encoding, errors='ignore'))
    check_text(name, len(text), n_replaced, text.count('\0'))
    return text


def read_pieces(path, errors='replace'):
    """Yield the text of a file, as `decode` returns it, in pieces that memory holds. A character
    whose bytes lie in two pieces comes with the second one."""
    with open(path, 'rb') as file:
        encoding, begin = encoding_of(file.read(4))
        decoder = codecs.getincrementaldecoder(encoding)(errors)
        file.seek(begin)
        while content := file.read(PIECE):
            yield decoder.decode(content)
        yield decoder.decode(b'', final=True)


def characters_of(path):
    """(how many characters the text of a file has, the set of them). Raises Mistake if the file is
    no text."""
    n_characters = 0
    n_nul = 0
    alphabet = set()
    for piece in read_pieces(path):
        n_characters += len(piece)
        n_nul += piece.count('\0')
        alphabet.update(piece)
    n_replaced = 0
    if '\ufffd' in alphabet:  # which may have been in the file already
        n_replaced = n_characters - sum(len(piece) for piece in read_pieces(path, 'ignore'))
    check_text(path, n_characters, n_replaced, n_nul)
    return n_characters, alphabet


def check_text(name, n_characters, n_replaced, n_nul):
    """Print how many places of a text were replaced. Raises Mistake if it is no text: more than a
    tenth of its characters are such places or NUL."""
    if n_replaced + n_nul > 0.1 * n_characters:
        raise Mistake(f'{name} is no text in UTF-8; save it as UTF-8, or leave it out')
    if n_replaced:
        print(f'{name}: {n_replaced:,} places that are no text were replaced')


# ---- datasets -----------------------------------------------------------------------------------

def write_text(out, tokenizer_name, texts):
    """Write a text dataset and print its counts. The alphabet of the tokenizer 'chars' is that of
    all texts. texts: {split: text}."""
    characters = set()
    if tokenizer_name == 'chars':
        for text in texts.values():
            characters.update(text)
    tokenizer = Tokenizer(tokenizer_name, ''.join(sorted(characters)))
    parts = ((split, *encoded(tokenizer, text)) for split, text in texts.items())
    write_tokens(out, tokenizer, parts)


def write_files(out, tokenizer_name, paths, val_share):
    """Write a text dataset of files and print its counts. The files are read twice: first to count
    their characters, of which the last share is for validation, then to write their tokens. Only
    pieces of them are in memory. Raises Mistake for a file that is no text.

    Between two files comes the token that a text begins with: <|endoftext|> of GPT-2's, else a new
    line. It counts as one character and as one byte."""
    n_characters = len(paths) - 1
    alphabet = set()
    if len(paths) > 1:
        alphabet.add('\n')
    for path in paths:
        n_of_file, alphabet_of_file = characters_of(path)
        n_characters += n_of_file
        alphabet |= alphabet_of_file
    tokenizer = Tokenizer(tokenizer_name, ''.join(sorted(alphabet)))
    cut = int(n_characters * (1 - val_share))
    write_tokens(out, tokenizer, encoded_files(tokenizer, paths, cut))


def encoded_files(tokenizer, paths, cut):
    """Yield (split, ids (n,), UTF-8 bytes) of pieces of files, in their order. The split is train
    for the first `cut` characters, then val."""
    position = 0
    for number, path in enumerate(paths):
        if number > 0:
            split = 'train' if position < cut else 'val'
            yield split, [tokenizer.beginning], 1
            position += 1
        for piece in whole_words(tokenizer, read_pieces(path)):
            n_train = max(cut - position, 0)
            yield 'train', *encoded(tokenizer, piece[:n_train])
            yield 'val', *encoded(tokenizer, piece[n_train:])
            position += len(piece)


def whole_words(tokenizer, pieces):
    """Yield the same text, cut where no token is cut: the tokens of the pieces, joined, are those
    of the text. Where a text for GPT-2's tokenizer has no white space, the pieces grow, and to look
    for a cut takes time that grows with the square of their length."""
    waiting = ''
    for piece in pieces:
        waiting += piece
        end = last_cut(tokenizer, waiting)
        yield waiting[:end]
        waiting = waiting[end:]
    yield waiting


def last_cut(tokenizer, text):
    """The last place where a text can be cut without changing its tokens, whatever follows the
    text; 0 if there is none."""
    if tokenizer.spec['name'] != 'gpt2':
        return len(text)
    before = LAST_CUT.match(text)
    return before.end() if before else 0


def encoded(tokenizer, text):
    """(ids (n,), UTF-8 bytes) of a text."""
    if tokenizer.spec['name'] == 'bytes':  # a list of them would take eight times the memory
        ids = np.frombuffer(text.encode(), np.uint8)
        return ids, len(ids)
    return tokenizer.encode(text), len(text.encode())


def write_tokens(out, tokenizer, parts, counted=None):
    """Write a text dataset and print its counts. parts: iterable of (split, ids (n,), UTF-8 bytes
    of its text, for bits per byte); one at a time is in memory, and those of a split are joined.
    counted: {split: which tokens a network learns, bool (n,)}; None: all."""
    dtype = np.dtype(np.uint16 if tokenizer.vocab_size <= 2 ** 16 else np.uint32)
    files = {}
    splits = {}
    with new_folder(out) as new:
        for split, ids, n_bytes in parts:
            if split not in files:
                files[split] = Growing(new / f'{split}.npy', dtype)
                splits[split] = {'tokens': 0, 'dtype': str(dtype), 'bytes': 0}
            files[split].append(ids)
            splits[split]['tokens'] += len(ids)
            splits[split]['bytes'] += n_bytes
        for split, file in files.items():
            file.close()
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
