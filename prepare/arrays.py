"""Your own small pictures and their labels: .npy files, or idx files as MNIST has them.

    python prepare/arrays.py --images x.npy --labels y.npy --out data/mine
    python prepare/arrays.py --out data/mnist \\
        --images train-images-idx3-ubyte.gz --labels train-labels-idx1-ubyte.gz \\
        --test_images t10k-images-idx3-ubyte.gz --test_labels t10k-labels-idx1-ubyte.gz
    python train.py config/train_crate_shapes.py --dataset=mnist --flip=False --out_dir=out/mnist

Pictures are uint8 of shape (N, H, W) or (N, H, W, C), with any number of channels. Labels are N
whole numbers from 0 to 99,999. Convert others in Python: values from 0 to 1 by
(x * 255).round().astype(numpy.uint8), (N, C, H, W) by x.transpose(0, 2, 3, 1), other labels by
numpy.unique(y, return_inverse=True)[1].

Without --val_images, a random tenth of the training pictures is held out for validation.

Expect a line for each split: `data/mnist/train.images.npy: 54,000 pictures of 28x28x1, 10 classes`.
"""
import gzip
import struct

import lib  # noqa: F401 (first: it says what to type where a library is missing)
import numpy as np

from lib.inputs import Mistake, dataset, number, option, reading
from lib.pictures import save_arrays

MOST_UNZIPPED = 2 ** 30  # bytes in a compressed file, which go into memory; the largest of EMNIST has 0.5 GB


def read(path):
    """The array in a .npy file or an idx file of bytes, which may be compressed by gzip."""
    with reading(f'{path}: expected a whole .npy file, or an idx file of bytes'):
        content = np.memmap(path, np.uint8, 'r')
        if bytes(content[:4]) == b'\x93NUM':
            return np.load(path, mmap_mode='r')
        if bytes(content[:2]) == b'\x1f\x8b':
            with gzip.open(path) as f:
                content = f.read(MOST_UNZIPPED + 1)
            assert len(content) <= MOST_UNZIPPED, f'more than {MOST_UNZIPPED:,} bytes are compressed in it'
        assert bytes(content[:3]) == b'\0\0\x08', 'this is neither'  # idx: two zeros, 8 for bytes, then the number of
        shape = struct.unpack_from(f'>{content[3]}I', content, 4)      # axes and the length of each
        return np.frombuffer(content, np.uint8, offset=4 + 4 * content[3]).reshape(shape)


def read_split(images, labels):
    """The pictures and labels in two files. Raises Mistake unless they are, and fit together."""
    x, y = read(images), read(labels)
    channels_first = x.ndim == 4 and x.shape[1] < x.shape[2] == x.shape[3]
    if x.dtype != np.uint8 or x.ndim not in (3, 4) or not x.size or channels_first:
        raise Mistake(f'{images} holds {x.dtype} {x.shape}; convert it to uint8 (N, H, W, C) as --help says')
    if y.dtype.kind not in 'iu' or y.shape != x.shape[:1] or y.min() < 0 or y.max() >= 10 ** 5:
        raise Mistake(f'{labels} holds {y.dtype} {y.shape}; convert it to {len(x)} numbers from 0 as --help says')
    return x, y


@dataset(__name__, None, number('--val', 'share held out without --val_images', 0.1, 0, 0.9),
         option('--classes', 'names separated by commas; without, they are 0,1,2,..', metavar='NAMES'),
         *(option(f'--{split}{kind}', f'{kind} for {text}', required=not split, metavar='FILE')
           for split, text in (('', 'training'), ('val_', 'validation'), ('test_', 'testing'))
           for kind in ('images', 'labels')))
def main(args):
    splits = {'train': read_split(args.images, args.labels)}
    for split in 'val', 'test':
        files = [getattr(args, f'{split}_{kind}') for kind in ('images', 'labels')]
        if any(files) != all(files):
            raise Mistake(f'--{split}_images and --{split}_labels must be given together')
        if all(files):
            splits[split] = read_split(*files)
    if 'val' not in splits:
        x, y = splits['train']
        order = np.random.default_rng(0).permutation(len(x))
        count = max(1, round(args.val * len(x)))
        held_out, kept = np.sort(order[:count]), np.sort(order[count:])
        splits |= {'train': (x[kept], y[kept]), 'val': (x[held_out], y[held_out])}
    largest = max(int(y.max(initial=0)) for _, y in splits.values())
    classes = args.classes.split(',') if args.classes else [str(label) for label in range(largest + 1)]
    if largest >= len(classes):
        raise Mistake(f'--classes has {len(classes)} names; label {largest} needs {largest + 1}')
    save_arrays(args.out, splits, classes)
