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
from helpers import ROOT, fails, go, losses, snapshot

import train
from engine.checkpoint import read_log
from lib.files import hold
from lib.pictures import save_arrays
from tasks import checksums, files

pytestmark = pytest.mark.slow
SHAPES = 'prepare/shapes.py', '--size', '8', '--train', '40', '--val', '10', '--test', '10', '--out'


def start(*words, **more):
    words = (str(ROOT / words[0]), *words[1:]) if words[0].endswith('.py') else words
    more = {'stdout': subprocess.PIPE, 'stderr': subprocess.PIPE, 'cwd': ROOT} | more
    return subprocess.Popen([sys.executable, *map(str, words)], text=True, **more)


def until(condition, process):
    """Wait until condition() holds, which `process` is working on."""
    since = time.monotonic()
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() - since < 300
        time.sleep(0.005)


def locked(path):
    """Whether another process has locked a file."""
    if path.exists():
        with open(path, 'a') as f:
            try:
                fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
    return False


@pytest.mark.parametrize('killed', [False, True])
def test_a_second_preparation_of_a_folder_waits_and_replaces_nothing(killed, tmp_path):
    """Which the system has stopped while it holds the folder. If it is killed, who waits prepares."""
    out = tmp_path / 'data' / 'd'
    stopped = start(*SHAPES, out)
    until(lambda: locked(out.with_name('.d.lock')), stopped)
    stopped.send_signal(signal.SIGSTOP)
    patient, second = start(*SHAPES, out, '--once'), start(*SHAPES, out)
    for other in (patient, second)[:2 - killed]:
        assert 'waiting' in other.stdout.readline()
    if killed:
        second.kill(), stopped.kill()
    else:
        stopped.send_signal(signal.SIGCONT)
        assert stopped.wait(300) == 0
        assert '--overwrite' in second.communicate()[1] and second.returncode == 2
    said, wrong = patient.communicate()
    assert patient.returncode == 0 and wrong == '' and ('40 pictures' in said) == killed
    for process in (stopped, second):
        process.communicate()
    assert {p.name for p in out.parent.iterdir()} == {'d', '.d.lock'}
    checksums.verify(out)


def test_a_file_system_without_locks_is_written_all_the_same(tmp_path, monkeypatch):
    def none(*_):
        raise OSError(errno.ENOLCK, 'No locks available')
    monkeypatch.setattr(fcntl, 'lockf', none)
    save_arrays(tmp_path / 'd', {'train': (np.zeros((2, 4, 4), np.uint8), np.zeros(2, int))}, 'a')
    assert files.read_meta(tmp_path / 'd')['classes'] == ['a']


HOLD = """
import fcntl
import sys
import time
lock_file = open(sys.argv[1], 'ab')
fcntl.lockf(lock_file, fcntl.LOCK_EX)
print('held', flush=True)
time.sleep(float(sys.argv[2]))
"""


def hold_elsewhere(path, seconds):
    """Let another process lock a file for so many seconds."""
    process = start('-c', HOLD, path, seconds)
    process.stdout.readline()
    return process


@pytest.fixture
def storm():
    """A signal every millisecond, which interrupts each call of the system that waits. Returns a list that grows by
    one with each signal."""
    caught = []
    handler = signal.signal(signal.SIGALRM, lambda *_: caught.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    yield caught
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, handler)


def test_who_waits_for_a_folder_waits_on_after_each_signal_and_then_has_it(tmp_path, storm):
    other = hold_elsewhere(tmp_path / '.d.lock', 2)
    signals_before = len(storm)
    hold(tmp_path / 'd')
    assert other.wait(0.5) == 0 and len(storm) > signals_before + 100
    assert start('-c', HOLD.replace('LOCK_EX)', 'LOCK_EX | fcntl.LOCK_NB)'), tmp_path / '.d.lock', 0).wait() != 0


def test_signals_neither_let_two_runs_into_a_folder_nor_stop_the_first(tiny, tmp_path, capsys, storm):
    (tmp_path / 'run').mkdir()
    other = hold_elsewhere(tmp_path / 'run' / '.lock', 600)
    assert str(tmp_path) in fails(capsys, train.main, *tiny, f'--out_dir={tmp_path}/run')
    other.kill()
    other.wait()
    go(*tiny, f'--out_dir={tmp_path}/run')
    assert len(losses(tmp_path / 'run')) > 6


def test_ctrl_c_ends_the_waiting_for_a_folder(tmp_path):
    other = hold_elsewhere(tmp_path / '.d.lock', 600)
    waiting = start(*SHAPES, tmp_path / 'd')
    assert 'waiting' in waiting.stdout.readline()
    waiting.send_signal(signal.SIGINT)
    _, errors = waiting.communicate(timeout=60)
    assert waiting.returncode == 130 and errors == '' and not (tmp_path / 'd').exists()
    other.kill()
    other.communicate()


def test_a_run_under_way_is_neither_resumed_nor_replaced_and_ends_in_order(quads, tmp_path, capsys):
    """With its readers, which get the signal too, as from Ctrl-C in a terminal and from `timeout`."""
    out, words = tmp_path / 'run', [*quads, '--dataset=pack', '--image_size=8', '--workers=2', '--max_iters=100000']
    first = start('train.py', *words, '--log_interval=5', '--eval_interval=20', f'--out_dir={out}',
                  start_new_session=True, stdout=subprocess.DEVNULL)
    until(lambda: (out / 'last.pt').exists() and len(losses(out)) > 10, first)
    for words in (['--init_from=resume'], [*words, '--overwrite=true']):
        assert str(out) in fails(capsys, train.main, *words, f'--out_dir={out}')
    first.send_signal(signal.SIGSTOP)
    before = snapshot(out)
    first.send_signal(signal.SIGCONT)
    os.killpg(first.pid, signal.SIGTERM)
    assert first.communicate() == (None, 'stopping after this step\n')
    steps = [row['step'] for row in read_log(out) if row['split'] == 'train']
    assert first.returncode == 128 + signal.SIGTERM and steps == list(range(0, steps[-1] + 1, 5))
    assert (out / 'log.jsonl').read_bytes().startswith(before['log.jsonl'])
