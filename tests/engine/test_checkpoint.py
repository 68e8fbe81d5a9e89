"""Run directories: files are written whole or not at all; damaged and old ones are refused; what resuming takes."""
import resource
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import HARD, column, config_of, equal, fails, go, save_run, snapshot, text_network, weights
from safetensors import safe_open
from safetensors.torch import load_file, load_model

import train
from engine import networks, trained
from engine.checkpoint import FILES, RunDirectory, read_log
from engine.settings import Mistake
from engine.trained import read_config, read_last, read_weights

pytestmark = pytest.mark.usefixtures('quick')


@pytest.fixture
def copy(text_run, tmp_path):
    return shutil.copytree(text_run, tmp_path / 'copy')


def resume(out, *words):
    go('--init_from=resume', f'--out_dir={out}', *words)


# ---- nothing is lost


@pytest.mark.parametrize('name', [name.replace('*', '3') for name in FILES if name != 'config.json'])
def test_a_directory_with_any_file_of_a_run_is_overwritten_if_asked_alone(name, tiny, tmp_path, capsys):
    for held in (name, 'mine.txt'):
        (tmp_path / held).write_text('old')
    before = snapshot(tmp_path)
    said = fails(capsys, train.main, *tiny, f'--out_dir={tmp_path}')
    assert all(word in said for word in (name, '--overwrite=true', '--out_dir'))
    assert ('--init_from=resume' in said) == (name == 'last.pt')  # without it there is nothing to go on with
    assert snapshot(tmp_path) == before
    go(*tiny, f'--out_dir={tmp_path}', '--overwrite=true', '--max_iters=0')
    after = snapshot(tmp_path)
    assert after['mine.txt'] == b'old' and after.get(name) != b'old'


@pytest.mark.parametrize('name', ['last.pt', 'config.json'])
def test_a_full_disk_leaves_the_old_files(name, copy, capsys):
    before, (free, most) = snapshot(copy), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before[name]) // 2, most))  # no file can grow beyond so many bytes
    try:
        assert name in fails(capsys, train.main, '--init_from=resume', f'--out_dir={copy}', '--max_iters=9')
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (free, most))
    after = snapshot(copy)
    kept = {'last.pt', 'best.safetensors', name}
    assert after.keys() == before.keys() and {k: after[k] for k in kept} == {k: before[k] for k in kept}
    resume(copy, '--max_iters=9')
    assert read_last(copy)['step'] == 9


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_checkpoint(copy, capsys):
    before = read_last(copy)
    assert '--learning_rate' in fails(capsys, train.main, '--init_from=resume', f'--out_dir={copy}', '--max_iters=60',
                                      '--schedule=constant', '--learning_rate=1e30', '--muon_lr=1e30')
    after = read_last(copy)
    assert after['step'] == before['step'] and equal(after['weights'], before['weights'])


def test_everyone_may_read_what_everyone_may_read(copy):
    (copy / 'plain').write_text('')
    assert {p.stat().st_mode for p in copy.iterdir()} == {(copy / 'plain').stat().st_mode}


# ---- the weights, as others read them


@pytest.mark.parametrize('name, settings', [('crate', {}), ('aot', dict(tie_out=True))])
def test_shared_weights_are_written_once_count_once_and_come_back_shared(name, settings, tmp_path):
    """And safetensors alone reads them."""
    model, other = text_network(name, **settings), text_network(name, seed=1, **settings)
    own = {k: p.numel() for k, p in model.named_parameters()}
    file = save_run(tmp_path, model, {'kind': 'text'}) / 'best.safetensors'
    found = trained.load_model(trained.open_run(tmp_path))
    assert load_file(file).keys() == own.keys() < model.state_dict().keys() and load_model(other, file)[1] == []
    assert equal(found.state_dict(), model.state_dict()) and equal(other.state_dict(), model.state_dict())
    assert networks.size(found) == sum(own.values()) and len(list(found.parameters())) == len(own)
    with safe_open(file, 'pt') as f:
        assert f.metadata()['format'] == 'pt'


# ---- what a resumed run takes from last.pt, and what from its settings


@pytest.mark.parametrize('before, after', [('bfloat16', 'float16'), ('float16', 'float32'), ('float16', 'float16')])
def test_a_run_may_go_on_in_the_same_or_another_precision(before, after, tiny, tmp_path):
    go(*tiny, *HARD, f'--dtype={before}', f'--out_dir={tmp_path}')
    held = read_last(tmp_path)['scaler']
    resume(tmp_path, f'--dtype={after}')  # takes no step
    found = read_last(tmp_path)['scaler']
    assert bool(found) == (after == 'float16') and (before != after or found == held and held['_growth_tracker'] > 0)
    resume(tmp_path, '--max_iters=9')
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


# ---- damaged files


READERS = {'best.safetensors': lambda run: read_weights(run / 'best.safetensors'), 'last.pt': read_last,
           'config.json': read_config}


@pytest.mark.parametrize('name', READERS)
def test_a_damaged_file_is_refused_by_name_or_as_good_as_before(name, copy):
    """Cut off or, where there are checksums, with a bit flipped, at random places, half of them near an end."""
    path, rng, refused = copy / name, np.random.default_rng(0), 0
    whole, want = path.read_bytes(), READERS[name](copy)
    for i in range(120):
        at = int(rng.integers(*((0, 2000), (-2000, 0), (0, len(whole)))[min(i % 4, 2)])) % len(whole)
        flipped = bytes([whole[at] ^ 1 << int(rng.integers(8))]) + whole[at + 1:]
        path.write_bytes(whole[:at] + (flipped if i % 5 and name != 'config.json' else b''))
        try:
            assert equal(READERS[name](copy), want)
        except Mistake as e:
            refused += 1
            assert name in str(e) and len(str(e).splitlines()) == 1
    assert refused > 60
    path.write_bytes(b'foreign' * 1000)
    with pytest.raises(Mistake, match=name):
        READERS[name](copy)


# ---- the log


def test_a_resumed_log_drops_later_and_half_lines_and_grows(copy, text_run):
    before, path = read_log(text_run), copy / 'log.jsonl'
    with open(path, 'a') as f:
        f.write('{"step": 8, "split": "val", "loss": 9.0}\n{"step": 9, "spl')  # as a killed run can leave it
    assert [row['step'] for row in read_log(copy)] == [*(row['step'] for row in before), 8]
    resume(copy, '--max_iters=7')
    after = read_log(copy)
    assert after[:len(before) - 1] == before[:-1] and len(after) == len(path.read_bytes().splitlines())
    assert [(row['step'], row['split']) for row in after[len(before) - 1:]] == [(6, 'val'), (6, 'train'), (7, 'val')]


def test_a_damaged_line_is_refused_by_number(copy, capsys):
    path = copy / 'log.jsonl'
    path.write_bytes(path.read_bytes().replace(b'{"step": 1,', b'\xff'))
    with pytest.raises(Mistake, match='log.jsonl, line 3'):
        read_log(copy)
    before = snapshot(copy)
    assert 'line 3' in fails(capsys, train.main, '--init_from=resume', f'--out_dir={copy}') and snapshot(copy) == before


def test_the_clock_counts_steps_and_not_validations_or_checkpoints(tiny, tmp_path, monkeypatch):
    """Each step takes 1 s, each validation 100 s, each file of weights 1000 s."""
    clock = SimpleNamespace(now=0.0)
    time = SimpleNamespace(perf_counter=lambda: clock.now, monotonic=lambda: clock.now)
    monkeypatch.setattr(train, 'time', time)
    monkeypatch.setattr('engine.clock.time', time)
    for seconds, holder, name in ((1, train.optim, 'set_rates'), (100, train, 'evaluate'),
                                  (1000, RunDirectory, 'save_weights'), (1000, RunDirectory, 'save_last')):
        def slow(*args, seconds=seconds, function=getattr(holder, name)):
            clock.now += seconds
            return function(*args)
        monkeypatch.setattr(holder, name, slow)
    go(*tiny, f'--out_dir={tmp_path}', '--max_iters=7', '--log_interval=2')
    assert read_last(tmp_path)['seconds'] == 7
    resume(tmp_path, '--max_iters=9')
    assert column(tmp_path, 'val', 'step') == [0, 3, 6, 9]
    assert all(row['seconds'] == row['step'] + (row['split'] == 'train') for row in read_log(tmp_path))
