"""Attention and MaskCut against true masks: the tables hold what loops over pixels find."""
import numpy as np
import pytest
import torch
from insides import cropped, floats, fresh, heads_of, load, walk

from analysis.maskcut import maskcut
from lib.pictures import save_arrays

GUESSES = ('the patches that objects cover most of', 'two groups of pixels by colour',
           'the middle, half as wide and high', 'the whole picture')


def enlarged(patches):
    """Which pixels the patches cover, bool (16, 24)."""
    cells = torch.zeros(12, dtype=torch.bool)
    cells[list(patches)] = True
    return cells.view(4, 3).repeat_interleave(4, 0).repeat_interleave(8, 1)


def overlap(a, b, known):
    """Intersection over union, pixel by pixel."""
    return ((a & b & known).sum() / ((a | b) & known).sum().clamp(1)).item()


def kept(w, share):
    """The patches that hold `share` of the weights w, from the largest on."""
    order = np.argsort(w)[::-1]
    return order[:1 + (np.cumsum(np.array(w)[order])[:-1] < share).sum()]


@pytest.fixture(scope='module')
def masks(place):
    """Datasets of five pictures: `many` with up to three objects and unknown pixels, `aligned` with objects of whole
    patches. Of the first the masks as networks see them: the numbers (5, 16, 24), which of them are known, and which
    are of objects, bool."""
    images, labels = np.load(place / 'data' / 'pics' / 'test.images.npy')[:5], np.arange(5) % 3
    numbers, whole = np.zeros((2, 5, 20, 30), np.uint8)
    for i, m, where in ((0, 1, (slice(2, 9), slice(3, 15))), (0, 2, (slice(10, 16), slice(3, 12))),
                        (0, 255, (slice(4, 12), slice(9, 11))), (1, 1, (slice(3), slice(3))),  # cropped away
                        (1, 2, (slice(6, 14), slice(11, 19))), (2, 1, (slice(2, 18), slice(3, 11))),
                        (2, 2, (slice(2, 10), slice(11, 27))), (2, 3, (slice(14, 18), slice(19, 27))),
                        (3, 255, (slice(20), slice(30)))):
        numbers[i][where] = m
    whole[:, 2:6, 3:11], whole[:, 10:14, 11:19] = 1, 2
    objects = np.array([[2, 0, -1], [1, 1, -1], [0, 1, 2], [-1, -1, -1], [-1, -1, -1]])
    for name, *arrays in (('many', numbers, objects), ('aligned', whole, np.array([[0, 1]] * 5))):
        save_arrays(place / 'data' / name, {split: (images, labels, *arrays) for split in ('train', 'test')},
                    ['ant', 'bee', 'cat'])
    numbers = torch.tensor(numbers[:, 2:18, 3:27])
    return numbers, numbers != 255, (numbers > 0) & (numbers != 255)


EACH = (0, 1), (0, 2), (1, 2), (2, 1), (2, 2), (2, 3)  # the objects that are seen: picture, number


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize('name, cut, part, share', [
    ('crate', 'key', 1, 0.6), ('vit', 'query', 0, 0.3), ('crate_mae', 'token', None, 0.6)])
def test_heads_and_cuts_by_loops_over_pixels(name, cut, part, share, masks, place, look):
    rows = look('segment', name, '--dataset=many', f'--cut={cut}', f'--share={share}', '--masks=2', '--tau=0.1')
    numbers, known, whole = masks

    def measured(found):
        """(5, 2): the overlap of a mask of each picture with all objects, and the share of the picture it covers."""
        return [(overlap(found[i], whole[i], known[i]),
                 ((found[i] & known[i]).sum() / known[i].sum().clamp(1)).item()) for i in range(5)]
    for weights, model in (('trained', load(place, name)), ('random', fresh(name))):
        attention, normed, _, _, after = list(walk(model, torch.cat([cropped(place, i) for i in range(5)])))[1]
        q, key = (heads_of(attention, normed, p) for p in (0, 1))                                   # (5, K, N + 1, p)
        w = (q[:, :, :1] @ key[:, :, 1:].mT / q.size(-1) ** 0.5).softmax(-1)[:, :, 0]               # (5, K, N)
        heads = [[enlarged(kept(of, share)) for of in of_picture] for of_picture in w.tolist()]
        z = after if part is None else heads_of(attention, normed, part).transpose(1, 2).flatten(2)
        cuts = [[enlarged(m.flatten().nonzero()[:, 0].tolist()) for m in maskcut(of[1:].T, (4, 3), 0.1, 2)] for of in z]
        pixels = w.double().view(5, 2, 4, 3).repeat_interleave(4, 2).repeat_interleave(8, 3)
        on = ((pixels * whole[:, None]).sum((2, 3)) / (pixels * known[:, None]).sum((2, 3)).clamp(1e-9))[..., None]
        of_heads = np.concatenate([np.stack([measured(of) for of in zip(*heads)], 1), on], 2)
        best = of_heads[range(5), of_heads[..., 0].argmax(1)]
        expected = {'head 1': of_heads[:, 0], 'head 2': of_heads[:, 1], 'best head': best,
                    'mean head': of_heads.mean(1)}
        expected |= {f'cut {p + 1}': measured(of) for p, of in enumerate(zip(*cuts))}
        mine = {row['masks']: row for row in rows if row['weights'] == weights and row['layer'] == '2'}
        assert mine.keys() == expected.keys() | {'best cut'}
        for masks, values in expected.items():
            names = ('iou', 'covers', 'on_mask', 'on_mask_spread')[:4 if 'head' in masks else 2]
            found, = floats([mine[masks]], *names, 'iou_spread')
            mean, spread = np.mean(values, 0), np.std(values, 0)
            assert found == pytest.approx((*mean, *spread[2:], spread[0]), abs=1e-4), masks
        of_objects = [max(overlap(cut, numbers[i] == m, known[i]) for cut in cuts[i]) for i, m in EACH]
        assert float(mine['best cut']['object']) == pytest.approx(np.mean(of_objects), abs=1e-5)
        assert 0 <= float(mine['best cut']['ap']) <= float(mine['best cut']['ap50']) <= 1


@pytest.mark.slow
def test_without_cuts(masks, look):
    found = {row['masks'] for row in look('segment', 'crate', '--dataset=many', '--cut=none') if row['masks']}
    assert found == {'head 1', 'head 2', 'best head', 'mean head'}
    rows = look('objects', 'crate', '--dataset=many', '--cut=none')
    assert len(rows) == 5 and {row['masks'] for row in rows} <= {'head 1', 'head 2'}


@pytest.mark.slow
def test_simple_guesses_are_scored_too(masks, look):
    """test_masks.py is about the groups by colour."""
    numbers, known, whole = masks
    half = torch.zeros(16, 24, dtype=torch.bool)
    half[4:12, 6:18] = True
    guesses = {GUESSES[0]: lambda mask: enlarged(n for n in range(12) if (mask & enlarged([n])).sum() > 16),
               GUESSES[2]: lambda mask: half, GUESSES[3]: lambda mask: half | True}
    rows = {row['network']: row for row in look('segment', 'crate', '--dataset=many') if row['weights'] == 'none'}
    assert list(rows) == list(GUESSES)
    for name, guess in guesses.items():
        all_together = np.mean([overlap(guess(mask), mask, seen) for mask, seen in zip(whole, known)])
        each = np.mean([overlap(guess(numbers[i] == m), numbers[i] == m, known[i]) for i, m in EACH])
        assert floats([rows[name]], 'iou', 'object') == [pytest.approx((all_together, each), abs=1e-5)]
    row, = (row for row in look('segment', 'crate', '--dataset=aligned', '--cut=none') if row['network'] == GUESSES[0])
    assert floats([row], 'iou', 'object', 'ap50', 'ap') == [(1, 1, 1, 1)]  # each object has its own guess


@pytest.mark.slow
def test_beside_networks_that_see_other_sizes(look):
    """Each has its own pixels and patches; the simple guesses are as the first network sees them."""
    alone, rows = look('segment', 'crate'), look('segment', 'crate', '--beside={place}/runs/wide')
    each = len(alone) - 4
    assert len(rows) == 2 * each + 4 and rows[:each // 2] == alone[:each // 2] and rows[-4:] == alone[-4:]


@pytest.mark.slow
def test_objects_are_drawn_with_the_best_head_of_each_picture(masks, look):
    words = 'crate', '--beside={place}/runs/vit', '--dataset=many'
    rows, table = look('objects', *words), look('segment', *words)
    for name in ('crate', 'vit'):
        best, = (float(row['iou']) for row in table if row['network'].endswith(f'runs/{name}') and row['layer'] == '2'
                 and row['masks'] == 'best head')
        mine = [float(row['iou']) for row in rows if row['network'].endswith(f'runs/{name}') and 'head' in row['masks']]
        assert len(mine) == 5 and np.mean(mine) == pytest.approx(best, abs=1e-5)
