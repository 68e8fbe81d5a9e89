"""prepare/cifar10.py and cifar100.py on archives as they are published."""
import json
import os
import pickle
import re

import numpy as np
import pytest
from helpers import fails
from small_files import RNG, tar

from prepare import cifar10, cifar100


def py2_pickle(batch):
    """As Python 2 wrote it: strings are bytes, arrays come from numpy.core."""
    text = pickle.dumps(batch, protocol=2)
    return text.replace(b'numpy._core.multiarray', b'numpy.core.multiarray')


def cifar_batch(rows, key, labels):
    return {b'batch_label': b'some', b'data': RNG.integers(0, 256, (rows, 3072), np.uint8), key: labels}


def cifar_files(number):
    listed = [f'class {i}'.encode() for i in range(number)]
    if number == 100:
        files = {'train': cifar_batch(3, b'fine_labels', [0, 99, 5]) | {b'coarse_labels': [0, 1, 2]},
                 'test': cifar_batch(2, b'fine_labels', [7, 8]), 'meta': {b'fine_label_names': listed}}
        return {f'cifar-100-python/{name}': content for name, content in files.items()}
    files = {f'data_batch_{i}': cifar_batch(2, b'labels', [i, 9 - i]) for i in range(1, 6)}
    files |= {'test_batch': cifar_batch(1, b'labels', [9]), 'batches.meta': {b'label_names': listed}}
    return {f'cifar-10-batches-py/{name}': content for name, content in files.items()}


def cifar_tar(path, files):
    return str(tar(path, {n: c if isinstance(c, bytes) else py2_pickle(c) for n, c in files.items()}, 'gz'))


@pytest.mark.parametrize('number, main', [(10, cifar10.main), (100, cifar100.main)])
def test_cifar_pictures_arrive_pixel_for_pixel(tmp_path, capsys, number, main):
    files = cifar_files(number)
    path = cifar_tar(tmp_path / 'c.tar.gz', files)
    main(['--from', path, '--out', str(tmp_path / 'd')])
    said = capsys.readouterr().out
    assert 'not the official file' in said and f'{number} classes' in said
    meta = json.loads((tmp_path / 'd' / 'meta.json').read_text())
    assert meta['classes'] == [f'class {i}' for i in range(number)] and meta['storage'] == 'arrays'
    for split, mark in (('train', 'train' if number == 100 else 'data_batch'), ('test', 'test')):
        batches = [b for n, b in files.items() if mark in n]
        rows = np.concatenate([b[b'data'] for b in batches])
        x, y = np.load(tmp_path / 'd' / f'{split}.images.npy'), np.load(tmp_path / 'd' / f'{split}.labels.npy')
        assert meta['splits'][split] == {'count': len(rows), 'height': 32, 'width': 32}
        assert x.dtype == np.uint8 and y.dtype == np.int64
        assert x.shape == (len(rows), 32, 32, 3) and (x.transpose(0, 3, 1, 2).reshape(-1, 3072) == rows).all()
        assert y.tolist() == sum((b[b'labels' if number == 10 else b'fine_labels'] for b in batches), [])
    assert '--overwrite' in fails(capsys, main, '--from', path, '--out', str(tmp_path / 'd'))
    main(['--from', path, '--out', str(tmp_path / 'd'), '--overwrite'])


class Evil:
    def __reduce__(self):
        return os.system, ('touch evil_was_here',)


@pytest.mark.parametrize('change, message', [
    ({'data_batch_2': pickle.dumps(Evil())}, 'data_batch_2 is not a pickled dict.*asks for posix.system'),
    ({'data_batch_2': pickle.dumps({b'data': np.array([Evil()], dtype=object)})}, 'asks for posix.system'),
    ({'data_batch_2': b'junk'}, 'data_batch_2 is not a pickled dict'),
    ({'data_batch_2': pickle.dumps([1])}, 'not a pickled dict'),
    ({'data_batch_3': {b'data': np.zeros((2, 3072), np.uint8), b'labels': [1, 10]}}, 'data_batch_3 has label 10'),
    ({'data_batch_3': {b'data': np.zeros((2, 3072), np.uint8), b'labels': [1, -1]}}, 'label -1'),
    ({'data_batch_3': {b'data': np.zeros((2, 3072), np.uint8), b'labels': [1]}}, 'no list of 2 whole numbers'),
    ({'data_batch_3': {b'data': np.zeros((2, 3072), np.float32), b'labels': [1, 1]}}, r'bytes of shape \(N, 3072\)'),
    ({'data_batch_3': {b'data': np.zeros((2, 3071), np.uint8), b'labels': [1, 1]}}, r'bytes of shape \(N, 3072\)'),
    ({'batches.meta': {b'label_names': [b'one']}}, 'does not list 10 label_names'),
    ({'test_batch': None}, 'has no test_batch')])
def test_a_wrong_or_malicious_cifar_archive_is_refused_by_name(tmp_path, capsys, monkeypatch, change, message):
    monkeypatch.chdir(tmp_path)
    files = cifar_files(10) | {f'cifar-10-batches-py/{n}': c for n, c in change.items()}
    path = cifar_tar(tmp_path / 'c.tar.gz', {n: c for n, c in files.items() if c is not None})
    line = fails(capsys, cifar10.main, '--from', path, '--out', str(tmp_path / 'd'))
    assert path in line and re.search(message, line), line
    assert not (tmp_path / 'd').exists() and not (tmp_path / 'evil_was_here').exists()


def test_other_files_than_cifar_are_refused(tmp_path, capsys):
    hundred = cifar_tar(tmp_path / 'c100.tar.gz', cifar_files(100))
    (tmp_path / 'text').write_text('no archive')
    (tmp_path / 'empty').write_bytes(b'')
    whole = (tmp_path / 'c100.tar.gz').read_bytes()
    (tmp_path / 'cut').write_bytes(whole[:len(whole) // 2])
    for name, message in ((hundred, 'has no batches.meta; expected cifar-10-python.tar.gz'), ('text', 'no tar archive'),
                          ('empty', 'no tar archive'), ('cut', 'cut off'), ('nowhere', 'no such file'),
                          ('', 'no such file')):
        assert message in fails(capsys, cifar10.main, '--from', str(tmp_path / name), '--out', str(tmp_path / 'd'))
    assert not (tmp_path / 'd').exists()
