"""Python's own standard library as bytes: real text that every machine already has.

    python prepare/stdlib.py            # no network; a few seconds

The library's own tests are left out. About a tenth of the files is for validation (val) and a
twentieth for testing (test), chosen by the sha256 of the files' names. The counts printed at the end
differ a little between Python versions.
"""
import hashlib
import os
import sysconfig
from pathlib import Path

from lib.inputs import dataset, local
from lib.texts import write_text

SKIP = {'site-packages', 'dist-packages', '__pycache__', 'test', 'tests', 'idle_test'}


def split_of(name):
    digest = hashlib.sha256(name.encode()).hexdigest()
    return {0: 'val', 10: 'val', 5: 'test'}.get(int(digest, 16) % 20, 'train')


def sources(root):
    """(name, path) of the .py files below root, in the order of their names."""
    found = []
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = [f for f in subfolders if f not in SKIP]
        found += [Path(folder, f) for f in files if f.endswith('.py')]
    return sorted((path.relative_to(root).as_posix(), path) for path in found if path.is_file())


@dataset(__name__, 'data/stdlib', local('folder of Python sources', default=sysconfig.get_path('stdlib')))
def main(args):
    texts = {'train': [], 'val': [], 'test': []}
    for name, path in sources(args.source):
        texts[split_of(name)].append(path.read_text(encoding='utf-8', errors='replace'))
    print(f'files from {args.source}:', ', '.join(f'{len(held)} for {split}' for split, held in texts.items()))
    write_text(args.out, 'bytes', {split: '\n'.join(held) for split, held in texts.items()})
