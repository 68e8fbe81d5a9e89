"""Masks in pictures: MaskCut equals the released code, and what loops over cells found by its rules; average precision
equals pycocotools'; the rest equals loops over pixels."""
import json

import numpy as np
import pytest
import torch
from helpers import ROOT

from analysis import maskcut as cuts
from analysis.maskcut import maskcut
from analysis.segmentation import (average_precision, connected, object_scores, score_masks,
                                   two_means)

CUTS, RULES, PRECISIONS = (json.loads((ROOT / 'tests' / 'golden' / f'{name}.json').read_text())['cases']
                           for name in ('maskcut', 'maskcut_rules', 'average_precision'))

# ---- MaskCut


@pytest.mark.parametrize('i', range(len(CUTS)))
def test_maskcut_equals_the_released_code(i):
    case, generator = CUTS[i], torch.Generator().manual_seed(31 + i)
    base, truth = torch.randn(3, case['width'], generator=generator), torch.tensor(case['ground_truth']).flatten()
    x = base[truth].T + 0.25 * torch.randn(case['width'], len(truth), generator=generator)
    A = cuts.affinity(x, case['tau'])
    assert (A == 1).sum() == case['affinity_ones']
    v = cuts.second_eigenvector(A).abs()
    assert (v / v.max() - torch.tensor(case['abs_second_eigenvector_up_to_scale'])).abs().max() < 1e-5
    found = maskcut(x, case['grid'], case['tau'], case['masks_wanted'])
    assert found.dtype == torch.bool and found.int().tolist() == case['masks']


@pytest.mark.parametrize('case', RULES, ids=lambda case: f'{case["decides"]}-{case["seed"]}')
def test_each_rule_of_maskcut(case):
    """Up to three things before a background of two parts; in each case one rule decides."""
    g, kinds = torch.Generator().manual_seed(case['seed']), torch.tensor(case['kinds'])
    x = torch.randn(4, 12, generator=g)[kinds.flatten()].T + 0.4 * torch.randn(12, kinds.numel(), generator=g)
    assert maskcut(x, kinds.shape, 0.15, 3).int().tolist() == case['masks']


@pytest.mark.parametrize('seed', range(8))
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


# ---- objects


@pytest.mark.parametrize('case', PRECISIONS)
def test_average_precision_equals_coco(case):
    each, found, certainty, real = (torch.tensor(case[name]) for name in ('each', 'found', 'certainty', 'real'))
    order = certainty.argsort(dim=1, descending=True, stable=True)  # the function takes them in this order
    rows = torch.arange(len(order))[:, None]
    given = each[rows, order], found[rows, order], certainty[rows, order], real
    assert average_precision(*given) == pytest.approx(case['ap'], abs=1e-12)
    assert average_precision(*given, thresholds=(0.5,)) == pytest.approx(case['ap50'], abs=1e-12)


@pytest.mark.parametrize('each, sure, expected', [
    ([[[0.9, 0.0], [0.8, 0.0]]], [[1.0, 1.0]], 51 / 101 * 0.5),         # both find the first object, at once
    ([[[0.9, 0.0], [0.8, 0.0]]], [[2.0, 1.0]], 51 / 101),
    ([[[0.9], [0.1]], [[0.1], [0.9]]], [[1.0, 1.0]] * 2, 0.5),          # equal ones count at once,
    ([[[0.1], [0.9]], [[0.9], [0.1]]], [[1.0, 1.0]] * 2, 0.5)])         # whichever picture is first
def test_average_precision_where_masks_are_equally_certain(each, sure, expected):
    each = torch.tensor(each)
    found, real = torch.ones(each.shape[:2], dtype=torch.bool), torch.ones(len(each), each.size(2), dtype=torch.bool)
    assert average_precision(each, found, torch.tensor(sure), real, (0.5,)) == pytest.approx(expected)
    assert average_precision(each, found, torch.tensor(sure), ~real) == 0  # no objects


def test_two_colours_are_told_apart_whichever_is_brighter():
    shape = torch.zeros(2, 9, 12, dtype=torch.bool)
    shape[0, 2:6, 3:9], shape[1, :, 4:] = True, True            # the second shape has two corners, and more pixels
    colours = torch.tensor([[[[200., 30, 90]]], [[[10., 200, 30]]]])
    x = torch.where(shape[..., None], colours, torch.tensor([90., 90, 90]))
    x += torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    assert torch.equal(two_means(x[0]), shape[0]) and torch.equal(two_means(x[1]), ~shape[1])
    assert torch.equal(two_means(255 - x[0]), shape[0])
    assert not two_means(torch.full((4, 4, 3), 7.0)).all()


def test_connected_parts_the_largest_first():
    """Neighbours are left, right, above and below."""
    drawn = np.array([list(row) for row in ('a.bbbbb.cc', 'a.b...b.cc', 'a.b.d.b.c.', 'a..ddd.e..', '.f.dd.ee..')])
    all_parts, one = (connected(torch.tensor(mask), 5).numpy() for mask in (drawn != '.', drawn == 'b'))
    assert [part.tolist() for part in all_parts] == [(drawn == letter).tolist() for letter in 'bdcae']
    assert np.array_equal(one[0], drawn == 'b') and not one[1:].any()
    assert not connected(torch.zeros(3, 3, dtype=torch.bool), 2).any()


def test_a_mask_of_unknown_pixels_alone_counts_as_none():
    """A picture of four cells: an object, an unknown cell, two of background; masks of the unknown cell and
    of the object, the first one more certain."""
    inside, known = torch.tensor([[[8.0, 0, 0, 0]]]), torch.tensor([[8.0, 0, 8, 8]])
    found = torch.tensor([[[0, 1, 0, 0], [1, 0, 0, 0]]]).bool()
    scores = score_masks(found, inside, known)
    assert scores.covers.tolist() == [[0, pytest.approx(1 / 3)]]
    assert object_scores(scores, torch.tensor([[True]]), True) == {'object': 1, 'ap50': 1, 'ap': 1}
    found[0, 0] = torch.tensor([False, False, True, False])  # of background
    scores = score_masks(found, inside, known)
    assert object_scores(scores, torch.tensor([[True]]), True) == {'object': 1, 'ap50': 0.5, 'ap': 0.5}
