"""Python's own standard library as bytes: real text that every machine already has.

    python prepare/stdlib.py            # no network; a few seconds

The library's own tests are left out. About a tenth of the files is for validation (val) and a
twentieth for testing (test), chosen by the sha256 of the files' names. The counts printed at the end
differ a little between Python versions.
"""
import hashlib
import sysconfig

from lib.inputs import dataset, local
from lib.texts import write_text

SKIP = {'site-packages', 'dist-packages', '__pycache__', 'test', 'tests', 'idle_test'}


def split_of(name):
    digest = hashlib.sha256(name.encode()).hexdigest()
    return {0: 'val', 10: 'val', 5: 'test'}.get(int(digest, 16) % 20, 'train')


@dataset(__name__, 'data/stdlib', local('folder of Python sources', default=sysconfig.get_path('stdlib')))
def main(args):
    texts = {'train': [], 'val': [], 'test': []}
    found = (path.relative_to(args.source) for path in args.source.rglob('*.py') if path.is_file())
    for name in sorted(name.as_posix() for name in found if not SKIP & {*name.parts}):
        texts[split_of(name)].append((args.source / name).read_text(encoding='utf-8', errors='replace'))
    print(f'files from {args.source}:', ', '.join(f'{len(held)} for {split}' for split, held in texts.items()))
    write_text(args.out, 'bytes', {split: '\n'.join(held) for split, held in texts.items()})
