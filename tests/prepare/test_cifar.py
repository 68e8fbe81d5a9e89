"""prepare/cifar10.py and cifar100.py on small archives in the form of the published ones."""
import hashlib
import json
import os
import pickle

import numpy as np
import pytest
from helpers import fails
from small_files import RNG, tar

from prepare import cifar10, cifar100
from prepare.lib import cifar


def batch(rows, key, labels):
    return {b'batch_label': b'some', b'data': RNG.integers(0, 256, (rows, 3072), np.uint8), key: labels}


def files_of(number):
    listed = [f'class {i}'.encode() for i in range(number)]
    if number == 100:
        files = {'train': batch(3, b'fine_labels', [0, 99, 5]) | {b'coarse_labels': [0, 1, 2]},
                 'test': batch(2, b'fine_labels', [7, 8]), 'meta': {b'fine_label_names': listed}}
        return {f'cifar-100-python/{name}': content for name, content in files.items()}
    files = {f'data_batch_{i}': batch(2, b'labels', [i, 9 - i]) for i in range(1, 6)}
    files |= {'test_batch': batch(1, b'labels', [9]), 'batches.meta': {b'label_names': listed}}
    return {f'cifar-10-batches-py/{name}': content for name, content in files.items()}


def archive(path, files):
    return tar(path, {name: pickle.dumps(content, protocol=2) for name, content in files.items()}, 'gz')


@pytest.mark.parametrize('number, main', [(10, cifar10.main), (100, cifar100.main)])
def test_pictures_arrive_pixel_for_pixel(number, main, tmp_path, capsys, monkeypatch):
    files, path = files_of(number), tmp_path / f'cifar-{number}-python.tar.gz'
    monkeypatch.setitem(cifar.MD5, number, hashlib.md5(archive(path, files).read_bytes()).hexdigest())
    main(['--from', str(tmp_path), '--out', str(tmp_path / 'd')])
    assert f'{number} classes' in capsys.readouterr().out
    meta = json.loads((tmp_path / 'd' / 'meta.json').read_text())
    assert meta['classes'] == [f'class {i}' for i in range(number)] and meta['storage'] == 'arrays'
    for split, mark in (('train', 'train' if number == 100 else 'data_batch'), ('test', 'test')):
        batches = [b for n, b in files.items() if mark in n]
        rows = np.concatenate([b[b'data'] for b in batches])
        x, y = np.load(tmp_path / 'd' / f'{split}.images.npy'), np.load(tmp_path / 'd' / f'{split}.labels.npy')
        assert meta['splits'][split] == {'count': len(rows), 'height': 32, 'width': 32}
        assert x.dtype == np.uint8 and y.dtype == np.int64 and x.shape == (len(rows), 32, 32, 3)
        assert (x.transpose(0, 3, 1, 2).reshape(-1, 3072) == rows).all()
        assert y.tolist() == sum((b[b'labels' if number == 10 else b'fine_labels'] for b in batches), [])


class Evil:
    def __reduce__(self):
        return os.system, ('touch evil_was_here',)


@pytest.mark.parametrize('place', ['given.tar.gz', 'downloads/cifar-10-python.tar.gz'])
def test_nothing_but_the_published_archive_is_unpickled(place, tmp_path, capsys, monkeypatch):
    """A copy of the user's, or what lies where a download would be."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'downloads').mkdir()
    archive(tmp_path / place, files_of(10) | {'cifar-10-batches-py/data_batch_2': Evil()})
    words = ['--from', place] if place == 'given.tar.gz' else []
    assert place in fails(capsys, cifar10.main, *words, '--out', str(tmp_path / 'd'))
    assert not (tmp_path / 'd').exists() and not (tmp_path / 'evil_was_here').exists()
