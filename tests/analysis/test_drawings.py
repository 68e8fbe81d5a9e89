"""The tables of analyze.py hold what one computes, for every kind of network."""
import math
import re

import numpy as np
import pytest
import torch
from insides import (chosen, cropped, floats, fresh, heads_of, inputs, kind_of, layer_of, load, projections, softmax_of,
                     walk)

from analysis import derivation, drawings, layers, measures
from prepare.lib.pictures import save_arrays

# ---- layers


def by_hand(model, x, measure='paper', eps=None, threshold=0.0, part=2):
    """{(panel, layer): (mean, spread)}, from every sample by itself."""
    rate, usual = (measures.compressed_rate, 0.5) if measure == 'paper' else (measures.released_rate, 0.01)
    rates, shares = [], []
    with torch.no_grad():
        for i in range(len(x[0])):
            found = list(walk(model, *(t[i:i + 1] for t in x)))
            rates.append([rate(heads_of(a, half if measure == 'paper' else normed, part), eps or usual).item()
                          for a, normed, _, half, _ in found])
            shares.append([sum(abs(v) > threshold for v in z.flatten().tolist()) / z.numel() for *_, z in found])
    return {(panel, l): (np.mean(v), np.std(v)) for panel, values in (('rate', rates), ('sparsity', shares))
            for l, v in enumerate(zip(*values), 1) if panel == 'rate' or not layers.why_not_sparse(model)}


def same(rows, expected):
    """Fails unless the rows of one network hold what was computed by hand, and nothing else."""
    found = {(row['measure'], int(row['layer'])): (float(row['mean']), float(row['spread'])) for row in rows}
    assert found.keys() == expected.keys() and len(rows) == len(expected)
    for k in expected:
        assert found[k] == pytest.approx(expected[k], rel=1e-3, abs=1e-4), k


@pytest.mark.parametrize('name, words, settings', [
    ('crate', [], {}), ('crate', ['--eps=0.1'], dict(eps=0.1)),
    ('crate', ['--measure=released', '--threshold=0.3'], dict(measure='released', threshold=0.3)),
    ('crate', ['--measure=released', '--eps=0.1'], dict(measure='released', eps=0.1)), ('vit', [], {}),
    ('vit', ['--part=query', '--measure=released'], dict(part=0, measure='released')), ('vit_mae', [], {}),
    ('crate_mae', [], {}), ('crate_gpt', [], {}), ('crate_bert', [], {}), ('gpt2', ['--part=key'], dict(part=1)),
    ('aot_text', [], {}), ('aot_pictures', [], {})])
def test_layers_hold_what_a_loop_over_samples_finds(name, words, settings, place, look):
    rows, x = look('layers', name, '--seed=5', *words), inputs(place, name)
    kinds = {(row['network'], row['weights']) for row in rows}
    assert kinds == {(f'{place}/runs/{name}', 'trained'), ('random weights', 'random')}
    for weights, model in (('trained', load(place, name)), ('random', fresh(name, 5))):
        same([row for row in rows if row['weights'] == weights], by_hand(model, x, **settings))


def test_layers_of_prompts(place, look, monkeypatch):
    """Linear functions of 5 numbers, the same ones for each network."""
    seen, real = [], layers.layer_measures
    monkeypatch.setattr(layers, 'layer_measures', lambda model, x, *more: seen.append(x) or real(model, x, *more))
    rows = look('layers', 'functions', '--num_samples=7')
    (x, y), again = seen
    assert torch.equal(x, again[0]) and torch.equal(y, again[1])
    assert x.shape == (7, 6, 5) and (x[..., -1] != 0).all()
    w = torch.linalg.lstsq(x[:, :5], y[:, :5, None]).solution
    assert torch.allclose((x[:, 5:] @ w)[:, 0, 0], y[:, 5], atol=1e-2)
    for weights, model in (('trained', load(place, 'functions')), ('random', fresh('functions'))):
        same([row for row in rows if row['weights'] == weights], by_hand(model, (x, y)))
    look('layers', 'functions', '--num_samples=3', '--dataset=sparse_linear')
    x, y = seen[-1]
    w = torch.linalg.lstsq(x[:, :5], y[:, :5, None]).solution[..., 0]
    assert ((w.abs() > 1e-3).sum(1) <= 3).all()


def test_other_networks_stand_beside(place, look, capsys):
    rows, x = look('layers', 'crate', '--beside={place}/runs/vit,{place}/runs/aot_pictures'), inputs(place, 'crate')
    for name in ('crate', 'vit', 'aot_pictures'):
        for more, model in (('', load(place, name)), (', random weights', fresh(name))):
            same([row for row in rows if row['network'] == f'{place}/runs/{name}{more}'], by_hand(model, x))
    assert len(rows) == 2 * (6 + 6 + 3)
    said = capsys.readouterr().out
    assert len(re.findall('R\\^c [0-9]', said)) == 6 and len(re.findall('non-zeros [0-9]', said)) == 4
    rows = look('layers', 'crate', '--beside={place}/runs/crate/best.pt')  # of one config there are one random weights
    assert [row['network'] for row in rows if row['weights'] == 'random'] == 6 * ['random weights'] and len(rows) == 18


def test_all_networks_see_the_data_of_the_first(look):
    rows = look('layers', 'crate', '--beside={place}/runs/elsewhere')  # which was trained on `bare`
    alone = look('layers', 'elsewhere', '--dataset=pics')
    assert [r for r in rows if r['network'].endswith('elsewhere')] == [r for r in alone if r['weights'] == 'trained']
    assert alone != look('layers', 'elsewhere')


def test_samples_of_different_length_are_pointed_out(look, capsys):
    look('layers', 'crate', '--beside={place}/runs/wide')
    assert 'cannot be compared: a sample has 13 tokens in' in capsys.readouterr().out
    look('layers', 'crate', '--beside={place}/runs/vit')
    assert 'compared' not in capsys.readouterr().out


def test_layers_show_one_of_two(look, capsys):
    for show in ('rate', 'sparsity'):
        rows = look('layers', 'crate', f'--show={show}')
        assert {row['measure'] for row in rows} == {show} and len(rows) == 6
    assert 'R^c' not in capsys.readouterr().out.splitlines()[-3]
    assert len(look('layers', 'aot_text', '--show=rate')) == 6


def test_what_is_printed_is_what_the_table_says(look, capsys):
    rows = look('layers', 'vit')
    rates = [float(row['mean']) for row in rows if row['weights'] == 'trained' and row['measure'] == 'rate']
    falls = sum(b < a for a, b in zip(rates, rates[1:]))
    said = capsys.readouterr().out.splitlines()[0]
    assert f'R^c {rates[0]:.1f} in layer 1, {rates[-1]:.1f} in layer 3, falling at {falls} of 2 steps' in said


# ---- subspaces, tokens


@torch.no_grad()
@pytest.mark.parametrize('name, words, part', [
    ('crate', [], 2), ('vit', ['--part=key'], 1), ('gpt2', [], 2), ('functions', [], 2), ('crate_mae', [], 2)])
def test_subspaces_by_a_loop_over_columns(name, words, part, place, look):
    def overlap(a, b):
        return abs(sum(x * y for x, y in zip(a, b))) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))
    rows = look('subspaces', name, '--directions=3', *words)
    for model, column in ((load(place, name), 'coherence'), (fresh(name), 'coherence_random')):
        for l, attention in enumerate(layers.attentions(model), 1):
            U = [U.T.tolist() for U, _ in projections(attention, part)]                 # U[k][j] is column j of head k
            apart = [overlap(a, b) for i, j in ((0, 1), (1, 0)) for a in U[i] for b in U[j]]
            within = [overlap(a, b) for i in (0, 1) for a in U[i] for b in U[i]]
            mine = [row for row in rows if int(row['layer']) == l]
            assert {round(float(row[column]), 5) for row in mine} == {round(np.mean(apart) / np.mean(within), 5)}
            if column == 'coherence':
                for row in mine:
                    a, b = (U[int(row[f'head_{x}']) - 1][int(row[f'column_{x}']) - 1] for x in 'ij')
                    assert float(row['value']) == pytest.approx(overlap(a, b), abs=1e-5)
                picked = {(row['head_i'], row['column_i']) for row in mine}
                assert [sum(h == k for h, _ in picked) for k in '12'] == [3, 3] and len(mine) == 36
                assert picked == {(row['head_j'], row['column_j']) for row in mine}


@torch.no_grad()
@pytest.mark.parametrize('name', ['crate', 'vit', 'vit_mae', 'aot_pictures', 'crate_gpt', 'crate_bert', 'gpt2'])
def test_tokens_are_where_the_table_says(name, place, look, capsys):
    masked = name == 'crate_bert'
    start = [] if kind_of(name) == 'images' else ['--start=a [MASK] b' if masked else '--start=a subspace']
    rows, said = look('tokens', name, '--size=5', *start), capsys.readouterr().out
    if start:
        x = torch.tensor([[*b'a ', 256, *b' b'] if masked else list(b'a subspace')])
    else:
        x = cropped(place, int(re.search(r'the tokens of test (\d+), ', said)[1]))
    after = [z[0] for *_, z in walk(load(place, name), x)]
    assert len(rows) == 3 * 25 and all(len({row[k] for row in rows}) == 5 for k in ('token', 'channel'))
    for row in rows:
        l, n, i = (int(row[k]) - 1 for k in ('layer', 'token', 'channel'))
        assert float(row['value']) == pytest.approx(after[l][n, i].item(), rel=1e-4, abs=1e-4)
    share = [sum(v != 0 for v in z.flatten().tolist()) / z.numel() for z in after]
    printed = re.search(r'numbers ([.0-9]+)% are not zero after layer 1, ([.0-9]+)% after layer 3', said).groups()
    assert [float(v) / 100 for v in printed] == pytest.approx([share[0], share[-1]], abs=6e-4)
    assert len(look('tokens', name, *start)) == 3 * 16 * len(after[0])  # all, since there are no 50
    assert look('tokens', name, '--size=5', '--seed=9', *start) != rows


# ---- attention


@torch.no_grad()
@pytest.mark.parametrize('name', ['crate', 'vit', 'crate_mae', 'vit_mae', 'aot_pictures'])
def test_attention_of_the_class_token_by_a_loop(name, place, look):
    rows = look('attention', name, '--num_samples=2')
    assert len(chosen(rows)) == 2 and len(rows) == 2 * 2 * 12
    assert {row['layer'] for row in rows} == {'2'}  # the last but one
    assert [(row['row'], row['column']) for row in rows[:4]] == [('1', '1'), ('1', '2'), ('1', '3'), ('2', '1')]
    for i in chosen(rows):
        attention, normed = layer_of(place, name, i, 1)
        for k in (0, 1):
            mine = [float(row['weight']) for row in rows
                    if row['picture'].startswith(f'test {i},') and int(row['head']) == k + 1]
            assert mine == pytest.approx(softmax_of(attention, normed, k, 0, range(1, 13)), rel=1e-3, abs=1e-5)
            assert sum(mine) == pytest.approx(1, abs=1e-5) and max(mine) > 1.2 / 12
    for row in rows:
        i = int(row['picture'].split()[1][:-1])
        assert row['picture'] == f'test {i}, {["ant", "bee", "cat"][i % 3]}'


@torch.no_grad()
@pytest.mark.parametrize('name', ['aot_text', 'gpt2', 'crate_gpt', 'crate_bert'])
def test_attention_in_a_text_by_a_loop(name, place, look):
    shown = ['a', '[MASK]' if name == 'crate_bert' else ' ', "'", '"', '$', '\\n']
    rows, N = look('attention', name, f'--start={"".join(shown)}', '--layer=3'), len(shown)
    x = torch.tensor([[256 if t == '[MASK]' else ord(t.replace('\\n', '\n')) for t in shown]])
    attention, normed, *_ = list(walk(load(place, name), x))[2]
    assert len(rows) == 2 * N * N and {row['layer'] for row in rows} == {'3'}
    for row in rows:
        i, j = int(row['query']) - 1, int(row['key']) - 1
        assert (row['query_token'], row['key_token']) == (shown[i], shown[j])
    for k in (0, 1):
        for i in range(N):
            mine = [float(row['weight']) for row in rows if (row['head'], row['query']) == (str(k + 1), str(i + 1))]
            sees = range(N) if name == 'crate_bert' else range(i + 1)
            assert mine[:len(sees)] == pytest.approx(softmax_of(attention, normed[0], k, i, sees), rel=1e-3, abs=1e-5)
            assert sum(mine) == pytest.approx(1, abs=1e-5) and all(w == 0 for w in mine[len(sees):])  # the future


def test_a_text_of_the_dataset_where_none_is_given(place, look):
    rows, ids = look('attention', 'crate_gpt'), np.load(place / 'data' / 'text' / 'val.npy')
    assert len(rows) == 2 * 12 * 12
    shown = [repr(bytes([i]).decode('utf-8', 'replace'))[1:-1] for i in ids[:12]]
    assert [row['key_token'] for row in rows[:12]] == shown
    (place / 'prompt.txt').write_text('a to of')
    rows = look('attention', 'crate_gpt', '--start=FILE:{place}/prompt.txt')
    assert [row['key_token'] for row in rows[:7]] == list('a to of') and len(rows) == 2 * 49


def test_heads_and_layers_are_chosen(place, look):
    rows = look('attention', 'crate', '--heads=1,2', '--layer=1', '--num_samples=1')
    assert [(row['layer'], row['head']) for row in rows] == 12 * [('1', '1')] + 12 * [('1', '2')]
    second = look('attention', 'crate', '--heads=2', '--layer=1', '--num_samples=1')
    assert second == rows[12:] != look('attention', 'crate', '--heads=2', '--layer=3', '--num_samples=1')
    both = look('attention', 'gpt2', '--start=abc', '--layer=2')
    assert look('attention', 'gpt2', '--heads=2', '--start=abc') == both[9:]
    assert look('pca', 'vit', '--layer=1') != look('pca', 'vit') == look('pca', 'vit', '--layer=2')


def test_pictures_are_drawn_in_grey_or_their_first_three_channels():
    x = torch.randn(2, 5, 4, 3)
    assert np.array_equal(drawings.visible(x[:, :3]).shape, (2, 4, 3, 3))
    grey = drawings.visible(x[:, :1])
    assert (grey == grey[..., :1]).all() and np.array_equal(drawings.visible(x[:, :2]), grey)
    assert np.array_equal(drawings.visible(x), drawings.visible(x[:, :4])) and drawings.visible(x).shape == (2, 4, 3, 3)


# ---- principal components


@torch.no_grad()
@pytest.mark.parametrize('name, words, part, keep', [
    ('crate', [], 1, 0.5), ('vit', [], 1, 0.5), ('vit', ['--part=value', '--keep=0.3'], 2, 0.3),
    ('crate_mae', [], 1, 0.5)])
def test_pca_by_a_singular_value_decomposition(name, words, part, keep, place, look, capsys):
    rows, said = look('pca', name, '--label=bee', '--num_samples=4', *words), capsys.readouterr().out
    pictures, tokens = chosen(rows), []
    assert len(pictures) == 4 and all(i % 3 == 1 for i in pictures) and len(rows) == 48
    assert [(row['row'], row['column']) for row in rows[:4]] == [('1', '1'), ('1', '2'), ('1', '3'), ('2', '1')]
    for i in pictures:
        seen = heads_of(*layer_of(place, name, i, 1), part)             # (K, N + 1, p)
        tokens += [torch.cat([seen[k, n] for k in (0, 1)]) for n in range(1, 13)]
    Z = torch.stack(tokens).double()
    first, kept = (torch.tensor(floats(rows, k), dtype=torch.float64)[:, 0] for k in ('first', 'kept'))
    projected = Z @ torch.linalg.svd(Z)[2][0]
    sign = 1 if (projected * first).sum() > 0 else -1
    assert torch.allclose(first, sign * projected, atol=1e-3)
    border = torch.tensor([row['row'] in '14' or row['column'] in '13' for row in rows])
    assert first[border].mean() <= first[~border].mean()
    expected = first >= first.min() + keep * (first.max() - first.min())
    assert kept.bool().tolist() == expected.tolist() and f'{expected.double().mean():.0%} of the patches' in said
    three = torch.tensor(floats(rows, 'red', 'green', 'blue'), dtype=torch.float64)
    components = Z[expected] @ torch.linalg.svd(Z[expected])[2][:3].T
    assert (three[~expected] == 0).all() and torch.allclose(three[expected].abs(), components.abs(), atol=1e-2)


def test_pca_takes_the_first_class(look):
    assert {i % 3 for i in chosen(look('pca', 'crate', '--num_samples=5'))} == {0}
    assert len(chosen(look('pca', 'crate', '--num_samples=50'))) == 6  # there are no more


# ---- segmentation


def patch(n):
    """The pixels of patch n."""
    return slice(n // 3 * 4, n // 3 * 4 + 4), slice(n % 3 * 8, n % 3 * 8 + 8)


def overlap(a, b):
    """Intersection over union, pixel by pixel."""
    both = sum(p and q for p, q in zip(a.flatten().tolist(), b.flatten().tolist()))
    either = sum(p or q for p, q in zip(a.flatten().tolist(), b.flatten().tolist()))
    return both / either if either else 0.0


def head_by_hand(w, share, mask):
    """(intersection over union, attention on the mask, share of patches kept) for weights w of the
    patches."""
    found, held = torch.zeros(16, 24, dtype=torch.bool), 0.0
    for n in sorted(range(12), key=lambda n: -w[n]):
        if held < share:
            found[patch(n)] = True
        held += w[n]
    on_mask = sum(w[n] / 32 * mask[patch(n)].sum().item() for n in range(12))
    return overlap(found, mask), on_mask, found.double().mean().item()


@pytest.fixture
def masked(place):
    """A dataset of five pictures with large, small, cut-off and empty masks; the masks as networks
    see them."""
    images, labels = np.load(place / 'data' / 'pics' / 'test.images.npy')[:5], np.arange(5) % 3
    masks = np.zeros((5, 20, 30), bool)
    for i, where in enumerate(((slice(4, 11), slice(5, 12)), (slice(2, 18), slice(3, 19)), (9, 9), (slice(20), 20), 0)):
        masks[i][where] = True
    splits = {split: (images, labels, masks) for split in ('train', 'test')}
    if not (place / 'data' / 'masked').exists():
        save_arrays(place / 'data' / 'masked', splits, ['ant', 'bee', 'cat'])
    return torch.tensor(masks[:, 2:18, 3:27])


@torch.no_grad()
@pytest.mark.parametrize('name, words, share', [
    ('crate', [], 0.6), ('vit', ['--share=0.3'], 0.3), ('aot_pictures', [], 0.6)])
def test_segment_by_a_loop_over_pixels(name, words, share, masked, place, look, capsys):
    rows, said = look('segment', name, '--dataset=masked', *words), capsys.readouterr().out
    for weights, model in (('trained', load(place, name)), ('random', fresh(name))):
        insides = [list(walk(model, cropped(place, i))) for i in range(5)]

        def score(i, l, k):
            attention, normed, *_ = insides[i][l]
            return head_by_hand(softmax_of(attention, normed[0], k, 0, range(1, 13)), share, masked[i])
        for l in range(3):
            scores = np.array([[score(i, l, k) for k in (0, 1)] for i in range(5)])     # (5, K, 3)
            best = scores[range(5), scores[..., 0].argmax(1)]
            mine = {row['head']: row for row in rows if row['weights'] == weights and row['layer'] == str(l + 1)}
            expected = {'1': scores[:, 0], '2': scores[:, 1], 'best': best, 'mean': scores.mean(1)}
            assert mine.keys() == expected.keys()
            for head, of in expected.items():
                found, = floats([mine[head]], 'iou', 'on_mask', 'kept', 'iou_spread', 'on_mask_spread')
                assert found == pytest.approx((*of.mean(0), *of.std(0)[:2]), abs=1e-4), (l, head)
            if (weights, l) == ('trained', 1):
                iou = scores[..., 0]
                assert f'layer 2 of 3: intersection over union {iou.max(1).mean():.3f} with the best head of each ' \
                       f'picture, {iou.mean(0).max():.3f} with head {iou.mean(0).argmax() + 1} in all' in said
    assert 'Of these 5 pictures' in said and f'{masked.double().mean():.1%} is mask' in said


def test_simple_guesses_are_scored_too(masked, place, look):
    rows, half, covered = look('segment', 'crate', '--dataset=masked'), torch.zeros(16, 24), torch.zeros(5, 16, 24)
    half[4:12, 6:18] = 1
    for i in range(5):
        for n in range(12):
            covered[i][patch(n)] = float(masked[i][patch(n)].sum() > 16)
    guesses = {'the patches that the mask covers most of': covered, 'the whole picture': torch.ones(5, 16, 24),
               'the middle, half as wide and high': half.expand(5, 16, 24)}
    for name, guess in guesses.items():
        score, = (float(row['iou']) for row in rows if row['network'] == name)
        assert score == pytest.approx(np.mean([overlap(guess[i].bool(), masked[i]) for i in range(5)]), abs=1e-5)


def test_segment_beside_networks_that_see_other_sizes(look, place):
    """Each has its own pixels and patches; the simple guesses are as the first network sees them."""
    alone, rows = look('segment', 'crate'), look('segment', 'crate', '--beside={place}/runs/wide')
    assert len(rows) == 4 * 3 * 4 + 3 and rows[:12] == alone[:12] and rows[-3:] == alone[-3:]


# ---- each half of a layer, whose measures test_layers.py compares with loops


def mean_and_spread(values):
    return values.mean().item(), values.std(correction=0).item()


@torch.no_grad()
@pytest.mark.parametrize('name', ['crate', 'crate_mae', 'aot_pictures', 'aot_text', 'crate_bert'])
def test_what_denoise_and_compress_write(name, place, look):
    x = inputs(place, name)
    for weights, model in (('trained', load(place, name)), ('random', fresh(name))):
        def numbers(command, *columns):
            return floats([row for row in look(command, name) if row['weights'] == weights], *columns)
        before, after = layers.signal_to_noise(model, x)
        found = numbers('denoise', 'before', 'after', 'factor', 'factor_spread')
        for row, b, a in zip(found, before, after, strict=True):
            assert row == pytest.approx((b.mean().item(), a.mean().item(), *mean_and_spread(a / b)), rel=2e-3, abs=1e-4)
        columns = [f'{part}{length}' for length in ('', '_equal') for part in ('before', 'half', 'after')] + ['cosine']
        found = numbers('compress', *[column + end for column in columns for end in ('', '_spread')])
        for row, *parts in zip(found, *derivation.rates_around_steps(model, x), strict=True):
            assert row == pytest.approx([v for part in parts for v in mean_and_spread(part)], rel=2e-3, abs=2e-3)


def test_what_compress_prints_is_what_its_table_says(look, capsys):
    rows = look('compress', 'crate')
    said = capsys.readouterr().out.splitlines()
    for n, weights in enumerate(('trained', 'random')):
        mine = [row for row in rows if row['weights'] == weights]
        for m, length in enumerate(('', '_equal')):
            z, half, after = ([row[0] for row in floats(mine, part + length)] for part in ('before', 'half', 'after'))
            line = said[3 * n + m]
            assert ('equal length' in line) == (length == '_equal')
            steps = dict(zip(('attention', 'ISTA'), line.split(': ', 1)[1].split('; ')))
            for (name, text), old, new in zip(steps.items(), (z, half), (half, after)):
                added = [b - a for a, b in zip(old, new)]
                assert text == (f'{name} lowers R^c in {sum(a < 0 for a in added)} of 3 layers, adds {min(added):+.1f} '
                                f'to {max(added):+.1f} nats')
    look('compress', 'aot_text')
    said = capsys.readouterr().out
    assert 'attention lowers' in said and 'ISTA' not in said and 'MLP' not in said                    # it has neither


@torch.no_grad()
def test_what_ista_writes(place, look):
    rows = look('ista', 'crate', '--image={place}/FOLDER')
    x = torch.cat([cropped(place, i) for i in range(3)])
    for weights, model in (('trained', load(place, 'crate')), ('random', fresh('crate'))):
        mine = [row for row in rows if row['weights'] == weights]
        for row, layer, *values in zip(mine, model.layers, *derivation.lasso_values(model, (x,)), strict=True):
            found, = floats([row], 'at_start', 'after_layer', 'minimum', 'at_zero')
            assert found == pytest.approx([v.mean().item() for v in values], rel=1e-2)
            start, end, least, _ = values
            found, = floats([row], 'share_of_the_way', 'share_spread', 'eta_norm2')
            step = 0.1 * torch.linalg.svdvals(layer.ista.D)[0].item() ** 2
            assert found == pytest.approx((*mean_and_spread((start - end) / (start - least)), step), rel=1e-2, abs=1e-3)


@torch.no_grad()
def test_what_ista_writes_of_a_layer_that_decodes(place, look, capsys):
    """The objective by a loop over tokens; from codes 0 to those of the layer, to a minimum that is reached."""
    rows = [row for row in look('ista', 'crate_alpha', '--image={place}/FOLDER') if row['weights'] == 'trained']
    assert 'of the way from 0 to the minimum' in capsys.readouterr().out
    model, z = load(place, 'crate_alpha'), None
    z = model.embed(torch.cat([cropped(place, i) for i in range(3)]))
    for row, layer in zip(rows, model.layers, strict=True):
        half = z + layer.attn(layer.norm1(z))
        Y, D = layer.norm2(half), layer.ista.D
        value, empty = 0.0, 0.0
        for y, a in zip(Y.flatten(0, 1), layer.ista.code(Y).flatten(0, 1)):
            value += 0.1 * a.sum() + 0.5 * ((y - D @ a) ** 2).sum()
            empty += 0.5 * (y ** 2).sum()
        found, = floats([row], 'at_start', 'after_layer', 'minimum', 'at_zero')
        n = Y[..., 0].numel()
        assert found[0] == found[3] == pytest.approx(empty.item() / n, rel=1e-3)
        assert found[1] == pytest.approx(value.item() / n, rel=1e-3) and found[2] < found[1] < found[0]
        z = layer(z)


@torch.no_grad()
def test_sparsity_is_that_of_codes_where_they_are_decoded(place, look, capsys):
    rows = [row for row in look('layers', 'crate_alpha', '--show=sparsity') if row['weights'] == 'trained']
    assert 'the non-zeros are those of the codes' in capsys.readouterr().out
    assert all(0.05 < float(row['mean']) < 0.95 for row in rows) and len(rows) == 3
