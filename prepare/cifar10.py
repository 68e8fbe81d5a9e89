"""CIFAR-10 (170 MB, from cs.toronto.edu): 32x32 pictures of ten classes.

    python prepare/cifar10.py                                      # downloads 170 MB
    python prepare/cifar10.py --from cifar-10-python.tar.gz        # or reads your copy

Your copy must be the published archive, byte for byte.

Expect 50,000 pictures for training (train) and 10,000 for testing (test) of 32x32, 10 classes.
"""
import pickle

import lib  # noqa: F401 (first: it says what to type where a library is missing)
import numpy as np

from lib.inputs import arguments, local, local_or_fetch, run, tar_named
from lib.pictures import save_arrays

COPY = local('a local copy of the archive instead of the download')
# {number of classes: checksum of the archive}
MD5 = {10: 'c58f30108f718f92721af3b95e74349a', 100: 'eb9058c3a382ffc7106e4002c42a8d85'}
BATCHES = {'train': ('data_batch', 'train'), 'test': ('test',)}  # how a split's files are called


def find_archive(args, number):
    """The path of the archive of CIFAR-10 or CIFAR-100. A pickle can call any function, so no other
    archive than the published one, which its checksum tells, may be read."""
    url = f'https://www.cs.toronto.edu/~kriz/cifar-{number}-python.tar.gz'
    return local_or_fetch(args, url, MD5[number])


def read(path, meta='batches.meta', fine=b''):
    """({split: (pictures uint8 (N, 32, 32, 3), labels (N,))}, names of the classes). meta: the file
    with the names; fine: what the keys of the labels begin with."""
    files = dict(tar_named(path, lambda name: True))

    def load(name):
        return pickle.loads(files[name], encoding='bytes')  # Python 2 wrote it; its texts are bytes

    splits = {}
    for split, beginnings in BATCHES.items():
        batches = [load(name) for name in sorted(files) if name.startswith(beginnings)]
        pictures = np.concatenate([batch[b'data'] for batch in batches])            # (N, 3072)
        labels = np.concatenate([batch[fine + b'labels'] for batch in batches])     # (N,)
        pictures = pictures.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)            # (N, 32, 32, 3)
        splits[split] = pictures, labels
    classes = [name.decode() for name in load(meta)[fine + b'label_names']]
    return splits, classes


def main(argv=None):
    args = arguments(__doc__, argv, COPY, out='data/cifar10')
    splits, classes = read(find_archive(args, 10))
    save_arrays(args.out, splits, classes)


if __name__ == '__main__':
    run(main)
