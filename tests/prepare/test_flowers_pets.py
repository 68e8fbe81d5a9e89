"""prepare/flowers102.py, pets.py and lib/matlab.py on small copies of the published files."""
import struct
import zlib

import numpy as np
import pytest
from helpers import fails
from small_files import jpeg, labels, names, read, tar, tree

from prepare import flowers102, pets
from prepare.lib import matlab

# ---- flowers


def element(kind, content, order='<', small=False):
    if small:
        return struct.pack(order + 'I', len(content) << 16 | kind) + content.ljust(4, b'\0')
    return struct.pack(order + 'II', kind, len(content)) + content + b'\0' * (-len(content) % 8)


def matrix(name, values, stored, order='<', array_class=6):
    """A miMATRIX element: doubles, stored in a narrower type as MATLAB does."""
    kind = {'u1': 2, 'u2': 4, 'f8': 9}[stored]
    values = np.atleast_2d(values)
    content = values.astype(order + stored).tobytes(order='F')
    flags, shape = struct.pack(order + 'II', array_class, 0), struct.pack(order + 'ii', *values.shape)
    parts = [element(6, flags, order), element(5, shape, order), element(1, name.encode(), order, small=len(name) <= 4),
             element(kind, content, order, small=len(content) <= 4)]
    return element(14, b''.join(parts), order)


def mat(*matrices, compressed=True, order='<'):
    body = b''
    for m in matrices:
        packed = zlib.compress(m)
        body += struct.pack(order + 'II', 15, len(packed)) + packed if compressed else m  # not filled up to 8 bytes
    return b'MATLAB 5.0 MAT-file'.ljust(124) + (b'\0\1IM' if order == '<' else b'\1\0MI') + body


@pytest.mark.parametrize('compressed', [False, True])
@pytest.mark.parametrize('order', '<>')
def test_matlab_files_are_read(tmp_path, compressed, order):
    arrays = {'labels': ([[1, 2, 255]], 'u1'), 'b': ([[7]], 'u2'), 'wide': ([[1, 2, 3], [40000, 5, 6]], 'u2'),
              'real': ([[0.5], [2e9]], 'f8')}
    text = matrix('text', [[65]], 'u2', order, array_class=4)  # no numbers: passed over
    matrices = [text] + [matrix(name, values, stored, order) for name, (values, stored) in arrays.items()]
    (tmp_path / 'f.mat').write_bytes(mat(*matrices, compressed=compressed, order=order))
    found = matlab.load_mat(tmp_path / 'f.mat')
    assert list(found) == list(arrays)
    for name, (values, stored) in arrays.items():
        assert found[name].tolist() == values and found[name].dtype == np.dtype(order + stored)


def test_damaged_matlab_files_are_refused(tmp_path):
    for compressed in (False, True):
        whole = mat(matrix('labels', [range(50)], 'u1'), compressed=compressed)
        for length in (0, 100, 140, len(whole) // 2 + 64, len(whole) - 5):
            (tmp_path / 'f.mat').write_bytes(whole[:length])
            with pytest.raises(ValueError, match='f.mat is (no|a damaged) MATLAB file'):
                matlab.load_mat(tmp_path / 'f.mat')


def flower_files(**change):
    """The three files of a dataset with six flowers of three species."""
    pictures = {f'jpg/image_{i:05}.jpg': jpeg(30 + i, 20) for i in range(1, 7)}
    arrays = {'trnid': [6, 1], 'valid': [2], 'tstid': [5, 4, 3], 'labels': [1, 1, 77, 102, 77, 102]} | change
    setid = mat(*(matrix(n, [arrays[n]], 'u2') for n in ('trnid', 'valid', 'tstid')))
    return pictures, {'setid.mat': setid, 'imagelabels.mat': mat(matrix('labels', [arrays['labels']], 'u1'))}


def test_flowers(tmp_path, capsys):
    pictures, files = flower_files()
    folder = tree(tmp_path / 'f', files)
    tar(folder / '102flowers.tgz', pictures, 'gz')
    words = ['--from', str(folder), '--out', str(tmp_path / 'd'), '--workers', '0']
    flowers102.main(words + ['--size', '20'])
    meta, splits = read(tmp_path / 'd')
    assert meta['classes'] == [str(i) for i in range(1, 103)]
    assert {s: [(n, i) for n, i, _ in p] for s, p in splits.items()} == {
        'train': [('image_00001.jpg', 0), ('image_00006.jpg', 101)], 'val': [('image_00002.jpg', 0)],
        'test': [('image_00003.jpg', 76), ('image_00004.jpg', 101), ('image_00005.jpg', 76)]}
    assert splits['val'][0][2] == pictures['jpg/image_00002.jpg']
    capsys.readouterr()
    for change, message in (({'labels': [1, 1, 77, 102, 77, 103]}, 'not from 1 to 102'), ({'valid': [1]}, 'two splits'),
                            ({'valid': [7]}, 'picture 7 of 6')):
        tree(folder, flower_files(**change)[1])
        assert message in fails(capsys, flowers102.main, *words, '--overwrite')
    tree(folder, files | {'setid.mat': files['imagelabels.mat']})
    assert 'no array trnid, only labels' in fails(capsys, flowers102.main, *words, '--overwrite')
    tree(folder, files)
    tar(folder / '102flowers.tgz', dict(list(pictures.items())[:4]), 'gz')
    assert 'lacks 2 pictures, such as image_00005.jpg' in fails(capsys, flowers102.main, *words, '--overwrite')
    (folder / 'setid.mat').unlink()
    assert 'setid.mat: no such file' in fails(capsys, flowers102.main, *words, '--overwrite')
    assert read(tmp_path / 'd')[0] == meta  # what was there stays


# ---- pets


def test_pets(tmp_path, capsys):
    lists = {'annotations/trainval.txt': 'great_pyrenees_2 2 2 1\nAbyssinian_1 1 1 1\nAbyssinian_2 1 1 1\n',
             'annotations/test.txt': 'great_pyrenees_1 2 2 1\n'}
    stems = ['Abyssinian_1', 'Abyssinian_2', 'Abyssinian_3', 'great_pyrenees_1', 'great_pyrenees_2']
    pictures = {f'images/{s}.jpg': jpeg(kind='GIF' if s == 'Abyssinian_2' else 'JPEG') for s in stems}
    pictures['images/Abyssinian_1.mat'] = b'not a picture'  # the official archive has such files
    folder = tmp_path / 'p'
    folder.mkdir()
    words = ['--from', str(folder), '--out', str(tmp_path / 'd'), '--workers', '0', '--size', '20']

    def write(**change):
        texts = lists | {f'annotations/{name}.txt': text for name, text in change.items()}
        tar(folder / 'annotations.tar.gz', {n: t.encode() for n, t in texts.items() if t is not None}, 'gz')

    write()
    assert 'images.tar.gz: no such file' in fails(capsys, pets.main, *words)
    tar(folder / 'images.tar.gz', pictures, 'gz')
    pets.main(words)
    meta, splits = read(tmp_path / 'd')
    assert meta['classes'] == ['Abyssinian', 'great pyrenees']
    assert names(splits['train']) == ['Abyssinian_1.jpg', 'Abyssinian_2.jpg', 'great_pyrenees_2.jpg']
    assert names(splits['test']) == ['great_pyrenees_1.jpg']
    assert labels(splits['train']) == [0, 0, 1] and labels(splits['test']) == [1]
    capsys.readouterr()
    for change, message in (({'test': None}, 'no annotations/test.txt'),
                            ({'test': 'Abyssinian_3 2 1 1'}, 'does not fit'),
                            ({'test': 'Abyssinian_1 1 1 1'}, 'does not fit'), ({'test': 'nonsense'}, 'does not fit'),
                            ({'test': 'pug_1 4 2 1'}, 'not numbered'),
                            ({'test': 'Abyssinian_9 1 1 1'}, 'lacks 1 pictures, such as Abyssinian_9')):
        write(**change)
        assert message in fails(capsys, pets.main, *words, '--overwrite')
