"""analyze.py: what it writes is what one computes, for every kind of network; what it cannot do, it says in one line."""
import csv
import dataclasses
import math
import re
import sys

import conftest
import numpy as np
import pytest
import torch
from conftest import TEXT as WORDS
from conftest import fails
from PIL import Image

import analyze
from tasks import augment
from tasks import files as data
from analysis import layers as inside
from analysis import measures
from engine import checkpoints as models
from engine import run as rundir
from model_aot import AoT, AoTConfig
from model_crate import CRATE, CRATEConfig
from model_crate_mae import CRATEMAE, CRATEMAEConfig
from model_vit import ViT, ViTConfig, ViTMAE, ViTMAEConfig
from prepare.lib.pictures import save_arrays
from tasks.tokenizer import Tokenizer

SMALL = dict(n_layer=3, n_head=2, n_embd=16)
PICTURES = dict(image_size=(16, 24), patch_size=(4, 8), **SMALL)  # 4 patches down, 3 across
TEXT = dict(block_size=12, vocab_size=256, **SMALL)
NETWORKS = {
    'crate': (CRATE, CRATEConfig(**PICTURES, num_classes=3, head_dim=5)), 'vit': (ViT, ViTConfig(**PICTURES, num_classes=3)),
    'crate_mae': (CRATEMAE, CRATEMAEConfig(**PICTURES)),
    'vit_mae': (ViTMAE, ViTMAEConfig(**PICTURES, decoder_n_layer=1, decoder_n_head=2, decoder_n_embd=16)),
    'aot_pictures': (AoT, AoTConfig(**PICTURES, num_classes=3)), 'aot_text': (AoT, AoTConfig(**TEXT)),
    'gpt2': (AoT, AoTConfig(**TEXT, attn='mhsa', mlp=True, bias=True)), 'crate_gpt': (CRATE, CRATEConfig(image_size=0, **TEXT)),
    'crate_bert': (CRATE, CRATEConfig(image_size=0, causal=False, **TEXT | {'vocab_size': 257})),
    'functions': (AoT, AoTConfig(**TEXT, n_dims=5))}
OTHERS = {  # which some tests alone need
    'letters': (AoT, AoTConfig(**TEXT | {'vocab_size': 5})),
    'one_head': (CRATE, CRATEConfig(**PICTURES | {'n_head': 1}, num_classes=3)),
    'wide': (CRATE, CRATEConfig(**PICTURES | {'image_size': (18, 30), 'patch_size': (9, 10)}, num_classes=3)),
    'elsewhere': (ViT, ViTConfig(**PICTURES, num_classes=3)),
    'soft': (CRATE, CRATEConfig(**PICTURES, num_classes=3, ista='soft'))}
THREE = 'vit', 'vit_mae', 'gpt2'  # projections a head, so there is no one subspace
OFFICIAL = '--model=crate', '--n_head=2', '--image_size=16,24', '--patch_size=4,8'  # what an official file does not say
KIND = {name: models.reads(config) for name, (_, config) in (NETWORKS | OTHERS).items()}


def loud(name):
    """A network whose attention is far from uniform."""
    Model, config = (NETWORKS | OTHERS)[name]
    torch.manual_seed(0)
    return conftest.loud(Model(config))


@pytest.fixture(scope='session')
def place(tmp_path_factory):
    """Runs of random weights, an official file, datasets and pictures. Pictures are 20 x 30; the runs' eval_crop of 0.8 leaves
    the 16 x 24 in the middle of them as they are. Text has six sequences of 12."""
    place = tmp_path_factory.mktemp('place')
    rng, labels = np.random.default_rng(0), np.arange(18) % 3
    arrays = rng.integers(0, 256, (18, 20, 30, 3), np.uint8), labels, rng.random((18, 20, 30)) < 0.4
    save_arrays(place / 'data' / 'pics', {'train': arrays, 'test': arrays}, ['ant', 'bee', 'cat'])
    dark = arrays[0] // 2, labels  # no masks, and no dog
    save_arrays(place / 'data' / 'bare', {'train': dark, 'test': dark}, ['ant', 'bee', 'cat', 'dog'])
    for name, tokenizer, text in (('text', Tokenizer('bytes'), WORDS),
                                  ('letters', Tokenizer('chars', 'abc\n'), 40 * 'abca\nb')):
        ids = tokenizer.encode(text)
        data.save_text(place / 'data' / name, tokenizer, {'train': ids[73:200], 'val': ids[:73]}, {'train': 127, 'val': 73})
    for name in NETWORKS | OTHERS:
        model, dataset = loud(name), {'images': 'pics', 'text': 'text', 'functions': 'linear'}[KIND[name]]
        meta = {'images': {'classes': ['ant', 'bee', 'cat']}, 'text': {'tokenizer': {'name': 'bytes'}}}.get(KIND[name], {})
        if name == 'elsewhere':
            dataset = 'bare'
        if name == 'letters':
            dataset, meta = name, {'tokenizer': {'name': 'chars', 'alphabet': 'abc\n'}}
        weights = model.state_dict()
        (place / 'runs' / name).mkdir(parents=True)
        rundir.save(place / 'runs' / name / 'best.pt', dict.fromkeys(rundir.KEYS, {}) | {
            'weights': {k: torch.zeros_like(v) for k, v in weights.items()} if name == 'crate' else weights,
            'ema': weights if name == 'crate' else None,  # the average is what one looks at
            'model_config': dataclasses.asdict(model.config), 'data': {'kind': KIND[name]} | meta, 'step': 0,
            'config': {'model': {CRATE: 'crate', AoT: 'aot', ViT: 'vit', CRATEMAE: 'crate_mae', ViTMAE: 'vit_mae'}[type(model)],
                       'dataset': dataset, 'eval_crop': 0.8, 'sparsity': 3}})
    torch.save({'state_dict': loud('crate').to_official()}, place / 'official.pth')
    (place / 'FOLDER').mkdir()
    for i in range(3):
        Image.fromarray(arrays[0][i]).save(place / 'FOLDER' / f'{i}.png')
    return place


@pytest.fixture
def quick(monkeypatch):
    """Pictures are not drawn, for this takes half a second; the numbers are what is looked at."""
    import matplotlib.figure
    monkeypatch.setattr(matplotlib.figure.Figure, 'savefig', lambda self, f, **settings: f.write(b'a picture'))


@pytest.fixture
def look(place, tmp_path, quick):
    """Draws, and gives back the rows of the table. Names of runs are those of NETWORKS."""
    def look(command, name, *words):
        out = tmp_path / 'x.png'
        analyze.main([command, f'--ckpt={place}/runs/{name}', f'--data_dir={place}/data', f'--out={out}', '--overwrite=true',
                      *[w.format(place=place) for w in words]])
        return list(csv.DictReader((tmp_path / 'x.csv').open(newline='')))
    return look


# ---- another way to compute: layers by their modules, heads by slices of the weights ----------------------------------


def cropped(place, i):
    """Picture i of `pics` as a network sees it, (1, 3, 16, 24)."""
    picture = np.load(place / 'data' / 'pics' / 'test.images.npy')[i, 2:18, 3:27]
    return augment.normalize(torch.tensor(picture.astype(np.float32)).permute(2, 0, 1)[None])


def inputs(place, name):
    """All of the test split's pictures, or of the val split's text."""
    if KIND[name] == 'images':
        return torch.cat([cropped(place, i) for i in range(18)]),
    return torch.tensor(np.load(place / 'data' / 'text' / 'val.npy')[:72].astype(np.int64)).view(6, 12),


def walk(model, *x):
    """Layer by layer: attention, LN(Z^l), Z^l, Z^(l+1/2), Z^(l+1)."""
    name = 'embed_examples' if len(x) == 2 else 'embed_pictures' if x[0].dim() == 4 else 'embed'
    z = getattr(model, name, model.embed)(*x)
    for layer in model.layers:
        attention = layer.mssa if hasattr(layer, 'mssa') else layer.attn
        normed = (layer.norm1 if hasattr(layer, 'norm1') else layer.norm)(z)
        half = z + attention(normed)
        if hasattr(layer, 'ista'):
            after = layer.ista(layer.norm2(half))
        elif hasattr(layer, 'mlp'):
            after = half + layer.mlp((layer.norm2 if hasattr(layer, 'norm2') else layer.norm_mlp)(half))
        else:
            after = half
        yield attention, normed, z, half, after
        z = after


def projections(attention, part):
    """[(matrix (d, p), bias) of every head]; part: 0 query, 1 key, 2 value."""
    maps, part = (attention.U, 0) if hasattr(attention, 'U') else (attention.QKV, part)
    p = len(maps.weight) // attention.K // (1 if hasattr(attention, 'U') else 3)
    first = [(part * attention.K + k) * p for k in range(attention.K)]
    return [(maps.weight[i:i + p].T, 0 if maps.bias is None else maps.bias[i:i + p]) for i in first]


def heads_of(attention, z, part=2):
    """Tokens (.., N, d) as each head sees them, (.., K, N, p)."""
    return torch.stack([z @ U + b for U, b in projections(attention, part)], -3)


def softmax_of(attention, normed, k, n, among):
    """Weights of head k for token n of one sample (N, d), among the tokens listed."""
    q, key = (heads_of(attention, normed, part)[k].tolist() for part in (0, 1))
    scores = [math.exp(sum(a * b for a, b in zip(q[n], key[m])) / math.sqrt(len(q[n]))) for m in among]
    return [s / sum(scores) for s in scores]


def load(place, name, **overrides):
    return models.load_model(rundir.load_checkpoint(place / 'runs' / name), **overrides)


def fresh(name, seed=1337):
    Model, config = NETWORKS[name]
    torch.manual_seed(seed)
    return Model(config).eval()


def chosen(rows):
    """The numbers of the pictures that a table is about, in its order."""
    return list(dict.fromkeys(int(re.match(r'test (\d+), ', row['picture'])[1]) for row in rows))


def floats(rows, *columns):
    return [tuple(float(row[k]) for k in columns) for row in rows]


# ---- every command, every network -------------------------------------------------------------------------------------


def why_not(command, name):
    """What a user is told where a command has no meaning for a network."""
    kind = KIND.get(name, 'images')
    if command in ('pca', 'segment') and kind != 'images':
        return f'{command} is for pictures'
    if command in ('tokens', 'attention') and kind == 'functions':
        return 'for pictures and texts'
    if command == 'ista' and 'crate' not in name and name != 'official':
        return 'no ISTA'
    return 'no subspace' if command in ('denoise', 'compress') and name in THREE else ''


@pytest.mark.parametrize('name', [*NETWORKS, 'official'])
@pytest.mark.parametrize('command', analyze.COMMANDS)
def test_every_command_on_every_network(command, name, place, tmp_path, capsys, monkeypatch, request):
    real = (name, command) in [('crate', c) for c in analyze.COMMANDS] + [('crate_bert', 'attention')]
    if not real:
        request.getfixturevalue('quick')
    monkeypatch.chdir(tmp_path)
    before = {p: p.stat().st_mtime_ns for p in place.rglob('*')}
    words = [command, f'--ckpt={place}/runs/{name}', f'--data_dir={place}/data']
    if name == 'official':
        words[1:2] = [f'--official={place}/official.pth', *OFFICIAL]
        words += ['--dataset=pics'] * (command != 'subspaces')
    if command in ('layers', 'pca', 'segment', 'denoise', 'compress', 'ista'):
        words += ['--num_samples=2']
    if why_not(command, name):
        error = fails(capsys, analyze.main, *words)
        assert why_not(command, name) in error and name in error and not list(tmp_path.iterdir())
        return
    analyze.main(words)
    lines = capsys.readouterr().out.splitlines()
    assert [line.startswith('to see: ') for line in lines].count(True) == 1 and lines[-1] == f'{command}.png, {command}.csv'
    assert sorted(p.name for p in tmp_path.iterdir()) == [f'{command}.csv', f'{command}.png']
    assert before == {p: p.stat().st_mtime_ns for p in place.rglob('*')}
    rows = list(csv.reader((tmp_path / f'{command}.csv').open(newline='')))
    assert len(rows) > 3 and {len(row) for row in rows} == {len(rows[0])} and not {'nan', 'inf', '-inf'} & set(sum(rows, []))
    if real:
        with Image.open(tmp_path / f'{command}.png') as picture:
            assert min(picture.size) > 150 and len(picture.convert('RGB').getcolors(2 ** 24)) > 20


def test_an_official_file_is_seen_as_the_run_that_it_came_from(place, tmp_path, look):
    official = [f'--official={place}/official.pth', *OFFICIAL, f'--out={tmp_path}/o.png', '--overwrite=true']
    analyze.main(['layers', *official, f'--image={place}/FOLDER'])
    files = torch.tensor(np.load(place / 'data' / 'pics' / 'test.images.npy')[:3])
    x = augment.eval_pictures(files, torch.tensor(3 * [[20, 30]]), (16, 24), 0.875)  # the crop that is usual
    rows = list(csv.DictReader((tmp_path / 'o.csv').open(newline='')))
    same([row for row in rows if row['weights'] == 'trained'], by_hand(load(place, 'crate'), (x,)))
    analyze.main(['subspaces', *official])
    look('subspaces', 'crate')
    ours, theirs = ((tmp_path / f'{n}.csv').read_text() for n in 'xo')
    assert ours.replace(f'{place}/runs/crate', '') == theirs.replace(f'{place}/official.pth', '')


def test_an_official_file_stands_beside_a_run_of_ours(place, tmp_path, quick):
    """--model and --n_head are the file's: a run of ours says its own."""
    for beside in ('crate', 'vit', 'one_head'):
        analyze.main(['layers', f'--official={place}/official.pth', *OFFICIAL, f'--beside={place}/runs/{beside}',
                      '--dataset=pics', f'--data_dir={place}/data', f'--out={tmp_path}/{beside}.png'])
        assert f'{place}/runs/{beside},trained' in (tmp_path / f'{beside}.csv').read_text()


# ---- layers -----------------------------------------------------------------------------------------------------------


def by_hand(model, x, measure='paper', eps=None, threshold=0.0, part=2):
    """{(panel, layer): (mean, spread)} of every sample by itself."""
    rate, usual = (measures.compressed_rate, 0.5) if measure == 'paper' else (measures.released_rate, 0.01)
    rates, shares = [], []
    with torch.no_grad():
        for i in range(len(x[0])):
            found = list(walk(model, *(t[i:i + 1] for t in x)))
            rates.append([rate(heads_of(a, half if measure == 'paper' else normed, part), eps or usual).item()
                          for a, normed, _, half, _ in found])
            shares.append([sum(abs(v) > threshold for v in z.flatten().tolist()) / z.numel() for *_, z in found])
    return {(panel, l): (np.mean(v), np.std(v)) for panel, values in (('rate', rates), ('sparsity', shares))
            for l, v in enumerate(zip(*values), 1)}


def same(rows, expected, rel=1e-3):
    """Rows of one network hold what was computed by hand, and nothing else of it."""
    found = {(row['measure'], int(row['layer'])): (float(row['mean']), float(row['spread'])) for row in rows}
    assert found.keys() == expected.keys() and len(rows) == len(expected)
    for k in expected:
        assert found[k] == pytest.approx(expected[k], rel=rel, abs=1e-4), k


@pytest.mark.parametrize('name, words, settings', [
    ('crate', [], {}), ('crate', ['--measure=released', '--threshold=0.3'], dict(measure='released', threshold=0.3)),
    ('crate', ['--eps=0.1'], dict(eps=0.1)), ('crate', ['--measure=released', '--eps=0.1'], dict(measure='released', eps=0.1)),
    ('vit', [], {}), ('vit', ['--part=query', '--measure=released'], dict(part=0, measure='released')), ('vit_mae', [], {}),
    ('crate_mae', [], {}), ('crate_gpt', [], {}), ('crate_bert', [], {}), ('gpt2', ['--part=key'], dict(part=1)),
    ('aot_text', [], {}), ('aot_pictures', [], {})])
def test_layers_hold_what_a_loop_over_samples_finds(name, words, settings, place, look):
    rows, x = look('layers', name, '--seed=5', *words), inputs(place, name)
    assert {(r['network'], r['weights']) for r in rows} == {(f'{place}/runs/{name}', 'trained'), ('random weights', 'random')}
    for weights, model in (('trained', load(place, name)), ('random', fresh(name, 5))):
        expected = by_hand(model, x, **settings)
        if 'aot' in name:  # where nothing sets numbers to zero
            expected = {k: v for k, v in expected.items() if k[0] == 'rate'}
        same([row for row in rows if row['weights'] == weights], expected)


def test_layers_of_prompts(place, look, monkeypatch):
    """Linear functions of 5 numbers, and each network sees the same."""
    seen, real = [], inside.layer_measures
    monkeypatch.setattr(inside, 'layer_measures', lambda model, x, *more: seen.append((model, x)) or real(model, x, *more))
    rows = look('layers', 'functions', '--num_samples=7')
    (trained, x), (random, again) = seen
    assert all(torch.equal(a, b) for a, b in zip(x, again)) and x[0].shape == (7, 6, 5) and (x[0][..., -1] != 0).all()
    w = torch.linalg.lstsq(x[0][:, :5], x[1][:, :5, None]).solution
    assert torch.allclose((x[0][:, 5:] @ w)[:, 0, 0], x[1][:, 5], atol=1e-2)
    for weights, model in (('trained', load(place, 'functions')), ('random', fresh('functions'))):
        expected = {k: v for k, v in by_hand(model, x).items() if k[0] == 'rate'}
        same([row for row in rows if row['weights'] == weights], expected)
    look('layers', 'functions', '--num_samples=3', '--dataset=sparse_linear')
    x, y = seen[-1][1]
    w = torch.linalg.lstsq(x[:, :5], y[:, :5, None]).solution[..., 0]
    assert ((w.abs() > 1e-3).sum(1) <= 3).all()


def test_other_networks_stand_beside(place, look, capsys):
    rows = look('layers', 'crate', '--beside={place}/runs/vit,{place}/runs/aot_pictures')
    x = inputs(place, 'crate')
    for name in ('crate', 'vit', 'aot_pictures'):
        for more, model in (('', load(place, name)), (', random weights', fresh(name))):
            expected = by_hand(model, x)
            if name == 'aot_pictures':
                expected = {k: v for k, v in expected.items() if k[0] == 'rate'}
            same([row for row in rows if row['network'] == f'{place}/runs/{name}{more}'], expected)
    assert len(rows) == 2 * (6 + 6 + 3)
    said = capsys.readouterr().out
    assert len(re.findall('R\\^c [0-9]', said)) == 6 and len(re.findall('non-zeros [0-9]', said)) == 4
    rows = look('layers', 'crate', '--beside={place}/runs/crate/best.pt')  # the same architecture: one of random weights
    assert [row['network'] for row in rows if row['weights'] == 'random'] == 6 * ['random weights'] and len(rows) == 18


def test_all_networks_see_the_first_ones_data(look):
    rows = look('layers', 'crate', '--beside={place}/runs/elsewhere')  # which was trained on `bare`
    alone = look('layers', 'elsewhere', '--dataset=pics')
    assert [r for r in rows if r['network'].endswith('elsewhere')] == [r for r in alone if r['weights'] == 'trained']
    assert alone != look('layers', 'elsewhere')


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


@pytest.mark.parametrize('command, name', [
    ('layers', 'crate'), ('layers', 'gpt2'), ('layers', 'functions'), ('segment', 'vit'), ('denoise', 'crate'),
    ('denoise', 'crate_bert'), ('denoise', 'functions')])
def test_nothing_depends_on_the_batch_size(command, name, look):
    tables = [look(command, name, '--num_samples=5', f'--batch_size={b}') for b in (3, 64, 1)]
    for other in tables[1:]:
        for a, b in zip(tables[0], other, strict=True):
            for k in a:
                try:
                    assert float(a[k]) == pytest.approx(float(b[k]), rel=1e-3, abs=1e-5), k
                except ValueError:
                    assert a[k] == b[k]


@pytest.mark.parametrize('name', ['crate', 'gpt2', 'functions'])
@pytest.mark.parametrize('batch', [2, 5, 64])
def test_as_many_samples_as_asked_for(name, batch, look, monkeypatch):
    seen, real = [], inside.layer_measures
    monkeypatch.setattr(inside, 'layer_measures', lambda model, x, *more: seen.append(x[0]) or real(model, x, *more))
    look('layers', name, '--num_samples=5', f'--batch_size={batch}')
    assert sum(map(len, seen)) == 10 and max(map(len, seen)) <= batch  # of two networks
    assert len({tuple(x.flatten().tolist()) for x in torch.cat(seen)}) == 5


# ---- subspaces, tokens ------------------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize('name, words, part', [
    ('crate', [], 2), ('vit', ['--part=key'], 1), ('gpt2', [], 2), ('functions', [], 2), ('crate_mae', [], 2)])
def test_subspaces_by_a_loop_over_columns(name, words, part, place, look):
    rows = look('subspaces', name, '--directions=3', *words)
    for model, column in ((load(place, name), 'coherence'), (fresh(name), 'coherence_random')):
        for l, attention in enumerate(inside.attentions(model), 1):
            U = [U.T.tolist() for U, _ in projections(attention, part)]                       # U[k][j] is column j of head k

            def overlap(a, b):
                return abs(sum(x * y for x, y in zip(a, b))) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))
            apart = [overlap(a, b) for i, j in ((0, 1), (1, 0)) for a in U[i] for b in U[j]]
            together = [overlap(a, b) for i in (0, 1) for a in U[i] for b in U[i]]
            mine = [row for row in rows if int(row['layer']) == l]
            assert {round(float(row[column]), 5) for row in mine} == {round(np.mean(apart) / np.mean(together), 5)}
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
    start = [] if KIND[name] == 'images' else ['--start=a [MASK] b' if name == 'crate_bert' else '--start=a subspace']
    rows, said = look('tokens', name, '--size=5', *start), capsys.readouterr().out
    if start:
        x = torch.tensor([[*b'a ', 256, *b' b'] if name == 'crate_bert' else list(b'a subspace')])
    else:
        x = cropped(place, int(re.search(r'to see: test (\d+), ', said)[1]))
    model = load(place, name)
    after = [z[0] for *_, z in walk(model, x)]
    assert len(rows) == 3 * 25 and len({row['token'] for row in rows}) == 5 and len({row['channel'] for row in rows}) == 5
    for row in rows:
        l, n, i = (int(row[k]) - 1 for k in ('layer', 'token', 'channel'))
        assert float(row['value']) == pytest.approx(after[l][n, i].item(), abs=1e-4)
    share = [sum(v != 0 for v in z.flatten().tolist()) / z.numel() for z in after]
    assert f'{share[0]:.1%} are not zero after layer 1, {share[-1]:.1%} after layer 3' in said
    assert len(look('tokens', name, *start)) == 3 * 16 * len(after[0])  # there are no 50
    assert look('tokens', name, '--size=5', '--seed=9', *start) != rows


# ---- attention --------------------------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize('name', ['crate', 'vit', 'crate_mae', 'vit_mae', 'aot_pictures'])
def test_attention_of_the_class_token_by_a_loop(name, place, look):
    model, rows = load(place, name), look('attention', name, '--num_samples=2')
    assert len(chosen(rows)) == 2 and len(rows) == 2 * 2 * 12 and {row['layer'] for row in rows} == {'2'}  # the last but one
    assert [(row['row'], row['column']) for row in rows[:4]] == [('1', '1'), ('1', '2'), ('1', '3'), ('2', '1')]
    attentions = {i: list(walk(model, cropped(place, i)))[1] for i in chosen(rows)}
    for i, (attention, normed, *_) in attentions.items():
        for k in (0, 1):
            mine = [float(r['weight']) for r in rows if r['picture'].startswith(f'test {i},') and int(r['head']) == k + 1]
            assert mine == pytest.approx(softmax_of(attention, normed[0], k, 0, range(1, 13)), rel=1e-3, abs=1e-5)
            assert sum(mine) == pytest.approx(1, abs=1e-5) and max(mine) > 1.2 / 12
    for row in rows:
        i = int(row['picture'].split()[1][:-1])
        assert row['picture'] == f'test {i}, {["ant", "bee", "cat"][i % 3]}'


@torch.no_grad()
@pytest.mark.parametrize('name', ['aot_text', 'gpt2', 'crate_gpt', 'crate_bert'])
def test_attention_in_a_text_by_a_loop(name, place, look):
    shown = ['a', '[MASK]' if name == 'crate_bert' else ' ', "'", '"', '$', '\\n']
    start = ''.join(shown)
    model, rows, N = load(place, name), look('attention', name, f'--start={start}', '--layer=3'), len(shown)
    x = torch.tensor([[256 if t == '[MASK]' else ord(t.replace('\\n', '\n')) for t in shown]])
    attention, normed, *_ = list(walk(model, x))[2]
    assert len(rows) == 2 * N * N and {row['layer'] for row in rows} == {'3'}
    for row in rows:
        i, j = int(row['query']) - 1, int(row['key']) - 1
        assert (row['query_token'], row['key_token']) == (shown[i], shown[j])
    for k in (0, 1):
        for i in range(N):
            mine = [float(row['weight']) for row in rows if (int(row['head']), int(row['query'])) == (k + 1, i + 1)]
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
    assert look('attention', 'gpt2', '--heads=2', '--start=abc') == look('attention', 'gpt2', '--start=abc', '--layer=2')[9:]
    assert look('pca', 'vit', '--layer=1') != look('pca', 'vit') == look('pca', 'vit', '--layer=2')


# ---- pictures of one's own --------------------------------------------------------------------------------------------


@torch.no_grad()
def test_pictures_of_ones_own(place, look):
    rows = look('attention', 'crate', '--image={place}/FOLDER')
    assert list(dict.fromkeys(row['picture'] for row in rows)) == ['0.png', '1.png', '2.png']
    one = look('attention', 'crate', '--image={place}/FOLDER/1.png')
    assert one == [row for row in rows if row['picture'] == '1.png']
    attention, normed, *_ = list(walk(load(place, 'crate'), cropped(place, 1)))[1]  # which is picture 1 of the dataset
    weights = [float(row['weight']) for row in one[12:]]
    assert weights == pytest.approx(softmax_of(attention, normed[0], 1, 0, range(1, 13)), rel=1e-3)
    same([row for row in look('layers', 'crate', '--image={place}/FOLDER') if row['weights'] == 'trained'],
         by_hand(load(place, 'crate'), (torch.cat([cropped(place, i) for i in range(3)]),)))
    for command, n in (('pca', 3 * 12), ('denoise', 2 * 3), ('tokens', 3 * 13 * 16)):
        assert len(look(command, 'crate', '--image={place}/FOLDER')) == n
    rows = look('attention', 'crate', '--image={place}/data/pics', '--num_samples=3')  # a dataset is a folder too
    names = {row['picture'] for row in rows}
    assert len(names) == 3 and all(re.fullmatch(r'test \d+, (ant|bee|cat)', name) for name in names)


def test_a_folder_gives_no_more_pictures_than_asked_for(look):
    rows = look('attention', 'crate', '--image={place}/FOLDER', '--num_samples=2')
    assert len({row['picture'] for row in rows}) == 2


@torch.no_grad()
@pytest.mark.parametrize('name', ['crate', 'vit', 'crate_mae', 'vit_mae', 'aot_pictures'])
def test_another_image_size_interpolates_positions(name, place, look):
    rows = look('attention', name, '--image={place}/FOLDER/0.png', '--image_size=20,40')
    assert [(row['row'], row['column']) for row in rows] == 2 * [(i, j) for i in '12345' for j in '12345']
    picture = torch.tensor(np.load(place / 'data' / 'pics' / 'test.images.npy')[:1])
    x = augment.eval_pictures(picture, torch.tensor([[20, 30]]), (20, 40), 0.8)
    attention, normed, *_ = list(walk(load(place, name, image_size=(20, 40)), x))[1]
    weights = [float(row['weight']) for row in rows[:25]]
    assert weights == pytest.approx(softmax_of(attention, normed[0], 0, 0, range(1, 26)), rel=1e-3, abs=1e-5)


# ---- principal components ---------------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize('name, words, part, keep', [
    ('crate', [], 1, 0.5), ('vit', [], 1, 0.5), ('vit', ['--part=value', '--keep=0.3'], 2, 0.3), ('crate_mae', [], 1, 0.5)])
def test_pca_by_a_singular_value_decomposition(name, words, part, keep, place, look, capsys):
    rows, said = look('pca', name, '--label=bee', '--num_samples=4', *words), capsys.readouterr().out
    pictures = chosen(rows)
    assert len(pictures) == 4 and all(i % 3 == 1 for i in pictures) and len(rows) == 48
    assert [(row['row'], row['column']) for row in rows[:4]] == [('1', '1'), ('1', '2'), ('1', '3'), ('2', '1')]
    tokens = []
    for i in pictures:
        attention, normed, *_ = list(walk(load(place, name), cropped(place, i)))[1]
        seen = heads_of(attention, normed[0], part)                                            # (K, N + 1, p)
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


def test_the_first_class_is_what_pca_takes(look):
    assert {i % 3 for i in chosen(look('pca', 'crate', '--num_samples=5'))} == {0}
    assert len(chosen(look('pca', 'crate', '--num_samples=50'))) == 6  # there are no more


# ---- segmentation -----------------------------------------------------------------------------------------------------


def patch(n):
    """The pixels of patch n."""
    return slice(n // 3 * 4, n // 3 * 4 + 4), slice(n % 3 * 8, n % 3 * 8 + 8)


def pixels_shared(a, b):
    """Intersection over union, pixel by pixel."""
    both = sum(p and q for p, q in zip(a.flatten().tolist(), b.flatten().tolist()))
    either = sum(p or q for p, q in zip(a.flatten().tolist(), b.flatten().tolist()))
    return both / either if either else 0.0


@torch.no_grad()
@pytest.mark.parametrize('name, words, share', [('crate', [], 0.6), ('vit', ['--share=0.3'], 0.3), ('aot_pictures', [], 0.6)])
def test_segment_by_a_loop_over_pixels(name, words, share, place, look, capsys):
    folder = place / 'data' / f'own_{name}'
    images, labels = np.load(place / 'data' / 'pics' / 'test.images.npy')[:5], np.arange(5) % 3
    save_arrays(folder, {'train': (images, labels), 'test': (images, labels)}, ['ant', 'bee', 'cat'])
    masks = np.zeros((5, 20, 30), bool)  # written beside the dataset
    for i, where in enumerate(((slice(4, 11), slice(5, 12)), (slice(2, 18), slice(3, 19)), (9, 9), (slice(20), 20), 0)):
        masks[i][where] = True  # the last is cut off
    np.save(folder / 'test.masks.npy', masks)
    capsys.readouterr()
    rows, said = look('segment', name, f'--dataset=own_{name}', *words), capsys.readouterr().out
    seen = torch.tensor(masks[:, 2:18, 3:27])
    for weights, model in (('trained', load(place, name)), ('random', fresh(name))):
        for l in range(3):
            iou, lies, kept = np.zeros((3, 5, 2))
            for i in range(5):
                attention, normed, *_ = list(walk(model, cropped(place, i)))[l]
                for k in (0, 1):
                    w = softmax_of(attention, normed[0], k, 0, range(1, 13))
                    found, held = torch.zeros(16, 24, dtype=torch.bool), 0.0
                    for n in sorted(range(12), key=lambda n: -w[n]):
                        if held < share:
                            found[patch(n)] = True
                        held += w[n]
                    iou[i, k], kept[i, k] = pixels_shared(found, seen[i]), found.double().mean()
                    lies[i, k] = sum(w[n] / 32 * seen[i][patch(n)].sum().item() for n in range(12))
            mine = {row['head']: row for row in rows if row['weights'] == weights and row['layer'] == str(l + 1)}
            assert mine.keys() == {'1', '2', 'best', 'mean'}
            for head, of in (('1', lambda t: t[:, 0]), ('2', lambda t: t[:, 1]), ('mean', lambda t: t.mean(1)),
                             ('best', lambda t: t[range(5), iou.argmax(1)])):
                expected = [f(of(t)) for t in (iou, lies) for f in (np.mean, np.std)]
                found, = floats([mine[head]], 'iou', 'iou_spread', 'on_mask', 'on_mask_spread')
                assert found == pytest.approx(expected, abs=1e-4), (l, head)
                assert float(mine[head]['kept']) == pytest.approx(of(kept).mean(), abs=1e-4)
            if (weights, l) == ('trained', 1):
                assert f'layer 2 of 3: intersection over union {iou.max(1).mean():.3f} with the best head of each picture, ' \
                       f'{iou.mean(0).max():.3f} with head {iou.mean(0).argmax() + 1} in all' in said
    half = torch.zeros(16, 24, dtype=torch.bool)
    half[4:12, 6:18] = True
    covered = torch.zeros(5, 16, 24, dtype=torch.bool)
    for i in range(5):
        for n in range(12):
            covered[i][patch(n)] = seen[i][patch(n)].sum() > 16
    for name, guess in (('the patches that the mask covers most of', covered), ('the whole picture', torch.ones_like(seen)),
                        ('the middle, half as wide and high', half.expand(5, 16, 24))):
        score, = (float(row['iou']) for row in rows if row['network'] == name)
        assert score == pytest.approx(np.mean([pixels_shared(guess[i], seen[i]) for i in range(5)]), abs=1e-5)
    assert 'Of these 5 pictures' in said and f'{seen.double().mean():.1%} is mask' in said


def test_segment_beside_networks_that_see_other_sizes(look, place):
    """Each has its own pixels and patches; what they are compared with is as the first sees it."""
    alone, rows = look('segment', 'crate'), look('segment', 'crate', '--beside={place}/runs/wide')
    assert len(rows) == 4 * 3 * 4 + 3 and rows[:12] == alone[:12] and rows[-3:] == alone[-3:]


# ---- signal to noise --------------------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize('name', ['crate', 'crate_mae', 'aot_pictures', 'aot_text', 'crate_bert'])
def test_denoise_by_a_loop_over_tokens(name, place, look):
    rows, x = look('denoise', name), inputs(place, name)[0]
    for weights, model in (('trained', load(place, name)), ('random', fresh(name))):
        for l in range(3):
            found = []
            for sample in x:
                attention, _, old, new, _ = list(walk(model, sample[None]))[l]
                P = []
                for U, _ in projections(attention, 2):
                    left = torch.linalg.svd(U.double(), full_matrices=False)[0]
                    P.append(left @ left.T)
                sums = np.zeros((2, 2))
                for z, z_new in zip(old[0].double(), new[0].double()):
                    own = max(P, key=lambda p: (p @ z).norm().item())
                    sums += [[(own @ t).square().sum().item(), (t - own @ t).square().sum().item()] for t in (z, z_new)]
                found.append(np.sqrt(sums[:, 0] / sums[:, 1]))
            before, after = np.array(found).T
            row, = (row for row in rows if row['weights'] == weights and row['layer'] == str(l + 1))
            expected = before.mean(), after.mean(), (after / before).mean(), (after / before).std()
            assert floats([row], 'before', 'after', 'factor', 'factor_spread')[0] == pytest.approx(expected, rel=2e-3, abs=1e-4)


@torch.no_grad()
@pytest.mark.parametrize('name', ['crate', 'aot_text'])
def test_compress_by_autograd(name, place, look):
    rows, x = look('compress', name), inputs(place, name)[0]
    for weights, model in (('trained', load(place, name)), ('random', fresh(name))):
        found = np.zeros((3, len(x), 3))
        for b, sample in enumerate(x):
            for l, (attention, _, z, half, _) in enumerate(walk(model, sample[None])):
                U = [U for U, _ in projections(attention, 2)]
                z, half = (t[0].double() * 4 / t[0].double().norm(dim=1, keepdim=True) for t in (z, half))  # 4: sqrt(d)
                with torch.enable_grad():
                    z.requires_grad_()
                    rate = measures.compressed_rate(torch.stack([z @ u.detach().double() for u in U]))
                    rate.backward()
                moves = [torch.stack([m - (m @ t) / (t @ t) * t for m, t in zip(move, z)]) for move in (half - z, -z.grad)]
                after = measures.compressed_rate(torch.stack([half @ u.double() for u in U]))
                found[l, b] = rate.item(), after.item(), torch.cosine_similarity(*(m.flatten() for m in moves), dim=0).item()
        mine = [row for row in rows if row['weights'] == weights]
        for l, row in enumerate(mine):
            expected = [f(found[l, :, i]) for i in range(3) for f in (np.mean, np.std)]
            assert int(row['layer']) == l + 1
            assert floats([row], 'before', 'before_spread', 'after', 'after_spread', 'cosine', 'cosine_spread')[0] == \
                pytest.approx(expected, rel=2e-3, abs=2e-3)


@torch.no_grad()
@pytest.mark.parametrize('name', ['crate', 'crate_bert'])
def test_ista_by_many_small_steps(name, place, look):
    rows = look('ista', name, '--image={place}/FOLDER/0.png') if name == 'crate' else look('ista', name, '--num_samples=1')
    x = cropped(place, 0) if name == 'crate' else inputs(place, name)[0][:1]
    for weights, model in (('trained', load(place, name)), ('random', fresh(name))):
        for l, (*_, half, z) in enumerate(walk(model, x)):
            layer = model.layers[l]
            Y, D = layer.norm2(half)[0].double(), layer.ista.D.double()

            def f(Z):
                return 0.1 * Z.sum(1).mean() + ((Y - Z @ D.T) ** 2).sum(1).mean() / 2
            norm2, Z = torch.linalg.svdvals(D)[0] ** 2, Y.relu()
            for _ in range(4000):
                Z = (Z + (Y - Z @ D.T) @ D / norm2 - 0.1 / norm2).relu()
            points = [f(p).item() for p in (Y.relu(), z[0].double(), Z, 0 * Y)]
            row, = (row for row in rows if row['weights'] == weights and row['layer'] == str(l + 1))
            assert floats([row], 'at_relu_Y', 'after_layer', 'minimum', 'at_zero')[0] == pytest.approx(points, rel=1e-2)
            way = (points[0] - points[1]) / (points[0] - points[2])
            found, = floats([row], 'share_of_the_way', 'eta_norm2')
            assert found == pytest.approx((way, 0.1 * norm2.item()), rel=1e-2, abs=1e-3)
            assert float(row['share_spread']) == 0  # of one sample


def test_the_denoising_figure_holds_the_theorems_numbers(tmp_path, capsys):
    analyze.main(['denoise', f'--out={tmp_path}/d.png', '--n_layer=3', '--seed=5', '--tokens=48'])
    rows = list(csv.DictReader((tmp_path / 'd.csv').read_text().splitlines()))
    regimes = list(dict.fromkeys(row['regime'] for row in rows))
    assert len(regimes) == 3 and len(rows) == 3 * 4 * 8 and (tmp_path / 'd.png').stat().st_size > 5000
    for name, eta, delta in zip(regimes, (0.1, 0.5, 0.1), (0.2, 0.2, 0.5)):
        Z, U = measures.noisy_mixture(8, 16, 48, 128, delta, torch.Generator().manual_seed(5))
        start = measures.snr(Z, U).mean().item()
        for layer in range(4):
            mine = [row for row in rows if row['regime'] == name and int(row['layer']) == layer]
            assert [float(row['snr']) for row in mine] == pytest.approx(measures.snr(Z, U).tolist())
            assert float(mine[0]['theorem']) == pytest.approx(start * (1 + eta * 0.6) ** layer)
            Z = measures.denoise(Z, U, eta, 0.6)
    said = capsys.readouterr().out
    assert 'Theorem 1 says 1.06' in said and 'Theorem 1 says 1.3' in said
    assert '--overwrite=true' in fails(capsys, analyze.main, 'denoise', f'--out={tmp_path}/d.png')
    (tmp_path / 'd.png').unlink()
    assert 'd.csv exists' in fails(capsys, analyze.main, 'denoise', f'--out={tmp_path}/d.png')
    analyze.main(['denoise', f'--out={tmp_path}/d.png', '--overwrite=true', '--n_layer=1', '--tau=0', '--tokens=8'])
    assert 'Theorem' not in capsys.readouterr().out  # which is not about the plain softmax


# ---- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('words, message', [
    ([], 'choose layers, subspaces'), (['layer'], "'layer' is unknown"), (['denoise', '--delta=0'], 'delta > 0'),
    (['denoise', '--tau=1'], 'tau < 1'), (['denoise', '--n_layer=0'], 'n_layer=0 must be at least 1'),
    (['denoise', '--etta=1'], 'did you mean eta?'), (['denoise', '--out=x.doc'], 'format of pictures'),
    (['denoise', '--out=no/where.png'], 'no folder'), (['denoise', '--num_samples=3'], '--ckpt'),
    (['ista', '--image=cat.jpg'], '--ckpt'),  # which are of a trained network
    (['denoise', '--ckpt=CRATE', '--delta=0.1'], 'delta'), (['layers', '--ckpt=nowhere'], 'no checkpoint nowhere'),
    (['layers', '--ckpt=CRATE', '--official=x.pth'], 'leave one of the two out'),
    (['layers', '--official=x.pth'], '--model=crate'), (['layers', '--official=x.pth', '--model=crate'], '--n_head'),
    (['layers', '--official=x.pth', '--model=crate', '--n_head=2'], 'no file x.pth'),
    (['layers', '--official=FILE', *OFFICIAL], '--dataset=imagenet'),
    (['layers', '--official=FILE', '--model=crate', '--n_head=3'], 'n_head=3'),
    (['layers', '--ckpt=CRATE', '--model=vit'], 'leave model out'),
    (['layers', '--ckpt=CRATE', '--etta=1'], 'unknown setting etta'),
    (['layers', '--ckpt=CRATE', '--n_head=4'], 'leave n_head out'),
    (['layers', '--ckpt=CRATE', '--image_size=17,24'], 'not divisible'),
    (['layers', '--ckpt=GPT2', '--image_size=16'], 'leave that out')])
def test_mistakes_get_one_line(words, message, place, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, path in (('CRATE', 'runs/crate'), ('GPT2', 'runs/gpt2'), ('FILE', 'official.pth')):
        words = [w.replace(name, f'{place}/{path}') for w in words]
    assert message in fails(capsys, analyze.main, *words) and not list(tmp_path.iterdir())


@pytest.mark.parametrize('command, name, words, message', [
    ('attention', 'crate', '--layer=4', 'layers 1 to 3'), ('pca', 'crate', '--layer=-1', 'layers 1 to 3'),
    ('segment', 'crate', '--layer=4', 'layers 1 to 3'), ('attention', 'crate', '--heads=3', 'heads 1 to 2'),
    ('attention', 'crate', '--heads=0', 'heads 1 to 2'), ('attention', 'gpt2', '--heads=a', 'heads 1 to 2'),
    ('attention', 'crate', '--heads=1-2', 'with commas'), ('layers', 'aot_text', '--show=sparsity', '--show=rate'),
    ('layers', 'crate', '--beside={place}/runs/aot_pictures --show=sparsity', 'aot_pictures has no sparsity'),
    ('layers', 'crate', '--show=both', 'rate or sparsity'), ('layers', 'crate', '--measure=released2', 'paper or released'),
    ('layers', 'crate', '--beside={place}/runs/gpt2', 'gpt2 reads text, '),
    ('layers', 'crate', '--beside=nowhere', 'no checkpoint nowhere'),
    ('layers', 'crate', '--heads=1', '--heads does not go with layers'),
    ('subspaces', 'crate', '--num_samples=3', '--num_samples does not go with subspaces'),
    ('attention', 'crate', '--beside=x', '--beside does not go with attention'),
    ('segment', 'crate', '--image=x', '--image does not go with segment'),
    ('layers', 'gpt2', '--start=abc', '--start does not go with layers'),
    ('layers', 'crate', '--num_samples=-1', 'num_samples=-1 must be at least 0'),
    ('layers', 'crate', '--batch_size=0', 'batch_size=0 must be at least 1'),
    ('layers', 'crate', '--eps=-1', 'eps=-1.0 must be at least 0'), ('layers', 'crate', '--eps=nan', 'eps=nan'),
    ('tokens', 'crate', '--size=0', 'size=0 must be at least 1'),
    ('subspaces', 'crate', '--directions=0', 'directions=0 must be'), ('subspaces', 'vit', '--part=foo', 'query, key, value'),
    ('pca', 'crate', '--keep=0', '0 < keep <= 1'), ('segment', 'crate', '--share=1.5', '0 < share <= 1'),
    ('layers', 'crate', '--seed=-1', 'seed=-1 must be'), ('layers', 'crate', '--device=cuda:99', 'choose another'),
    ('subspaces', 'one_head', '', 'one head'), ('denoise', 'one_head', '', 'fills all 16'),
    ('denoise', 'vit', '', 'CRATE, CRATE-MAE and AoT-MSSA'), ('ista', 'vit', '', 'CRATE and CRATE-MAE'),
    ('ista', 'soft', '', "ista='soft'"),
    ('denoise', 'crate', '--beside={place}/runs/vit', 'vit has three projections'),
    ('segment', 'crate', '--dataset=bare', 'python prepare/shapes.py'), ('pca', 'crate', '--label=cow', 'choose ant, bee, cat'),
    ('pca', 'crate', '--dataset=bare --label=dog', 'dog'),  # a class without a picture
    ('pca', 'crate', '--label=ant --image={place}/FOLDER', 'leave it out'), ('pca', 'gpt2', '', 'pca is for pictures'),
    ('segment', 'gpt2', '', 'segment is for pictures'), ('layers', 'crate', '--dataset=text', 'holds text'),
    ('layers', 'gpt2', '--dataset=pics', 'holds images'), ('layers', 'gpt2', '--dataset=letters', 'the same tokenizer'),
    ('layers', 'gpt2', '--beside={place}/runs/letters', 'letters'), ('layers', 'crate', '--dataset=none', 'no prepared data'),
    ('layers', 'crate', '--split=validation', 'only train, test'),
    ('layers', 'functions', '--dataset=cubic', 'linear or sparse_linear'), ('layers', 'functions', '--split=val', '--split'),
    ('attention', 'gpt2', '--start=aaaaaaaaaaaaa', 'has 13 tokens; give between 2 and 12'),
    ('attention', 'gpt2', '--start=a', 'has 1 tokens'), ('tokens', 'letters', '--start=abx', "no character 'x'"),
    ('attention', 'gpt2', '--start=FILE:nowhere', 'cannot be read'),
    ('attention', 'gpt2', '--image={place}/FOLDER', '--start=TEXT'),
    ('attention', 'crate', '--start=abc', '--image instead of --start'), ('tokens', 'crate', '--start=abc', '--start'),
    ('tokens', 'gpt2', '--image={place}/FOLDER', '--image'),
    ('tokens', 'gpt2', '--start=abc --image={place}/FOLDER', '--image'),
    ('layers', 'gpt2', '--image={place}/FOLDER', 'leave --image out'),
    ('layers', 'functions', '--image={place}/FOLDER', 'leave --image out'),
    ('layers', 'crate', '--dataset=bare --image={place}/FOLDER', '--dataset'),
    ('layers', 'crate', '--image=nowhere.png', 'cannot be read as a picture'),
    ('layers', 'crate', '--image={place}/runs', 'no pictures in'), ('layers', 'crate', '--out=x.bmp', 'x.bmp'),
    ('layers', 'crate', '--out=x.csv', 'format of pictures')])
def test_what_a_network_cannot_show(command, name, words, message, place, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = [command, f'--ckpt={place}/runs/{name}', f'--data_dir={place}/data', *words.format(place=place).split()]
    assert message in fails(capsys, analyze.main, *words) and not list(tmp_path.iterdir())


@pytest.mark.parametrize('masks, message', [
    (np.zeros((7, 20, 30), bool), '7 x 20 x 30'), (np.zeros((18, 20), bool), '18 x 20,'),
    (np.zeros((18, 10, 10), bool), '18 x 10 x 10'), (np.zeros((18, 20, 30), np.uint8), 'bool'),
    (None, 'test.masks.npy')], ids=['count', 'dimensions', 'size', 'type', 'damaged'])
def test_masks_that_fit_no_picture(masks, message, place, tmp_path, capsys, monkeypatch):
    arrays = [np.load(place / 'data' / 'pics' / f'test.{k}.npy') for k in ('images', 'labels')]
    save_arrays(tmp_path / 'data' / 'odd', {'train': arrays, 'test': arrays}, ['ant', 'bee', 'cat'])
    (tmp_path / 'data' / 'odd' / 'test.masks.npy').write_bytes(b'no array')
    if masks is not None:
        np.save(tmp_path / 'data' / 'odd' / 'test.masks.npy', masks)
    monkeypatch.chdir(tmp_path)
    error = fails(capsys, analyze.main, 'segment', f'--ckpt={place}/runs/crate', f'--data_dir={tmp_path}/data', '--dataset=odd')
    assert message in error and [p.name for p in tmp_path.iterdir()] == ['data']


def test_what_is_there_stays_unless_it_may_go(place, tmp_path, capsys, quick):
    words = ['subspaces', f'--ckpt={place}/runs/crate', f'--out={tmp_path}/s.png']
    for name in ('s.png', 's.csv'):
        (tmp_path / name).write_text('mine')
        error = fails(capsys, analyze.main, *words)
        assert f'{name} exists' in error and '--overwrite=true' in error
        assert [p.read_text() for p in tmp_path.iterdir()] == ['mine']
        (tmp_path / name).unlink()
    (tmp_path / 's.png').write_text('mine')
    analyze.main([*words, '--overwrite=true'])
    assert (tmp_path / 's.png').read_text() == 'a picture' and {p.name for p in tmp_path.iterdir()} == {'s.png', 's.csv'}


@pytest.mark.parametrize('missing', [['matplotlib'], ['matplotlib', 'PIL']])
def test_without_matplotlib_it_says_what_to_install(missing, place, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in missing:
        monkeypatch.setitem(sys.modules, name, None)
    for words in (['denoise'], ['layers', f'--ckpt={place}/runs/crate', f'--data_dir={place}/data']):
        assert 'pip install matplotlib' in fails(capsys, analyze.main, *words) and not list(tmp_path.iterdir())


def test_help_says_what_every_setting_is(capsys):
    analyze.main(['--help'])
    said = capsys.readouterr().out
    assert all(f'--{f.name}=' in said for f in dataclasses.fields(analyze.LookConfig)) and 'DenoiseConfig' in said
    assert all(f'python analyze.py {command}' in said for command in analyze.COMMANDS)
    read = set().union(analyze.COMMON, *(settings for _, settings in analyze.COMMANDS.values()))
    assert read == {f.name for f in dataclasses.fields(analyze.LookConfig)}  # each is read by some command
