"""analyze.py atoms: tables of units, sheets of pictures and text, units switched off, and bad input."""
import html
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers import fails, loud, save_run
from insides import CLASSES, inputs, kind_of, load, walk

import analyze
from analysis import atoms, units
from engine import networks as model_files, plots

UNITS = {'crate': 16, 'crate_mae': 16, 'crate_alpha': 64, 'gpt2': 64}


@pytest.fixture
def see(look):
    """A function that runs the command on a network, with enough text for it."""
    def see(name, *words):
        enough = [] if kind_of(name) == 'images' else ['--dataset=long', '--num_samples=60']
        return look('atoms', name, *enough, *words)
    return see


@pytest.fixture
def networks(place, tmp_path):
    """A function: the settings and the networks of a command line, as the command gets them."""
    def networks(name, *words):
        return analyze.read_networks('atoms', [f'--ckpt={place}/runs/{name}', f'--data_dir={place}/data',
                                               f'--out={tmp_path}/x.png', '--overwrite=true', *words])
    return networks


@pytest.fixture(scope='module')
def fine(tmp_path_factory):
    """The path of a run with other patches than the others, 8 x 6 of them."""
    torch.manual_seed(1)
    config = model_files.config_class('crate')(**CLASSES | dict(patch_size=(2, 4)))
    model = loud(model_files.network_class('crate')(config))
    meta = {'kind': 'images', 'classes': ['ant', 'bee', 'cat']}
    return save_run(tmp_path_factory.mktemp('fine') / 'fine', model, meta, dataset='pics', eval_crop=0.8)


def labels():
    return torch.arange(18) % 3


def rows_of(c, nets):
    """The rows of the table that the command writes."""
    with torch.no_grad(), plots.house_style():
        _, rows = atoms.draw_atoms(c, nets)
    return rows


# ---- tables


@pytest.mark.parametrize('name', ['crate_alpha', 'gpt2'])
def test_a_sheet_has_a_row_for_each_unit_of_each_layer(name, see, undrawn, tmp_path):
    rows = see(name)
    assert [(int(row['layer']), int(row['atom'])) for row in rows] == [
        (l, unit) for l in (1, 2, 3) for unit in range(1, UNITS[name] + 1)]
    assert all(-1 <= float(row['mcc']) <= 1 and float(row['lift']) > 0 for row in rows)
    assert not {row['is_dead'] for row in rows} - {'True', 'False'}
    assert len(undrawn) == 1 and len(undrawn[0].axes) == 18         # three layers of six units
    assert (tmp_path / 'x.html').exists() == (kind_of(name) == 'text')


def test_how_often_a_unit_is_on(see, place):
    rows = see('crate')
    with torch.no_grad():
        for l, (*_, after) in enumerate(walk(load(place, 'crate'), *inputs(place, 'crate'))):
            share = (after[:, 1:] > 0).float().mean((0, 1))         # without the class token
            found = [float(row['on']) for row in rows if row['layer'] == str(l + 1)]
            assert found == pytest.approx(share.tolist(), abs=1e-5)


def test_networks_of_other_widths_have_as_many_units(see, fine, capsys):
    see('crate', f'--beside={{place}}/runs/vit,{fine}')
    lines = capsys.readouterr().out.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith('network'))
    table = lines[first + 1:first + 19]  # 3 networks and their random weights, 3 layers each
    assert sum('random' in line for line in table) == 9 and 'random' not in table[8]
    for covers in ([int(re.split(r'\s{2,}', line)[column]) for line in table] for column in (7, 8)):
        assert max(covers) <= 16


def test_vectors_of_tokens_tell_what_a_token_is_and_not_where_it_stands(networks):
    c, nets = networks('gpt2', '--dataset=long')
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(2, (64, 12), generator=generator)
    places = torch.arange(12).expand(64, 12)
    has = {'one': x == 1, 'early': places < 6}
    for name, tells in (('one', True), ('early', False)):
        samples = atoms.Samples(x, x, places, [name], has[name][..., None])
        noise = torch.randn(64, 12, 8, generator=generator)
        row = atoms.score(c, [atoms.Seen(nets[0], samples, [noise], [0.5], [])])[-1]
        assert row['network'] == 'random vectors of tokens' and row['units'] == 8
        # a unit can be on for half of the tokens or fewer, so not every vector tells both of two tokens
        assert row['score'] > 0.3 if tells else abs(row['score']) < 0.15


def test_layers_may_have_different_numbers_of_units_and_large_ones(networks, undrawn):
    c, nets = networks('gpt2', '--dataset=long')
    with torch.no_grad():
        nets[0].model.layers[0].mlp.up.weight *= 1e6
    for net in nets:
        mlp = net.model.layers[1].mlp
        mlp.up = torch.nn.Linear(16, 24)
        mlp.down = torch.nn.Linear(24, 16)
    rows = rows_of(c, nets)
    assert [sum(row['layer'] == l for row in rows) for l in (1, 2, 3)] == [64, 24, 64]
    assert all(torch.isfinite(row['mcc']) for row in rows)


@pytest.mark.slow
def test_the_student_of_dino_has_units_but_no_loss(whole, pictures_data, table, capsys):
    words = ['atoms', f'--ckpt={whole("dino")}', f'--data_dir={pictures_data}', '--dataset=quads', '--split=train']
    c, nets = analyze.read_networks('atoms', words[1:])
    assert len(table(*words)) == sum(
        units.units_of(step).size(2) for step in atoms.layers.inside(nets[0].model, torch.randn(1, 3, 8, 8)))
    assert 'rise' not in capsys.readouterr().out
    assert 'leave --off out' in fails(capsys, analyze.main, *words, '--off=1:1')


# ---- figures


@pytest.mark.parametrize('name', ['crate', 'crate_mae', 'gpt2'])
def test_one_atom_in_depth(name, see, undrawn, tmp_path):
    assert len(see(name, '--layer=2', '--atom=3')) == 3 * UNITS[name]
    assert len(undrawn[0].axes) == (20 if kind_of(name) == 'images' else 10)
    assert (tmp_path / 'x.html').exists() == (kind_of(name) == 'text')


def test_patches_are_those_that_one_cuts_out():
    pictures = torch.rand(3, 2, 12, 20)
    patches = atoms.patches_of(pictures, torch.tensor([0, 7, 14]), (3, 5))
    assert torch.equal(patches, torch.stack([pictures[0, :, :4, :4], pictures[1, :, 4:8, 8:12],
                                             pictures[2, :, 8:, 16:]]))
    wider = atoms.patches_of(pictures, torch.tensor([0, 7, 14]), (3, 5), around=1)
    assert torch.equal(wider[1], pictures[1, :, :, 4:16])
    assert torch.equal(wider[0, :, 4:, 4:], pictures[0, :, :8, :8]) and not wider[0, :, :4].any()


@pytest.mark.slow
def test_a_page_shows_the_text_around_the_strongest_tokens(see, tmp_path, place):
    see('gpt2')
    page = (tmp_path / 'x.html').read_text()
    text = np.load(place / 'data' / 'long' / 'val.npy').astype(np.uint8).tobytes().decode()
    shown = [html.unescape(re.sub('<[^>]*>', '', line)) for line in page.splitlines() if line.startswith('<span')]
    assert len(shown) == 3 * 6 * 9
    one_line = text.replace('\n', '\\n')
    assert all(line in one_line for line in shown if line.isascii())
    assert page.count('rgba(0,114,178,0.50)') >= 3 * 6              # where a unit is strongest


@pytest.mark.slow
def test_what_a_user_named_is_not_replaced(place, tmp_path, capsys, undrawn):
    (tmp_path / 'mine.html').write_text('mine')
    words = ['atoms', f'--ckpt={place}/runs/gpt2', f'--data_dir={place}/data', '--dataset=long',
             f'--out={tmp_path}/mine.png']
    assert 'mine.html exists' in fails(capsys, analyze.main, *words)
    assert [path.name for path in tmp_path.iterdir()] == ['mine.html'] and not undrawn
    analyze.main([*words, '--overwrite=true'])
    assert (tmp_path / 'mine.html').read_text() != 'mine'


# ---- switched off


def known(net, x, y, has):
    """What a network has seen, with one concept that is known."""
    places = torch.arange(has.size(1)).expand(len(x), -1)
    samples = atoms.Samples(x, y, places, ['known'], has[..., None])
    return atoms.Seen(net, samples, [], [], [])


def test_the_effect_of_a_layer_without_any_unit(networks, place):
    """CRATE's layer returns its units, so without them the classifier sees zeros."""
    _, (net, *_) = networks('crate')
    x, = inputs(place, 'crate')
    bytes_of_x = atoms.augment.denormalize(x)
    has = torch.zeros(18, 12, dtype=torch.bool)
    has[[9, 11, 16], 4] = True
    with torch.no_grad():
        row = atoms.effect(known(net, bytes_of_x, labels(), has), '', {(3, u): 0.0 for u in range(1, 17)}, 'known')
        before = F.cross_entropy(net.model(x)[0], labels(), reduction='none')
        after = F.cross_entropy(net.model.read(torch.zeros(18, 13, 16))[0], labels(), reduction='none')
    assert row['norm'] == pytest.approx(1)
    assert row['loss'] == pytest.approx(before[9:].mean().item(), rel=1e-4)
    rise = after - before
    assert row['rise with it'] == pytest.approx(rise[[9, 11, 16]].mean().item(), rel=1e-3)
    assert row['rise without it'] == pytest.approx(rise[[10, 12, 13, 14, 15, 17]].mean().item(), rel=1e-3)


def test_the_effect_on_tokens_that_count(networks):
    _, (net, *_) = networks('gpt2', '--dataset=long')
    x = torch.randint(0, 256, (6, 12))
    y = torch.randint(0, 256, (6, 12))
    y[4, 3:] = -1
    has = torch.zeros(6, 12, dtype=torch.bool)
    has[3:, ::2] = True
    values = {(1, 4): 30.0, (2, 9): 30.0}
    with torch.no_grad():
        row = atoms.effect(known(net, x, y, has), '', values, 'known')
        loss = F.cross_entropy(net.model(x[3:])[0].flatten(0, 1), y[3:].flatten(), ignore_index=-1)
        with units.fixed(net.model, values):
            after = F.cross_entropy(net.model(x[3:])[0].flatten(0, 1), y[3:].flatten(), ignore_index=-1)
    assert row['loss'] == pytest.approx(loss.item(), rel=1e-4)
    counted, both = y[3:] >= 0, has[3:]
    rise = (row['rise with it'] * (counted & both).sum() + row['rise without it'] * (counted & ~both).sum())
    assert (rise / counted.sum()).item() == pytest.approx((after - loss).item(), rel=1e-3)


def test_a_unit_that_the_head_does_not_see_changes_nothing(networks, undrawn):
    c, nets = networks('gpt2', '--dataset=long', '--off=3:5', '--to=7')
    with torch.no_grad():
        nets[0].model.layers[2].mlp.down.weight[:, 4] = 0
    rows = rows_of(c, nets)
    assert rows[0]['norm'] == rows[0]['rise with it'] == rows[0]['rise without it'] == 0
    assert rows[2]['norm'] > 0 and rows[2]['rise with it'] != 0     # another unit


@pytest.mark.parametrize('left', [1, 16])
def test_the_others_at_random_are_none_of_those_that_are_off(left, networks, undrawn):
    """Where all units of a layer but one are off, the other one is that one, whose effect is known."""
    off = ','.join(f'2:{unit}' for unit in range(1, 17) if unit != left)
    effects = []
    for words in (off, f'2:{left}'):
        rows = rows_of(*networks('crate', f'--off={words}'))
        effects.append({row['off']: row['norm'] for row in rows})
    assert effects[0]['others, at random'] == effects[1]['these'] > 0


@pytest.mark.parametrize('name, others', [('crate', ['vit', 'fine', 'crate_mae']), ('gpt2', ['crate_gpt', 'crate_bert'])])
def test_beside_a_unit_stand_others_and_the_best_of_other_networks(name, others, see, fine, capsys):
    beside = ','.join(str(fine) if other == 'fine' else f'{{place}}/runs/{other}' for other in others)
    rows = see(name, '--off=2:3,2:5,3:1', f'--beside={beside}')
    assert [row['off'] for row in rows[:3]] == ['these', 'at their means', 'others, at random']
    assert len({row['concept'] for row in rows}) == 1
    for row in rows[3:]:  # of those that have a loss, and enough tokens with the concept
        assert re.match(f'({"|".join(others)}), [123]:[0-9]+$', row['off'])
        assert 'mae' not in row['off'] and 'bert' not in row['off']
    assert len(rows) >= 4
    said = capsys.readouterr().out
    assert ('changed: ' if name == 'gpt2' else 'mean probability of') in said


@pytest.mark.parametrize('chosen, last', [(0, 3), (1, 4), (2, 4)])
def test_a_network_without_a_unit_for_the_concept_has_no_row(chosen, last, networks):
    c, (net, *_) = networks('gpt2', '--dataset=long', '--off=1:1')
    x = torch.randint(0, 256, (4, 12))
    has = torch.rand(4, 12, 3) > 0.5
    samples = atoms.Samples(x, x, torch.arange(12).expand(4, -1), ['a', 'b', 'c'], has)

    def seen(*concepts):
        """What is seen of a network of three units in one layer that have these concepts."""
        numbers = torch.arange(3.0)
        scores = units.Scores(torch.tensor(concepts), numbers, numbers, numbers, numbers > 3)
        return atoms.Seen(net, samples, [torch.rand(4, 12, 3)], [0.5], [scores])

    with torch.no_grad():
        rows = atoms.effects_of(c, [seen(chosen, 0, 0), seen(1, 2, 1)], {(1, 1): 0.0})
    assert len(rows) == last
    assert last == 3 or rows[3]['off'].endswith(f'1:{[0, 3, 2][chosen]}')


def test_a_whole_layer_and_a_dead_one(networks, undrawn):
    c, nets = networks('crate', '--off=' + ','.join(f'2:{unit}' for unit in range(1, 17)))
    ista = nets[0].model.layers[1].ista
    torch.nn.init.zeros_(ista.D)
    ista.lam = 1e6                                                  # no unit is ever above zero
    rows = rows_of(c, nets)
    assert [row['off'] for row in rows] == ['these', 'at their means']  # no others are left
    assert all(row['rise with it'] == 0 for row in rows)


# ---- bad input


@pytest.mark.parametrize('name, words, said', [
    ('aot_text', '', 'CRATE'),
    ('crate', '--layer=-1', '3'),
    ('crate', '--atom=17', '1 to 16'),
    ('crate', '--atom=-1', ''),
    ('crate', '--off=1:1 --atom=2', 'leave'),
    ('crate', '--off=1:1 --layer=2', 'leave'),
    ('crate', '--to=3', '--off'),
    ('crate', '--atom=1 --dataset=bare', 'classes'),
    ('crate_mae', '--off=1:1', 'leave --off out'),
    ('crate_bert', '--off=1:1 --dataset=long', 'leave --off out'),
    ('crate', '--num_samples=1', '--num_samples'),
    ('gpt2', '--dataset=text', '--num_samples'),
    ('gpt2', '--dataset=long --start=ab', '--off'),
    ('crate', '--beside={place}/runs/aot_pictures', 'CRATE'),
])
def test_what_makes_no_sense_is_one_line(name, words, said, place, capsys, tmp_path, undrawn):
    words = words.format(place=place).split()
    line = fails(capsys, analyze.main, 'atoms', f'--ckpt={place}/runs/{name}', f'--data_dir={place}/data',
                 f'--out={tmp_path}/x.png', *words)
    assert said in line and not undrawn and not list(tmp_path.iterdir())


def test_an_atom_that_nothing_uses_is_one_line(networks):
    c, nets = networks('crate', '--layer=2', '--atom=5')
    nets[0].model.layers[1].ista.lam = 1e6
    with pytest.raises(atoms.Mistake, match='atom 5 is on for 0'):
        rows_of(c, nets)
