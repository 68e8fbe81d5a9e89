"""prepare/lib/pictures.py: arrays, single pictures, packs."""
import io
import json
import os
import signal
import struct
import subprocess
import sys
import time
import zlib

import numpy as np
import pytest
from helpers import ROOT
from PIL import Image, ImageOps
from small_files import RNG, decoded, jpeg, names, read, saved, tar

from prepare.lib import pictures, workers

# ---- arrays


def test_arrays_with_masks_are_saved_and_others_refused(tmp_path):
    x, y, m = np.zeros((4, 5, 6, 3), np.uint8), np.arange(4), np.zeros((4, 5, 6), bool)
    pictures.save_arrays(tmp_path / 'd', {'train': (x, y, m), 'val': (x[:1], y[:1].astype(np.uint8))}, list('abcd'))
    meta = json.loads((tmp_path / 'd' / 'meta.json').read_text())
    assert meta['splits'] == {s: {'count': n, 'height': 5, 'width': 6} for s, n in (('train', 4), ('val', 1))}
    assert np.load(tmp_path / 'd' / 'train.masks.npy').dtype == bool
    assert not (tmp_path / 'd' / 'val.masks.npy').exists()
    assert np.load(tmp_path / 'd' / 'val.labels.npy').dtype == np.int64
    for arrays, message in (((x, y + 1), 'split val has label 4'), ((x, y - 1), 'label -1'),
                            ((x, y[:3]), '4 whole numbers'), ((x, y * 1.0), 'whole numbers'),
                            ((x[0, 0], y), 'uint8'), ((x * 1.0, y), 'uint8'), ((x[:0], y[:0]), 'uint8'),
                            ((x, y, m[:, 1:]), 'masks'), ((x, y, m * 1), 'masks')):
        with pytest.raises(ValueError, match=message):
            pictures.save_arrays(tmp_path / 'e', {'val': arrays}, list('abcd'))
    assert not (tmp_path / 'e').exists()


@pytest.mark.parametrize('channels', [1, 3, 4, 200])
def test_arrays_keep_their_channels(tmp_path, capsys, channels):
    x = RNG.integers(0, 256, (3, 5, 6, channels), np.uint8)
    pictures.save_arrays(tmp_path / 'd', {'train': (x, [0, 1, 0]), 'val': (x[:1], [1])}, 'ab')
    meta = json.loads((tmp_path / 'd' / 'meta.json').read_text())
    assert meta['channels'] == channels and (np.load(tmp_path / 'd' / 'train.images.npy') == x).all()
    assert ('of 5x6, 2' if channels == 3 else f'of 5x6x{channels}, 2') in capsys.readouterr().out


def test_arrays_without_channels_have_one_and_splits_agree(tmp_path):
    x = RNG.integers(0, 256, (3, 5, 6), np.uint8)
    splits = {'train': (x, [0, 1, 0]), 'val': (x[..., None], [0, 1, 0])}
    pictures.save_arrays(tmp_path / 'd', splits, 'ab')
    assert json.loads((tmp_path / 'd' / 'meta.json').read_text())['channels'] == 1
    for split in splits:
        assert (np.load(tmp_path / 'd' / f'{split}.images.npy') == x[..., None]).all()
    with pytest.raises(ValueError, match='split test has pictures of 2 channels, another split of 1'):
        pictures.save_arrays(tmp_path / 'e', splits | {'test': (np.stack([x, x], -1), [0, 1, 0])}, 'ab')
    assert not (tmp_path / 'e').exists()


# ---- one picture


def grey16(values):
    return Image.fromarray(np.full((9, 12), values, np.uint16))


def with_palette(transparent):
    image = Image.new('P', (12, 9), 1)
    image.putpalette([0, 0, 255, 200, 100, 50])
    return saved(image, 'PNG', **({'transparency': 1} if transparent else {}))


@pytest.mark.parametrize('content, colour', [
    (saved(Image.new('L', (12, 9), 77), 'PNG'), (77, 77, 77)),
    (saved(Image.new('L', (12, 9), 77), 'JPEG'), (77, 77, 77)),
    (saved(Image.new('1', (12, 9), 1), 'PNG'), (255, 255, 255)), (saved(grey16(0x8012), 'PNG'), (128, 128, 128)),
    (saved(grey16(0x8012), 'TIFF'), (128, 128, 128)), (saved(Image.new('LA', (12, 9), (10, 255)), 'PNG'), (10, 10, 10)),
    (saved(Image.new('RGBA', (12, 9), (200, 100, 50, 255)), 'PNG'), (200, 100, 50)),
    (saved(Image.new('RGBA', (12, 9), (200, 100, 50, 0)), 'PNG'), (255, 255, 255)),
    (saved(Image.new('RGBA', (12, 9), (200, 100, 50, 255)), 'WEBP'), (200, 100, 50)),
    (with_palette(False), (200, 100, 50)), (with_palette(True), (255, 255, 255)),
    (saved(Image.new('CMYK', (12, 9), (0, 255, 255, 0)), 'JPEG'), (254, 0, 0)),
    (jpeg(12, 9, (9, 8, 7), 'BMP'), (9, 8, 7)), (jpeg(12, 9, (200, 100, 50), 'GIF'), (200, 100, 50))])
@pytest.mark.parametrize('size', [4, 50])
def test_pictures_of_every_kind_become_rgb_or_grey(content, colour, size):
    for channels, mode, expected in (3, 'RGB', colour), (1, 'L', np.dot(colour, (0.299, 0.587, 0.114))):
        result, small = pictures.try_shrink((content, size, channels))
        image = decoded(result, mode)
        assert image.size == ((12, 9) if size == 50 else (5, 4)) and small == (size == 50)
        assert np.abs(np.asarray(image) - expected).max() <= 8


def test_the_short_side_has_the_size_and_right_jpegs_are_kept():
    for width, height, size in ((90, 60, 20), (60, 90, 20), (31, 31, 30), (900, 40, 7), (1200, 700, 40)):
        content, small = pictures.shrink(jpeg(width, height), size)
        assert min(decoded(content).size) == size and not small
        assert max(decoded(content).size) == round(max(width, height) * size / min(width, height))
    for width, height in ((30, 20), (20, 20), (12, 50)):
        content = jpeg(width, height, quality=30)
        assert pictures.shrink(content, 20) == (content, width == 12)
    png = pictures.shrink(jpeg(30, 20, kind='PNG'), 20)[0]
    assert decoded(png).size == (30, 20)
    grey = saved(Image.new('L', (30, 20), 77), 'JPEG')
    assert pictures.shrink(grey, 20, 1) == (grey, False) and pictures.shrink(grey, 20)[0] != grey


@pytest.mark.parametrize('orientation', range(1, 9))
def test_pictures_are_turned_upright(orientation):
    pixels = np.zeros((20, 40, 3), np.uint8)
    pixels[:10, :20] = 255  # white at the upper left
    exif = Image.Exif()
    exif[0x112] = orientation
    content = saved(Image.fromarray(pixels), 'JPEG', exif=exif, quality=95)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(content)))
    for size, scale in ((20, 1), (10, 2)):
        for channels, mode in (3, 'RGB'), (1, 'L'):
            turned = decoded(pictures.shrink(content, size, channels)[0], mode)
            assert turned.size == (upright.width // scale, upright.height // scale)
            difference = np.asarray(turned.resize(upright.size)).astype(int) - np.asarray(upright.convert(mode))
            assert np.abs(difference).mean() < 8


def test_undecodable_pictures_give_a_reason():
    whole, png = jpeg(200, 200), bytearray(jpeg(8, 8, kind='PNG'))
    png[16:24] = struct.pack('>II', 30000, 30000)  # a decompression bomb
    png[29:33] = struct.pack('>I', zlib.crc32(png[12:29]))
    for content, reason in ((whole[:len(whole) // 2], 'truncated'), (b'', 'cannot identify'),
                            (b'hello', 'cannot identify'),
                            (b'%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n', 'cannot identify'),
                            (bytes(png), 'decompression bomb'), (jpeg(8, 8, kind='PNG')[:60], ''),
                            ('/nowhere/a.jpg', 'No such file')):
        result, said = pictures.try_shrink((content, 20))
        assert result is None and reason in said and said and '\n' not in said


# ---- packs


def some(n, start=0):
    return [(f'a/{i}.jpg', i % 2, jpeg(30 + i, 24, kind='PNG' if i % 3 else 'JPEG')) for i in range(start, start + n)]


def test_order_and_bytes_do_not_depend_on_the_workers(tmp_path, capsys):
    splits = {'train': some(20), 'val': some(5, 50)}
    for n in (0, 2):
        streams = {s: iter(p) for s, p in splits.items()}
        pictures.save_pack(tmp_path / str(n), streams, ['x', 'y'], size=16, workers=n)
    for path in (tmp_path / '0').iterdir():
        assert path.read_bytes() == (tmp_path / '2' / path.name).read_bytes()
    meta, found = read(tmp_path / '0')
    assert all([p[:2] for p in found[s]] == [p[:2] for p in splits[s]] for s in splits)
    assert all(decoded(c).size[1] == 16 for p in found.values() for _, _, c in p)
    assert meta['classes'] == ['x', 'y'] and 'train.jpeg.npy: 20 pictures' in capsys.readouterr().out


def test_a_pack_is_all_rgb_or_all_grey(tmp_path, capsys):
    mixed = [('a', 0, jpeg()), ('b', 1, saved(Image.new('L', (40, 30), 9), 'JPEG'))]
    for channels, mode in (3, 'RGB'), (1, 'L'):
        options = {'size': 20, 'channels': channels, 'workers': 0}
        pictures.save_pack(tmp_path / mode, {'train': mixed}, ['x', 'y'], **options)
        meta, splits = read(tmp_path / mode)
        assert meta['channels'] == channels
        assert all(decoded(content, mode).size == (27, 20) for _, _, content in splits['train'])
    assert '2 grey pictures' in capsys.readouterr().out


def test_few_pictures_are_under_way_at_a_time():
    taken = []
    results = workers.in_order(abs, ((taken.append(i), -i) for i in range(60)), 2)
    for done, (_, result) in enumerate(results):
        assert result == done and len(taken) <= done + 9
    assert done == 59


def test_a_worker_that_is_killed_ends_the_work():
    with pytest.raises(ValueError, match='set fewer --workers'):
        list(workers.in_order(os._exit, [(1,)] * 9, 2))


def test_bad_pictures_are_named_left_out_and_limited(tmp_path, capsys):
    given = some(100)
    given[30] = ('a/broken.jpg', 0, given[30][2][:50])
    pictures.save_pack(tmp_path / 'd', {'train': given[:60], 'val': given[60:]}, ['x', 'y'], size=4, workers=0)
    out, err = capsys.readouterr()
    assert len(err.splitlines()) == 1 and err.startswith('left out train/a/broken.jpg: ')
    assert '1 of 100 pictures could not' in out
    kept = names(read(tmp_path / 'd')[1]['train'])
    assert len(kept) == 59 and 'a/broken.jpg' not in kept
    (tmp_path / 'empty.jpg').write_bytes(b'')
    given[70] = ('b/empty.jpg', 1, str(tmp_path / 'empty.jpg'))
    for options in ({}, {'max_bad': 0.0199}, {'max_bad': 0}):
        with pytest.raises(ValueError, match='2 of 100 pictures cannot be decoded.*raise --max_bad'):
            pictures.save_pack(tmp_path / 'e', {'train': given}, ['x', 'y'], size=4, workers=0, **options)
        assert f'left out {tmp_path}/empty.jpg: ' in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir() if p.is_dir()] == ['d']
    pictures.save_pack(tmp_path / 'e', {'train': given}, ['x', 'y'], size=4, workers=0, max_bad=0.02)
    assert len(read(tmp_path / 'e')[1]['train']) == 98


@pytest.mark.parametrize('splits, options, message', [
    ({'train': some(2), 'val': []}, {}, 'split val has no picture'),
    ({'train': [('a', 2, jpeg())]}, {}, 'split train has label 2'),
    ({'train': [('a', 0, b'')]}, {'max_bad': 1}, 'split train has no picture'),
    ({'train': [('a', 0, jpeg(), (np.ones((30, 40), np.uint8), [0])), ('b', 0, jpeg())]}, {}, 'none for b'),
    ({'train': [('b', 0, jpeg()), ('a', 0, jpeg(), (np.ones((30, 40), np.uint8), [0]))]}, {}, 'none for')])
def test_packs_that_make_no_sense_are_not_written(tmp_path, splits, options, message):
    with pytest.raises(ValueError, match=message):
        pictures.save_pack(tmp_path / 'd', splits, ['x', 'y'], **{'size': 4, 'workers': 0} | options)
    assert not list(tmp_path.glob('d*'))


@pytest.mark.slow
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
    assert process.returncode == 130 and err == '' and not list(tmp_path.glob('d*'))
