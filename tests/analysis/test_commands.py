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
    """Words for two samples, where a command can have more than one. Atoms need more of them."""
    if command == 'atoms':
        return [] if kind_of(name) == 'images' else ['--dataset=long', '--num_samples=50']
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
@pytest.mark.parametrize('name, commands', [
    ('crate', analyze.COMMANDS), ('vit', ['layers', 'subspaces', 'atoms']),
    ('crate_bert', ['tokens', 'attention', 'atoms']), ('functions', ['layers'])])
def test_every_command_does_without_float64(name, commands, look):
    """The numbers are those of the CPU up to rounding. Networks after the first have the commands
    that do something else with them."""
    for command in commands:
        want = look(command, name, '--device=cpu', *few(command, name))
        with FakeMPS():
            close(look(command, name, '--device=mps', *few(command, name)), want, 1e-2, 1e-3)


# ---- samples


def many(folder, n):
    return tree(folder, {f'{"ab"[i % 2]}/{i}.jpg': jpeg(30, 20) for i in range(n)})


@pytest.mark.parametrize('command', ['attention', 'pca', 'objects'])
def test_too_many_pictures_for_a_figure_are_refused_before_any_work(command, place, tmp_path,
                                                                    capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = command, f'--ckpt={place}/runs/crate', f'--data_dir={place}/data'
    assert 'num_samples' in fails(capsys, analyze.main, *words, '--num_samples=500')
    if command == 'attention':
        folder = many(tmp_path / 'mine', 41)
        tree(folder, {'c.jpg': jpeg(30, 20)})   # so they are no classes
        assert '--num_samples' in fails(capsys, analyze.main, *words, f'--image={folder}')
    assert not list(tmp_path.glob('*.*'))


def test_as_many_pictures_of_class_folders_as_are_wanted(look, tmp_path):
    folder = many(tmp_path / 'mine', 10)
    for words, n in (([], 4), (['--num_samples=6'], 6)):
        rows = look('attention', 'crate', f'--image={folder}', *words)
        assert len({row['picture'] for row in rows}) == n


def test_another_image_size(look):
    """Its positions are tested in tests/engine/test_networks.py."""
    rows = look('attention', 'crate', '--image={place}/FOLDER/0.png', '--image_size=20,40')
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


@pytest.mark.parametrize('command', ['layers', 'denoise', 'tweedie'])
def test_a_setting_out_of_its_range_is_named(command, place, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Config = analyze.AnalyzeConfig if command == 'layers' else analyze.THEORIES[command][1]
    run = [f'--ckpt={place}/runs/crate'] * (command == 'layers')
    ranges = {name: both for name, both in (RANGES | Config.ranges).items() if hasattr(Config, name)}
    for name, (least, most) in ranges.items():
        for value in (least - 1, *([] if most is None else (2 * most + 1, 'nan'))):
            assert name in fails(capsys, analyze.main, command, *run, f'--{name}={value}')
    assert not list(tmp_path.iterdir())


# a command, a network or -, and words; and what the line names, if it is not the last setting
REFUSED = '''
    attention crate --layer=4
    attention crate --heads=3
    attention crate --start=abc
    attention gpt2 --start=aaaaaaaaaaaaa
    attention gpt2 --start=a
    attention gpt2 --start=FILE:nowhere             nowhere
    attention gpt2 --image={place}/FOLDER
    attention gpt2 --over=true
    layers crate --show=both
    layers aot_text --show=sparsity
    layers crate --heads=1
    layers crate --etta=1
    layers crate --n_head=4
    layers crate --out=x.csv
    layers crate --image={place}/runs
    layers crate --image=nowhere.png                nowhere.png
    layers crate --image_size=17,24
    layers crate --dataset=text
    layers crate --dataset=grey                     channels
    layers crate --dataset=none                     data/none
    layers crate --split=validation                 train,
    layers crate --device=cuda:99                   --device=auto
    layers crate --beside={place}/runs/gpt2         runs/gpt2
    layers gpt2 --dataset=letters                   tokenizer
    layers gpt2 --beside={place}/runs/letters       letters
    layers functions --dataset=cubic                sparse_linear
    layers nowhere                                  runs/nowhere
    pca crate --label=cow
    segment crate --dataset=bare                    prepare/shapes.py
    objects crate --masks_to={place}                --overwrite=true
    objects crate --cut=none --masks_to=new         --cut=none
    subspaces one_head                              one_head
    denoise crate --beside={place}/runs/vit         model_vit
    ista soft                                       ista='soft'
    denoise - --out=no/where.png
    denoise - --num_samples=3
    majorize - --tokens=65                          65
    page crate --out=page.png
    page crate --layer=2
    page crate --beside={place}/runs/vit,{place}/runs/mean     runs/mean
    page crate --beside={place}/runs/grey           runs/grey
    page letters --start=abx                        'x'
    page crate_alpha                                runs/crate_alpha
    page crate_bert                                 runs/crate_bert
    page bpe                                        runs/bpe
    augment - --n_layer=3
    augment - --out=x.txt
    augment - --dataset=absent                      data/absent
    augment - toy                                   toy
    curves - --out=y.what
    curves -                                        curves
    curves - nowhere                                nowhere
    layer -                                         subspaces
    Layerz -                                        layers
    - -                                             subspaces
'''.strip().splitlines()


@pytest.mark.parametrize('case', REFUSED)
def test_what_is_refused_is_named(case, place, tmp_path, capsys, monkeypatch):
    """In one line, before any file is written."""
    monkeypatch.chdir(tmp_path)
    said, _, named = case.strip().partition('   ')
    named = named.strip() or said.split('--')[-1].partition('=')[0]
    command, name, *words = said.format(place=place).split()
    words += [f'--ckpt={place}/runs/{name}'] * (name != '-')
    words += [f'--data_dir={place}/data'] * (name != '-' or command == 'augment')
    words = [command, *words] if command != '-' else words
    assert named in fails(capsys, analyze.main, *words)
    assert not list(tmp_path.iterdir())
