"""What a run prints: what it is, how long it will take, and what to type next, which must work."""
import os
import shlex
import shutil

import pytest
from helpers import HARD_PICTURES, JPEGS, OF_CRATE_MAE, OF_PICTURES, equal, go, losses, run, snapshot, weights

from engine.settings import quoted

RUNS = {'text': ['--model=aot', '--n_layer=1', '--n_head=2', '--n_embd=16', '--block_size=16', '--dataset=text'],
        'gaps': ['--model=crate', '--causal=false', '--n_layer=1', '--n_head=2', '--n_embd=16', '--block_size=16',
                 '--dataset=text'],
        'pictures': [*OF_PICTURES, *HARD_PICTURES, '--dataset=quads'],
        'masked': [*OF_CRATE_MAE, '--dataset=quads'],
        'functions': ['--model=aot', '--dataset=linear', '--n_dims=2', '--block_size=6', '--n_layer=1', '--n_head=2',
                      '--n_embd=16']}


@pytest.mark.slow
@pytest.mark.parametrize('task', RUNS)
def test_the_commands_at_the_end_of_a_run_work(task, pictures_data, tmp_path):
    done = run('train.py', f'--data_dir={pictures_data}', *RUNS[task], '--max_iters=4', '--eval_interval=2',
               '--out_dir=out/it', cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    recipe, first, second, third, *rest = done.stdout.splitlines()
    assert recipe.startswith('settings of config/') and third.startswith('on cpu x 1 with ')
    assert 'M parameters; learns ' in first and first.endswith('writes to out/it')
    assert second.startswith('4 steps of ') and second.endswith('a validation every 2 steps')
    assert rest[0].startswith('step      0 of 4  validation  loss')
    assert '/s' in rest[1] and 'left' not in rest[1]  # one step tells nothing
    holds, *commands = rest[-3:]
    assert {*holds.rpartition(' holds ')[2].split(', ')} == {*snapshot(tmp_path / 'out' / 'it')}
    (tmp_path / 'picture.jpg').write_bytes(JPEGS['train'][0][2])
    for command in commands:
        words = shlex.split(command.replace('PICTURE', 'picture.jpg').partition('python ')[2])
        done = run(*words, cwd=tmp_path)
        assert done.returncode == 0, (command, done.stderr)


def test_a_run_that_is_done_ends_the_same_again(text_run, tmp_path, capsys):
    copy = shutil.copytree(text_run, tmp_path / 'a')
    before, last = losses(copy), weights(copy)
    go('--init_from=resume', f'--out_dir={copy}')
    assert 'done: 6 steps' in capsys.readouterr().out
    assert losses(copy) == before and equal(weights(copy), last)


def test_paths_are_quoted_as_the_shell_of_the_system_needs_it(monkeypatch):
    assert [quoted(path) for path in ('out/a', 'out/a b')] == ['out/a', "'out/a b'"]
    monkeypatch.setattr(os, 'name', 'nt')
    assert [quoted(path) for path in ('out\\a', 'out\\a b')] == ['out\\a', '"out\\a b"']


