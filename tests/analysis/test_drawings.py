"""The tables of analyze.py hold what one computes, for every kind of network."""
import math
import re
from dataclasses import replace
from pathlib import PurePath

import numpy as np
import pytest
import torch
from insides import (chosen, cropped, floats, fresh, heads_of, inputs, kind_of, layer_of, load, projections, softmax_of,
                     walk)
from matplotlib.text import Text

import analyze
from analysis import compression, denoising, layers, measures, panels, sparsification
from analysis.samples import Subject
from tasks.augment import visible

# ---- what is written into figures


@pytest.fixture
def figure_of(place, tmp_path, monkeypatch):
    """A function that runs a command, and returns its figure."""
    from engine import plots
    kept = []
    monkeypatch.setattr(plots, 'save', lambda picture, figure, *more: kept.append(figure))

    def figure_of(command, *words):
        analyze.main([command, *(w.format(place=place) for w in words), f'--out={tmp_path}/x.png'])
        return kept[-1]
    yield figure_of
    for figure in kept:
        plots.pyplot().close(figure)


def texts(figure):
    """All words in a figure, of its legends, panels and ticks, and the ticks that nobody drew yet."""
    ticks = [label for axis in figure.axes for way in (axis.xaxis, axis.yaxis)
             for label in way.get_ticklabels(which='both')]
    return [label.get_text() for label in (*figure.findobj(Text), *ticks)]


@pytest.mark.parametrize('command', analyze.COMMANDS)
def test_no_figure_holds_the_path_of_a_run(command, figure_of, place):
    words = [command, '--ckpt={place}/runs/crate', '--data_dir={place}/data']
    beside = '{place}/runs/crate_mae' if command in ('compress', 'denoise', 'ista') else '{place}/runs/vit'
    if 'beside' in analyze.COMMANDS[command][1]:
        words += [f'--beside={beside}', '--num_samples=2']
    said = texts(figure_of(*words))
    assert not any(part in word for word in said for part in (str(place), 'runs', '$'))
    if '--num_samples=2' in words:
        own = ', random weights' if command != 'objects' else ''
        assert any(word.startswith(f'crate{own}') for word in said)
        assert any(word.startswith(PurePath(beside).name + own) for word in said)


@pytest.mark.parametrize('words', [
    ['denoise', '--head_dim=2', '--tokens=2', '--n_layer=2', '--tau=0'], ['nearest', '--head_dim=2', '--tokens=4'],
    ['compress', '--n_head=2', '--head_dim=2', '--tokens=16', '--n_layer=2', '--step=0.25'],
    ['ista', '--n_embd=4', '--tokens=4', '--steps=3'], ['tweedie', '--tokens=10', '--samples=100', '--steps=2'],
    ['diffuse', '--n_head=2', '--head_dim=2', '--tokens=8', '--sets=2', '--n_layer=4'],
    ['majorize', '--n_embd=4', '--tokens=2', '--steps=2']], ids=lambda words: words[0])
def test_figures_of_the_theory(words, figure_of, monkeypatch):
    """No math in numbers at ticks, one vertical axis in a panel, and a word for what it holds."""
    monkeypatch.setattr(denoising, 'NEAR', dict(n_head=2, head_dim=4, tokens=4))
    figure = figure_of(*words)
    assert not any('$' in word for word in texts(figure))
    places = [axis.get_subplotspec().get_position(figure).bounds + (axis.figure is figure,) for axis in figure.axes]
    assert len(set(places)) == len(places)
    assert all(axis.get_title() for axis in figure.axes)
    assert all(label.get_fontsize() > 6.9 for label in figure.findobj(Text))


def test_lengths_and_shares_are_drawn_from_zero(figure_of):
    for command in ('layers', 'compress', 'denoise', 'segment'):
        figure = figure_of(command, '--ckpt={place}/runs/crate', '--data_dir={place}/data', '--num_samples=3')
        lined = [axis for axis in figure.axes if axis.lines and not axis.images and 'lambda' not in axis.get_title()]
        assert lined and all(axis.get_ylim()[0] == 0 for axis in lined), command


def test_each_colour_of_a_mask_is_in_the_legend(figure_of):
    figure = figure_of('objects', '--ckpt={place}/runs/crate', '--data_dir={place}/data', '--masks=4')
    shown = [tuple(handle.get_facecolor()) for handle in figure.legends[0].get_patches()]
    assert len(shown) == len(set(shown)) == 4


def test_networks_of_the_same_title_are_told_apart():
    net = Subject('out/a/best.safetensors', {}, None, 'C0')
    nets = [net, replace(net, name='out/a/step_3.safetensors'), replace(net, name='x/vit'),
            replace(net, name='out/a/best.safetensors, random weights', kind='random'),
            *(replace(net, name=name, kind='random') for name in ('x/vit, random weights', 'random weights'))]
    assert list(panels.names_of(nets).values()) == [
        'out/a/best.safetensors', 'out/a/step_3.safetensors', 'vit', 'out/a/best.safetensors, random weights',
        'vit, random weights', 'random weights']
    assert list(panels.names_of(nets[:1]).values()) == ['a']


@pytest.mark.parametrize('name, part', [('crate', []), ('vit', ['--part=key']), ('gpt2', [])])
def test_heads_have_numbers_and_the_ones_of_the_diagonal_no_part_of_the_scale(name, part, figure_of):
    *panels, bar = figure_of('subspaces', f'--ckpt={{place}}/runs/{name}', '--directions=3', *part).axes
    panels = [axis for axis in panels if axis.images]
    for l, axis in enumerate(panels, 1):
        image, = axis.images
        low, high = image.get_clim()
        drawn = image.get_array()
        apart = drawn[~np.eye(len(drawn), dtype=bool)]
        assert low == 0 and high <= 0.95 and (apart <= high).mean() > 0.9 and (drawn.diagonal() > high).all()
        for axis_of in (axis.xaxis, axis.yaxis):
            shown = axis_of is axis.xaxis or l == 1                     # once for each row of panels
            assert [label.get_text() for label in axis_of.get_ticklabels()] == shown * ['1', '2']
            assert axis_of.get_ticklocs().tolist() == [1, 4]            # the middle of three columns
        assert len(axis.lines) == 2 and axis.get_title().startswith(f'layer {l}')       # one border each way
    assert len(panels) == 3 and 'cosine' in bar.get_ylabel()


def test_one_outlier_does_not_use_up_a_scale():
    sizes = np.linspace(0, 1, 1000)
    sizes[5] = 1000
    assert panels.scale_of([sizes]) < 1 and panels.scale_of([-sizes]) < 1
    assert panels.scale_of([np.zeros(3)]) == 1 and panels.scale_of([np.ones(9)], most=0.95) == 0.95


@pytest.mark.parametrize('name', ['crate', 'vit', 'crate_gpt', 'gpt2'])
def test_tokens_stand_beside_what_the_network_reads(name, figure_of):
    figure = figure_of('tokens', f'--ckpt={{place}}/runs/{name}', '--data_dir={place}/data', '--size=5')
    given, *panels, bar = figure.axes
    if kind_of(name) == 'images':  # 4 x 3 patches after the class token
        assert given.images and [label.get_text() for label in given.get_yticklabels()] == ['2', '5', '8', '11']
    else:
        assert [label.get_text().startswith('   1  ') for label in given.texts] == [True]
    for l, axis in enumerate(panels, 1):
        low, high = axis.images[0].get_clim()
        assert high > 0 and (low == -high if (axis.images[0].get_array() < 0).any() else low in (0, -high))
        assert axis.get_title().startswith(f'layer {l}: ') and axis.get_xlabel() == 'channel'
    assert panels[0].get_ylabel() == 'token' and len(panels) == 3 and bar.get_ylabel()


# ---- layers


def by_hand(model, x, measure='paper', eps=None, threshold=0.0, part=2):
    """{(panel, layer): (mean, spread)}, from every sample by itself."""
    rate, usual = (measures.compressed_rate, 0.5) if measure == 'paper' else (measures.released_rate, 0.01)
    rates, shares, objectives = [], [], []
    with torch.no_grad():
        for i in range(len(x[0])):
            found = list(walk(model, *(t[i:i + 1] for t in x)))
            kept = [(a, torch.where(z.abs() > threshold, z, 0)) for a, *_, z in found]
            lam = getattr(model.config, 'lam', 0.1)
            objectives.append([measures.objective(z, heads_of(a, z, part), lam).item() for a, z in kept])
            rates.append([rate(heads_of(a, half if measure == 'paper' else normed, part), eps or usual).item()
                          for a, normed, _, half, _ in found])
            shares.append([sum(abs(v) > threshold for v in z.flatten().tolist()) / z.numel() for *_, z in found])
    return {(panel, l): (np.mean(v), np.std(v)) for panel, values in (('rate', rates), ('sparsity', shares),
            ('objective', objectives)) for l, v in enumerate(zip(*values), 1)
            if panel != 'sparsity' or not layers.why_not_sparse(model)}


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


def test_other_networks_stand_beside(place, look):
    rows, x = look('layers', 'crate', '--beside={place}/runs/vit,{place}/runs/aot_pictures'), inputs(place, 'crate')
    for name in ('crate', 'vit', 'aot_pictures'):
        for more, model in (('', load(place, name)), (', random weights', fresh(name))):
            same([row for row in rows if row['network'] == f'{place}/runs/{name}{more}'], by_hand(model, x))
    assert len(rows) == 2 * (9 + 9 + 6)
    rows = look('layers', 'crate', '--beside={place}/runs/crate/best.safetensors')  # one config: one random network
    assert [row['network'] for row in rows if row['weights'] == 'random'] == 9 * ['random weights'] and len(rows) == 27


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


def test_layers_show_one_of_three(look):
    for show in ('rate', 'objective', 'sparsity'):
        rows = look('layers', 'crate', f'--show={show}')
        assert {row['measure'] for row in rows} == {show} and len(rows) == 6
    assert len(look('layers', 'aot_text', '--show=rate')) == 6


def test_verdicts_are_what_the_table_says(look, capsys):
    rows, said = look('layers', 'crate', '--beside={place}/runs/vit'), capsys.readouterr().out.splitlines()
    verdicts = [line for line in said if line.startswith('here')]
    for line, measure, way in zip(verdicts, ('rate', 'sparsity', 'objective'), (-1, -1, 1), strict=True):
        mine = [row for row in rows if row['network'].endswith('runs/crate') and row['measure'] == measure]
        mine = [mean for mean, in floats(mine, 'mean')]
        assert f'in {sum(way * (b - a) > 0 for a, b in zip(mine, mine[1:]))} of 2 steps' in line


def test_what_is_printed_is_what_the_table_says(look, capsys):
    rows = look('layers', 'vit')
    rates = [float(row['mean']) for row in rows if row['weights'] == 'trained' and row['measure'] == 'rate']
    falls = sum(b < a for a, b in zip(rates, rates[1:]))
    said = next(line for line in capsys.readouterr().out.splitlines() if 'R^c' in line)
    assert f'{rates[0]:.4g}' in said and f'{rates[-1]:.4g}' in said and f'{falls} of 2' in said


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
        x = cropped(place, int(re.search(r'test (\d+), ', said)[1]))
    after = [z[0] for *_, z in walk(load(place, name), x)]
    assert len(rows) == 3 * 25 and all(len({row[k] for row in rows}) == 5 for k in ('token', 'channel'))
    for row in rows:
        l, n, i = (int(row[k]) - 1 for k in ('layer', 'token', 'channel'))
        assert float(row['value']) == pytest.approx(after[l][n, i].item(), rel=1e-4, abs=1e-4)
    share = [sum(v != 0 for v in z.flatten().tolist()) / z.numel() for z in after]
    printed = re.search(r'non-zeros +([.0-9]+) +([.0-9]+)', said).groups()
    assert [float(v) for v in printed] == pytest.approx([share[0], share[-1]], rel=1e-3)
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
    grey, first = visible(x[:, :1]), visible(x)
    assert (grey == grey[..., :1]).all() and np.array_equal(visible(x[:, :2]), grey)
    assert first.shape == (2, 4, 3, 3) == visible(x[:, :3]).shape and (first != first[..., :1]).any()
    assert np.array_equal(first, visible(x[:, :4]))


# ---- principal components


@torch.no_grad()
@pytest.mark.parametrize('name, words, part, keep', [
    ('crate', [], 1, 0.5), ('vit', [], 1, 0.5), ('vit', ['--part=value', '--keep=0.3'], 2, 0.3),
    ('crate_mae', [], 1, 0.5)])
def test_pca_by_a_singular_value_decomposition(name, words, part, keep, place, look):
    rows = look('pca', name, '--label=bee', '--num_samples=4', *words)
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
    assert kept.bool().tolist() == expected.tolist()
    three = torch.tensor(floats(rows, 'red', 'green', 'blue'), dtype=torch.float64)
    components = Z[expected] @ torch.linalg.svd(Z[expected])[2][:3].T
    assert (three[~expected] == 0).all() and torch.allclose(three[expected].abs(), components.abs(), atol=1e-2)


def test_pca_takes_the_first_class(look):
    assert {i % 3 for i in chosen(look('pca', 'crate', '--num_samples=5'))} == {0}
    assert len(chosen(look('pca', 'crate', '--num_samples=50'))) == 6  # there are no more


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
        before, after = denoising.signal_to_noise(model, x)
        found = numbers('denoise', 'before', 'after', 'factor', 'factor_spread')
        for row, b, a in zip(found, before, after, strict=True):
            assert row == pytest.approx((b.mean().item(), a.mean().item(), *mean_and_spread(a / b)), rel=2e-3, abs=1e-4)
        columns = [f'{part}{how}' for how in ('', '_released') for part in ('before', 'half', 'after')] + ['cosine']
        found = numbers('compress', *[column + end for column in columns for end in ('', '_spread')])
        for row, *parts in zip(found, *compression.rates_around_steps(model, x), strict=True):
            assert row == pytest.approx([v for part in parts for v in mean_and_spread(part)], rel=2e-3, abs=2e-3)


def test_the_verdict_of_compress_is_what_its_table_says(look, capsys):
    """In how many layers attention lowers R^c, by both measures."""
    rows = [row for row in look('compress', 'crate') if row['weights'] == 'trained']
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith('here')]
    for line, how in zip(said, ('', '_released'), strict=True):
        lower = sum(half < before for before, half in floats(rows, f'before{how}', f'half{how}'))
        assert f'in {lower} of 3 layers' in line


@torch.no_grad()
def test_what_ista_writes(place, look):
    rows = look('ista', 'crate', '--image={place}/FOLDER')
    x = torch.cat([cropped(place, i) for i in range(3)])
    for weights, model in (('trained', load(place, 'crate')), ('random', fresh('crate'))):
        mine = [row for row in rows if row['weights'] == weights]
        for row, layer, *values in zip(mine, model.layers, *sparsification.lasso_values(model, (x,)), strict=True):
            found, = floats([row], 'at_start', 'after_layer', 'minimum', 'at_zero')
            assert found == pytest.approx([v.mean().item() for v in values], rel=1e-2)
            start, end, least, _ = values
            found, = floats([row], 'share_of_the_way', 'share_spread', 'eta_norm2')
            step = 0.1 * torch.linalg.svdvals(layer.ista.D)[0].item() ** 2
            assert found == pytest.approx((*mean_and_spread((start - end) / (start - least)), step), rel=1e-2, abs=1e-3)


@torch.no_grad()
def test_what_ista_writes_of_a_layer_that_decodes(place, look):
    """The objective by a loop over tokens; from codes 0 to those of the layer, to a minimum that is reached."""
    rows = [row for row in look('ista', 'crate_alpha', '--image={place}/FOLDER') if row['weights'] == 'trained']
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
def test_sparsity_is_that_of_codes_where_they_are_decoded(place, look):
    rows = [row for row in look('layers', 'crate_alpha', '--show=sparsity') if row['weights'] == 'trained']
    assert all(0.05 < float(row['mean']) < 0.95 for row in rows) and len(rows) == 3
