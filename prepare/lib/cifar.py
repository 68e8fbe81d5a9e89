"""CIFAR-10 and CIFAR-100: archives of pickled arrays, read without running code in them."""
import io
import pickle
from pathlib import Path, PurePosixPath

import numpy as np

from engine.settings import Mistake
from prepare.lib.archives import tar_files
from prepare.lib.command_line import parse, parser
from prepare.lib.download import local_or_fetch
from prepare.lib.pictures import save_arrays


class ArraysOnly(pickle._Unpickler):  # in Python: the one in C takes any memory that a number in the file asks for
    """Loads numbers, strings, lists, dicts and numpy arrays. A pickle can call any function; only
    what makes an array is allowed, and its bytes must be in the pickle."""

    def find_class(self, module, name):
        if (module.replace('numpy._core', 'numpy.core'), name) == ('numpy.core.multiarray', '_reconstruct'):
            return lambda *_: np.zeros(0, np.uint8)  # the pickle then fills it
        if (module, name) == ('numpy', 'ndarray'):
            return None  # only named
        if (module, name) == ('numpy', 'dtype'):
            return np.dtype
        if (module, name) == ('_codecs', 'encode'):  # Python 3 writes bytes for Python 2 this way
            return lambda text, encoding: text.encode('latin1')
        raise pickle.UnpicklingError(f'it asks for {module}.{name}')


def load(path, name, content):
    """A pickled dict from the archive at path, its keys as str. Anything else is refused."""
    try:
        found = ArraysOnly(io.BytesIO(content), encoding='bytes').load()
        return {key.decode() if isinstance(key, bytes) else key: value for key, value in found.items()}
    except Exception as e:  # of many types, depending on the damage
        raise Mistake(f'{path}: {name} is not a pickled dict of arrays ({str(e) or type(e).__name__}); '
                      'get it again') from None


def pictures(path, name, batch, key, n_classes):
    """One batch -> images uint8 (N, 32, 32, 3), labels int64 (N,)."""
    rows, labels = batch.get('data'), batch.get(key)
    if not isinstance(rows, np.ndarray) or rows.dtype != np.uint8 or rows.shape[1:] != (3072,) or not len(rows):
        raise Mistake(f'{path}: the data of {name} are not bytes of shape (N, 3072); get it again')
    if not isinstance(labels, list) or not all(type(n) is int for n in labels) or len(labels) != len(rows):
        raise Mistake(f'{path}: {name} has no list of {len(rows)} whole numbers as {key}, one for each picture; '
                      'get it again')
    wrong = [n for n in labels if not 0 <= n < n_classes]
    if wrong:
        raise Mistake(f'{path}: {name} has label {wrong[0]}, but there are {n_classes} classes, from 0; '
                      'get it again')
    return rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), np.array(labels, np.int64)


def cifar(argv, doc, number, md5, batches, meta, names_key, labels_key):
    """All that cifar10.py and cifar100.py do. batches: {split: its files in the archive}."""
    p = parser(doc, f'data/cifar{number}')
    p.add_argument('--from', dest='source', metavar='PATH', help='a local copy of the archive instead of the download')
    args = parse(p, argv)
    archive = f'cifar-{number}-python.tar.gz'
    path = local_or_fetch(args.source, f'https://www.cs.toronto.edu/~kriz/{archive}',
                          Path(args.out).parent / 'downloads' / archive, md5, strict=False)
    files = [meta, *(name for split in batches.values() for name in split)]
    expected = f'{archive} with {", ".join(files)}'
    found = {PurePosixPath(name).name: content for name, content in
             tar_files(path, lambda name: PurePosixPath(name).name in files, expected, 2 ** 28)}  # the largest: 155 MB
    missing = [name for name in files if name not in found]
    if missing:
        raise Mistake(f'{path} has no {missing[0]}; expected {expected}; get it again')
    classes = load(path, meta, found[meta]).get(names_key)
    if not isinstance(classes, list) or len(classes) != number or not all(isinstance(c, (bytes, str)) for c in classes):
        raise Mistake(f'{path}: {meta} does not list {number} {names_key}; get it again')
    classes = [c.decode(errors='replace') if isinstance(c, bytes) else c for c in classes]
    splits = {}
    for split, names in batches.items():
        parts = [pictures(path, name, load(path, name, found.pop(name)), labels_key, number) for name in names]
        splits[split] = [np.concatenate(arrays) for arrays in zip(*parts)]
    save_arrays(args.out, splits, classes)
