"""Two processes that want to write the same folder: one writes, and the other waits or is refused."""
import errno
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from helpers import ROOT, losses, run, snapshot

from engine import lock
from prepare.lib.pictures import save_arrays
from tasks import files

pytestmark = pytest.mark.slow
HOLD = ('import sys, time; from engine import lock\n'
        'lock.hold(sys.argv[1], "the folder", "wait"); print("held", flush=True); ')
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


@pytest.fixture
def stopped(tmp_path):
    """A preparation of tmp_path/data/d that the system has stopped while it holds the lock."""
    process = start('prepare/shapes.py', *SHAPES, tmp_path / 'data' / 'd')
    until((tmp_path / 'data' / '.d.lock').exists, process)
    process.send_signal(signal.SIGSTOP)
    yield process
    process.kill()
    process.communicate()


# ---- the lock


def test_a_lock_names_its_holder_and_ends_with_it(tmp_path):
    path = tmp_path / 'new' / 'deep' / '.lock'
    for end in (signal.SIGKILL, None):
        holder = start('-c', HOLD + 'sys.stdin.read()', path, stdin=subprocess.PIPE)
        assert holder.stdout.readline() == 'held\n'
        with pytest.raises(ValueError, match=f'the folder is being written by process {holder.pid} on .*; wait'):
            lock.hold(path, 'the folder', 'wait')
        holder.send_signal(end) if end else None
        holder.communicate()
        assert path.exists() == bool(end)  # what a killed process leaves stops nobody
    assert path.parent.exists()
    with lock.held(path, 'the folder', 'wait'):
        lock.hold(path, 'the folder', 'wait')  # once more in the same process
        assert path.read_text().startswith(f'process {os.getpid()} on ')
    assert not path.exists() and path.parent.exists()
    with lock.held(tmp_path / 'a' / 'b' / '.lock', 'the folder', 'wait'):
        assert (tmp_path / 'a' / 'b').is_dir()
    assert not (tmp_path / 'a').exists()


def test_a_forked_process_does_not_keep_the_lock(tmp_path):
    """As the readers of pictures are, which outlive a killed training process by seconds."""
    code = HOLD + 'import os; os.fork() or print(os.getpid(), flush=True); time.sleep(60)'
    holder = start('-c', code, tmp_path / '.lock')
    child = [holder.stdout.readline() for _ in range(2)][1]
    holder.kill()
    holder.wait()
    with lock.held(tmp_path / '.lock', 'the folder', 'wait'):
        os.kill(int(child), signal.SIGKILL)  # it still lived
    holder.communicate()


def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch, capsys):
    def none(*_):
        raise OSError(errno.ENOLCK, 'No locks available')
    monkeypatch.setattr(lock.fcntl, 'flock', none)
    save_arrays(tmp_path / 'd', {'train': (np.zeros((2, 4, 4), np.uint8), np.zeros(2, int))}, 'a')
    assert f'note: {tmp_path}/d is on a file system without locks (No locks available)' in capsys.readouterr().out
    assert [p.name for p in tmp_path.iterdir()] == ['d'] and files.read_meta(tmp_path / 'd')


# ---- preparations


def test_a_second_preparation_of_a_folder_is_refused(stopped, tmp_path):
    second = run('prepare/shapes.py', *SHAPES, f'{tmp_path}/data/d')
    assert second.returncode == 2 and second.stdout == '' and len(second.stderr.splitlines()) == 1
    assert f'data/d is being written by process {stopped.pid} on ' in second.stderr
    assert 'shapes.py --size 8' in second.stderr and 'give another --out' in second.stderr
    patient = start('prepare/shapes.py', '--once', *SHAPES, tmp_path / 'data' / 'd')
    assert f'written by process {stopped.pid} on ' in (said := patient.stdout.readline()) and 'waiting for it' in said
    stopped.send_signal(signal.SIGCONT)
    assert '40 pictures' in stopped.communicate()[0] and stopped.returncode == 0
    assert patient.communicate() == (f'{tmp_path}/data/d is there\n', '') and patient.returncode == 0
    assert [p.name for p in (tmp_path / 'data').iterdir()] == ['d']
    files.verify(tmp_path / 'data' / 'd')


def test_who_waits_for_a_preparation_that_is_killed_prepares(stopped, tmp_path):
    patient = start('prepare/shapes.py', '--once', *SHAPES, tmp_path / 'data' / 'd')
    assert 'waiting for it' in patient.stdout.readline()
    stopped.kill()
    said, wrong = patient.communicate()
    assert '40 pictures' in said and patient.returncode == 0, wrong
    files.verify(tmp_path / 'data' / 'd')


def test_a_refused_preparation_leaves_nothing(tmp_path):
    for words in (['cifar10.py', '--from', 'nowhere'], ['openwebtext.py', '--from', 'nowhere', '--tokenizer', 'bytes'],
                  ['shapes.py', '--size', '3']):
        done = run(f'prepare/{words[0]}', *words[1:], cwd=tmp_path)
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr
        assert not list(tmp_path.iterdir()), words


# ---- runs


def test_two_first_runs_of_a_fresh_clone_both_go_on(tmp_path):
    words = ['--max_iters=1', '--eval_iters=1', '--n_layer=1', '--n_head=2', '--n_embd=16', '--block_size=16',
             '--compile=false']
    both = [start('train.py', *words, f'--out_dir=out/{i}', cwd=tmp_path) for i in range(2)]
    for process in both:
        said, wrong = process.communicate(timeout=100)
        assert process.returncode == 0 and wrong == '' and 'validation  loss' in said, wrong
    assert [p.name for p in (tmp_path / 'data').iterdir()] == ['stdlib']
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
        assert f'{out} is being written by process {first.pid} on ' in wrong
    first.send_signal(signal.SIGSTOP)
    before = snapshot(out)
    first.send_signal(signal.SIGCONT)
    first.send_signal(signal.SIGINT)
    first.communicate()
    assert first.returncode == 130 and not (out / '.lock').exists()
    steps = [int(row.split(',')[0]) for row in losses(out)[1:] if ',train,' in row]
    assert steps == list(range(0, steps[-1] + 1, 5)) and (out / 'log.csv').read_bytes().startswith(before['log.csv'])
