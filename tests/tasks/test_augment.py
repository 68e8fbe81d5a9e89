"""The 14 operations against Pillow; what a picture becomes depends on it and its numbers alone."""
import math

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from tasks import augment
from tasks.augment import AugmentConfig, train_pictures
from tasks.randaugment import COLOUR, GEOMETRIC, OPERATIONS

PLAIN = AugmentConfig(crop_scale=1.0, flip=False)
ALL_ON = AugmentConfig(crop_scale=0.2, randaugment_n=2)


def noise(n, h, w, seed=0, channels=3):
    pixels = np.random.default_rng(seed).integers(0, 256, (n, h, w, channels), np.uint8)
    return torch.from_numpy(pixels)


def smooth(h, w, n=4):
    """Pictures without detail as fine as a pixel, so that ways to interpolate agree."""
    small = np.random.default_rng(1).integers(0, 256, (n, 4, 5, 3), np.uint8)
    return by_pillow(lambda p: p.resize((w, h), Image.BICUBIC), torch.from_numpy(small))


def structured(h, w):
    """Flat, few values, dark, stripes, a ramp of every value, smooth: histograms that random pixels
    do not have."""
    y, x = np.mgrid[:h, :w]
    ramp = (y * w + x) * 255 // (h * w - 1)
    pictures = [np.full((h, w, 3), 77), np.stack([x % 2, y % 3, (x + y) % 5], -1) * 60,
                noise(1, h, w)[0].numpy() // 9 + 3, np.stack([x % 2 * 255] * 3, -1),
                np.stack([ramp, 255 - ramp, ramp // 64 * 64], -1)]
    return torch.cat([torch.from_numpy(np.stack(pictures).astype(np.uint8)), smooth(h, w)])


def sizes_of(pictures):
    return torch.tensor(pictures.shape[1:3]).repeat(len(pictures), 1)


def draws_for(n, *operations, negative=()):
    """No flip; the named operations in order, those at the places in `negative` with the other
    sign."""
    numbers = [0.3, 0.6] * augment.TRIES + [0.2, 0.7, 0.9]
    for i, name in enumerate(operations):
        numbers += [(OPERATIONS.index(name) + 0.5) / len(OPERATIONS), 0.1 if i in negative else 0.9]
    return torch.tensor([numbers] * n, dtype=torch.float64)


def random_draws(n, c, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).random((n, augment.draws_needed(c))))


def trained(pictures, draws, image_size, c):
    """Pictures as training sees them, uint8 (n, H, W, C)."""
    return augment.denormalize(train_pictures(pictures, sizes_of(pictures), draws, image_size, c))


def augmented(pictures, *operations, m=14, scale='torchvision', negative=()):
    """Through train_pictures with crop and flip off, uint8 (n, H, W, 3)."""
    c = AugmentConfig(crop_scale=1.0, flip=False, randaugment_n=len(operations), randaugment_m=m,
                      randaugment_scale=scale)
    draws = draws_for(len(pictures), *operations, negative=negative)
    return trained(pictures, draws, tuple(pictures.shape[1:3]), c)


def by_pillow(function, pictures):
    """What a function of a Pillow picture makes of each."""
    made = []
    for picture in pictures.numpy():
        if picture.shape[-1] == 1:
            picture = picture[..., 0]
        made.append(np.asarray(function(Image.fromarray(picture))))
    return torch.from_numpy(np.stack(made)).view(len(made), *made[0].shape[:2], -1)


def levels_apart(a, b):
    return (a.int() - b.int()).abs()


# ---- operations


# What the operations do at a magnitude. From torchvision 0.20's transforms/autoaugment.py
# (RandAugment, 31 bins) and timm 1.0's data/auto_augment.py (rand-m14: 14 is clipped to 10), by
# hand. Angle in degrees, shear in pixels per pixel, translation in sides, enhancement as a factor,
# the same of the other sign, bits, threshold.
COLUMNS = 'Rotate', 'Shear', 'Translate', 'Enhance', 'Opposite', 'Posterize', 'Solarize'
TABLE = {
    ('torchvision', 14): (14, 0.14, 0.2115, 1.42, 0.58, 6, 136),
    ('torchvision', 30): (30, 0.3, 0.4532, 1.9, 0.1, 4, 0),
    ('torchvision', 3): (3, 0.03, 0.0453, 1.09, 0.91, 8, 229.5),
    ('timm', 14): (30, 0.3, 0.45, 1.9, 1.9, 4, 256),
    ('timm', 5): (15, 0.15, 0.225, 1.0, 1.0, 2, 128),
}
each_strength = pytest.mark.parametrize('scale, m', TABLE)
each_sign = pytest.mark.parametrize('negative', [(), (0,)])


def affine(fill, *matrix):
    return lambda p: p.transform(p.size, Image.AFFINE, matrix, Image.BILINEAR, fillcolor=fill)


def enhance(kind, factor):
    return lambda p: getattr(ImageEnhance, kind)(p).enhance(factor)


@each_strength
@each_sign
@pytest.mark.parametrize('name', COLOUR)
def test_colour_operations_are_pillows(name, scale, m, negative):
    row = dict(zip(COLUMNS, TABLE[scale, m]))
    theirs = {'AutoContrast': ImageOps.autocontrast, 'Equalize': ImageOps.equalize,
              'Posterize': lambda p: ImageOps.posterize(p, row['Posterize']),
              'Solarize': lambda p: ImageOps.solarize(p, row['Solarize'])}
    function = theirs.get(name) or enhance(name, row['Opposite' if negative else 'Enhance'])
    sizes = [(37, 50, 3), (37, 50, 1), (1, 2, 3)]
    if name in ('AutoContrast', 'Equalize') and (scale, m) == ('torchvision', 14):
        sizes.append((224, 160, 3))  # they count pixels; here more than 2 ** 15
    for h, w, channels in sizes:
        pictures = torch.cat([noise(3, h, w), structured(h, w)])[..., :channels]
        ours = augmented(pictures, name, m=m, scale=scale, negative=negative)
        assert levels_apart(ours, by_pillow(function, pictures)).max() == 0, (h, w, channels)


FILL = {('torchvision', 3): (0, 0, 0), ('torchvision', 1): 0,
        ('timm', 3): (124, 116, 104), ('timm', 1): 115}


@each_strength
@each_sign
@pytest.mark.parametrize('channels', [1, 3])
@pytest.mark.parametrize('name', GEOMETRIC)
def test_geometric_operations_are_pillows(name, channels, scale, m, negative):
    h, w = 60, 90
    row = dict(zip(COLUMNS, TABLE[scale, m]))
    sign = -1 if negative else 1
    angle, shear, shift = sign * row['Rotate'], sign * row['Shear'], sign * row['Translate']
    fill = FILL[scale, channels]
    theirs = {'Rotate': lambda p: p.rotate(angle, Image.BILINEAR, fillcolor=fill),
              'ShearX': affine(fill, 1, shear, 0, 0, 1, 0),
              'ShearY': affine(fill, 1, 0, 0, shear, 1, 0),
              'TranslateX': affine(fill, 1, 0, shift * w, 0, 1, 0),
              'TranslateY': affine(fill, 1, 0, 0, 0, 1, shift * h)}[name]
    pictures = smooth(h, w)[..., :channels]
    ours = augmented(pictures, name, m=m, scale=scale, negative=negative)
    apart = levels_apart(ours, by_pillow(theirs, pictures))
    assert apart.float().mean() < 0.6 and (apart <= 1).float().mean() > 0.99


def test_the_14_operations_follow_each_other_each_with_its_own_sign():
    assert len(OPERATIONS) == 14
    pictures = torch.cat([smooth(40, 40), noise(2, 40, 40)])
    once = by_pillow(enhance('Brightness', 0.58), by_pillow(ImageOps.equalize, pictures))
    assert torch.equal(augmented(pictures, 'Equalize', 'Brightness', negative=(1,)), once)
    turned = by_pillow(lambda p: p.rotate(14, Image.BILINEAR), pictures[:4])
    sheared = by_pillow(affine((0, 0, 0), 1, 0.14, 0, 0, 1, 0), turned)
    apart = levels_apart(augmented(pictures[:4], 'Rotate', 'ShearX'), sheared)
    # twice interpolated, their borders are softer
    assert apart[:, 12:28, 12:28].float().mean() < 1.5
    rotated = augmented(pictures, 'Rotate', 'Brightness')  # geometric operations come first
    assert torch.equal(augmented(pictures, 'Brightness', 'Rotate'), rotated)
    there_and_back = augmented(pictures, 'TranslateX', 'TranslateX', negative=(1,))
    assert torch.equal(there_and_back, pictures)
    assert torch.equal(augmented(pictures[..., :2], 'Color'), pictures[..., :2])  # these have none


# ---- the warp


SHAPES = [(40, 64), (33, 50), (90, 20), (64, 64), (17, 90), (64, 64)]


def padded(garbage, channels):
    """Pictures of these shapes, padded to the largest."""
    pictures = torch.full((len(SHAPES), 90, 90, channels), garbage, dtype=torch.uint8)
    for i, (h, w) in enumerate(SHAPES):
        pictures[i, :h, :w] = noise(1, h, w, i, channels)[0]
    return pictures, torch.tensor(SHAPES)


@pytest.mark.parametrize('c, channels', [(PLAIN, 3), (ALL_ON, 3), (ALL_ON, 4)])
def test_a_row_depends_on_its_own_picture_and_numbers_alone_and_padding_is_never_seen(c, channels):
    pictures, sizes = padded(0, channels)
    white, _ = padded(255, channels)
    draws = random_draws(6, c, seed=3)
    x = train_pictures(pictures, sizes, draws, (16, 24), c)
    views = augment.eval_pictures(pictures, sizes, (16, 24), 0.9)
    assert x.isfinite().all() and x.shape == (6, channels, 16, 24)
    assert torch.equal(views, augment.eval_pictures(white, sizes, (16, 24), 0.9))
    for i, (h, w) in enumerate(SHAPES):
        row = slice(i, i + 1)
        alone = train_pictures(white[row], sizes[row], draws[row], (16, 24), c)
        assert torch.equal(alone, x[row])
        unpadded = white[row, :h, :w]  # how far the padding goes makes no difference either
        view = augment.eval_pictures(unpadded, sizes[row], (16, 24), 0.9)
        torch.testing.assert_close(view, views[row])
        if c is PLAIN:
            alone = train_pictures(unpadded, sizes[row], draws[row], (16, 24), c)
            assert (alone - x[row]).abs().max() < 2e-3


def by_the_rule(height, width, ratio, numbers):
    """A random resized crop as torchvision's rule makes it of numbers in [0, 1): (left, top, width,
    height)."""
    *tries, x, y = numbers[:22]
    for i in range(0, 20, 2):
        area = height * width * (0.08 + 0.92 * tries[i])
        aspect = ratio * 3 / 4 * (16 / 9) ** tries[i + 1]
        w, h = math.sqrt(area * aspect), math.sqrt(area / aspect)
        if w <= width and h <= height:
            return (width - w) * x, (height - h) * y, w, h
    w, h = min(width, height * ratio * 4 / 3), min(height, width / ratio * 4 / 3)
    return (width - w) / 2, (height - h) / 2, w, h


@pytest.mark.parametrize('size, ratio', [
    ((480, 640), 1), ((100, 1000), 1), ((480, 640), 2), ((300, 600), 0.5)])
def test_crops_are_those_of_the_rule(size, ratio):
    """Area and logarithm of the aspect ratio are uniform, and so is the place of the first of ten
    boxes that fits."""
    draws = random_draws(4000, AugmentConfig(), seed=5)
    boxes = augment.crop_boxes(torch.tensor([size] * 4000), draws, (32, int(32 * ratio)), 0.08)
    theirs = [by_the_rule(*size, ratio, numbers) for numbers in draws.tolist()]
    torch.testing.assert_close(boxes, torch.tensor(theirs, dtype=torch.float64))
    if (size, ratio) == ((480, 640), 1):  # by torchvision's own function
        assert abs(boxes[:, 2:].prod(1).mean() / (480 * 640) - 0.432) < 0.008


@pytest.mark.parametrize('h, w, image_size, crop', [
    (401, 8, (8, 8), 1.0), (16, 999, (14, 14), 0.875)])
def test_evaluation_sees_the_same_of_a_panorama(h, w, image_size, crop):
    whole = noise(1, h, w)
    part = torch.from_numpy(augment.cut(whole[0].numpy(), image_size))[None]
    assert part.numel() < whole.numel() / 10
    of_whole = augment.eval_pictures(whole, sizes_of(whole), image_size, crop)
    assert torch.equal(augment.eval_pictures(part, sizes_of(part), image_size, crop), of_whole)


def test_crop_off_is_the_largest_centred_box():
    sizes = torch.tensor([[50, 80], [80, 50], [64, 64]])
    boxes = augment.crop_boxes(sizes, draws_for(3), (32, 64), 1.0)
    assert boxes.tolist() == [[0, 5, 80, 40], [0, 27.5, 50, 25], [0, 16, 64, 32]]


@pytest.mark.parametrize('size', [256, 253])
def test_shrinking_does_not_alias(size):
    y, x = np.mgrid[:size, :size]
    board = (x + y) % 2 * 255
    board = torch.from_numpy(board[None, ..., None].astype(np.uint8))
    assert levels_apart(trained(board, draws_for(1), (32, 32), PLAIN), torch.tensor(127)).max() <= 2


@pytest.mark.parametrize('flip', [False, True])
def test_a_crop_is_what_pillow_cuts_and_resizes_and_half_of_them_are_mirrored(flip):
    pictures = smooth(100, 140)
    draws = draws_for(4)
    draws[:, augment.FLIP] = torch.tensor([0, 0.49, 0.51, 0.99])
    x = trained(pictures, draws, (40, 48), AugmentConfig(crop_scale=0.3, flip=flip))
    left, top, w, h = augment.crop_boxes(sizes_of(pictures), draws, (40, 48), 0.3)[0].tolist()
    box = left, top, left + w, top + h
    theirs = by_pillow(lambda p: p.resize((48, 40), Image.BILINEAR, box=box), pictures)
    if flip:
        theirs[:2] = theirs[:2].flip(2)
    assert left > 1 and top > 1 and levels_apart(x, theirs).max() <= 2


# ---- evaluation


@pytest.mark.parametrize('h, w, size, share, new', [
    (300, 400, (224, 224), 0.875, (256, 341)), (200, 200, (64, 96), 0.9, (107, 107)),
    (40, 60, (24, 24), None, (24, 24)), (256, 340, (224, 224), 0.875, (256, 340))])
def test_evaluation_is_pillows_resize_and_crop(h, w, size, share, new):
    """None: all of it is resized. What has its size already is not interpolated."""
    pictures = torch.cat([noise(1, h, w), smooth(h, w)])
    x = augment.denormalize(augment.eval_pictures(pictures, sizes_of(pictures), size, share))
    top, left = (new[0] - size[0]) // 2, (new[1] - size[1]) // 2
    theirs = by_pillow(lambda p: p.resize(new[::-1], Image.BILINEAR), pictures)
    theirs = theirs[:, top:top + size[0], left:left + size[1]]
    assert levels_apart(x, theirs).max() <= (new != (h, w)) and x.shape == (5, *size, 3)
