"""analyze.py: every command with every network; what it cannot do, it says in one line."""
import csv
import dataclasses
import re
import sys
from collections import Counter

import numpy as np
import pytest
import torch
from helpers import fails
from insides import NETWORKS, cropped, layer_of, load, softmax_of, walk, why_not
from PIL import Image

import analyze
from analysis import layers
from prepare.lib.pictures import save_arrays
from tasks import augment


@pytest.mark.parametrize('name', NETWORKS)
@pytest.mark.parametrize('command', analyze.COMMANDS)
def test_every_command_on_every_network(command, name, place, tmp_path, capsys, monkeypatch, request):
    real = (name, command) in [('crate', c) for c in analyze.COMMANDS] + [('crate_bert', 'attention')]
    if not real:
        request.getfixturevalue('undrawn')
    monkeypatch.chdir(tmp_path)
    before = {p: p.stat().st_mtime_ns for p in place.rglob('*')}
    words = [command, f'--ckpt={place}/runs/{name}', f'--data_dir={place}/data']
    if command in ('layers', 'pca', 'segment', 'objects', 'denoise', 'compress', 'ista'):
        words += ['--num_samples=2']
    if why_not(command, name):
        error = fails(capsys, analyze.main, *words)
        assert why_not(command, name) in error and name in error and not list(tmp_path.iterdir())
        return
    analyze.main(words)
    assert capsys.readouterr().out.splitlines()[-1] == f'{command}.png, {command}.csv'
    assert sorted(p.name for p in tmp_path.iterdir()) == [f'{command}.csv', f'{command}.png']
    assert before == {p: p.stat().st_mtime_ns for p in place.rglob('*')}
    rows = list(csv.reader((tmp_path / f'{command}.csv').open(newline='')))
    assert len(rows) > 3 and {len(row) for row in rows} == {len(rows[0])}
    assert not {'nan', 'inf', '-inf'} & set(sum(rows, []))
    if real:
        with Image.open(tmp_path / f'{command}.png') as picture:
            assert min(picture.size) > 150 and len(picture.convert('RGB').getcolors(2 ** 24)) > 20


@pytest.mark.parametrize('command', analyze.COMMANDS)
def test_attention_runs_once(command, look):
    """In each network and layer, for one batch."""
    calls = Counter()
    hook = torch.nn.modules.module.register_module_forward_hook(
        lambda module, args, out: calls.update([module] * (hasattr(module, 'U') or hasattr(module, 'QKV'))))
    few = [] if command in ('subspaces', 'tokens') else ['--num_samples=2']
    try:
        look(command, 'crate', *few)
    finally:
        hook.remove()
    assert set(calls.values()) <= {1} and (calls or command == 'subspaces')


@pytest.mark.parametrize('name', ['grey', 'four'])
@pytest.mark.parametrize('command', ['layers', 'tokens', 'attention', 'pca', 'segment', 'objects'])
def test_pictures_of_any_number_of_channels(command, name, look):
    assert len(look(command, name)) > 3
    if name == 'grey' and command not in ('segment', 'objects'):
        assert look(command, 'grey', '--image={place}/FOLDER/0.png')


# ---- samples


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
    seen, real = [], layers.layer_measures
    monkeypatch.setattr(layers, 'layer_measures', lambda model, x, *more: seen.append(x[0]) or real(model, x, *more))
    look('layers', name, '--num_samples=5', f'--batch_size={batch}')
    assert sum(map(len, seen)) == 10 and max(map(len, seen)) <= batch  # of two networks
    assert len({tuple(x.flatten().tolist()) for x in torch.cat(seen)}) == 5


@torch.no_grad()
def test_pictures_of_ones_own(place, look):
    rows = look('attention', 'crate', '--image={place}/FOLDER')
    assert list(dict.fromkeys(row['picture'] for row in rows)) == ['0.png', '1.png', '2.png']
    one = look('attention', 'crate', '--image={place}/FOLDER/1.png')
    assert one == [row for row in rows if row['picture'] == '1.png']
    attention, normed = layer_of(place, 'crate', 1, 1)  # it is picture 1 of the dataset
    weights = [float(row['weight']) for row in one[12:]]
    assert weights == pytest.approx(softmax_of(attention, normed, 1, 0, range(1, 13)), rel=1e-3)
    rates, *_ = layers.layer_measures(load(place, 'crate'), (torch.cat([cropped(place, i) for i in range(3)]),))
    rows = look('layers', 'crate', '--image={place}/FOLDER', '--show=rate')[:3]
    assert [float(row['mean']) for row in rows] == pytest.approx(rates.mean(1).tolist(), rel=1e-3)
    for command, n in (('pca', 3 * 12), ('denoise', 2 * 3), ('tokens', 3 * 13 * 16)):
        assert len(look(command, 'crate', '--image={place}/FOLDER')) == n
    rows = look('attention', 'crate', '--image={place}/data/pics', '--num_samples=3')  # a dataset is a folder too
    names = {row['picture'] for row in rows}
    assert len(names) == 3 and all(re.fullmatch(r'test \d+, (ant|bee|cat)', name) for name in names)
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


# ---- files


def test_a_picture_that_one_named_stays_unless_it_may_go(place, tmp_path, capsys, undrawn, monkeypatch):
    words = ['subspaces', f'--ckpt={place}/runs/crate', f'--out={tmp_path}/s.png']
    for name in ('s.png', 's.csv'):
        (tmp_path / name).write_text('mine')
        error = fails(capsys, analyze.main, *words)
        assert f'{name} exists' in error and '--overwrite=true' in error
        assert [p.read_text() for p in tmp_path.iterdir()] == ['mine']
        (tmp_path / name).unlink()
    (tmp_path / 's.png').write_text('mine')
    analyze.main([*words, '--overwrite=true'])
    assert {p.name for p in tmp_path.iterdir()} == {'s.png', 's.csv'}
    assert (tmp_path / 's.png').read_text() == 'a picture'
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'subspaces.png').write_text('old')
    analyze.main(words[:-1])  # the command's own name
    assert (tmp_path / 'subspaces.png').read_text() == 'a picture'


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
    assert all(f'--{f.name}=' in said for f in dataclasses.fields(analyze.AnalyzeConfig))
    assert all(f'\n{name} ' in said for name in ('DenoiseConfig', 'SheetConfig', 'AugmentConfig', 'CurvesConfig'))
    assert all(f'python analyze.py {command}' in said for command in (*analyze.COMMANDS, *analyze.OTHERS))
    read = set().union(analyze.COMMON, *(settings for _, settings in analyze.COMMANDS.values()))
    assert read == {f.name for f in dataclasses.fields(analyze.AnalyzeConfig)}  # each is read by some command


# ---- mistakes


@pytest.mark.parametrize('command, name', [(command, name) for command, (_, Config) in analyze.THEORIES.items()
                                           for name in {'seed': 0, **Config.ranges}])
def test_a_setting_out_of_its_range_is_named(command, name, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    least, most = {'seed': (0, None), **analyze.THEORIES[command][1].ranges}[name]
    for value in (least - 1, *([] if most is None else (2 * most + 1, 'nan', 'inf'))):
        assert name in fails(capsys, analyze.main, command, f'--{name}={value}') and not list(tmp_path.iterdir())


@pytest.mark.parametrize('words, message', [
    (['compress', '--tokens=60'], 'a multiple of n_head=8'), (['majorize', '--tokens=65'], '--tokens=64 or less'),
    (['diffuse', '--depth=60'], '--depth=50 or less'), (['diffuse', '--eps=0.1', '--depth=3'], '--depth=2 or less'),
    ([], 'choose layers, subspaces'), (['layer'], "'layer' is unknown"),
    (['denoise', '--delta=0'], 'delta=0.0 must lie'), (['denoise', '--tau=1'], 'tau=1.0 must lie'),
    (['denoise', '--n_layer=0'], 'n_layer=0 must be at least 1'),
    (['denoise', '--etta=1'], 'did you mean eta?'), (['denoise', '--out=x.doc'], 'must end with'),
    (['denoise', '--out=no/where.png'], 'no folder'), (['denoise', '--num_samples=3'], 'num_samples'),
    (['layers', 'out/crate'], 'out/crate'),
    (['denoise', '--ckpt=CRATE', '--delta=0.1'], 'delta'), (['layers', '--ckpt=nowhere'], 'no run in nowhere'),
    (['layers', '--ckpt=CRATE', '--etta=1'], 'unknown setting etta'),
    (['layers', '--ckpt=CRATE', '--n_head=4'], 'leave n_head out'),
    (['layers', '--ckpt=CRATE', '--image_size=17,24'], 'not divisible'),
    (['layers', '--ckpt=GPT2', '--image_size=16'], 'do not fit')])
def test_mistakes_get_one_line(words, message, place, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, path in (('CRATE', 'runs/crate'), ('GPT2', 'runs/gpt2')):
        words = [w.replace(name, f'{place}/{path}') for w in words]
    assert message in fails(capsys, analyze.main, *words) and not list(tmp_path.iterdir())


@pytest.mark.parametrize('command, name, words, message', [
    ('attention', 'crate', '--layer=4', 'layers 1 to 3'), ('pca', 'crate', '--layer=-1', 'layers 1 to 3'),
    ('segment', 'crate', '--layer=4', 'layers 1 to 3'), ('attention', 'crate', '--heads=3', 'heads 1 to 2'),
    ('attention', 'crate', '--heads=0', 'heads 1 to 2'), ('attention', 'gpt2', '--heads=a', 'heads 1 to 2'),
    ('attention', 'crate', '--heads=1-2', 'with commas'), ('layers', 'aot_text', '--show=sparsity', '--show=rate'),
    ('layers', 'crate', '--beside={place}/runs/aot_pictures --show=sparsity', 'aot_pictures has no sparsity'),
    ('layers', 'crate', '--show=both', 'rate or sparsity'),
    ('layers', 'crate', '--measure=released2', 'paper or released'),
    ('layers', 'crate', '--beside={place}/runs/gpt2', 'gpt2 reads text, '),
    ('layers', 'crate', '--beside=nowhere', 'no run in nowhere'),
    ('layers', 'crate', '--heads=1', '--heads does not go with layers'),
    ('subspaces', 'crate', '--num_samples=3', '--num_samples does not go with subspaces'),
    ('attention', 'crate', '--beside=x', '--beside does not go with attention'),
    ('segment', 'crate', '--image=x', '--image does not go with segment'),
    ('layers', 'gpt2', '--start=abc', '--start does not go with layers'),
    *(('layers', 'crate', f'--{given}', given) for given in ('num_samples=-1', 'batch_size=0', 'eps=nan', 'seed=-1')),
    ('tokens', 'crate', '--size=0', 'size=0'), ('subspaces', 'crate', '--directions=0', 'directions=0'),
    ('subspaces', 'vit', '--part=foo', 'query or key or value'),
    ('subspaces', 'crate', '--part=key', 'leave --part out'),
    ('pca', 'crate', '--keep=0', 'keep=0'), ('segment', 'crate', '--share=1.5', 'share=1.5'),
    ('layers', 'crate', '--device=cuda:99', '--device=auto'),
    ('subspaces', 'one_head', '', 'one head'), ('denoise', 'one_head', '', 'fill all 16'),
    ('denoise', 'vit', '', 'CRATE, CRATE-MAE or AoT-MSSA'), ('ista', 'vit', '', 'CRATE and CRATE-MAE'),
    ('ista', 'soft', '', "ista='soft'"),
    ('denoise', 'crate', '--beside={place}/runs/vit', 'vit has three projections'),
    ('segment', 'crate', '--dataset=bare', 'python prepare/shapes.py'),
    ('pca', 'crate', '--label=cow', 'choose ant, bee, cat'),
    ('pca', 'crate', '--dataset=bare --label=dog', 'dog'),  # a class without a picture
    ('pca', 'gpt2', '', 'pca is for pictures'),
    ('segment', 'gpt2', '', 'segment is for pictures'), ('layers', 'crate', '--dataset=text', '--dataset'),
    ('layers', 'gpt2', '--dataset=pics', '--dataset'), ('layers', 'gpt2', '--dataset=letters', 'reads tokenizer'),
    ('layers', 'crate', '--dataset=grey', 'channels'), ('pca', 'grey', '--dataset=four', 'channels'),
    ('layers', 'gpt2', '--beside={place}/runs/letters', 'letters'),
    ('layers', 'crate', '--dataset=none', 'no data in'),
    ('layers', 'crate', '--split=validation', 'only train, test'),
    ('layers', 'functions', '--dataset=cubic', 'linear or sparse_linear'),
    ('layers', 'functions', '--split=val', '--split'),
    ('attention', 'gpt2', '--start=aaaaaaaaaaaaa', 'has 13 tokens; give between 2 and 12'),
    ('attention', 'gpt2', '--start=a', 'has 1 tokens'), ('tokens', 'letters', '--start=abx', "no character 'x'"),
    ('attention', 'gpt2', '--start=FILE:nowhere', 'cannot be read'),
    ('attention', 'gpt2', '--image={place}/FOLDER', 'leave --image out'),
    ('attention', 'gpt2', '--num_samples=2', 'leave --num_samples out'),
    ('attention', 'crate', '--start=abc', 'leave --start out'),
    ('tokens', 'crate', '--start=abc', '--start'), ('tokens', 'gpt2', '--image={place}/FOLDER', '--image'),
    ('tokens', 'gpt2', '--start=abc --image={place}/FOLDER', '--image'),
    ('layers', 'gpt2', '--image={place}/FOLDER', 'leave --image out'),
    ('layers', 'functions', '--image={place}/FOLDER', 'leave --image out'),
    ('layers', 'crate', '--image=nowhere.png', 'cannot be read as a picture'),
    ('layers', 'crate', '--image={place}/runs', 'no pictures in'), ('layers', 'crate', '--out=x.bmp', 'x.bmp'),
    ('layers', 'crate', '--out=x.csv', 'must end with')])
def test_what_a_network_cannot_show(command, name, words, message, place, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = [command, f'--ckpt={place}/runs/{name}', f'--data_dir={place}/data', *words.format(place=place).split()]
    assert message in fails(capsys, analyze.main, *words) and not list(tmp_path.iterdir())


@pytest.mark.parametrize('masks', [np.zeros((7, 20, 30), bool), np.zeros((18, 20, 30), np.uint8), None],
                         ids=['count', 'type', 'damaged'])
def test_masks_that_fit_no_picture(masks, place, tmp_path, capsys, monkeypatch):
    arrays = [np.load(place / 'data' / 'pics' / f'test.{k}.npy') for k in ('images', 'labels')]
    save_arrays(tmp_path / 'data' / 'odd', {'train': arrays, 'test': arrays}, ['ant', 'bee', 'cat'])
    (tmp_path / 'data' / 'odd' / 'test.masks.npy').write_bytes(b'no array')
    if masks is not None:
        np.save(tmp_path / 'data' / 'odd' / 'test.masks.npy', masks)
    monkeypatch.chdir(tmp_path)
    words = f'--ckpt={place}/runs/crate', f'--data_dir={tmp_path}/data', '--dataset=odd'
    assert 'test.masks.npy' in fails(capsys, analyze.main, 'segment', *words)
    assert [p.name for p in tmp_path.iterdir()] == ['data']


def test_a_command_that_is_misspelt(capsys):
    assert "'layer' is unknown; choose layers, subspaces" in fails(capsys, analyze.main, 'layer')
    assert 'choose layers, ' in fails(capsys, analyze.main, 'zzz')
