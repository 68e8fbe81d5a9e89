"""Crops for self-distillation: hue by the standard library, blur by a plain loop, probabilities by
counting, and each crop a function of its own random numbers."""
import colorsys
import math

import numpy as np
import pytest
import torch

from tasks import augment, randaugment, views
from tasks.augment import AugmentConfig

C = AugmentConfig(crop_scale=0.4, local_crops=3, local_size=8, local_scale=0.1)


def drawn(n, seed=0, c=C):
    rng = np.random.default_rng(seed)
    pictures = torch.from_numpy(rng.integers(0, 256, (n, 20, 24, 3), dtype=np.uint8))
    return pictures, torch.tensor([[20, 24]] * n), torch.from_numpy(rng.random((n, views.draws_needed(c))))


def test_sizes_and_how_many():
    large, small = views.views(*drawn(5), (16, 12), C)
    assert large.shape == (2, 5, 3, 16, 12) and small.shape == (3, 5, 3, 8, 8)
    none = AugmentConfig(local_crops=0)
    large, small = views.views(*drawn(2, c=none), (16, 12), none)
    assert large.shape == (2, 2, 3, 16, 12) and small.numel() == 0


def test_a_crop_depends_on_its_own_numbers_alone():
    pictures, sizes, draws = drawn(6)
    whole = views.views(pictures, sizes, draws, (16, 16), C)
    rows = torch.tensor([4, 1])
    for a, b in zip(whole, views.views(pictures[rows], sizes[rows], draws[rows], (16, 16), C)):
        assert torch.allclose(a[:, rows], b, atol=1e-5)
    other = draws.clone()
    other[:, views.VIEW:2 * views.VIEW] = 0.5  # of the second large crop
    large, small = views.views(pictures, sizes, other, (16, 16), C)
    assert torch.equal(large[0], whole[0][0]) and torch.equal(small, whole[1])
    assert not torch.equal(large[1], whole[0][1])


def test_areas_of_crops():
    draws = torch.from_numpy(np.random.default_rng(1).random((4000, augment.FIRST)))
    sizes = torch.tensor([[50, 50]] * 4000)
    for least, most in ((0.4, 1.0), (0.05, 0.4)):
        _, _, w, h = augment.crop_boxes(sizes, draws, (8, 8), least, most).T
        share = w * h / 2500
        assert share.min() >= least - 1e-9 and share.max() <= most + 1e-9
        assert share.min() < least + 0.02 and share.max() > most - 0.05


def test_hue_is_that_of_the_standard_library():
    rng = np.random.default_rng(0)
    x, by = rng.integers(0, 256, (7, 3, 2, 2)).astype(np.float32), rng.uniform(-0.5, 0.5, 7).astype(np.float32)
    x[0, :, 0, 0] = 77  # grey has no hue
    found = views.turned(torch.from_numpy(x), torch.from_numpy(by)).numpy()
    for i, r, c in np.ndindex(7, 2, 2):
        h, s, v = colorsys.rgb_to_hsv(*(x[i, :, r, c] / 255))
        want = [255 * n for n in colorsys.hsv_to_rgb((h + by[i]) % 1, s, v)]
        assert found[i, :, r, c] == pytest.approx(want, abs=1e-2)


def test_blur_by_a_plain_loop():
    x, sigma = torch.rand(2, 3, 6, 7, generator=torch.Generator().manual_seed(0)) * 255, torch.tensor([0.3, 1.5])
    found = views.blurred(x, sigma, 2.0)
    for i in range(2):
        weights = {(a, b): math.exp(-(a * a + b * b) / (2 * sigma[i].item() ** 2))
                   for a in range(-6, 7) for b in range(-6, 7)}
        total = sum(weights.values())
        for r, c in np.ndindex(6, 7):
            want = sum(w * x[i, :, min(5, max(0, r + a)), min(6, max(0, c + b))]
                       for (a, b), w in weights.items()) / total
            assert torch.allclose(found[i, :, r, c], want, atol=1e-2)


@pytest.mark.parametrize('kind, blurred, solarized', [(0, 1.0, 0.0), (1, 0.1, 0.2), (2, 0.5, 0.0)])
def test_how_often_things_happen(kind, blurred, solarized):
    """Counted on pictures of which each operation makes something else that can be told apart."""
    n = 3000
    draws = torch.from_numpy(np.random.default_rng(2).random((n, views.VIEW)))
    edge = torch.zeros(n, 3, 4, 4)
    edge[..., 2:] = 100.0
    plain = AugmentConfig(jitter=0.0, blur=2.0)
    changed = (views.coloured(edge.clone(), draws, kind, plain) - edge).abs().amax((1, 2, 3)) > 1e-3
    assert changed.double().mean() == pytest.approx(blurred, abs=0.06)  # of the least blurs nothing is left
    flat = torch.tensor([250.0, 200.0, 180.0])[:, None, None].expand(n, 3, 4, 4)
    c = AugmentConfig(jitter=1.0, blur=0.0)
    x = views.coloured(flat.clone(), draws, kind, c)
    assert (x.mean((1, 2, 3)) < 100).double().mean() == pytest.approx(solarized, abs=0.04)
    grey = (x[:, 0] == x[:, 1]).all((1, 2)) & (x[:, 1] == x[:, 2]).all((1, 2))
    untouched = (x == flat).all((1, 2, 3))
    assert 0.15 < grey.double().mean() < 0.3 and untouched.double().mean() == pytest.approx(
        0.2 * 0.8 * (1 - solarized), abs=0.04)


def test_pixels_from_128_on_are_solarized():
    draws = torch.zeros(1, views.VIEW)
    draws[:, views.JITTERED] = 0.99                                     # not jittered
    x = torch.tensor([100.0, 127.0, 128.0, 250.0])[None, None, None].expand(1, 3, 1, 4).clone()
    x = views.coloured(x, draws, 1, AugmentConfig(blur=0.0))
    assert x[0, 0, 0].tolist() == [100, 127, 127, 5]


@pytest.mark.parametrize('share', [0.0, 0.5, 1.0])
def test_as_many_are_grey_as_are_asked_for(share):
    draws = torch.from_numpy(np.random.default_rng(3).random((2000, views.VIEW)))
    colour = torch.tensor([250.0, 200.0, 10.0])[:, None, None].expand(len(draws), 3, 1, 1)
    x = views.coloured(colour.clone(), draws, 2, AugmentConfig(grey=share, hue=0.0, blur=0.0))
    assert (x.amax(1) == x.amin(1)).double().mean() == pytest.approx(share, abs=0.04)


def test_a_batch_may_have_no_picture_to_change():
    draws = torch.full((2, views.VIEW), 0.99, dtype=torch.float64)
    x = torch.rand(2, 3, 4, 4) * 255
    assert all(torch.equal(views.coloured(x.clone(), draws, kind, AugmentConfig()), x) for kind in (1, 2))


def test_pictures_that_are_not_in_colour_change_in_brightness_and_contrast():
    pictures, sizes, draws = drawn(3)
    large, _ = views.views(pictures[..., :1], sizes, draws, (16, 16), C)
    assert large.shape == (2, 3, 1, 16, 16) and large.isfinite().all()
    draws = torch.full((1, views.VIEW), 0.99, dtype=torch.float64)
    draws[:, [views.JITTERED, views.CONTRAST]] = 0.5  # a brightness of 1.392, a contrast of 1
    x = torch.tensor([50.0, 100.0]).view(1, 1, 1, 2)
    assert views.coloured(x, draws, 2, AugmentConfig()).flatten().tolist() == pytest.approx([69.6, 139.2], abs=1)


def test_strengths_of_views(monkeypatch):
    seen = []
    monkeypatch.setattr(views, 'blurred', lambda x, sigma, largest: seen.append(sigma.tolist()) or x)
    monkeypatch.setattr(views, 'turned', lambda x, by: seen.append(by.tolist()) or x)
    for name in ('Brightness', 'Contrast', 'Color'):
        monkeypatch.setitem(randaugment.COLOUR, name, lambda x, factor: seen.append(factor.flatten().tolist()) or x)
    draws = torch.tensor([0.0, 0.25, 0.75], dtype=torch.float64)[:, None].repeat(1, views.VIEW)
    draws[:, [views.JITTERED, views.BLURRED]] = 0.0
    views.coloured(torch.zeros(3, 3, 2, 2), draws, 0, AugmentConfig(jitter=1.0, blur=2.0))
    want = [[0.6, 0.8, 1.2], [0.6, 0.8, 1.2], [0.8, 0.9, 1.1], [-0.1, -0.05, 0.05], [0.1, 0.575, 1.525]]
    assert seen == [pytest.approx(w) for w in want]
    seen.clear()
    views.coloured(torch.zeros(3, 3, 2, 2), draws, 0, AugmentConfig(jitter=0.5, hue=0.5, blur=0.0))
    assert seen == [pytest.approx(w) for w in ([0.8, 0.9, 1.1], [0.8, 0.9, 1.1], [0.9, 0.95, 1.05],
                                               [-0.25, -0.125, 0.125])]


def test_crops_have_their_own_areas_and_colours(monkeypatch):
    c, areas, kinds = AugmentConfig(crop_scale=0.4, local_crops=3, local_size=8, local_scale=0.1), [], []
    cropped, coloured = augment.cropped, views.coloured
    monkeypatch.setattr(augment, 'cropped', lambda *args: areas.append(args[-1]) or cropped(*args))
    monkeypatch.setattr(views, 'coloured', lambda x, draws, kind, c: kinds.append(kind) or coloured(x, draws, kind, c))
    views.views(torch.zeros(2, 20, 20, 3, dtype=torch.uint8), torch.tensor([[20, 20]] * 2),
                torch.rand(2, views.draws_needed(c), dtype=torch.float64), (16, 16), c)
    assert areas == [(0.4, 1.0)] * 2 + [(0.1, 0.4)] * 3 and kinds == [0, 1, 2, 2, 2]
