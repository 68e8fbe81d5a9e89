import hashlib
import io
import json
import os
import pickle
import re
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import time
import zlib

import numpy as np
import pytest
from conftest import ROOT, fails
from PIL import Image, ImageOps

from prepare import cifar10, cifar100, download, flowers102, imagefolder, imagenet, images, matlab, pets

RNG = np.random.default_rng(0)


def jpeg(width=40, height=30, colour=None, kind='JPEG', **options):
    """The bytes of a picture file: one colour, or noise."""
    pixels = RNG.integers(0, 256, (height, width, 3), np.uint8)
    if colour is not None:
        pixels[:] = colour
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind, **options)
    return out.getvalue()


def tar(path, files, mode='w'):
    """A tar archive of {name: bytes}."""
    with tarfile.open(path, mode) as t:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            t.addfile(info, io.BytesIO(content))
    return path


def tree(root, files):
    """{relative path: bytes} as files below root; returns root."""
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


def read(out):
    """A pack -> meta, {split: [(name, label, JPEG bytes)]}; everything that its files say of themselves is checked."""
    meta = json.loads((out / 'meta.json').read_text())
    assert meta['kind'] == 'images' and meta['storage'] == 'pack'
    splits = {}
    for split, s in meta['splits'].items():
        content, offsets, labels, names = (np.load(out / f'{split}.{a}.npy', mmap_mode='r')
                                           for a in ('jpeg', 'offsets', 'labels', 'names'))
        n = s['count']
        assert content.dtype == np.uint8 and content.shape == (s['bytes'],) and offsets.dtype == labels.dtype == np.int64
        assert labels.shape == names.shape == (n,) and offsets.shape == (n + 1,) and names.dtype.kind == 'S'
        assert offsets[0] == 0 and offsets[-1] == s['bytes'] and (np.diff(offsets) > 0).all()
        assert labels.min() >= 0 and labels.max() < len(meta['classes'])
        splits[split] = [(names[i].decode(), int(labels[i]), bytes(content[offsets[i]:offsets[i + 1]])) for i in range(n)]
    assert len(list(out.iterdir())) == 1 + 4 * len(splits)
    return meta, splits


def decoded(content):
    image = Image.open(io.BytesIO(content))
    image.load()
    assert image.format == 'JPEG' and image.mode == 'RGB'
    return image


def names(pictures):
    return [name for name, _, _ in pictures]


def labels(pictures):
    return [label for _, label, _ in pictures]


# ---- CIFAR


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
    return str(tar(path, {n: c if isinstance(c, bytes) else py2_pickle(c) for n, c in files.items()}, 'w:gz'))


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
    assert sorted(p.name for p in tmp_path.iterdir()) == ['c.tar.gz']


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


def test_checksums_are_md5_or_sha256_by_their_length(tmp_path):
    (tmp_path / 'f').write_bytes(b'content')
    for kind in ('md5', 'sha256'):
        right = hashlib.new(kind, b'content').hexdigest()
        assert download.differs(tmp_path / 'f', right) == ''
        assert download.local_or_fetch(tmp_path, 'http://x/f', None, right) == tmp_path / 'f'
        with pytest.raises(ValueError, match=f'not the expected file .its {kind} is not'):
            download.local_or_fetch(tmp_path / 'f', 'http://x/f', None, right[::-1])


# ---- arrays


def test_arrays_with_masks_are_saved_and_others_refused(tmp_path):
    x, y, m = np.zeros((4, 5, 6, 3), np.uint8), np.arange(4), np.zeros((4, 5, 6), bool)
    images.save_arrays(tmp_path / 'd', {'train': (x, y, m), 'val': (x[:1], y[:1].astype(np.uint8))}, list('abcd'))
    meta = json.loads((tmp_path / 'd' / 'meta.json').read_text())
    assert meta['splits'] == {s: {'count': n, 'height': 5, 'width': 6} for s, n in (('train', 4), ('val', 1))}
    assert np.load(tmp_path / 'd' / 'train.masks.npy').dtype == bool
    assert not (tmp_path / 'd' / 'val.masks.npy').exists()
    assert np.load(tmp_path / 'd' / 'val.labels.npy').dtype == np.int64
    for arrays, message in (((x, y + 1), 'split val has label 4'), ((x, y - 1), 'label -1'), ((x, y[:3]), '4 whole numbers'),
                            ((x, y * 1.0), 'whole numbers'), ((x[0], y), 'uint8'), ((x * 1.0, y), 'uint8'),
                            ((x[:0], y[:0]), 'uint8'), ((x, y, m[:, 1:]), 'masks'), ((x, y, m * 1), 'masks')):
        with pytest.raises(ValueError, match=message):
            images.save_arrays(tmp_path / 'e', {'val': arrays}, list('abcd'))
    assert not (tmp_path / 'e').exists()


# ---- one picture


def saved(image, kind, **options):
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def grey16(values):
    return Image.fromarray(np.full((9, 12), values, np.uint16))


def with_palette(transparent):
    image = Image.new('P', (12, 9), 1)
    image.putpalette([0, 0, 255, 200, 100, 50])
    return saved(image, 'PNG', **({'transparency': 1} if transparent else {}))


@pytest.mark.parametrize('content, colour', [
    (saved(Image.new('L', (12, 9), 77), 'PNG'), (77, 77, 77)), (saved(Image.new('L', (12, 9), 77), 'JPEG'), (77, 77, 77)),
    (saved(Image.new('1', (12, 9), 1), 'PNG'), (255, 255, 255)), (saved(grey16(0x8012), 'PNG'), (128, 128, 128)),
    (saved(grey16(0x8012), 'TIFF'), (128, 128, 128)), (saved(Image.new('LA', (12, 9), (10, 255)), 'PNG'), (10, 10, 10)),
    (saved(Image.new('RGBA', (12, 9), (200, 100, 50, 255)), 'PNG'), (200, 100, 50)),
    (saved(Image.new('RGBA', (12, 9), (200, 100, 50, 0)), 'PNG'), (255, 255, 255)),
    (saved(Image.new('RGBA', (12, 9), (200, 100, 50, 255)), 'WEBP'), (200, 100, 50)),
    (with_palette(False), (200, 100, 50)), (with_palette(True), (255, 255, 255)),
    (saved(Image.new('CMYK', (12, 9), (0, 255, 255, 0)), 'JPEG'), (254, 0, 0)), (jpeg(12, 9, (9, 8, 7), 'BMP'), (9, 8, 7)),
    (jpeg(12, 9, (200, 100, 50), 'GIF'), (200, 100, 50))])
@pytest.mark.parametrize('size', [4, 50])
def test_pictures_of_every_kind_become_rgb(content, colour, size):
    result, small = images.try_shrink((content, size))
    image = decoded(result)
    assert image.size == ((12, 9) if size == 50 else (5, 4)) and small == (size == 50)
    assert np.abs(np.asarray(image).astype(int) - colour).max() <= 8


def test_the_short_side_has_the_size_and_right_jpegs_are_kept():
    for width, height, size in ((90, 60, 20), (60, 90, 20), (31, 31, 30), (900, 40, 7), (1200, 700, 40)):
        content, small = images.shrink(jpeg(width, height), size)
        assert min(decoded(content).size) == size and not small
        assert max(decoded(content).size) == round(max(width, height) * size / min(width, height))
    for width, height in ((30, 20), (20, 20), (12, 50)):
        content = jpeg(width, height, quality=30)
        assert images.shrink(content, 20) == (content, width == 12)
    png = images.shrink(jpeg(30, 20, kind='PNG'), 20)[0]
    assert decoded(png).size == (30, 20)


@pytest.mark.parametrize('orientation', range(1, 9))
def test_pictures_are_turned_upright(orientation):
    pixels = np.zeros((20, 40, 3), np.uint8)
    pixels[:10, :20] = 255  # white at the upper left
    exif = Image.Exif()
    exif[0x112] = orientation
    content = saved(Image.fromarray(pixels), 'JPEG', exif=exif, quality=95)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(content)))
    for size, scale in ((20, 1), (10, 2)):
        turned = decoded(images.shrink(content, size)[0])
        assert turned.size == (upright.width // scale, upright.height // scale)
        difference = np.asarray(turned.resize(upright.size)).astype(int) - np.asarray(upright)
        assert np.abs(difference).mean() < 8


def test_undecodable_pictures_give_a_reason():
    whole, png = jpeg(200, 200), bytearray(jpeg(8, 8, kind='PNG'))
    png[16:24] = struct.pack('>II', 30000, 30000)  # a decompression bomb
    png[29:33] = struct.pack('>I', zlib.crc32(png[12:29]))
    for content, reason in ((whole[:len(whole) // 2], 'truncated'), (b'', 'empty'), (b'hello', 'not a picture'),
                            (b'%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n', 'not a picture'),
                            (bytes(png), 'decompression bomb'), (jpeg(8, 8, kind='PNG')[:60], ''),
                            ('/nowhere/a.jpg', 'No such file')):
        result, said = images.try_shrink((content, 20))
        assert result is None and reason in said and said and '\n' not in said


# ---- packs


def some(n, start=0):
    return [(f'a/{i}.jpg', i % 2, jpeg(30 + i, 24, kind='PNG' if i % 3 else 'JPEG')) for i in range(start, start + n)]


def test_order_and_bytes_do_not_depend_on_the_workers(tmp_path, capsys):
    splits = {'train': some(20), 'val': some(5, 50)}
    for workers in (0, 2):
        streams = {s: iter(p) for s, p in splits.items()}
        images.save_pack(tmp_path / str(workers), streams, ['x', 'y'], size=16, workers=workers)
    for path in (tmp_path / '0').iterdir():
        assert path.read_bytes() == (tmp_path / '2' / path.name).read_bytes()
    meta, found = read(tmp_path / '0')
    assert all([p[:2] for p in found[s]] == [p[:2] for p in splits[s]] for s in splits)
    assert all(decoded(c).size[1] == 16 for p in found.values() for _, _, c in p)
    assert meta['classes'] == ['x', 'y'] and 'train.jpeg.npy: 20 pictures' in capsys.readouterr().out


def test_few_pictures_are_under_way_at_a_time():
    taken = []
    results = images.in_order(abs, ((taken.append(i), -i) for i in range(60)), 2)
    for done, (_, result) in enumerate(results):
        assert result == done and len(taken) <= done + 9
    assert done == 59


def test_bad_pictures_are_named_left_out_and_limited(tmp_path, capsys):
    pictures = some(100)
    pictures[30] = ('a/broken.jpg', 0, pictures[30][2][:50])
    images.save_pack(tmp_path / 'd', {'train': pictures[:60], 'val': pictures[60:]}, ['x', 'y'], size=4, workers=0)
    out, err = capsys.readouterr()
    assert len(err.splitlines()) == 1 and err.startswith('left out train/a/broken.jpg: ')
    assert '1 of 100 pictures could not' in out
    kept = names(read(tmp_path / 'd')[1]['train'])
    assert len(kept) == 59 and 'a/broken.jpg' not in kept
    (tmp_path / 'empty.jpg').write_bytes(b'')
    pictures[70] = ('b/empty.jpg', 1, str(tmp_path / 'empty.jpg'))
    for options in ({}, {'max_bad': 0.0199}, {'max_bad': 0}):
        with pytest.raises(ValueError, match='2 of 100 pictures cannot be decoded.*raise --max_bad'):
            images.save_pack(tmp_path / 'e', {'train': pictures}, ['x', 'y'], size=4, workers=0, **options)
        assert f'left out {tmp_path}/empty.jpg: the file is empty' in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir() if p.is_dir()] == ['d']
    images.save_pack(tmp_path / 'e', {'train': pictures}, ['x', 'y'], size=4, workers=0, max_bad=0.02)
    assert len(read(tmp_path / 'e')[1]['train']) == 98


@pytest.mark.parametrize('splits, options, message', [
    ({'train': some(2), 'val': []}, {}, 'split val has no picture'),
    ({'train': [('a', 2, jpeg())]}, {}, 'split train has label 2'),
    ({'train': [('a', 0, b'')]}, {'max_bad': 1}, 'split train has no picture'),
    ({'train': some(1)}, {'size': 0}, '--size=0'), ({'train': some(1)}, {'max_bad': 2}, '--max_bad=2')])
def test_packs_that_make_no_sense_are_not_written(tmp_path, splits, options, message):
    with pytest.raises(ValueError, match=message):
        images.save_pack(tmp_path / 'd', splits, ['x', 'y'], **{'size': 4, 'workers': 0} | options)
    assert not list(tmp_path.iterdir())


def test_ctrl_c_ends_it_at_once_and_leaves_nothing(tmp_path):
    content = jpeg(300, 300)
    path = tar(tmp_path / 'whole.tar', {f'n{i % 2}/{i}.JPEG': content for i in range(10_000)})
    words = [str(ROOT / 'prepare/imagenet.py'), '--from', str(path), '--out', str(tmp_path / 'd'), '--workers', '2']
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               start_new_session=True)
    while not (tmp_path / 'd.unfinished' / 'train.jpeg.npy').exists():
        assert process.poll() is None
        time.sleep(0.05)
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130 and err == '' and [p.name for p in tmp_path.iterdir()] == ['whole.tar']


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
    tar(folder / '102flowers.tgz', pictures, 'w:gz')
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
    tar(folder / '102flowers.tgz', dict(list(pictures.items())[:4]), 'w:gz')
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
        tar(folder / 'annotations.tar.gz', {n: t.encode() for n, t in texts.items() if t is not None}, 'w:gz')

    write()
    assert 'images.tar.gz: no such file' in fails(capsys, pets.main, *words)
    tar(folder / 'images.tar.gz', pictures, 'w:gz')
    pets.main(words)
    meta, splits = read(tmp_path / 'd')
    assert meta['classes'] == ['Abyssinian', 'great pyrenees']
    assert names(splits['train']) == ['Abyssinian_1.jpg', 'Abyssinian_2.jpg', 'great_pyrenees_2.jpg']
    assert names(splits['test']) == ['great_pyrenees_1.jpg']
    assert labels(splits['train']) == [0, 0, 1] and labels(splits['test']) == [1]
    capsys.readouterr()
    for change, message in (({'test': None}, 'no annotations/test.txt'), ({'test': 'Abyssinian_3 2 1 1'}, 'does not fit'),
                            ({'test': 'Abyssinian_1 1 1 1'}, 'does not fit'), ({'test': 'nonsense'}, 'does not fit'),
                            ({'test': 'pug_1 4 2 1'}, 'not numbered'),
                            ({'test': 'Abyssinian_9 1 1 1'}, 'lacks 1 pictures, such as Abyssinian_9')):
        write(**change)
        assert message in fails(capsys, pets.main, *words, '--overwrite')


# ---- folders


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


def test_a_share_is_held_back_by_name(tmp_path):
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


def test_mistakes_with_folders_are_explained(tmp_path, capsys):
    picture = jpeg(8, 8)
    cases = {
        'extra': (folder_files() | {'val/emu/1.jpg': picture}, 'class emu is in .*extra/val but not in .*extra/train; add'),
        'missing': (folder_files() | {'train/emu/1.jpg': picture, 'train/fox/1.jpg': picture},
                    r'class emu \(and 1 more\) is in .*missing/train but not in .*missing/val; add'),
        'empty': (folder_files() | {'train/emu/readme.txt': b''}, 'class folder .*train/emu holds no picture'),
        'deep': ({f'top/{n}': c for n, c in folder_files().items()}, 'deep/top holds no picture .*expected FOLDER/train/'),
        'flat': ({'1.jpg': picture}, 'no class folder in .*flat; expected FOLDER/train/CLASS'),
        'flat2': ({'train/1.jpg': picture}, 'no class folder in .*flat2/train; expected'),
        'untrained': ({'val/a/1.jpg': picture}, 'has a folder val but no folder train'),
        'single': ({'a/1.jpg': picture}, 'class a has one picture only'),
        'x.zip': (b'PK', 'unpack it first'), 'nowhere': (None, 'no such folder')}
    for name, (files, message) in cases.items():
        if isinstance(files, dict):
            tree(tmp_path / name, files)
        elif files:
            (tmp_path / name).write_bytes(files)
        line = fails(capsys, imagefolder.main, str(tmp_path / name), '--out', str(tmp_path / 'd'))
        assert re.search(message, line), line
    root = str(tree(tmp_path / 'ok', folder_files()))
    assert '--out is missing' in fails(capsys, imagefolder.main, root)
    assert '--val=1.0' in fails(capsys, imagefolder.main, root, '--val', '1', '--out', str(tmp_path / 'd'))
    assert not (tmp_path / 'd').exists()


def test_bad_files_in_a_folder(tmp_path, capsys):
    whole = jpeg(100, 100)
    bad = {'val/cat/broken.jpg': whole[:len(whole) // 2], 'train/dog/zero.jpg': b'', 'train/cat/text.jpg': b'no picture'}
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


# ---- ImageNet

WNIDS = ('n01440764', 'n02000001', 'n03000002')
VAL = {f'ILSVRC2012_val_{i:08}.JPEG': WNIDS[(2 * i + 1) % 3] for i in range(1, 6)}  # name: class
TRAIN = {f'{w}/{w}_{i}.JPEG': jpeg(24, 20) for w in WNIDS for i in range(3)}
VAL_PICTURES = {name: jpeg(24, 20) for name in VAL}
SOLUTION = 'ImageId,PredictionString\n' + ''.join(f'{n[:-5]},{w} 1 2 3 4 {w} 5 6 7 8\n' for n, w in reversed(VAL.items()))
SYNSETS = ''.join(f'{w}\n' for w in VAL.values())


def tars(root, synsets=False):
    """The two archives as they are published, and labels."""
    root.mkdir(exist_ok=True)
    nested = {}
    for w in WNIDS:
        path = tar(root / 'one.tar', {n.split('/')[1]: c for n, c in TRAIN.items() if n.startswith(w)})
        nested[f'{w}.tar'] = path.read_bytes()
        path.unlink()
    tar(root / imagenet.TRAIN_TAR, nested)
    tar(root / imagenet.VAL_TAR, dict(reversed(VAL_PICTURES.items())))
    (root / (imagenet.SYNSETS if synsets else imagenet.SOLUTION)).write_text(SYNSETS if synsets else SOLUTION)
    return root


def in_class_folders(root):
    val = {f'val/{w}/{n}': VAL_PICTURES[n] for n, w in VAL.items()}
    return tree(root, {f'train/{n}': c for n, c in TRAIN.items()} | val)


def kaggle(root):
    pictures = {f'train/{n}': c for n, c in TRAIN.items()} | {f'val/{n}': c for n, c in VAL_PICTURES.items()}
    tree(root / 'ILSVRC/Data/CLS-LOC', pictures)
    return tree(root, {imagenet.SOLUTION: SOLUTION.encode()})


@pytest.mark.parametrize('layout', [in_class_folders, kaggle, tars, lambda root: tars(root, synsets=True)])
def test_imagenet_in_every_layout(tmp_path, capsys, layout):
    source = str(layout(tmp_path / 'i'))
    imagenet.main(['--from', source, '--out', str(tmp_path / 'd'), '--workers', '0', '--size', '20'])
    meta, splits = read(tmp_path / 'd')
    assert meta['classes'] == list(WNIDS)
    assert splits['train'] == [(n, WNIDS.index(n[:9]), c) for n, c in TRAIN.items()]
    folder = {n: f'{w}/' if layout is in_class_folders else '' for n, w in VAL.items()}
    assert splits['val'] == [(folder[n] + n, WNIDS.index(w), VAL_PICTURES[n]) for n, w in VAL.items()]
    said = capsys.readouterr().out
    assert '3 classes' in said and '1,281,167' in said and 'this has 3, 9, 5' in said


def test_imagenet_21k_from_archives_and_folders(tmp_path, capsys):
    counts = {'n2': 30, 'n1': 30, 'n3': 1}
    flat = {f'{c}/{c}_{i}.JPEG': jpeg(8, 8) for c, n in counts.items() for i in range(n)}
    nested = {'whole/n4.tar': b''}
    for c in counts:
        path = tar(tmp_path / 'one.tar', {n.split('/')[1]: content for n, content in flat.items() if n.startswith(c)})
        nested[f'whole/{c}.tar'] = path.read_bytes()
    sources = [tmp_path / name for name in ('winter', 'fall', 'tree')]
    for folder in sources[:2]:
        folder.mkdir()
    tar(sources[0] / 'winter21_whole.tar.gz', nested, 'w:gz')
    tar(sources[1] / 'fall11_whole.tar', flat)
    tree(sources[2], flat)
    held = []
    for i, source in enumerate(sources):
        imagenet.main(['--from', str(source), '--out', str(tmp_path / str(i)), '--workers', '0', '--val', '0.2'])
        meta, splits = read(tmp_path / str(i))
        assert meta['classes'] == ['n1', 'n2', 'n3'] and 'held back' in capsys.readouterr().out
        assert all(meta['classes'][label] == name[:2] for p in splits.values() for name, label, _ in p)
        assert sorted(names(splits['train']) + names(splits['val'])) == sorted(flat)
        held.append(set(names(splits['val'])))
        assert 3 < len(held[-1]) < 25 and 'n3/n3_0.JPEG' not in held[-1]
    assert held[0] == held[1] and len(held[1] ^ held[2]) <= 2  # which picture of a class is its first differs


def test_mistakes_with_imagenet_are_explained(tmp_path, capsys):
    def told(source, message, *words):
        words += ('--from', str(source)) if source else ()
        line = fails(capsys, imagenet.main, '--out', str(tmp_path / 'd'), '--workers', '0', *words)
        assert re.search(message, line), line

    told(None, '--from is missing.*https://image-net.org.*imagenet-object-localization-challenge')
    told(tmp_path / 'nowhere', 'no such file or folder')
    root = kaggle(tmp_path / 'k')
    told(root, '--val=0.0', '--val', '0')
    solution = root / imagenet.SOLUTION
    for text, message in ((SOLUTION.rpartition('ILSVRC')[0], '4 labels, none for ILSVRC2012_val_00000001.JPEG, but'),
                          (SOLUTION + 'x,n01440764 1 2 3 4\n', '6 labels, more than pictures, but'),
                          (SOLUTION.replace(WNIDS[0], 'n9'), 'class n9 is in .*val but has no training pictures')):
        solution.write_text(text)
        told(root, message)
    solution.unlink()
    told(root, 'labels are needed: put LOC_val_solution.csv or imagenet_2012_validation_synset_labels.txt in .*k')
    (root / imagenet.SYNSETS).write_text(SYNSETS + 'n01440764\n')
    told(root, '6 labels, but .*val 5 pictures')
    root = in_class_folders(tmp_path / 't')
    shutil.rmtree(root / 'train' / WNIDS[1])
    told(root, f'class {WNIDS[1]} is in .*val but not in .*train')
    shutil.rmtree(root / 'val')
    told(root, 'has train but no val or ILSVRC2012_img_val.tar; .*--from .*train to hold back')
    root = tars(tmp_path / 'r')
    told(root / imagenet.VAL_TAR, 'ILSVRC2012_val_00000005.JPEG in no class folder; expected WNID.tar')
    whole = (root / imagenet.TRAIN_TAR).read_bytes()
    (root / imagenet.TRAIN_TAR).write_bytes(whole[:len(whole) // 2])
    told(root, 'ILSVRC2012_img_train.tar is damaged, cut off')
    (root / imagenet.TRAIN_TAR).write_bytes(b'no tar')
    told(root, 'no tar archive')
    (root / imagenet.TRAIN_TAR).unlink()
    told(root, 'has ILSVRC2012_img_val.tar but no train or ILSVRC2012_img_train.tar')
    (tmp_path / 'x.zip').write_bytes(b'PK')
    told(tmp_path / 'x.zip', 'no tar archive')
    (tmp_path / 'void').mkdir()
    told(tmp_path / 'void', 'no class folder in .*void; .*--help')
    assert not (tmp_path / 'd').exists()
