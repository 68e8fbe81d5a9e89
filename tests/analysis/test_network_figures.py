"""The tables of analyze.py hold what one computes, for every kind of network; and what figures say."""
import re

import numpy as np
import pytest
import torch
from insides import (chosen, cropped, floats, fresh, heads_of, inputs, layer_of, load, projections,
                     walk)
from matplotlib.text import Text
from torch.nn.functional import normalize

from analysis import layers, measures

# ---- what figures say


@pytest.mark.parametrize('command', ['layers', 'segment', 'objects', 'ista', 'denoise'])
def test_figures_name_each_network_and_what_is_compared_as_a_length_begins_at_0(command, look, undrawn, place):
    beside = 'crate_mae' if command in ('compress', 'denoise', 'ista') else 'vit'
    look(command, 'crate', f'--beside={place}/runs/{beside}', '--num_samples=3')
    assert {'crate', beside} <= {re.split('[,\n]', label.get_text())[0] for label in undrawn[-1].findobj(Text)}
    if command not in ('objects', 'ista'):
        lined = [axis for axis in undrawn[-1].axes if axis.lines and 'lambda' not in axis.get_title()]
        assert lined and all(axis.get_ylim()[0] == 0 for axis in lined)


# ---- layers


def by_hand(name, model, x, measure='paper', threshold=0.0, part=2):
    """{(column, layer): (mean, spread)}; tests/analysis/test_measures.py is about the measures."""
    found, lam = {}, getattr(model.config, 'lam', 0.1)
    with torch.no_grad():
        for l, (layer, (attention, normed, _, half, z)) in enumerate(zip(model.layers, walk(model, *x)), 1):
            U = torch.stack([U for U, _ in projections(attention, part)])           # without the biases of gpt2
            kept = torch.where(z.abs() > threshold, z, 0)
            found['objective', l] = measures.objective(kept, kept[:, None] @ U, lam)
            found['rate', l] = (measures.compressed_rate(half[:, None] @ U) if measure == 'paper' else
                                measures.released_rate(normed[:, None] @ U))
            if name not in ('aot_text', 'aot_pictures', 'functions'):
                # attention alone sets nothing to 0
                codes = layer.ista.code(layer.norm2(half)) if name == 'crate_alpha' else z
                found['sparsity', l] = (codes.abs() > threshold).double().mean((1, 2))
    return {k: mean_and_spread(values) for k, values in found.items()}


def mean_and_spread(values):
    return values.mean().item(), values.std(correction=0).item()


def same(rows, expected):
    """Fails unless the rows of one network hold what was computed by hand, and nothing else."""
    found = {(k, int(row['layer'])): (float(row[k]), float(row[f'{k}_spread']))
             for row in rows for k in ('rate', 'sparsity', 'objective') if row.get(k)}
    assert found.keys() == expected.keys()
    for k in expected:
        assert found[k] == pytest.approx(expected[k], rel=1e-3, abs=1e-4), k


@pytest.mark.parametrize('name, words, settings', [
    ('crate', ['--measure=released', '--threshold=0.3'], dict(measure='released', threshold=0.3)),
    ('vit', ['--part=query', '--measure=released'], dict(part=0, measure='released')),
    ('gpt2', ['--part=key'], dict(part=1)),
    ('functions', ['--dataset=sparse_linear', '--num_samples=7'], {}),
    ('crate_mae', [], {}), ('crate_bert', [], {}), ('crate_alpha', [], {}), ('aot_text', [], {})])
def test_layers_hold_what_one_computes(name, words, settings, place, look):
    rows, x = look('layers', name, '--seed=5', *words), inputs(place, name)
    kinds = {(row['network'], row['weights']) for row in rows}
    assert kinds == {(f'{place}/runs/{name}', 'trained'), ('random weights', 'random')}
    for weights, model in (('trained', load(place, name)), ('random', fresh(name, 5))):
        same([row for row in rows if row['weights'] == weights], by_hand(name, model, x, **settings))


def test_other_networks_stand_beside_and_see_the_same_data(place, look):
    names = 'crate', 'vit', 'aot_pictures', 'elsewhere'                 # the last was trained on another dataset
    rows = look('layers', 'crate', f'--beside={",".join(f"{place}/runs/{name}" for name in names[1:])}')
    x = inputs(place, 'crate')
    for name in names:
        same([row for row in rows if row['network'] == f'{place}/runs/{name}'], by_hand(name, load(place, name), x))
    for name in names[:3]:                                              # one with random weights for each config
        mine = [row for row in rows if row['network'] == f'{place}/runs/{name}, random weights']
        same(mine, by_hand(name, fresh(name), x))
    assert len(rows) == 7 * 3
    assert look('layers', 'elsewhere') != look('layers', 'elsewhere', '--dataset=pics')


# ---- each half of a layer; tests/test_look_inside.py has numbers of compress and denoise


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize('name', ['crate', 'crate_alpha'])
def test_ista_from_its_start_to_its_codes(name, place, look):
    """From relu(Y), or from codes 0 where the layer decodes, to the codes of the layer."""
    rows = look('ista', name, '--image={place}/FOLDER')
    rows = floats([row for row in rows if row['weights'] == 'trained'], 'at_start', 'after_layer',
                  'minimum', 'at_zero', 'share_of_the_way', 'eta_norm2')
    model = load(place, name)
    steps = walk(model, torch.cat([cropped(place, i) for i in range(3)]))
    for row, layer, (*_, half, after) in zip(rows, model.layers, steps, strict=True):
        y, ista = layer.norm2(half), layer.ista
        Y, D = y.double(), ista.D.double()
        empty = Y.new_zeros(*Y.shape[:-1], D.size(1))
        start, codes = (empty, ista.code(y)) if name == 'crate_alpha' else (Y.relu(), after)
        minimum = measures.lasso_minimizer(Y, D, ista.lam)
        start, end, least, zero = (measures.lasso_objective(Z.double(), Y, D, ista.lam).mean(1)
                                   for Z in (start, codes, minimum, empty))
        numbers = start, end, least, zero, (start - end) / (start - least)
        eta_norm2 = ista.eta * torch.linalg.svdvals(D)[0].item() ** 2
        expected = [number.mean().item() for number in numbers] + [eta_norm2]
        assert row == pytest.approx(expected, rel=1e-2, abs=1e-3)


# ---- subspaces, tokens


@torch.no_grad()
@pytest.mark.parametrize('name, words, part', [
    ('crate', [], 2), ('vit', ['--part=key'], 1), ('gpt2', [], 2)])
def test_subspaces_by_cosines_of_columns(name, words, part, place, look):
    rows = look('subspaces', name, '--directions=3', *words)
    for l, attention in enumerate(layers.attentions(load(place, name)), 1):
        columns = normalize(torch.cat([U.T for U, _ in projections(attention, part)]))  # (K p, d)
        G, p = (columns @ columns.T).abs(), len(columns) // 2
        mine = floats([row for row in rows if int(row['layer']) == l],
                      'coherence', 'value', 'head_i', 'column_i', 'head_j', 'column_j')
        coherence = G[:p, p:].mean() / torch.stack([G[:p, :p], G[p:, p:]]).mean()
        assert [row[0] for row in mine] == pytest.approx(36 * [coherence.item()], rel=1e-4)
        i, j = (np.array(mine, int)[:, 2:].reshape(36, 2, 2) @ (p, 1) - p - 1).T
        assert [row[1] for row in mine] == pytest.approx(G[i, j].numpy(), abs=1e-5)
        assert set(i) == set(j) and [len(set(i[i < p])), len(set(i[i >= p]))] == [3, 3]


@torch.no_grad()
@pytest.mark.parametrize('name', ['crate', 'crate_bert', 'gpt2'])
def test_tokens_are_where_the_table_says(name, place, look):
    given = {'crate': '--image={place}/FOLDER/1.png', 'crate_bert': '--start=a [MASK] b',
             'gpt2': '--start=a subspace'}[name]
    x = {'crate': cropped(place, 1), 'crate_bert': torch.tensor([[*b'a ', 256, *b' b']]),
         'gpt2': torch.tensor([list(b'a subspace')])}[name]
    rows, after = look('tokens', name, '--size=5', given), [z[0] for *_, z in walk(load(place, name), x)]
    assert len(rows) == 3 * 25 and all(len({row[k] for row in rows}) == 5 for k in ('token', 'channel'))
    l, n, i = np.array(floats(rows, 'layer', 'token', 'channel'), int).T - 1
    assert [value for value, in floats(rows, 'value')] == pytest.approx(torch.stack(after)[l, n, i], rel=1e-4, abs=1e-4)
    assert len(look('tokens', name, given)) == 3 * 16 * len(after[0])   # all, since there are no 50
    assert look('tokens', name, '--size=5', '--seed=9', given) != rows


# ---- attention


def scores_of(attention, normed):
    """The scores of each head for the tokens of one sample (N, d): (K, N, N)."""
    q, k = (heads_of(attention, normed, part) for part in (0, 1))
    return q @ k.mT / q.size(-1) ** 0.5


@torch.no_grad()
@pytest.mark.parametrize('name', ['crate', 'vit', 'crate_mae'])
def test_attention_of_the_class_token(name, place, look):
    rows = look('attention', name, '--num_samples=2')
    assert [(row['row'], row['column']) for row in rows[:4]] == [('1', '1'), ('1', '2'), ('1', '3'), ('2', '1')]
    assert [row['head'] for row in rows] == 2 * (12 * ['1'] + 12 * ['2']) and {row['layer'] for row in rows} == {'2'}
    for i, found in zip(chosen(rows), torch.tensor(floats(rows, 'weight')).view(2, 2, 12), strict=True):
        expected = scores_of(*layer_of(place, name, i, 1))[:, 0, 1:].softmax(-1)
        assert torch.allclose(found, expected, rtol=1e-3, atol=1e-5) and found.amax() > 1.2 / 12


@torch.no_grad()
@pytest.mark.parametrize('name', ['gpt2', 'crate_bert'])
def test_attention_in_a_text(name, place, look):
    shown = ['a', '[MASK]' if name == 'crate_bert' else ' ', "'", '"', '$', '\\n']
    rows = look('attention', name, f'--start={"".join(shown)}', '--layer=3')
    x = torch.tensor([[256 if t == '[MASK]' else ord(t.replace('\\n', '\n')) for t in shown]])
    attention, normed, *_ = list(walk(load(place, name), x))[2]
    assert {row['layer'] for row in rows} == {'3'}
    assert [(row['query_token'], row['key_token']) for row in rows] == 2 * [(q, k) for q in shown for k in shown]
    expected = layers.weights(attention, normed)  # which tests/test_contracts.py tests
    found = [weight for weight, in floats(rows, 'weight')]
    assert found == pytest.approx(expected.flatten(), abs=1e-5)


def test_a_text_of_the_dataset_where_none_is_given(place, look):
    rows, ids = look('attention', 'crate_gpt'), np.load(place / 'data' / 'text' / 'val.npy')
    shown = [repr(bytes([i]).decode('utf-8', 'replace'))[1:-1] for i in ids[:12]]
    assert [row['key_token'] for row in rows[:12]] == shown and len(rows) == 2 * 12 * 12


def test_heads_and_layers_are_chosen(look):
    rows = look('attention', 'crate', '--heads=1,2', '--layer=1', '--num_samples=1')
    assert [(row['layer'], row['head']) for row in rows] == 12 * [('1', '1')] + 12 * [('1', '2')]
    assert look('attention', 'crate', '--heads=2', '--layer=1', '--num_samples=1') == rows[12:]
    assert look('attention', 'gpt2', '--heads=2', '--start=abc') == look('attention', 'gpt2', '--start=abc')[9:]


# ---- principal components


@torch.no_grad()
@pytest.mark.parametrize('name, words, part, keep', [
    ('crate', [], 1, 0.5), ('vit', ['--part=value', '--keep=0.3'], 2, 0.3)])
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
    assert (three.sum(0) >= 0).all()


def test_pca_takes_the_first_class(look):
    assert {i % 3 for i in chosen(look('pca', 'crate', '--num_samples=5'))} == {0}
    assert len(chosen(look('pca', 'crate', '--num_samples=40'))) == 6  # there are no more
