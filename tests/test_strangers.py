"""Files that strangers made: what could hang, fill the memory or start a program is refused in one line, and nothing is
created."""
import gzip
import io
import json
import os
import resource
import signal
import struct
import sys
import tarfile
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from helpers import CLASSES, fails, picture_network, save_pack, save_run
from PIL import EpsImagePlugin, Image
from small_files import huge_png, jpeg, tree
from test_command_lines import outcome

import analyze
import sample
from prepare import arrays, cbt, imagenet
from tasks.decode import to_8_bits

pytestmark = pytest.mark.skipif(not sys.platform.startswith('linux'), reason='memory is limited as Linux does it')
TB = 2 ** 40


def refused(tmp_path, *calls):
    """Fails unless each call (main, *words) of a program prints one line and exits with code 2. All together may take
    128 MB of memory and 20 seconds, and create nothing in tmp_path but locks. Returns the lines."""
    out, into = os.pipe()
    child = os.fork()
    if not child:
        torch.set_num_threads(1)  # the threads of the parent are not in a forked process
        signal.alarm(20)
        with open('/proc/self/statm') as f:
            room = int(f.read().split()[0]) * resource.getpagesize() + 2 ** 27
        resource.setrlimit(resource.RLIMIT_AS, (room, room))
        os.write(into, json.dumps([outcome(main, map(str, words), tmp_path) for main, *words in calls]).encode())
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    os.close(into)
    with os.fdopen(out) as f:
        text = f.read()
    assert status == 0 and text, f'the program ended with status {status}'
    for found, said in json.loads(text):
        assert found == 'refused' and 'MemoryError' not in said and 'allocate' not in said  # it was not even asked for
    return [said for _, said in json.loads(text)]


@pytest.fixture(scope='module')
def run(tmp_path_factory):
    """A run that names pictures."""
    out = save_run(tmp_path_factory.mktemp('runs') / 'a', picture_network(patch_size=2), CLASSES)
    tree(out, {'a.jpg': jpeg()})
    sample.main([f'--ckpt={out}', f'--image={out}/a.jpg'])  # torch loads parts of itself late: once for all
    return out


# ---- pictures

POSTSCRIPT = b'%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n'
BROKEN = {'a.jpg': POSTSCRIPT, 'b.png': huge_png(), 'f.jpg': b'', 'g.jpg': jpeg(60, 60)[:900]}


def test_broken_pictures_are_refused_to_look_at(run, tmp_path):
    tree(tmp_path, BROKEN)
    calls = [(main, *words, f'--ckpt={run}', f'--image={tmp_path / name}') for name in BROKEN
             for main, *words in ((sample.main,), (analyze.main, 'layers', f'--out={tmp_path}/x.png'))]
    for (*_, image), line in zip(calls, refused(tmp_path, *calls), strict=True):
        assert image.removeprefix('--image=') in line


def test_pictures_with_a_decimal_point_are_refused():
    """Nobody says whether they go up to 1 or to 255."""
    with pytest.raises(ValueError):
        to_8_bits(Image.fromarray(np.random.default_rng(0).random((8, 8), np.float32)))


def test_no_picture_starts_a_program(run, tmp_path, monkeypatch, capsys):
    """A PostScript file that is called a picture would be drawn by Ghostscript."""
    ghostscript = Mock(side_effect=OSError)
    monkeypatch.setattr(EpsImagePlugin, 'Ghostscript', ghostscript)
    cat = tree(tmp_path / 'train' / 'c', {'cat.jpg': POSTSCRIPT}) / 'cat.jpg'
    with pytest.raises(OSError):
        Image.open(cat).load()
    assert ghostscript.call_count == 1  # so it would be noticed
    fails(capsys, sample.main, f'--ckpt={run}', f'--image={cat}')
    with pytest.raises(ValueError):
        save_pack(tmp_path / 'e', {'val': [('a', 0, str(cat))]}, ['x'], workers=0)
    assert ghostscript.call_count == 1


# ---- archives and arrays that say they are huge

def header(name, size, kind=tarfile.REGTYPE):
    """A member of a tar archive that says it has this size, without its content."""
    member = tarfile.TarInfo(name)
    member.size, member.type = size, kind
    return member.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.slow
def test_what_has_or_hides_a_terabyte_is_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr(arrays, 'MOST_UNZIPPED', 2 ** 24)
    text = 'cbtest_CN_test_2500ex.txt'
    idx, npy = b'\0\0\x08\3' + struct.pack('>III', 5000, 1000, 1000), io.BytesIO()
    np.lib.format.write_array_header_1_0(npy, {'descr': '|u1', 'fortran_order': False, 'shape': (10 ** 6,) * 2})
    members = {'large': ('c/a.JPEG', TB), 'endless': ('other', 2 ** 70),
               'name': ('x', 2 ** 33, tarfile.GNUTYPE_LONGNAME)}
    tars = {f'{name}.tar.gz': gzip.compress(header(*member) + bytes(2 ** 25 if name == 'name' else 10 ** 4))
            for name, member in members.items()}
    texts = {'text.tgz': gzip.compress(header(text, TB) + bytes(10 ** 4))}
    numbers = {'idx': idx + bytes(99), 'idx.gz': gzip.compress(idx + bytes(99)), 'x.npy': npy.getvalue() + bytes(99),
               'bomb.gz': gzip.compress(idx + bytes(2 ** 25))}
    tree(tmp_path, tars | texts | numbers)
    out = '--out', tmp_path / 'd'
    calls = [*((imagenet.main, '--workers', '0', *out, '--from', tmp_path / file) for file in tars),
             *((cbt.main, *out, '--from', tmp_path / file) for file in texts),
             *((arrays.main, *out, '--images', tmp_path / file, '--labels', tmp_path / file) for file in numbers)]
    for (*_, file), line in zip(calls, refused(tmp_path, *calls), strict=True):
        assert str(file) in line or text in line
