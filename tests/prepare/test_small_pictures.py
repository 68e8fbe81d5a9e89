"""Small pictures: prepare/arrays.py on .npy and idx files, cifar10.py and cifar100.py on archives
like the published ones."""
import gzip
import hashlib
import os
import pickle
import struct

import numpy as np
import pytest
from downloads import tar
from helpers import fails
from small_files import RNG, npy, tree
from small_files import arrays as held

from prepare import arrays, cifar10, cifar100

X, Y = RNG.integers(0, 256, (50, 7, 6), np.uint8), (np.arange(50) % 3).astype(np.uint8)


def idx(array):
    """MNIST's format: two zeros, the type, the number of axes, their lengths, the bytes."""
    shape = struct.pack(f'>{array.ndim}I', *array.shape)
    return bytes([0, 0, 8, array.ndim]) + shape + array.tobytes()


@pytest.mark.parametrize('written', [npy, idx, lambda a: gzip.compress(idx(a))])
def test_what_is_given_is_saved(tmp_path, monkeypatch, capsys, written):
    monkeypatch.chdir(tmp_path)
    parts = {'': slice(None), 'val_': slice(9), 'test_': slice(9, None)}
    files = {}
    for prefix, part in parts.items():
        files[f'{prefix}images'] = written(X[part])
        files[f'{prefix}labels'] = written(Y[part])
    tree(tmp_path, files)
    arrays.main([*(f'--{name}={name}' for name in files), '--out', 'd', '--classes', 'cat,dog,emu'])
    meta, splits = held(tmp_path / 'd')
    assert meta['channels'] == 1 and meta['classes'] == ['cat', 'dog', 'emu'] and len(splits) == 3
    for s, part in zip(splits.values(), parts.values()):
        assert (s['images'][..., 0] == X[part]).all() and (s['labels'] == Y[part]).all()
    assert '41 pictures' in capsys.readouterr().out


def test_a_random_share_is_held_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tree(tmp_path, {'x': npy(X), 'y': npy(Y)}))
    arrays.main(['--images', 'x', '--labels', 'y', '--val', '0.2', '--out', 'd'])
    meta, splits = held(tmp_path / 'd')
    assert meta['classes'] == ['0', '1', '2'] and meta['splits']['val']['count'] == 10
    saved = []
    for split in splits.values():
        saved += [(x.tobytes(), y) for x, y in zip(split['images'], split['labels'])]
    assert sorted(saved) == sorted((x.tobytes(), y) for x, y in zip(X, Y))
    assert splits['val']['labels'].tolist() == [2, 0, 1, 0, 2, 2, 0, 2, 1, 0]  # always the same


FIRST = [(40, 4, 32, 24), (40, 1, 24, 32), (40, 13, 64, 64), (40, 3, 5, 5)]
LAST = [(40, 24, 32, 13), (40, 5, 9, 200), (40, 3, 3, 3), (40, 4, 9, 3), (40, 3, 24)]


@pytest.mark.parametrize('shape', FIRST + LAST)
def test_channels_are_refused_before_rows_and_taken_after_columns(shape, tmp_path, monkeypatch,
                                                                  capsys):
    files = {'x': npy(np.zeros(shape, np.uint8)), 'y': npy(np.zeros(40, int))}
    monkeypatch.chdir(tree(tmp_path, files))
    words = '--images', 'x', '--labels', 'y', '--out', 'd'
    if shape in FIRST:
        assert str(shape) in fails(capsys, arrays.main, *words) and not (tmp_path / 'd').exists()
    else:
        arrays.main(words)
        _, splits = held(tmp_path / 'd')
        assert splits['train']['images'].shape[1:] == (*shape[1:], 1)[:3]


@pytest.mark.parametrize('labels', [[3, 9000], [7], [0, 255], [2 ** 40, 5]])
def test_labels_with_gaps_are_as_many_classes_as_there_are(labels, tmp_path, monkeypatch):
    y = np.resize(np.array(labels, np.uint64 if 255 in labels else np.int64), 50)
    x = RNG.random((50, 2), np.float32)
    monkeypatch.chdir(tree(tmp_path, {'x': npy(X), 'y': npy(y)}))
    np.savez('xy.npz', x=x, y=y)
    label_of = {row.tobytes(): str(label) for rows in (X, x) for row, label in zip(rows, y)}
    of_pictures = ['--images', 'x', '--labels', 'y']
    of_floats = ['--npz', 'xy.npz']
    for words, inputs, targets in (of_pictures, 'images', 'labels'), (of_floats, 'x', 'y'):
        arrays.main([*words, '--out', f'data_{inputs}'])
        meta, splits = held(tmp_path / f'data_{inputs}')
        assert meta['classes'] == [str(label) for label in sorted(labels)]
        for files in splits.values():
            of_rows = [label_of[row.tobytes()] for row in files[inputs]]
            assert [meta['classes'][i] for i in files[targets]] == of_rows


@pytest.mark.parametrize('count', [0, 1])
@pytest.mark.parametrize('words', ['--images x --labels y', '--npz xy.npz'])
def test_what_is_too_little_to_be_divided_is_refused(count, words, tmp_path, monkeypatch, capsys):
    files = {'x': npy(np.zeros((count, 8, 8, 3), np.uint8)), 'y': npy(np.zeros(count, int))}
    monkeypatch.chdir(tree(tmp_path, files))
    np.savez('xy.npz', x=np.zeros((count, 3)), y=np.zeros(count))
    fails(capsys, arrays.main, *words.split(), '--out', 'd')
    assert not (tmp_path / 'd').exists()


# ---- CIFAR


KEY = {10: b'labels', 100: b'fine_labels'}


def files_of(number):
    """{name: what is pickled} of a small archive."""
    classes = [f'class {i}'.encode() for i in range(number)]
    if number == 10:
        names = [f'data_batch_{i}' for i in range(1, 6)] + ['test_batch']
        files = {'batches.meta': {b'label_names': classes}}
    else:
        names = ['train', 'test']
        files = {'meta': {b'fine_label_names': classes}}
    for i, name in enumerate(names):
        pixels = RNG.integers(0, 256, (2, 3072), np.uint8)
        files[name] = {b'data': pixels, KEY[number]: [i, 9 - i], b'coarse_labels': [1, 1]}
    return files


def archive(files):
    pickled = {f'cifar/{name}': pickle.dumps(files[name], protocol=2) for name in files}
    return tar(pickled, 'gz')


@pytest.mark.parametrize('number, main', [(10, cifar10.main), (100, cifar100.main)])
def test_pictures_arrive_pixel_for_pixel(number, main, tmp_path, monkeypatch):
    files = files_of(number)
    content = archive(files)
    monkeypatch.setitem(cifar10.MD5, number, hashlib.md5(content).hexdigest())
    tree(tmp_path, {f'cifar-{number}-python.tar.gz': content})
    main(['--from', str(tmp_path), '--out', str(tmp_path / 'd')])
    meta, splits = held(tmp_path / 'd')
    assert meta['classes'] == [f'class {i}' for i in range(number)]
    for split, mark in ('train', '_batch_' if number == 10 else 'train'), ('test', 'test'):
        batches = [batch for name, batch in files.items() if mark in name]
        x = splits[split]['images']
        y = splits[split]['labels']
        assert x.shape[1:] == (32, 32, 3)
        assert y.tolist() == np.concatenate([batch[KEY[number]] for batch in batches]).tolist()
        pixels = np.concatenate([batch[b'data'] for batch in batches])
        assert np.array_equal(x.transpose(0, 3, 1, 2).reshape(-1, 3072), pixels)


class Evil:
    def __reduce__(self):
        return os.system, ('touch evil_was_here',)


def test_nothing_but_the_published_archive_is_unpickled(tmp_path, capsys, monkeypatch):
    files = files_of(10) | {'data_batch_2': Evil()}
    monkeypatch.chdir(tree(tmp_path, {'x.tar.gz': archive(files)}))
    assert 'x.tar.gz' in fails(capsys, cifar10.main, '--from', 'x.tar.gz', '--out', 'd')
    assert not (tmp_path / 'd').exists() and not (tmp_path / 'evil_was_here').exists()
