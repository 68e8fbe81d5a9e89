"""CIFAR-10 (170 MB, from cs.toronto.edu): 32x32 pictures of ten classes.

    python prepare/cifar10.py                                      # downloads 170 MB
    python prepare/cifar10.py --from cifar-10-python.tar.gz        # or takes your copy

Expect 50,000 pictures for training (train) and 10,000 for testing (test) of 32x32, 10 classes.
"""
import io
import pickle
import sys
from pathlib import Path, PurePosixPath

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from engine.settings import one_line_errors
from tasks.files import check_free
from prepare.download import local_or_fetch
from prepare.images import save_arrays, tar_files
from prepare.text import parser


class ArraysOnly(pickle.Unpickler):
    """Loads numbers, strings, lists, dicts and numpy arrays. A pickle can ask for any function to be called; all but
    the three that make an array are refused."""

    def find_class(self, module, name):
        if (module.replace('numpy._core', 'numpy.core'), name) == ('numpy.core.multiarray', '_reconstruct'):
            return np.zeros(0).__reduce__()[0]  # that function, wherever this numpy keeps it
        if (module, name) in (('numpy', 'ndarray'), ('numpy', 'dtype')):
            return getattr(np, name)
        if (module, name) == ('_codecs', 'encode'):  # how Python 3 writes bytes for Python 2
            return lambda text, encoding: text.encode('latin1')
        raise pickle.UnpicklingError(f'it asks for {module}.{name}')


def load(path, name, content):
    """A pickled dict of the archive at path, its keys as str. Raises ValueError for anything else in it."""
    try:
        found = ArraysOnly(io.BytesIO(content), encoding='bytes').load()
        return {key.decode() if isinstance(key, bytes) else key: value for key, value in found.items()}
    except Exception as e:  # of many types, depending on where the damage is
        raise ValueError(f'{path}: {name} is not a pickled dict of arrays ({e})') from None


def pictures(path, name, batch, key, n_classes):
    """A batch -> images uint8 (N, 32, 32, 3), labels int64 (N,)."""
    rows, labels = batch.get('data'), batch.get(key)
    if not isinstance(rows, np.ndarray) or rows.dtype != np.uint8 or rows.shape[1:] != (3072,) or not len(rows):
        raise ValueError(f'{path}: the data of {name} are not bytes of shape (N, 3072)')
    if not isinstance(labels, list) or not all(type(n) is int for n in labels) or len(labels) != len(rows):
        raise ValueError(f'{path}: {name} has no list of {len(rows)} whole numbers as {key}, one for each picture')
    wrong = [n for n in labels if not 0 <= n < n_classes]
    if wrong:
        raise ValueError(f'{path}: {name} has label {wrong[0]}, but there are {n_classes} classes, from 0')
    return rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), np.array(labels, np.int64)


def cifar(argv, doc, number, md5, batches, meta, names_key, labels_key):
    """What cifar10.py and cifar100.py do; batches: {split: names of its files}."""
    p = parser(doc, f'data/cifar{number}')
    p.add_argument('--from', dest='source', metavar='PATH', help='a local copy of the archive instead of the download')
    args = p.parse_args(argv)
    check_free(args.out, args.overwrite)
    archive = f'cifar-{number}-python.tar.gz'
    path = local_or_fetch(args.source, f'https://www.cs.toronto.edu/~kriz/{archive}',
                          Path(args.out).parent / 'downloads' / archive, md5, strict=False)
    files = [meta, *(name for split in batches.values() for name in split)]
    expected = f'{archive} with {", ".join(files)}'
    found = {PurePosixPath(name).name: content for name, content in
             tar_files(path, lambda name: PurePosixPath(name).name in files, expected)}
    missing = [name for name in files if name not in found]
    if missing:
        raise ValueError(f'{path} has no {missing[0]}; expected {expected}')
    classes = load(path, meta, found[meta]).get(names_key)
    if not isinstance(classes, list) or len(classes) != number or not all(isinstance(c, (bytes, str)) for c in classes):
        raise ValueError(f'{path}: {meta} does not list {number} {names_key}')
    classes = [c.decode(errors='replace') if isinstance(c, bytes) else c for c in classes]
    splits = {}
    for split, names in batches.items():
        parts = [pictures(path, name, load(path, name, found.pop(name)), labels_key, number) for name in names]
        splits[split] = [np.concatenate(arrays) for arrays in zip(*parts)]
    save_arrays(args.out, splits, classes)


def main(argv=None):
    cifar(argv, __doc__, 10, 'c58f30108f718f92721af3b95e74349a',
          {'train': [f'data_batch_{i}' for i in range(1, 6)], 'test': ['test_batch']},
          'batches.meta', 'label_names', 'labels')


if __name__ == '__main__':
    with one_line_errors():
        main()
