"""Crops for self-distillation: hue by the standard library, blur by a plain loop, jitter by Pillow,
probabilities by counting, and each crop a function of its own random numbers."""
import colorsys
import math

import numpy as np
import pytest
import torch
from helpers import generator
from PIL import Image, ImageEnhance

from tasks import augment, views
from tasks.augment import AugmentConfig

C = AugmentConfig(crop_scale=0.4, local_crops=3, local_size=8, local_scale=0.1)


def drawn(n, c=C):
    """n pictures of 20 x 24, their sizes and random numbers for them."""
    rng = np.random.default_rng(0)
    pictures = torch.from_numpy(rng.integers(0, 256, (n, 20, 24, 3), dtype=np.uint8))
    draws = torch.from_numpy(rng.random((n, views.draws_needed(c))))
    return pictures, torch.tensor([[20, 24]] * n), draws


def noise(n):
    """Crops with whole numbers from 0 to 255."""
    return torch.rand(n, 3, 6, 7, generator=generator(0)).mul(255).round()


def columns(n, **values):
    """Random numbers of n crops of which only these matter; with others nothing happens."""
    draws = torch.full((n, views.VIEW), 0.99, dtype=torch.float64)
    for name, value in values.items():
        draws[:, getattr(views, name)] = torch.as_tensor(value, dtype=torch.float64)
    return draws


def test_a_crop_depends_on_its_own_numbers_alone():
    pictures, sizes, draws = drawn(6)
    large, small = views.views(pictures, sizes, draws, (16, 12), C)
    assert large.shape == (2, 6, 3, 16, 12) and small.shape == (3, 6, 3, 8, 8)

    rows = torch.tensor([4, 1])
    some = views.views(pictures[rows], sizes[rows], draws[rows], (16, 12), C)
    for whole, part in zip((large, small), some):
        assert torch.allclose(whole[:, rows], part, atol=1e-5)

    draws[:, views.VIEW:2 * views.VIEW] = 0.5  # of the second large crop
    other, small_too = views.views(pictures, sizes, draws, (16, 12), C)
    assert torch.equal(other[0], large[0]) and torch.equal(small_too, small)
    assert not torch.equal(other[1], large[1])


def test_there_may_be_no_small_crops():
    c = AugmentConfig(local_crops=0)
    large, small = views.views(*drawn(2, c), (16, 12), c)
    assert large.shape == (2, 2, 3, 16, 12) and small.numel() == 0


def test_areas_of_crops():
    """Measured on pictures that say where each pixel is."""
    c = AugmentConfig(crop_scale=0.4, local_crops=2, local_size=16, local_scale=0.1, jitter=0.0,
                      blur=0.0)
    y, x = np.mgrid[:100, :100]
    picture = torch.from_numpy(np.stack([2 * x, 2 * y, 0 * x], -1).astype(np.uint8))
    draws = torch.from_numpy(np.random.default_rng(1).random((400, views.draws_needed(c))))
    sizes = torch.tensor([[100, 100]] * 400)
    crops = views.views(picture.expand(400, -1, -1, -1), sizes, draws, (16, 16), c)
    for of_kind, least, most in zip(crops, (0.4, 0.1), (1.0, 0.4)):
        seen = augment.denormalize(of_kind.flatten(0, 1))[..., :2].flatten(1, 2).double()
        # from the first to the last centre of a pixel are 15 of 16 sides
        sides = (seen.amax(1) - seen.amin(1)) / 2 * 16 / 15
        area = sides.prod(1) / 100 ** 2
        assert least - 0.02 < area.min() < least + 0.03
        assert most - 0.06 < area.max() < most + 0.03


def test_hue_is_that_of_the_standard_library():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (7, 3, 2, 2)).astype(np.float32)
    turns = rng.uniform(-0.5, 0.5, 7).astype(np.float32)
    x[0, :, 0, 0] = 77  # grey has no hue
    shifted = views.shift_hue(torch.from_numpy(x), torch.from_numpy(turns)).numpy()
    for i, row, column in np.ndindex(7, 2, 2):
        h, s, v = colorsys.rgb_to_hsv(*(x[i, :, row, column] / 255))
        want = np.multiply(255, colorsys.hsv_to_rgb((h + turns[i]) % 1, s, v))
        assert shifted[i, :, row, column] == pytest.approx(want, abs=1e-2)


def test_blur_by_a_plain_loop():
    x = noise(2)
    sigmas = [0.3, 1.5]
    blurred = views.gaussian_blur(x, torch.tensor(sigmas), 2.0)
    for i, row, column in np.ndindex(2, 6, 7):
        want = total = 0
        for a, b in np.ndindex(13, 13):
            weight = math.exp(-((a - 6) ** 2 + (b - 6) ** 2) / (2 * sigmas[i] ** 2))
            at_row = min(5, max(0, row + a - 6))
            at_column = min(6, max(0, column + b - 6))
            want = want + weight * x[i, :, at_row, at_column]
            total += weight
        assert torch.allclose(blurred[i, :, row, column], want / total, atol=1e-2)


# Random numbers with which crops are jittered and stay what they are, and three for each strength
SAME = dict(JITTERED=0, BRIGHTNESS=0.5, CONTRAST=0.5, SATURATION=0.5)
NUMBERS = torch.tensor([0, 1, 3]) / 4


@pytest.mark.parametrize('column, name, factors', [
    ('BRIGHTNESS', 'Brightness', (0.8, 0.9, 1.1)), ('CONTRAST', 'Contrast', (0.8, 0.9, 1.1)),
    ('SATURATION', 'Color', (0.9, 0.95, 1.05))])
def test_jitter_is_pillows(column, name, factors):
    x = noise(3)
    draws = columns(3, **SAME | {column: NUMBERS})
    jittered = views.coloured(x.clone(), draws, 2, AugmentConfig(jitter=0.5, hue=0.0))
    for ours, before, factor in zip(jittered, x, factors):
        picture = Image.fromarray(before.byte().permute(1, 2, 0).numpy())
        theirs = np.array(getattr(ImageEnhance, name)(picture).enhance(factor))
        assert (ours.permute(1, 2, 0) - torch.from_numpy(theirs).float()).abs().max() <= 1


def test_strengths_of_hue_solarization_and_blur():
    x = noise(3)
    c = AugmentConfig(jitter=0.5, hue=0.5)
    turned = views.coloured(x.clone(), columns(3, **SAME, HUE=NUMBERS), 2, c)
    want = views.shift_hue(x, torch.tensor([-0.25, -0.125, 0.125]))
    assert torch.allclose(turned, want, atol=1e-3)

    c = AugmentConfig()
    solarized = views.coloured(x.clone(), columns(3, SOLARIZED=0), 1, c)
    assert torch.equal(solarized, torch.where(x < 128, x, 255 - x))
    assert {127, 128} <= set(x.flatten().tolist())

    blurred = views.coloured(x.clone(), columns(3, BLURRED=0, SIGMA=NUMBERS), 2, c)
    want = views.gaussian_blur(x, torch.tensor([0.1, 0.575, 1.525]), 2.0)
    assert torch.allclose(blurred, want, atol=1e-3)


@pytest.mark.parametrize('name, kind, share, settings', [
    ('JITTERED', 2, 0.8, {}), ('GREY', 2, 0.25, dict(grey=0.5, jitter=0.5)),
    ('BLURRED', 0, 1.0, {}), ('BLURRED', 1, 0.1, {}), ('BLURRED', 2, 0.5, {}),
    ('SOLARIZED', 0, 0.0, dict(blur=0.0)), ('SOLARIZED', 1, 0.1, dict(blur=0.0, jitter=0.5)),
    ('SOLARIZED', 2, 0.0, dict(blur=0.0))])
def test_how_often_things_happen(name, kind, share, settings):
    """With random numbers below a share, and not from there on."""
    x = noise(3)
    draws = columns(3, SIGMA=0.5, **{name: torch.tensor([0, max(0, share - 1e-6), share])})
    changed = views.coloured(x.clone(), draws, kind, AugmentConfig(**settings)) != x
    assert changed.flatten(1).any(1).tolist() == [share > 0, share > 0, False]


def test_pictures_that_are_not_in_colour_change_in_brightness_and_contrast():
    pictures, sizes, draws = drawn(3)
    large, _ = views.views(pictures[..., :1], sizes, draws, (16, 16), C)
    assert large.shape == (2, 3, 1, 16, 16) and large.isfinite().all()
    draws = columns(1, JITTERED=0.5, CONTRAST=0.5)  # a brightness of 1.392, a contrast of 1
    x = torch.tensor([50.0, 100.0]).view(1, 1, 1, 2)
    brighter = views.coloured(x, draws, 2, AugmentConfig())
    assert brighter.flatten().tolist() == pytest.approx([69.6, 139.2], abs=1)
