"""prepare/arrays.py on .npy and idx files."""
import gzip
import json
import re
import struct

import numpy as np
import pytest
from helpers import fails
from small_files import RNG

from prepare import arrays

X, Y = RNG.integers(0, 256, (50, 7, 6), np.uint8), np.arange(50) % 3


def npy(path, array):
    np.save(path, array)
    return str(path)


def idx(path, array, opened=open):
    """MNIST's format: two zeros, the type, the number of axes, their lengths, the bytes."""
    with opened(path, 'wb') as f:
        f.write(bytes([0, 0, 8, array.ndim]) + struct.pack(f'>{array.ndim}I', *array.shape) + array.tobytes())
    return str(path)


def zipped(path, array):
    return idx(path, array, gzip.open)


def prepared(out):
    """meta.json, {split: (images, labels)}"""
    meta = json.loads((out / 'meta.json').read_text())
    return meta, {split: [np.load(out / f'{split}.{a}.npy') for a in ('images', 'labels')] for split in meta['splits']}


@pytest.mark.parametrize('write', [npy, idx, zipped])
def test_what_is_given_is_saved(tmp_path, capsys, write):
    y = Y.astype(np.uint8)
    files = [f'--{name}={write(tmp_path / name, a)}' + '.npy' * (write is npy) for name, a in {
        'images': X, 'labels': y, 'val_images': X[:9], 'val_labels': y[:9], 'test_images': X[9:], 'test_labels': y[9:]
    }.items()]
    arrays.main([*files, '--out', str(tmp_path / 'd'), '--classes', 'cat,dog,emu'])
    meta, splits = prepared(tmp_path / 'd')
    assert meta['channels'] == 1 and meta['classes'] == ['cat', 'dog', 'emu']
    for (x, labels), part in zip(splits.values(), (slice(None), slice(9), slice(9, None)), strict=True):
        assert (x[..., 0] == X[part]).all() and (labels == Y[part]).all()
    assert 'test.images.npy: 41 pictures of 7x6x1, 3 classes' in capsys.readouterr().out


def test_a_random_share_is_held_out_by_the_seed(tmp_path):
    words = ['--images', npy(tmp_path / 'x.npy', X), '--labels', npy(tmp_path / 'y.npy', Y), '--val', '0.2']
    held = []
    for seed in (0, 0, 1):
        arrays.main([*words, '--seed', str(seed), '--out', str(tmp_path / 'd'), '--overwrite'])
        meta, splits = prepared(tmp_path / 'd')
        assert meta['classes'] == ['0', '1', '2'] and meta['splits']['val']['count'] == 10
        both = [np.concatenate(parts) for parts in zip(splits['train'], splits['val'])]
        found = {(x.tobytes(), int(y)) for x, y in zip(*both)}
        assert len(both[0]) == 50 and found == {(x.tobytes(), int(y)) for x, y in zip(X, Y)}
        held.append(splits['val'][0].tobytes())
    assert held[0] == held[1] != held[2]


def test_names_of_classes_from_a_file_and_any_channels(tmp_path):
    (tmp_path / 'names.txt').write_text('cat\ndog, big\nemu\n')
    x = npy(tmp_path / 'x.npy', np.repeat(X[..., None], 5, -1))
    words = '--images', x, '--labels', npy(tmp_path / 'y.npy', Y), '--classes', str(tmp_path / 'names.txt')
    arrays.main([*words, '--out', str(tmp_path / 'd')])
    meta, splits = prepared(tmp_path / 'd')
    assert meta['classes'] == ['cat', 'dog, big', 'emu'] and meta['channels'] == 5
    assert splits['train'][0].shape == (45, 7, 6, 5)


@pytest.mark.parametrize('x, y, words, message', [
    (X / 255, Y, (), r'x.npy holds float64 \(50, 7, 6\); expected uint8 .*round\(\)'),
    (X.astype(np.int64), Y, (), 'holds int64'), (X[0], Y, (), r'uint8 \(7, 6\)'), (X[:0], Y[:0], (), r'\(0, 7, 6\)'),
    (np.zeros((9, 3, 8, 8), np.uint8), Y[:9], (), r'\(N, C, H, W\).*transpose'),
    (X, Y[:49], (), 'expected 50 whole numbers'), (X, Y / 2, (), 'y.npy holds float64'), (X, Y - 1, (), 'from 0 to'),
    (X, Y * 10 ** 5, (), 'unique'), (X, Y, ('--classes', 'a,b'), 'label 2,'), (X[:1], Y[:1], (), 'too few'),
    (X, Y, ('--val_images', 'x'), '--val_images and --val_labels must be given together'),
    (X, Y, ('--val', '1'), '--val: 1 must be between 0 and 1'), (X, Y, ('--seed', 'x'), '--seed: invalid'),
    (X, Y, ('--seed', '-1'), '--seed: -1 must be between'),
    (X, Y, ('--sed', '1', '--sizes'), 'unrecognized arguments: --s.*--help')])
def test_arrays_that_do_not_fit_are_refused_in_one_line(tmp_path, capsys, x, y, words, message):
    files = '--images', npy(tmp_path / 'x.npy', x), '--labels', npy(tmp_path / 'y.npy', y)
    line = fails(capsys, arrays.main, *files, '--out', str(tmp_path / 'd'), *words)
    assert re.search(message, line), line
    assert not (tmp_path / 'd').exists()


def test_damaged_files_are_refused_by_name(tmp_path, capsys):
    labels = npy(tmp_path / 'y.npy', Y)
    whole = {name: open(write(tmp_path / name, X), 'rb').read()
             for name, write in (('a.npy', npy), ('b', idx), ('c.gz', zipped))}
    np.save(tmp_path / 'o.npy', np.array([{}], object))
    contents = {f'{length} {name}': content[:length] for name, content in whole.items() for length in (0, 3, 11, 500)}
    contents |= {'float idx': b'\0\0\r\1' + bytes(99), 'page': b'<html>', 'object': (tmp_path / 'o.npy').read_bytes()}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    for name in (*contents, 'nowhere'):
        words = '--images', str(tmp_path / name), '--labels', labels, '--out', str(tmp_path / 'd')
        line = fails(capsys, arrays.main, *words)
        assert f'{name}: expected a whole .npy file, or an idx file' in line, line
