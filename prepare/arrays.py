"""Your own small pictures and their labels: .npy files, or idx files as MNIST has them. Or .npz
files of floats that are no pictures, and of what is to be learned from them.

    python prepare/arrays.py --images x.npy --labels y.npy --out data/mine
    python prepare/arrays.py --out data/mnist \\
        --images train-images-idx3-ubyte.gz --labels train-labels-idx1-ubyte.gz \\
        --test_images t10k-images-idx3-ubyte.gz --test_labels t10k-labels-idx1-ubyte.gz
    python train.py config/train_crate_shapes.py --dataset=mnist --flip=False --out_dir=out/mnist

Pictures are uint8 of shape (N, H, W) or (N, H, W, C), with any number of channels. Labels are N
whole numbers, not negative. Without --classes, each number that occurs is a class. With --classes,
a number is the place of its class among the names, counted from 0. Convert others in Python: values
from 0 to 1 by (x * 255).round().astype(numpy.uint8), (N, C, H, W) by x.transpose(0, 2, 3, 1), other
labels by numpy.unique(y, return_inverse=True)[1], pictures in a .npz file by numpy.save('x.npy',
numpy.load('mine.npz')['x']).

A .npz file has two arrays, x and y: numpy.savez('mine.npz', x=x, y=y). x is (N, ..), such as
(N, C, H, W), of floats, which reach the network as they are, in float32. y is N whole numbers,
which are labels as above, or floats (N, k), or (N,), which become (N, 1). The file may have
val_x and val_y, and test_x and test_y, too. docs/extend.md shows a task that reads such a dataset.

    python prepare/arrays.py --npz mine.npz --out data/mine

Without validation data, a random tenth of the training data is held out for validation.

Expect a line for each split: `data/mnist/train.images.npy: 54,000 pictures of 28x28x1, 10 classes`.
"""
import gzip
import struct

import lib  # noqa: F401 (first: it says what to type where a library is missing)
import numpy as np

from engine.mistakes import regular
from lib.files import new_folder, write_meta
from lib.inputs import Mistake, arguments, number, option, reading, run
from lib.pictures import save_arrays

# the most bytes that are read of a compressed file, into memory; the largest of EMNIST has 0.5 GB
MOST_UNZIPPED = 2 ** 30
# {split: what the names of its options, and of its arrays in a .npz file, begin with}
PREFIXES = {'train': '', 'val': 'val_', 'test': 'test_'}


def read(path):
    """The array in a .npy file or an idx file of bytes, which may be compressed by gzip. Raises
    Mistake for other files."""
    with reading(f'{path}: expected a whole .npy file, or an idx file of bytes',
                 'get it again, or convert it as --help says'):
        content = np.memmap(regular(path), np.uint8, 'r')
        first_bytes = bytes(content[:4])
        if first_bytes == b'\x93NUM':
            return np.load(path, mmap_mode='r')
        if first_bytes[:2] == b'\x1f\x8b':
            with gzip.open(path) as f:
                content = f.read(MOST_UNZIPPED)
        return array_of_idx(content)


def array_of_idx(content):
    """The array in an idx file: two zeros, 8 for bytes, the number of axes, the length of each as a
    big-endian uint32, and the bytes."""
    if bytes(content[:3]) != b'\0\0\x08':
        raise ValueError('this is neither')
    n_axes = content[3]
    shape = struct.unpack_from(f'>{n_axes}I', content, 4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * n_axes).reshape(shape)


def read_split(images, labels):
    """The pictures and the labels in two files. Raises Mistake if they are something else, or if
    there are not as many labels as pictures."""
    x = read(images)
    y = read(labels)
    if x.dtype != np.uint8 or x.ndim not in (3, 4) or x.size == 0 or has_channels_first(x):
        raise Mistake(f'{images} holds {x.dtype} {x.shape}; convert it to uint8 (N, H, W, C) as '
                      '--help says')
    is_integer = y.dtype.kind in 'iu'
    if not is_integer or y.shape != x.shape[:1] or y.min() < 0:
        raise Mistake(f'{labels} holds {y.dtype} {y.shape}; convert it to {len(x)} numbers from 0 '
                      'as --help says')
    return x, np.int64(y)


def has_channels_first(x):
    """Whether an array is (N, C, H, W), and not (N, H, W, C): at most four channels come before a
    longer axis, or any number of channels before squares that are larger."""
    if x.ndim < 4:
        return False
    _, first, height, width = x.shape
    comes_before_a_square = height == width and first < height
    return comes_before_a_square or first <= 4 < width


def read_files(args):
    """{split: (pictures, labels)} of the files that the user named. Raises Mistake if there are
    none for training, or one without the other."""
    splits = {}
    for split, prefix in PREFIXES.items():
        images = getattr(args, f'{prefix}images')
        labels = getattr(args, f'{prefix}labels')
        if bool(images) != bool(labels):
            raise Mistake(f'--{prefix}images and --{prefix}labels must be given together')
        if images:
            splits[split] = read_split(images, labels)
    if 'train' not in splits:
        raise Mistake('give --images=FILE and --labels=FILE, or --npz=FILE')
    return splits


def read_npz(path):
    """{split: (x, y)} of a .npz file, as `rows` returns them. Raises Mistake for other arrays."""
    splits = {}
    with reading(f'{path} does not fit', 'convert its arrays as --help says'):
        arrays = np.load(regular(path))
        for split, prefix in PREFIXES.items():
            if split == 'train' or f'{prefix}x' in arrays:
                splits[split] = rows(arrays[f'{prefix}x'], arrays[f'{prefix}y'])
        kinds = {f'x {x.shape[1:]}, y {y.dtype} {y.shape[1:]}' for x, y in splits.values()}
        if len(kinds) > 1:
            raise ValueError(f'rows of several shapes: {" and ".join(kinds)}')
    return splits


def rows(x, y):
    """x as float32 (N, ..), and y as classes int64 (N,), or as numbers float32 (N, k). Raises
    ValueError for arrays of other types or shapes."""
    if y.dtype.kind == 'f' and y.ndim == 1:
        y = y[:, None]                                      # (N, 1)
    is_class = y.dtype.kind in 'iu' and y.ndim == 1 and (y >= 0).all()
    is_number = y.dtype.kind == 'f' and y.ndim == 2 and np.isfinite(y).all()
    is_float = x.dtype.kind == 'f' and x.ndim > 1 and np.isfinite(x).all()
    if not is_float or not (is_class or is_number) or not 0 < len(x) == len(y):
        raise ValueError(f'x {x.dtype} {x.shape}, y {y.dtype} {y.shape}')
    return x.astype(np.float32), y.astype(np.int64 if is_class else np.float32)


def hold_out(x, y, val_share):
    """x and y -> (x, y) for training, (x, y) for validation. The random choice is always the same.
    Raises Mistake for a single row."""
    if len(x) < 2:
        raise Mistake('one row is too little for training and validation; give more')
    order = np.random.default_rng(0).permutation(len(x))
    count = min(max(1, round(val_share * len(x))), len(x) - 1)
    val = np.sort(order[:count])
    train = np.sort(order[count:])
    return (x[train], y[train]), (x[val], y[val])


def number_classes(names, splits):
    """The names of the classes, and {split: (x, labels)} in which each label is the place of its
    name. names: those that the user typed, with commas between them, or None: then the classes are
    the labels that occur. Raises Mistake if there are too few names."""
    occurring = np.unique(np.concatenate([y for _, y in splits.values()]))
    if names:
        classes = names.split(',')
        largest = occurring[-1]
        if largest >= len(classes):
            raise Mistake(f'--classes has {len(classes)} names; label {largest} needs '
                          f'{largest + 1}')
        return classes, splits
    numbered = {}
    for split, (x, y) in splits.items():
        numbered[split] = x, np.searchsorted(occurring, y)
    return occurring.astype(str).tolist(), numbered


def save_floats(out, splits, names):
    """Write a dataset of floats and print its counts. splits: as read_npz returns them; names: of
    the classes, as the user typed them, or None."""
    x, y = splits['train']
    meta = {'kind': 'arrays', 'shape': x.shape[1:], 'splits': {}}
    if y.ndim == 1:
        meta['classes'], splits = number_classes(names, splits)
    else:
        meta['num_targets'] = y.shape[1]
    if x.ndim == 4:  # (N, C, H, W)
        meta['channels'] = x.shape[1]
    with new_folder(out) as new:
        for split, (x, y) in splits.items():
            np.save(new / f'{split}.x.npy', x)
            np.save(new / f'{split}.y.npy', y)
            meta['splits'][split] = {'count': len(x)}
            print(f'{out}/{split}.x.npy: {len(x):,} rows of {x.shape[1:]}, y {y.dtype} '
                  f'{y.shape[1:]}')
        write_meta(new, meta)


def main(argv=None):
    files = []
    for split, prefix in PREFIXES.items():
        for kind in ('images', 'labels'):
            files.append(option(f'--{prefix}{kind}', f'{kind} for {split}', metavar='FILE'))
    args = arguments(
        __doc__, argv,
        number('--val', 'share held out without validation data', 0.1, 0, 0.9),
        option('--classes', 'names separated by commas; without, the labels that occur',
               metavar='NAMES'),
        option('--npz', 'x and y, floats that are no pictures', metavar='FILE'),
        *files)

    if args.npz and args.images:
        raise Mistake('give --npz=FILE or --images=FILE, not both')
    if args.npz:
        splits = read_npz(args.npz)
    else:
        splits = read_files(args)
    if 'val' not in splits:
        splits['train'], splits['val'] = hold_out(*splits['train'], args.val)
    if args.npz:
        save_floats(args.out, splits, args.classes)
    else:
        classes, splits = number_classes(args.classes, splits)
        save_arrays(args.out, splits, classes)


if __name__ == '__main__':
    run(main)
