"""Prepared datasets: what is damaged or foreign is refused by name."""
import shutil

import numpy as np
import pytest

from tasks.files import read_meta
from tasks.text import TextSplit


@pytest.fixture
def tiny_copy(bytes_data, tmp_path):
    return shutil.copytree(bytes_data / 'tiny', tmp_path / 'tiny')


def damage(kind, path):
    if kind == 'missing':
        path.unlink()
    elif kind == 'cut off':
        path.write_bytes(path.read_bytes()[:-100])
    elif kind == 'foreign':
        path.write_bytes(b'not an array at all' * 100)
    else:
        tokens = np.load(path)[:-2]
        np.save(path, {'pickled': np.array([{}], object), 'other length': tokens, 'other type': tokens.astype(float),
                       'two-dimensional': tokens[:len(tokens) // 2 * 2].reshape(2, -1)}[kind])


@pytest.mark.parametrize('kind', ['missing', 'cut off', 'foreign', 'pickled', 'other length', 'other type',
                                  'two-dimensional'])
def test_damaged_arrays_are_refused_by_name(kind, tiny_copy):
    damage(kind, tiny_copy / 'train.npy')
    with pytest.raises(ValueError, match='train.npy.*prepare the dataset again'):
        TextSplit(tiny_copy, 'train', 16)


def test_tokens_beyond_the_vocabulary_are_refused(tiny_copy):
    tokens = np.load(tiny_copy / 'train.npy')
    tokens[:] = 300
    np.save(tiny_copy / 'train.npy', tokens)
    with pytest.raises(ValueError, match='train.npy holds token 300'):
        next(TextSplit(tiny_copy, 'train', 16).batches(2, 0, [slice(None)], 0, 1))


def test_nothing_and_benchmarks_are_no_datasets(tmp_path):
    with pytest.raises(ValueError, match='no data in'):
        read_meta(tmp_path)
    (tmp_path / 'meta.json').write_text('{"kind": "benchmark"}')
    with pytest.raises(ValueError, match='is a benchmark: python eval.py'):
        read_meta(tmp_path)
