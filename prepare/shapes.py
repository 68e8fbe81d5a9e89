"""Textured shapes on textured backgrounds: 10 classes, and the true mask of every shape.

    python prepare/shapes.py                                # 32 x 32 pixels; 15 seconds, no network
    python prepare/shapes.py --size 64 --out data/shapes64
    python prepare/shapes.py --objects 4 --out data/shapes_many    # two to four shapes in each picture
    python train.py config/train_crate_shapes.py

Position, size, rotation, colours and textures are random. Small discs and strokes are clutter, some
of it on top of the shapes. The same --seed draws the same pictures.

With --objects above 1 each picture has two to so many shapes, each with its own mask, class and
part of the picture, a cell of a grid. The label of a picture is the class of the shape that shows
the most pixels. prepare/shapes_many.py is short for --objects 4.

Expect 20,000 pictures for training, 2,000 for validation (val) and 5,000 for testing (test).
"""  # noqa: E501 (--help shows it)
import math

import lib  # noqa: F401 (first: it says what to type where a library is missing)
import numpy as np
from tqdm import tqdm

from lib.inputs import arguments, number, option, run
from lib.pictures import save_arrays

CLASSES = ['disc', 'ring', 'square', 'triangle', 'cross', 'star', 'crescent', 'heart', 'hexagon',
           'bar']
COUNTS = {'train': 20_000, 'val': 2_000, 'test': 5_000}
AT_ONCE = 200  # pictures that are drawn together


# ---- shapes -------------------------------------------------------------------------------------

def is_inside(shape, u, v):
    """Whether points are inside a shape that about fits the unit disc: bool, of the shape of u. u
    points to the right and v down."""
    r = np.hypot(u, v)  # the distance from the centre
    if shape == 'disc':
        return r < 0.85
    if shape == 'ring':
        return (r < 0.95) & (r > 0.55)
    if shape == 'square':
        return np.maximum(abs(u), abs(v)) < 0.72
    if shape == 'triangle':
        return (v < 0.5) & (abs(u) < (v + 1) * 0.577)
    if shape == 'cross':
        return (np.minimum(abs(u), abs(v)) < 0.26) & (np.maximum(abs(u), abs(v)) < 0.9)
    if shape == 'star':
        a = np.arctan2(u, -v)  # the angle from straight up
        return r < 0.42 + 0.58 * abs(1 - (a * 5 / np.pi + 1) % 2) ** 1.5
    if shape == 'crescent':
        return (r < 0.92) & (np.hypot(u - 0.42, v) > 0.75)
    if shape == 'heart':
        x = u * 1.25
        y = -v * 1.25 + 0.1
        return (x * x + y * y - 1) ** 3 < x * x * y ** 3
    if shape == 'hexagon':
        return np.maximum(abs(u) * 0.866 + abs(v) * 0.5, abs(v)) < 0.8
    return (abs(v) < 0.28) & (abs(u) < 0.95)  # a bar


def turned(x, y, angle):
    """The coordinates of points (x, y) on axes that are turned by an angle."""
    cos = np.cos(angle)
    sin = np.sin(angle)
    return cos * x + sin * y, cos * y - sin * x


# ---- colours, textures and clutter --------------------------------------------------------------
# n pictures at a time, on a grid x (S,), y (S, 1) of [0, 1)

def uniform(rng, n, *highs):
    """For each high, n random numbers from 0 to it, (n, 1, 1)."""
    highs = np.float32(highs).reshape(-1, 1, 1, 1)
    return rng.random((len(highs), n, 1, 1), np.float32) * highs


def textures(rng, n, x, y):
    """n random patterns (n, S, S) with values in [0, 1]: shades, stripes, checks or grain."""
    angle, phase, waves = uniform(rng, n, 2 * np.pi, 2 * np.pi, 4)
    kind = rng.integers(0, 4, n)
    waves = waves + 2
    across, along = turned(x, y, angle)
    shades = np.clip(0.5 + 0.5 * across, 0, 1)
    stripes = 0.5 + 0.5 * np.sin(2 * np.pi * waves * across + phase)
    checks = (stripes > 0.5) ^ (np.sin(2 * np.pi * waves * along) > 0)
    grain = rng.random((n, 8, 8), np.float32)
    grain = grain.repeat(len(x) // 8, 1).repeat(len(x) // 8, 2)
    patterns = np.stack([shades, stripes, checks, grain])       # (4, n, S, S)
    return patterns[kind, np.arange(n)]                         # the one of each picture: (n, S, S)


def painted(rng, base, x, y):
    """Textures (n, S, S, 3) between the colours base (n, 3) and colours near them."""
    n = len(base)
    near = np.clip(base + rng.normal(0, 0.1, (n, 3)), 0, 1)
    change = near.astype(np.float32) - base
    pattern = textures(rng, n, x, y)
    channels = []
    for c in range(3):  # one after the other, which takes half the time of all three at once
        channels.append(base[:, c, None, None] + change[:, c, None, None] * pattern)
    return np.stack(channels, axis=-1)


def add_clutter(rng, picture, pieces, x, y):
    """Paint small strokes on pictures (n, S, S, 3); a short one is a disc. Returns the pixels that
    they cover, bool (n, S, S)."""
    n = len(picture)
    covered = np.zeros(picture.shape[:3], bool)
    for _ in range(pieces):
        cx, cy, angle, length = uniform(rng, n, 1, 1, np.pi, 0.25)
        dx = x - cx
        dy = y - cy
        # the distance from a line of twice that length and of that angle around (cx, cy)
        along = np.clip(np.cos(angle) * dx + np.sin(angle) * dy, -length, length)
        squared = (dx - along * np.cos(angle)) ** 2 + (dy - along * np.sin(angle)) ** 2
        radius = 0.01 + 0.04 * rng.random((n, 1, 1), np.float32)
        piece = squared < radius ** 2
        colours = rng.random((n, 3), np.float32)
        of_picture = np.nonzero(piece)[0]  # the picture of each pixel of the piece
        picture[piece] = colours[of_picture]
        covered |= piece
    return covered


def contrasting(rng, ground):
    """Colours (n, 3) far from those of the ground, (n, 3)."""
    n = len(ground)
    away = rng.standard_normal((n, 3), np.float32)
    away /= np.linalg.norm(away, axis=1, keepdims=True)
    away *= np.where(away * (0.5 - ground) < 0, -1, 1)  # towards the middle of the colour cube
    distance = 0.5 + 0.3 * rng.random((n, 1), np.float32)
    return np.clip(ground + away * distance, 0, 1)


# ---- pictures -----------------------------------------------------------------------------------

def draw(rng, labels, size):
    """Pictures uint8 (n, size, size, 3) of the shapes in labels (n, M), of which -1 is no shape.
    And the number of the shape that each pixel shows, uint8 (n, size, size): 1 .. M, or 0 for
    none."""
    n, M = labels.shape
    S = 2 * size  # drawn at twice the resolution, then averaged for soft edges
    x = (np.arange(S, dtype=np.float32) + 0.5) / S              # (S,)
    y = x[:, None]                                              # (S, 1)

    ground = rng.random((n, 3), np.float32)
    colours = [contrasting(rng, ground) for _ in range(M)]
    picture = painted(rng, ground, x, y)                        # (n, S, S, 3)
    add_clutter(rng, picture, 2, x, y)

    shown = np.zeros((n, S, S), np.uint8)
    # each shape has a cell of its own in a grid of side x side; the root of M is rounded up
    side = math.isqrt(M - 1) + 1
    cells = rng.permuted(np.tile(np.arange(side ** 2), (n, 1)), axis=1)
    for m in range(M):
        mask = place_shape(rng, labels[:, m], cells[:, m], side, x, y)
        picture[mask] = painted(rng, colours[m], x, y)[mask]
        shown[mask] = m + 1
    covered = add_clutter(rng, picture, 1, x, y)
    shown[covered] = 0

    # soft edges: the mean of each 2 x 2 pixels; and some noise
    mean = sums_of_four(picture) / 4                            # (n, size, size, 3)
    mean += 0.02 * rng.standard_normal(mean.shape, np.float32)
    pixels = (np.clip(mean, 0, 1) * 255).round().astype(np.uint8)
    return pixels, halved(shown, M)


def place_shape(rng, labels, cells, side, x, y):
    """The pixels of one shape in each picture, bool (n, S, S). labels (n,): the shape, -1 for none;
    cells (n,): in which cell of a grid of side x side. Size, angle and place in the cell are
    random."""
    n = len(labels)
    drawn = rng.random((4, n, 1, 1), np.float32)
    radius = (0.28 + 0.18 * drawn[0]) / side
    turn = (drawn[1] - 0.5) * np.float32(np.pi / 6)
    row, column = np.float32(np.divmod(cells, side)).reshape(2, n, 1, 1)
    room = 0.5 / side - radius  # from the middle of the cell
    cx = (column + 0.5) / side + 1.8 * (drawn[2] - 0.5) * room
    cy = (row + 0.5) / side + 1.8 * (drawn[3] - 0.5) * room

    u, v = turned((x - cx) / radius, (y - cy) / radius, turn)   # (n, S, S)
    mask = np.zeros(u.shape, bool)
    for i, label in enumerate(labels):
        if label >= 0:
            mask[i] = is_inside(CLASSES[label], u[i], v[i])
    return mask


def halved(shown, M):
    """Which of the shapes 1 to M each pixel shows, (n, S, S), at half the resolution: a shape that
    two of four pixels show, and of two such shapes the later one."""
    n, S, _ = shown.shape
    visible = np.zeros((n, S // 2, S // 2), np.uint8)
    for m in range(1, M + 1):
        pixels = sums_of_four((shown == m).astype(np.uint8))
        visible[pixels >= 2] = m
    return visible


def sums_of_four(x):
    """The sums of each 2 x 2 pixels: (n, S, S, ..) -> (n, S/2, S/2, ..)."""
    above = x[:, 0::2, 0::2] + x[:, 0::2, 1::2]
    return above + x[:, 1::2, 0::2] + x[:, 1::2, 1::2]


def draw_part(seed, split, first, count, size, objects):
    """Up to AT_ONCE pictures of a split that has `count` of them, from the one with the number
    `first`: pictures, labels (n,) and masks, bool. With several objects in a picture a mask has the
    number of the object at each pixel, and a fourth array has their classes (n, objects), -1 for
    none. split: the number of the split."""
    rng = np.random.default_rng((seed, split, first))
    end = min(first + AT_ONCE, count)
    if objects == 1:
        labels = np.arange(first, end) % len(CLASSES)
        pictures, shown = draw(rng, labels[:, None], size)
        return pictures, labels, shown > 0

    n = end - first
    classes = rng.integers(0, len(CLASSES), (n, objects))
    n_objects = rng.integers(2, objects + 1, (n, 1))
    classes[np.arange(objects) >= n_objects] = -1
    pictures, shown = draw(rng, classes, size)
    areas = [(shown == m + 1).sum((1, 2)) for m in range(objects)]
    largest = np.stack(areas, 1).argmax(1)                      # (n,)
    labels = classes[np.arange(n), largest]
    return pictures, labels, shown, classes


def draw_splits(args):
    """{split: arrays as save_arrays takes them}. args: the values of `options`."""
    total = args.train + args.val + args.test
    print(f'drawing {total:,} pictures', flush=True)  # where there is no terminal, no bar tells it
    splits = {}
    for i, split in enumerate(COUNTS):
        count = getattr(args, split)
        parts = []
        for first in tqdm(range(0, count, AT_ONCE), split, unit=' pictures', unit_scale=AT_ONCE,
                          disable=None):
            parts.append(draw_part(args.seed, i, first, count, args.size, args.objects))
        splits[split] = [np.concatenate(arrays) for arrays in zip(*parts)]
    return splits


def options(objects):
    """The options of a script that draws shapes. objects: the default of --objects."""
    counts = [number(f'--{split}', 'pictures of it', count, 1, 10 ** 7)
              for split, count in COUNTS.items()]
    return (
        option('--size', 'pixels per side', type=int, choices=range(8, 257, 4), default=32,
               metavar='N'),
        number('--objects', 'shapes in a picture, at most', objects, 1, 16),
        *counts,
        number('--seed', 'of the random numbers', 0, 0, 2 ** 32),
    )


def main(argv=None):
    args = arguments(__doc__, argv, *options(1), out='data/shapes')
    save_arrays(args.out, draw_splits(args), CLASSES)


if __name__ == '__main__':
    run(main)
