"""Prepared datasets: folders of .npy arrays, and a meta.json with their lengths and types.

  text            SPLIT.npy: one 1-D array of token ids; meta.json names the tokenizer
                  SPLIT.counted.npy: which of them a network learns, bool, if not all
  small pictures  SPLIT.images.npy: uint8 (N, H, W, C)
                  SPLIT.labels.npy: int64 (N,)
  large pictures  SPLIT.jpeg.npy: the bytes of all JPEG files, one after the other
                  SPLIT.offsets.npy: where each file begins, and the end, int64 (N + 1,)
                  SPLIT.labels.npy: int64 (N,)
                  SPLIT.names.npy: the names of the files
  arrays          SPLIT.x.npy: float32 (N, ..), which nothing scales
                  SPLIT.y.npy: classes int64 (N,), or numbers float32 (N, num_targets)
  true masks      beside pictures of either kind; tasks/masks.py describes them

meta.json says how many channels the pictures have. It also has a checksum of itself, which is
always compared, and the sha256 of each array, which --verify=true of train.py and eval.py compares.
Opening an array compares its type and its shape.
"""
import hashlib
import json
import os
from pathlib import Path

import numpy as np

from engine.fields import data_fields
from engine.mistakes import Mistake, reading, regular


def read_meta(folder):
    """meta.json of a prepared dataset, as a dict. folder: None for random functions, which have no
    folder. Raises Mistake, with the command to type, if meta.json is missing."""
    if folder is None:
        return {'kind': 'functions', 'splits': {}, 'files': {}}
    meta = meta_of(folder)
    if meta:
        return meta
    from engine.advice import how_to_prepare  # here: few programs need advice
    raise Mistake(how_to_prepare(folder))


def meta_of(folder):
    """meta.json of a dataset; {} if it is not there yet. Raises Mistake if it is damaged, or if a
    field is missing or of another type."""
    path = Path(folder) / 'meta.json'
    if not path.is_file():
        return {}
    with reading(f'{path} is damaged', 'prepare the dataset again'):
        meta = {'channels': 3} | json.loads(path.read_text(encoding='utf-8'))
        # datasets of earlier versions have no checksum
        if 'sha256' in meta and meta['sha256'] != checksum_of(meta):
            raise ValueError('it is not what was written')
    try:
        return data_fields(path, meta)
    except Mistake as e:
        raise Mistake(f'{path}: {e}; prepare the dataset again') from None


def checksum_of(meta):
    """The sha256 of what meta.json says of a dataset, its own `sha256` left out."""
    rest = {'channels': 3} | meta
    rest.pop('sha256', None)
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def split_meta(folder, split, kind):
    """meta.json, and its entry for a split. Raises Mistake if there is no such split, or if the
    dataset is of another kind."""
    meta = read_meta(folder)
    if meta['kind'] != kind:
        raise Mistake(f'{folder} holds {meta["kind"]}, not {kind}; choose another --dataset')
    if split not in meta['splits']:
        raise Mistake(f'{folder} has no split {split}, only {", ".join(meta["splits"])}')
    return meta, meta['splits'][split]


def open_array(path, dtype, *shape):
    """A .npy file, memory-mapped. Raises Mistake if it is missing, cut off, or of another type or
    shape than meta.json said when the program began."""
    problem = f'{path} is missing or damaged, or has changed since the run began'
    with reading(problem, 'prepare the dataset again'):
        array = np.load(regular(path), mmap_mode='r')
        if array.dtype != dtype or array.shape != shape:
            raise ValueError(f'{array.dtype} {array.shape}, not {dtype} {shape}')
        return array


def check_indices(indices, count, place):
    """Raises Mistake for an index, of a token or of a class, that is none of 0 to count - 1. place:
    what the message says of where it is."""
    wrong = indices[(indices < 0) | (indices >= count)]
    if len(wrong) > 0:
        raise Mistake(f'{place} has an index {wrong[0]}, which is not from 0 to {count - 1}; '
                      'prepare the dataset again')


def cores():
    """How many CPU cores this process may use."""
    if hasattr(os, 'sched_getaffinity'):  # not on macOS and Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count()
