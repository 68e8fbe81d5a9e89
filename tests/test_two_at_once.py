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
from helpers import ROOT, fails, losses, snapshot

import train
from engine.checkpoint import read_log
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


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_a_run_under_way_is_neither_resumed_nor_replaced_and_ends_in_order(number, quads, tmp_path, capsys):
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
    os.killpg(first.pid, number)
    assert first.communicate() == (None, 'stopping after this step\n')
    steps = [row['step'] for row in read_log(out) if row['split'] == 'train']
    assert first.returncode == 128 + number and steps == list(range(0, steps[-1] + 1, 5))
    assert (out / 'log.jsonl').read_bytes().startswith(before['log.jsonl'])
