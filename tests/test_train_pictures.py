"""Pictures from the file to the trained model: storages, AoT on patches, others' checkpoints, the image task of train.py."""
import contextlib
import dataclasses
import gc
import io
import itertools
import json
import math
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import ROOT, fails, losses, memorize
from PIL import Image

from engine import settings as configurator
from tasks import files as data
from engine import machine
from engine import checkpoints as models
from engine import run as rundir
import train
from model_aot import MSSA, AoT, AoTConfig, attend, patchify
from model_crate import CRATE, CRATEConfig
from model_vit import ViT, ViTConfig
from prepare.lib.pictures import save_arrays, save_pack
from tasks.tokenizer import Tokenizer


def quadrants(n, seed=0, size=8, classes=4):
    """Dark noise with a light; the class is the quadrant where it is, and from the fifth class on, its colour."""
    pictures, labels = np.random.default_rng(seed).integers(0, 60, (n, size, size, 3), np.uint8), np.arange(n) % classes
    for picture, k in zip(pictures, labels):
        top, left = (size // 2 * i + 1 for i in (k // 2 % 2, k % 2))
        picture[top:top + size // 4, left:left + size // 4, k // 4] += 180
    return pictures, labels


def jpeg(height, width, seed):
    out = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)).save(out, 'JPEG')
    return out.getvalue()


SHAPES = [(9, 12), (16, 8), (8, 8), (11, 30), (12, 9)]
JPEGS = {split: [(f'{split}/{i}.jpg', i % 4, jpeg(*SHAPES[i % 5], seed + i)) for i in range(n)]
         for split, n, seed in (('train', 13, 0), ('val', 7, 50))}


@pytest.fixture(scope='session')
def folder(tmp_path_factory):
    """A data_dir with pictures: `quads` of 4 classes, `renamed` of 4 others, `colours` of 8, `numbered` whose pixels are
    the picture's index, a `pack` of JPEG files, and a `text`."""
    out = tmp_path_factory.mktemp('pictures')
    save_arrays(out / 'quads', {'train': quadrants(40), 'val': quadrants(20, 1)}, 'abcd')
    save_arrays(out / 'renamed', {'train': quadrants(40), 'val': quadrants(20, 1)}, 'efgh')
    (x, y), (u, v) = quadrants(40, 0, 12, 8), quadrants(20, 1, 12, 8)
    save_arrays(out / 'colours', {'train': (x[:, :, :8], y), 'test': (u[:, :, :8], v)}, 'abcdefgh')
    numbered = np.arange(25, dtype=np.uint8)[:, None, None, None].repeat(2, 1).repeat(3, 2).repeat(3, 3)
    save_arrays(out / 'numbered', {'train': (numbered, np.arange(25) % 3)}, 'abc')
    save_pack(out / 'pack', JPEGS, ['x', 'y', 'z', 'w'], workers=0)
    tokenizer = Tokenizer('bytes')
    data.save_text(out / 'text', tokenizer, *data.split_text('a token is a picture ' * 50, tokenizer))
    return out


@pytest.fixture
def numbered(folder):
    return data.Images(folder / 'numbered', 'train')


def indices(batches):
    """Of pictures in `numbered`, in the order of batches."""
    return [int(i) for x, *_ in batches for i in x[:, 0, 0, 0]]


# ---- storages

def test_arrays_that_are_saved_are_read(folder):
    for split, (pictures, labels) in (('train', quadrants(40)), ('val', quadrants(20, 1))):
        images = data.Images(folder / 'quads', split)
        assert len(images) == len(labels) and images.classes == list('abcd') and images.names() is None
        x, sizes, y, _ = next(images.fixed(100, 1))
        assert x.dtype == torch.uint8 and sizes.dtype == y.dtype == torch.int64 and (sizes == 8).all()
        assert np.array_equal(x, pictures) and np.array_equal(y, labels)
        assert isinstance(images.pixels, np.memmap)


def test_a_pack_is_read_as_pillow_reads_it(folder):
    for split, pictures in JPEGS.items():
        images = data.Images(folder / 'pack', split, workers=0)
        assert [name.decode() for name in images.names()] == [name for name, _, _ in pictures]
        assert len(images) == len(pictures)
        x, sizes, y, _ = next(images.fixed(100, 1))
        assert x.shape == (len(pictures), 16, 30, 3) and y.tolist() == [label for _, label, _ in pictures]
        for padded, (h, w), (_, _, content) in zip(x.numpy(), sizes.tolist(), pictures):
            whole = np.asarray(Image.open(io.BytesIO(content)))
            assert whole.shape == (h, w, 3) and np.array_equal(padded[:h, :w], whole)
            assert not padded[h:].any() and not padded[:, w:].any()


def test_every_epoch_goes_through_all_pictures_in_another_order(numbered):
    seen = indices(itertools.islice(numbered.batches(10, 7, [slice(0, 4), slice(4, 10)]), 20))  # 10 steps, 4 epochs of 25
    epochs = [seen[i:i + 25] for i in range(0, 100, 25)]
    assert all(sorted(epoch) == list(range(25)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4 and list(range(25)) not in epochs
    large = indices(numbered.batches(60, 7, [slice(None)], 0, 1))  # more than two epochs in a batch
    assert large == (seen + indices(numbered.batches(10, 7, [slice(None)], 10, 20)))[:60]


def test_pictures_and_their_numbers_depend_on_seed_and_step_alone(numbered):
    def batches(seed=7, share=(slice(None),), first=0, last=9):
        return list(numbered.batches(12, seed, share, first, last, draws=3))

    def joined(batches):
        return [torch.cat(parts) for parts in zip(*batches)]
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


@pytest.mark.parametrize('name', ['numbered', 'pack'])
def test_reading_processes_change_nothing(name, folder):
    a, b = (data.Images(folder / name, 'train', workers) for workers in (0, 2))
    for kind in (lambda im: im.batches(6, 7, [slice(0, 2), slice(2, 6)], 3, 9, draws=2), lambda im: im.fixed(4, 100)):
        ours, theirs = list(kind(a)), list(kind(b))
        assert len(ours) == len(theirs) > 3
        assert all(torch.equal(p, q) for one, two in zip(ours, theirs) for p, q in zip(one, two))


def test_as_many_readers_as_there_are_cores_to_use(folder, monkeypatch):
    monkeypatch.setattr(os, 'cpu_count', lambda: 64)
    monkeypatch.setattr(os, 'sched_getaffinity', lambda pid: {0, 1}, raising=False)
    assert data.Images(folder / 'pack', 'val', -1).workers == 2 and data.Images(folder / 'quads', 'val', -1).workers == 0


def test_reading_leaves_the_random_stream_alone(numbered):
    before = torch.get_rng_state()
    next(numbered.batches(5, 7, [slice(None)], draws=2))
    list(numbered.fixed(5, 2))
    assert torch.equal(torch.get_rng_state(), before)


def test_readers_end_when_the_program_ends_them(folder):
    batches = data.Images(folder / 'numbered', 'train', 2).batches(5, 7, [slice(None)])
    next(batches)
    readers = multiprocessing.active_children()
    for reader in readers:
        with contextlib.suppress(RuntimeError):  # PyTorch notices that it is gone
            reader.terminate()
            reader.join(1)
    assert len(readers) == 2 and not any(reader.is_alive() for reader in readers)


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


def change(file, make):
    """Damage: file.npy of a split becomes what make gives for its array."""
    return lambda path: np.save(path / f'{file}.npy', make(np.load(path / f'{file}.npy')))


def cut(file):
    return lambda path: (path / f'{file}.npy').write_bytes((path / f'{file}.npy').read_bytes()[:-1])


def set_at(place, value):
    def make(array):
        array[place] = value
        return array
    return make


@pytest.mark.parametrize('name, file, damage', [
    ('quads', 'labels', lambda path: (path / 'train.labels.npy').unlink()), ('quads', 'labels', cut('train.labels')),
    ('quads', 'labels', change('train.labels', lambda a: a[:-1])),
    ('quads', 'labels', change('train.labels', lambda a: a.astype(np.int32))),
    ('quads', 'labels', change('train.labels', set_at(17, 4))), ('quads', 'labels', change('train.labels', set_at(0, -1))),
    ('quads', 'images', lambda path: (path / 'train.images.npy').unlink()), ('quads', 'images', cut('train.images')),
    ('quads', 'images', change('train.images', lambda a: a[:-1])),
    ('quads', 'images', change('train.images', lambda a: a[..., :1])),
    ('quads', 'images', change('train.images', lambda a: a.astype(float))),
    ('pack', 'labels', change('train.labels', lambda a: a[1:])), ('pack', 'labels', change('train.labels', set_at(3, 99))),
    ('pack', 'jpeg', lambda path: (path / 'train.jpeg.npy').unlink()), ('pack', 'jpeg', cut('train.jpeg')),
    ('pack', 'jpeg', change('train.jpeg', lambda a: a[:-1])), ('pack', 'offsets', cut('train.offsets')),
    ('pack', 'offsets', change('train.offsets', lambda a: a[1:])),
    ('pack', 'offsets', change('train.offsets', set_at(0, 1))),
    ('pack', 'offsets', change('train.offsets', set_at(-1, 10 ** 9))),
    ('pack', 'offsets', change('train.offsets', set_at(5, 10 ** 9))),
    ('pack', 'offsets', change('train.offsets', lambda a: a * 0))])
def test_damaged_files_are_refused_by_name(name, file, damage, folder, tmp_path):
    damage(shutil.copytree(folder / name, tmp_path / name))
    with pytest.raises(ValueError, match=rf'train\.{file}\.npy.*prepare the dataset again'):
        data.Images(tmp_path / name, 'train')
    data.Images(tmp_path / name, 'val')  # the other split is whole


@pytest.mark.parametrize('old, new', [
    ('"images"', '"sounds"'), ('"arrays"', '"heap"'), ('"count": 40', '"count": 0'), ('"count": 40', '"count": "40"'),
    ('"height": 8', '"high": 8'), ('"classes": [', '"classes": [], "x": ['), ('"splits": {', '"splits": [], "x": {'),
    ('"classes": [', '"classes": 4, "x": ['),
    ('"splits": {', '"splits": {}, "x": {')])
def test_a_foreign_meta_json_is_refused(old, new, folder, tmp_path):
    copy = shutil.copytree(folder / 'quads', tmp_path / 'quads')
    text = json.dumps(json.loads((copy / 'meta.json').read_text()))
    assert old in text
    (copy / 'meta.json').write_text(text.replace(old, new))
    with pytest.raises(ValueError, match='meta.json is not'):
        data.read_meta(copy)


def test_a_split_or_kind_that_is_not_there_is_named(folder):
    with pytest.raises(ValueError, match='quads has no split test, only train, val'):
        data.Images(folder / 'quads', 'test')
    with pytest.raises(ValueError, match='text holds text, not images'):
        data.Images(folder / 'text', 'train')
    with pytest.raises(ValueError, match='quads holds images, not text'):
        data.Text(folder / 'quads', 'train', 8)
    with pytest.raises(ValueError, match='no prepared data in .*nowhere'):
        data.Images(folder / 'nowhere', 'train')


@pytest.mark.parametrize('damage', [set_at(slice(None), 7), set_at(slice(40, None), 0)])
def test_a_damaged_picture_is_refused_by_name(damage, folder, tmp_path):
    change('val.jpeg', damage)(shutil.copytree(folder / 'pack', tmp_path / 'pack'))
    with pytest.raises(ValueError, match='val'):
        list(data.Images(tmp_path / 'pack', 'val', workers=0).fixed(4, 100))


def test_damaged_names_are_refused_by_name(folder, tmp_path):
    (shutil.copytree(folder / 'pack', tmp_path / 'pack') / 'val.names.npy').write_text('x')
    with pytest.raises(ValueError, match='val.names.npy'):
        data.Images(tmp_path / 'pack', 'val').names()


@pytest.mark.parametrize('workers', [0, 2])
def test_mistakes_in_reading_processes_are_one_line_too(workers, folder, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, 'PIL', None)
    monkeypatch.setattr(torch.utils.data._utils, 'MP_STATUS_CHECK_INTERVAL', 0.1)  # torch's wait for readers to end
    images = data.Images(folder / 'pack', 'val', workers)
    assert 'pip install pillow' in fails(capsys, lambda words: list(images.fixed(4, 100)))
    gc.collect()


# ---- AoT on pictures

SMALL = dict(image_size=(8, 12), patch_size=(4, 2), num_classes=5, n_layer=2, n_head=2, n_embd=16)  # 2 x 6 patches


def aot(**kw):
    torch.manual_seed(0)
    return AoT(AoTConfig(**SMALL | kw)).eval()


def shuffled(x, order, patch_size):
    """Pictures with their patches in another order."""
    B, C, H, W = x.shape
    h, w = patch_size
    patches = x.view(B, C, H // h, h, W // w, w).permute(0, 2, 4, 1, 3, 5).flatten(1, 2)[:, order]
    return patches.unflatten(1, (H // h, W // w)).permute(0, 3, 1, 4, 2, 5).reshape(B, C, H, W)


@pytest.mark.parametrize('pool', ['cls', 'mean'])
@pytest.mark.parametrize('attn', ['mssa', 'mhsa'])
def test_no_patch_is_before_another(attn, pool):
    model, order = aot(attn=attn, pool=pool), torch.randperm(12, generator=torch.Generator().manual_seed(1))
    for layer in model.layers:
        for p in layer.attn.parameters():
            torch.nn.init.normal_(p, std=0.5)  # so that attention matters
    x = torch.randn(3, 3, 8, 12)
    logits = model(x)[0]
    mixed = shuffled(x, order, (4, 2))
    assert torch.equal(patchify(mixed, (4, 2)), patchify(x, (4, 2))[:, order])
    assert not torch.allclose(model(mixed)[0], logits, atol=1e-3)  # positions do matter
    with torch.no_grad():
        model.pos[:, 1:] = model.pos[:, 1:][:, order]
    assert torch.allclose(model(mixed)[0], logits, atol=1e-5)


def test_mssa_on_pictures_equals_eq_4_without_a_mask_by_a_naive_loop():
    torch.manual_seed(0)
    mssa, Z = MSSA(AoTConfig(**SMALL | dict(n_embd=12, n_head=3))), torch.randn(5, 12)
    heads = torch.zeros(5, 12)
    for k in range(3):
        U_k = mssa.U.weight[4 * k:4 * k + 4].T
        w = [U_k.T @ z for z in Z]
        for i in range(5):
            a = torch.tensor([math.exp((w[i] @ w[j]).item() / 2) for j in range(5)])
            heads[i, 4 * k:4 * k + 4] = sum(a_j / a.sum() * w_j for a_j, w_j in zip(a, w))
    assert torch.allclose(mssa(Z[None])[0], heads @ mssa.W.weight.T, atol=1e-5)


@pytest.mark.parametrize('attn', ['mssa', 'mhsa'])
def test_a_fresh_aot_knows_nothing_of_pictures_and_can_memorize(attn):
    model = aot(attn=attn).train()
    x, y = torch.randn(6, 3, 8, 12), torch.tensor([0, 1, 2, 3, 4, 0])
    assert abs(model(x, y)[1].item() - math.log(5)) < 0.2
    memorize(model, x, y, 0.1)


def test_the_papers_sizes_of_aot_on_imagenet():
    for kw, count in ((dict(attn='mhsa', n_layer=24, n_embd=384, n_head=6), 14_924_008),
                      (dict(attn='mssa', n_layer=32, n_embd=576, n_head=12), 22_389_352)):
        with torch.device('meta'):
            assert AoT(AoTConfig(image_size=224, patch_size=16, num_classes=1000, **kw)).num_params() == count


def test_bfloat16_on_a_cpu_sees_all_patches_too():
    q, k, v = torch.randn(3, 2, 3, 7, 8, generator=torch.Generator().manual_seed(0)).unbind()
    half = attend(q.bfloat16(), k.bfloat16(), v.bfloat16(), causal=False)
    assert torch.allclose(half.float(), attend(q, k, v, causal=False), atol=3e-2)
    model, x = aot(), torch.randn(4, 3, 8, 12, generator=torch.Generator().manual_seed(0))
    with torch.autocast('cpu', torch.bfloat16):
        half = model(x)[0]
    assert torch.allclose(half.float(), model(x)[0], atol=3e-2)


def test_aot_refuses_pictures_of_another_size():
    for shape in ((1, 3, 12, 8), (1, 3, 8, 8), (1, 1, 8, 12)):
        with pytest.raises(ValueError, match='resize them, or build the model with another image_size'):
            aot()(torch.zeros(shape))
    for kw, word in ((dict(image_size=10), 'divisible by patch_size'), (dict(pool='max'), 'cls or mean')):
        with pytest.raises(ValueError, match=word):
            AoTConfig(**SMALL | kw)


@pytest.mark.parametrize('Config, kw', [
    (CRATEConfig, dict(n_head=0)), (ViTConfig, dict(n_head=0)), (CRATEConfig, dict(n_embd=0)),
    (CRATEConfig, dict(n_layer=-1)), (ViTConfig, dict(n_layer=-1)), (CRATEConfig, dict(head_dim=-4)),
    (CRATEConfig, dict(dropout=2.0)), (ViTConfig, dict(dropout=-1.0)), (CRATEConfig, dict(label_smoothing=2.0)),
    (ViTConfig, dict(label_smoothing=-1.0)), (AoTConfig, dict(label_smoothing=2.0, image_size=224)),
    (CRATEConfig, dict(num_classes=-1)), (AoTConfig, dict(num_classes=0, image_size=224))])
def test_settings_of_no_network_are_refused_by_name(Config, kw):
    with pytest.raises(ValueError, match=next(iter(kw))):
        Config(**kw)


# ---- the authors' files, other resolutions

AUTHORS = {'crate': (CRATE, CRATEConfig, 'transformer.layers.1.1.fn.weight'),
           'vit': (ViT, ViTConfig, 'blocks.1.mlp.fc2.bias')}


def official(name, path, wrap=lambda sd: sd, **kw):
    """A file as the authors release theirs, and the model that it holds: 7 classes at 16 x 16 unless said otherwise."""
    Model, Config, _ = AUTHORS[name]
    torch.manual_seed(1)
    model = Model(Config(**dict(image_size=16, patch_size=4, num_classes=7, n_layer=2, n_head=3, n_embd=24) | kw)).eval()
    torch.save(wrap(model.to_official()), path)
    return model


@pytest.mark.parametrize('wrap', [lambda sd: sd, lambda sd: {'model': sd},
                                  lambda sd: {'epoch': 3, 'state_dict': {'module.' + k: v for k, v in sd.items()}}])
@pytest.mark.parametrize('name', AUTHORS)
def test_the_authors_files_are_read_however_they_nest(name, wrap, tmp_path):
    model = official(name, tmp_path / 'w.pth', wrap)
    for size in (16, 24):  # a size that is asked for does not change what the file holds
        checkpoint = models.load_weights(f'official:{tmp_path}/w.pth', name, n_head=3, image_size=size, patch_size=4)
        ours = models.load_model(checkpoint)
        x = torch.randn(2, 3, 16, 16)
        assert ours.config.image_size == (16, 16) and torch.equal(ours(x)[0], model(x)[0])


def test_the_authors_files_need_not_be_square(tmp_path):
    model = official('vit', tmp_path / 'w.pth', image_size=(8, 12), patch_size=(4, 2))
    checkpoint = models.load_weights(f'official:{tmp_path}/w.pth', 'vit', n_head=3, image_size=(8, 12), patch_size=(4, 2))
    x = torch.randn(2, 3, 8, 12)
    assert torch.equal(models.load_model(checkpoint)(x)[0], model(x)[0])


@pytest.mark.parametrize('content, message', [
    (None, 'no file .*w.pth'), (b'', 'damaged'), (b'\x80\x02garbage', 'damaged'), ([1, 2], 'no state dict'),
    (torch.ones(3), 'no state dict'), ({1: torch.ones(3)}, 'no state dict'), ({'state_dict': None}, 'no state dict'),
    ({}, 'not a CRATE state dict'),
    ({'weights': torch.ones(3)}, 'not a CRATE state dict'),
    (b'hello', 'damaged'),
    ({'pos_embedding': 3}, 'w.pth'),
    ({'pos_embedding': torch.ones(3)}, 'w.pth')])
def test_what_is_no_file_of_the_authors_is_refused_by_name(content, message, tmp_path):
    path = tmp_path / 'w.pth'
    if content is not None:
        path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)
    with pytest.raises(ValueError, match=message):
        models.load_weights(f'official:{path}', 'crate', n_head=3)


@pytest.mark.parametrize('name', AUTHORS)
def test_files_of_the_authors_that_do_not_fit_name_the_tensor(name, tmp_path):
    key, path = AUTHORS[name][2], tmp_path / 'w.pth'
    official(name, path, lambda sd: sd | {'surprise': torch.ones(1)})
    with pytest.raises(ValueError, match='surprise'):
        models.load_weights(f'official:{path}', name, n_head=3, patch_size=4)
    for wrap in (lambda sd: {k: v for k, v in sd.items() if k != key}, lambda sd: sd | {key: sd[key][1:]}):
        official(name, path, wrap)
        with pytest.raises(ValueError, match=key):
            models.load_weights(f'official:{path}', name, n_head=3, patch_size=4)
    official(name, path).to_official()
    cut = path.read_bytes()
    path.write_bytes(cut[:len(cut) // 2])
    with pytest.raises(ValueError, match='w.pth is damaged'):
        models.load_weights(f'official:{path}', name, n_head=3, patch_size=4)
    official('vit' if name == 'crate' else 'crate', path)
    with pytest.raises(ValueError, match='not a'):
        models.load_weights(f'official:{path}', name, n_head=3, patch_size=4)


def test_heads_need_only_divide_the_width_in_the_file(tmp_path):
    official('crate', tmp_path / 'w.pth', n_head=5, n_embd=20)
    checkpoint = models.load_weights(f'official:{tmp_path}/w.pth', 'crate', n_head=5, image_size=16, patch_size=4)
    assert checkpoint['model_config']['n_embd'] == 20


def test_positions_for_another_grid():
    torch.manual_seed(0)
    pos = torch.randn(1, 1 + 2 * 6, 8)
    for new in ((2, 6), (4, 12), (3, 5), (1, 3), (6, 2)):
        resized = models.resize_positions(pos, (2, 6), new)
        assert resized.shape == (1, 1 + new[0] * new[1], 8) and torch.equal(resized[:, 0], pos[:, 0])
        even = models.resize_positions(torch.ones_like(pos) * torch.arange(8), (2, 6), new)
        assert torch.allclose(even, torch.arange(8.0).expand_as(even), atol=1e-5)
    down, across = torch.meshgrid(torch.arange(8.0), torch.arange(12.0), indexing='ij')  # a ramp stays one, off its ends
    ramp = torch.cat((torch.zeros(1, 1, 2), torch.stack((down, across), -1).flatten(0, 1)[None]), 1)
    fine = models.resize_positions(ramp, (8, 12), (16, 24))[0, 1:].view(16, 24, 2)
    assert torch.allclose(fine[6:10, 6:18, 0], (torch.arange(6.0, 10) / 2 - 0.25)[:, None].expand(4, 12), atol=0.05)
    assert torch.allclose(fine[6:10, 6:18, 1], (torch.arange(6.0, 18) / 2 - 0.25).expand(4, 12), atol=0.05)


@pytest.mark.parametrize('name', ['aot', 'crate', 'vit'])
def test_another_resolution_changes_positions_alone(name):
    Model, Config = models.model_classes(name)
    torch.manual_seed(0)
    model = Model(Config(**SMALL))
    checkpoint = {'weights': model.state_dict(), 'ema': None, 'model_config': dataclasses.asdict(model.config),
                  'config': {'model': name}}
    same = models.load_model(checkpoint, image_size=(8, 12)).state_dict()
    assert equal(same, checkpoint['weights'])
    larger = models.load_model(checkpoint, image_size=(16, 8))
    assert larger.config.image_size == (16, 8) and larger(torch.zeros(1, 3, 16, 8))[0].shape == (1, 5)
    positions = models.resize_positions(model.pos.detach(), (2, 6), (4, 4))
    assert equal(larger.state_dict(), checkpoint['weights'] | {'pos': positions})
    with pytest.raises(ValueError, match='n_embd=32'):
        models.load_model(checkpoint, n_embd=32)
    with pytest.raises(ValueError, match='patch_size=2'):
        models.load_model(checkpoint, patch_size=2)


# ---- train.py on pictures

@pytest.fixture
def quick(monkeypatch):
    """Without what takes half of a short run's time: the machine's speed, and the curve."""
    monkeypatch.setattr(train, 'matmul_flops', lambda device, dtype: 1e12)
    monkeypatch.setattr(train, 'draw_curve', lambda out: None)


@pytest.fixture
def words(folder, quick):
    """Command-line words for a run of a tenth of a second, with augmentation."""
    return [f'--data_dir={folder}', '--dataset=quads', *WORDS]


WORDS = ['--model=crate', '--n_layer=1', '--n_head=2', '--n_embd=16', '--patch_size=4', '--batch_size=8', '--max_iters=6',
         '--eval_interval=3', '--log_interval=1', '--warmup_iters=2', '--optimizer=adamw', '--dtype=float32',
         '--randaugment_n=1']


def go(*words):
    train.main(list(words))


def config_of(out):
    return json.loads((out / 'config.json').read_text())


def column(out, split, place):
    return [float(row.split(',')[place]) for row in losses(out)[1:] if row.split(',')[1] == split]


def weights(out, name='last.pt', kind='weights'):
    return rundir.load_checkpoint(out / name)[kind]


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


@pytest.fixture(scope='module')
def trained(folder, tmp_path_factory):
    """A run that has an average, accumulates, and drops out."""
    out = tmp_path_factory.mktemp('runs') / 'trained'
    go(f'--data_dir={folder}', '--dataset=quads', *WORDS, *HARD, f'--out_dir={out}')
    return out


HARD = ['--ema=0.9', '--gradient_accumulation_steps=2', '--batch_size=4', '--dropout=0.2', '--label_smoothing=0.1']


def test_a_run_on_pictures_leaves_everything(trained):
    assert {p.name for p in trained.iterdir()} == {'config.json', 'log.csv', 'last.pt', 'best.pt', 'curve.png'}
    rows = [line.split(',') for line in losses(trained)]
    assert [(r[0], r[1]) for r in rows[1:]] == [('0', 'val'), ('0', 'train'), ('1', 'train'), ('2', 'train'), ('3', 'val'),
                                                ('3', 'train'), ('4', 'train'), ('5', 'train'), ('6', 'val')]
    for row in rows[1:]:
        _, split, loss, bits, top1, top5, rate, seen = row
        assert bits == '' and (top1 == top5 == '') == (split == 'train') and 0.5 < float(loss) < 3
        assert split == 'train' or 0 <= float(top1) <= float(top5) == 1  # there are 4 classes
    assert rows[-1][7] == str(6 * 8)
    checkpoint, config = rundir.load_checkpoint(trained / 'last.pt'), config_of(trained)
    assert checkpoint['data'] == {'kind': 'images', 'classes': list('abcd')} and checkpoint['step'] == 6
    assert config['image_size'] == [8, 8] and config['num_classes'] == 4
    assert config['randaugment_n'] == 1 and config['ema'] == 0.9
    assert checkpoint['best'] == 1 - max(column(trained, 'val', 4))


@pytest.mark.parametrize('model', ['aot', 'crate', 'vit'])
def test_every_network_learns_where_the_light_is(model, words, tmp_path, capsys):
    go(*words, f'--model={model}', '--flip=false', '--crop_scale=1', '--randaugment_n=0', '--max_iters=80',
       '--eval_interval=40', '--learning_rate=1e-2', '--patch_size=8', f'--out_dir={tmp_path}/a')
    loss, top1 = column(tmp_path / 'a', 'val', 2), column(tmp_path / 'a', 'val', 4)
    assert loss[-1] < loss[0] - 0.5 and top1[-1] > 0.9
    assert f'validation loss {loss[-1]:.4f}, top-1 {top1[-1]:.2%}, top-5 100.00%' in capsys.readouterr().out


@pytest.mark.parametrize('at', [0, 2, 4])
def test_stopped_a_run_on_pictures_goes_on_bit_for_bit(at, words, trained, tmp_path, monkeypatch):
    batches = data.Images.batches

    def stop_at(*args, **kw):
        whole = batches(*args, **kw)

        def parts():
            for i, batch in enumerate(whole):
                if i == 2 * at:  # two parts a step
                    os.kill(os.getpid(), signal.SIGINT)
                yield batch
        return parts()

    monkeypatch.setattr(data.Images, 'batches', stop_at)
    with pytest.raises(SystemExit) as e:
        go(*words, *HARD, f'--out_dir={tmp_path}/a')
    assert e.value.code == 130 and rundir.load_checkpoint(tmp_path / 'a' / 'last.pt')['step'] == at + 1
    monkeypatch.setattr(data.Images, 'batches', batches)
    go('--init_from=resume', f'--out_dir={tmp_path}/a')
    assert losses(tmp_path / 'a') == losses(trained)
    for kind in ('weights', 'ema'):
        assert equal(weights(tmp_path / 'a', kind=kind), weights(trained, kind=kind))


def by_hand(model, path, split):
    """(logits, labels, loss) of a split of pictures that have the model's size, without this project's pipeline."""
    x, y = (torch.from_numpy(np.load(path / f'{split}.{a}.npy')) for a in ('images', 'labels'))
    x = (x.double() / 255 - torch.tensor([0.485, 0.456, 0.406])) / torch.tensor([0.229, 0.224, 0.225])
    with torch.no_grad():
        logits = model.eval()(x.permute(0, 3, 1, 2).float())[0].double()
    picked = logits.softmax(1)[torch.arange(len(y)), y]
    return logits, y, -picked.log().mean().item()


def model_with(state, config):
    model = CRATE(CRATEConfig(**config))
    model.load_state_dict(state)
    return model


def test_the_average_is_that_of_the_weights_and_is_what_is_validated(words, folder, tmp_path, monkeypatch):
    steps, save = {}, rundir.save

    def keep(path, checkpoint):
        steps[checkpoint['step']] = {k: {n: w.clone() for n, w in checkpoint[k].items()} for k in ('weights', 'ema')}
        save(path, checkpoint)
    monkeypatch.setattr(train, 'save', keep)
    go(*words, *HARD, '--eval_interval=1', f'--out_dir={tmp_path}/a')
    config, average = rundir.load_checkpoint(tmp_path / 'a' / 'last.pt')['model_config'], None
    assert sorted(steps) == list(range(7)) and equal(steps[0]['weights'], steps[0]['ema'])
    for step, loss, top1 in zip(range(7), column(tmp_path / 'a', 'val', 2), column(tmp_path / 'a', 'val', 4)):
        if step <= 1:
            average = steps[step]['weights']
        else:
            average = {k: 0.9 * v + 0.1 * steps[step]['weights'][k] for k, v in average.items()}
        assert all(torch.allclose(v, steps[step]['ema'][k], atol=1e-6) for k, v in average.items())
        logits, y, want = by_hand(model_with(average, config), folder / 'quads', 'val')
        assert loss == pytest.approx(want, abs=1e-5) and top1 == (logits.argmax(1) == y).double().mean().item()
    assert abs(want - by_hand(model_with(steps[6]['weights'], config), folder / 'quads', 'val')[2]) > 1e-4


def test_with_an_average_it_is_the_average_that_is_used(trained):
    checkpoint = rundir.load_checkpoint(trained / 'last.pt')
    assert equal(models.load_model(checkpoint).state_dict(), checkpoint['ema'])
    assert not equal(checkpoint['weights'], checkpoint['ema'])


def test_the_average_can_be_given_up_and_taken_up(trained, tmp_path, quick):
    out = shutil.copytree(trained, tmp_path / 'a')
    go('--init_from=resume', f'--out_dir={out}', '--ema=0', '--max_iters=7')
    assert weights(out, kind='ema') is None
    go('--init_from=resume', f'--out_dir={out}', '--ema=0.5', '--max_iters=8')
    assert equal(weights(out, kind='ema'), weights(out))  # an average of one


def test_label_smoothing_is_for_training_only(words, folder, tmp_path):
    for smoothing in (0, 0.5):
        go(*words, f'--label_smoothing={smoothing}', '--max_iters=1', f'--out_dir={tmp_path}/{smoothing}')
    plain, smooth = tmp_path / '0', tmp_path / '0.5'
    assert column(plain, 'val', 2)[0] == column(smooth, 'val', 2)[0]
    assert column(plain, 'train', 2) != column(smooth, 'train', 2)
    checkpoint = rundir.load_checkpoint(smooth / 'last.pt')
    model = model_with(checkpoint['weights'], checkpoint['model_config'])
    assert column(smooth, 'val', 2)[1] == pytest.approx(by_hand(model, folder / 'quads', 'val')[2], abs=1e-5)


def test_accumulation_is_a_larger_batch_of_the_same_pictures(words, tmp_path):
    go(*words, '--randaugment_n=2', f'--out_dir={tmp_path}/a')
    go(*words, '--randaugment_n=2', '--batch_size=2', '--gradient_accumulation_steps=4', f'--out_dir={tmp_path}/b')
    for split in ('train', 'val'):
        assert column(tmp_path / 'a', split, 2) == pytest.approx(column(tmp_path / 'b', split, 2), abs=1e-4)


def test_the_best_is_that_of_the_most_hits(words, tmp_path, monkeypatch):
    said = iter([(3.0, 0.2, 0.9), (2.0, 0.6, 0.8), (1.0, 0.6, 0.9), (0.5, 0.4, 1.0)])
    monkeypatch.setattr(train, 'evaluate', lambda *a: next(said))
    go(*words, '--max_iters=9', f'--out_dir={tmp_path}/a')
    best, last = (rundir.load_checkpoint(tmp_path / 'a' / name) for name in ('best.pt', 'last.pt'))
    assert best['step'] == 3 and last['step'] == 9 and last['best'] == pytest.approx(0.4)


def test_a_process_without_a_batch_validates_too():
    others = SimpleNamespace(sum=lambda mine: mine + torch.tensor([4, 4 * 0.5, 1, 2]))  # count, loss, hits, hits among five
    assert train.evaluate(aot(), [], torch.autocast('cpu', enabled=False), others, True) == [0.5, 0.25, 0.5]


def test_without_a_val_split_the_test_split_validates_and_it_is_said(words, tmp_path, capsys):
    go(*words, '--dataset=colours', f'--out_dir={tmp_path}/a')
    assert 'no val split: validating on test' in capsys.readouterr().out
    assert config_of(tmp_path / 'a')['image_size'] == [12, 8]  # that of the pictures
    go(*words, f'--out_dir={tmp_path}/b')
    assert 'validating on test' not in capsys.readouterr().out


# ---- lengths in epochs

def test_epochs_become_iterations(words, tmp_path):
    short = [w for w in words if not w.startswith(('--max_iters', '--eval_interval', '--warmup_iters'))]
    (tmp_path / 'c.py').write_text('epochs = 2.0\nwarmup_epochs = 0.35\neval_epochs = 1\n'
                                   'max_iters = 77\neval_interval = 78\nwarmup_iters = 79\n')
    for name, more in (('a', []), ('b', ['--batch_size=2', '--gradient_accumulation_steps=4'])):
        out = tmp_path / name
        go(str(tmp_path / 'c.py'), *short, *more, f'--out_dir={out}')
        c = config_of(out)
        assert (c['max_iters'], c['warmup_iters'], c['eval_interval']) == (10, 2, 5)  # 40 pictures, 8 a step
        assert [row.split(',')[0] for row in losses(out) if ',val,' in row] == ['0', '5', '10']
        rates = column(out, 'train', 6)
        assert rates[:3] == pytest.approx([c['learning_rate'] * share for share in (1 / 3, 2 / 3, 1)])
    go('--init_from=resume', f'--out_dir={tmp_path}/a', '--max_iters=12')  # typed iterations beat the run's epochs
    assert losses(tmp_path / 'a')[-1].startswith('12,val') and config_of(tmp_path / 'a')['epochs'] == 0
    go('--init_from=resume', f'--out_dir={tmp_path}/a', '--epochs=3')
    assert losses(tmp_path / 'a')[-1].startswith('15,val')


@pytest.mark.parametrize('typed, iters', [(['--max_iters=3'], 3), (['--epochs=1'], 5), (['--epochs=0.01'], 1)])
def test_typed_lengths_beat_a_config_files(typed, iters, words, tmp_path):
    (tmp_path / 'c.py').write_text('epochs = 2\nmax_iters = 7\n')
    short = [w for w in words if not w.startswith('--max_iters')]
    go(str(tmp_path / 'c.py'), *short, *typed, f'--out_dir={tmp_path}/a')
    assert config_of(tmp_path / 'a')['max_iters'] == iters
    assert rundir.load_checkpoint(tmp_path / 'a' / 'last.pt')['step'] == iters


# ---- fine-tuning

def tune(trained, folder, *more):
    """Words to start from a run's weights."""
    return [f'--init_from={trained}/last.pt', f'--data_dir={folder}', *more]


@pytest.mark.parametrize('dataset, count', [('colours', 8), ('renamed', 4)])
def test_other_classes_need_a_new_head_and_get_a_fresh_one(dataset, count, trained, folder, tmp_path, capsys, quick):
    out = tmp_path / 'a'
    start = tune(trained, folder, f'--dataset={dataset}', f'--out_dir={out}', '--max_iters=0')
    said = fails(capsys, train.main, *start)
    assert '--new_head=true' in said and 'a, b, c' in said and str(folder / dataset) in said and not out.exists()
    go(*start, '--new_head=true')
    before, after = weights(trained, kind='ema'), weights(out)
    body = {k for k in before if not k.startswith('head.')}
    assert equal({k: before[k] for k in body}, {k: after[k] for k in body}) and before.keys() == after.keys()
    assert after['head.weight'].shape == (count, 16) and after['head.bias'].shape == (count,)
    torch.manual_seed(1337)
    assert not torch.equal(after['head.weight'][:4], before['head.weight'])
    assert after['head.weight'].abs().max() <= 1 / 4  # PyTorch's fresh weights: within 1 / sqrt(width)
    go(*start, '--new_head=true', '--max_iters=3', '--overwrite=true')  # the head learns, with the body
    assert not torch.equal(weights(out)['head.weight'], after['head.weight'])
    assert not torch.equal(weights(out)['cls'], after['cls'])
    learned = weights(out)
    go('--init_from=resume', f'--out_dir={out}')  # at its end already; a resumed run keeps its head
    assert equal(weights(out), learned)
    go(f'--init_from={out}/last.pt', f'--out_dir={tmp_path}/b', '--max_iters=0')  # and so does what starts from it
    assert equal(weights(tmp_path / 'b'), weights(out, kind='ema'))


def test_the_same_classes_need_no_new_head(trained, folder, tmp_path, quick):
    go(*tune(trained, folder, f'--out_dir={tmp_path}/a', '--max_iters=0'))
    assert equal(weights(tmp_path / 'a'), weights(trained, kind='ema'))
    assert column(tmp_path / 'a', 'val', 2)[0] == column(trained, 'val', 2)[-1]


def test_fine_tuning_at_another_resolution(trained, folder, tmp_path, capsys, quick):
    go(*tune(trained, folder, '--image_size=16', f'--out_dir={tmp_path}/a', '--max_iters=0'))
    before, after = weights(trained, kind='ema'), weights(tmp_path / 'a')
    assert torch.equal(after.pop('pos'), models.resize_positions(before.pop('pos'), (2, 2), (4, 4))) and equal(before, after)
    go(*tune(trained, folder, '--image_size=12,16', '--crop_scale=0.5', f'--out_dir={tmp_path}/b', '--max_iters=2'))
    assert config_of(tmp_path / 'b')['image_size'] == [12, 16] and weights(tmp_path / 'b')['pos'].shape == (1, 13, 16)
    go(*tune(trained, folder, '--dataset=colours', '--new_head=true', f'--out_dir={tmp_path}/c', '--max_iters=1'))
    assert config_of(tmp_path / 'c')['image_size'] == [8, 8]  # the checkpoint's, not that of the dataset's pictures
    wrong = tune(trained, folder, '--image_size=10', f'--out_dir={tmp_path}/d')
    assert 'not divisible by patch_size' in fails(capsys, train.main, *wrong)
    assert 'image_size' in fails(capsys, train.main, '--init_from=resume', f'--out_dir={tmp_path}/a', '--image_size=8')


def test_a_checkpoint_without_a_config_brings_its_recipe(trained, folder, tmp_path, quick):
    run = shutil.copytree(trained, tmp_path / 'run')
    go(f'--init_from={run}', f'--out_dir={tmp_path}/a', '--max_iters=4', '--learning_rate=1e-4', '--min_lr=0')
    old, new = config_of(trained), config_of(tmp_path / 'a')
    changed = {'init_from': str(run), 'out_dir': f'{tmp_path}/a', 'max_iters': 4, 'learning_rate': 1e-4, 'min_lr': 0.0}
    assert new == old | changed and old['ema'] == 0.9 and old['randaugment_n'] == 1
    (tmp_path / 'c.py').write_text("dataset = 'quads'\nmax_iters = 2\ncrop_scale = 0.5\n")
    go(str(tmp_path / 'c.py'), f'--data_dir={folder}', f'--init_from={run}', f'--out_dir={tmp_path}/b')
    named = config_of(tmp_path / 'b')
    assert named['ema'] == 0 and named['crop_scale'] == 0.5 and named['randaugment_n'] == 0 and named['n_embd'] == 16


@pytest.mark.parametrize('name', AUTHORS)
def test_fine_tuning_starts_from_the_authors_file(name, folder, tmp_path, quick):
    model = official(name, tmp_path / 'w.pth')
    (tmp_path / 'c.py').write_text(f"model = '{name}'\ndataset = 'quads'\npatch_size = 4\nnew_head = True\n"
                                   "max_iters = 0\ndtype = 'float32'\n")
    start = [str(tmp_path / 'c.py'), f'--data_dir={folder}', f'--init_from=official:{tmp_path}/w.pth', '--n_head=3']
    go(*start, f'--out_dir={tmp_path}/a')
    before, after = model.state_dict(), weights(tmp_path / 'a')
    assert all(torch.equal(before[k], after[k]) for k in before if not k.startswith('head.'))
    assert after['head.weight'].shape == (4, 24)
    go(*start, '--image_size=8', f'--out_dir={tmp_path}/b')
    assert torch.equal(weights(tmp_path / 'b')['pos'], models.resize_positions(before['pos'], (4, 4), (2, 2)))
    go(f'--init_from={tmp_path}/a', f'--out_dir={tmp_path}/c', '--max_iters=2')  # what comes of it is a run like any other
    go('--init_from=resume', f'--out_dir={tmp_path}/a', '--max_iters=3')


def test_the_authors_file_tells_its_own_sizes_without_a_config(folder, tmp_path, quick):
    official('crate', tmp_path / 'w.pth')
    go(f'--data_dir={folder}', '--dataset=quads', f'--init_from=official:{tmp_path}/w.pth', '--model=crate', '--n_head=3',
       '--patch_size=4', '--image_size=16', '--new_head=true', '--max_iters=0', f'--out_dir={tmp_path}/a')
    assert config_of(tmp_path / 'a')['n_layer'] == 2


@pytest.mark.parametrize('more, message', [
    (['--model=crate', '--new_head=true'], 'give --n_head, or a config that does'),
    (['--n_head=3'], '--model=crate or --model=vit'),
    (['--model=aot', '--n_head=3'], '--model=crate or --model=vit'), (['--model=vit', '--n_head=3'], 'not a ViT state dict'),
    (['--model=crate', '--n_head=3'], '--new_head=true'),
    (['--model=crate', '--n_head=0'], 'n_head')])
def test_mistakes_with_the_authors_files_get_one_line(more, message, folder, tmp_path, capsys, quick):
    official('crate', tmp_path / 'w.pth')
    (tmp_path / 'c.py').write_text("dataset = 'quads'\npatch_size = 4\nmax_iters = 0\n")
    said = fails(capsys, train.main, str(tmp_path / 'c.py'), f'--data_dir={folder}',
                 f'--init_from=official:{tmp_path}/w.pth',
                 f'--out_dir={tmp_path}/a', *more)
    assert message in said and not (tmp_path / 'a').exists()


# ---- mistakes

@pytest.mark.parametrize('start', ['resume', 'run'])
def test_a_runs_device_that_is_not_here_says_what_to_type(start, trained, tmp_path, capsys):
    run = shutil.copytree(trained, tmp_path / 'run')
    for name in ('last.pt', 'best.pt'):
        checkpoint = rundir.load_checkpoint(run / name)
        checkpoint['config']['device'] = 'cuda:7'
        rundir.save(run / name, checkpoint)
    resume, tune = ['--init_from=resume', f'--out_dir={run}'], [f'--init_from={run}', f'--out_dir={tmp_path}/a']
    where = resume if start == 'resume' else tune
    assert '--device=auto' in fails(capsys, train.main, *where)


def test_text_and_pictures_are_told_apart(words, trained, folder, tmp_path, capsys):
    text = [f'--data_dir={folder}', '--dataset=text']
    go(*text, '--n_layer=1', '--n_head=2', '--n_embd=16', '--block_size=8', '--max_iters=0', f'--out_dir={tmp_path}/text')
    for start, message in (([*text, '--model=vit'], 'holds text, model=vit does not read that'),
                           (tune(trained, folder, '--dataset=text'), 'the checkpoint reads images'),
                           (tune(tmp_path / 'text', folder, '--dataset=quads'), 'the checkpoint reads text'),
                           (tune(tmp_path / 'text', folder, '--new_head=true'), 'new_head=true is for pictures'),
                           ([*words, '--new_head=true'], 'new_head=true needs a model to put it on'),
                           (tune(trained, folder, '--model=vit'), 'model=vit cannot start from it')):
        assert message in fails(capsys, train.main, *start, f'--out_dir={tmp_path}/a') and not (tmp_path / 'a').exists()


@pytest.mark.parametrize('more', [['--dataset=text', '--image_size=16', '--block_size=8'],
                                  ['--dataset=quads', '--image_size=0']])
def test_aot_refuses_to_read_pictures_as_text_and_text_as_pictures(more, folder, tmp_path, capsys, quick):
    assert 'image_size' in fails(capsys, train.main, f'--data_dir={folder}', '--model=aot', '--n_layer=1', '--n_head=2',
                                 '--n_embd=16',
                                 '--max_iters=0', f'--out_dir={tmp_path}/a', *more)
    assert not (tmp_path / 'a').exists()


@pytest.mark.parametrize('more, message', [
    (['--patch_size=3'], 'not divisible by patch_size'), (['--num_classes=3'], 'num_classes=3 is too small'),
    (['--epochs=-1'], 'epochs'),
    (['--ema=1'], 'ema'), (['--workers=-2'], 'workers'), (['--crop_scale=0'], 'crop_scale'),
    (['--eval_crop=2'], 'eval_crop'),
    (['--image_size=8,8,8'], 'one or two whole numbers'), (['--randaugment_n=11'], 'randaugment_n'),
    (['--pool=max'], 'cls or mean')])
def test_mistakes_on_pictures_get_one_line_and_touch_nothing(more, message, words, tmp_path, capsys):
    assert message in fails(capsys, train.main, *words, f'--out_dir={tmp_path}/a', *more)
    assert not (tmp_path / 'a').exists()


@pytest.mark.parametrize('dataset, command', [
    ('imagenet21k', 'python prepare/imagenet.py --out {}'), ('nothing', 'python prepare/imagefolder.py FOLDER --out {}'),
    ('cifar10', 'python prepare/cifar10.py --out {}'),
    ('images', 'python prepare/imagefolder.py FOLDER --out {}')])
def test_a_dataset_that_is_not_there_says_what_to_run(dataset, command, folder, tmp_path, capsys, quick):
    said = fails(capsys, train.main, f'--data_dir={folder}', f'--dataset={dataset}', f'--out_dir={tmp_path}/a')
    assert command.format(folder / dataset) in said and f'no data in {folder / dataset}' in said
    assert dataset != 'nothing' or 'prepared are colours, numbered, pack' in said


def test_without_a_config_every_network_has_its_own():
    for name, kind, dataset in (('aot', 'text', 'stdlib'), ('crate', 'images', 'shapes'), ('vit', 'images', 'shapes')):
        c, a, given, checkpoint = train.settings([f'--model={name}'])
        file = configurator.read_file(str(ROOT / 'config' / train.DEFAULTS[name, kind]))
        assert (c.model, c.dataset, c.out_dir, checkpoint) == (name, dataset, file['out_dir'], None)
        assert given['n_layer'] == file['n_layer'] and a.eval_crop == file.get('eval_crop', a.eval_crop)


def test_work_is_counted_for_pictures_too():
    model = AoT(AoTConfig(**SMALL))
    flops = machine.train_flops(model)
    matrices = 6 * (13 * 2 * 2 * 16 * 16 + 12 * 24 * 16 + 5 * 16)  # 13 tokens; 12 patches; one classified token
    attention = 2 * 12 * 13 * 13 * 16
    assert 0.85 * (matrices + attention) < flops < 1.3 * (matrices + attention)


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_stopped_with_its_readers_a_run_ends_in_order(number, folder, tmp_path):
    process = subprocess.Popen([sys.executable, str(ROOT / 'train.py'), f'--data_dir={folder}', '--dataset=pack', *WORDS,
                                '--image_size=8', '--workers=2', '--max_iters=100000', '--eval_interval=10',
                                f'--out_dir={tmp_path}/a'], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               start_new_session=True, env=os.environ | {'PYTHONUNBUFFERED': '1'})
    try:
        for line in process.stdout:
            if line.startswith('step') and int(line.split()[1]) >= 13:
                break
        os.killpg(process.pid, number)  # as a terminal does with Ctrl-C, and `timeout`
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    step = rundir.load_checkpoint(tmp_path / 'a' / 'last.pt')['step']
    assert process.returncode == 128 + number and err == '' and step > 13 and f'stopped at step {step}' in out
