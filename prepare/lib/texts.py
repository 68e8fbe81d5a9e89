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
import io
import itertools
import json
import re

import numpy as np

from engine.mistakes import Mistake, reading
from lib.files import Growing, new_folder, write_meta
from lib.inputs import hash_of_name
from tasks.tokenizer import Tokenizer


# A text up to the last place where white space follows a character that is none: of "two words  an"
# it is "two words". GPT-2 splits a text into words before it merges bytes, and no word goes on
# there. Only common white space is named, because \s of Python has four control characters that
# are none for tiktoken.
LAST_CUT = re.compile(r'.*\S(?=[ \t\r\n])', re.DOTALL)
PIECE = 2 ** 16     # how many characters of a file are read at once


# ---- reading ------------------------------------------------------------------------------------

def encoding_of(content):
    """The encoding of a text in bytes, by the byte order mark that it begins with, which its
    decoder drops; UTF-8 if there is no mark."""
    if content.startswith(codecs.BOM_UTF8):
        return 'utf-8-sig'
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return 'utf-16'
    return 'utf-8'


def decode(content, name):
    """Bytes -> text, from UTF-8, or the encoding that a byte order mark at the beginning tells. The
    mark is dropped. U+FFFD takes the place of what cannot be decoded, and is counted in a line that
    is printed. Raises Mistake if the file is no text."""
    text = content.decode(encoding_of(content), errors='replace')
    check_text(name, len(text), text.count('\ufffd'), text.count('\0'))
    return text


def open_text(path, newline):
    """A file, opened to read the text that `decode` returns. newline: as of open()."""
    with open(path, 'rb') as file:
        encoding = encoding_of(file.read(4))
    return open(path, encoding=encoding, errors='replace', newline=newline)


def read_pieces(path):
    """Yield the text of a file, as `decode` returns it, in pieces that memory holds."""
    with open_text(path, newline='') as file:
        while piece := file.read(PIECE):
            yield piece


def read_json(lines, path, names, types=(str,)):
    """Yield, for each line of JSON, the values that its object has under these names, a list. Empty
    lines are passed over. Raises Mistake, with the number of the line, if a value is missing or of
    none of these types, or if UTF-8 has no such text. path: what the message says."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        with reading(f'{path}, line {number} is no object with {" and ".join(names)}',
                     'mend it, or type --help'):
            row = json.loads(line)
            values = [row[name] for name in names]
            for value in values:
                if type(value) not in types:
                    raise ValueError(f'{value} is of another type')
                str(value).encode()
        yield values


def documents(path):
    """Yield the documents of a file, each as an iterable of pieces of its text. In a file with the
    ending .jsonl each line is an object, whose `text` is a document. Any other file is one
    document."""
    if not str(path).lower().endswith('.jsonl'):
        yield read_pieces(path)
        return
    with open_text(path, newline='\n') as lines:  # JSON may hold other ends of lines
        yield from read_json(lines, path, ['text'])  # a list of one text is a document in one piece


def with_new_lines(pieces, decoder):
    """Yield the text of pieces with \\n in the place of \\r\\n and \\r. decoder: an
    io.IncrementalNewlineDecoder of text, not of bytes (None), whose `newlines` then says which of
    them there were."""
    for piece in pieces:
        yield decoder.decode(piece)
    yield decoder.decode('', final=True)


def characters_of(path):
    """(number of characters, the set of them, whether the file has \\r) of the documents of a file.
    Each document counts one character more, which stands between it and the next one. Raises
    Mistake if the file is no text."""
    n_characters = 0
    n_nul = 0
    n_replaced = 0
    alphabet = set()
    decoder = io.IncrementalNewlineDecoder(None, translate=True)
    for number, document in enumerate(documents(path)):
        if number > 0:
            alphabet.add('\n')
        for piece in with_new_lines(document, decoder):
            n_characters += len(piece)
            n_nul += piece.count('\0')
            n_replaced += piece.count('\ufffd')
            alphabet.update(piece)
        n_characters += 1
    check_text(path, n_characters, n_replaced, n_nul)
    return n_characters, alphabet, decoder.newlines not in (None, '\n')


def check_text(name, n_characters, n_replaced, n_nul):
    """Print how many U+FFFD a text has. Raises Mistake if it is no text: more than a tenth of its
    characters are U+FFFD or NUL."""
    if n_replaced + n_nul > 0.1 * n_characters:
        raise Mistake(f'{name} is no text in UTF-8; save it as UTF-8, or leave it out')
    if n_replaced:
        print(f'{name}: {n_replaced:,} places are no text, and become U+FFFD')


# ---- datasets -----------------------------------------------------------------------------------

def write_text(out, tokenizer_name, texts):
    """Write a text dataset and print its counts. The alphabet of the tokenizer 'chars' is that of
    all texts. texts: {split: text}."""
    alphabet = set().union(*texts.values())
    tokenizer = Tokenizer(tokenizer_name, ''.join(sorted(alphabet)))
    parts = ((split, *encoded(tokenizer, text)) for split, text in texts.items())
    write_tokens(out, tokenizer, parts)


def write_files(out, tokenizer_name, names, val_share, test_share):
    """Write a text dataset of files and print its counts. The files are read twice: first to count
    their characters, then to write their tokens. Only pieces of them are in memory. Raises Mistake
    for a file that is no text.

    names: {path: its name}, which decides what is held out, see by_file. If there are too few files
    for that, it is the end of the text, first for val, then for test. A test_share of 0 makes no
    split test. Between two documents comes the token that a text begins with: <|endoftext|> of
    GPT-2's, else a new line. It counts as one character and as one byte."""
    sizes = {}
    alphabet = set()
    changed = []
    for path in names:
        sizes[path], alphabet_of_file, has_returns = characters_of(path)
        alphabet |= alphabet_of_file
        if has_returns:
            changed.append(path)
    if len(names) > 1:
        alphabet.add('\n')
    if changed:
        print(f'\\r\\n and \\r became \\n in {len(changed):,} files')
    tokenizer = Tokenizer(tokenizer_name, ''.join(sorted(alphabet)))

    splits = by_file(names, sizes, {'val': val_share, 'test': test_share})
    paths = []
    ends = {}  # the place in the joined text where each split ends
    if splits:
        for split, of_split in splits.items():
            print(f'{len(of_split):,} files for {split}')
            paths += sorted(of_split)
            ends[split] = sum(sizes[path] for path in paths)
    else:
        print(f'{len(names):,} files, too few to hold some out: the end of the text is held out')
        paths += names
        n_characters = sum(sizes.values()) - 1  # behind the last document stands nothing
        ends['train'] = int(n_characters * (1 - val_share - test_share))
        ends['val'] = int(n_characters * (1 - test_share))
        ends['test'] = n_characters
    if test_share == 0:
        del ends['test']
    write_tokens(out, tokenizer, encoded_files(tokenizer, paths, ends))


def by_file(names, sizes, shares):
    """{split: paths}. In the order of hash_of_name a file goes to val if it still fits whole into
    the share of val, else to test if it fits there, else to train. {} if less than half of a share
    is filled, which means that there are too few files.

    names: {path: its name}; sizes: {path: number of characters}; shares: {split: what is held out
    of the text}."""
    total = sum(sizes.values())
    room = {split: round(share * total) for split, share in shares.items()}
    room['train'] = total
    splits = {'train': [], 'val': [], 'test': []}
    for _, path in sorted((hash_of_name(name), path) for path, name in names.items()):
        split = next(split for split in room if sizes[path] <= room[split])
        splits[split].append(path)
        room[split] -= sizes[path]
    if any(room[split] > 0.5 * share * total for split, share in shares.items()):
        return {}
    return splits


def encoded_files(tokenizer, paths, ends):
    """Yield (split, ids (n,), UTF-8 bytes) of pieces of the joined text of files. ends: {split: the
    place in this text, in characters, where the split ends and the next one begins}."""
    for split in ends:  # each is there, also if it has no text
        yield split, [], 0
    decoder = io.IncrementalNewlineDecoder(None, translate=True)
    position = 0
    all_documents = itertools.chain.from_iterable(map(documents, paths))
    for number, document in enumerate(all_documents):
        if number > 0:
            split = next(split for split, end in ends.items() if position < end)
            yield split, [tokenizer.beginning], 1
            position += 1
        for piece in whole_words(tokenizer, with_new_lines(document, decoder)):
            begin = 0
            for split, end in ends.items():
                end_in_piece = max(end - position, 0)
                yield split, *encoded(tokenizer, piece[begin:end_in_piece])
                begin = end_in_piece
            position += len(piece)


def whole_words(tokenizer, pieces):
    """Yield the same text, cut where no token is cut: the tokens of the pieces, joined, are those
    of the text. Where a text for GPT-2's tokenizer has no white space, the pieces grow, and to look
    for a cut takes time that grows with the square of their length."""
    waiting = ''
    for piece in pieces:
        waiting += piece
        end = len(waiting)
        if tokenizer.spec['name'] == 'gpt2':
            before_cut = LAST_CUT.match(waiting)
            end = before_cut.end() if before_cut else 0
        yield waiting[:end]
        waiting = waiting[end:]
    yield waiting


def encoded(tokenizer, text):
    """(ids (n,), UTF-8 bytes) of a text."""
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
        write_text_meta(new, out, tokenizer, splits)


def write_text_meta(folder, out, tokenizer, splits):
    """Write meta.json of a text dataset into a folder that is to become `out`, and print its
    counts. splits: {split: {'tokens': how many, 'dtype': their type, 'bytes': of UTF-8}}, with
    'some_counted' where not all count. Raises Mistake for a split of fewer than two tokens."""
    for split, entry in splits.items():
        if entry['tokens'] < 2:
            raise Mistake(f'too little text: {entry["tokens"]} tokens for {split}; give more, or '
                          'hold out another share')
        print(f'{out}/{split}.npy: {entry["tokens"]:,} tokens of {entry["bytes"]:,} bytes, '
              f'vocabulary {tokenizer.vocab_size}')
    write_meta(folder, {'kind': 'text', 'tokenizer': tokenizer.spec,
                        'vocab_size': tokenizer.vocab_size, 'splits': splits})


# ---- test splits --------------------------------------------------------------------------------

def save_benchmark(out, task, rows, source):
    """Write the folder of a test split. rows: dicts as the task needs them; source: the name of the
    file that they come from. Raises Mistake if there are no rows."""
    if not rows:
        raise Mistake(f'{source} is empty; get it again')
    content = ''.join(json.dumps(row, ensure_ascii=False) + '\n' for row in rows).encode()
    test = {'count': len(rows), 'bytes': len(content),
            'sha256': hashlib.sha256(content).hexdigest()}
    meta = {'kind': 'benchmark', 'task': task, 'source': source, 'splits': {'test': test}}
    with new_folder(out) as new:
        (new / 'test.jsonl').write_bytes(content)
        write_meta(new, meta)
    print(f'{out}: {len(rows):,} rows')


def save_text(out, text, source):
    """save_benchmark of a text; prints its counts."""
    save_benchmark(out, 'text', [{'text': text}], source)
    lines = text.count('\n')
    print(f'{lines:,} lines, {len(text.split()):,} words, {len(text.encode()):,} bytes')
