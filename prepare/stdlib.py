"""Python's own standard library as bytes: real text that every machine already has.

    python prepare/stdlib.py            # no network; a few seconds

The library's own tests are left out. About a tenth of the files is for validation (val) and a
twentieth for testing (test), chosen by the sha256 of the files' names. The counts printed at the end
differ a little between Python versions.
"""  # noqa: E501 (--help shows it)
import sysconfig

from lib.inputs import arguments, hash_of_name, local, run
from lib.texts import write_text

SKIP = {'site-packages', 'dist-packages', '__pycache__', 'test', 'tests', 'idle_test'}


def split_of(name):
    """The split of a file, which depends on its name alone."""
    remainder = int(hash_of_name(name), 16) % 20
    if remainder in (0, 10):
        return 'val'
    return 'test' if remainder == 5 else 'train'


def sources(root):
    """[(name, path)] of the .py files below root, in the order of their names."""
    files = []
    for path in root.rglob('*.py'):
        name = path.relative_to(root)
        if SKIP.isdisjoint(name.parts) and path.is_file():
            files.append((name.as_posix(), path))
    return sorted(files)


def main(argv=None):
    args = arguments(
        __doc__, argv,
        local('folder of Python sources', default=sysconfig.get_path('stdlib')),
        out='data/stdlib')

    files = {'train': [], 'val': [], 'test': []}
    for name, path in sources(args.source):
        text = path.read_text(encoding='utf-8', errors='replace')
        files[split_of(name)].append(text)

    counts = ', '.join(f'{len(texts)} for {split}' for split, texts in files.items())
    print(f'files from {args.source}: {counts}')
    write_text(args.out, 'bytes', {split: '\n'.join(texts) for split, texts in files.items()})


if __name__ == '__main__':
    run(main)
