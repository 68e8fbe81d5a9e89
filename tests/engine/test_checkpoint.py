"""Run directories: files are written whole or not at all; damaged, foreign and old files are
refused."""
import csv
import os
import resource
import shutil
import signal
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import HARD, ROOT, column, equal, fails, go, losses, snapshot

import engine.rundir
import train
from engine.log import Log, read_log
from engine.output import check_writable, write_file
from engine.plots import draw_curve
from engine.rundir import KEYS, load_checkpoint, save


@pytest.fixture
def copy(text_run, tmp_path):
    return shutil.copytree(text_run, tmp_path / 'copy')


# ---- nothing is lost


def test_a_run_is_not_overwritten_unasked(copy, tiny, capsys):
    before = snapshot(copy)
    said = fails(capsys, train.main, *tiny, f'--out_dir={copy}')
    assert all(word in said for word in ('already holds a run', '--init_from=resume', '--overwrite=true', '--out_dir'))
    assert snapshot(copy) == before
    go(*tiny, f'--out_dir={copy}', '--overwrite=true', '--max_iters=1')
    assert len(losses(copy)) == 4


def test_overwriting_leaves_no_results_of_old_weights(copy, tiny):
    for name in ('results.csv', 'in_context.csv', 'in_context.png', 'mine.txt'):
        (copy / name).write_text('old')
    go(*tiny, f'--out_dir={copy}', '--overwrite=true', '--max_iters=1')
    left = {p.name for p in copy.iterdir()}
    assert 'mine.txt' in left and not left & {'results.csv', 'in_context.csv', 'in_context.png'}


def test_a_signal_during_the_last_save_ends_as_done(tiny, tmp_path, monkeypatch, capsys):
    def signalled(path, checkpoint):
        save(path, checkpoint)
        if checkpoint['step'] == 6 and path.name == 'last.pt':
            os.kill(os.getpid(), signal.SIGTERM)
    monkeypatch.setattr(engine.rundir, 'save', signalled)
    go(*tiny, f'--out_dir={tmp_path}/a')
    assert 'done: 6 steps' in capsys.readouterr().out and load_checkpoint(tmp_path / 'a' / 'last.pt')['step'] == 6


def test_an_out_dir_that_cannot_be_made(tiny, tmp_path, capsys):
    (tmp_path / 'file').write_text('')
    assert 'name another --out_dir' in fails(capsys, train.main, *tiny, f'--out_dir={tmp_path}/file')
    assert 'name another --out_dir' in fails(capsys, train.main, *tiny, f'--out_dir={tmp_path}/file/below')


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
    def fail(f):
        f.write('half')
        raise OSError('no room')
    path = tmp_path / 'file'
    write_file(path, lambda f: f.write('whole'))
    with pytest.raises(ValueError, match='could not write .*untouched.*try again'):
        write_file(path, fail, advice='try again')
    assert snapshot(tmp_path) == {'file': b'whole'}
    check_writable(path, 'give another')
    assert snapshot(tmp_path) == {'file': b'whole'}
    with pytest.raises(ValueError, match='cannot be written .*give another'):
        check_writable(path / 'below', 'give another')


@pytest.mark.slow
@pytest.mark.parametrize('name', ['last.pt', 'config.json'])
def test_a_full_disk_leaves_the_old_files(copy, name):
    before = snapshot(copy)
    limit = len(before[name]) // 2

    def no_room():  # files may not grow beyond the limit, in the child only
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    words = '--init_from=resume', f'--out_dir={copy}', '--max_iters=9'
    done = subprocess.run([sys.executable, str(ROOT / 'train.py'), *words], preexec_fn=no_room, capture_output=True,
                          text=True)
    assert done.returncode == 2 and 'could not write' in done.stderr and 'untouched' in done.stderr
    assert len(done.stderr.splitlines()) == 1
    after = snapshot(copy)
    assert after.keys() == before.keys() and all(after[k] == before[k] for k in ('last.pt', 'best.pt'))
    assert name == 'last.pt' or after[name] == before[name]
    assert load_checkpoint(copy / 'last.pt')['step'] == 6


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_checkpoint(copy, capsys):
    saved = load_checkpoint(copy / 'last.pt')
    said = fails(capsys, train.main, '--init_from=resume', f'--out_dir={copy}', '--max_iters=60',
                 '--schedule=constant', '--learning_rate=1e30', '--muon_lr=1e30')
    assert 'not finite at step' in said
    kept = load_checkpoint(copy / 'last.pt')
    assert kept['step'] == saved['step'] and equal(kept['weights'], saved['weights'])


def test_no_step_is_undone_by_resuming_with_fewer(copy, capsys):
    before = snapshot(copy)
    said = fails(capsys, train.main, '--init_from=resume', f'--out_dir={copy}', '--max_iters=2')
    assert 'at step 6 already' in said and snapshot(copy) == before


@pytest.mark.parametrize('kind', ['float16', 'float32'])
def test_a_run_may_go_on_in_another_precision(kind, tiny, tmp_path, capsys):
    go(*tiny, *HARD, '--dtype=bfloat16', f'--out_dir={tmp_path}')
    go('--init_from=resume', f'--out_dir={tmp_path}', f'--dtype={kind}', '--max_iters=9')
    assert f', {kind}, not compiled' in capsys.readouterr().out
    assert load_checkpoint(tmp_path / 'last.pt')['step'] == 9 and np.isfinite(column(tmp_path, 'val')).all()


# ---- damaged, foreign and old files


def flip(path):
    blob = bytearray(path.read_bytes())
    blob[len(blob) // 2] ^= 0xFF
    path.write_bytes(blob)


@pytest.mark.parametrize('damage', [
    lambda p: p.write_bytes(p.read_bytes()[:-1000]), lambda p: p.write_bytes(b''), flip,
    lambda p: p.write_bytes(b'foreign' * 1000), lambda p: torch.save([1, 2], p),
    lambda p: torch.save({'model': {}}, p),
    lambda p: torch.save({k: v for k, v in torch.load(p).items() if k != 'ema'}, p)])
def test_a_damaged_checkpoint_is_refused_and_best_is_used_only_when_told(damage, copy, tiny, capsys):
    damage(copy / 'last.pt')
    before = snapshot(copy)
    said = fails(capsys, train.main, '--init_from=resume', f'--out_dir={copy}')
    assert 'last.pt is damaged' in said and '--init_from=resume_best' in said and snapshot(copy) == before
    go(*tiny[:2], '--init_from=resume_best', f'--out_dir={copy}')
    assert losses(copy)[-1].startswith('6,val,')


def test_a_checkpoint_from_before_tensors_were_renamed_says_so(copy, capsys):
    old = {k: v for k, v in load_checkpoint(copy / 'last.pt').items() if k != 'format'}
    torch.save(old, copy / 'last.pt')
    before = snapshot(copy)
    for words in (['--init_from=resume', f'--out_dir={copy}'], [f'--init_from={copy}/last.pt', '--out_dir=new']):
        said = fails(capsys, train.main, *words)
        assert 'last.pt is from an earlier version of nanoCRATE' in said and 'train it again' in said
    assert snapshot(copy) == before


def test_a_checkpoint_has_all_its_keys(tmp_path):
    with pytest.raises(AssertionError):
        save(tmp_path / 'last.pt', dict.fromkeys(KEYS - {'scaler'}))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('text', [b'', b'\x00\xff\n', b'step,split,loss\n1,train,1\n', b'no,columns\n1,2\n'])
def test_a_damaged_log_is_refused_by_name(text, copy, capsys):
    (copy / 'log.csv').write_bytes(text)
    assert 'log.csv is not the log of a run' in fails(capsys, train.main, '--init_from=resume', f'--out_dir={copy}')
    (copy / 'log.csv').unlink()
    go('--init_from=resume', f'--out_dir={copy}')


# ---- the log


def rows(path):
    return list(csv.DictReader(path.read_text().splitlines()))


def test_a_new_number_is_a_new_column(tmp_path):
    log, path = Log(tmp_path / 'log.csv', 0), tmp_path / 'log.csv'
    ends = dict(lr=0.1, seen=8, seconds=1.5)
    log.write(step=0, split='train', loss=3.0, **ends)
    log.write(step=0, split='val', loss=2.0, top1=0.5, **ends)
    log.write(step=1, split='train', loss=2.5, **ends)
    log.write(step=1, split='val', loss=1.5, top1=0.6, rate_1=7.0, rate_2=8.0, **ends)
    assert path.read_text().splitlines()[0] == 'step,split,loss,top1,rate_1,rate_2,lr,seen,seconds'
    assert [row['top1'] for row in rows(path)] == ['', '0.5', '', '0.6']
    assert [row['rate_2'] for row in rows(path)] == ['', '', '', '8.0']
    assert {row['seconds'] for row in rows(path)} == {'1.5'} and [row['loss'] for row in rows(path)][0] == '3.0'


def test_a_resumed_log_keeps_its_columns_drops_later_rows_and_grows(tmp_path):
    path, ends = tmp_path / 'log.csv', dict(lr=0.1, seen=8, seconds=1.5)
    log = Log(path, 0)
    for step in range(4):
        log.write(step=step, split='val', loss=float(step), top1=0.5, **ends)
    with open(path, 'a') as f:
        f.write('4,va')  # half a row, as a killed run can leave it
    log = Log(path, 2)
    assert [row['step'] for row in rows(path)] == ['0', '1'] and 'top1' in rows(path)[0]
    log.write(step=2, split='val', loss=9.0, top5=0.9, **ends)
    assert path.read_text().splitlines()[0] == 'step,split,loss,top1,top5,lr,seen,seconds'
    assert rows(path)[-1] == dict(step='2', split='val', loss='9.0', top1='', top5='0.9', lr='0.1', seen='8',
                                  seconds='1.5')
    Log(path, 0)
    assert rows(path) == []


def test_rows_that_are_cut_or_unreadable_are_named_and_the_rest_is_kept(tmp_path, capsys):
    path = tmp_path / 'log.csv'
    log = Log(path, 0)
    for step in range(9):
        log.write(step=step, split='val', loss=step / 2, lr=0.1, seen=8, seconds=1.5)
    whole = path.read_bytes()
    for change, bad in (((b'\n3,', b'\n\xff,'), [5]), ((b'4,val', b'4,\0al'), [6]), ((b',2.5,', b',2x5,'), [7]),
                        ((b'1.5\n7,', b'1.5;7,'), [8]), ((b',3.0,', b'\n3.0,'), [8, 9]),
                        ((b'2,val,1.0,', b'2,val,'), [4])):
        path.write_bytes(whole.replace(*change) if change[0] in whole else pytest.fail(str(change)))
        kept, said = read_log(path), capsys.readouterr().out
        assert f'{path}: line{"s" * (len(bad) > 1)} {", ".join(map(str, bad))} cannot be read' in said
        assert f'the other {len(kept)} are kept' in said and 7 <= len(kept) <= 8
        assert all(row['loss'] == str(int(row['step']) / 2) for row in kept)
    path.write_bytes(whole.replace(b'\n3,', b'\n\xff,')[:-1])  # of the last row, which may be cut, nothing is believed
    Log(path, 6).write(step=6, split='val', loss=9.0, lr=0.1, seen=8, seconds=1.5)
    assert [row['step'] for row in rows(path)] == ['0', '1', '2', '4', '5', '6']
    assert 'lines 5, 10 cannot' in capsys.readouterr().out
    draw_curve(tmp_path)
    assert (tmp_path / 'curve.png').stat().st_size > 1000


def test_a_flip_in_a_log_costs_two_rows_at_most(tmp_path):
    path, rng = tmp_path / 'log.csv', np.random.default_rng(0)
    log = Log(path, 0)
    for step in range(9):
        log.write(step=step, split='train', loss=step / 7, lr=0.1, seen=8, seconds=1.5)
    whole = path.read_bytes()
    first = whole.index(b'\n') + 1
    for place in rng.integers(0, len(whole), 300).tolist():
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << int(rng.integers(8))]) + whole[place + 1:])
        try:
            assert len(read_log(path)) >= 7
        except ValueError as e:
            assert place < first and 'is not the log of a run' in str(e)


def test_the_clock_counts_steps_and_not_validations_or_checkpoints(tiny, tmp_path, monkeypatch):
    """Each step takes 1 s, each validation 100 s, each checkpoint 1000 s."""
    clock = SimpleNamespace(now=0.0)

    def later(seconds, function):
        def slow(*args, **more):
            clock.now += seconds
            return function(*args, **more)
        return slow
    now = SimpleNamespace(perf_counter=lambda: clock.now, monotonic=lambda: clock.now)
    monkeypatch.setattr(train, 'time', now)
    monkeypatch.setattr(train, 'evaluate', later(100, train.evaluate))
    monkeypatch.setattr(engine.rundir, 'save', later(1000, save))
    monkeypatch.setattr(train.optim, 'set_rates', later(1, train.optim.set_rates))
    go(*tiny, f'--out_dir={tmp_path}/run', '--max_iters=7', '--log_interval=2')
    assert load_checkpoint(tmp_path / 'run' / 'last.pt')['seconds'] == 7
    go('--init_from=resume', f'--out_dir={tmp_path}/run', '--max_iters=9')
    with open(tmp_path / 'run' / 'log.csv') as f:
        rows = [(row['split'], int(row['step']), float(row['seconds'])) for row in csv.DictReader(f)]
    assert [step for split, step, seconds in rows if split == 'val'] == [0, 3, 6, 9]
    assert all(seconds == step + (split == 'train') for split, step, seconds in rows)


def test_from_the_best_on_the_log_and_the_last_checkpoint_agree_at_any_time(copy, monkeypatch):
    """Here the best is that of step 3 of 6; the run is killed as soon as its log has lost the later rows."""
    save(copy / 'best.pt', load_checkpoint(copy / 'last.pt') | {'step': 3})

    class Killed(Log):
        def __init__(self, *args):
            super().__init__(*args)
            raise KeyboardInterrupt
    monkeypatch.setattr(engine.rundir, 'Log', Killed)
    with pytest.raises(KeyboardInterrupt):
        go('--init_from=resume_best', f'--out_dir={copy}')
    assert load_checkpoint(copy / 'last.pt')['step'] == 3
    assert max(int(row['step']) for row in read_log(copy / 'log.csv')) < 3


def test_the_best_is_that_of_the_least_loss(copy):
    assert load_checkpoint(copy / 'best.pt')['best'] == min(column(copy, 'val'))
