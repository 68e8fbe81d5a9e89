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


def test_connected_parts_by_a_flood():
    rng = np.random.default_rng(0)
    for _ in range(20):
        part = rng.random((7, 9)) < 0.55
        seed = tuple(int(n) for n in rng.integers(0, 7, 2))
        reached, edge = set(), [seed] * bool(part[seed])
        while edge:
            r, c = edge.pop()
            if 0 <= r < 7 and 0 <= c < 9 and part[r, c] and (r, c) not in reached:
                reached.add((r, c))
                edge += [(r + 1, c), (r - 1, c), (r, c + 1), (r, c - 1)]
        numbers = cuts.numbered(torch.from_numpy(part)[None])[0]
        assert ((numbers > 0) == torch.from_numpy(part)).all()
        assert not part[seed] or {tuple(p) for p in (numbers == numbers[seed]).nonzero().tolist()} == reached


def test_masks_do_not_overlap_and_a_plain_picture_has_few():
    found = maskcut(features_of(0), (8, 8), masks=6)
    assert found.sum(0).max() == 1 and found.shape == (6, 8, 8)
    rectangle = features_of(1)[:, :96]
    assert maskcut(rectangle, (8, 12)).shape == (3, 8, 12)


@pytest.mark.parametrize('grid, masks, message', [((7, 8), 3, 'are not those of 7 x 8 patches'),
                                                  ((8, 8), 0, 'masks=0'), ((8, 8), 65, 'masks=65'),
                                                  ((1, 1), 1, 'a single patch cannot be cut')])
def test_what_does_not_fit_is_named(grid, masks, message):
    with pytest.raises(ValueError, match=message):
        maskcut(features_of(0)[:, :1 if grid == (1, 1) else None], grid, masks=masks)
