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


def without_digests(folder):
    """A folder as it was before there were digests."""
    meta = json.loads((folder / 'meta.json').read_text())
    (folder / 'meta.json').write_text(json.dumps({k: v for k, v in meta.items() if k not in ('files', 'sha256')}))
    return folder


def damage(kind, folder):
    path = folder / 'train.npy'
    if kind == 'missing':
        path.unlink()
    elif kind == 'cut off':
        path.write_bytes(path.read_bytes()[:-100])
    elif kind == 'empty':
        path.write_bytes(b'')
    elif kind == 'foreign':
        path.write_bytes(b'not an array at all' * 100)
    elif kind == 'pickled':
        np.save(path, np.array([{}], dtype=object))
    elif kind == 'other length':
        np.save(path, np.load(path)[:-1])
    elif kind == 'other type':
        np.save(path, np.load(path).astype(np.float32))
    elif kind == 'two-dimensional':
        np.save(path, np.load(path)[:-1 if len(np.load(path)) % 2 else None].reshape(2, -1))


@pytest.mark.parametrize('kind', ['missing', 'cut off', 'empty', 'foreign', 'pickled', 'other length', 'other type',
                                  'two-dimensional'])
def test_damaged_arrays_are_refused_by_name(kind, tiny_copy):
    damage(kind, tiny_copy)
    with pytest.raises(ValueError, match='train.npy.*prepare the dataset again'):
        TextSplit(tiny_copy, 'train', 16)


def test_tokens_beyond_the_vocabulary_are_refused(tiny_copy):
    tokens = np.load(tiny_copy / 'train.npy')
    tokens[:] = 300
    np.save(tiny_copy / 'train.npy', tokens)
    with pytest.raises(ValueError, match='train.npy is damaged'):
        TextSplit(tiny_copy, 'train', 16)
    with pytest.raises(ValueError, match='token 300'):
        TextSplit(without_digests(tiny_copy), 'train', 16)


@pytest.mark.parametrize('text', [
    '', '{}', '[]', 'not json', '{"kind": "text"}', ('"text"', '"image"'), ('"bytes"', '"words"'), ('256', '"256"'),
    ('"bytes": ', '"other": '), ('"splits": {', '"splits": [], "x": {')])
def test_a_foreign_meta_json_is_refused(tiny_copy, text):
    whole = (without_digests(tiny_copy) / 'meta.json').read_text()
    (tiny_copy / 'meta.json').write_text(text if isinstance(text, str) else whole.replace(*text))
    with pytest.raises(ValueError, match='meta.json is not'):
        read_meta(tiny_copy)


@pytest.mark.parametrize('old, new', [
    ('"images"', '"sounds"'), ('"arrays"', '"heap"'), ('"count": 40', '"count": 0'), ('"count": 40', '"count": "40"'),
    ('"height": 8', '"high": 8'), ('"classes": [', '"classes": [], "x": ['), ('"classes": [', '"classes": 4, "x": ['),
    ('"splits": {', '"splits": [], "x": {'), ('"splits": {', '"splits": {}, "x": {'),
    ('"channels": 3', '"channels": 0'), ('"channels": 3', '"channels": "3"')])
def test_a_foreign_meta_json_of_pictures_is_refused(old, new, pictures_data, tmp_path):
    path = without_digests(shutil.copytree(pictures_data / 'quads', tmp_path / 'quads')) / 'meta.json'
    text = json.dumps({'channels': 3} | json.loads(path.read_text()))
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(ValueError, match='meta.json is not'):
        read_meta(path.parent)


def test_pictures_without_channels_have_three(pictures_data, tmp_path):
    path = without_digests(shutil.copytree(pictures_data / 'quads', tmp_path / 'quads')) / 'meta.json'
    meta = json.loads(path.read_text())
    meta.pop('channels', None)
    path.write_text(json.dumps(meta))
    assert read_meta(path.parent)['channels'] == 3


def test_nothing_and_benchmarks_are_no_datasets(tmp_path):
    with pytest.raises(ValueError, match='no data in'):
        read_meta(tmp_path)
    (tmp_path / 'meta.json').write_text('{"kind": "benchmark"}')
    with pytest.raises(ValueError, match='is a benchmark, not a dataset: python eval.py'):
        read_meta(tmp_path)
