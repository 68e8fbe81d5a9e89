"""Signals, standard streams that are closed or full, and disks that fail: the user gets one line, and the run goes on."""
import errno
import os
import signal
import subprocess
import sys
from unittest.mock import Mock

import pytest
from helpers import ROOT, before_step, equal, fails, go, losses, weights
from test_two_at_once import until

import bench
import eval
import train
from engine.checkpoint import RunDirectory
from engine.mistakes import one_line_errors
from engine.writing import write_file
from prepare import shapes
from weights.runs import read_weights

PYTHON = sys.executable
POSIX = pytest.mark.skipif(os.name != 'posix', reason='needs a POSIX shell')


def shell(line, **settings):
    return subprocess.run(['bash', '-c', line], cwd=ROOT, capture_output=True, text=True, **settings)


# ---- signals

def test_ctrl_c_twice_within_two_seconds_is_once(tiny, tmp_path, monkeypatch, capfd):
    def twice():
        for _ in range(2):      # as uv and batch systems send it
            signal.raise_signal(signal.SIGINT)
    before_step(monkeypatch, 2, twice)
    with pytest.raises(SystemExit) as e:
        go(*tiny, f'--out_dir={tmp_path}')

    said = capfd.readouterr()
    assert e.value.code == 130 and said.err == 'stopping after this step\n' and 'stopped at step 3' in said.out


def test_ctrl_c_long_after_another_one_ends_at_once(tiny, tmp_path, monkeypatch):
    clock = iter([0.0, 2.5])

    def twice():
        with monkeypatch.context() as patch:
            patch.setattr('engine.device.time.monotonic', lambda: next(clock))
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)
    before_step(monkeypatch, 2, twice)

    with pytest.raises(KeyboardInterrupt):
        go(*tiny, f'--out_dir={tmp_path}')


@POSIX
def test_a_signal_that_is_ignored_as_under_nohup_stays_so(tiny, tmp_path, monkeypatch):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        before_step(monkeypatch, 2, lambda: signal.raise_signal(signal.SIGHUP))
        go(*tiny, f'--out_dir={tmp_path}')
    finally:
        signal.signal(signal.SIGHUP, before)
    assert len(losses(tmp_path)) > 6


# ---- standard streams

PROGRAMS = ['sample.py --ckpt=trained/aot_stdlib --max_new_tokens=3', 'prepare/text.py --help',
            'course/check.py --help', '-m docs.configs --help']


@POSIX
@pytest.mark.slow
@pytest.mark.parametrize('words', PROGRAMS)
def test_closed_and_full_streams_bring_no_traceback(words):
    line = f'{PYTHON} -X utf8 {words}'
    without_stdout = shell(f'{line} >&- <&-')
    assert 'Traceback' not in without_stdout.stderr
    head = shell(f'set -o pipefail; {line} | head -c 1')
    assert 'Error' not in head.stderr and head.returncode in (0, 1, 141)
    full = shell(f'{line} > /dev/full')
    assert full.returncode == 1 and full.stderr.count('\n') <= 1 and 'Traceback' not in full.stderr


@pytest.mark.slow
def test_programs_with_progress_bars_work_without_standard_streams(
        picture_run, pictures_data, tmp_path, monkeypatch):
    commands = [
        (eval.main, [f'--ckpt={picture_run}', f'--data_dir={pictures_data}', '--knn=1']),
        (bench.main, ['step', '--rows=crate-tiny', '--n_layer=1', '--n_embd=12', '--rounds=1',
                      '--seconds=0.01']),
        (shapes.main, ['--size=8', '--train=3', '--val=3', '--test=3', f'--out={tmp_path}/s']),
    ]
    for main, words in commands:
        with monkeypatch.context() as patch:
            for name in ('stdin', 'stdout', 'stderr'):
                patch.setattr(sys, name, None)
            with one_line_errors():
                main(words)
    assert (tmp_path / 's' / 'meta.json').exists()


@POSIX
@pytest.mark.slow
def test_a_run_without_standard_streams_is_the_run_with_them(tiny, tmp_path):
    go(*tiny, f'--out_dir={tmp_path}/with')
    line = f'{PYTHON} train.py {" ".join(tiny)} --out_dir={tmp_path}/without >&- 2>&- <&-'
    assert shell(line, env=os.environ | {'OMP_NUM_THREADS': '1'}).returncode == 0

    assert losses(tmp_path / 'without') == losses(tmp_path / 'with')


# ---- the disk

@pytest.mark.parametrize('name, number, at', [
    ('replace', errno.ESTALE, 1), ('replace', errno.EISDIR, 3), ('fsync', errno.EIO, 3)])
def test_a_disk_that_fails_is_one_line_and_the_run_goes_on(name, number, at, tiny, tmp_path, capsys,
                                                           monkeypatch):
    go(*tiny, f'--out_dir={tmp_path}/whole')
    calls = []
    real = getattr(os, name)

    def failing(*arguments):
        calls.append(arguments)
        if len(calls) > 4 + at:     # after the checkpoint of step 0
            raise OSError(number, os.strerror(number))
        return real(*arguments)
    with monkeypatch.context() as patch:
        patch.setattr(os, name, failing)
        said = fails(capsys, train.main, *tiny, f'--out_dir={tmp_path}/run')
    assert 'could not write' in said and '--init_from=resume --out_dir=' in said
    assert not list((tmp_path / 'run').glob('*.new'))

    go('--init_from=resume', f'--out_dir={tmp_path}/run')
    assert losses(tmp_path / 'run') == losses(tmp_path / 'whole')
    assert equal(weights(tmp_path / 'run', 'last'), weights(tmp_path / 'whole', 'last'))


@pytest.mark.parametrize('name, number', [('write', errno.EAGAIN), ('flush', errno.EDQUOT)])
def test_a_log_that_cannot_be_written_is_one_line_and_the_run_goes_on(name, number, tiny, tmp_path,
                                                                      capsys, monkeypatch):
    def fail(*_):
        raise OSError(number, os.strerror(number))
    log = RunDirectory.log

    def log_or_fail(run_directory, step, *rest):
        if step == 4:
            run_directory.log_file = Mock(wraps=run_directory.log_file, **{f'{name}.side_effect': fail})
        log(run_directory, step, *rest)
    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, 'log', log_or_fail)
        said = fails(capsys, train.main, *tiny, f'--out_dir={tmp_path}/run')
    assert 'log.jsonl' in said and '--init_from=resume --out_dir=' in said

    go(*tiny, f'--out_dir={tmp_path}/whole')
    go('--init_from=resume', f'--out_dir={tmp_path}/run')
    assert losses(tmp_path / 'run') == losses(tmp_path / 'whole')


WRITE = """
import sys
from engine.writing import write_file
write_file(sys.argv[1], lambda file: file.write('second'))
"""


def test_two_programs_may_write_one_file(tmp_path):
    def write(file):
        file.write('first')
        subprocess.run([PYTHON, '-c', WRITE, tmp_path / 'a.csv'], cwd=ROOT, check=True)  # it begins and ends meanwhile
        assert (tmp_path / 'a.csv').read_text() == 'second'
    write_file(tmp_path / 'a.csv', write)
    assert (tmp_path / 'a.csv').read_text() == 'first' and os.listdir(tmp_path) == ['a.csv']


def test_a_fork_that_fails_keeps_its_traceback(tiny, tmp_path, monkeypatch):
    def fail():
        open(tmp_path / 'not there')
    before_step(monkeypatch, 1, fail)

    with pytest.raises(FileNotFoundError):
        go(*tiny, f'--out_dir={tmp_path}/a')


WRITER = """
import os, sys
a, b, path = sys.argv[1:]
while True:
    for source in (a, b):
        os.link(source, path + '.next')
        os.replace(path + '.next', path)
"""


@POSIX
@pytest.mark.slow
def test_weights_are_read_whole_while_others_come_into_their_place(tiny, tmp_path):
    for name, seed in (('a', 1), ('b', 7)):
        go(*tiny, f'--seed={seed}', f'--out_dir={tmp_path}/{name}')
    known = [read_weights(tmp_path / name / 'best.safetensors')[0] for name in ('a', 'b')]
    path = tmp_path / 'best.safetensors'
    writer = subprocess.Popen([PYTHON, '-c', WRITER, tmp_path / 'a' / path.name, tmp_path / 'b' / path.name, path])
    try:
        until(path.exists, writer)
        found = [read_weights(path)[0] for _ in range(1500)]
    finally:
        writer.kill()
        writer.wait()
    assert all(any(equal(weights_found, whole) for whole in known) for weights_found in found)
