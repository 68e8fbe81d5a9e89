"""Masks and objects: average precision equals pycocotools', the rest equals loops over pixels."""
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from analysis.objects import Scores, Truth, average_precision, connected, overlaps, two_means
from analysis.segmentation import precision_of

GOLDEN = Path(__file__).parent.parent / 'golden' / 'average_precision.json'


@pytest.mark.parametrize('case', json.loads(GOLDEN.read_text())['cases'])
def test_average_precision_equals_coco(case):
    given = [torch.tensor(case[name]) for name in ('each', 'found', 'certainty', 'real')]
    assert average_precision(*given) == pytest.approx(case['ap'], abs=1e-12)
    assert average_precision(*given, thresholds=(0.5,)) == pytest.approx(case['ap50'], abs=1e-12)


def ap50(each, found=None, certainty=None, real=None):
    each = torch.tensor(each)
    n, P, M = each.shape
    full = torch.ones(n, P) if certainty is None else torch.tensor(certainty)
    return average_precision(each, torch.ones(n, P, dtype=torch.bool) if found is None else torch.tensor(found), full,
                             torch.ones(n, M, dtype=torch.bool) if real is None else torch.tensor(real), (0.5,))


def test_average_precision_of_cases_that_one_can_count():
    assert ap50([[[0.9, 0.0], [0.0, 0.8]]]) == 1
    assert ap50([[[0.9, 0.0], [0.8, 0.0]]]) == pytest.approx(51 / 101 * 0.5)  # both find the first object, at once
    assert ap50([[[0.9, 0.0], [0.8, 0.0]]], certainty=[[2.0, 1.0]]) == pytest.approx(51 / 101)
    assert ap50([[[0.4], [0.3]]]) == 0
    assert ap50([[[0.9, 0.7]]], real=[[True, False]]) == 1
    assert ap50([[[0.9]]], found=[[False]]) == 0 and ap50([[[0.9]]], real=[[False]]) == 0
    order = [[[0.9], [0.1]], [[0.1], [0.9]]]
    assert ap50(order) == ap50(order[::-1])  # equal ones count at once, whichever picture is first


def test_overlaps_of_cells_equal_those_of_pixels():
    rng = np.random.default_rng(0)
    numbers = torch.tensor(rng.choice([0, 1, 2, 3, 255], (4, 6, 8)).astype(np.uint8))
    true = Truth(numbers, torch.tensor([[0, 1, 2]] * 4), ['a', 'b', 'c'])
    found = torch.tensor(rng.random((4, 5, 2, 4)) < 0.5)                                # cells of 3 x 2 pixels
    inside, known = true.cells(slice(None), (2, 4))
    mine = overlaps(found.flatten(2), inside, known)
    for i in range(4):
        for p in range(5):
            for m in (1, 2, 3):
                both = either = 0
                for r in range(6):
                    for c in range(8):
                        if numbers[i, r, c] != 255:
                            a, b = found[i, p, r // 3, c // 2].item(), numbers[i, r, c].item() == m
                            both, either = both + (a and b), either + (a or b)
                assert mine[i, p, m - 1].item() == pytest.approx(both / either if either else 0)


def test_two_colours_are_told_apart_whichever_is_brighter():
    shape = torch.zeros(2, 9, 12, dtype=torch.bool)
    shape[0, 2:6, 3:9], shape[1, :, 4:] = True, True            # the second shape has two corners, and more pixels
    colours = torch.tensor([[[[200., 30, 90]]], [[[10., 200, 30]]]])
    x = torch.where(shape[..., None], colours, torch.tensor([90., 90, 90]))
    x += torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    found = two_means(x)
    assert torch.equal(found[0], shape[0]) and torch.equal(found[1], ~shape[1])
    assert torch.equal(two_means(255 - x), found)
    assert not two_means(torch.full((1, 4, 4, 3), 7.0))[0].all()


def test_connected_parts_equal_a_search():
    part = torch.tensor(np.random.default_rng(1).random((5, 11, 13)) < 0.55)
    mine = connected(part, 4)
    for picture, found in zip(part.tolist(), mine):
        left, areas = {(r, c) for r in range(11) for c in range(13) if picture[r][c]}, []
        while left:
            reached, edge = set(), [left.pop()]
            while edge:
                r, c = edge.pop()
                reached.add((r, c))
                for near in ((r + 1, c), (r - 1, c), (r, c + 1), (r, c - 1)):
                    if near in left:
                        left.discard(near)
                        edge.append(near)
            areas.append(reached)
        sizes = sorted(map(len, areas), reverse=True)[:4]
        assert found.sum((1, 2)).tolist() == sizes + [0] * (4 - len(sizes))
        for m in found:
            cells = {tuple(p) for p in m.nonzero().tolist()}
            assert not cells or cells in areas
    assert not connected(torch.zeros(1, 3, 3, dtype=torch.bool), 2).any()


def test_a_mask_of_unknown_pixels_alone_counts_as_none():
    """A picture of four cells: an object, an unknown cell, two of background; masks of the unknown cell and
    of the object, the first one more certain."""
    inside, known = torch.tensor([[[8.0, 0, 0, 0]]]), torch.tensor([[8.0, 0, 8, 8]])
    found = torch.tensor([[[0, 1, 0, 0], [1, 0, 0, 0]]]).bool()
    scores = Scores.of(found, inside, known)
    assert scores.covers.tolist() == [[0, pytest.approx(1 / 3)]]
    assert precision_of(scores, torch.tensor([[0]]), True) == (1.0, 1.0)
    found[0, 0] = torch.tensor([False, False, True, False])  # of background
    assert precision_of(Scores.of(found, inside, known), torch.tensor([[0]]), True) == (0.5, 0.5)
