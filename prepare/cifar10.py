"""CIFAR-10 (170 MB, from cs.toronto.edu): 32x32 pictures of ten classes.

    python prepare/cifar10.py                                      # downloads 170 MB
    python prepare/cifar10.py --from cifar-10-python.tar.gz        # or reads your copy

Your copy must be the published archive, byte for byte.

Expect 50,000 pictures for training (train) and 10,000 for testing (test) of 32x32, 10 classes.
"""
import pickle

import lib  # noqa: F401 (first: it says what to type where a library is missing)
import numpy as np

from lib.inputs import dataset, local, local_or_fetch, tar_named
from lib.pictures import save_arrays

COPY = local('a local copy of the archive instead of the download')
MD5 = {10: 'c58f30108f718f92721af3b95e74349a', 100: 'eb9058c3a382ffc7106e4002c42a8d85'}
BATCHES = {'train': ('data_batch', 'train'), 'test': ('test',)}  # how the names of a split's files begin


def save(args, number=10):
    """A pickle can call any function, so only the published archives, which their checksums tell, are read."""
    path = local_or_fetch(args, f'https://www.cs.toronto.edu/~kriz/cifar-{number}-python.tar.gz', MD5[number])
    files, splits = dict(tar_named(path, lambda name: True, 2 ** 28)), {}
    meta, fine = ('batches.meta', b'') if number == 10 else ('meta', b'fine_')  # CIFAR-100 has coarse labels too

    def load(name):
        return pickle.loads(files[name], encoding='bytes')  # of Python 2, whose strings were bytes
    for split, begin in BATCHES.items():
        batches = [load(name) for name in sorted(files) if name.startswith(begin)]
        pictures = np.concatenate([batch[b'data'] for batch in batches])                        # (N, 3072)
        labels = np.concatenate([batch[fine + b'labels'] for batch in batches])
        splits[split] = pictures.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), labels           # (N, 32, 32, 3), (N,)
    save_arrays(args.out, splits, [name.decode() for name in load(meta)[fine + b'label_names']])


main = dataset(__name__, 'data/cifar10', COPY)(save)
