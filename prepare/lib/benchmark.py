"""What the scripts of the zero-shot benchmarks share: find the texts, write the benchmark.

A benchmark is a folder with test.jsonl, one JSON object per line, and meta.json, which has the
length and the sha256 of test.jsonl: scoring/benchmarks.py refuses a file that differs. The objects
are, by task:

  text        {"text": ..}
  last_word   {"context": .., "word": ..}
  cloze       {"context": [..], "question": .., "answer": .., "choices": [..]}
"""
import hashlib
import json
from pathlib import Path

from engine.settings import Mistake
from prepare.lib.files import new_folder, write_meta

from prepare.lib.archives import UNPACK, tar_files, zip_files
from prepare.lib.command_line import parser
from prepare.lib.download import local_or_fetch
from prepare.lib.texts import decode


def benchmark_parser(doc, out, source):
    p = parser(doc, out)
    p.add_argument('--from', dest='source', metavar='PATH', help=f'a local copy instead of the download: {source}')
    return p


def contents(path, names):
    """{name: bytes} of the named files in a folder or an archive. A plain file gets the first
    name."""
    if path.is_dir():
        return only(((file, file.read_bytes()) for name in names for file in sorted(path.rglob(name))), path)
    with open(path, 'rb') as f:
        start = f.read(512)
    expected = f'an archive with {" and ".join(names)} in it'
    for files, fits in (zip_files, start[:2] == b'PK'), (tar_files, start[:3] in UNPACK or start[257:262] == b'ustar'):
        if fits:
            return only(files(path, lambda name: name.rpartition('/')[2] in names, expected), path)
    if b'\0' in start:
        raise Mistake(f'{path} is neither text nor an archive; expected {names[0]}, or {expected}')
    return {names[0]: path.read_bytes()}


def only(found, path):
    """(path, bytes) of files -> {name: bytes}. Refuses files of the same name that differ."""
    named = {}
    for where, content in found:
        name = Path(where).name
        if named.setdefault(name, content) != content:
            raise Mistake(f'{path} has more than one {name}, and they differ; pass the one you mean to --from')
    return named


def texts(source, url, checksum, downloads, names, enough=all):
    """({name: text} of the named files, the path they come from), which is --from PATH or the
    download. Raises Mistake if one of them is missing; with enough=any, if all of them are."""
    path = Path(source) if source and Path(source).is_dir() else None
    if path is None or (path / url.rpartition('/')[2]).is_file():  # a folder may hold the archive or its files
        path = Path(local_or_fetch(source, url, Path(downloads) / url.rpartition('/')[2], None if source else checksum))
    found = contents(path, names)
    missing = [name for name in names if name not in found]
    if missing and not (enough is any and found):
        names = (' and no ' if enough is any else ', ').join(missing)
        raise Mistake(f'{path} has no {names}; give another --from PATH')
    decoded = {}
    for name, content in found.items():
        text, replaced = decode(content)
        decoded[name] = text.replace('\r\n', '\n')
        if replaced:
            print(f'{name}: {replaced:,} places that are not UTF-8 were replaced')
        if not decoded[name].strip():
            raise Mistake(f'{path}: {name} is empty; get it again')
    return decoded, path


def save_benchmark(out, task, rows, path, name):
    """Write a benchmark. rows: dicts as the task needs them; they come from path, or from the file
    `name` in the folder path."""
    content = ''.join(json.dumps(row, ensure_ascii=False) + '\n' for row in rows).encode()
    test = {'count': len(rows), 'bytes': len(content), 'sha256': hashlib.sha256(content).hexdigest()}
    with new_folder(out) as new:
        (new / 'test.jsonl').write_bytes(content)
        meta = {'kind': 'benchmark', 'task': task, 'source': path.name if path.is_file() else name,
                'splits': {'test': test}}
        write_meta(new, meta)
