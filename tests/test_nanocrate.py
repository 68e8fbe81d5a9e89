"""nanocrate.train, from Python: its settings, and what it leaves of the process that calls it."""
import signal

import numpy as np
import pytest
from helpers import config, config_of, fails, go

import nanocrate
import train
from engine import settings
from engine.mistakes import Mistake

SHAPES = config('train_crate_shapes')


# ---- settings

VALUES = {'n_layer': 1, 'n_head': 2, 'n_embd': 16, 'image_size': (8, 12), 'patch_size': 4,
          'flip': False, 'compile': False, 'learning_rate': np.float64(1e-3), 'seed': np.int64(5),
          'grad_clip': 1, 'max_iters': 1, 'eval_iters': 1, 'batch_size': 4, 'dataset': 'quads'}


def test_values_from_python_are_those_of_the_command_line(pictures_data, tmp_path):
    nanocrate.train(SHAPES, **VALUES, data_dir=pictures_data, out_dir=tmp_path / 'called')

    words = [f'--{name}={settings.show(value)}' for name, value in VALUES.items()]
    go(SHAPES, *words, f'--data_dir={pictures_data}', f'--out_dir={tmp_path}/typed')
    called = config_of(tmp_path / 'called') | {'out_dir': ''}
    typed = config_of(tmp_path / 'typed') | {'out_dir': ''}
    assert called == typed
    assert called['image_size'] == [8, 12]


@pytest.mark.parametrize('name, value', [
    ('n_layer', 1.5), ('n_layer', True), ('n_layer', None), ('n_layers', 3),
    ('learning_rate', (1, 2)), ('flip', 1), ('image_size', (1, 2, 3)), ('crop_scale', 2)])
def test_a_value_that_does_not_fit_is_the_line_of_the_command(name, value, capsys):
    line = fails(capsys, train.main, SHAPES, f'--{name}={settings.show(value)}')

    with pytest.raises(Mistake) as e:
        nanocrate.train(SHAPES, **{name: value})
    assert line == f'error: {e.value}'


@pytest.mark.parametrize('value', [None, 3])
def test_a_value_that_is_no_text_is_refused_where_a_text_is_expected(value):
    with pytest.raises(Mistake, match='wandb_run_name'):
        nanocrate.train(wandb_run_name=value)


def test_a_config_whose_settings_are_all_called_otherwise_is_still_the_config(tmp_path):
    """So it is not the default one, which has other sizes."""
    (tmp_path / 'mine.py').write_text('batch_size = 1\n')
    typed = {'batch_size': settings.Requested(2, settings.TYPED)}

    request = nanocrate.start.read([str(tmp_path / 'mine.py')], typed, train.TrainConfig,
                                   train.AugmentConfig)

    assert request.config == train.TrainConfig(batch_size=2)
    assert request.default_config == ''


# ---- signals

def test_a_handler_that_python_does_not_know_hides_no_exception(monkeypatch):
    """As where a program in C runs Python: signal.getsignal gives None."""
    monkeypatch.setattr(signal, 'getsignal', lambda number: None)

    with pytest.raises(ZeroDivisionError), nanocrate.as_it_was():
        1 / 0
