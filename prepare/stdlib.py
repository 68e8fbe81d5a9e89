"""Python's own standard library as bytes: real text that every machine already has.

    python prepare/stdlib.py            # no network; a few seconds

Its tests are left out. About a tenth of the files, chosen by the sha256 of their names, is held out
for validation. The counts printed at the end differ a little between Python versions.
"""
import hashlib
import os
import sys
import sysconfig
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from engine.settings import one_line_errors
from tasks.files import save_text
from tasks.tokenizer import Tokenizer
from prepare.lib.command_line import parse, parser

SKIP = {'site-packages', 'dist-packages', '__pycache__', 'test', 'tests', 'idle_test'}


def sources(root):
    """Yield (relative path, bytes) of the .py files below root, in sorted order."""
    found = []
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = [f for f in subfolders if f not in SKIP]
        found += [path for f in files if f.endswith('.py') and (path := Path(folder, f)).is_file()]
    for path in sorted(found, key=lambda p: p.relative_to(root).as_posix()):
        yield path.relative_to(root).as_posix(), path.read_bytes()


def main(argv=None):
    p = parser(__doc__, 'data/stdlib')
    p.add_argument('--from', dest='source', default=sysconfig.get_path('stdlib'),
                   help='folder of Python sources (default: %(default)s)')
    args = parse(p, argv)
    splits = {'train': [], 'val': []}
    for name, text in sources(args.source):
        text = text.replace(b'\r\n', b'\n').decode('utf-8', errors='replace').encode()
        held_out = int(hashlib.sha256(name.encode()).hexdigest(), 16) % 10 == 0
        splits['val' if held_out else 'train'].append(text)
    if not splits['train'] or not splits['val']:
        raise ValueError(f'too few .py files below {args.source}; pass --from FOLDER with Python sources')
    print(f'{len(splits["train"])} files for training and {len(splits["val"])} for validation from {args.source}')
    texts = {name: b'\n'.join(parts) for name, parts in splits.items()}
    ids = {name: np.frombuffer(t, np.uint8) for name, t in texts.items()}
    save_text(args.out, Tokenizer('bytes'), ids, {name: len(t) for name, t in texts.items()})


if __name__ == '__main__':
    with one_line_errors():
        main()
