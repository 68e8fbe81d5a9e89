"""Textured shapes on textured backgrounds: 10 classes, and the true mask of every shape.

    python prepare/shapes.py                                # 32 x 32 pixels; 15 seconds, no network
    python prepare/shapes.py --size 64 --out data/shapes64
    python train.py config/train_crate_shapes.py

Position, size, rotation, colours and textures are random. Small discs and strokes are clutter, some
of it on top of the shape. The same --seed draws the same pictures.

Expect 20,000 pictures for training, 2,000 for validation (val) and 5,000 for testing (test).
"""
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from engine.output import bar
from engine.settings import one_line_errors
from prepare.lib.command_line import parse, parser
from prepare.lib.pictures import save_arrays
from tasks.files import check_room

CLASSES = ['disc', 'ring', 'square', 'triangle', 'cross', 'star', 'crescent', 'heart', 'hexagon', 'bar']


def inside(shape, u, v):
    """Whether points (u, v), v down, are inside a shape that fits the unit disc; any array
    shapes."""
    r, a = np.hypot(u, v), np.arctan2(u, -v)  # radius, and angle from straight up
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
        return r < 0.42 + 0.58 * abs(1 - (a * 5 / np.pi + 1) % 2) ** 1.5
    if shape == 'crescent':
        return (r < 0.92) & (np.hypot(u - 0.42, v) > 0.75)
    if shape == 'heart':
        x, y = u * 1.25, -v * 1.25 + 0.1
        return (x * x + y * y - 1) ** 3 < x * x * y ** 3
    if shape == 'hexagon':
        return np.maximum(abs(u) * 0.866 + abs(v) * 0.5, abs(v)) < 0.8
    return (abs(v) < 0.28) & (abs(u) < 0.95)  # bar


def textures(rng, n, x, y):
    """n random patterns (n, S, S) with values in [0, 1], on the grid x, y (S, S) of [0, 1)."""
    scale = np.float32([2 * np.pi, 2 * np.pi, 4]).reshape(3, 1, 1, 1)
    angle, phase, waves = rng.random((3, n, 1, 1), np.float32) * scale
    kind, waves = rng.integers(0, 4, (n, 1, 1)), waves + 2
    across, along = np.cos(angle) * x + np.sin(angle) * y, np.cos(angle) * y - np.sin(angle) * x
    stripes = 0.5 + 0.5 * np.sin(2 * np.pi * waves * across + phase)
    checks = (stripes > 0.5) ^ (np.sin(2 * np.pi * waves * along) > 0)
    grain = rng.random((n, 8, 8), np.float32).repeat(len(x) // 8, 1).repeat(len(x) // 8, 2)
    return np.choose(kind, [np.clip(0.5 + 0.5 * across, 0, 1), stripes, checks, grain])


def draw(rng, labels, size):
    """Pictures uint8 (n, size, size, 3) of the shapes in labels (n,), bool masks of the visible
    parts."""
    n, S = len(labels), 2 * size  # drawn at twice the resolution, then averaged for soft edges
    y, x = np.meshgrid(*[(np.arange(S, dtype=np.float32) + 0.5) / S] * 2, indexing='ij')

    def painted(base):
        """Textures (n, S, S, 3) between the colours base (n, 3) and colours near them."""
        change = np.clip(base + rng.normal(0, 0.1, (n, 3)), 0, 1).astype(np.float32) - base
        return base[:, None, None] + change[:, None, None] * textures(rng, n, x, y)[..., None]

    def clutter(picture, pieces):
        """Paint small discs and strokes; returns the pixels they cover, bool (n, S, S)."""
        covered = np.zeros((n, S, S), bool)
        for _ in range(pieces):
            scale = np.float32([1, 1, np.pi, 0.25]).reshape(4, 1, 1, 1)
            cx, cy, angle, length = rng.random((4, n, 1, 1), np.float32) * scale
            dx, dy = x - cx, y - cy
            along = np.clip(np.cos(angle) * dx + np.sin(angle) * dy, -length, length)
            far = (dx - along * np.cos(angle)) ** 2 + (dy - along * np.sin(angle)) ** 2
            piece = far < (0.01 + 0.04 * rng.random((n, 1, 1), np.float32)) ** 2
            picture[piece] = rng.random((n, 3), np.float32)[np.nonzero(piece)[0]]
            covered |= piece
        return covered

    ground = rng.random((n, 3), np.float32)
    away = rng.standard_normal((n, 3), np.float32)
    away /= np.linalg.norm(away, axis=1, keepdims=True)
    away *= np.where(away * (0.5 - ground) < 0, -1, 1)  # towards the middle of the colour cube
    colour = np.clip(ground + away * (0.5 + 0.3 * rng.random((n, 1), np.float32)), 0, 1)
    picture = painted(ground)
    clutter(picture, 2)
    radius, turn, cx, cy = rng.random((4, n, 1, 1), np.float32)
    radius, turn = 0.28 + 0.18 * radius, (turn - 0.5) * np.float32(np.pi / 6)
    cx, cy = (0.5 + 1.8 * (c - 0.5) * (0.5 - radius) for c in (cx, cy))
    u, v = (x - cx) / radius, (y - cy) / radius
    u, v = np.cos(turn) * u + np.sin(turn) * v, np.cos(turn) * v - np.sin(turn) * u
    mask = np.stack([inside(CLASSES[k], *uv) for k, *uv in zip(labels, u, v)])
    picture[mask] = painted(colour)[mask]
    mask &= ~clutter(picture, 1)
    fine = sum(picture[:, i::2, j::2] for i in (0, 1) for j in (0, 1)) / 4
    fine += 0.02 * rng.standard_normal(fine.shape, np.float32)
    visible = sum(mask[:, i::2, j::2].astype(int) for i in (0, 1) for j in (0, 1)) >= 2
    return (np.clip(fine, 0, 1) * 255).round().astype(np.uint8), visible


def main(argv=None):
    p = parser(__doc__, 'data/shapes')
    p.add_argument('--size', type=int, default=32, help='pixels per side, a multiple of 4 (default: %(default)s)')
    p.add_argument('--train', type=int, default=20_000, help='pictures for training (default: %(default)s)')
    p.add_argument('--val', type=int, default=2_000, help='pictures for validation (default: %(default)s)')
    p.add_argument('--test', type=int, default=5_000, help='pictures for testing (default: %(default)s)')
    p.add_argument('--seed', type=int, default=0, help='default: %(default)s')
    args = parse(p, argv)
    counts = args.train, args.val, args.test
    if args.size % 4 or not 8 <= args.size <= 4096 or min(counts) < 1 or max(counts) > 10 ** 9 or args.seed < 0:
        raise ValueError('--size must be a multiple of 4 from 8 to 4096, each split needs 1 to 10^9 pictures, and '
                         '--seed must not be negative')
    check_room(args.out, sum(counts) * args.size ** 2 * 4)
    splits = {}
    for i, (split, count) in enumerate(zip(('train', 'val', 'test'), counts)):
        labels = np.arange(count) % len(CLASSES)
        drawn = [draw(np.random.default_rng((args.seed, i, first)), labels[first:first + 200], args.size)
                 for first in bar(range(0, count, 200), split, unit=' pictures', unit_scale=200)]
        pictures, masks = (np.concatenate(part) for part in zip(*drawn))
        splits[split] = pictures, labels, masks
    save_arrays(args.out, splits, CLASSES)


if __name__ == '__main__':
    with one_line_errors():
        main()
