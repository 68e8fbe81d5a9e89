"""Runs that get worse: what they say, when they end, which weights they keep; and what goes on with a run."""
import contextlib
import io
import re
import shlex

import numpy as np
import pytest
from helpers import column, config_of, equal, fails, go, weights

import train
from engine.checkpoint import read_log
from lib.texts import write_text
from weights.runs import read_last, read_weights

TINY = '''--dataset=noise --n_layer=1 --n_head=2 --n_embd=32 --block_size=16 --batch_size=8 --eval_interval=3
          --eval_iters=4 --warmup_iters=0 --schedule=constant --optimizer=adamw --learning_rate=3e-2
          --show_samples=false --dtype=float32 --device=cpu --compile=false'''.split()


@pytest.fixture(scope='module')
def noise(tmp_path_factory):
    """A folder with data that can be learned by heart alone: letters at random."""
    rng = np.random.default_rng(0)
    texts = {name: ''.join(rng.choice(list('abcd'), n)) for name, n in (('train', 200), ('val', 400))}
    folder = tmp_path_factory.mktemp('noise')
    write_text(folder / 'noise', 'bytes', texts)
    return folder


@pytest.fixture(scope='module')
def printed_and_run(noise, tmp_path_factory):
    """(what a run prints, its directory)"""
    out = tmp_path_factory.mktemp('long') / 'run'
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        go(*TINY, f'--data_dir={noise}', '--max_iters=90', f'--out_dir={out}')
    return printed.getvalue(), out


@pytest.fixture
def long_run(printed_and_run):
    _, out = printed_and_run
    return out


def best_step(out):
    rows = [row for row in read_log(out) if row['split'] == 'val']
    return min(rows, key=lambda row: row['loss'])['step']


@pytest.mark.parametrize('patience', [1, 4])
def test_a_run_ends_after_so_many_validations_without_a_better_one(patience, noise, long_run, tmp_path):
    go(*TINY, f'--data_dir={noise}', '--max_iters=90', f'--patience={patience}', f'--out_dir={tmp_path}/a')
    losses = column(long_run, 'val')
    since_best = 0
    for validation, loss in enumerate(losses):
        since_best = 0 if loss == min(losses[:validation + 1]) else since_best + 1
        if since_best == patience:
            break
    assert since_best == patience and validation < 30
    assert column(tmp_path / 'a', 'val') == losses[:validation + 1]
    assert read_weights(tmp_path / 'a' / 'best.safetensors')[1] == best_step(tmp_path / 'a')


def test_a_resumed_run_has_the_same_patience(noise, tmp_path):
    go(*TINY, f'--data_dir={noise}', '--max_iters=90', '--patience=4', f'--out_dir={tmp_path}/a')
    end = read_last(tmp_path / 'a')['step']
    assert end < 90
    go(*TINY, f'--data_dir={noise}', f'--max_iters={end - 3}', '--patience=4', f'--out_dir={tmp_path}/b')
    go('--init_from=resume', f'--out_dir={tmp_path}/b', '--max_iters=90')
    assert read_last(tmp_path / 'b')['step'] == end
    assert equal(weights(tmp_path / 'a'), weights(tmp_path / 'b'))
    go('--init_from=resume', f'--out_dir={tmp_path}/b')  # its patience is at an end already
    assert read_last(tmp_path / 'b')['step'] == end


def test_without_patience_it_says_which_step_was_best(printed_and_run):
    printed, out = printed_and_run
    _, _, end = printed.partition('\ndone')
    assert best_step(out) < 90
    assert f'step {best_step(out)},' in end


@pytest.mark.parametrize('interval', [3, 60])
def test_fine_tuning_that_makes_it_worse_says_so_however_seldom_one_looks(interval, noise, long_run, tmp_path, capsys):
    go(*TINY, f'--data_dir={noise}', f'--init_from={long_run}', f'--eval_interval={interval}', '--max_iters=60',
       f'--out_dir={tmp_path}/a')
    _, _, end = capsys.readouterr().out.partition('\ndone')
    assert best_step(tmp_path / 'a') == 0
    assert 'step 0,' in end


def test_a_run_that_gets_better_says_nothing_of_it(tiny, tmp_path, capsys):
    go(*tiny, f'--out_dir={tmp_path}/a')
    assert 'best at step' not in capsys.readouterr().out


# ---- going on

def test_without_out_dir_the_default_run_goes_on(tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    here = [word for word in tiny if not word.startswith('--out_dir')]
    go(*here)
    out = next((tmp_path / 'out').iterdir())
    names = [word for word in here if word.startswith(('--dataset', '--model'))]
    go('--init_from=resume', *names, '--max_iters=9')
    assert read_last(out)['step'] == 9


def test_the_refusal_of_a_second_run_holds_the_command_that_goes_on(tiny, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = "out/it's a run"  # as a shell reads it
    go(*tiny, f'--out_dir={out}')
    line = fails(capsys, train.main, *tiny, f'--out_dir={out}')
    command = re.search('python train.py (.*?);', line)[1]
    go(*shlex.split(command), '--max_iters=8')
    assert config_of(out)['max_iters'] == 8
