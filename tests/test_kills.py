"""A run that is stopped or killed at any moment, and goes on, is the run that never was."""
import itertools
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch
from helpers import HARD, KINDS, before_step, equal, go, losses, weights

from engine import curve, optim
from engine.checkpoint import RunDirectory
from engine.writing import write_file
from weights.runs import read_last


def same_run(a, b):
    """Fails unless two runs have the same logs, weights and states of their optimizers, bit for bit, but for
    rates, which each step sets anew: a finished run that is resumed has taken no step."""
    rates = {'lr': 0, 'weight_decay': 0}
    assert losses(a) == losses(b)
    assert all(equal(weights(a, name), weights(b, name)) for name in ('last', 'average', 'best'))
    assert {p.name for p in a.iterdir() if p.suffix != '.new'} >= {p.name for p in b.iterdir()} - {'curve.png'}
    assert equal(*([(o['state'], [g | rates for g in o['param_groups']]) for o in read_last(out)['optimizers']]
                   for out in (a, b)))


# ---- stopped by a signal, as Ctrl-C and batch systems do


STOPS = [('text', 0, signal.SIGINT), ('text', 2, signal.SIGHUP), ('text', 1, signal.SIGUSR2)]
STOPS += [(kind, 4, signal.SIGTERM) for kind in KINDS]


@pytest.mark.slow
@pytest.mark.parametrize('kind, at, number', STOPS)
def test_stopped_at_any_step_a_run_goes_on_bit_for_bit(kind, at, number, words_of, whole, tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(SystemExit) as e:
        before_step(patch, at, lambda: os.kill(os.getpid(), number))
        go(*words_of(kind), f'--out_dir={tmp_path}/a')
    assert e.value.code == 128 + number and read_last(tmp_path / 'a')['step'] == at + 1
    go('--init_from=resume', f'--out_dir={tmp_path}/a')
    same_run(tmp_path / 'a', whole(kind))


# ---- killed


@pytest.mark.parametrize('minutes, saved', [('0', 3), ('1e-9', 5)])
def test_a_killed_run_goes_on_from_its_checkpoint_bit_for_bit(minutes, saved, tiny, text_run, tmp_path, monkeypatch):
    def die():
        raise KeyboardInterrupt
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        before_step(patch, 5, die)
        go(*tiny, *HARD, f'--out_dir={tmp_path}/a', f'--checkpoint_minutes={minutes}')
    assert read_last(tmp_path / 'a')['step'] == saved
    go('--init_from=resume', f'--out_dir={tmp_path}/a')
    same_run(tmp_path / 'a', text_run)


def killed(n, words):
    """Train in a process of its own, which is killed with -9 before or after its n-th renaming, row of the log or step,
    counted together. Returns whether there were so many."""
    child = os.fork()
    if not child:
        torch.set_num_threads(1)  # a forked process has none of its parent's other threads
        counted = itertools.count(1)

        def mortal(function):
            def call(*args, **more):
                for moment in (lambda: None, lambda: function(*args, **more)):
                    result = moment()
                    if next(counted) == n:
                        os.kill(os.getpid(), signal.SIGKILL)
                return result
            return call
        os.replace, RunDirectory.log, optim.set_rates = map(mortal, (os.replace, RunDirectory.log, optim.set_rates))
        try:
            go(*words)
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, 'fork'), reason='the system cannot fork')
def test_a_kill_at_any_moment_loses_nothing(tiny, tmp_path, monkeypatch):
    # curve.png is written and renamed as always, and is empty: to draw it takes most of the time
    monkeypatch.setattr(curve, 'draw_curve', lambda run: write_file(Path(run) / 'curve.png', lambda f: f.write('')))
    words = [*tiny, *HARD, '--n_layer=1', '--ema=0.9', '--max_iters=4', '--eval_interval=2',
             '--keep_checkpoints=true']
    whole = tmp_path / 'whole'
    go(*words, f'--out_dir={whole}')
    for n in itertools.count(1):
        out = tmp_path / str(n)
        if not killed(n, [*words, f'--out_dir={out}']):
            break
        again = ['--init_from=resume'] if (out / 'last.pt').exists() else [*words, '--overwrite=true']
        go(*again, f'--out_dir={out}')
        same_run(out, whole)
        assert equal(weights(out, 'step_2'), weights(whole, 'step_2')), n
        shutil.rmtree(out)
    assert n > 40  # two for each of 3 validations' rows and files, 4 steps and their rows, config.json and curve.png
