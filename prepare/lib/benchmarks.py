"""The test splits on which language models are scored without training, as folders.

A folder has test.jsonl, one JSON object per line, and meta.json with the length and the sha256 of test.jsonl:
scoring/benchmarks.py refuses a file that differs. The objects are, by task:

  text        {"text": ..}
  last_word   {"context": .., "word": ..}
  cloze       {"context": [..], "question": .., "answer": .., "choices": [..]}
"""
import hashlib
import json
import tarfile
import zipfile
from pathlib import PurePosixPath

from engine.settings import Mistake
from lib.archives import reading, tar_files, zip_files
from lib.download import local_or_fetch
from lib.files import new_folder, write_meta
from lib.texts import decode


def read_texts(args, url, names, checksum=None):
    """Of the user's own copy, or of the download: ({name: text} of the named files, the name of the archive or file).
    A file that is no archive has the first name, if its own is not among them. Prints the counts."""
    path = local_or_fetch(args, url, None if args.source else checksum)

    def wanted(name):
        return PurePosixPath(name).name in names
    with reading(f'{path} is damaged or cut off'):
        if zipfile.is_zipfile(path):
            files = zip_files(path, wanted)
        elif tarfile.is_tarfile(path):
            files = tar_files(path, wanted)
        else:
            files = [(path.name if wanted(path.name) else names[0], path.read_bytes())]
    texts = {}
    for place, content in files:
        name = PurePosixPath(place).name
        text = texts[name] = decode(content, name).replace('\r\n', '\n')
        if '\0' in text or not text.strip():
            raise Mistake(f'{path}: {name} is empty, or neither text nor an archive; get it again')
        print(f'{name}: {text.count(chr(10)):,} lines, {len(text.split()):,} words, {len(text.encode()):,} bytes')
    if not texts:
        raise Mistake(f'{path} has no {" and no ".join(names)}; give another --from PATH')
    return texts, path.name


def save_benchmark(out, task, rows, source):
    """Writes the folder. rows: dicts as the task needs them; source: the name of the file that they come from."""
    content = ''.join(json.dumps(row, ensure_ascii=False) + '\n' for row in rows).encode()
    test = {'count': len(rows), 'bytes': len(content), 'sha256': hashlib.sha256(content).hexdigest()}
    with new_folder(out) as new:
        (new / 'test.jsonl').write_bytes(content)
        write_meta(new, {'kind': 'benchmark', 'task': task, 'source': source, 'splits': {'test': test}})
    print(f'{out}: {len(rows):,} rows')
