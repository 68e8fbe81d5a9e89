"""Run directories: files are written whole or not at all; damaged, foreign and old files are refused."""
import json
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
from helpers import HARD, ROOT, column, config_of, equal, fails, go, losses, snapshot, text_network, weights
from safetensors import safe_open
from safetensors.torch import load_file, load_model

import analyze
import eval as scores
import train
from engine import networks, trained
from engine.checkpoint import FILES, RunDirectory, read_last, read_log, write_file
from engine.settings import Mistake
from engine.trained import read_weights


@pytest.fixture
def copy(text_run, tmp_path):
    return shutil.copytree(text_run, tmp_path / 'copy')


def resume(out, *words):
    go('--init_from=resume', f'--out_dir={out}', *words)


# ---- nothing is lost


def test_a_run_is_not_overwritten_unasked(copy, tiny, capsys):
    before = snapshot(copy)
    said = fails(capsys, train.main, *tiny, f'--out_dir={copy}')
    assert all(word in said for word in ('already holds a run', '--init_from=resume', '--overwrite=true', '--out_dir'))
    assert snapshot(copy) == before
    go(*tiny, f'--out_dir={copy}', '--overwrite=true', '--max_iters=1')
    assert len(losses(copy)) == 4


@pytest.mark.parametrize('name', [*FILES, 'step_3.safetensors'])
def test_a_directory_with_any_file_of_a_run_is_occupied(name, tiny, tmp_path, capsys):
    for held in (name, 'mine.txt'):
        (tmp_path / held).write_text('old')
    before = snapshot(tmp_path)
    assert f'already holds a run ({name})' in fails(capsys, train.main, *tiny, f'--out_dir={tmp_path}')
    assert snapshot(tmp_path) == before
    go(*tiny, f'--out_dir={tmp_path}', '--overwrite=true', '--max_iters=0')
    after = snapshot(tmp_path)
    assert after['mine.txt'] == b'old' and after.get(name) != b'old'


def test_a_signal_during_the_last_save_ends_as_done(tiny, tmp_path, monkeypatch, capsys):
    save = RunDirectory.save_last

    def signalled(self, *state):
        save(self, *state)
        if read_last(self.out)['step'] == 6:
            os.kill(os.getpid(), signal.SIGTERM)
    monkeypatch.setattr(RunDirectory, 'save_last', signalled)
    go(*tiny, f'--out_dir={tmp_path}/a')
    assert 'done: 6 steps' in capsys.readouterr().out and read_last(tmp_path / 'a')['step'] == 6


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
    with pytest.raises(Mistake, match='could not write .*untouched.*try again'):
        write_file(path, fail, advice='try again')
    assert snapshot(tmp_path) == {'file': b'whole'}


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
    assert after.keys() == before.keys() and all(after[k] == before[k] for k in ('last.pt', 'best.safetensors'))
    assert name != 'config.json' or after[name] == before[name]
    resume(copy, '--max_iters=9')
    assert read_last(copy)['step'] == 9


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_checkpoint(copy, capsys):
    saved = read_last(copy)
    said = fails(capsys, train.main, '--init_from=resume', f'--out_dir={copy}', '--max_iters=60',
                 '--schedule=constant', '--learning_rate=1e30', '--muon_lr=1e30')
    assert 'not finite at step' in said
    kept = read_last(copy)
    assert kept['step'] == saved['step'] and equal(kept['weights'], saved['weights'])


def test_no_step_is_undone_by_resuming_with_fewer(copy, capsys):
    before = snapshot(copy)
    said = fails(capsys, train.main, '--init_from=resume', f'--out_dir={copy}', '--max_iters=2')
    assert 'at step 6 already' in said and snapshot(copy) == before


def test_everyone_may_read_what_everyone_may_read(copy):
    (copy / 'plain').write_text('')
    assert {p.name for p in copy.iterdir() if p.stat().st_mode != (copy / 'plain').stat().st_mode} == set()


# ---- the weights, as others read them


def test_safetensors_alone_reads_the_weights(copy, text_run):
    file, own = copy / 'best.safetensors', weights(text_run, 'best')
    assert equal(load_file(file), own)
    model = trained.load_model(trained.open_run(text_run))
    wanted = {k: v.clone() for k, v in model.state_dict().items()}
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    assert load_model(model, file)[1] == [] and equal(model.state_dict(), wanted)
    with safe_open(file, 'pt') as f:
        assert f.metadata()['format'] == 'pt' and int(f.metadata()['step']) in (0, 3, 6)


def test_with_an_average_the_best_weights_are_the_average(picture_run, tmp_path):
    out = shutil.copytree(picture_run, tmp_path / 'a')
    resume(out, '--max_iters=7', '--keep_checkpoints=true')  # of two validations, neither may be the best
    state = read_last(out)
    assert equal(weights(out, 'step_7'), state['average']) and not equal(state['weights'], state['average'])


@pytest.mark.parametrize('name, settings', [('crate', {}), ('aot', dict(tie_out=True))])
def test_shared_weights_are_written_once_and_come_back_shared(name, settings, tmp_path):
    model = text_network(name, **settings)
    names = {k for k, _ in model.named_parameters()}
    assert names < model.state_dict().keys()
    here = SimpleNamespace(main=True)
    c = train.TrainConfig(out_dir=str(tmp_path))
    run = RunDirectory(c, here, {'model': name, 'settings': vars(c), 'network': vars(model.config), 'data': {}}, 0,
                       False)
    run.save_weights('best', model, 5)
    run.rows.close()
    assert load_file(tmp_path / 'best.safetensors').keys() == names
    held = trained.open_run(tmp_path)
    found = trained.load_model(held)
    assert held['step'] == 5 and equal(found.state_dict(), model.state_dict())
    assert networks.size(found) == networks.size(model) and len(list(found.parameters())) == len(names)


# ---- what a resumed run takes from last.pt, and what from its settings


@pytest.mark.parametrize('before, after', [('bfloat16', 'float16'), ('float16', 'float32'), ('float32', 'float16')])
def test_a_run_may_go_on_in_another_precision(before, after, tiny, tmp_path, capsys):
    go(*tiny, *HARD, f'--dtype={before}', f'--out_dir={tmp_path}')
    assert bool(read_last(tmp_path)['scaler']) == (before == 'float16')
    resume(tmp_path, f'--dtype={after}', '--max_iters=9')
    assert f', {after}, not compiled' in capsys.readouterr().out
    assert read_last(tmp_path)['step'] == 9 and np.isfinite(column(tmp_path, 'val')).all()


@pytest.mark.parametrize('word', ['--learning_rate=0.005', '--weight_decay=0.9', '--beta1=0.1', '--muon_lr=0.001',
                                  '--momentum=0.1'])
def test_what_is_typed_when_a_run_goes_on_takes_effect(word, copy, text_run, tmp_path):
    plain = shutil.copytree(text_run, tmp_path / 'plain')
    resume(plain, '--max_iters=8')
    resume(copy, '--max_iters=8', word)
    name, _, value = word[2:].partition('=')
    assert config_of(copy)[name] == float(value) != config_of(plain)[name]
    assert column(copy, 'train')[6] == column(plain, 'train')[6]  # the step begins with the same weights
    assert not equal(weights(copy), weights(plain))


# ---- damaged, foreign and old files


def flipped(path, rng, count):
    """Writes a file with one bit changed, at `count` places, of which a quarter are among the first 2,000 bytes and a
    quarter among the last."""
    whole = path.read_bytes()
    for i in range(count):
        low, high = ((0, 2000), (len(whole) - 2000, len(whole)), (0, len(whole)))[min(i % 4, 2)]
        damaged = bytearray(whole)
        damaged[int(rng.integers(low, high))] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        yield bytes(damaged)


def test_a_flipped_bit_anywhere_in_weights_is_refused_by_name(copy):
    path, refused = copy / 'best.safetensors', 0
    wanted, step = read_weights(path)
    for _ in flipped(path, np.random.default_rng(0), 120):
        try:
            found = read_weights(path)
        except Mistake as e:
            refused += 1
            assert 'best.safetensors is damaged' in str(e) and len(str(e).splitlines()) == 1
        else:
            assert found[1] == step and equal(found[0], wanted)  # as in 'format'
    assert refused > 100


def test_a_flipped_bit_anywhere_in_last_is_refused_by_name(copy):
    wanted, refused = read_last(copy), 0
    for _ in flipped(copy / 'last.pt', np.random.default_rng(0), 120):
        try:
            found = read_last(copy)
        except Mistake as e:
            refused += 1
            assert 'last.pt is damaged' in str(e)
        else:
            assert same(found, wanted)
    assert refused > 60


def same(a, b):
    """Whether nested dicts and lists hold the same values and tensors."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    return len(a) == len(b) and all(map(same, a, b)) if isinstance(a, (list, tuple)) else a == b


@pytest.mark.parametrize('damage', [
    lambda p: p.write_bytes(p.read_bytes()[:-1000]), lambda p: p.write_bytes(b''),
    lambda p: p.write_bytes(b'foreign' * 1000), lambda p: torch.save([1, 2], p),
    lambda p: torch.save({'model': {}, 'weights': {}}, p)])
def test_a_damaged_last_is_refused_and_the_best_is_there_to_start_from(damage, copy, tmp_path, tiny, capsys):
    damage(copy / 'last.pt')
    before = snapshot(copy)
    said = fails(capsys, train.main, '--init_from=resume', f'--out_dir={copy}')
    assert 'last.pt is damaged' in said and f'--init_from={copy} and another --out_dir' in said
    assert snapshot(copy) == before
    go(tiny[0], f'--init_from={copy}', f'--out_dir={tmp_path}/b', '--max_iters=0')
    assert equal(weights(tmp_path / 'b'), weights(copy, 'best'))


@pytest.mark.parametrize('text', ['', '{"model": "a', '[]', '{"model": "aot"}'])
def test_a_damaged_config_is_refused_by_name(text, copy, capsys):
    (copy / 'config.json').write_text(text)
    for words in (['--init_from=resume', f'--out_dir={copy}'], [f'--init_from={copy}', '--out_dir=new']):
        said = fails(capsys, train.main, *words)
        assert 'config.json is' in said and 'damaged' in said


def test_weights_of_others_are_refused(copy, capsys):
    write_file(copy / 'best.safetensors', lambda f: f.write(b'foreign'), 'wb')
    assert 'best.safetensors is damaged' in fails(capsys, scores.main, f'--ckpt={copy}')
    (copy / 'best.safetensors').unlink()
    assert 'best.safetensors' in fails(capsys, scores.main, f'--ckpt={copy}')
    (copy / 'best.safetensors').mkdir()
    assert 'best.safetensors' in fails(capsys, scores.main, f'--ckpt={copy}')


@pytest.mark.parametrize('main, words', [
    (train.main, ['--init_from=resume', '--out_dir={}']), (train.main, ['--init_from={}', '--out_dir=new']),
    (scores.main, ['--ckpt={}']), (analyze.main, ['curves', '{}'])])
def test_a_run_of_an_earlier_version_says_which_version_reads_it(main, words, tmp_path, capsys):
    (tmp_path / 'config.json').write_text(json.dumps({'model': 'aot', 'n_layer': 2, 'dataset': 'tiny'}))
    (tmp_path / 'log.csv').write_text('step,split,loss,lr,seen,seconds\n0,val,5.5,0.1,0,0\n')
    for name in ('best.pt', 'last.pt'):
        torch.save({'weights': {}, 'config': {}, 'step': 3}, tmp_path / name)
    before = snapshot(tmp_path)
    assert 'git checkout 0b5df1f' in fails(capsys, main, *(word.format(tmp_path) for word in words))
    assert snapshot(tmp_path) == before


# ---- the log


@pytest.fixture
def logged(tmp_path):
    """A log of four validations, a run directory with which one goes on, and the path of the log."""
    config = {'model': 'aot', 'settings': {}, 'network': {}, 'data': {}}

    def at(step, resumed):
        return RunDirectory(train.TrainConfig(out_dir=str(tmp_path)), SimpleNamespace(main=True), config, step, resumed)
    run = at(0, False)
    for step in range(4):
        run.log(step, 'val', {'loss': step / 2, 'top1': 0.5}, 0.1, 8 * step, 1.5)
    run.rows.close()
    return tmp_path / 'log.jsonl', at


def test_a_resumed_log_drops_later_lines_and_grows(logged):
    path, at = logged
    with open(path, 'a') as f:
        f.write('{"step": 4, "spl')  # half a line, as a killed run can leave it
    assert [row['step'] for row in read_log(path.parent)] == [0, 1, 2, 3]
    run = at(2, True)
    run.log(2, 'val', {'loss': 9.0, 'top5': 0.9}, 0.1, 8, 1.5)
    run.rows.close()
    first, _, last = read_log(path.parent)
    assert first == dict(step=0, split='val', loss=0.0, top1=0.5, lr=0.1, seen=0, seconds=1.5)
    assert last == dict(step=2, split='val', loss=9.0, top5=0.9, lr=0.1, seen=8, seconds=1.5)
    run = at(4, True)  # half a line alone is cut too
    run.rows.close()
    assert len(path.read_bytes().splitlines()) == 3


def test_a_full_disk_under_the_log_is_said_and_costs_no_line_before(logged):
    path, at = logged
    run, before, (limit, most) = at(4, True), read_log(path.parent), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, most))
    try:
        with pytest.raises(Mistake, match='could not write .*log.jsonl'):
            run.log(4, 'val', {'loss': 1.0}, 0.1, 8, 1.5)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, most))
    assert read_log(path.parent) == before


@pytest.mark.parametrize('damage', [(b'"step": 1', b'"step": ,'), (b'"loss": 0.5, ', b''), (b'{"step": 1', b'\xff')])
def test_a_damaged_line_is_refused_by_number(damage, logged):
    path, at = logged
    whole = path.read_bytes()
    assert damage[0] in whole
    path.write_bytes(whole.replace(*damage))
    for use in (lambda: read_log(path.parent), lambda: at(3, True)):
        with pytest.raises(Mistake, match='log.jsonl, line 2 is damaged'):
            use()


def test_the_clock_counts_steps_and_not_validations_or_checkpoints(tiny, tmp_path, monkeypatch):
    """Each step takes 1 s, each validation 100 s, each file of weights 1000 s."""
    clock = SimpleNamespace(now=0.0)

    def later(seconds, function):
        def slow(*args, **more):
            clock.now += seconds
            return function(*args, **more)
        return slow
    now = SimpleNamespace(perf_counter=lambda: clock.now, monotonic=lambda: clock.now)
    monkeypatch.setattr(train, 'time', now)
    monkeypatch.setattr(train, 'evaluate', later(100, train.evaluate))
    for name in ('save_weights', 'save_last'):
        monkeypatch.setattr(RunDirectory, name, later(1000, getattr(RunDirectory, name)))
    monkeypatch.setattr(train.optim, 'set_rates', later(1, train.optim.set_rates))
    go(*tiny, f'--out_dir={tmp_path}/run', '--max_iters=7', '--log_interval=2')
    assert read_last(tmp_path / 'run')['seconds'] == 7
    resume(tmp_path / 'run', '--max_iters=9')
    rows = [(row['split'], row['step'], row['seconds']) for row in read_log(tmp_path / 'run')]
    assert [step for split, step, seconds in rows if split == 'val'] == [0, 3, 6, 9]
    assert all(seconds == step + (split == 'train') for split, step, seconds in rows)


def test_the_best_is_that_of_the_least_loss(copy):
    assert read_last(copy)['best'] == min(column(copy, 'val'))
