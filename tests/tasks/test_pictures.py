"""One split of a dataset of pictures: both storages, panoramas, order of batches, shares, reading processes."""
import gc
import io
import multiprocessing.resource_sharer
import os
import re
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import JPEGS, fails, jpeg, quadrants, save_pack
from PIL import Image
from small_files import tree
from test_two_at_once import start, until

import train
from engine.mistakes import Mistake, one_line_errors
from tasks import augment
from tasks.pictures import ImageSplit, labelled_pictures_of, order, share_of_each

WHOLE = [slice(None)]


@pytest.fixture
def numbered(pictures_data):
    return ImageSplit(pictures_data / 'numbered', 'train')


def indices(batches):
    """Of pictures in `numbered`, in the order of batches."""
    return [int(i) for x, *_ in batches for i in x[:, 0, 0, 0]]


def joined(batches):
    return [torch.cat(parts) for parts in zip(*batches)]


# ---- what is saved is read


@pytest.mark.parametrize('split', ['train', 'val'])
@pytest.mark.parametrize('name', ['quads', 'grey', 'pack', 'grey_pack'])
def test_pictures_that_are_saved_are_read_and_jpegs_as_pillow_reads_them(name, split, pictures_data):
    images = ImageSplit(pictures_data / name, split)
    if 'pack' in name:
        names = np.load(images.folder / f'{split}.names.npy').tolist()
        assert names == [name.encode() for name, _, _ in JPEGS[split]] and images.classes == ['x', 'y', 'z', 'w']
        content, offsets = images.pixels
        files = [io.BytesIO(content[a:b].tobytes()) for a, b in zip(offsets, offsets[1:])]
        pictures, labels = [np.asarray(Image.open(file)) for file in files], [label for _, label, _ in JPEGS[split]]
    else:
        pictures, labels = quadrants(40) if split == 'train' else quadrants(20, 1)
        pictures = pictures.max(-1) if name == 'grey' else pictures
        assert isinstance(images.pixels, np.memmap) and images.classes == list('abcd')
    x, sizes, y, _ = next(images.fixed(100, 1))
    assert x.dtype == torch.uint8 and sizes.dtype == y.dtype == torch.int64 and len(images) == len(x) == len(labels)
    assert images.channels == x.size(3) == (1 if 'grey' in name else 3) and y.tolist() == list(labels)
    for padded, (h, w), picture in zip(x.numpy(), sizes.tolist(), pictures, strict=True):
        assert np.array_equal(padded[:h, :w], picture.reshape(h, w, -1))
        assert not padded[h:].any() and not padded[:, w:].any()


@pytest.mark.slow
@pytest.mark.parametrize('place, value', [(slice(None), 7), (slice(40, None), 0)])
def test_a_damaged_picture_is_refused_in_one_line(place, value, pictures_data, tmp_path, capsys):
    """In a reading process too."""
    path = shutil.copytree(pictures_data / 'pack', tmp_path / 'pack') / 'val.jpeg.npy'
    content = np.load(path)
    content[place] = value
    np.save(path, content)
    for workers in (0, 1):
        images = ImageSplit(tmp_path / 'pack', 'val', workers)
        said = fails(capsys, lambda words: list(images.fixed(4, 100)))
        assert said.startswith(f'error: a picture in {tmp_path}/pack')


# ---- panoramas

@pytest.fixture(scope='module')
def panoramas(tmp_path_factory):
    """A pack whose pictures have short sides of at most 16 pixels, and long ones of up to 2000."""
    out = tmp_path_factory.mktemp('wide') / 'wide'
    shapes = [(16, 20), (16, 2000), (30, 16), (16, 48), (2000, 16), (12, 1500), (16, 16)]
    picture = [(f'{i}.jpg', i % 2, jpeg(*shape, i)) for i, shape in enumerate(shapes)]
    save_pack(out, {'train': picture, 'val': picture}, 'ab', size=16, workers=0)
    return out


def small(x):
    """Whatever is in it, a batch of n pictures has at most n x 9 s^2 pixels, s the largest short side."""
    return x.shape[1] * x.shape[2] <= 9 * 16 ** 2


def test_a_panorama_does_not_blow_up_its_batch(panoramas):
    images, draws = ImageSplit(panoramas, 'train'), np.random.default_rng(0).random((7, 22))
    for images.workers in (0, 2):
        for cut_at_random in (False, True):
            for x, sizes, _, _ in images.batches(7, 1, WHOLE, 0, 3, 22, (8, 8), cut_at_random):
                assert small(x) and (sizes.amax(0) == torch.tensor(x.shape[1:3])).all()
        assert all(small(x) for x, *_ in images.fixed(3, 9, image_size=(8, 8)))
    whole, sizes, _, _ = images.batch(np.arange(7), draws[:, :0])
    assert whole.shape[1:3] == (2000, 2000)
    parts, short, _, _ = images.batch(np.arange(7), draws, (8, 8), True)
    for i, (h, w) in enumerate(short):
        top, left = (round((have - kept) * place) for have, kept, place in zip(sizes[i], (h, w), draws[i, augment.PLACE][::-1]))
        assert np.array_equal(parts[i, :h, :w], whole[i, top:top + h, left:left + w])
        assert i in (1, 4, 5) or (short[i] == sizes[i]).all()  # ordinary pictures stay what they are


# ---- the order of batches


def test_every_epoch_goes_through_all_pictures_in_another_order(numbered):
    seen = indices(numbered.batches(10, 7, [slice(0, 4), slice(4, 10)], 0, 10))  # 4 epochs of 25
    epochs = [seen[i:i + 25] for i in range(0, 100, 25)]
    assert all(sorted(epoch) == list(range(25)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4 and list(range(25)) not in epochs
    assert indices(numbered.batches(50, 7, WHOLE, 0, 2)) == seen  # two epochs in a batch


def test_no_random_number_is_used_twice_and_validation_is_evenly_spaced(numbered):
    draws = torch.cat([batch[3] for batch in numbered.batches(12, 7, WHOLE, 0, 9, draws=3)])
    assert 0 <= draws.min() and draws.max() < 1 and len(draws.unique()) == draws.numel() == 9 * 12 * 3
    whole = list(numbered.fixed(4, 100, draws=5))
    assert indices(whole) == list(range(25)) and [len(x) for x, *_ in whole] == [4] * 6 + [1]
    assert len(torch.cat([batch[3] for batch in whole]).unique()) == 125
    assert indices(numbered.fixed(3, 3)) == list(range(0, 25, 3))


def test_a_share_is_the_seeds_and_an_epoch_goes_through_it(pictures_data):
    whole, a, b, c = (ImageSplit(pictures_data / 'quads', 'train', 0, share, seed)
                      for share, seed in ((1.0, 1), (0.25, 1), (0.25, 1), (0.25, 2)))
    assert np.array_equal(a.chosen, b.chosen) and not np.array_equal(a.chosen, c.chosen) and len(a) == 8
    found, want = joined(a.batches(1, 0, WHOLE, 0, 8)), joined(whole.fixed(40, 1))
    places = order(0, 0, 8)
    assert all(torch.equal(found[i], want[i][a.chosen[places]]) for i in (0, 2)) and sorted(places) == [*range(8)]


@pytest.mark.parametrize('share', [1e-9, 0.1, 0.125, 0.25, 0.5, 1 / 3, 0.7, 0.999])
@pytest.mark.parametrize('seed', [0, 1, 1337])
def test_a_share_is_that_of_each_class_at_least_one_and_part_of_a_larger_share(share, seed):
    """Classes of 0, 1, 2, 3, 4, 6, 10 and 40 pictures."""
    sizes = np.array([3, 0, 1, 40, 10, 2, 6, 4, 1, 0])
    labels = np.random.default_rng(5).permutation(np.repeat(range(10), sizes))
    rows, more = share_of_each(labels, share, seed), share_of_each(labels, (1 + share) / 2, seed)
    assert rows.tolist() == sorted(set(rows.tolist())) and set(rows.tolist()) <= set(more.tolist())
    counts = np.bincount(labels[rows], minlength=10)
    assert ((counts >= np.minimum(1, sizes)) & (counts <= sizes)).all()
    assert (abs(counts - share * sizes) <= np.where(counts > 1, 0.5, 1)).all()


@pytest.mark.parametrize('workers', [0, 1])
@pytest.mark.parametrize('name, file', [('quads', 'images'), ('pack', 'jpeg'), ('pack', 'offsets')])
def test_pictures_that_are_cut_off_under_a_run_are_one_line(name, file, workers, pictures_data, tmp_path):
    shutil.copytree(pictures_data / name, tmp_path / 'd')
    batches = ImageSplit(tmp_path / 'd', 'train', workers).batches(4, 1, WHOLE, 0, 100)
    next(batches)
    path = tmp_path / 'd' / f'train.{file}.npy'
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(Mistake, match=str(tmp_path / 'd')):
        for _ in batches:
            pass


# ---- reading processes


def pids():
    return sorted(reader.pid for reader in multiprocessing.active_children())


@pytest.mark.slow
@pytest.mark.parametrize('name', ['numbered', 'pack'])
def test_readers_change_nothing_and_end_with_their_batches_even_without_garbage_collection(name, pictures_data):
    gc.collect()  # what the test before may have left
    state, before = torch.get_rng_state(), pids()
    plain, images = (ImageSplit(pictures_data / name, 'train', workers) for workers in (0, 2))
    gc.disable()
    try:
        for kind in (lambda im: im.batches(6, 7, [slice(0, 2), slice(2, 6)], 3, 9, draws=2), lambda im: im.fixed(4, 9)):
            for one, two in zip(kind(plain), kind(images), strict=True):
                assert all(torch.equal(p, q) for p, q in zip(one, two))
            assert pids() == before
        batches = images.batches(4, 1, WHOLE, 0, 100)
        next(batches)
        assert len(pids()) == len(before) + 2
        del batches
        assert pids() == before
    finally:
        gc.enable()
    assert torch.equal(torch.get_rng_state(), state)  # nor is the random stream touched


def test_a_signal_to_the_group_does_not_reach_a_reader_that_begins(pictures_data, tmp_path, monkeypatch):
    """PyTorch calls torch.set_num_threads in a reader when SIGTERM can end it already, and before worker_init_fn."""
    group = tmp_path / 'group'
    monkeypatch.setattr(torch, 'set_num_threads', lambda n: group.write_text(str(os.getpgrp())))
    next(ImageSplit(pictures_data / 'quads', 'val', workers=1).fixed(4, 1))
    assert int(group.read_text()) != os.getpgrp()


@pytest.fixture
def of_two_readers(quads, tmp_path):
    """Words of a run whose pictures two processes read."""
    return [*quads, '--dataset=pack', '--image_size=8', '--workers=2',
            f'--out_dir={tmp_path}/run']


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith('linux'), reason='/proc tells the readers of a process')
@pytest.mark.parametrize('number', [signal.SIGKILL, signal.SIGSEGV])
def test_a_run_whose_reader_is_killed_says_how_to_go_on(number, of_two_readers, tmp_path):
    running = start('train.py', *of_two_readers, '--max_iters=100000')
    until((tmp_path / 'run' / 'last.pt').exists, running)
    readers = Path(f'/proc/{running.pid}/task/{running.pid}/children').read_text().split()
    os.kill(int(readers[0]), number)
    _, errors = running.communicate(timeout=100)
    assert running.returncode == 2 and 'train.py", line' not in errors, errors
    assert re.search('error: .*--init_from=resume.*--workers', errors)


@pytest.mark.parametrize('error', [ConnectionResetError, ConnectionRefusedError, BrokenPipeError, EOFError])
def test_a_reader_that_ends_while_it_hands_over_a_batch_is_one_line(error, of_two_readers, capsys, monkeypatch):
    """The error of its connection comes before the signal of its end."""
    before = set(pids())

    def detach(handle):
        os.kill(min({*pids()} - before), signal.SIGKILL)
        raise error('no answer')
    monkeypatch.setattr(multiprocessing.resource_sharer.DupFd, 'detach', detach)
    assert '--workers' in fails(capsys, train.main, *of_two_readers)


@pytest.mark.parametrize('error', [RuntimeError, ValueError, ConnectionResetError])
def test_a_mistake_in_the_code_of_a_reader_keeps_its_traceback(error, pictures_data, monkeypatch):
    def batch(*_):
        raise error('a fork did this')
    monkeypatch.setattr(ImageSplit, 'batch', batch)
    batches = ImageSplit(pictures_data / 'quads', 'val', workers=1).fixed(4, 1)
    with pytest.raises(error, match='a fork did this'), one_line_errors():
        next(batches)


@pytest.mark.parametrize('cores, processes, each', [(2, 1, 2), (12, 4, 3), (64, 2, 16), (7, 4, 1), (2, 8, 1)])
def test_processes_on_a_machine_share_its_cores_for_readers(cores, processes, each, pictures_data, monkeypatch):
    monkeypatch.setattr(os, 'cpu_count', lambda: 999)
    monkeypatch.setattr(os, 'sched_getaffinity', lambda pid: set(range(cores)), raising=False)
    monkeypatch.setenv('LOCAL_WORLD_SIZE', str(processes))
    for name, asked, want in (('pack', -1, each), ('pack', 5, 5), ('quads', -1, 0)):  # nothing to decode
        assert ImageSplit(pictures_data / name, 'val', asked).workers == want


# ---- files to look at

GOOD = jpeg(30, 40, seed=0)
BROKEN = {'cut': GOOD[:400], 'empty': b'', 'text': b'no picture at all'}


def looked_at(path, count=99):
    """{name: class} of the pictures that a path stands for."""
    return {name: label for name, _, label in labelled_pictures_of(path, count, seed=0)}


@pytest.mark.parametrize('kind', BROKEN)
@pytest.mark.parametrize('place', ['', 'below/', 'below/deep/'])
def test_a_broken_picture_of_a_folder_is_left_out_and_named(kind, place, tmp_path, capsys):
    tree(tmp_path, {'a.jpg': GOOD, f'{place}b.jpg': BROKEN[kind], 'c.jpg': GOOD})

    assert list(looked_at(tmp_path)) == ['a.jpg', 'c.jpg']

    said = capsys.readouterr()
    assert said.out == '' and f'{place}b.jpg' in said.err


def test_a_broken_picture_of_a_class_is_replaced_by_another_one(tmp_path):
    tree(tmp_path, {f'cat/{i}.jpg': BROKEN['cut'] for i in range(9)} | {'cat/good.jpg': GOOD})

    assert looked_at(tmp_path, 1) == {'cat/good.jpg': 'cat'}


def test_a_folder_of_broken_pictures_is_refused(tmp_path):
    tree(tmp_path, {f'{kind}.jpg': content for kind, content in BROKEN.items()})

    with pytest.raises(Mistake):
        looked_at(tmp_path)


def test_pictures_in_folders_beside_pictures_are_read_and_are_no_classes(tmp_path, monkeypatch):
    names = ['a.jpg', 'below/b.JPG', 'below/deep/c.png', 'other/d.jpeg']
    tree(tmp_path / 'f', dict.fromkeys([*names, '.git/e.jpg', 'below/.f.jpg'], GOOD))
    (tmp_path / 'f' / 'other' / 'around').symlink_to(tmp_path / 'f')
    monkeypatch.chdir(tmp_path / 'f' / 'below')

    for path in (tmp_path / 'f', '..', tmp_path / 'f' / 'below' / '..'):
        assert looked_at(path, 1) == dict.fromkeys(names)


def test_other_files_of_a_folder_are_named(tmp_path, capsys):
    tree(tmp_path, {'a.jpg': GOOD, 'b.heic': b'', 'below/notes.txt': b''})

    looked_at(tmp_path)

    said = capsys.readouterr().err
    assert 'b.heic' in said and 'notes.txt' in said
