"""Files that strangers made: what could hang, fill the memory or start a program is refused in one line, and nothing is
created."""
import bz2
import contextlib
import gzip
import io
import json
import os
import resource
import signal
import struct
import subprocess
import sys
import tarfile
import traceback
import zipfile
import zlib

import numpy as np
import pytest
import torch
from helpers import fails, loud, save_run, text_network
from PIL import EpsImagePlugin, Image
from small_files import jpeg, tree

import analyze
import sample
from engine import settings
from model_crate import CRATE, CRATEConfig
from prepare import arrays, imagefolder, imagenet, lambada
from prepare.lib.pictures import save_pack
from tasks.decode import to_rgb

pytestmark = pytest.mark.skipif(not sys.platform.startswith('linux'), reason='memory is limited as Linux does it')
TB = 2 ** 40


def refused(tmp_path, *calls):
    """The one line that each call (main, *words) of a program prints before it exits with code 2. All together may take
    128 MB of memory and 20 seconds, and create nothing in tmp_path but locks."""
    before, log = created(tmp_path), os.memfd_create('log')
    child = os.fork()
    if not child:
        torch.set_num_threads(1)  # the threads of the parent are not in a forked process
        signal.alarm(20)
        with open('/proc/self/statm') as f:
            room = int(f.read().split()[0]) * resource.getpagesize() + 2 ** 27
        resource.setrlimit(resource.RLIMIT_AS, (room, room))
        ends = [end_of(*call) for call in calls]
        with os.fdopen(log, 'w') as f:
            json.dump(ends, f)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    with os.fdopen(log) as f:
        f.seek(0)
        text = f.read()
    assert status == 0 and text, f'the program ended with status {status}'
    for code, said in json.loads(text):
        assert code == 2 and said.startswith('error: ') and said.count('\n') == 1, said
        assert 'MemoryError' not in said and 'allocate' not in said  # it was not even asked for
    assert created(tmp_path) == before
    return [said for _, said in json.loads(text)]


def end_of(main, *words):
    """(exit code, what is printed on standard error) of a program."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try:
            with settings.one_line_errors():
                main([str(word) for word in words])
            return 0, said.getvalue()
        except SystemExit as e:
            return e.code, said.getvalue()
        except BaseException:
            return 1, said.getvalue() + traceback.format_exc()


def created(folder):
    return sorted(path for path in folder.rglob('*') if path.suffix != '.lock')


def sparse(path, content, size):
    """A file that begins with the content and has this size, but takes no room on the disk."""
    path.write_bytes(content)
    os.truncate(path, size)
    return path


def zeros(compressor, size, start=b''):
    """So many zeros after the start, compressed piece by piece."""
    piece, pieces = bytes(2 ** 20), [compressor.compress(start)]
    for _ in range(size >> 20):
        pieces.append(compressor.compress(piece))
    return b''.join(pieces) + compressor.flush()


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
    """A run that names pictures and one that writes text."""
    place = tmp_path_factory.mktemp('runs')
    torch.manual_seed(0)
    model = loud(CRATE(CRATEConfig(image_size=8, n_layer=1, n_head=2, n_embd=16, patch_size=2, num_classes=4)))
    save_run(place / 'pictures', model, {'kind': 'images', 'classes': list('abcd')})
    save_run(place / 'text', text_network('aot', vocab_size=256), {'kind': 'text', 'tokenizer': {'name': 'bytes'}})
    sample.main([f'--ckpt={place}/text', '--max_new_tokens=0'])  # torch loads parts of itself late: once for all
    return place


# ---- pictures and prompts

def png(width, height):
    """A PNG file that says it has this size."""
    file = bytearray(jpeg(8, 8, kind='PNG'))
    file[16:24] = struct.pack('>II', width, height)
    file[29:33] = struct.pack('>I', zlib.crc32(file[12:29]))
    return bytes(file)


POSTSCRIPT = b'%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n'
BROKEN = {'a.jpg': POSTSCRIPT, 'b.png': png(30000, 30000), 'f.jpg': b'', 'g.jpg': jpeg(60, 60)[:900]}


def test_broken_pictures_are_refused_to_look_at(runs, tmp_path):
    tree(tmp_path, BROKEN)
    calls = [(main, *words, f'--ckpt={runs}/pictures', f'--image={tmp_path / name}') for name in BROKEN
             for main, *words in ((sample.main,), (analyze.main, 'layers', f'--out={tmp_path}/x.png'))]
    for (*_, image), line in zip(calls, refused(tmp_path, *calls), strict=True):
        assert image.removeprefix('--image=') in line and 'give another --image' in line


def test_broken_pictures_are_left_out_of_packs(tmp_path):
    for split in 'train', 'val':
        tree(tmp_path / split / 'cat', {'z.jpg': jpeg()} | BROKEN)
    words = str(tmp_path), '--out', f'{tmp_path}/d', '--workers', '0'
    with pytest.raises(settings.Mistake, match='pictures cannot be decoded'):
        imagefolder.main(words)
    assert not (tmp_path / 'd').exists()
    imagefolder.main([*words, '--max_bad', '1'])
    assert np.load(tmp_path / 'd' / 'train.names.npy').tolist() == [b'cat/z.jpg']


def test_pictures_with_a_decimal_point_are_refused():
    """Nobody says whether they go up to 1 or to 255."""
    with pytest.raises(ValueError, match='decimal point'):
        to_rgb(Image.fromarray(np.random.default_rng(0).random((8, 8), np.float32)))


def test_no_picture_starts_a_program(runs, tmp_path, monkeypatch):
    """A PostScript file that is called a picture would be drawn by Ghostscript."""
    marker, gs = tmp_path / 'gs_was_here', tmp_path / 'gs'
    gs.write_text(f'#!/bin/sh\ntouch {marker}\n')
    gs.chmod(0o755)
    monkeypatch.setenv('PATH', str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(EpsImagePlugin, 'gs_binary', None)
    cat = tree(tmp_path / 'train' / 'c', {'cat.jpg': POSTSCRIPT}) / 'cat.jpg'
    with pytest.raises(OSError):
        Image.open(cat).load()
    assert marker.exists()  # so it would be noticed
    marker.unlink()
    refused(tmp_path, (sample.main, f'--ckpt={runs}/pictures', f'--image={cat}'))
    with pytest.raises(ValueError, match='1 of 1 pictures cannot be decoded'):
        save_pack(tmp_path / 'e', {'val': [('a', 0, str(cat))]}, ['x'], workers=0)
    assert not marker.exists()


def test_a_prompt_is_a_file_of_text(runs, tmp_path, capsys):
    (tmp_path / 'bytes').write_bytes(b'\xff')
    line = fails(capsys, sample.main, f'--ckpt={runs}/text', f'--start=FILE:{tmp_path}/bytes')
    assert 'invalid start byte' in line
    (tmp_path / 'good').write_bytes(b'a\r\nb')
    sample.main([f'--ckpt={runs}/text', f'--start=FILE:{tmp_path}/good', '--max_new_tokens=0'])
    assert capsys.readouterr().out == 'a\nb\n'


# ---- archives

def header(name, size, kind=tarfile.REGTYPE, pax=None):
    """A member of a tar archive that says it has this size, without its content."""
    member = tarfile.TarInfo(name)
    member.size, member.type, member.pax_headers = size, kind, pax or {}
    return member.tobuf(tarfile.PAX_FORMAT if pax else tarfile.GNU_FORMAT)


def holes(folder, form):
    """A tar archive of a file with 1 TB of holes, as GNU tar makes it."""
    sparse(folder / 'data_batch_1', b'', TB)
    words = ['tar', '-S', f'--format={form}', '-cf', '-', 'data_batch_1']
    content = subprocess.run(words, cwd=folder, capture_output=True, check=True).stdout
    (folder / 'data_batch_1').unlink()
    assert len(content) < 2 ** 20
    return content


def chain(kind):
    return b''.join(header('x', 512, kind) + b'9 path=a\n'.ljust(512, b'\0') for _ in range(3000))


def list_of_holes():
    """The header of a sparse file that says that a list of holes goes on, and is itself such a list."""
    block = bytearray(header('x', 9, tarfile.GNUTYPE_SPARSE))
    block[482] = block[504] = 1
    block[148:156] = b' ' * 8
    block[148:156] = b'%06o\0 ' % sum(block)
    return bytes(block)


TARS = {
    'holes gnu': lambda folder: holes(folder, 'gnu'), 'holes posix': lambda folder: holes(folder, 'posix'),
    'holes early': lambda folder: header('x', 9, pax={'GNU.sparse.map': '0,1', 'GNU.sparse.size': str(TB)}),
    'large': lambda folder: header('c/a.JPEG', 5 * 10 ** 9) + bytes(10 ** 4),
    'endless': lambda folder: header('other', 2 ** 70) + bytes(10 ** 4),
    'pax': lambda folder: header('c/a.JPEG', 1, pax={'size': str(2 ** 70)}) + bytes(10 ** 4),
    'below nothing': lambda folder: header('other', -TB) + bytes(10 ** 4),
    'long name': lambda folder: gzip.compress(header('x', 2 ** 33, tarfile.GNUTYPE_LONGNAME) + bytes(2 ** 25)),
    'names of names': lambda folder: chain(tarfile.GNUTYPE_LONGNAME), 'pax of pax': lambda folder: chain(b'x'),
    'list of holes': lambda folder: gzip.compress(list_of_holes() * 2 ** 16),
    'bzip2': lambda folder: zeros(bz2.BZ2Compressor(), 160 * 2 ** 20, header('other', 2 ** 28))}


@pytest.mark.slow
def test_hostile_tar_archives_are_refused(tmp_path):
    tree(tmp_path, {kind: make(tmp_path) for kind, make in TARS.items()})
    calls = ((imagenet.main, '--from', tmp_path / kind, '--out', tmp_path / 'd', '--workers', '0') for kind in TARS)
    for kind, line in zip(TARS, refused(tmp_path, *calls)):
        assert f'{tmp_path / kind} is damaged' in line and 'get it again' in line


def test_every_script_refuses_a_member_of_a_terabyte(tmp_path):
    sparse(tmp_path / imagenet.VAL_TAR, header('a.JPEG', TB), TB + 10 ** 4)
    tree(tmp_path, {'train/c/a.jpg': jpeg(), imagenet.SYNSETS: b'c\n',
                    'lambada-dataset.tar.gz': header('lambada_test_plain_text.txt', TB)})
    (tmp_path / 'whole.tar').write_bytes(header('c/a.JPEG', TB) + bytes(10 ** 4))
    calls = ((main, '--from', source, '--out', tmp_path / 'd', *['--workers', '0'][:2 * (main is not lambada.main)])
             for main, source in ((imagenet.main, tmp_path), (imagenet.main, tmp_path / 'whole.tar'),
                                  (lambada.main, tmp_path / 'lambada-dataset.tar.gz')))
    for line in refused(tmp_path, *calls):
        assert 'bytes' in line and 'get it again' in line, line


@pytest.mark.slow
def test_hostile_zip_archives_are_refused(tmp_path):
    name, size, messages = 'lambada_test_plain_text.txt', 130 * 2 ** 20, {}
    for kind in zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2:
        with zipfile.ZipFile(tmp_path / f'{kind}.zip', 'w', kind) as z, z.open(name, 'w') as f:
            for _ in range(size >> 20):
                f.write(bytes(2 ** 20))
        content = (tmp_path / f'{kind}.zip').read_bytes()
        assert content.count(struct.pack('<I', size)) == 2  # before the content, and in the list
        (tmp_path / f'lie{kind}.zip').write_bytes(content.replace(struct.pack('<I', size), struct.pack('<I', 9)))
        messages |= {f'{kind}.zip': f'{name} has 136,314,880 bytes', f'lie{kind}.zip': 'get it again'}
    calls = ((lambada.main, '--from', tmp_path / file, '--out', tmp_path / 'd') for file in messages)
    for message, line in zip(messages.values(), refused(tmp_path, *calls)):
        assert message in line and 'get it again' in line


# ---- other files

def test_hostile_arrays_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(arrays, 'MOST_UNZIPPED', 2 ** 24)
    says = b'\0\0\x08\3' + struct.pack('>III', 5000, 1000, 1000)
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {'descr': '|u1', 'fortran_order': False, 'shape': (10 ** 6,) * 2})
    npy = buffer.getvalue()
    tree(tmp_path, {'idx': says + bytes(99), 'idx.gz': gzip.compress(says + bytes(99)),
                    'bomb.gz': gzip.compress(says + bytes(2 ** 25)), 'x.npy': npy + bytes(99)})
    files = [str(path) for path in tmp_path.iterdir()]
    calls = ((arrays.main, '--images', file, '--labels', file, '--out', tmp_path / 'd') for file in files)
    for file, line in zip(files, refused(tmp_path, *calls)):
        assert f'{file}: expected a whole .npy file' in line
