"""prepare/flowers102.py and pets.py on small copies of the published files."""
import hashlib
import io

import pytest
import scipy.io
from helpers import fails
from small_files import jpeg, labels, names, read, tar, tree

from prepare import flowers102, pets

def mat(**arrays):
    """A MATLAB file as the published ones are: version 5, compressed."""
    file = io.BytesIO()
    scipy.io.savemat(file, {name: [values] for name, values in arrays.items()}, do_compression=True)
    return file.getvalue()


def flower_files():
    """The three files of a dataset with six flowers of three species."""
    pictures = {f'jpg/image_{i:05}.jpg': jpeg(30 + i, 20) for i in range(1, 7)}
    return pictures, {'setid.mat': mat(trnid=[6, 1], valid=[2], tstid=[5, 4, 3]),
                      'imagelabels.mat': mat(labels=[1, 1, 77, 102, 77, 102])}


@pytest.fixture
def publish(monkeypatch):
    """publish(script, folder): the small files in the folder are the published ones."""
    def publish(script, folder):
        for name in script.FILES:
            monkeypatch.setitem(script.FILES, name, hashlib.md5((folder / name).read_bytes()).hexdigest())
    return publish


def flowers(folder, pictures):
    tar(tree(folder, flower_files()[1]) / '102flowers.tgz', pictures, 'gz')
    return ['--from', str(folder), '--out', str(folder.parent / 'd'), '--workers', '0']


def test_flowers(publish, tmp_path, capsys):
    pictures = flower_files()[0]
    words = flowers(tmp_path / 'f', pictures)
    publish(flowers102, tmp_path / 'f')
    flowers102.main(words + ['--size', '20'])
    meta, splits = read(tmp_path / 'd')
    assert meta['classes'] == [str(i) for i in range(1, 103)]
    assert {s: [(n, i) for n, i, _ in p] for s, p in splits.items()} == {
        'train': [('image_00001.jpg', 0), ('image_00006.jpg', 101)], 'val': [('image_00002.jpg', 0)],
        'test': [('image_00003.jpg', 76), ('image_00004.jpg', 101), ('image_00005.jpg', 76)]}
    assert splits['val'][0][2] == pictures['jpg/image_00002.jpg']
    flowers(tmp_path / 'f', dict(list(pictures.items())[:4]))
    publish(flowers102, tmp_path / 'f')
    assert 'image_00005.jpg' in fails(capsys, flowers102.main, *words, '--overwrite')
    (tmp_path / 'f' / 'setid.mat').unlink()
    assert 'setid.mat' in fails(capsys, flowers102.main, *words, '--overwrite')
    assert read(tmp_path / 'd')[0] == meta  # what was there stays


def test_scipy_reads_the_published_files_alone(publish, tmp_path, capsys, monkeypatch):
    """A flipped bit in a .mat file can end the process in SciPy, without a word (its pull request 25349)."""
    monkeypatch.setattr('scipy.io.loadmat', lambda *a: pytest.fail('it was read'))
    words = flowers(tmp_path / 'downloads', {})
    publish(flowers102, tmp_path / 'downloads')
    for name in ('setid.mat', 'imagelabels.mat'):
        whole = (tmp_path / 'downloads' / name).read_bytes()
        for changed in (whole[:100], whole[:-1] + bytes([whole[-1] ^ 1])):
            tree(tmp_path / 'downloads', {name: changed})
            for where in (words[:2], []):  # given, and changed since it was fetched
                assert f'{name} is not the published file' in fails(capsys, flowers102.main, *where, *words[2:])
        tree(tmp_path / 'downloads', {name: whole})
    assert not (tmp_path / 'd').exists()


def test_pets(publish, tmp_path, capsys):
    lists = {'annotations/trainval.txt': b'great_pyrenees_2 2 2 1\nAbyssinian_1 1 1 1\nAbyssinian_2 1 1 1\n',
             'annotations/test.txt': b'great_pyrenees_1 2 2 1\n'}
    stems = ['Abyssinian_1', 'Abyssinian_2', 'Abyssinian_3', 'great_pyrenees_1', 'great_pyrenees_2']
    pictures = {f'images/{s}.jpg': jpeg(kind='GIF' if s == 'Abyssinian_2' else 'JPEG') for s in stems}
    pictures['images/Abyssinian_1.mat'] = b'not a picture'  # the official archive has such files
    folder = tmp_path / 'p'
    folder.mkdir()
    words = ['--from', str(folder), '--out', str(tmp_path / 'd'), '--workers', '0', '--size', '20']
    tar(folder / 'annotations.tar.gz', lists, 'gz')
    assert 'images.tar.gz' in fails(capsys, pets.main, *words)
    tar(folder / 'images.tar.gz', pictures, 'gz')
    assert 'is not the published file' in fails(capsys, pets.main, *words) and not (tmp_path / 'd').exists()
    publish(pets, folder)
    pets.main(words)
    meta, splits = read(tmp_path / 'd')
    assert meta['classes'] == ['Abyssinian', 'great pyrenees']
    assert names(splits['train']) == ['Abyssinian_1.jpg', 'Abyssinian_2.jpg', 'great_pyrenees_2.jpg']
    assert names(splits['test']) == ['great_pyrenees_1.jpg']
    assert labels(splits['train']) == [0, 0, 1] and labels(splits['test']) == [1]
