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

import numpy as np

from lib.command_line import Mistake, parse, parser, run
from lib.files import write_text
from tasks.tokenizer import Tokenizer

SKIP = {'site-packages', 'dist-packages', '__pycache__', 'test', 'tests', 'idle_test'}


def split_of(name):
    return {0: 'val', 10: 'val', 5: 'test'}.get(int(hashlib.sha256(name.encode()).hexdigest(), 16) % 20, 'train')


def sources(root):
    """{'train': .., 'val': .., 'test': ..}: the paths of the .py files below root, in the order of their names."""
    splits = {'train': {}, 'val': {}, 'test': {}}
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = [f for f in subfolders if f not in SKIP]
        for path in (Path(folder, f) for f in files if f.endswith('.py')):
            name = path.relative_to(root).as_posix()
            splits[split_of(name)][name] = path
    return {split: [path for _, path in sorted(found.items()) if path.is_file()] for split, found in splits.items()}


def parts(splits):
    """(split, ids, bytes) of each split: its files, with a new line between two."""
    for split, paths in splits.items():
        texts = (path.read_bytes().decode('utf-8', errors='replace').replace('\r\n', '\n') for path in paths)
        text = '\n'.join(texts).encode()
        yield split, np.frombuffer(text, np.uint8), len(text)


def main(argv=None):
    p = parser(__doc__, 'data/stdlib', 'folder of Python sources (default: %(default)s)')
    p.set_defaults(source=sysconfig.get_path('stdlib'))
    args = parse(p, argv)
    splits = sources(args.source)
    if not all(splits.values()):
        raise Mistake(f'too few .py files below {args.source}; pass --from FOLDER with Python sources')
    print(f'files from {args.source}:', ', '.join(f'{len(paths)} for {split}' for split, paths in splits.items()))
    write_text(args.out, Tokenizer('bytes'), parts(splits))


if __name__ == '__main__':
    run(main)
