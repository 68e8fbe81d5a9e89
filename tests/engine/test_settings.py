"""Settings from files and the command line, and the help that lists them."""
import dataclasses
import re

import pytest

import train
from engine import networks, settings
from engine.mistakes import Mistake
from request import help
from sample import SampleConfig
from tasks.augment import AugmentConfig


@dataclasses.dataclass
class C:
    n_layer: int = 2        # layers
    rate: float = 0.5       # rate
    flag: bool = False      # flag
    name: str = 'a'         # name
    note: str = ''          # note


def read(*words):
    return settings.check(settings.collect(words), C)


def test_files_and_both_forms_of_the_command_line(tmp_path):
    file = tmp_path / 'c.py'
    file.write_text('import math\n_half = 2\nn_layer = 3 * _half\nrate = 1\nname = "from file"\n')
    assert read(str(file)) == {'n_layer': 6, 'rate': 1.0, 'name': 'from file'}
    assert read('--name=typed', str(file))['name'] == 'typed'  # typed words win wherever they stand
    assert read('--n_layer', '4', '--rate=2', '--flag=TRUE', '--name=a=b=c') == \
        {'n_layer': 4, 'rate': 2.0, 'flag': True, 'name': 'a=b=c'}
    assert read('--rate', '-1e-3', '--note=', '--n_layer=-3', '--flag=false') == \
        {'rate': -1e-3, 'note': '', 'n_layer': -3, 'flag': False}
    assert read('--flag') == read('--flag', 'true') == {'flag': True}
    assert read('--flag', '--rate=2') == {'flag': True, 'rate': 2.0}
    assert type(read('--rate=2')['rate']) is float and type(read('--name=12')['name']) is str


@pytest.mark.parametrize('text, name', [
    ('layers = 3', 'n_layer'), ('n_layer = 2.0', 'n_layer'), ('n_layer = "3"', 'n_layer'),
    ('name = 3', 'name'), ('rate = True', 'rate')])
def test_mistakes_in_a_file(text, name, tmp_path):
    (tmp_path / 'c.py').write_text(text)
    with pytest.raises(Mistake) as e:
        read(f'{tmp_path}/c.py')
    assert name in str(e.value) and 'c.py' in str(e.value)


@pytest.mark.parametrize('value, low, high', [
    (float('inf'), 0, 1e30), (10 ** 40, 1, 1e30), (8, 0, 7), (-8, 0, 7)])
def test_a_value_that_is_out_of_its_range_is_shown_the_end_that_it_has_passed(value, low, high):
    passed = high if value > high else low
    with pytest.raises(Mistake, match=re.escape(str(passed))):
        settings.check_ranges(C(rate=value), {(low, high): ['rate']})


# ---- help

def test_help_lists_every_setting_with_its_meaning(capsys):
    for name in networks.names():
        train.main([f'--model={name}', '--help'])
    said = capsys.readouterr().out + help.help_text('', SampleConfig)
    lines = [line.split() for line in said.splitlines() if line.startswith('  --')]
    assert all(len(words) > 1 for words in lines)
    names = {words[0].partition('=')[0].strip('-') for words in lines}
    configs = train.TrainConfig, AugmentConfig, SampleConfig, *(networks.config_class(name) for name in networks.names())
    assert all(f.name in names for c in configs for f in dataclasses.fields(c))


@pytest.mark.parametrize('words, shown', [
    (['--n_layer=3'], {'n_layer': 3, 'n_embd': 256, 'optimizer': 'muon'}),
    (['config/train_crate_shapes.py', '--seed=8'], {'crop_scale': 0.6, 'n_embd': 192, 'seed': 8})])
def test_help_shows_the_values_of_the_run_that_is_asked_for(words, shown, capsys):
    train.main([*words, '--help'])
    said = capsys.readouterr().out.split('Other networks')[0]
    assert all(f'  --{name}={value} ' in said for name, value in shown.items())
