"""Two processes that want to write the same folder: one writes, and the other waits or is refused."""
import errno
import fcntl
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from helpers import ROOT, losses, run, snapshot

from engine.checkpoint import read_log
from prepare.lib.files import hold
from prepare.lib.pictures import save_arrays
from tasks import files

pytestmark = pytest.mark.slow
SHAPES = '--size', '8', '--train', '40', '--val', '10', '--test', '10', '--out'


def start(*words, **more):
    words = (str(ROOT / words[0]), *words[1:]) if words[0].endswith('.py') else words
    more = {'stdout': subprocess.PIPE, 'stderr': subprocess.PIPE, 'cwd': ROOT} | more
    return subprocess.Popen([sys.executable, *map(str, words)], text=True, **more)


def until(condition, process):
    """Wait until condition() holds, which `process` is working on."""
    since = time.monotonic()
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() - since < 60
        time.sleep(0.005)


# ---- preparations


def locked(path):
    """Whether another process has locked a file."""
    if path.exists():
        with open(path, 'a') as f:
            try:
                fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
    return False


@pytest.fixture
def stopped(tmp_path):
    """A preparation of tmp_path/data/d that the system has stopped while it holds the folder."""
    process = start('prepare/shapes.py', *SHAPES, tmp_path / 'data' / 'd')
    until(lambda: locked(tmp_path / 'data' / '.d.lock'), process)
    process.send_signal(signal.SIGSTOP)
    yield process
    process.kill()
    process.communicate()


def test_a_second_preparation_of_a_folder_waits_and_replaces_nothing(stopped, tmp_path):
    others = [start('prepare/shapes.py', *once, *SHAPES, tmp_path / 'data' / 'd') for once in ([], ['--once'])]
    for other in others:
        assert 'waiting for it' in other.stdout.readline()
    stopped.send_signal(signal.SIGCONT)
    assert '40 pictures' in stopped.communicate()[0] and stopped.returncode == 0
    second, patient = others
    assert '--overwrite' in second.communicate()[1] and second.returncode == 2
    assert patient.communicate() == (f'{tmp_path}/data/d is there\n', '') and patient.returncode == 0
    assert {p.name for p in (tmp_path / 'data').iterdir()} == {'d', '.d.lock'}
    files.verify(tmp_path / 'data' / 'd')


def test_who_waits_for_a_preparation_that_is_killed_prepares(stopped, tmp_path):
    patient = start('prepare/shapes.py', '--once', *SHAPES, tmp_path / 'data' / 'd')
    assert 'waiting for it' in patient.stdout.readline()
    stopped.kill()
    said, wrong = patient.communicate()
    assert '40 pictures' in said and patient.returncode == 0, wrong
    files.verify(tmp_path / 'data' / 'd')


def test_a_refused_preparation_leaves_no_data(tmp_path):
    for words in (['cifar10.py', '--from', 'nowhere'], ['openwebtext.py', '--from', 'nowhere', '--tokenizer', 'bytes'],
                  ['shapes.py', '--size', '3']):
        done = run(f'prepare/{words[0]}', *words[1:], cwd=tmp_path)
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr
        assert not [p for p in tmp_path.rglob('*') if p.is_file() and p.suffix != '.lock'], words


def test_a_forked_process_does_not_keep_a_folder(tmp_path, capsys):
    """As the readers of pictures are, which outlive a killed process by seconds."""
    code = ('import os, sys, time; from prepare.lib.files import hold; hold(sys.argv[1]); '
            'os.fork() or print(os.getpid(), flush=True); time.sleep(60)')
    holder = start('-c', code, tmp_path / 'd')
    child = int(holder.stdout.readline())
    holder.kill()
    holder.wait()
    hold(tmp_path / 'd')
    os.kill(child, signal.SIGKILL)  # it still lived
    holder.communicate()
    assert capsys.readouterr().out == ''


def test_a_file_system_without_locks_is_written_all_the_same(tmp_path, monkeypatch):
    def none(*_):
        raise OSError(errno.ENOLCK, 'No locks available')
    monkeypatch.setattr(fcntl, 'lockf', none)
    save_arrays(tmp_path / 'd', {'train': (np.zeros((2, 4, 4), np.uint8), np.zeros(2, int))}, 'a')
    assert files.read_meta(tmp_path / 'd')['classes'] == ['a']


# ---- runs


def test_two_first_runs_of_a_fresh_clone_both_go_on(tmp_path):
    words = ['--max_iters=1', '--eval_iters=1', '--n_layer=1', '--n_head=2', '--n_embd=16', '--block_size=16',
             '--compile=false']
    both = [start('train.py', *words, f'--out_dir=out/{i}', cwd=tmp_path) for i in range(2)]
    for process in both:
        said, wrong = process.communicate(timeout=100)
        assert process.returncode == 0 and wrong == '' and 'validation  loss' in said, wrong
    assert {p.name for p in (tmp_path / 'data').iterdir()} == {'stdlib', '.stdlib.lock'}
    assert losses(tmp_path / 'out' / '0') == losses(tmp_path / 'out' / '1')


def test_a_run_under_way_is_neither_resumed_nor_replaced(tiny, tmp_path):
    out = tmp_path / 'run'
    first = start('train.py', *tiny, '--max_iters=100000', '--eval_interval=20', '--log_interval=5', '--compile=false',
                  f'--out_dir={out}', stdout=subprocess.DEVNULL)
    until(lambda: (out / 'last.pt').exists() and len(losses(out)) > 10, first)
    others = [start('train.py', *words, f'--out_dir={out}')
              for words in (['--init_from=resume'], [*tiny, '--overwrite=true'])]
    for other in others:
        wrong = other.communicate()[1]
        assert other.returncode == 2 and len(wrong.splitlines()) == 1, wrong
        assert f'{out} is being written by another process' in wrong
    first.send_signal(signal.SIGSTOP)
    before = snapshot(out)
    first.send_signal(signal.SIGCONT)
    first.send_signal(signal.SIGINT)
    first.communicate()
    steps = [row['step'] for row in read_log(out) if row['split'] == 'train']
    assert first.returncode == 130 and steps == list(range(0, steps[-1] + 1, 5))
    assert (out / 'log.jsonl').read_bytes().startswith(before['log.jsonl'])
