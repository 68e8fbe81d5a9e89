"""A run that is killed at any renaming, any flush of the log or any step, and goes on, is the run that never was."""
import itertools
import os
import signal

import pytest
import torch
from helpers import HARD, equal, go, losses, weights
from torch.utils._pytree import tree_leaves

import train
from engine.checkpoint import RunDirectory
from engine.trained import read_last

pytestmark = pytest.mark.skipif(not hasattr(os, 'fork'), reason='the system cannot fork')


def killed(n, words):
    """Train in a process of its own, which is killed with -9 before or after its n-th renaming, row of the log or step,
    counted together. Returns whether there were so many."""
    child = os.fork()
    if not child:
        counted = itertools.count(1)

        def mortal(function):
            def call(*args, **more):
                for moment in (lambda: None, lambda: function(*args, **more)):
                    result = moment()
                    if next(counted) == n:
                        os.kill(os.getpid(), signal.SIGKILL)
                return result
            return call
        os.replace, RunDirectory.log = mortal(os.replace), mortal(RunDirectory.log)
        train.optim.set_rates = mortal(train.optim.set_rates)
        try:
            go(*words)
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def without_rates(optimizer):
    """All of an optimizer's state but its learning rates, which each step sets anew: a finished run that is resumed has
    taken no step."""
    groups = [{k: v for k, v in group.items() if k != 'lr'} for group in optimizer['param_groups']]
    return optimizer['state'], groups


@pytest.mark.slow
def test_a_kill_at_any_moment_loses_nothing(tiny, tmp_path):
    words = [*tiny, *HARD, '--ema=0.9', '--eval_interval=2', '--keep_checkpoints=true']
    go(*words, f'--out_dir={tmp_path}/whole')
    for n in itertools.count(1):
        out = tmp_path / str(n)
        if not killed(n, [*words, f'--out_dir={out}']):
            break
        again = ['--init_from=resume'] if (out / 'last.pt').exists() else [*words, '--overwrite=true']
        go(*again, f'--out_dir={out}')
        assert losses(out) == losses(tmp_path / 'whole'), n
        files = ({p.name for p in run.iterdir() if p.suffix != '.new'} for run in (out, tmp_path / 'whole'))
        assert next(files) >= next(files) - {'curve.png'}, n  # a finished run is not drawn again
        for name in ('last', 'average', 'best', 'step_4'):
            assert equal(weights(out, name), weights(tmp_path / 'whole', name)), (n, name)
        states = (tree_leaves([without_rates(o) for o in read_last(run)['optimizers']])
                  for run in (out, tmp_path / 'whole'))
        for mine, own in zip(*states, strict=True):
            assert torch.equal(mine, own) if isinstance(own, torch.Tensor) else mine == own, n
    assert n > 50  # two for each of 4 validations' rows and files, 6 steps and their rows, config.json and curve.png
