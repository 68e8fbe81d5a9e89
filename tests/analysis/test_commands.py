"""analyze.py: every command with every network; what it cannot do, it says in one line."""
import csv
import sys

import pytest
from fake_mps import FakeMPS
from helpers import fails
from insides import NETWORKS, close, kind_of, shows
from PIL import Image
from small_files import jpeg, tree

import analyze
from analysis.theory import RANGES


def few(command, name):
    """Words for two samples, where a command can have more than one. Atoms need more."""
    if command == 'atoms':
        return [] if kind_of(name) == 'images' else ['--dataset=long']
    if command in ('tokens', 'subspaces') or command == 'attention' and kind_of(name) != 'images':
        return []
    return ['--num_samples=2']


@pytest.mark.slow
@pytest.mark.parametrize('name', [*NETWORKS, 'grey'])
@pytest.mark.parametrize('command', analyze.COMMANDS)
def test_every_command_on_every_network(command, name, place, tmp_path, capsys, monkeypatch, request):
    drawn = name == 'crate' or (name, command) == ('crate_bert', 'attention')
    if not drawn:
        request.getfixturevalue('undrawn')
    monkeypatch.chdir(tmp_path)
    words = [command, f'--ckpt={place}/runs/{name}', f'--data_dir={place}/data', *few(command, name)]
    if not shows(command, name):
        said = fails(capsys, analyze.main, *words)
        assert (name in said or 'take another network' in said) and not list(tmp_path.iterdir())
        return
    analyze.main(words)
    endings = ['csv', 'html', 'png'] if command == 'atoms' and kind_of(name) == 'text' else ['csv', 'png']
    assert sorted(p.name for p in tmp_path.iterdir()) == [f'{command}.{ending}' for ending in endings]
    rows = list(csv.reader((tmp_path / f'{command}.csv').open(newline='')))
    assert len(rows) > 3 and {len(row) for row in rows} == {len(rows[0])}
    assert not {'nan', 'inf', '-inf'} & set(sum(rows, []))
    if drawn:
        with Image.open(tmp_path / f'{command}.png') as picture:
            assert min(picture.size) > 150 and len(picture.convert('RGB').getcolors(2 ** 24)) > 20


@pytest.mark.slow
@pytest.mark.parametrize('command, name', [('layers', 'crate'), ('segment', 'vit'), ('denoise', 'crate_bert'),
                                           ('denoise', 'functions')])
def test_nothing_depends_on_the_batch_size(command, name, look):
    three, most = (look(command, name, '--num_samples=5', f'--batch_size={b}') for b in (3, 64))
    close(three, most, 1e-3, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('name', ['vit', 'aot_text', 'functions', 'crate', 'crate_mae', 'crate_bert'])
def test_every_command_does_without_float64(name, look):
    """The numbers are those of the CPU up to rounding."""
    for command in (command for command in analyze.COMMANDS if shows(command, name)):
        want = look(command, name, '--device=cpu', *few(command, name))
        with FakeMPS():
            close(look(command, name, '--device=mps', *few(command, name)), want, 1e-2, 1e-3)


# ---- samples


@pytest.mark.slow
def test_pictures_of_ones_own(place, look):
    rows = look('attention', 'crate', '--image={place}/FOLDER')
    assert list(dict.fromkeys(row['picture'] for row in rows)) == ['0.png', '1.png', '2.png']
    one = look('attention', 'crate', '--image={place}/FOLDER/1.png')
    assert one == [row for row in rows if row['picture'] == '1.png']
    assert {row['picture'] for row in look('attention', 'grey', '--image={place}/FOLDER/0.png')} == {'0.png'}


def many(folder, n):
    return tree(folder, {f'{"ab"[i % 2]}/{i}.jpg': jpeg(30, 20) for i in range(n)})


@pytest.mark.parametrize('command', ['attention', 'pca', 'objects'])
def test_too_many_pictures_for_a_figure_are_refused_before_any_work(command, place, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = command, f'--ckpt={place}/runs/crate', f'--data_dir={place}/data'
    assert 'num_samples' in fails(capsys, analyze.main, *words, '--num_samples=500')
    if command != 'objects':
        folder = many(tmp_path / 'mine', 60)
        tree(folder, {'c.jpg': jpeg(30, 20)})   # so they are no classes
        assert '--num_samples' in fails(capsys, analyze.main, *words, f'--image={folder}')
    assert not list(tmp_path.glob('*.*'))


def test_as_many_pictures_of_class_folders_as_are_wanted(look, tmp_path):
    folder = many(tmp_path / 'mine', 60)
    for words, n in (([], 4), (['--num_samples=6'], 6), (['--num_samples=2'], 2)):
        rows = look('attention', 'crate', f'--image={folder}', *words)
        assert len({row['picture'] for row in rows}) == n


@pytest.mark.parametrize('name', ['crate', 'vit_mae'])
def test_another_image_size(name, place, look):
    """Its positions are tested in tests/engine/test_networks.py."""
    rows = look('attention', name, '--image={place}/FOLDER/0.png', '--image_size=20,40')
    assert [(row['row'], row['column']) for row in rows] == 2 * [(i, j) for i in '12345' for j in '12345']


# ---- files and mistakes


@pytest.mark.slow
@pytest.mark.parametrize('words, files', [
    ('subspaces --ckpt={0}/runs/crate', 'png csv'), ('ista --n_embd=8 --tokens=8', 'png csv'),
    ('augment --dataset=pics --data_dir={0}/data --rows=1', 'png'),
    ('page --ckpt={0}/runs/crate --data_dir={0}/data', 'html')])
def test_a_file_that_one_named_stays_unless_it_may_go(words, files, place, tmp_path, capsys, undrawn, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files, words = [tmp_path / f'x.{end}' for end in files.split()], words.format(place).split()
    for file in files:
        file.write_text('mine')
        assert '--overwrite=true' in fails(capsys, analyze.main, *words, f'--out={files[0].name}')
        assert [p.read_text() for p in tmp_path.glob('x.*')] == ['mine']
        file.unlink()
    for more in 2 * ([f'--out={files[0].name}', '--overwrite=true'], []):
        analyze.main([*words, *more])
    assert sorted(tmp_path.glob('x.*')) == sorted(files)


def test_without_matplotlib_it_says_what_to_install(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, 'matplotlib', None)
    assert 'pip install matplotlib' in fails(capsys, analyze.main, 'denoise') and not list(tmp_path.iterdir())


@pytest.mark.parametrize('command', ['layers', *analyze.THEORIES])
def test_a_setting_out_of_its_range_is_named(command, place, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Config = analyze.AnalyzeConfig if command == 'layers' else analyze.THEORIES[command][1]
    run = [f'--ckpt={place}/runs/crate'] * (command == 'layers')
    ranges = {name: both for name, both in (RANGES | Config.ranges).items() if hasattr(Config, name)}
    for name, (least, most) in ranges.items():
        for value in (least - 1, *([] if most is None else (2 * most + 1, 'nan'))):
            assert name in fails(capsys, analyze.main, command, *run, f'--{name}={value}')
    assert not list(tmp_path.iterdir())


REFUSED = [  # a command, a network and words, of which the last is named; or words, and what is named
    *'''attention crate --layer=4|attention crate --heads=3|layers crate --show=both|layers crate --measure=released2
    layers crate --heads=1|layers crate --threshold=nan|segment crate --tau=nan|subspaces vit --part=foo|pca crate --label=cow
    layers crate --dataset=text|attention gpt2 --start=aaaaaaaaaaaaa|attention gpt2 --start=a
    attention gpt2 --image={place}/FOLDER|attention crate --start=abc|page aot_text --image={place}/FOLDER
    layers crate --image={place}/runs|layers crate --out=x.csv|layers crate --etta=1|layers crate --n_head=4
    segment crate --cut=head|page crate --out=page.png|page crate --out=nowhere/page.html|page crate --layer=2
    denoise - --out=no/where.png|denoise - --num_samples=3
    augment - --n_layer=3|augment - --out=x.txt|curves - --out=y.what|curves - --outt=y.png'''
    .replace('|', '\n').splitlines(),
    ('layers aot_text --show=sparsity', '--show'), ('attention gpt2 --over=true', '--over'),
    ('objects crate --masks_to={place}', '--overwrite=true'), ('objects crate --cut=none --masks_to=new', '--cut=none'), ('layers gpt2 --dataset=letters', 'tokenizer'),
    ('layers crate --beside={place}/runs/gpt2', 'runs/gpt2'), ('layers gpt2 --beside={place}/runs/letters', 'letters'),
    ('page crate --beside={place}/runs/vit,{place}/runs/mean', 'runs/mean'),
    ('denoise crate --beside={place}/runs/vit', 'model_vit'), ('layers crate --device=cuda:99', '--device=auto'),
    ('subspaces one_head', 'one_head'), ('denoise one_head', 'one_head'),
    ('ista soft', "ista='soft'"), ('layers nowhere', 'runs/nowhere'), ('majorize - --tokens=65', '65'),
    ('segment crate --dataset=bare', 'prepare/shapes.py'), ('layers crate --dataset=grey', 'channels'),
    ('layers crate --dataset=none', 'data/none'), ('augment - --dataset=absent', 'data/absent'),
    ('layers crate --split=validation', 'train, test'), ('layers functions --dataset=cubic', 'sparse_linear'),
    ('page letters --start=abx', "'x'"), ('attention gpt2 --start=FILE:nowhere', 'nowhere'),
    ('layers crate --image=nowhere.png', 'nowhere.png'), ('layers crate --image_size=17,24', 'image_size'),
    *((f'page {name}', f'runs/{name}') for name in ('crate_alpha', 'crate_bert', 'functions', 'bpe')),
    ('page crate --beside={place}/runs/grey', 'runs/grey'), ('page aot_text --beside={place}/runs/letters', 'letters'),
    ('augment - toy', 'toy'), ('curves -', 'curves'), ('curves - nowhere', 'nowhere'),
    ('layer -', 'layers, subspaces'), ('subspace -', 'subspaces'), ('Layerz -', 'layers'), ('- -', 'layers, subspaces')]


@pytest.mark.parametrize('case', REFUSED, ids=str)
def test_what_is_refused_is_named(case, place, tmp_path, capsys, monkeypatch):
    """In one line, before any file is written."""
    monkeypatch.chdir(tmp_path)
    said, named = case if isinstance(case, tuple) else (case, case.split('--')[-1].partition('=')[0])
    command, name, *words = said.format(place=place).split()
    words += [f'--ckpt={place}/runs/{name}'] * (name != '-')
    words += [f'--data_dir={place}/data'] * (name != '-' or command == 'augment')
    assert named in fails(capsys, analyze.main, *[command] * (command != '-'), *words) and not list(tmp_path.iterdir())
