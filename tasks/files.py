"""Prepared datasets: folders of .npy arrays and a meta.json with their lengths and types.

  text            SPLIT.npy, one 1-D array of token ids; meta.json names the tokenizer
  small pictures  SPLIT.images.npy, uint8 (N, H, W, C), and SPLIT.labels.npy, int64 (N,)
  large pictures  SPLIT.jpeg.npy, the bytes of all JPEG files one after the other, SPLIT.offsets.npy, int64 (N + 1,),
                  SPLIT.labels.npy, and SPLIT.names.npy, the names of the files
  true masks      beside pictures of either kind; tasks/masks.py says how

meta.json says how many channels pictures have. It also has the sha256 of each array, which --verify=true of train.py
and eval.py compares. Opening a file compares its type and shape.
"""
import hashlib
import os
from pathlib import Path

import numpy as np
from tqdm import tqdm

from engine.networks import meta_of
from engine.settings import HERE, Mistake, reading


def digest(path, kind='sha256'):
    """The checksum of a file in hex. What takes long shows its progress on a terminal."""
    checksum, size = hashlib.new(kind), os.path.getsize(path)
    with open(path, 'rb') as file, tqdm.wrapattr(file, 'read', size, desc=f'{path}', delay=3, disable=None) as f:
        while part := f.read(2 ** 20):
            checksum.update(part)
    return checksum.hexdigest()


def read_meta(folder):
    """meta.json of a prepared dataset, as a dict; of functions, which need no folder, for None. Raises Mistake with the
    command to type if it is missing."""
    if folder is None:
        return {'kind': 'functions', 'splits': {}, 'files': {}}
    meta, script = meta_of(folder), Path('prepare', f'{Path(folder).name}.py')
    if not meta:
        ways = [script] if (HERE / script).exists() else ['prepare/text.py FILES', 'prepare/imagefolder.py FOLDER']
        raise Mistake(f'no data in {folder}; run: ' + ' or '.join(f'python {way} --out {folder}' for way in ways))
    return meta


def split_meta(folder, split, kind):
    """meta.json, and what it says of a split. Raises Mistake if there is none, or if it is of another kind."""
    meta = read_meta(folder)
    if meta['kind'] != kind:
        raise Mistake(f'{folder} holds {meta["kind"]}, not {kind}; choose another --dataset')
    if split not in meta['splits']:
        raise Mistake(f'{folder} has no split {split}, only {", ".join(meta["splits"])}')
    return meta, meta['splits'][split]


def open_array(path, dtype, *shape):
    """A .npy file, memory-mapped. Raises Mistake if it is missing, cut off, or not of this type and shape."""
    with reading(f'{path} is missing or damaged', 'prepare the dataset again'):
        array = np.load(path, mmap_mode='r')
        assert (array.dtype, array.shape) == (dtype, shape), f'{array.dtype} {array.shape}, not {dtype} {shape}'
        return array


def verify(folder):
    """Compare all files of a prepared dataset with their digests. Raises Mistake for one that differs."""
    for name, written in read_meta(folder)['files'].items():
        path = Path(folder) / name
        if not path.is_file() or digest(path) != written:
            raise Mistake(f'{path} is not what was written; prepare the dataset again')
    print(f'{folder or "functions"}: every file is what was written')


def cores():
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()
