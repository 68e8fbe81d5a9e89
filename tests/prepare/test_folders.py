"""Pictures in folders and archives: prepare/imagefolder.py, imagenet.py, flowers102.py and pets.py."""
import hashlib
import io
import shutil

import pytest
import scipy.io
from downloads import tar
from helpers import fails
from small_files import decoded, jpeg, names, read, tree

from engine.mistakes import one_line_errors
from prepare import flowers102, imagefolder, imagenet, pets

FOLDER = {f'{split}/{c}/{i}{c}.{"png" if i == 1 else "JPG"}': jpeg(kind='PNG' if i == 1 else 'JPEG')
          for split, n in (('train', 4), ('val', 2)) for c in ('cat', 'dog') for i in range(n)}
OTHERS = dict.fromkeys(('train/cat/.hidden.jpg', 'train/cat/notes.txt', 'train/.git/x.jpg', 'train/list.csv'), b'')


@pytest.mark.parametrize('val, channels, mode', [('val', '3', 'RGB'), ('valid', '1', 'L')])
def test_image_folder(tmp_path, val, channels, mode):
    root = tree(tmp_path / 'f', {n.replace('val/', val + '/'): c for n, c in (FOLDER | OTHERS).items()})
    imagefolder.main([str(root), '--out', f'{tmp_path}/d', '--workers', '0', '--size', '20', '--channels', channels])
    meta, splits = read(tmp_path / 'd')
    assert meta['classes'] == ['cat', 'dog'] and meta['channels'] == int(channels)
    assert [f'{split}/{name}' for split in splits for name in names(splits[split])] == list(FOLDER)
    assert all(label == ('/dog/' in f'/{name}') for pictures in splits.values() for name, label, _ in pictures)
    assert all(min(decoded(c, mode).size) == 20 for pictures in splits.values() for *_, c in pictures)


def test_a_share_is_held_out_by_name(tmp_path):
    files = {f'{c}/{i}.jpg': jpeg(8, 8) for c, n in (('a', 20), ('b', 3)) for i in range(n)}
    tested = {f'train/{n}': c for n, c in files.items()} | {f'test/{c}/1.jpg': jpeg(8, 8) for c in 'ab'}
    places = [tree(tmp_path / 'f', files), tree(tmp_path / 'g/h', tested), tree(tmp_path / 'f', {})]
    held = []
    for i, (place, share) in enumerate(zip(places, ('0.2', '0.2', '0.4'))):
        imagefolder.main([str(place), '--val', share, '--out', str(tmp_path / f'{i}'), '--workers', '0'])
        splits = read(tmp_path / f'{i}')[1]
        held.append(names(splits['val']))
        assert sorted(names(splits['train']) + held[-1]) == sorted(files) and ('test' in splits) == (i == 1)
    assert held[0] == held[1] and {*held[0]} < {*held[2]}
    by_hash = sorted(files, key=lambda name: hashlib.sha256(name.encode()).hexdigest())  # as the script's page says
    assert {*held[0]} == {*[n for n in by_hash if n[0] == 'a'][:4], *[n for n in by_hash if n[0] == 'b'][:1]}


ROWS = {'1.jpg': 'cat', 'deep/2.png': 'dog', '3.jpg': 'dog', 'deep/4.jpg': 'cat', '5.jpg': 'no, not a cat',
        '6.jpg': 'no, not a cat'}
TABLE = 'file,class\n' + ''.join(f'{file},"{label}"\n' for file, label in ROWS.items())
TABLES = {
    'plain': TABLE.encode(),
    'of a spreadsheet': TABLE.replace('\n', '\r\n').encode('utf-8-sig'),
    'with more columns': b'id,class,file\n' + b''.join(
        f'7,"{label}",{file}\n'.encode() for file, label in ROWS.items()),
}


@pytest.mark.parametrize('kind', TABLES)
def test_classes_from_a_table(kind, tmp_path, capsys):
    names_of_files = [*ROWS, 'deep/not_in_it.jpg', 'train/cat/7.jpg']
    tree(tmp_path, {f'f/{name}': jpeg() for name in names_of_files} | {'labels.csv': TABLES[kind]})
    imagefolder.main([f'{tmp_path}/f', '--labels', f'{tmp_path}/labels.csv', '--out', f'{tmp_path}/d', '--workers', '0'])
    meta, splits = read(tmp_path / 'd')
    assert meta['classes'] == ['cat', 'dog', 'no, not a cat'] and len(splits['val']) == 3
    of_file = {name: meta['classes'][label] for pictures in splits.values() for name, label, _ in pictures}
    assert of_file == ROWS
    said = capsys.readouterr().err
    assert 'not_in_it.jpg' in said and '7.jpg' in said


def test_in_the_folder_itself_what_is_taken_is_not_left_out(tmp_path, monkeypatch, capsys):
    tree(tmp_path, {f'f/{name}': jpeg() for name in ROWS} | {'f/labels.csv': TABLES['plain']})
    monkeypatch.chdir(tmp_path / 'f')
    imagefolder.main(['.', '--labels', 'labels.csv', '--out', '../d', '--workers', '0'])
    assert 'left out 1 ' in capsys.readouterr().err                        # labels.csv


@pytest.mark.parametrize('content, named', [
    ((TABLE + '1.jpg,cat\n').encode(), '1.jpg'), ((TABLE + './deep/../1.jpg,dog\n').encode(), '1.jpg'),
    (b'file,class\n1.jpg\n', '1.jpg'), (b'file,class\n3.jpg,cat\n1.jpg,\n', '1.jpg'), (b'1.jpg,cat\n3.jpg,dog\n', 'file'),
    (b'file;class\n1.jpg;cat\n', 'file'), ('file,class\n1.jpg,caf\xe9\n'.encode('latin1'), 'labels.csv'), (b'', 'train'),
    (None, 'labels.csv'), (b'file,class\n1,cat\n3,dog\n', '--max_bad')])
def test_a_table_that_does_not_fit_is_refused(content, named, tmp_path, capsys):
    """Rows twice, also in other words, without a class, without a header, of another encoding, without endings."""
    tree(tmp_path / 'f', {file: jpeg() for file in ROWS})
    if content is not None:
        tree(tmp_path, {'labels.csv': content})
    words = f'{tmp_path}/f', '--labels', f'{tmp_path}/labels.csv', '--out', f'{tmp_path}/d', '--workers', '0'
    with pytest.raises(SystemExit), one_line_errors():
        imagefolder.main(words)
    assert named in capsys.readouterr().err.splitlines()[-1] and not (tmp_path / 'd').exists()


# ---- ImageNet

WNIDS = ('n01440764', 'n02000001', 'n03000002')
VAL = {f'ILSVRC2012_val_{i:08}.JPEG': (WNIDS[(2 * i + 1) % 3], jpeg(24, 20)) for i in range(1, 6)}
TRAIN = {f'{w}/{w}_{i}.JPEG': jpeg(24, 20) for w in WNIDS for i in range(3)}
SOLUTION = 'ImageId,x\n' + ''.join(f'{n[:-5]},{w} 1 2 3 4 {w} 5\n' for n, (w, _) in reversed(VAL.items()))


def nested(files):
    """A tar of WNID.tar."""
    wnids = dict.fromkeys(name.split('/')[0] for name in files)
    return tar({f'whole/{w}.tar': tar({n[len(w) + 1:]: c for n, c in files.items() if n.startswith(w)}) for w in wnids})


def unpacked(prefix=''):
    return {f'{prefix}train/{n}': c for n, c in TRAIN.items()}


TARS = {imagenet.TRAIN_TAR: nested(TRAIN), imagenet.VAL_TAR: tar({n: c for n, (_, c) in reversed(VAL.items())})}
LAYOUTS = {
    'class folders': unpacked() | {f'val/{w}/{n}': c for n, (w, c) in VAL.items()},
    'kaggle': {imagenet.SOLUTION: SOLUTION.encode()} | unpacked('ILSVRC/Data/CLS-LOC/')
    | {f'ILSVRC/Data/CLS-LOC/val/{n}': c for n, (_, c) in VAL.items()},
    'tars': TARS | {imagenet.SOLUTION: SOLUTION.encode()},
    'synsets': TARS | {imagenet.SYNSETS: ''.join(f'{w}\n' for w, _ in VAL.values()).encode()}}


@pytest.mark.parametrize('layout', LAYOUTS)
def test_imagenet_in_every_layout(tmp_path, layout):
    tree(tmp_path / 'i', LAYOUTS[layout])
    imagenet.main(['--from', f'{tmp_path}/i', '--out', f'{tmp_path}/d', '--workers', '0', '--size', '20'])
    meta, splits = read(tmp_path / 'd')
    assert meta['classes'] == list(WNIDS)
    assert splits['train'] == [(n, WNIDS.index(n[:9]), c) for n, c in TRAIN.items()]
    folder = '{}/' * (layout == 'class folders')
    assert splits['val'] == [(folder.format(w) + n, WNIDS.index(w), c) for n, (w, c) in VAL.items()]


def test_imagenet_21k_from_archives_and_folders(tmp_path):
    files = {f'{c}/{c}_{i}.JPEG': jpeg(8, 8) for c, n in {'n2': 30, 'n1': 30, 'n3': 1}.items() for i in range(n)}
    first = set()
    for i, (source, held) in enumerate((
            ('winter21_whole.tar.gz', {'winter21_whole.tar.gz': tar({'n4.tar': b'', 'x.tar': nested(files)}, 'gz')}),
            ('fall11_whole.tar', {'fall11_whole.tar': tar(files)}), ('f', {f'f/{n}': c for n, c in files.items()}))):
        place = tree(tmp_path, held) / source
        imagenet.main(['--from', str(place), '--out', f'{tmp_path}/{i}', '--workers', '0', '--val', '0.2'])
        meta, splits = read(tmp_path / str(i))
        assert meta['classes'] == ['n1', 'n2', 'n3'] and sorted(sum(map(names, splits.values()), [])) == sorted(files)
        assert all(meta['classes'][label] == name[:2] for p in splits.values() for name, label, _ in p)
        val = set(names(splits['val']))
        first = first or val
        assert 3 < len(val) < 25 and 'n3/n3_0.JPEG' not in val and len(val ^ first) <= 2 * (i == 2)  # its order differs


# ---- published archives of pictures


def mat(**arrays):
    """A MATLAB file as the published ones are: version 5, compressed."""
    file = io.BytesIO()
    scipy.io.savemat(file, {name: [values] for name, values in arrays.items()}, do_compression=True)
    return file.getvalue()


FLOWERS = {f'jpg/image_{i:05}.jpg': jpeg(30 + i, 20) for i in range(1, 7)}
PETS = {f'images/{stem}.jpg': jpeg() for stem in ('Abyssinian_1', 'Abyssinian_2', 'Abyssinian_3', 'great_pyrenees_1')}
ARCHIVES = {
    flowers102: {'102flowers.tgz': tar(FLOWERS, 'gz'), 'setid.mat': mat(trnid=[6, 1], valid=[2], tstid=[5, 4, 3]),
                 'imagelabels.mat': mat(labels=[1, 1, 77, 102, 77, 102])},
    pets: {'images.tar.gz': tar(PETS | {'images/x.mat': b'not a picture'}, 'gz'), 'annotations.tar.gz': tar({
        'annotations/trainval.txt': b'great_pyrenees_1 2 2 1\nAbyssinian_1 1 1 1\n',
        'annotations/test.txt': b'Abyssinian_2 1 1 1\n'}, 'gz')}}
EXPECTED = {
    flowers102: [{'train': [('image_00001.jpg', '1'), ('image_00006.jpg', '102')], 'val': [('image_00002.jpg', '1')],
                  'test': [('image_00003.jpg', '77'), ('image_00004.jpg', '102'), ('image_00005.jpg', '77')]}, 102],
    pets: [{'train': [('Abyssinian_1.jpg', 'Abyssinian'), ('great_pyrenees_1.jpg', 'great pyrenees')],
            'test': [('Abyssinian_2.jpg', 'Abyssinian')]}, 2]}


@pytest.mark.parametrize('script', ARCHIVES)
def test_published_archives_and_no_others(script, tmp_path, capsys, monkeypatch):
    """A flipped bit in a .mat file can end the process in SciPy, without a word (its pull request 25349): it is
    compared first."""
    folder = tree(tmp_path / 'downloads', ARCHIVES[script])
    for name, content in ARCHIVES[script].items():
        monkeypatch.setitem(script.FILES, name, hashlib.md5(content).hexdigest())
    words = '--out', f'{tmp_path}/d', '--workers', '0', '--size', '20'
    script.main(['--from', str(folder), *words])
    meta, splits = read(tmp_path / 'd')
    assert [{s: [(n, meta['classes'][k]) for n, k, _ in p] for s, p in splits.items()}, len(meta['classes'])] == \
        EXPECTED[script]
    shutil.rmtree(tmp_path / 'd')
    for name, content in ARCHIVES[script].items():
        tree(folder, {name: content[:-1] + bytes([content[-1] ^ 1])})
        assert f'{name} is not the published file' in fails(capsys, script.main, '--from', str(folder), *words)
        tree(folder, {name: content})
    assert not (tmp_path / 'd').exists()
