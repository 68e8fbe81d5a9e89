"""Prepared datasets: folders of .npy arrays and a meta.json with their lengths and types.

  text            SPLIT.npy, one 1-D array of token ids; meta.json names the tokenizer
  small pictures  SPLIT.images.npy, uint8 (N, H, W, C), and SPLIT.labels.npy, int64 (N,)
  large pictures  SPLIT.jpeg.npy, the bytes of all JPEG files one after the other, SPLIT.offsets.npy, int64 (N + 1,),
                  SPLIT.labels.npy, and SPLIT.names.npy, the names of the files
  true masks      beside pictures of either kind; tasks/masks.py says how

meta.json says how many channels pictures have (3 if it does not). It also has the sha256 of each array, which
--verify=true of train.py and eval.py compares. Opening a file compares its type and shape.
"""
import hashlib
import json
import os
from pathlib import Path

import numpy as np

from engine.settings import HERE, Mistake


def digest(path, kind='sha256', noted=int):
    """The checksum of a file, in hex; noted(n) is told of every n bytes. (hashlib.file_digest needs
    Python 3.11.)"""
    checksum = hashlib.new(kind)
    with open(path, 'rb', buffering=0) as f:
        while part := f.read(2 ** 20):
            checksum.update(part)
            noted(len(part))
    return checksum.hexdigest()


def digests(paths, label, kind='sha256'):
    """{name: checksum} of files; of large ones it shows its progress on a terminal."""
    size = sum(map(os.path.getsize, paths))
    if size < 2 ** 30:
        return {path.name: digest(path, kind) for path in paths}
    from tqdm import tqdm
    with tqdm(total=size, desc=label, unit='B', unit_scale=True, disable=None) as bar:
        return {path.name: digest(path, kind, bar.update) for path in paths}


def read_meta(folder):
    """meta.json of a prepared dataset, as a dict; of functions, which need no folder, for None. Raises Mistake if it is
    missing or not ours."""
    if folder is None:
        return {'kind': 'functions', 'splits': {}}
    path = Path(folder) / 'meta.json'
    if not path.is_file():
        raise missing(folder)
    try:
        meta = {'channels': 3} | json.loads(path.read_text(encoding='utf-8'))
        known = meta['kind'] in ('text', 'images', 'benchmark')
    except (ValueError, KeyError, TypeError):
        known = False
    if not known:
        raise Mistake(f'{path} is not the meta.json of a prepared dataset; prepare it again')
    if meta['kind'] == 'benchmark':
        raise Mistake(f'{folder} is a benchmark, not a dataset: python eval.py --ckpt=RUN '
                      f'--benchmarks={Path(folder).name}')
    return meta


def missing(folder):
    """The Mistake for a dataset that is not there."""
    script = Path('prepare', f'{Path(folder).name}.py')
    return Mistake(f'no data in {folder}; run: python {script} --out {folder}' if (HERE / script).exists() else
                   f'no data in {folder}; prepare/ has a script for each dataset; for your own: python prepare/text.py '
                   f'FILES --out {folder}, or python prepare/imagefolder.py FOLDER --out {folder}')


def split_meta(meta, folder, split, kind):
    """What meta.json says of a split. Raises Mistake if there is none, or if it is of another
    kind."""
    if meta['kind'] != kind:
        raise Mistake(f'{folder} holds {meta["kind"]}, not {kind}; choose another dataset, or a network for '
                      f'{meta["kind"]}')
    if split not in meta['splits']:
        raise Mistake(f'{folder} has no split {split}, only {", ".join(meta["splits"])}')
    return meta['splits'][split]


def open_array(path, dtype, *shape):
    """A .npy file, memory-mapped. Raises Mistake if it is missing, cut off, or not of this type and shape."""
    try:
        array = np.load(path, mmap_mode='r')
    except (OSError, ValueError, EOFError) as e:
        raise Mistake(f'{path} is missing, cut off or no .npy file ({e}); prepare the dataset again') from None
    if array.dtype != dtype or array.shape != shape:
        raise Mistake(f'{path} holds {array.dtype} of shape {array.shape}, and should hold {dtype} of shape {shape}; '
                      'prepare the dataset again')
    return array


def verify(folder):
    """Compare all files of a prepared dataset with their digests. Raises Mistake for one that differs."""
    if folder is None:
        return
    meta = read_meta(folder)
    if 'files' not in meta:
        raise Mistake(f'{folder} is from before there were digests; prepare it again, or leave --verify out')
    for name, wanted in meta['files'].items():
        path = Path(folder) / name
        if not path.is_file() or digests([path], f'verify {path}')[name] != wanted:
            raise Mistake(f'{path} is not what was written; prepare the dataset again')
    print(f'{folder}: every file is what was written')


def cores():
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()
