"""prepare/imagefolder.py."""
import hashlib
import os
import shutil
import sys

import numpy as np
import pytest
from helpers import fails
from small_files import decoded, jpeg, labels, names, read, tree

from prepare import imagefolder


def folder_files(train=4, val=2, classes=('cat', 'dog')):
    return {f'{split}/{c}/{split}_{i:03}_{c}.{"png" if i == 1 else "JPG"}': jpeg(kind='PNG' if i == 1 else 'JPEG')
            for split, n in (('train', train), ('val', val)) for c in classes for i in range(n)}


@pytest.mark.parametrize('val', ['val', 'valid'])
def test_image_folder(tmp_path, capsys, val):
    others = ('train/cat/.hidden.jpg', 'train/cat/notes.txt', 'train/.git/x.jpg', 'train/list.csv')
    files = folder_files() | dict.fromkeys(others, b'')
    root = tree(tmp_path / 'f', {n.replace('val/', val + '/'): c for n, c in files.items()})
    imagefolder.main([str(root), '--out', str(tmp_path / 'd'), '--workers', '0', '--size', '20'])
    meta, splits = read(tmp_path / 'd')
    assert meta['classes'] == ['cat', 'dog'] and list(splits) == ['train', 'val']
    assert [f'train/{n}' for n in names(splits['train'])] == [n for n in folder_files() if n.startswith('train')]
    assert [f'val/{n}' for n in names(splits['val'])] == [n for n in folder_files() if n.startswith('val')]
    assert labels(splits['train']) == [0] * 4 + [1] * 4 and labels(splits['val']) == [0, 0, 1, 1]
    assert all(min(decoded(c).size) == 20 for p in splits.values() for _, _, c in p)
    assert f'ignored 2 files in {root}/train' in capsys.readouterr().out
    assert '--overwrite' in fails(capsys, imagefolder.main, str(root), '--out', str(tmp_path / 'd'))


def test_scripts_take_the_number_of_channels(tmp_path, capsys):
    words = [str(tree(tmp_path / 'f', folder_files())), '--out', str(tmp_path / 'd'), '--workers', '0', '--channels']
    imagefolder.main([*words, '1'])
    meta, splits = read(tmp_path / 'd')
    assert meta['channels'] == 1 and all(decoded(c, 'L') for p in splits.values() for _, _, c in p)
    assert "--channels: invalid choice: 2 (choose from 1, 3)" in fails(capsys, imagefolder.main, *words, '2')


def test_a_share_is_held_out_by_name(tmp_path):
    files = {f'{c}/{i}.jpg': jpeg(8, 8) for c, n in (('a', 20), ('b', 3)) for i in range(n)}
    root = tree(tmp_path / 'f', files)
    (tmp_path / 'g').mkdir()
    held = {}
    copy = shutil.copytree(root, tmp_path / 'g' / 'h')
    for out, source, share in (('1', root, '0.2'), ('2', copy, '0.2'), ('3', root, '0.4')):
        imagefolder.main([str(source), '--val', share, '--out', str(tmp_path / out), '--workers', '0'])
        splits = read(tmp_path / out)[1]
        held[out] = names(splits['val'])
        assert sorted(names(splits['train']) + held[out]) == sorted(files)
    assert held['1'] == held['2'] and set(held['1']) < set(held['3'])
    by_hash = sorted(files, key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    expected = [[n for n in by_hash if n.startswith(c)][:count] for c, count in (('a', 4), ('b', 1))]
    assert held['1'] == sorted(expected[0]) + expected[1]


def test_beside_a_test_folder_a_share_is_held_out_too(tmp_path):
    files = {f'{split}/{c}/{i}.jpg': jpeg(8, 8) for split in ('train', 'test') for c in 'ab' for i in range(10)}
    words = str(tree(tmp_path / 'f', files)), '--val', '0.2', '--out', str(tmp_path / 'd'), '--workers', '0'
    imagefolder.main([*words])
    splits = read(tmp_path / 'd')[1]
    assert {name: len(names(split)) for name, split in splits.items()} == {'train': 16, 'val': 4, 'test': 20}
    assert not set(names(splits['train'])) & set(names(splits['val']))


@pytest.mark.skipif(not sys.platform.startswith('linux'), reason='names of files are bytes on Linux alone')
def test_names_that_are_not_utf_8(tmp_path):
    root = tree(tmp_path / 'f', {f'a/{i}.jpg': jpeg(8, 8) for i in range(3)})
    (root / 'a' / '0.jpg').rename(os.fsdecode(os.fsencode(root / 'a') + b'/caf\xe9.jpg'))
    imagefolder.main([str(root), '--out', str(tmp_path / 'd'), '--workers', '0'])
    kept = [np.load(tmp_path / 'd' / f'{split}.names.npy') for split in ('train', 'val')]
    assert [len(names) for names in kept] == [2, 1] and b'a/caf\xe9.jpg' in np.concatenate(kept)


def test_mistakes_with_folders_write_nothing(tmp_path, capsys):
    picture = jpeg(8, 8)
    cases = {
        'extra': (folder_files() | {'val/emu/1.jpg': picture}, 'class emu'),
        'missing': (folder_files() | {'train/emu/1.jpg': picture, 'train/fox/1.jpg': picture}, 'class emu'),
        'empty': (folder_files() | {'train/emu/readme.txt': b''}, 'train/emu holds no picture'),
        'deep': ({f'top/{n}': c for n, c in folder_files().items()}, 'expected FOLDER/train/'),
        'flat': ({'1.jpg': picture}, 'no class folder'), 'flat2': ({'train/1.jpg': picture}, 'no class folder'),
        'untrained': ({'val/a/1.jpg': picture}, 'no folder train'),
        'single': ({'a/1.jpg': picture}, 'class a has one picture only'),
        'twice': (folder_files() | {'valid/cat/1.jpg': picture}, 'both val and valid')}
    for name, (files, message) in cases.items():
        line = fails(capsys, imagefolder.main, str(tree(tmp_path / name, files)), '--out', str(tmp_path / 'd'))
        assert message in line, line
    (tmp_path / 'x.zip').write_bytes(b'PK')
    for name in ('x.zip', 'nowhere'):
        assert name in fails(capsys, imagefolder.main, str(tmp_path / name), '--out', str(tmp_path / 'd'))
    root = str(tree(tmp_path / 'ok', folder_files()))
    assert '--out' in fails(capsys, imagefolder.main, root)
    assert '--val' in fails(capsys, imagefolder.main, root, '--val', '1', '--out', str(tmp_path / 'd'))
    assert not (tmp_path / 'd').exists()


def test_bad_files_in_a_folder(tmp_path, capsys):
    whole = jpeg(100, 100)
    bad = {'val/cat/broken.jpg': whole[:5000], 'train/dog/zero.jpg': b'', 'train/cat/text.jpg': b'no picture'}
    root = tree(tmp_path / 'f', folder_files() | bad)
    words = [str(root), '--out', str(tmp_path / 'd'), '--workers', '0', '--size', '8']
    with pytest.raises(ValueError, match='3 of 15 pictures cannot be decoded'):
        imagefolder.main(words)
    err = capsys.readouterr().err
    assert all(f'left out {root}/{name}: ' in err for name in bad) and len(err.splitlines()) == 3
    assert not (tmp_path / 'd').exists()
    imagefolder.main(words + ['--max_bad', '0.2'])
    assert '3 of 15 pictures could not be decoded' in capsys.readouterr().out
    assert [len(p) for p in read(tmp_path / 'd')[1].values()] == [8, 4]
