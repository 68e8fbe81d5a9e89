"""prepare/lib/pictures.py: single pictures, packs, processes."""
import io
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from downloads import tar
from helpers import ROOT, fails, save_pack, snapshot
from PIL import Image, ImageOps
from small_files import decoded, huge_png, jpeg, names, read, saved, tree

from lib import pictures
from prepare import imagefolder
from tasks import decode


def with_palette(**options):
    image = Image.new('P', (12, 9), 1)
    image.putpalette([0, 0, 255, 200, 100, 50])
    return saved(image, 'PNG', **options)


def plain(mode, colour, kind='PNG'):
    return saved(Image.new(mode, (12, 9), colour), kind)


@pytest.mark.parametrize('content, colour', [
    (plain('L', 77), (77, 77, 77)), (plain('1', 1), (255, 255, 255)),
    (plain('LA', (10, 255)), (10, 10, 10)), (plain('RGBA', (200, 100, 50, 0)), (255, 255, 255)),
    (plain('RGBA', (200, 100, 50, 255), 'WEBP'), (200, 100, 50)), (with_palette(), (200, 100, 50)),
    (with_palette(transparency=1), (255, 255, 255)),
    (plain('CMYK', (0, 255, 255, 0), 'JPEG'), (254, 0, 0)),
    (plain('RGB', (9, 8, 7), 'BMP'), (9, 8, 7)),
    (plain('RGB', (200, 100, 50), 'GIF'), (200, 100, 50))])
def test_pictures_of_every_kind_become_rgb_or_grey(content, colour):
    grey = np.dot(colour, (0.299, 0.587, 0.114))
    for channels, mode, expected in (3, 'RGB', colour), (1, 'L', grey):
        image = decoded(pictures.try_shrink(content, 4, channels), mode)
        assert image.size == (5, 4)
        assert np.abs(np.asarray(image) - expected).max() <= 8


@pytest.mark.parametrize('dtype, kind', [
    ('<u2', 'PNG'), ('>u2', 'TIFF'), ('<i4', 'TIFF')])
@pytest.mark.parametrize('largest, grey, is_said', [
    (255, 255, True), (256, 16, True), (4095, 255, True), (4096, 16, False)])
def test_grey_of_8_or_12_bits_in_a_file_of_16_is_not_black(dtype, kind, largest, grey, is_said,
                                                           capsys):
    """White is 255, 4095 or 65535; the right half of the picture is half as bright as the left."""
    pixels = np.full((30, 40), largest // 2, dtype)
    pixels[:, :20] = largest
    decode.say_once.cache_clear()

    picture = np.asarray(decoded(pictures.shrink(saved(Image.fromarray(pixels), kind), 30), 'RGB'))

    assert np.abs(picture[:, :19] - float(grey)).max() <= 2
    assert np.abs(picture[:, 21:] - grey / 2).max() <= 2
    assert bool(capsys.readouterr().err) == is_said


@pytest.mark.parametrize('numbers', [(0, 65536), (-1, 100)])
def test_grey_of_an_unknown_range_is_refused(numbers):
    content = saved(Image.fromarray(np.array([numbers], np.int32)), 'TIFF')
    with pytest.raises(ValueError):
        pictures.shrink(content, 8)


@pytest.mark.parametrize('content, is_said', [
    (plain('RGB', (0, 0, 40)), True), (plain('RGB', (90, 0, 0)), False)])
def test_a_black_picture_is_said_to_be_one(content, is_said, capsys):
    decode.say_once.cache_clear()
    pictures.shrink(content, 8)
    pictures.shrink(content, 8, 1)
    assert len(capsys.readouterr().err.splitlines()) == is_said  # once


@pytest.mark.parametrize('width, height, size, kept', [
    (60, 90, 20, False), (31, 31, 30, False), (1200, 700, 40, False), (30, 20, 20, True),
    (12, 50, 20, True)])
def test_the_short_side_has_the_size_and_right_jpegs_are_kept(width, height, size, kept):
    content = jpeg(width, height)
    result = pictures.shrink(content, size)
    assert (result == content) == kept
    w, h = decoded(result).size
    assert min(w, h) == min(size, width, height)
    assert abs(w / h - width / height) < width / height / min(w, h)
    assert pictures.shrink(content, size, 1) != content  # it has colours


@pytest.mark.parametrize('orientation', range(1, 9))
def test_pictures_are_turned_upright(orientation):
    pixels = np.zeros((20, 40, 3), np.uint8)
    pixels[:10, :20] = 255  # white at the upper left
    exif = Image.Exif()
    exif[0x112] = orientation
    content = saved(Image.fromarray(pixels), 'JPEG', exif=exif, quality=95)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(content)))
    for size, scale in ((20, 1), (10, 2)):
        turned = decoded(pictures.shrink(content, size))
        assert turned.size == (upright.width // scale, upright.height // scale)
        difference = np.asarray(turned.resize(upright.size), float) - np.asarray(upright)
        assert np.abs(difference).mean() < 8


# ---- packs


def some(n):
    """n pictures as save_pack takes them."""
    return [(f'a/{i}.jpg', i % 2, jpeg(30 + i, 24, kind='PNG' if i % 3 else 'JPEG'))
            for i in range(n)]


def test_order_and_bytes_do_not_depend_on_the_workers(tmp_path):
    splits = {'train': some(20) + [('a/g.jpg', 1, plain('L', 9, 'JPEG'))], 'val': some(5)}
    for workers in (0, 2):
        streams = {split: iter(given) for split, given in splits.items()}
        save_pack(tmp_path / str(workers), streams, ['x', 'y'], size=8, workers=workers)
    assert snapshot(tmp_path / '0') == snapshot(tmp_path / '2')
    meta, found = read(tmp_path / '0')
    assert meta['classes'] == ['x', 'y']
    for split, given in splits.items():
        assert [picture[:2] for picture in found[split]] == [picture[:2] for picture in given]
        assert all(decoded(content).size[1] == 8 for _, _, content in found[split])


def test_few_pictures_are_under_way_at_a_time():
    taken = []
    results = pictures.in_order(abs, ((taken.append(i), -i) for i in range(60)), 2)
    for done, (_, result) in enumerate(results):
        assert result == done and len(taken) <= done + 9
    assert done == 59


def killed(source, size, channels):
    os._exit(1)


def test_a_script_whose_worker_is_killed_ends_with_one_line_and_leaves_nothing(
        tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(pictures, 'try_shrink', killed)
    tree(tmp_path / 'in', {f'{c}/{i}.jpg': jpeg(8, 8) for c in 'ab' for i in range(3)})
    assert '--workers' in fails(capsys, imagefolder.main, f'{tmp_path}/in', '--out',
                                f'{tmp_path}/d', '--workers', '2')
    assert not (tmp_path / 'd').exists() and not list(tmp_path.glob('*.unfinished'))


def test_bad_pictures_are_named_left_out_and_limited(tmp_path, capsys):
    given = some(100)
    given[30] = 'a/cut.jpg', 0, given[30][2][:50]
    given[50] = 'a/huge.png', 0, huge_png()
    given[70] = 'b/none.jpg', 1, str(tmp_path / 'none.jpg')
    with pytest.raises(ValueError, match='--max_bad'):
        save_pack(tmp_path / 'd', {'train': given}, 'xy', size=4, workers=0, max_bad=0.0299)
    assert not list(tmp_path.glob('d*'))
    save_pack(tmp_path / 'd', {'train': given}, 'xy', size=4, workers=0, max_bad=0.03)
    taken = given[:30] + given[31:50] + given[51:70] + given[71:]
    assert names(read(tmp_path / 'd')[1]['train']) == names(taken)
    cut, huge, none = capsys.readouterr().err.splitlines()[3:]
    assert 'train/a/cut.jpg' in cut and 'huge.png' in huge and 'none.jpg' in none


@pytest.mark.slow
def test_ctrl_c_ends_it_at_once_and_leaves_nothing(tmp_path):
    content = jpeg(300, 300)
    tree(tmp_path, {'whole.tar': tar({f'n{i % 2}/{i}.JPEG': content for i in range(3000)})})
    words = ('prepare/imagenet.py', '--from', f'{tmp_path}/whole.tar', '--out', f'{tmp_path}/d',
             '--workers', '2')
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, start_new_session=True, cwd=ROOT)
    written = tmp_path / 'd.unfinished' / 'train.jpeg.npy'
    # until some pictures are written a worker may still start
    while not written.exists() or written.stat().st_size < 2 * 10 ** 7:
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130 and err == '' and not list(tmp_path.glob('d*'))
