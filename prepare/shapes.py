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
"""
import math

import lib  # noqa: F401 (first: it says what to type where a library is missing)
import numpy as np
from tqdm import tqdm

from lib.inputs import dataset, number, option
from lib.pictures import save_arrays


def heart(x, y):
    return (x * x + y * y - 1) ** 3 < x * x * y ** 3


# whether a point (u, v), v down, with radius r and angle a from straight up, is inside a shape that fits the unit disc
SHAPES = {
    'disc': lambda u, v, r, a: r < 0.85,
    'ring': lambda u, v, r, a: (r < 0.95) & (r > 0.55),
    'square': lambda u, v, r, a: np.maximum(abs(u), abs(v)) < 0.72,
    'triangle': lambda u, v, r, a: (v < 0.5) & (abs(u) < (v + 1) * 0.577),
    'cross': lambda u, v, r, a: (np.minimum(abs(u), abs(v)) < 0.26) & (np.maximum(abs(u), abs(v)) < 0.9),
    'star': lambda u, v, r, a: r < 0.42 + 0.58 * abs(1 - (a * 5 / np.pi + 1) % 2) ** 1.5,
    'crescent': lambda u, v, r, a: (r < 0.92) & (np.hypot(u - 0.42, v) > 0.75),
    'heart': lambda u, v, r, a: heart(u * 1.25, -v * 1.25 + 0.1),
    'hexagon': lambda u, v, r, a: np.maximum(abs(u) * 0.866 + abs(v) * 0.5, abs(v)) < 0.8,
    'bar': lambda u, v, r, a: (abs(v) < 0.28) & (abs(u) < 0.95)}
CLASSES = list(SHAPES)
COUNTS = {'train': 20_000, 'val': 2_000, 'test': 5_000}


def uniform(rng, n, *highs):
    """For each high, n random numbers from 0 to it, (n, 1, 1)."""
    return rng.random((len(highs), n, 1, 1), np.float32) * np.float32(highs).reshape(-1, 1, 1, 1)


def turned(x, y, angle):
    """The coordinates x, y on axes that are turned."""
    cos, sin = np.cos(angle), np.sin(angle)
    return cos * x + sin * y, cos * y - sin * x


def textures(rng, n, x, y):
    """n random patterns (n, S, S) with values in [0, 1], on the grid x (S), y (S, 1) of [0, 1)."""
    angle, phase, waves = uniform(rng, n, 2 * np.pi, 2 * np.pi, 4)
    kind, waves = rng.integers(0, 4, (n, 1, 1)), waves + 2
    across, along = turned(x, y, angle)
    stripes = 0.5 + 0.5 * np.sin(2 * np.pi * waves * across + phase)
    checks = (stripes > 0.5) ^ (np.sin(2 * np.pi * waves * along) > 0)
    grain = rng.random((n, 8, 8), np.float32)
    grain = grain.repeat(len(x) // 8, 1).repeat(len(x) // 8, 2)
    return np.choose(kind, [np.clip(0.5 + 0.5 * across, 0, 1), stripes, checks, grain])


def draw(rng, labels, size):
    """Pictures of the shapes in labels (n, M), -1 for none, uint8 (n, size, size, 3); and which of
    these shapes each pixel shows, from 1, 0 for none, uint8 (n, size, size)."""
    n, M = labels.shape
    S = 2 * size  # drawn at twice the resolution, then averaged for soft edges
    x = (np.arange(S, dtype=np.float32) + 0.5) / S  # (S)
    y = x[:, None]                                  # (S, 1)

    def painted(base):
        """Textures (n, S, S, 3) between the colours base (n, 3) and colours near them."""
        near = np.clip(base + rng.normal(0, 0.1, (n, 3)), 0, 1)
        change = near.astype(np.float32) - base
        return base[:, None, None] + change[:, None, None] * textures(rng, n, x, y)[..., None]

    def clutter(picture, pieces):
        """Paint small discs and strokes; returns the pixels they cover, bool (n, S, S)."""
        covered = np.zeros((n, S, S), bool)
        for _ in range(pieces):
            cx, cy, angle, length = uniform(rng, n, 1, 1, np.pi, 0.25)
            dx, dy = x - cx, y - cy
            along = np.clip(np.cos(angle) * dx + np.sin(angle) * dy, -length, length)
            far = (dx - along * np.cos(angle)) ** 2 + (dy - along * np.sin(angle)) ** 2
            piece = far < (0.01 + 0.04 * rng.random((n, 1, 1), np.float32)) ** 2
            picture[piece] = rng.random((n, 3), np.float32)[np.nonzero(piece)[0]]
            covered |= piece
        return covered

    def contrast():
        """Colours (n, 3) far from those of the ground."""
        away = rng.standard_normal((n, 3), np.float32)
        away /= np.linalg.norm(away, axis=1, keepdims=True)
        away *= np.where(away * (0.5 - ground) < 0, -1, 1)  # towards the middle of the colour cube
        return np.clip(ground + away * (0.5 + 0.3 * rng.random((n, 1), np.float32)), 0, 1)

    ground = rng.random((n, 3), np.float32)
    colours = [contrast() for _ in range(M)]
    picture = painted(ground)
    clutter(picture, 2)
    shown = np.zeros((n, S, S), np.uint8)
    grid = math.isqrt(M - 1) + 1  # each shape has a cell of its own
    cells = rng.permuted(np.tile(np.arange(grid ** 2), (n, 1)), axis=1)
    for m in range(M):
        drawn = rng.random((4, n, 1, 1), np.float32)
        radius = (0.28 + 0.18 * drawn[0]) / grid
        turn = (drawn[1] - 0.5) * np.float32(np.pi / 6)
        row_column = np.float32(np.divmod(cells[:, m], grid)).reshape(2, n, 1, 1)
        off_centre = 1.8 * (drawn[2:] - 0.5) * (0.5 / grid - radius)
        cx, cy = (row_column[::-1] + 0.5) / grid + off_centre
        u, v = turned((x - cx) / radius, (y - cy) / radius, turn)
        points = zip(labels[:, m], u, v, np.hypot(u, v), np.arctan2(u, -v))
        mask = np.stack([(k >= 0) & SHAPES[CLASSES[k]](*point) for k, *point in points])
        picture[mask] = painted(colours[m])[mask]
        shown[mask] = m + 1
    shown[clutter(picture, 1)] = 0
    fine = sum(picture[:, i::2, j::2] for i in (0, 1) for j in (0, 1)) / 4
    fine += 0.02 * rng.standard_normal(fine.shape, np.float32)
    visible = np.zeros((n, size, size), np.uint8)
    for m in range(1, M + 1):
        pixels = (shown == m).reshape(n, size, 2, size, 2).sum((2, 4))
        visible[pixels >= 2] = m  # of four
    return (np.clip(fine, 0, 1) * 255).round().astype(np.uint8), visible


def draw_part(seed, split, first, count, size, objects):
    """Pictures `first` to first + 199 of a split that has `count` of them: pictures, labels (n,),
    masks, and with several objects in a picture their classes (n, objects), -1 for none."""
    rng = np.random.default_rng((seed, split, first))
    labels = np.arange(first, min(first + 200, count)) % len(CLASSES)
    if objects == 1:
        pictures, shown = draw(rng, labels[:, None], size)
        return pictures, labels, shown > 0
    labels = rng.integers(0, len(CLASSES), (len(labels), objects))
    held = rng.integers(2, objects + 1, (len(labels), 1))
    labels[np.arange(objects) >= held] = -1
    pictures, shown = draw(rng, labels, size)
    area = np.stack([(shown == m + 1).sum((1, 2)) for m in range(objects)], 1)
    return pictures, labels[np.arange(len(labels)), area.argmax(1)], shown, labels


def options(objects):
    return (option('--size', 'pixels per side', type=int, choices=range(8, 257, 4), default=32, metavar='N'),
            number('--objects', 'shapes in a picture, at most', objects, 1, 16),
            *(number(f'--{split}', 'pictures of it', count, 1, 10 ** 7) for split, count in COUNTS.items()),
            number('--seed', 'of the random numbers', 0, 0, 2 ** 32))


def save(args):
    splits = {}
    for i, split in enumerate(COUNTS):
        count = getattr(args, split)
        parts = [draw_part(args.seed, i, first, count, args.size, args.objects)
                 for first in tqdm(range(0, count, 200), split, unit=' pictures', unit_scale=200, disable=None)]
        splits[split] = [np.concatenate(arrays) for arrays in zip(*parts)]
    save_arrays(args.out, splits, CLASSES)


main = dataset(__name__, 'data/shapes', *options(1))(save)
