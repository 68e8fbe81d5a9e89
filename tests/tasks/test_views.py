"""Crops for self-distillation: hue by the standard library, blur by a plain loop, jitter by Pillow, probabilities by
counting, and each crop a function of its own random numbers."""
import colorsys
import math

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance

from tasks import augment, views
from tasks.augment import AugmentConfig

C = AugmentConfig(crop_scale=0.4, local_crops=3, local_size=8, local_scale=0.1)


def drawn(n, c=C):
    rng = np.random.default_rng(0)
    pictures = torch.from_numpy(rng.integers(0, 256, (n, 20, 24, 3), dtype=np.uint8))
    return pictures, torch.tensor([[20, 24]] * n), torch.from_numpy(rng.random((n, views.draws_needed(c))))


def columns(n, **values):
    """Random numbers of n crops of which only these matter; with others nothing happens."""
    draws = torch.full((n, views.VIEW), 0.99, dtype=torch.float64)
    for name, value in values.items():
        draws[:, getattr(views, name)] = torch.as_tensor(value, dtype=torch.float64)
    return draws


def test_a_crop_depends_on_its_own_numbers_alone():
    pictures, sizes, draws = drawn(6)
    whole = views.views(pictures, sizes, draws, (16, 12), C)
    assert whole[0].shape == (2, 6, 3, 16, 12) and whole[1].shape == (3, 6, 3, 8, 8)
    rows = torch.tensor([4, 1])
    for a, b in zip(whole, views.views(pictures[rows], sizes[rows], draws[rows], (16, 12), C)):
        assert torch.allclose(a[:, rows], b, atol=1e-5)
    other = draws.clone()
    other[:, views.VIEW:2 * views.VIEW] = 0.5  # of the second large crop
    large, small = views.views(pictures, sizes, other, (16, 12), C)
    assert torch.equal(large[0], whole[0][0]) and torch.equal(small, whole[1])
    assert not torch.equal(large[1], whole[0][1])
    none = AugmentConfig(local_crops=0)
    assert [x.numel() for x in views.views(*drawn(2, none), (16, 12), none)] == [2 * 2 * 3 * 16 * 12, 0]


def test_areas_of_crops():
    """Measured on pictures that say where each pixel is."""
    c = AugmentConfig(crop_scale=0.4, local_crops=2, local_size=16, local_scale=0.1, blur=0.0)
    y, x = np.mgrid[:100, :100]
    picture = torch.from_numpy(np.stack([2 * x, 2 * y, 0 * x], -1).astype(np.uint8)).expand(400, -1, -1, -1)
    draws = torch.from_numpy(np.random.default_rng(1).random((400, views.draws_needed(c))))
    for column in (views.JITTERED, views.GREY, views.SOLARIZED):
        draws[:, column::views.VIEW] = 0.99  # colours stay
    large, small = views.views(picture, torch.tensor([[100, 100]] * 400), draws, (16, 16), c)
    for crop, least, most in (*((x, 0.4, 1.0) for x in large), *((x, 0.1, 0.4) for x in small)):
        seen = augment.denormalize(crop)[..., :2].flatten(1, 2).double()
        area = ((seen.amax(1) - seen.amin(1)) / 2 * 16 / 15).prod(1) / 100 ** 2  # from the first to the last centre
        assert least - 0.02 < area.min() < least + 0.03 and most - 0.06 < area.max() < most + 0.03


def test_hue_is_that_of_the_standard_library():
    rng = np.random.default_rng(0)
    x, by = rng.integers(0, 256, (7, 3, 2, 2)).astype(np.float32), rng.uniform(-0.5, 0.5, 7).astype(np.float32)
    x[0, :, 0, 0] = 77  # grey has no hue
    found = views.shift_hue(torch.from_numpy(x), torch.from_numpy(by)).numpy()
    for i, r, c in np.ndindex(7, 2, 2):
        h, s, v = colorsys.rgb_to_hsv(*(x[i, :, r, c] / 255))
        want = [255 * n for n in colorsys.hsv_to_rgb((h + by[i]) % 1, s, v)]
        assert found[i, :, r, c] == pytest.approx(want, abs=1e-2)


def test_blur_by_a_plain_loop():
    x, sigma = torch.rand(2, 3, 6, 7, generator=torch.Generator().manual_seed(0)) * 255, torch.tensor([0.3, 1.5])
    found = views.gaussian_blur(x, sigma, 2.0)
    for i in range(2):
        weights = {(a, b): math.exp(-(a * a + b * b) / (2 * sigma[i].item() ** 2))
                   for a in range(-6, 7) for b in range(-6, 7)}
        for r, c in np.ndindex(6, 7):
            want = sum(w * x[i, :, min(5, max(0, r + a)), min(6, max(0, c + b))] for (a, b), w in weights.items())
            assert torch.allclose(found[i, :, r, c], want / sum(weights.values()), atol=1e-2)


def test_strengths_of_views():
    """Of the random numbers 0, 1/4 and 3/4: the jitter is Pillow's; hue and blur are those above."""
    x = torch.rand(3, 3, 6, 7, generator=torch.Generator().manual_seed(0)).mul(255).round()
    same, u = dict(JITTERED=0, BRIGHTNESS=0.5, CONTRAST=0.5, SATURATION=0.5), torch.tensor([0, 1, 3]) / 4
    for column, name, factors in (('BRIGHTNESS', 'Brightness', (0.6, 0.8, 1.2)),
                                  ('CONTRAST', 'Contrast', (0.6, 0.8, 1.2)), ('SATURATION', 'Color', (0.8, 0.9, 1.1))):
        found = views.coloured(x.clone(), columns(3, **same | {column: u}), 2, AugmentConfig(hue=0.0))
        for a, b, factor in zip(found, x, factors):
            b = Image.fromarray(b.byte().permute(1, 2, 0).numpy())
            want = np.asarray(getattr(ImageEnhance, name)(b).enhance(factor))
            assert (a.permute(1, 2, 0) - want.astype(np.float32)).abs().max() <= 1
    for hue, turns in ((0.1, (-0.1, -0.05, 0.05)), (0.5, (-0.5, -0.25, 0.25))):
        found = views.coloured(x.clone(), columns(3, **same, HUE=u), 2, AugmentConfig(hue=hue))
        assert torch.allclose(found, views.shift_hue(x, torch.tensor(turns)), atol=1e-3)
    found = views.coloured(x.clone(), columns(3, SOLARIZED=0), 1, AugmentConfig())
    assert torch.equal(found, torch.where(x < 128, x, 255 - x)) and {127, 128} <= {*x.flatten().tolist()}
    found = views.coloured(x.clone(), columns(3, BLURRED=0, SIGMA=u), 2, AugmentConfig())
    assert torch.allclose(found, views.gaussian_blur(x, torch.tensor([0.1, 0.575, 1.525]), 2.0), atol=1e-3)


@pytest.mark.parametrize('name, kind, share, settings', [
    ('JITTERED', 2, 0.8, {}), ('GREY', 2, 0.2, {}), ('GREY', 2, 0.5, dict(grey=0.5)),
    *(('BLURRED', kind, share, {}) for kind, share in enumerate((1.0, 0.1, 0.5))),
    *(('SOLARIZED', kind, share, dict(blur=0.0)) for kind, share in enumerate((0.0, 0.2, 0.0)))])
def test_how_often_things_happen(name, kind, share, settings):
    """With random numbers below a share, and not from there on."""
    x = 255 * torch.rand(3, 3, 6, 7, generator=torch.Generator().manual_seed(0))
    draws = columns(3, SIGMA=0.5, **{name: torch.tensor([0, max(0, share - 1e-6), share])})
    found = views.coloured(x.clone(), draws, kind, AugmentConfig(**settings))
    assert (found != x).flatten(1).any(1).tolist() == [share > 0, share > 0, False]


def test_pictures_that_are_not_in_colour_change_in_brightness_and_contrast():
    pictures, sizes, draws = drawn(3)
    large, _ = views.views(pictures[..., :1], sizes, draws, (16, 16), C)
    assert large.shape == (2, 3, 1, 16, 16) and large.isfinite().all()
    draws = columns(1, JITTERED=0.5, CONTRAST=0.5)  # a brightness of 1.392, a contrast of 1
    x = torch.tensor([50.0, 100.0]).view(1, 1, 1, 2)
    assert views.coloured(x, draws, 2, AugmentConfig()).flatten().tolist() == pytest.approx([69.6, 139.2], abs=1)
