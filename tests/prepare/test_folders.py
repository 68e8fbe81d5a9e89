"""Pictures in folders and archives: prepare/imagefolder.py, imagenet.py, flowers102.py and
pets.py."""
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

FOLDER = {}
for split, endings in ('train', ('JPG', 'png', 'JPG')), ('val', ('JPG', 'png')):
    for label in 'cat', 'dog':
        for i, ending in enumerate(endings):
            content = jpeg(kind='PNG' if ending == 'png' else 'JPEG')
            FOLDER[f'{split}/{label}/{i}{label}.{ending}'] = content
OTHERS = dict.fromkeys(('train/cat/.hidden.jpg', 'train/cat/notes.txt', 'train/.git/x.jpg'), b'')


@pytest.mark.parametrize('val, channels, mode', [('val', '3', 'RGB'), ('valid', '1', 'L')])
def test_image_folder(tmp_path, val, channels, mode):
    tree(tmp_path / 'f', FOLDER | OTHERS)
    (tmp_path / 'f' / 'val').rename(tmp_path / 'f' / val)
    imagefolder.main([f'{tmp_path}/f', '--out', f'{tmp_path}/d', '--workers', '0', '--size', '20',
                      '--channels', channels])
    meta, splits = read(tmp_path / 'd')
    assert meta['classes'] == ['cat', 'dog'] and meta['channels'] == int(channels)
    taken = []
    for split, pictures in splits.items():
        for name, label, content in pictures:
            taken.append(f'{split}/{name}')
            assert name.startswith(meta['classes'][label])
            assert min(decoded(content, mode).size) == 20
    assert taken == list(FOLDER)


def test_a_share_is_held_out_by_name(tmp_path):
    of_a = {f'a/{i}.jpg': jpeg(8, 8) for i in range(20)}
    of_b = {f'b/{i}.jpg': jpeg(8, 8) for i in range(3)}
    tree(tmp_path / 'f', of_a | of_b)
    tree(tmp_path / 'g' / 'train', of_a | of_b)
    tree(tmp_path / 'g' / 'test', {'a/1.jpg': jpeg(8, 8), 'b/1.jpg': jpeg(8, 8)})

    # by the sha256 of their names, as the docstring of the script says
    by_hash = [sorted(files, key=lambda name: hashlib.sha256(name.encode()).hexdigest())
               for files in (of_a, of_b)]
    expected = by_hash[0][:4] + by_hash[1][:1]
    for folder in 'f', 'g':
        out = tmp_path / f'data_{folder}'
        imagefolder.main([f'{tmp_path}/{folder}', '--val', '0.2', '--out', str(out),
                          '--workers', '0'])
        splits = read(out)[1]
        assert set(names(splits['val'])) == set(expected)
        assert sorted(names(splits['train']) + expected) == sorted(of_a | of_b)
        assert ('test' in splits) == (folder == 'g')


ROWS = {'1.jpg': 'cat', 'deep/2.png': 'dog', '3.jpg': 'dog', 'deep/4.jpg': 'cat',
        '5.jpg': 'no, not a cat', '6.jpg': 'no, not a cat'}
TABLE = 'file,class\n' + ''.join(f'{file},"{label}"\n' for file, label in ROWS.items())
TABLES = {
    'of a spreadsheet': TABLE.replace('\n', '\r\n').encode('utf-8-sig'),
    'with more columns': b'id,class,file\n' + b''.join(
        f'7,"{label}",{file}\n'.encode() for file, label in ROWS.items()),
}


@pytest.mark.parametrize('kind', TABLES)
def test_classes_from_a_table(kind, tmp_path, monkeypatch, capsys):
    """In the folder itself what is taken is not among what was left out."""
    files = {name: jpeg() for name in [*ROWS, 'deep/not_in_it.jpg', 'train/cat/7.jpg']}
    monkeypatch.chdir(tree(tmp_path / 'f', files | {'labels.csv': TABLES[kind]}))
    imagefolder.main(['.', '--labels', 'labels.csv', '--out', '../d', '--workers', '0'])
    meta, splits = read(tmp_path / 'd')
    assert meta['classes'] == ['cat', 'dog', 'no, not a cat'] and len(splits['val']) == 3
    class_of = {}
    for pictures in splits.values():
        for name, label, _ in pictures:
            class_of[name] = meta['classes'][label]
    assert class_of == ROWS
    said = capsys.readouterr().err
    assert 'left out 3 ' in said and 'not_in_it.jpg' in said and '7.jpg' in said


@pytest.mark.parametrize('content, named', [
    (TABLE + './deep/../1.jpg,dog\n', '1.jpg'), ('file,class\n3.jpg,cat\n1.jpg,\n', '1.jpg'),
    ('1.jpg,cat\n3.jpg,dog\n', 'file'), ('file,class\n1.jpg,caf\udce9\n', 'labels.csv'),
    ('', 'train'), ('file,class\n1,cat\n3,dog\n', '--max_bad')])
def test_a_table_that_does_not_fit_is_refused(content, named, tmp_path, capsys):
    """A file in two rows, no class, no header, another encoding, nothing, no endings."""
    tree(tmp_path / 'f', {file: jpeg() for file in ROWS})
    tree(tmp_path, {'labels.csv': content.encode(errors='surrogateescape')})
    words = (f'{tmp_path}/f', '--labels', f'{tmp_path}/labels.csv', '--out', f'{tmp_path}/d',
             '--workers', '0')
    with pytest.raises(SystemExit), one_line_errors():
        imagefolder.main(words)
    assert named in capsys.readouterr().err.splitlines()[-1] and not (tmp_path / 'd').exists()


# ---- ImageNet

WNIDS = ('n01440764', 'n02000001', 'n03000002')
VAL = {f'ILSVRC2012_val_{i:08}.JPEG': (WNIDS[(2 * i + 1) % 3], jpeg(24, 20)) for i in range(1, 6)}
TRAIN = {f'{w}/{w}_{i}.JPEG': jpeg(24, 20) for w in WNIDS for i in range(3)}
SOLUTION = 'ImageId,x\n' + ''.join(
    f'{name[:-5]},{wnid} 1 2 3 4 {wnid} 5\n' for name, (wnid, _) in reversed(VAL.items()))


def nested(files):
    """A tar of WNID.tar."""
    of_wnid = {}
    for path, content in files.items():
        wnid, name = path.split('/')
        of_wnid.setdefault(wnid, {})[name] = content
    return tar({f'whole/{wnid}.tar': tar(pictures) for wnid, pictures in of_wnid.items()})


def unpacked(prefix=''):
    return {f'{prefix}train/{n}': c for n, c in TRAIN.items()}


TARS = {imagenet.TRAIN_TAR: nested(TRAIN),
        imagenet.VAL_TAR: tar({name: content for name, (_, content) in reversed(VAL.items())})}
LAYOUTS = {
    'class folders': unpacked() | {f'val/{w}/{n}': c for n, (w, c) in VAL.items()},
    'kaggle': {imagenet.SOLUTION: SOLUTION.encode()} | unpacked('ILSVRC/Data/CLS-LOC/')
    | {f'ILSVRC/Data/CLS-LOC/val/{n}': c for n, (_, c) in VAL.items()},
    'tars': TARS | {imagenet.SOLUTION: SOLUTION.encode()},
    'synsets': TARS | {imagenet.SYNSETS: ''.join(f'{w}\n' for w, _ in VAL.values()).encode()}}


@pytest.mark.parametrize('layout', LAYOUTS)
def test_imagenet_in_every_layout(tmp_path, layout):
    tree(tmp_path / 'i', LAYOUTS[layout])
    imagenet.main(['--from', f'{tmp_path}/i', '--out', f'{tmp_path}/d', '--workers', '0',
                   '--size', '20'])
    meta, splits = read(tmp_path / 'd')
    assert meta['classes'] == list(WNIDS)
    assert splits['train'] == [(n, WNIDS.index(n[:9]), c) for n, c in TRAIN.items()]
    folder = '{}/' * (layout == 'class folders')
    assert splits['val'] == [(folder.format(w) + n, WNIDS.index(w), c) for n, (w, c) in VAL.items()]


def test_imagenet_21k_from_archives_and_folders(tmp_path):
    files = {f'{wnid}/{wnid}_{i}.JPEG': jpeg(8, 8) for wnid in ('n2', 'n1') for i in range(30)}
    files['n3/n3_0.JPEG'] = jpeg(8, 8)
    tree(tmp_path, {'winter21.tar.gz': tar({'n4.tar': b'', 'x.tar': nested(files)}, 'gz'),
                    'fall11.tar': tar(files)})
    tree(tmp_path / 'folder', files)
    held_out = {}
    for source in 'winter21.tar.gz', 'fall11.tar', 'folder':
        out = tmp_path / f'data_{source}'
        imagenet.main(['--from', f'{tmp_path}/{source}', '--out', str(out), '--workers', '0',
                       '--val', '0.2'])
        meta, splits = read(out)
        assert meta['classes'] == ['n1', 'n2', 'n3']
        assert sorted(names(splits['train']) + names(splits['val'])) == sorted(files)
        for name, label, _ in splits['train'] + splits['val']:
            assert meta['classes'][label] == name[:2]
        held_out[source] = set(names(splits['val']))
        assert 3 < len(held_out[source]) < 25 and 'n3/n3_0.JPEG' not in held_out[source]
    assert held_out['winter21.tar.gz'] == held_out['fall11.tar']
    # of a folder the pictures come in another order, so another one may be the first of its class
    assert len(held_out['folder'] ^ held_out['fall11.tar']) <= 2


# ---- published archives of pictures


def mat(**arrays):
    """A MATLAB file as the published ones are: version 5, compressed."""
    file = io.BytesIO()
    scipy.io.savemat(file, {name: [values] for name, values in arrays.items()}, do_compression=True)
    return file.getvalue()


FLOWERS = {f'jpg/image_{i:05}.jpg': jpeg(30 + i, 20) for i in range(1, 7)}
PETS = {f'images/{stem}.jpg': jpeg()
        for stem in ('Abyssinian_1', 'Abyssinian_2', 'Abyssinian_3', 'great_pyrenees_1')}
ARCHIVES = {
    flowers102: {
        '102flowers.tgz': tar(FLOWERS, 'gz'),
        'setid.mat': mat(trnid=[6, 1], valid=[2], tstid=[5, 4, 3]),
        'imagelabels.mat': mat(labels=[1, 1, 77, 102, 77, 102])},
    pets: {
        'images.tar.gz': tar(PETS | {'images/x.mat': b'not a picture'}, 'gz'),
        'annotations.tar.gz': tar({
            'annotations/trainval.txt': b'great_pyrenees_1 2 2 1\nAbyssinian_1 1 1 1\n',
            'annotations/test.txt': b'Abyssinian_2 1 1 1\n'}, 'gz')}}
EXPECTED = {  # script: {split: {picture: class}}
    flowers102: {
        'train': {'image_00001.jpg': '1', 'image_00006.jpg': '102'},
        'val': {'image_00002.jpg': '1'},
        'test': {'image_00003.jpg': '77', 'image_00004.jpg': '102', 'image_00005.jpg': '77'}},
    pets: {
        'train': {'Abyssinian_1.jpg': 'Abyssinian', 'great_pyrenees_1.jpg': 'great pyrenees'},
        'test': {'Abyssinian_2.jpg': 'Abyssinian'}}}


@pytest.mark.parametrize('script', ARCHIVES)
def test_published_archives_and_no_others(script, tmp_path, capsys, monkeypatch):
    """A flipped bit in a .mat file can end the process in SciPy, without a word (its pull request
    25349). So it is compared with its checksum first."""
    folder = tree(tmp_path / 'downloads', ARCHIVES[script])
    for name, content in ARCHIVES[script].items():
        monkeypatch.setitem(script.FILES, name, hashlib.md5(content).hexdigest())
    words = '--out', f'{tmp_path}/d', '--workers', '0', '--size', '20'
    script.main(['--from', str(folder), *words])
    meta, splits = read(tmp_path / 'd')
    assert splits.keys() == EXPECTED[script].keys()
    for split, pictures in splits.items():
        classes = {name: meta['classes'][label] for name, label, _ in pictures}
        assert classes == EXPECTED[script][split]
    assert len(meta['classes']) == (102 if script is flowers102 else 2)
    shutil.rmtree(tmp_path / 'd')
    for name, content in ARCHIVES[script].items():
        tree(folder, {name: content[:-1] + bytes([content[-1] ^ 1])})
        said = fails(capsys, script.main, '--from', str(folder), *words)
        assert f'{name} is not the published file' in said
        tree(folder, {name: content})
    assert not (tmp_path / 'd').exists()
