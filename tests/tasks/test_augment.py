"""The 14 operations against Pillow; what a picture becomes depends on it and its numbers alone."""
import math

import numpy as np
import pytest
import torch
from fake_mps import FakeMPS
from PIL import Image, ImageEnhance, ImageOps

from tasks import augment
from tasks.augment import AugmentConfig, train_pictures
from tasks.randaugment import COLOUR, GEOMETRIC, OPERATIONS

PLAIN = AugmentConfig(crop_scale=1.0, flip=False)


def noise(n, h, w, seed=0, channels=3):
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (n, h, w, channels), np.uint8))


def smooth(h, w, n=4):
    """Pictures without detail as fine as a pixel, so that ways to interpolate agree."""
    small = np.random.default_rng(1).integers(0, 256, (n, 4, 5, 3), np.uint8)
    return torch.from_numpy(np.stack([Image.fromarray(p).resize((w, h), Image.BICUBIC) for p in small]))


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


def draws_for(n, *operations, negative=False):
    """No flip; the named operations in order."""
    numbers = [0.3, 0.6] * augment.TRIES + [0.2, 0.7, 0.9]
    for name in operations:
        numbers += [(OPERATIONS.index(name) + 0.5) / len(OPERATIONS), 0.1 if negative else 0.9]
    return torch.tensor([numbers] * n, dtype=torch.float64)


def random_draws(n, c, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).random((n, augment.draws_needed(c))))


def augmented(pictures, *operations, m=14, scale='torchvision', negative=False):
    """Through train_pictures with crop and flip off, uint8 (n, H, W, 3)."""
    c = AugmentConfig(crop_scale=1.0, flip=False, randaugment_n=len(operations), randaugment_m=m,
                      randaugment_scale=scale)
    draws = draws_for(len(pictures), *operations, negative=negative)
    return augment.denormalize(train_pictures(pictures, sizes_of(pictures), draws, tuple(pictures.shape[1:3]), c))


def levels_apart(a, b):
    return (a.int() - torch.as_tensor(np.array(b)).int()).abs()


# ---- operations


# What the operations do at 14, and at the largest magnitude. From torchvision 0.20's transforms/autoaugment.py
# (RandAugment, 31 bins) and timm 1.0's data/auto_augment.py (rand-m14: 14 is clipped to 10), by hand. Angle in degrees,
# shear in pixels per pixel, translation in sides, enhancement as a factor (also of the other sign), bits, threshold.
TABLE = {
    ('torchvision', 14): dict(Rotate=14, Shear=0.14, Translate=0.2115, Enhance=(1.42, 0.58), Posterize=6, Solarize=136),
    ('torchvision', 30): dict(Rotate=30, Shear=0.3, Translate=0.4532, Enhance=(1.9, 0.1), Posterize=4, Solarize=0),
    ('torchvision', 3): dict(Rotate=3, Shear=0.03, Translate=0.0453, Enhance=(1.09, 0.91), Posterize=8, Solarize=229.5),
    ('timm', 14): dict(Rotate=30, Shear=0.3, Translate=0.45, Enhance=(1.9, 1.9), Posterize=4, Solarize=256),
    ('timm', 5): dict(Rotate=15, Shear=0.15, Translate=0.225, Enhance=(1.0, 1.0), Posterize=2, Solarize=128),
}
each_strength = pytest.mark.parametrize('scale, m', TABLE)


def affine(fill, *matrix):
    return lambda p: p.transform(p.size, Image.AFFINE, matrix, Image.BILINEAR, fillcolor=fill)


def pillow(scale='torchvision', m=14, negative=False):
    """{colour operation: what it does to a Pillow picture}."""
    row = TABLE[scale, m]
    factor = row['Enhance'][negative]
    return {'Identity': lambda p: p, 'AutoContrast': ImageOps.autocontrast, 'Equalize': ImageOps.equalize,
            'Posterize': lambda p: ImageOps.posterize(p, row['Posterize']),
            'Solarize': lambda p: ImageOps.solarize(p, row['Solarize']),
            'Color': lambda p: ImageEnhance.Color(p).enhance(factor),
            'Contrast': lambda p: ImageEnhance.Contrast(p).enhance(factor),
            'Brightness': lambda p: ImageEnhance.Brightness(p).enhance(factor),
            'Sharpness': lambda p: ImageEnhance.Sharpness(p).enhance(factor)}


@pytest.mark.parametrize('h, w', [(32, 32), (37, 50), (3, 4), (1, 2), (224, 160)])
@pytest.mark.parametrize('name', COLOUR)
def test_colour_operations_are_pillows(name, h, w):
    pictures = torch.cat([noise(3, h, w), structured(h, w)])
    theirs = np.stack([pillow()[name](Image.fromarray(p.numpy())) for p in pictures])
    assert levels_apart(augmented(pictures, name), theirs).max() == 0


@each_strength
@pytest.mark.parametrize('negative', [False, True])
def test_other_magnitudes_are_pillows_too(scale, m, negative):
    pictures = torch.cat([noise(2, 20, 30), structured(20, 30)])
    for name, operation in pillow(scale, m, negative).items():
        by_pillow = np.stack([operation(Image.fromarray(p.numpy())) for p in pictures])
        ours = augmented(pictures, name, m=m, scale=scale, negative=negative)
        assert levels_apart(ours, by_pillow).max() == 0, name


@each_strength
@pytest.mark.parametrize('negative', [False, True])
@pytest.mark.parametrize('h, w', [(48, 48), (60, 90)])
@pytest.mark.parametrize('name', GEOMETRIC)
def test_geometric_operations_are_pillows(name, h, w, negative, scale, m):
    row, sign = TABLE[scale, m], -1 if negative else 1
    fill = {'torchvision': (0, 0, 0), 'timm': (124, 116, 104)}[scale]
    shear, shift = sign * row['Shear'], sign * row['Translate']
    theirs = {'Rotate': lambda p: p.rotate(sign * row['Rotate'], Image.BILINEAR, fillcolor=fill),
              'ShearX': affine(fill, 1, shear, 0, 0, 1, 0), 'ShearY': affine(fill, 1, 0, 0, shear, 1, 0),
              'TranslateX': affine(fill, 1, 0, shift * w, 0, 1, 0),
              'TranslateY': affine(fill, 1, 0, 0, 0, 1, shift * h)}[name]
    pictures = smooth(h, w)
    by_pillow = np.stack([theirs(Image.fromarray(p.numpy())) for p in pictures])
    apart = levels_apart(augmented(pictures, name, m=m, scale=scale, negative=negative), by_pillow)
    assert apart.float().mean() < 0.6 and (apart <= 1).float().mean() > 0.99, (apart.float().mean(), apart.max())


def test_every_operation_is_there_and_drawn_as_often():
    assert sorted(pillow()) == sorted(COLOUR) and len(OPERATIONS) == 14 and len(GEOMETRIC) == 5
    draws = random_draws(14_000, AugmentConfig(randaugment_n=2))
    for i in (0, 1):
        counts = augment.operations(draws, i)[1].bincount()
        assert len(counts) == 14 and (counts - 1000).abs().max() < 150
    assert not torch.equal(augment.operations(draws, 0)[1], augment.operations(draws, 1)[1])
    assert augment.operations(torch.full((1, 30), 1 - 2.0 ** -53, dtype=torch.float64), 0) == (1, 13)


def test_operations_follow_each_other():
    pictures = smooth(40, 40)
    once = [ImageEnhance.Color(ImageOps.equalize(Image.fromarray(p.numpy()))).enhance(1.42) for p in pictures]
    assert levels_apart(augmented(pictures, 'Equalize', 'Color'), np.stack(once)).max() == 0
    shear = affine((0, 0, 0), 1, 0.14, 0, 0, 1, 0)
    moved = [shear(Image.fromarray(p.numpy()).rotate(14, Image.BILINEAR)) for p in pictures]
    ours = augmented(pictures, 'Rotate', 'ShearX')
    apart = levels_apart(ours, np.stack(moved))[:, 12:28, 12:28]  # twice interpolated, their borders are softer
    assert apart.float().mean() < 1.5
    assert torch.equal(augmented(pictures, 'Brightness', 'Rotate'), augmented(pictures, 'Rotate', 'Brightness'))
    there_and_back = draws_for(4, 'TranslateX', 'TranslateX')
    c = AugmentConfig(crop_scale=1.0, flip=False, randaugment_n=2)
    there_and_back[:, -1] = 0.1
    x = train_pictures(pictures, sizes_of(pictures), there_and_back, (40, 40), c)
    assert torch.equal(augment.denormalize(x), pictures)


# ---- other numbers of channels


@pytest.mark.parametrize('name', COLOUR)
def test_colour_operations_on_grey_pictures_are_pillows(name):
    pictures = torch.cat([noise(3, 37, 50), structured(37, 50)])[..., :1]
    theirs = np.stack([pillow()[name](Image.fromarray(p.numpy()[..., 0], 'L')) for p in pictures])[..., None]
    assert levels_apart(augmented(pictures, name), theirs).max() == 0


@pytest.mark.parametrize('channels', [1, 2, 4])
def test_geometry_crops_and_flips_are_the_same_for_any_number_of_channels(channels):
    """Without colour operations, every channel changes as it would in a colour picture."""
    colours, c = smooth(40, 50), AugmentConfig(crop_scale=0.5, randaugment_n=1)
    draws = random_draws(len(colours), c)
    draws[:, augment.FIRST] = (OPERATIONS.index('Rotate') + 0.5) / len(OPERATIONS)
    pictures = torch.cat([colours] * 2, 3)[..., :channels]
    ours = augment.denormalize(train_pictures(pictures, sizes_of(pictures), draws, (24, 32), c)).int()
    theirs = augment.denormalize(train_pictures(colours, sizes_of(colours), draws, (24, 32), c)).int()
    inside = (theirs != 0).any(-1)  # where they uncover an area, it is black
    for k in range(channels):
        assert (ours[..., k] - theirs[..., k % 3])[inside].abs().max() <= 1 and inside.float().mean() > 0.5
    seen = augment.eval_pictures(pictures, sizes_of(pictures), (24, 32), 0.9)
    assert seen.shape == (4, channels, 24, 32) and abs(seen.mean()) < 1


@pytest.mark.parametrize('channels', [1, 2, 4])
def test_a_row_of_any_channels_depends_on_its_own_picture_alone(channels):
    pictures, c = noise(4, 20, 24, channels=channels), AugmentConfig(randaugment_n=2)
    draws, sizes = random_draws(4, c), sizes_of(pictures)
    x = train_pictures(pictures, sizes, draws, (16, 16), c)
    assert x.shape == (4, channels, 16, 16) and x.isfinite().all()
    alone = [train_pictures(*(t[i:i + 1] for t in (pictures, sizes, draws)), (16, 16), c) for i in range(4)]
    assert torch.equal(torch.cat(alone), x)


@pytest.mark.parametrize('channels', [1, 2, 4])
def test_grey_statistics_normalize_all_channels_but_rgb(channels):
    pictures = noise(3, 6, 8, channels=channels)
    x = train_pictures(pictures, sizes_of(pictures), draws_for(3), (6, 8), PLAIN)
    plain = ((pictures / 255 - 0.449) / 0.226).permute(0, 3, 1, 2)
    torch.testing.assert_close(x, plain, rtol=0, atol=1e-6)
    assert torch.equal(augment.denormalize(x), pictures)


# ---- the warp


@pytest.mark.parametrize('h, w', [(32, 32), (64, 32), (50, 37)])
def test_all_off_is_plain_normalization(h, w):
    pictures = noise(3, h, w)
    mean, deviation = map(torch.tensor, augment.COLOUR_STATISTICS)
    plain = ((pictures / 255 - mean) / deviation).permute(0, 3, 1, 2)
    x = train_pictures(pictures, sizes_of(pictures), draws_for(3), (h, w), PLAIN)
    assert x.dtype == torch.float32 and x.shape == (3, 3, h, w)
    torch.testing.assert_close(x, plain, rtol=0, atol=1e-6 if (h, w) != (50, 37) else 1e-4)  # in 37ths a float32 rounds
    assert torch.equal(augment.denormalize(x), pictures)
    seen = augment.eval_pictures(pictures, sizes_of(pictures), (h, w), 1.0)
    torch.testing.assert_close(seen, plain, rtol=0, atol=1e-6)


def test_flip_mirrors_about_half_of_the_pictures():
    pictures, c = noise(400, 6, 8), AugmentConfig(crop_scale=1.0)
    draws = random_draws(400, c)
    x = augment.denormalize(train_pictures(pictures, sizes_of(pictures), draws, (6, 8), c))
    flipped = draws[:, augment.FLIP] < 0.5
    assert 150 < flipped.sum() < 250
    assert torch.equal(x, torch.where(flipped[:, None, None, None], pictures.flip(2), pictures))


def padded(*shapes, garbage=0):
    """Smooth and noisy pictures of these (height, width), padded to the largest."""
    sizes = torch.tensor(shapes)
    pictures = torch.full((len(shapes), *sizes.amax(0).tolist(), 3), garbage, dtype=torch.uint8)
    for i, (h, w) in enumerate(shapes):
        pictures[i, :h, :w] = noise(1, h, w, seed=i)[0] if i % 2 else smooth(h, w, 1)[0]
    return pictures, sizes


SHAPES = [(40, 64), (33, 50), (90, 20), (64, 64), (17, 90), (64, 64)]
ALL_ON = AugmentConfig(crop_scale=0.2, randaugment_n=2)


def test_a_row_depends_on_its_own_picture_and_numbers_alone():
    (pictures, sizes), draws = padded(*SHAPES), random_draws(6, ALL_ON, seed=3)
    x = train_pictures(pictures, sizes, draws, (16, 24), ALL_ON)
    other = torch.tensor([4, 2, 5, 0, 1, 3])
    assert torch.equal(train_pictures(pictures[other], sizes[other], draws[other], (16, 24), ALL_ON), x[other])
    alone = [train_pictures(*(t[i:i + 1] for t in (pictures, sizes, draws)), (16, 24), ALL_ON) for i in range(6)]
    assert torch.equal(torch.cat(alone), x)
    views = augment.eval_pictures(pictures, sizes, (16, 24), 0.9)
    torch.testing.assert_close(augment.eval_pictures(pictures[other], sizes[other], (16, 24), 0.9), views[other])


@pytest.mark.parametrize('c', [PLAIN, AugmentConfig(), ALL_ON])
def test_padding_is_never_seen(c):
    black, white = padded(*SHAPES)[0], padded(*SHAPES, garbage=255)[0]
    sizes, draws = torch.tensor(SHAPES), random_draws(len(SHAPES), c)
    assert not torch.equal(black, white)
    views = [train_pictures(pictures, sizes, draws, (32, 32), c) for pictures in (black, white)]
    assert torch.equal(*views)
    views = [augment.eval_pictures(pictures, sizes, (32, 32), 0.8) for pictures in (black, white)]
    assert torch.equal(*views)
    small, size = black[1:2, :33, :50], sizes[1:2]  # how far the padding goes makes no difference either
    torch.testing.assert_close(train_pictures(small, size, draws[1:2], (32, 32), PLAIN),
                               train_pictures(black[1:2], size, draws[1:2], (32, 32), PLAIN), rtol=0, atol=2e-3)


def boxes_of(size, n, image_size=(32, 32), scale=0.08):
    """Crops of n pictures of one size (height, width), a row each of (left, top, width, height)."""
    draws = random_draws(n, AugmentConfig(), seed=5)
    return augment.crop_boxes(torch.tensor([size] * n), draws, image_size, scale)


def one_at_a_time(height, width, generator):
    """A random resized crop as its rule says, in whole pixels: (left, top, width, height)."""
    for _ in range(10):
        area = height * width * generator.uniform(0.08, 1)
        aspect = math.exp(generator.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return generator.integers(0, width - w + 1), generator.integers(0, height - h + 1), w, h
    w, h = width, height
    if width / height < 3 / 4:
        h = round(width * 4 / 3)
    elif width / height > 4 / 3:
        w = round(height * 4 / 3)
    return (width - w) // 2, (height - h) // 2, w, h


@pytest.mark.parametrize('size', [(480, 640), (500, 500), (300, 600), (800, 200), (100, 1000)])
def test_crops_are_distributed_as_the_rule_says(size):
    """Area, aspect ratio and place: the largest distance between the two distribution functions. By
    chance it is 0.025 or more in one of 100 comparisons of 8000 with 8000."""
    n, generator = 8000, np.random.default_rng(1)
    left, top, w, h = boxes_of(size, n).T.numpy()
    theirs = np.array([one_at_a_time(*size, generator) for _ in range(n)]).T
    for ours, rule, slack in ((w * h, theirs[2] * theirs[3], (w + h).max()),
                              (w / h, theirs[2] / theirs[3], 2 / h.min()),
                              (left, theirs[0], 1), (top, theirs[1], 1)):  # slack, because theirs are whole pixels
        edges = np.sort(rule)
        low, high = (np.searchsorted(np.sort(ours), edges + s, 'right') / n for s in (-slack, slack))
        there = np.searchsorted(edges, edges, 'right') / n
        assert (low - there).max() < 0.03 and (there - high).max() < 0.03
    assert ((w / h > 0.7499) & (w / h < 1.3334)).all()


def test_a_picture_of_4_by_3_keeps_as_much_of_its_area_as_with_torchvision():
    """0.432 of it on average, from torchvision's own function; boxes that are clipped keep 0.518."""
    _, _, w, h = boxes_of((480, 640), 20_000).T
    assert abs((w * h).mean() / (480 * 640) - 0.432) < 0.006


@pytest.mark.parametrize('image_size', [(32, 32), (32, 64)])
def test_crop_boxes_lie_inside_and_are_the_first_that_fits(image_size):
    sizes = torch.tensor([[480, 640], [100, 50], [32, 32]]).repeat(2000, 1)
    draws = random_draws(6000, AugmentConfig(), seed=5)
    left, top, w, h = augment.crop_boxes(sizes, draws, image_size, 0.08).T
    height, width = sizes.T
    assert (left >= 0).all() and (top >= 0).all()
    assert (left + w <= width + 1e-9).all() and (top + h <= height + 1e-9).all()
    share, aspect = w * h / (height * width), w / h / (image_size[1] / image_size[0])
    assert share.min() > 0.08 - 1e-9 and 0.7499 < aspect.min() < 0.76 and 1.32 < aspect.max() < 1.3334
    first = (share - 0.08 - 0.92 * draws[:, 0]).abs() < 1e-9
    assert 0.3 < first.float().mean() < 0.95  # of all; of the others a later box fits, or none
    torch.testing.assert_close(torch.stack((left / (width - w), top / (height - h)), 1)[first],
                               draws[first][:, augment.PLACE])


@pytest.mark.parametrize('image_size', [(8, 8), (8, 16), (24, 8)])
def test_only_panoramas_are_cut(image_size):
    """Three times as elongated as the network's pictures is the most, in either direction."""
    ratio = max(image_size) / min(image_size)
    for h, w in ((1, 1), (7, 7), (7, 21), (21, 7), (7, 22), (22, 7), (7, 43), (64, 7), (5, 500), (501, 5), (1, 99)):
        picture = np.random.default_rng(0).integers(0, 256, (h, w, 3), np.uint8)
        part = augment.cut(picture, image_size, (0.5, 0.5))
        short, most = min(h, w), 3 * ratio * min(h, w)
        assert min(part.shape[:2]) == short and max(part.shape[:2]) <= most
        if max(h, w) <= most:
            assert np.array_equal(part, picture)
        else:
            assert max(part.shape[:2]) >= most - 1
            (top, bottom), (left, right) = ([(have - want) // 2, (have + want) // 2]
                                            for have, want in zip((h, w), part.shape))
            assert np.array_equal(part, picture[top:bottom, left:right])  # the middle, to the pixel


def test_evaluation_sees_the_same_of_a_panorama():
    for h, w, image_size, crop in ((8, 400, (8, 8), 1.0), (401, 8, (8, 8), 1.0), (16, 999, (14, 14), 0.875)):
        whole = noise(1, h, w)
        part = torch.from_numpy(augment.cut(whole[0].numpy(), image_size, (0.5, 0.5)))[None]
        a, b = (augment.eval_pictures(x, sizes_of(x), image_size, crop) for x in (whole, part))
        assert part.numel() < whole.numel() / 10 and torch.equal(a, b)


def test_training_crops_come_from_anywhere_in_a_panorama():
    """Where a crop lies in the whole picture: from its first to its last column, evenly."""
    picture = np.broadcast_to(np.arange(1000, dtype=np.int32)[None, :, None], (10, 1000, 3))
    c = AugmentConfig()
    draws = random_draws(2000, c)
    draws[0, augment.PLACE], draws[1, augment.PLACE] = 0, 1 - 1e-9
    places = []
    for row in draws:
        part = augment.cut(picture, (8, 8), row[augment.place_columns(c)].tolist())
        size = torch.tensor([part.shape[:2]])
        left, _, width, _ = augment.crop_boxes(size, row[None], (8, 8), c.crop_scale)[0].tolist()
        assert part.shape == (10, 30, 3) and part[0, 0, 0] + left + width <= 1000
        places.append((part[0, 0, 0] + left) / (1000 - width))
    assert places[0] < 1e-3 and places[1] > 1 - 1e-3
    share = np.histogram(places, 10, (0, 1))[0] / 2000
    assert abs(share - 0.1).max() < 0.03


def test_crop_off_is_the_largest_centred_box():
    boxes = augment.crop_boxes(torch.tensor([[50, 80], [80, 50], [64, 64]]), draws_for(3), (32, 64), 1.0)
    assert boxes.tolist() == [[0, 5, 80, 40], [0, 27.5, 50, 25], [0, 16, 64, 32]]


@pytest.mark.parametrize('size', [256, 253])
def test_shrinking_does_not_alias(size):
    y, x = np.mgrid[:size, :size]
    for fine in ((x + y) % 2, x % 2):
        board = torch.from_numpy(np.repeat(fine[None, ..., None] * 255, 3, -1).astype(np.uint8))
        out = augment.denormalize(train_pictures(board, sizes_of(board), draws_for(1), (32, 32), PLAIN)).int()
        assert (out - 127).abs().max() <= 2


def test_a_crop_is_what_pillow_cuts_and_resizes():
    pictures = smooth(100, 140)
    draws = draws_for(len(pictures))
    c = AugmentConfig(crop_scale=0.3, flip=False)
    x = augment.denormalize(train_pictures(pictures, sizes_of(pictures), draws, (40, 48), c))
    left, top, w, h = augment.crop_boxes(sizes_of(pictures), draws, (40, 48), 0.3)[0].tolist()
    box = (left, top, left + w, top + h)
    theirs = [Image.fromarray(p.numpy()).resize((48, 40), Image.BILINEAR, box=box) for p in pictures]
    assert levels_apart(x, np.stack(theirs)).max() <= 2


# ---- evaluation


def test_a_crop_of_224_from_256_is_not_interpolated():
    pictures = noise(2, 256, 340)
    x = augment.denormalize(augment.eval_pictures(pictures, sizes_of(pictures), (224, 224), 0.875))
    assert torch.equal(x, pictures[:, 16:240, 58:282])


@pytest.mark.parametrize('h, w, size, share', [(300, 400, (224, 224), 0.875), (375, 250, (96, 96), 1.0),
                                               (200, 200, (64, 96), 0.9), (40, 60, (64, 64), 0.875)])
def test_evaluation_is_pillows_resize_and_crop(h, w, size, share):
    pictures = torch.cat([noise(1, h, w), smooth(h, w)])
    x = augment.denormalize(augment.eval_pictures(pictures, sizes_of(pictures), size, share))
    scale = max(size[0] / h, size[1] / w) / share
    new = round(h * scale), round(w * scale)
    top, left = (new[0] - size[0]) // 2, (new[1] - size[1]) // 2
    theirs = [Image.fromarray(p.numpy()).resize(new[::-1], Image.BILINEAR) for p in pictures]
    theirs = np.stack(theirs)[:, top:top + size[0], left:left + size[1]]
    assert levels_apart(x, theirs).max() <= 1 and x.shape == (5, *size, 3)


def test_a_squashed_picture_is_resized_whole():
    pictures = torch.cat([noise(1, 40, 60), smooth(40, 60)])
    x = augment.denormalize(augment.eval_pictures(pictures, sizes_of(pictures), (24, 24), None))
    theirs = np.stack([Image.fromarray(p.numpy()).resize((24, 24), Image.BILINEAR) for p in pictures])
    assert levels_apart(x, theirs).max() <= 1


def test_evaluation_of_different_sizes_is_that_of_each_alone():
    pictures, sizes = padded(*SHAPES)
    x = augment.eval_pictures(pictures, sizes, (24, 32), 0.9)
    for i, (h, w) in enumerate(SHAPES):
        alone = augment.eval_pictures(pictures[i:i + 1, :h, :w], sizes[i:i + 1], (24, 32), 0.9)
        torch.testing.assert_close(alone[0], x[i])


# ---- settings


@pytest.mark.parametrize('bad, why', [
    (dict(crop_scale=2), 'crop_scale=2 must lie between'), (dict(crop_scale=0.0), 'crop_scale=0.0'),
    (dict(crop_scale=math.nan), 'crop_scale=nan'),
    (dict(eval_crop=-1), 'eval_crop=-1'), (dict(eval_crop=1.1), 'eval_crop=1.1'),
    (dict(randaugment_n=-1), 'randaugment_n=-1 must lie between 0 and 10'),
    (dict(randaugment_n=11), 'randaugment_n=11'),
    (dict(randaugment_m=31.0), 'randaugment_m=31.0 must lie between 0 and 30'),
    (dict(randaugment_scale='pil'), "randaugment_scale='pil' is unknown; choose torchvision or timm"),
    (dict(eval_view='whole'), "eval_view='whole' is unknown; choose crop or squash")])
def test_bad_settings_are_refused(bad, why):
    with pytest.raises(ValueError, match=why):
        AugmentConfig(**bad)


def test_a_device_without_float64_computes_the_same():
    """Up to one of 255 levels, for the few pixels that rounding decides."""
    pictures = torch.cat([noise(40, 20, 24), noise(40, 20, 24, seed=1)])
    c = AugmentConfig(randaugment_n=2)
    how = sizes_of(pictures), random_draws(80, c), (16, 16), c
    want = train_pictures(pictures, *how)
    with FakeMPS():
        found = train_pictures(pictures.to('mps'), *how)
        assert found.device.type == 'mps' and ((found.cpu() - want).abs() > 1e-4).float().mean() < 0.01
        evaluated = augment.eval_pictures(pictures.to('mps'), how[0], (16, 16), 0.875).cpu()
    assert torch.allclose(evaluated, augment.eval_pictures(pictures, how[0], (16, 16), 0.875), atol=1e-5)


def test_each_operation_has_its_own_sign():
    pictures, c = noise(3, 20, 24), AugmentConfig(crop_scale=1.0, flip=False, randaugment_n=2)
    draws = draws_for(3, 'Brightness', 'Color')
    draws[:, augment.FIRST + 1] = 0.1  # the first one's sign
    theirs = [ImageEnhance.Color(ImageEnhance.Brightness(Image.fromarray(p.numpy())).enhance(0.58)).enhance(1.42)
              for p in pictures]
    ours = augment.denormalize(augment.train_pictures(pictures, sizes_of(pictures), draws, (20, 24), c))
    assert levels_apart(ours, np.stack(theirs)).max() == 0
