"""Attention and MaskCut against true masks: the tables hold what loops over pixels find."""
import numpy as np
import pytest
import torch
from helpers import fails
from insides import cropped, floats, fresh, heads_of, load, softmax_of, walk

import analyze
from analysis.maskcut import maskcut
from prepare.lib.pictures import save_arrays

GUESSES = ('the patches that objects cover most of', 'two groups of pixels by colour',
           'the middle, half as wide and high', 'the whole picture')


def patch(n):
    """The pixels of patch n."""
    return slice(n // 3 * 4, n // 3 * 4 + 4), slice(n % 3 * 8, n % 3 * 8 + 8)


def enlarged(patches):
    """Which pixels the patches cover, bool (16, 24)."""
    found = torch.zeros(16, 24, dtype=torch.bool)
    for n in patches:
        found[patch(n)] = True
    return found


def overlap(a, b, known=None):
    """Intersection over union, pixel by pixel."""
    known = torch.ones_like(a) if known is None else known
    both = sum(p and q for p, q, k in zip(a.flatten().tolist(), b.flatten().tolist(), known.flatten().tolist()) if k)
    either = sum(p or q for p, q, k in zip(a.flatten().tolist(), b.flatten().tolist(), known.flatten().tolist()) if k)
    return both / either if either else 0.0


def kept(w, share):
    """The patches that hold `share` of the weights w, from the largest on."""
    found, held = [], 0.0
    for n in sorted(range(12), key=lambda n: -w[n]):
        if held < share:
            found.append(n)
        held += w[n]
    return found


@pytest.fixture(scope='module')
def masked(place):
    """Datasets of five pictures: `masked` with large, small, cut-off and empty masks, `many` with up to
    three objects and unknown pixels; the masks as networks see them: bool (5, 16, 24), and numbers."""
    images, labels = np.load(place / 'data' / 'pics' / 'test.images.npy')[:5], np.arange(5) % 3
    masks, numbers = np.zeros((5, 20, 30), bool), np.zeros((5, 20, 30), np.uint8)
    for i, where in enumerate(((slice(4, 11), slice(5, 12)), (slice(2, 18), slice(3, 19)), (9, 9), (slice(20), 20), 0)):
        masks[i][where] = True
    for i, m, where in ((0, 1, (slice(2, 9), slice(3, 15))), (0, 2, (slice(10, 16), slice(3, 12))),
                        (0, 255, (slice(4, 12), slice(9, 11))), (1, 1, (slice(3), slice(3))),  # cropped away
                        (1, 2, (slice(6, 14), slice(11, 19))), (2, 1, (slice(2, 18), slice(3, 11))),
                        (2, 2, (slice(2, 10), slice(11, 27))), (2, 3, (slice(14, 18), slice(19, 27))),
                        (3, 255, (slice(20), slice(30)))):
        numbers[i][where] = m
    objects = np.array([[2, 0, -1], [1, 1, -1], [0, 1, 2], [-1, -1, -1], [-1, -1, -1]])
    for name, arrays in (('masked', (images, labels, masks)), ('many', (images, labels, numbers, objects))):
        save_arrays(place / 'data' / name, {split: arrays for split in ('train', 'test')}, ['ant', 'bee', 'cat'])
    return torch.tensor(masks[:, 2:18, 3:27]), torch.tensor(numbers[:, 2:18, 3:27])


@torch.no_grad()
@pytest.mark.parametrize('name, words, share', [
    ('crate', [], 0.6), ('vit', ['--share=0.3'], 0.3), ('aot_pictures', [], 0.6)])
def test_heads_by_a_loop_over_pixels(name, words, share, masked, place, look):
    masked, _ = masked
    rows = look('segment', name, '--dataset=masked', *words)
    for weights, model in (('trained', load(place, name)), ('random', fresh(name))):
        insides = [list(walk(model, cropped(place, i))) for i in range(5)]

        def score(i, l, k):
            attention, normed, *_ = insides[i][l]
            w = softmax_of(attention, normed[0], k, 0, range(1, 13))
            on = sum(w[n] / 32 * masked[i][patch(n)].sum().item() for n in range(12))
            return overlap(enlarged(kept(w, share)), masked[i]), on, len(kept(w, share)) / 12
        for l in range(3):
            scores = np.array([[score(i, l, k) for k in (0, 1)] for i in range(5)])     # (5, K, 3)
            best = scores[range(5), scores[..., 0].argmax(1)]
            mine = {row['masks']: row for row in rows if row['weights'] == weights and row['layer'] == str(l + 1)
                    and not row['class'] and 'head' in row['masks']}
            expected = {'head 1': scores[:, 0], 'head 2': scores[:, 1], 'best head': best, 'mean head': scores.mean(1)}
            assert mine.keys() == expected.keys()
            for head, of in expected.items():
                found, = floats([mine[head]], 'iou', 'on_mask', 'covers', 'iou_spread', 'on_mask_spread')
                assert found == pytest.approx((*of.mean(0), *of.std(0)[:2]), abs=1e-4), (l, head)


@torch.no_grad()
@pytest.mark.parametrize('name, cut, part', [('crate', 'key', 1), ('vit', 'query', 0), ('vit', 'value', 2),
                                             ('crate_mae', 'token', None)])
def test_cuts_of_several_objects_by_a_loop(name, cut, part, masked, place, look):
    _, numbers = masked
    rows = [row for row in look('segment', name, '--dataset=many', f'--cut={cut}', '--masks=2', '--tau=0.1')
            if row['weights'] == 'trained' and row['layer'] == '2']
    model, known = load(place, name), numbers != 255
    cuts = []
    for i in range(5):
        attention, normed, _, _, after = list(walk(model, cropped(place, i)))[1]
        z = after[0, 1:] if part is None else torch.cat(list(heads_of(attention, normed[0], part)[:, 1:]), 1)
        cuts.append([enlarged(m.flatten().nonzero()[:, 0].tolist()) for m in maskcut(z.T, (4, 3), 0.1, 2)])
    whole = [(numbers[i] > 0) & known[i] for i in range(5)]
    each = {(0, 1): 'cat', (0, 2): 'ant', (1, 2): 'bee', (2, 1): 'ant', (2, 2): 'bee', (2, 3): 'cat'}  # what is seen
    of_objects = {o: max(overlap(cut, numbers[o[0]] == o[1], known[o[0]]) for cut in cuts[o[0]]) for o in each}
    mine = {row['masks']: row for row in rows if not row['class']}
    for p in (0, 1):
        expected = np.mean([overlap(cuts[i][p], whole[i], known[i]) for i in range(5)])
        assert float(mine[f'cut {p + 1}']['iou']) == pytest.approx(expected, abs=1e-5)
    everything = [overlap(cuts[i][0] | cuts[i][1], whole[i], known[i]) for i in range(5)]
    assert float(mine['all cuts']['iou']) == pytest.approx(np.mean(everything), abs=1e-5)
    covered = [((cuts[i][0] | cuts[i][1]) & known[i]).sum() / known[i].sum().clamp(1) for i in range(5)]
    assert float(mine['all cuts']['covers']) == pytest.approx(np.mean(covered), abs=1e-5)
    on = []
    for i in range(5):
        attention, normed, *_ = list(walk(model, cropped(place, i)))[1]
        w = softmax_of(attention, normed[0], 0, 0, range(1, 13))
        of_pixels = sum(w[n] * enlarged([n]).double() for n in range(12))
        on.append(((of_pixels * whole[i]).sum() / (of_pixels * known[i]).sum().clamp(1e-9)).item())
    assert float(mine['head 1']['on_mask']) == pytest.approx(np.mean(on), abs=1e-5)
    assert float(mine['best cut']['object']) == pytest.approx(np.mean(list(of_objects.values())), abs=1e-5)
    kinds = {row['class']: float(row['object']) for row in rows if row['class'] and row['masks'] == 'best cut'}
    assert kinds == {k: pytest.approx(np.mean([v for o, v in of_objects.items() if each[o] == k]), abs=1e-5)
                     for k in ('ant', 'bee', 'cat')}
    assert 0 <= float(mine['best cut']['ap']) <= float(mine['best cut']['ap50']) <= 1


def test_without_cuts(masked, look):
    rows = look('segment', 'crate', '--dataset=many', '--cut=none')
    assert [row for row in rows if row['masks'] == 'best head'] and not [row for row in rows if 'cut' in row['masks']]
    rows = look('objects', 'crate', '--dataset=many', '--cut=none')
    assert len(rows) == 5 and {row['masks'] for row in rows} <= {'head 1', 'head 2'}


def test_pictures_without_an_object(place, tmp_path, capsys):
    """There would be nothing to take a mean of."""
    pictures, labels = np.load(place / 'data' / 'pics' / 'test.images.npy')[:5], np.arange(5) % 3
    split = pictures, labels, np.zeros((5, 20, 30), bool)
    save_arrays(tmp_path / 'data' / 'unmarked', {'train': split, 'test': split}, ['ant', 'bee', 'cat'])
    said = fails(capsys, analyze.main, 'segment', f'--ckpt={place}/runs/crate', '--dataset=unmarked',
                 f'--data_dir={tmp_path}/data', f'--out={tmp_path}/x.png')
    assert 'the 5 chosen pictures show no object' in said and not (tmp_path / 'x.png').exists()


def test_simple_guesses_are_scored_too(masked, place, look):
    masked, _ = masked
    rows, half, covered = look('segment', 'crate', '--dataset=masked'), torch.zeros(16, 24), torch.zeros(5, 16, 24)
    half[4:12, 6:18] = 1
    for i in range(5):
        for n in range(12):
            covered[i][patch(n)] = float(masked[i][patch(n)].sum() > 16)
    guesses = dict(zip(GUESSES, (covered, None, half.expand(5, 16, 24), torch.ones(5, 16, 24))))
    found = {row['network']: row for row in rows if row['weights'] == 'none'}
    assert list(found) == list(GUESSES)
    for name, guess in guesses.items():
        if guess is not None:  # test_objects.py is about the groups by colour
            expected = [overlap(guess[i].bool(), masked[i]) for i in range(5)]
            assert float(found[name]['iou']) == pytest.approx(np.mean(expected), abs=1e-5)
            assert float(found[name]['object']) == pytest.approx(np.mean(expected[:4]), abs=1e-5)


def test_guesses_of_each_object_are_not_judged_by_the_one_of_all(place, look):
    images, numbers = np.load(place / 'data' / 'pics' / 'test.images.npy')[:5], np.zeros((5, 20, 30), np.uint8)
    numbers[:, 2:6, 3:11], numbers[:, 10:14, 11:19] = 1, 2  # whole patches
    arrays = images, np.arange(5) % 3, numbers, np.array([[0, 1]] * 5)
    save_arrays(place / 'data' / 'aligned', {split: arrays for split in ('train', 'test')}, ['ant', 'bee', 'cat'])
    row, = (row for row in look('segment', 'crate', '--dataset=aligned', '--cut=none') if row['network'] == GUESSES[0])
    assert [float(row[column]) for column in ('iou', 'object', 'ap50', 'ap')] == [1, 1, 1, 1]


def test_beside_networks_that_see_other_sizes(look, place):
    """Each has its own pixels and patches; the simple guesses are as the first network sees them."""
    alone, rows = look('segment', 'crate'), look('segment', 'crate', '--beside={place}/runs/wide')
    each = len(alone) - 4
    assert len(rows) == 2 * each + 4 and rows[:each // 2] == alone[:each // 2] and rows[-4:] == alone[-4:]


def test_objects_are_drawn_with_the_best_head_of_each_picture(masked, look, place):
    rows = look('objects', 'crate', '--beside={place}/runs/vit', '--dataset=masked', '--num_samples=4')
    table = look('segment', 'crate', '--beside={place}/runs/vit', '--dataset=masked', '--num_samples=4')
    for name in ('crate', 'vit'):
        best, = (float(row['iou']) for row in table if row['network'].endswith(f'runs/{name}') and row['layer'] == '2'
                 and row['masks'] == 'best head' and not row['class'])
        mine = [float(row['iou']) for row in rows if row['network'].endswith(f'runs/{name}') and 'head' in row['masks']]
        assert len(mine) == 4 and np.mean(mine) == pytest.approx(best, abs=1e-5)


@pytest.mark.parametrize('command, words, message', [
    ('segment', '--masks=13', 'at most the number of patches of'), ('objects', '--masks=13', 'number of patches'),
    ('segment', '--cut=head', 'key or query or value or token or none'),
    ('objects', '--tau=nan', 'tau'), ('objects', '--dataset=bare', 'python prepare/shapes.py'),
    ('objects', '--beside={place}/runs/wide', 'another size or crop'), ('objects', '--image=x', '--image does not go')])
def test_mistakes_get_one_line(command, words, message, place, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = [command, f'--ckpt={place}/runs/crate', f'--data_dir={place}/data', *words.format(place=place).split()]
    assert message in fails(capsys, analyze.main, *words) and not list(tmp_path.iterdir())
