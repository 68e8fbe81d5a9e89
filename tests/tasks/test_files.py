"""Prepared datasets: what is damaged or foreign is refused by name."""
import json
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


@pytest.mark.parametrize('text', ['', '{}', '[]', 'not json', '{"kind": "sounds"}'])
def test_a_foreign_meta_json_is_refused(tiny_copy, text):
    (tiny_copy / 'meta.json').write_text(text)
    with pytest.raises(ValueError, match='meta.json is not'):
        read_meta(tiny_copy)


def test_pictures_without_channels_have_three(pictures_data, tmp_path):
    path = shutil.copytree(pictures_data / 'quads', tmp_path / 'quads') / 'meta.json'
    meta = json.loads(path.read_text())
    del meta['channels']
    path.write_text(json.dumps(meta))
    assert read_meta(path.parent)['channels'] == 3


def test_nothing_and_benchmarks_are_no_datasets(tmp_path):
    with pytest.raises(ValueError, match='no data in'):
        read_meta(tmp_path)
    (tmp_path / 'meta.json').write_text('{"kind": "benchmark"}')
    with pytest.raises(ValueError, match='is a benchmark, not a dataset: python eval.py'):
        read_meta(tmp_path)
