import dataclasses

import pytest

import train
from engine import networks, settings
from sample import SampleConfig
from tasks.augment import AugmentConfig


@dataclasses.dataclass
class C:
    n_layer: int = 2        # layers
    rate: float = 0.5       # rate
    flag: bool = False      # flag
    name: str = 'a'         # name


def read(*words):
    return settings.check(settings.collect(words), C)


def test_files_and_both_forms_of_the_command_line(tmp_path):
    file = tmp_path / 'c.py'
    file.write_text('import math\n_half = 2\nn_layer = 3 * _half\nrate = 1\nname = "from file"\n')
    assert read(str(file)) == {'n_layer': 6, 'rate': 1.0, 'name': 'from file'}
    assert read('--name=typed', str(file))['name'] == 'typed'  # typed words win wherever they stand
    assert read('--n_layer', '4', '--rate=2', '--flag=TRUE', '--name=a=b=c') == \
        {'n_layer': 4, 'rate': 2.0, 'flag': True, 'name': 'a=b=c'}
    assert read('--rate', '-1e-3', '--name=', '--n_layer=-3', '--flag=false') == \
        {'rate': -1e-3, 'name': '', 'n_layer': -3, 'flag': False}
    assert read('--flag') == read('--flag', '--flag=true') == read('--flag', 'true') == {'flag': True}
    assert read('--flag', '--rate=2') == {'flag': True, 'rate': 2.0}
    assert type(read('--rate=2')['rate']) is float and type(read('--name=12')['name']) is str


def test_a_file_cannot_touch_the_program(tmp_path):
    file = tmp_path / 'c.py'
    file.write_text('rate = 0.25\ndataclasses = None\n')
    with pytest.raises(ValueError, match='unknown setting dataclasses'):
        read(str(file))
    assert settings.dataclasses is not None


@pytest.mark.parametrize('word, message', [
    ('--n_layers=3', 'unknown setting n_layers in the command line; did you mean n_layer?'),
    ('--qqqqq=3', '--help lists all'),
    ('--n_layer=3.5', 'expected a whole number'), ('--n_layer=many', 'expected a whole number'),
    ('--n_layer=true', 'expected a whole number'),
    ('--rate=fast', 'expected a number'), ('--rate=true', 'expected a number'),
    ('--flag=1', 'expected true or false'), ('--flag=yes', 'expected true or false'),
    ('--rate', 'expected a number'),
    ('--flags', 'did you mean flag?'), ('no_such.py', 'no config file no_such.py')])
def test_mistakes_on_the_command_line(word, message):
    with pytest.raises(ValueError) as e:
        read(word)
    assert message in str(e.value)


@pytest.mark.parametrize('text, message', [
    ('n_layrs = 3', 'unknown setting n_layrs in'), ('n_layer = 2.0', 'expected a whole number'),
    ('flag = 1', 'expected true or false'), ('name = 3', 'expected a string'),
    ('n_layer = "3"', 'expected a whole number'), ('rate = True', 'expected a number'),
    ('rate = \n', 'line 1: SyntaxError'), ('n_layer = 2\nrate = 1 / 0', 'line 2: ZeroDivisionError')])
def test_mistakes_in_a_file(tmp_path, text, message):
    file = tmp_path / 'c.py'
    file.write_text(text)
    with pytest.raises(ValueError) as e:
        read(str(file))
    assert message in str(e.value) and 'c.py' in str(e.value)


CONFIGS = [networks.network(name)[1] for name in networks.names()]


@pytest.mark.parametrize('cls', [train.TrainConfig, AugmentConfig, SampleConfig, *CONFIGS])
def test_every_setting_has_a_meaning_of_one_line(cls):
    meaning = settings.meanings(cls)
    for f in dataclasses.fields(cls):
        assert len(meaning[f.name]) > 5, f.name
    text = settings.help_text('usage', cls)
    assert all(f'--{f.name}=' in text for f in dataclasses.fields(cls))


def test_help_of_train_lists_every_setting(capsys):
    train.main(['--help'])
    said = capsys.readouterr().out
    for cls in (train.TrainConfig, AugmentConfig, *CONFIGS):
        assert all(f'--{f.name}=' in said for f in dataclasses.fields(cls)), cls


@pytest.mark.parametrize('words, shown', [
    ([], {'n_layer': 6, 'n_embd': 256, 'optimizer': 'muon'}), (['--n_layer=3'], {'n_layer': 3, 'n_embd': 256}),
    (['config/train_crate_shapes.py', '--seed=8'], {'crop_scale': 0.6, 'n_embd': 192, 'seed': 8})])
def test_help_shows_the_values_of_the_run_that_is_asked_for(words, shown, capsys):
    train.main([*words, '--help'])
    said = capsys.readouterr().out.split('Other networks')[0]
    assert f'`{" ".join(["python train.py", *words])}`' in said
    assert all(f'  --{name}={value} ' in said for name, value in shown.items())


@pytest.mark.parametrize('Config', CONFIGS)
def test_no_name_means_two_things(Config):
    names = [f.name for cls in (train.TrainConfig, AugmentConfig, Config) for f in dataclasses.fields(cls)]
    assert len(names) == len(set(names))
