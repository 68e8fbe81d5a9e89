"""One split of a dataset of pictures: both storages, order of batches, sharing among processes,
damage."""
import contextlib
import functools
import gc
import io
import itertools
import math
import multiprocessing
import os
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import JPEGS, OF_PICTURES, fails, jpeg, losses, quadrants, train_fast
from PIL import Image

import tasks
from engine.device import Device
from model_crate import CRATE, CRATEConfig
from prepare.lib.pictures import save_pack
from scoring import splits
from tasks import AugmentConfig, augment
from tasks.pictures import ImageSplit, share_of_each
from tasks.text import TextSplit
from train import TrainConfig


@pytest.fixture
def numbered(pictures_data):
    return ImageSplit(pictures_data / 'numbered', 'train')


def indices(batches):
    """Of pictures in `numbered`, in the order of batches."""
    return [int(i) for x, *_ in batches for i in x[:, 0, 0, 0]]


def joined(batches):
    return [torch.cat(parts) for parts in zip(*batches)]


# ---- what is saved is read


def test_arrays_that_are_saved_are_read(pictures_data):
    for split, (pictures, labels) in (('train', quadrants(40)), ('val', quadrants(20, 1))):
        images = ImageSplit(pictures_data / 'quads', split)
        assert len(images) == len(labels) and images.classes == list('abcd')
        x, sizes, y, _ = next(images.fixed(100, 1))
        assert x.dtype == torch.uint8 and sizes.dtype == y.dtype == torch.int64 and (sizes == 8).all()
        assert np.array_equal(x, pictures) and np.array_equal(y, labels)
        assert isinstance(images.pixels, np.memmap)


def test_grey_arrays_have_one_channel(pictures_data):
    images = ImageSplit(pictures_data / 'grey', 'train')
    assert images.channels == 1 and np.array_equal(next(images.fixed(100, 1))[0], quadrants(40)[0].max(-1)[..., None])


def test_a_pack_is_read_as_pillow_reads_it(pictures_data):
    for split, pictures in JPEGS.items():
        images = ImageSplit(pictures_data / 'pack', split, workers=0)
        names = np.load(pictures_data / 'pack' / f'{split}.names.npy')
        assert [name.decode() for name in names] == [name for name, _, _ in pictures]
        assert len(images) == len(pictures)
        x, sizes, y, _ = next(images.fixed(100, 1))
        assert x.shape == (len(pictures), 16, 30, 3) and y.tolist() == [label for _, label, _ in pictures]
        for padded, (h, w), (_, _, content) in zip(x.numpy(), sizes.tolist(), pictures):
            whole = np.asarray(Image.open(io.BytesIO(content)))
            assert whole.shape == (h, w, 3) and np.array_equal(padded[:h, :w], whole)
            assert not padded[h:].any() and not padded[:, w:].any()


def test_a_grey_pack_is_read_as_pillow_reads_it(pictures_data):
    images = ImageSplit(pictures_data / 'grey_pack', 'val', workers=0)
    x, sizes, _, _ = next(images.fixed(100, 1))
    jpeg, offsets = images.pixels
    assert x.shape == (7, 16, 30, 1) and images.channels == 1
    for i, (padded, (h, w)) in enumerate(zip(x.numpy(), sizes.tolist())):
        whole = Image.open(io.BytesIO(jpeg[offsets[i]:offsets[i + 1]].tobytes()))
        assert whole.mode == 'L' and np.array_equal(padded[:h, :w, 0], np.asarray(whole))


# ---- panoramas

@pytest.fixture(scope='module')
def panoramas(tmp_path_factory):
    """A pack whose pictures have short sides of at most 16 pixels, and long ones of up to 2000."""
    out = tmp_path_factory.mktemp('wide') / 'wide'
    shapes = [(16, 20), (16, 2000), (30, 16), (16, 48), (2000, 16), (12, 1500), (16, 16)]
    picture = [(f'{i}.jpg', i % 2, jpeg(*shape, i)) for i, shape in enumerate(shapes)]
    save_pack(out, {'train': picture, 'val': picture}, 'ab', size=16, workers=0)
    return out


def test_a_panorama_does_not_blow_up_its_batch(panoramas):
    """Whatever is in it, a batch of n has at most n x 9 s^2 pixels, s the largest short side."""
    images, plain = ImageSplit(panoramas, 'train'), ImageSplit(panoramas, 'train')
    for workers in (0, 2):
        images.workers = workers
        for columns in (None, slice(2, 4)):
            for x, sizes, _, _ in images.batches(7, 1, [slice(None)], 0, 3, 5, (8, 8), columns):
                assert x.shape[1] * x.shape[2] <= 9 * 16 ** 2 and (sizes.amax(0) == torch.tensor(x.shape[1:3])).all()
        assert all(x.shape[1] * x.shape[2] <= 9 * 16 ** 2 for x, *_ in images.fixed(3, 9, image_size=(8, 8)))
    whole, sizes, _, _ = plain[np.arange(7), np.zeros((7, 0)), None, None]
    assert whole.shape[1:3] == (2000, 2000)
    draws = np.random.default_rng(0).random((7, 5))
    parts, small, _, _ = plain[np.arange(7), draws, (8, 8), slice(2, 4)]
    for i in (0, 2, 3, 6):  # ordinary pictures stay what they are
        h, w = small[i]
        assert (small[i] == sizes[i]).all() and np.array_equal(parts[i, :h, :w], whole[i, :h, :w])
    start = round((2000 - small[1][1]) * draws[1, 2])
    assert np.array_equal(parts[1, :16, :small[1][1]], whole[1, :16, start:start + small[1][1]])


def test_tasks_and_scores_ask_for_pictures_that_are_cut(panoramas, monkeypatch):
    shapes, c = [], TrainConfig(gradient_accumulation_steps=1, batch_size=7, seed=1, max_iters=3, eval_iters=1,
                                workers=0)
    monkeypatch.setattr(Device, 'send', lambda self, *tensors: shapes.append(tensors[0].shape) or tensors)
    for task in 'image', 'masked_image':
        model = SimpleNamespace(config=SimpleNamespace(task=task, image_size=(8, 8), patch_size=(4, 4)))
        task = tasks.choose(c, AugmentConfig(), panoramas, model, Device('cpu', 'float32', 'false'))
        batches = task.train.batches(task.batch, 1, task.parts, 0, 1, **task.train_wants)
        assert len([*(task.take(batch, training=True) for batch in batches), *task.validation()]) == 2
    model = CRATE(CRATEConfig(image_size=8, patch_size=4, num_classes=2, n_layer=1, n_head=2, n_embd=8))
    monkeypatch.setattr(augment, 'eval_pictures', lambda x, *args: shapes.append(x.shape))
    list(splits.batches(model, ImageSplit(panoramas, 'val'), 7, 1.0))
    sizes = [shape for shape in shapes if len(shape) == 4]
    assert len(sizes) == 5 and all(math.prod(shape[1:3]) <= 9 * 16 ** 2 for shape in sizes)


# ---- the order of batches


def test_every_epoch_goes_through_all_pictures_in_another_order(numbered):
    seen = indices(itertools.islice(numbered.batches(10, 7, [slice(0, 4), slice(4, 10)], 0, 10), 20))  # 4 epochs of 25
    epochs = [seen[i:i + 25] for i in range(0, 100, 25)]
    assert all(sorted(epoch) == list(range(25)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4 and list(range(25)) not in epochs
    large = indices(numbered.batches(60, 7, [slice(None)], 0, 1))  # more than two epochs in a batch
    assert large == (seen + indices(numbered.batches(10, 7, [slice(None)], 10, 20)))[:60]


def test_pictures_and_their_numbers_depend_on_seed_and_step_alone(numbered):
    def batches(seed=7, share=(slice(None),), first=0, last=9):
        return list(numbered.batches(12, seed, share, first, last, draws=3))

    whole = batches()
    for x, _, _, draws in whole:
        assert x.shape == (12, 2, 3, 3) and draws.shape == (12, 3) and draws.dtype == torch.float64
    for share in ([slice(0, 6), slice(6, 12)], [slice(0, 1), slice(1, 12)], [slice(0, 4), slice(4, 8), slice(8, 12)]):
        assert all(torch.equal(a, b) for a, b in zip(joined(whole), joined(batches(share=share))))
    two = joined([b for step in range(9) for rank in (0, 1)
                  for b in batches(share=[slice(6 * rank, 6 * rank + 6)], first=step, last=step + 1)])
    assert all(torch.equal(a, b) for a, b in zip(joined(whole), two))
    assert all(torch.equal(a, b) for a, b in zip(joined(whole[5:]), joined(batches(first=5))))
    other = batches(seed=8)
    assert indices(other) != indices(whole) and not torch.equal(joined(other)[3], joined(whole)[3])
    draws = joined(whole)[3]
    assert 0 <= draws.min() and draws.max() < 1 and len(draws.unique()) == draws.numel()  # no number is used twice


def test_validation_is_fixed_spread_and_shared_among_processes(numbered):
    whole = indices(numbered.fixed(4, 100))
    assert whole == indices(numbered.fixed(4, 100)) == list(range(25))
    assert [len(x) for x, *_ in numbered.fixed(4, 100)] == [4] * 6 + [1]
    some = indices(numbered.fixed(3, 3))
    assert len(some) == 9 and some == list(range(0, 25, 3))
    for n, batches in ((4, 100), (3, 3), (25, 1)):
        for world in (2, 3, 5):
            shares = [indices(numbered.fixed(n, batches, rank, world)) for rank in range(world)]
            assert sorted(sum(shares, [])) == indices(numbered.fixed(n, batches))


def test_numbers_of_validation_belong_to_the_picture(numbered):
    """However many in a batch, and on whatever process."""
    whole = joined(numbered.fixed(25, 1, draws=5))[3]
    assert torch.equal(joined(numbered.fixed(4, 100, draws=5))[3], whole) and len(whole.unique()) == whole.numel()
    assert torch.equal(joined(numbered.fixed(13, 2, 1, 2, draws=5))[3], whole[13:])


@pytest.mark.parametrize('share, counts', [(0.5, [5] * 4), (0.25, [2] * 4), (0.001, [1] * 4), (1.0, [10] * 4)])
def test_a_share_is_of_every_class_and_the_seeds(share, counts, pictures_data):
    whole = ImageSplit(pictures_data / 'quads', 'train')
    a, b, c = (ImageSplit(pictures_data / 'quads', 'train', 0, share, seed) for seed in (1, 1, 2))
    assert len(a) == sum(counts) and np.bincount(a.labels[a.chosen]).tolist() == counts
    assert np.array_equal(a.chosen, b.chosen) and (share == 1 or not np.array_equal(a.chosen, c.chosen))
    pictures, _, labels, _ = a[np.arange(len(a)), np.zeros((len(a), 0)), None, None]
    want = whole[a.chosen, np.zeros((len(a), 0)), None, None]
    assert np.array_equal(pictures, want[0]) and np.array_equal(labels, want[2])
    seen = [label for batch in a.batches(1, 0, [slice(0, 1)], 0, len(a)) for label in batch[2].tolist()]
    assert np.bincount(seen).tolist() == counts  # an epoch is one of the share


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
    assert (abs(counts - share * sizes)[counts > 1] <= 0.5).all()
    assert (share * sizes[counts <= 1] <= 1.5).all()


def test_every_picture_is_in_a_share_equally_often():
    """A picture is in a fifth of 10 in 1/5 of 4000 seeds: 800 times, standard deviation 25."""
    labels = np.repeat([0, 1], 10)
    times = sum(np.bincount(share_of_each(labels, 0.2, seed), minlength=20) for seed in range(4000))
    assert times.sum() == 4 * 4000 and 680 < times.min() and times.max() < 920


# ---- reading processes


@pytest.mark.parametrize('name', ['numbered', 'pack'])
def test_reading_processes_change_nothing(name, pictures_data):
    a, b = (ImageSplit(pictures_data / name, 'train', workers) for workers in (0, 2))
    for kind in (lambda im: im.batches(6, 7, [slice(0, 2), slice(2, 6)], 3, 9, draws=2), lambda im: im.fixed(4, 100)):
        ours, theirs = list(kind(a)), list(kind(b))
        assert len(ours) == len(theirs) > 3
        assert all(torch.equal(p, q) for one, two in zip(ours, theirs) for p, q in zip(one, two))


def test_as_many_readers_as_there_are_cores_to_use(pictures_data, monkeypatch):
    monkeypatch.setattr(os, 'cpu_count', lambda: 64)
    monkeypatch.setattr(os, 'sched_getaffinity', lambda pid: {0, 1}, raising=False)
    assert ImageSplit(pictures_data / 'pack', 'val', -1).workers == 2
    assert ImageSplit(pictures_data / 'quads', 'val', -1).workers == 0


@pytest.mark.parametrize('cores, processes, each', [(12, 4, 3), (64, 2, 16), (64, 8, 8), (7, 4, 1), (2, 8, 1)])
def test_processes_on_a_machine_share_its_cores_for_readers(cores, processes, each, pictures_data, monkeypatch):
    monkeypatch.setattr(os, 'sched_getaffinity', lambda pid: set(range(cores)), raising=False)
    monkeypatch.setenv('LOCAL_WORLD_SIZE', str(processes))
    assert ImageSplit(pictures_data / 'pack', 'val', -1).workers == each
    assert ImageSplit(pictures_data / 'pack', 'val', 5).workers == 5  # as asked


def pids():
    return sorted(reader.pid for reader in multiprocessing.active_children())


def test_a_run_with_readers_is_the_one_without_and_ends_them(pictures_data, tmp_path):
    before, words = pids(), [f'--data_dir={pictures_data}', '--dataset=pack', *OF_PICTURES, '--image_size=8']
    for workers in (0, 2):
        train_fast(*words, f'--workers={workers}', f'--out_dir={tmp_path}/{workers}')
    assert losses(tmp_path / '0') == losses(tmp_path / '2') and pids() == before


@pytest.mark.parametrize('name', ['pack', 'numbered'])
def test_readers_end_with_their_batches_even_without_garbage_collection(name, pictures_data):
    gc.collect()
    gc.disable()
    try:
        before = pids()
        images = ImageSplit(pictures_data / name, 'train', 2)
        list(images.fixed(4, 100))
        assert pids() == before
        batches = images.batches(4, 1, [slice(None)], 0, 100)
        next(batches)
        assert len(pids()) == len(before) + 2
        del batches
        assert pids() == before
    finally:
        gc.enable()


def test_reading_leaves_the_random_stream_alone(numbered):
    before = torch.get_rng_state()
    next(numbered.batches(5, 7, [slice(None)], 0, 1, draws=2))
    list(numbered.fixed(5, 2))
    assert torch.equal(torch.get_rng_state(), before)


def test_readers_end_when_the_program_ends_them(pictures_data):
    batches = ImageSplit(pictures_data / 'numbered', 'train', 2).batches(5, 7, [slice(None)], 0, 1000)
    next(batches)
    readers = multiprocessing.active_children()
    for reader in readers:
        with contextlib.suppress(RuntimeError):  # PyTorch notices that it is gone
            reader.terminate()
            reader.join(60)
    assert len(readers) == 2 and not any(reader.is_alive() for reader in readers)


# ---- damage


def set_at(place, value):
    def make(array):
        array[place] = value
        return array
    return make


def change(file, make):
    """Damage: file.npy of a split becomes what make gives for its array."""
    return lambda path: np.save(path / f'{file}.npy', make(np.load(path / f'{file}.npy')))


def cut(file):
    return lambda path: (path / f'{file}.npy').write_bytes((path / f'{file}.npy').read_bytes()[:-1])


def gone(file):
    return lambda path: (path / f'{file}.npy').unlink()


LABELS, IMAGES, JPEG, OFFSETS = (functools.partial(change, f'train.{kind}')
                                 for kind in ('labels', 'images', 'jpeg', 'offsets'))


@pytest.mark.parametrize('name, file, damage', [
    ('quads', 'labels', gone('train.labels')), ('quads', 'labels', cut('train.labels')),
    ('quads', 'labels', LABELS(lambda a: a[:-1])), ('quads', 'labels', LABELS(lambda a: a.astype(np.int32))),
    ('quads', 'images', gone('train.images')), ('quads', 'images', cut('train.images')),
    ('quads', 'images', IMAGES(lambda a: a[:-1])), ('quads', 'images', IMAGES(lambda a: a[..., :1])),
    ('quads', 'images', IMAGES(lambda a: a.astype(float))), ('grey', 'images', IMAGES(lambda a: a[..., 0])),
    ('pack', 'labels', LABELS(lambda a: a[1:])),
    ('pack', 'jpeg', gone('train.jpeg')), ('pack', 'jpeg', cut('train.jpeg')), ('pack', 'jpeg', JPEG(lambda a: a[:-1])),
    ('pack', 'offsets', cut('train.offsets')), ('pack', 'offsets', OFFSETS(lambda a: a[1:]))])
def test_damaged_files_are_refused_by_name(name, file, damage, pictures_data, tmp_path):
    damage(shutil.copytree(pictures_data / name, tmp_path / name))
    with pytest.raises(ValueError, match=rf'train\.{file}\.npy.*prepare the dataset again'):
        ImageSplit(tmp_path / name, 'train')
    ImageSplit(tmp_path / name, 'val')  # the other split is whole


@pytest.mark.parametrize('workers', [0, 2])
@pytest.mark.parametrize('damage', [set_at(slice(None), 7), set_at(slice(40, None), 0)])
def test_a_damaged_picture_is_refused_in_one_line(damage, workers, pictures_data, tmp_path, capsys):
    change('val.jpeg', damage)(shutil.copytree(pictures_data / 'pack', tmp_path / 'pack'))
    images = ImageSplit(tmp_path / 'pack', 'val', workers)
    assert 'a picture in ' in fails(capsys, lambda words: list(images.fixed(4, 100)))


def test_a_split_or_kind_that_is_not_there_is_named(pictures_data):
    with pytest.raises(ValueError, match='quads has no split test, only train, val'):
        ImageSplit(pictures_data / 'quads', 'test')
    with pytest.raises(ValueError, match='text holds text, not images'):
        ImageSplit(pictures_data / 'text', 'train')
    with pytest.raises(ValueError, match='quads holds images, not text'):
        TextSplit(pictures_data / 'quads', 'train', 8)
    with pytest.raises(ValueError, match='no data in .*nowhere'):
        ImageSplit(pictures_data / 'nowhere', 'train')
