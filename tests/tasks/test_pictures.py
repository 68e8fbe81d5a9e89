"""One split of a dataset of pictures: both storages, panoramas, order of batches, shares, reading
processes."""
import gc
import io
import multiprocessing.resource_sharer
import os
import re
import shutil
import signal
import time
import traceback

import numpy as np
import pytest
import torch
from helpers import JPEGS, before_step, fails, jpeg, quadrants, save_pack
from PIL import Image
from small_files import tree

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


@pytest.mark.parametrize('name', ['quads', 'grey'])
def test_pictures_that_are_saved_are_read(name, pictures_data):
    images = ImageSplit(pictures_data / name, 'val')
    pictures, labels = quadrants(20, 1)
    if name == 'grey':
        pictures = pictures.max(-1, keepdims=True)

    x, sizes, y, _ = next(images.fixed(100, 1))

    assert isinstance(images.pixels, np.memmap) and images.classes == list('abcd')
    assert np.array_equal(x, pictures) and np.array_equal(y, labels)
    assert x.dtype == torch.uint8 and sizes.dtype == y.dtype == torch.int64
    assert images.channels == x.size(3) and sizes.tolist() == [[8, 8]] * 20


@pytest.mark.parametrize('name, channels', [('pack', 3), ('grey_pack', 1)])
def test_jpegs_that_are_saved_are_what_pillow_reads(name, channels, pictures_data):
    images = ImageSplit(pictures_data / name, 'val')
    names = np.load(images.folder / 'val.names.npy').tolist()
    content, offsets = images.pixels

    x, sizes, y, _ = next(images.fixed(100, 1))

    assert names == [name.encode() for name, _, _ in JPEGS['val']]
    assert images.classes == ['x', 'y', 'z', 'w']
    assert y.tolist() == [label for _, label, _ in JPEGS['val']]
    for i, (padded, (h, w)) in enumerate(zip(x.numpy(), sizes.tolist(), strict=True)):
        file = io.BytesIO(content[offsets[i]:offsets[i + 1]].tobytes())
        picture = np.asarray(Image.open(file)).reshape(h, w, channels)
        assert np.array_equal(padded[:h, :w], picture)
        assert not padded[h:].any() and not padded[:, w:].any()


@pytest.mark.slow
def test_a_damaged_picture_is_refused_in_one_line(pictures_data, tmp_path, capsys):
    """In a reading process too."""
    path = shutil.copytree(pictures_data / 'pack', tmp_path / 'pack') / 'val.jpeg.npy'
    content = np.load(path)
    content[40:] = 0
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
    """Whatever is in it, a batch of n pictures has at most n x 9 s^2 pixels, where s is the largest
    short side."""
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
        x, y = draws[i, augment.PLACE]
        top = round((sizes[i, 0].item() - h.item()) * y)
        left = round((sizes[i, 1].item() - w.item()) * x)
        assert np.array_equal(parts[i, :h, :w], whole[i, top:top + h, left:left + w])
        is_panorama = i in (1, 4, 5)
        assert is_panorama or (short[i] == sizes[i]).all()


# ---- the order of batches


def test_every_epoch_goes_through_all_pictures_in_another_order(numbered):
    seen = indices(numbered.batches(10, 7, [slice(0, 4), slice(4, 10)], 0, 10))  # 4 epochs of 25
    epochs = [seen[i:i + 25] for i in range(0, 100, 25)]
    assert all(sorted(epoch) == list(range(25)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4 and list(range(25)) not in epochs
    assert indices(numbered.batches(50, 7, WHOLE, 0, 2)) == seen  # two epochs in a batch


def test_no_random_number_is_used_twice_and_validation_is_evenly_spaced(numbered):
    draws = torch.cat([batch[3] for batch in numbered.batches(12, 7, WHOLE, 0, 9, draws=3)])
    assert 0 <= draws.min() and draws.max() < 1
    assert len(draws.unique()) == draws.numel() == 9 * 12 * 3
    whole = list(numbered.fixed(4, 100, draws=5))
    assert indices(whole) == list(range(25)) and [len(x) for x, *_ in whole] == [4] * 6 + [1]
    assert len(torch.cat([batch[3] for batch in whole]).unique()) == 125
    assert indices(numbered.fixed(3, 3)) == list(range(0, 25, 3))


def test_a_share_is_the_seeds_and_an_epoch_goes_through_it(pictures_data):
    whole, a, b, c = (ImageSplit(pictures_data / 'quads', 'train', 0, share, seed)
                      for share, seed in ((1.0, 1), (0.25, 1), (0.25, 1), (0.25, 2)))
    assert np.array_equal(a.chosen, b.chosen) and len(a) == 8
    assert not np.array_equal(a.chosen, c.chosen)
    found = joined(a.batches(1, 0, WHOLE, 0, 8))
    want = joined(whole.fixed(40, 1))
    places = order(0, 0, 8)
    assert sorted(places) == [*range(8)]
    assert all(torch.equal(found[i], want[i][a.chosen[places]]) for i in (0, 2))


@pytest.mark.parametrize('share', [1e-9, 0.125, 1 / 3, 0.999])
def test_a_share_is_that_of_each_class_at_least_one_and_part_of_a_larger_share(share):
    """Classes of 0, 1, 2, 3, 4, 6, 10 and 40 pictures."""
    sizes = np.array([3, 0, 1, 40, 10, 2, 6, 4, 1, 0])
    labels = np.random.default_rng(5).permutation(np.repeat(range(10), sizes))
    rows = share_of_each(labels, share, seed=1)
    more = share_of_each(labels, (1 + share) / 2, seed=1)
    assert rows.tolist() == sorted(set(rows.tolist())) and set(rows) <= set(more)
    counts = np.bincount(labels[rows], minlength=10)
    assert ((counts >= np.minimum(1, sizes)) & (counts <= sizes)).all()
    assert (abs(counts - share * sizes) <= np.where(counts > 1, 0.5, 1)).all()


@pytest.mark.parametrize('name, file', [('quads', 'images'), ('pack', 'jpeg'), ('pack', 'offsets')])
def test_pictures_that_are_cut_off_under_a_run_are_one_line(name, file, pictures_data, tmp_path,
                                                            capsys):
    shutil.copytree(pictures_data / name, tmp_path / 'd')
    batches = ImageSplit(tmp_path / 'd', 'train').batches(4, 1, WHOLE, 0, 100)
    next(batches)
    path = tmp_path / 'd' / f'train.{file}.npy'
    os.truncate(path, path.stat().st_size // 2)
    assert str(tmp_path / 'd') in fails(capsys, lambda words: list(batches))


# ---- reading processes


def pids():
    return sorted(reader.pid for reader in multiprocessing.active_children())


@pytest.mark.slow
@pytest.mark.parametrize('name', ['numbered', 'pack'])
def test_readers_change_nothing_and_end_with_their_batches_without_garbage_collection(
        name, pictures_data):
    gc.collect()  # what the test before may have left
    state, before = torch.get_rng_state(), pids()
    plain, images = (ImageSplit(pictures_data / name, 'train', workers) for workers in (0, 2))
    gc.disable()
    try:
        parts = [slice(0, 2), slice(2, 6)]
        for one, two in zip(plain.batches(6, 7, parts, 3, 9, draws=2),
                            images.batches(6, 7, parts, 3, 9, draws=2), strict=True):
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


def test_a_signal_to_the_group_does_not_reach_a_reader_that_begins(pictures_data, tmp_path,
                                                                   monkeypatch):
    """PyTorch calls torch.set_num_threads in a reader when SIGTERM can end it already, and before
    worker_init_fn."""
    group = tmp_path / 'group'
    monkeypatch.setattr(torch, 'set_num_threads', lambda n: group.write_text(str(os.getpgrp())))
    next(ImageSplit(pictures_data / 'quads', 'val', workers=1).fixed(4, 1))
    assert int(group.read_text()) != os.getpgrp()


@pytest.fixture
def of_two_readers(quads, tmp_path):
    """Words of a run whose pictures two processes read."""
    return [*quads, '--dataset=pack', '--image_size=8', '--workers=2',
            f'--out_dir={tmp_path}/run']


def test_a_run_whose_reader_ends_says_how_to_go_on(of_two_readers, capsys, monkeypatch):
    before = set(pids())

    def end_a_reader():
        os.kill(min(set(pids()) - before), signal.SIGSEGV)
        time.sleep(9)  # until the signal of its end comes
    before_step(monkeypatch, 2, end_a_reader)
    monkeypatch.setattr('sys.argv', ['train.py'])

    said = fails(capsys, train.main, *of_two_readers, '--max_iters=100')
    assert re.search('--init_from=resume.*--workers', said)


@pytest.mark.parametrize('error', [ConnectionResetError, EOFError])
def test_a_reader_that_ends_while_it_hands_over_a_batch_is_one_line(error, of_two_readers, capsys,
                                                                    monkeypatch):
    """The error of its connection comes before the signal of its end."""
    before = set(pids())
    no_answer = error('no answer')

    def detach(handle):
        os.kill(min(set(pids()) - before), signal.SIGKILL)
        raise no_answer
    monkeypatch.setattr(multiprocessing.resource_sharer.DupFd, 'detach', detach)
    assert '--workers' in fails(capsys, train.main, *of_two_readers)
    traceback.clear_frames(no_answer.__traceback__)  # so that the other reader ends here


@pytest.mark.parametrize('error', [RuntimeError, ConnectionResetError])
def test_a_mistake_in_the_code_of_a_reader_keeps_its_traceback(error, pictures_data, monkeypatch):
    def batch(*_):
        raise error('a fork did this')
    monkeypatch.setattr(ImageSplit, 'batch', batch)
    batches = ImageSplit(pictures_data / 'quads', 'val', workers=1).fixed(4, 1)
    with pytest.raises(error, match='a fork did this') as e, one_line_errors():
        next(batches)
    traceback.clear_frames(e.tb)  # so that the reader ends here, and not in a later test


@pytest.mark.parametrize('cores, processes, each', [(12, 4, 3), (64, 2, 16), (2, 8, 1)])
def test_processes_on_a_machine_share_its_cores_for_readers(cores, processes, each, pictures_data,
                                                            monkeypatch):
    monkeypatch.setattr(os, 'cpu_count', lambda: 999)
    monkeypatch.setattr(os, 'sched_getaffinity', lambda pid: set(range(cores)), raising=False)
    monkeypatch.setenv('LOCAL_WORLD_SIZE', str(processes))
    assert ImageSplit(pictures_data / 'pack', 'val', -1).workers == each
    assert ImageSplit(pictures_data / 'pack', 'val', 5).workers == 5
    assert ImageSplit(pictures_data / 'quads', 'val', -1).workers == 0  # nothing to decode


# ---- files to look at

GOOD = jpeg(30, 40, seed=0)
BROKEN = {'cut.jpg': GOOD[:400], 'below/empty.jpg': b'', 'below/deep/text.jpg': b'no picture'}


def looked_at(path, count=99):
    """{name: class} of the pictures that a path stands for."""
    return {name: label for name, _, label in labelled_pictures_of(path, count, seed=0)}


def test_broken_pictures_of_a_folder_are_left_out_and_named(tmp_path, capsys):
    tree(tmp_path, BROKEN | {'a.jpg': GOOD, 'z.jpg': GOOD})

    assert list(looked_at(tmp_path)) == ['a.jpg', 'z.jpg']

    said = capsys.readouterr()
    assert said.out == '' and all(name in said.err for name in BROKEN)


def test_a_broken_picture_of_a_class_is_replaced_by_another_one(tmp_path):
    broken = {f'cat/{i}.jpg': GOOD[:400] for i in range(9)}
    tree(tmp_path, broken | {'cat/good.jpg': GOOD})

    assert looked_at(tmp_path, 1) == {'cat/good.jpg': 'cat'}


def test_a_folder_of_broken_pictures_is_refused(tmp_path):
    tree(tmp_path, BROKEN)

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
