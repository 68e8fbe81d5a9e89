"""MaskCut: equal to the released code; its eigenvector by a general solver, its components by a
flood."""
import json

import numpy as np
import pytest
import torch
from helpers import ROOT

from analysis import maskcut as cuts
from analysis.maskcut import maskcut

CASES = json.loads((ROOT / 'tests' / 'golden' / 'maskcut.json').read_text())['cases']


def features_of(i):
    case = CASES[i]
    generator = torch.Generator().manual_seed(31 + i)
    base = torch.randn(3, case['width'], generator=generator)
    truth = torch.tensor(case['ground_truth'])
    return base[truth.flatten()].T + 0.25 * torch.randn(case['width'], truth.numel(), generator=generator)


@pytest.mark.parametrize('i', range(len(CASES)))
def test_maskcut_equals_the_released_code(i):
    case, x = CASES[i], features_of(i)
    A = cuts.affinity(x, case['tau'])
    assert (A == 1).sum() == case['affinity_ones']
    v = cuts.second_eigenvector(A).abs()
    assert (v / v.max() - torch.tensor(case['abs_second_eigenvector_up_to_scale'])).abs().max() < 1e-5
    found = maskcut(x, case['grid'], case['tau'], case['masks_wanted'])
    assert found.dtype == torch.bool and found.int().tolist() == case['masks']


def test_the_eigenvector_by_a_general_solver():
    A = cuts.affinity(torch.randn(5, 30, generator=torch.Generator().manual_seed(0)), 0.1)
    D = np.diag(A.sum(1).numpy())
    values, vectors = np.linalg.eig(np.linalg.inv(D) @ (D - A.numpy()))
    second = vectors[:, values.real.argsort()[1]].real
    mine = cuts.second_eigenvector(A).numpy()
    assert abs(abs(mine @ second) - 1) < 1e-9 and mine[np.abs(mine).argmax()] > 0


def flooded(part, seed):
    """The cells of part, bool (H, W), that a flood reaches from a cell through its neighbours: bool (H, W)."""
    (H, W), reached, edge = part.shape, np.zeros_like(part), [seed]
    while edge:
        r, c = edge.pop()
        if 0 <= r < H and 0 <= c < W and part[r, c] and not reached[r, c]:
            reached[r, c] = True
            edge += [(r + 1, c), (r - 1, c), (r, c + 1), (r, c - 1)]
    return reached


def test_connected_parts_by_a_flood():
    rng = np.random.default_rng(0)
    for _ in range(20):
        part = rng.random((7, 9)) < 0.55
        seed = tuple(int(n) for n in rng.integers(0, 7, 2))
        numbers = cuts.numbered(torch.from_numpy(part)[None])[0]
        assert ((numbers > 0) == torch.from_numpy(part)).all()
        assert not part[seed] or np.array_equal(numbers == numbers[seed], flooded(part, seed))


def by_loops(features, grid, tau, masks):
    """MaskCut by the rules of the reference, and how often each of three of them decided."""
    (H, W), found, last, turned, overlapping, small = grid, [], None, 0, 0, 0
    x = features.double().numpy().reshape(-1, H, W).copy()
    for i in range(masks):
        taken = np.any(found, 0) if found else np.zeros((H, W), bool)
        flat = (x * ~taken).reshape(len(x), -1)
        flat = flat / np.maximum(np.linalg.norm(flat, axis=0), 1e-12)
        A = np.where(flat.T @ flat > tau, 1.0, 1e-5)
        root = np.diag(A.sum(1) ** -0.5)
        v = root @ np.linalg.eigh(np.eye(len(A)) - root @ A @ root)[1][:, 1]
        v = (v * np.sign(v[np.abs(v).argmax()])).reshape(H, W)
        part = v > v.mean()
        if sum(part[r, c] for r in (0, -1) for c in (0, -1)) >= 3:
            v, part, turned = -v, ~part, turned + 1
        mask = flooded(part, np.argwhere(v > v.max() - 1e-9)[0])
        if last is not None and (mask & last).sum() / (mask | last).sum() > 0.5:
            overlapping, mask = overlapping + ((mask & last).sum() / (mask | last).sum() < 0.95), mask & False
        elif last is not None and mask.mean() <= 0.01:
            small, mask = small + 1, mask & False
        last = mask
        found.append(mask & ~taken)
    return np.stack(found), np.array([turned, overlapping, small])


def test_maskcut_by_loops():
    """On pictures with up to three things before a background of two parts; each rule decides some."""
    rules = np.zeros(3, int)
    for seed in range(60):
        g = torch.Generator().manual_seed(seed)
        H, W = grid = [(8, 8), (6, 10), (12, 11)][seed % 3]
        kinds = torch.zeros(H, W, dtype=torch.long)
        for m in (1, 2, 3):
            side = int(torch.randint(1, 6, (1,), generator=g))
            r, c = (int(torch.randint(0, n - 2, (1,), generator=g)) for n in grid)
            kinds[r:r + side, c:c + side] = m
        x = torch.randn(4, 12, generator=g)[kinds.flatten()].T + 0.4 * torch.randn(12, H * W, generator=g)
        expected, decided = by_loops(x, grid, 0.15, 3)
        rules += decided
        assert np.array_equal(maskcut(x, grid, 0.15, 3).numpy(), expected)
    assert rules.min() > 0, rules


@pytest.mark.parametrize('seed', range(20))
def test_of_two_alike_objects_the_upper_one_comes_first(seed):
    """Their entries are equal but for rounding, which differs from machine to machine."""
    rng = np.random.default_rng(seed)
    background, thing = rng.permutation(np.eye(12))[:2]
    row, column, other, side = *rng.integers(1, 5, 3), rng.integers(1, 4)
    first = np.zeros((14, 9), bool)
    first[row:row + side, column:column + side] = True
    second = np.roll(first, (5 + rng.integers(0, 3), other - column), (0, 1))
    x = np.where((first | second)[..., None], thing, background).reshape(-1, 12).T
    assert np.array_equal(maskcut(torch.tensor(x), (14, 9), masks=1)[0].numpy(), first)


def test_masks_do_not_overlap_and_a_plain_picture_has_few():
    found = maskcut(features_of(0), (8, 8), masks=6)
    assert found.sum(0).max() == 1 and found.shape == (6, 8, 8)
    rectangle = features_of(1)[:, :96]
    assert maskcut(rectangle, (8, 12)).shape == (3, 8, 12)


@pytest.mark.parametrize('grid, masks, message', [((8, 8), 0, 'masks=0'),
                                                  ((8, 8), 65, 'masks=65'),
                                                  ((1, 1), 1, 'a single patch cannot be cut')])
def test_what_does_not_fit_is_named(grid, masks, message):
    with pytest.raises(ValueError, match=message):
        maskcut(features_of(0)[:, :1 if grid == (1, 1) else None], grid, masks=masks)
