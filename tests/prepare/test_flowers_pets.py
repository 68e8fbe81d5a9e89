"""prepare/flowers102.py and pets.py on small copies of the published files."""
import hashlib
import io

import pytest
import scipy.io
from helpers import fails
from small_files import jpeg, labels, names, read, tar, tree

from prepare import flowers102, pets

# ---- flowers


def mat(**arrays):
    """A MATLAB file as the published ones are: version 5, compressed."""
    file = io.BytesIO()
    scipy.io.savemat(file, {name: [values] for name, values in arrays.items()}, do_compression=True)
    return file.getvalue()


def flower_files(**change):
    """The three files of a dataset with six flowers of three species."""
    pictures = {f'jpg/image_{i:05}.jpg': jpeg(30 + i, 20) for i in range(1, 7)}
    return pictures, {'setid.mat': mat(trnid=[6, 1], valid=[2], tstid=[5, 4, 3]),
                      'imagelabels.mat': mat(labels=[1, 1, 77, 102, 77, 102])}


@pytest.fixture
def published(monkeypatch):
    """The small copies are the published files."""
    for name, content in flower_files()[1].items():
        monkeypatch.setitem(flowers102.FILES, name, hashlib.md5(content).hexdigest())


def test_flowers(published, tmp_path, capsys):
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
    tar(folder / '102flowers.tgz', dict(list(pictures.items())[:4]), 'gz')
    assert 'lacks 2 pictures, such as image_00005.jpg' in fails(capsys, flowers102.main, *words, '--overwrite')
    (folder / 'setid.mat').unlink()
    assert 'setid.mat: no such file' in fails(capsys, flowers102.main, *words, '--overwrite')
    assert read(tmp_path / 'd')[0] == meta  # what was there stays


def test_scipy_reads_the_published_files_alone(published, tmp_path, capsys, monkeypatch):
    """A flipped bit in a .mat file can end the process in SciPy, without a word."""
    monkeypatch.setattr('scipy.io.loadmat', lambda *a: pytest.fail('it was read'))
    whole = flower_files()[1]
    folder = tree(tmp_path / 'f', whole | {'102flowers.tgz': b''})
    for name in whole:
        for at in (0, 130, len(whole[name]) // 2, -1):
            content = bytearray(whole[name])
            content[at] ^= 1
            for changed in (bytes(content), whole[name][:at]):
                tree(folder, whole | {name: changed})
                told = fails(capsys, flowers102.main, '--from', str(folder), '--out', str(tmp_path / 'd'))
                assert f'{name}: not the expected file (its md5 is not' in told and 'get it again' in told
    tree(tmp_path / 'downloads', whole | {'102flowers.tgz': b'', 'imagelabels.mat': changed})  # since it was fetched
    told = fails(capsys, flowers102.main, '--out', str(tmp_path / 'd'))
    assert 'imagelabels.mat is not the published file' in told and 'remove it, and run this again' in told
    assert not (tmp_path / 'd').exists()


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
