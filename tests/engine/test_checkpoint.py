"""Run directories: files are written whole or not at all, damaged ones are refused, and what a
resumed run takes from them."""
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import (HARD, column, config_of, equal, fails, files_of_at_most, go, save_run,
                     snapshot, text_network, weights)
from safetensors import safe_open
from safetensors.torch import load_file, load_model, save_file

import nanocrate
import sample
import train
from engine import networks
from engine.checkpoint import FILES, RunDirectory, read_log
from engine.mistakes import Mistake
from prepare import text
from weights import surgery
from weights.runs import open_run, read_config, read_last, read_weights, write_run


@pytest.fixture
def copy(text_run, tmp_path):
    return shutil.copytree(text_run, tmp_path / 'copy')


def resume(out, *words):
    go('--init_from=resume', f'--out_dir={out}', *words)


def fails_to_resume(capsys, out, *words):
    return fails(capsys, train.main, '--init_from=resume', f'--out_dir={out}', *words)


# ---- a folder behind links

@pytest.mark.parametrize('target', ['there', 'gone/more', 'link to gone'])
@pytest.mark.parametrize('out', ['link/below', './up/../link'])
def test_a_run_is_made_where_a_link_leads(target, out, text_run, tmp_path, monkeypatch):
    """Also if nothing is there any more, as on a disk that is emptied from time to time."""
    monkeypatch.chdir(tmp_path)
    for folder in ('there', 'up'):
        (tmp_path / folder).mkdir()
    (tmp_path / 'link to gone').symlink_to('gone')
    (tmp_path / 'link').symlink_to(target)
    run = open_run(text_run)

    write_run(out, surgery.load_model(run), run.settings, run.data)

    assert (tmp_path / 'link').is_symlink()
    below = 'below' if 'below' in out else '.'
    made = tmp_path / target / below / 'best.safetensors'
    assert equal(load_file(made), weights(text_run, 'best'))


@pytest.mark.parametrize('target, out', [('second', 'link'), ('file', 'link/below'),
                                         ('link to file', 'link')])
def test_a_link_that_leads_to_no_folder_is_one_line(target, out, text_run, tiny, tmp_path, capsys,
                                                    monkeypatch):
    """The link `second` leads back to the first one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'file').write_text('old ' * 500)
    for link, leads_to in {'link to file': 'file', 'second': 'link', 'link': target}.items():
        (tmp_path / link).symlink_to(leads_to)
    before = sorted(tmp_path.glob('[!.]*'))

    for main, *words in ((train.main, *tiny, f'--out_dir={out}', '--overwrite=true'),
                         (train.main, *tiny, f'--init_from={text_run}', f'--out_dir={out}'),
                         (sample.main, f'--ckpt={out}'), (text.main, 'file', '--out', out)):
        line = fails(capsys, main, *words)
        assert out in line or 'file' in line

    assert sorted(tmp_path.glob('[!.]*')) == before
    assert (tmp_path / 'file').read_text() == 'old ' * 500


# ---- a run that is there

@pytest.fixture(params=[name.replace('*', '3') for name in FILES if name != 'config.json'])
def old_file(request, tmp_path):
    """The name of a file of a run. A file that belongs to no run lies beside it."""
    (tmp_path / request.param).write_text('old')
    (tmp_path / 'mine.txt').write_text('old')
    return request.param


def test_a_run_does_not_begin_where_a_file_of_another_lies(old_file, tiny, tmp_path, capsys):
    before = snapshot(tmp_path)

    error = fails(capsys, train.main, *tiny, f'--out_dir={tmp_path}')

    assert snapshot(tmp_path) == before
    assert old_file in error
    assert '--overwrite=true' in error
    # resuming is offered where it is possible
    assert ('--init_from=resume' in error) == (old_file == 'last.pt')


def test_overwriting_removes_the_files_of_a_run_alone(old_file, tiny, tmp_path):
    go(*tiny, f'--out_dir={tmp_path}', '--overwrite=true', '--max_iters=0')

    after = snapshot(tmp_path)
    assert after.get(old_file) != b'old'
    assert after['mine.txt'] == b'old'


# ---- nothing is lost

@pytest.mark.parametrize('name', ['last.pt', 'config.json'])
def test_a_full_disk_leaves_the_old_files(name, copy, capsys):
    before = snapshot(copy)

    with files_of_at_most(len(before[name]) // 2):
        error = fails_to_resume(capsys, copy, '--max_iters=9')

    after = snapshot(copy)
    assert name in error
    assert after.keys() == before.keys()
    for unchanged in ('last.pt', 'best.safetensors', name):
        assert after[unchanged] == before[unchanged]
    # once there is room, the run goes on
    resume(copy, '--max_iters=9')
    assert read_last(copy)['step'] == 9


def test_everyone_may_read_what_everyone_may_read(copy):
    (copy / 'plain').write_text('')

    usual_mode = (copy / 'plain').stat().st_mode
    for path in copy.iterdir():
        assert path.stat().st_mode == usual_mode


# ---- weights with two names

@pytest.fixture(params=[
    {'name': 'crate'},
    {'name': 'aot', 'tie_out': True},
])
def tied(request, tmp_path):
    """A network in which modules share weights, its file, and another network like it."""
    model = text_network(**request.param)
    out = save_run(tmp_path, model, {'kind': 'text'})
    similar = text_network(**request.param, seed=1)
    return model, out / 'best.safetensors', similar


def test_safetensors_alone_reads_shared_weights_which_are_written_once(tied):
    model, file, similar = tied
    names = {name for name, _ in model.named_parameters()}

    _, unexpected = load_model(similar, file)

    assert load_file(file).keys() == names
    assert names < model.state_dict().keys()
    assert unexpected == []
    assert equal(similar.state_dict(), model.state_dict())
    with safe_open(file, 'pt') as f:
        assert f.metadata()['format'] == 'pt'


def test_shared_weights_come_back_shared_and_count_once(tied, tmp_path):
    model, _, _ = tied
    sizes = [p.numel() for p in model.parameters()]

    loaded = surgery.load_model(open_run(tmp_path))

    assert equal(loaded.state_dict(), model.state_dict())
    assert len(list(loaded.parameters())) == len(sizes)
    assert networks.num_params(loaded) == sum(sizes)


# ---- what a resumed run takes from last.pt, and what from its settings

@pytest.mark.parametrize('before, after', [
    ('bfloat16', 'float16'),
    ('float16', 'float32'),
])
def test_a_run_may_go_on_in_another_precision(before, after, tiny, tmp_path):
    go(*tiny, *HARD, f'--dtype={before}', f'--out_dir={tmp_path}')

    resume(tmp_path, f'--dtype={after}', '--max_iters=9')

    last = read_last(tmp_path)
    assert last['step'] == 9
    assert bool(last['scaler']) == (after == 'float16')
    assert np.isfinite(column(tmp_path, 'val')).all()


def test_a_run_in_float16_goes_on_with_its_scale(tiny, tmp_path):
    go(*tiny, *HARD, '--dtype=float16', f'--out_dir={tmp_path}')
    before = read_last(tmp_path)['scaler']

    resume(tmp_path)  # takes no step

    assert before['_growth_tracker'] > 0
    assert read_last(tmp_path)['scaler'] == before


@pytest.fixture(scope='module')
def plain_run(text_run, tmp_path_factory):
    """The run goes on with the settings that it had."""
    out = shutil.copytree(text_run, tmp_path_factory.mktemp('plain') / 'run')
    go('--init_from=resume', f'--out_dir={out}', '--max_iters=8')
    return out


@pytest.mark.parametrize('name, value', [
    ('learning_rate', 0.005),
    ('weight_decay', 0.9),
    ('beta1', 0.1),
    ('muon_lr', 0.001),
    ('momentum', 0.1),
])
def test_what_is_typed_when_a_run_goes_on_takes_effect(name, value, copy, plain_run):
    resume(copy, '--max_iters=8', f'--{name}={value}')

    assert config_of(copy)[name] == value
    assert config_of(plain_run)[name] != value
    # the first step begins with the same weights
    assert column(copy, 'train')[6] == column(plain_run, 'train')[6]
    assert not equal(weights(copy), weights(plain_run))


# ---- damaged files

def read_best(out):
    return read_weights(out / 'best.safetensors')


READERS = {'best.safetensors': read_best, 'last.pt': read_last, 'config.json': read_config}


def damaged(content, trial, flip, rng):
    """A file cut off or, with flip, with another bit. Half of the places are near an end."""
    size = len(content)
    places = [rng.integers(2000), -rng.integers(2000), rng.integers(size), rng.integers(size)]
    place = int(places[trial % 4]) % size
    if not flip:
        return content[:place]
    byte = content[place] ^ 1 << int(rng.integers(8))
    return content[:place] + bytes([byte]) + content[place + 1:]


@pytest.mark.parametrize('name', READERS)
def test_a_damaged_file_is_refused_by_name_or_as_good_as_before(name, copy):
    path = copy / name
    content = path.read_bytes()
    expected = READERS[name](copy)
    rng = np.random.default_rng(0)
    refused = 0

    for trial in range(60):
        flip = name != 'config.json' and trial % 5 > 0  # config.json has no checksum
        path.write_bytes(damaged(content, trial, flip, rng))
        try:
            assert equal(READERS[name](copy), expected)
        except Mistake as e:
            refused += 1
            assert name in str(e)
            assert len(str(e).splitlines()) == 1

    assert refused > 30


@pytest.mark.parametrize('about, step', [(None, 0), ({'format': 'pt'}, 0), ({'step': '7'}, 7)])
def test_weights_that_another_program_has_written_are_read(about, step, copy):
    expected, _ = read_best(copy)
    save_file(expected, copy / 'best.safetensors', about)

    weights, step_read = read_best(copy)

    assert equal(weights, expected)
    assert step_read == step
    nanocrate.load(copy)


def test_a_setting_that_is_newer_than_the_run_is_named_if_it_does_not_fit(copy):
    run = open_run(copy)
    del run.network['mlp']
    surgery.load_model(run, mlp=False)

    with pytest.raises(Mistake, match='mlp=true'):
        surgery.load_model(run, mlp=True)


# ---- the log

@pytest.fixture
def killed_run(copy):
    """Its log goes on behind its last.pt, and ends in half a line."""
    with open(copy / 'log.jsonl', 'a') as f:
        f.write('{"step": 8, "split": "val", "loss": 9.0}\n{"step": 9, "spl')
    return copy


def test_a_resumed_log_drops_later_and_half_lines_and_grows(killed_run, text_run):
    earlier_rows = read_log(text_run)[:-1]  # the run begins with its last validation

    resume(killed_run, '--max_iters=7')

    rows = read_log(killed_run)
    assert rows[:-3] == earlier_rows
    assert [(row['step'], row['split']) for row in rows[-3:]] == [
        (6, 'val'), (6, 'train'), (7, 'val')]
    assert len((killed_run / 'log.jsonl').read_bytes().splitlines()) == len(rows)


# ---- the clock

@pytest.fixture
def timed_run(tiny, tmp_path, monkeypatch):
    """Each step takes 1 s, each validation 100 s, each file of weights 1000 s."""
    clock = SimpleNamespace(now=0.0)

    def read_clock():
        return clock.now

    def slow_down(holder, name, seconds):
        function = getattr(holder, name)

        def slow(*args):
            clock.now += seconds
            return function(*args)
        monkeypatch.setattr(holder, name, slow)

    time = SimpleNamespace(perf_counter=read_clock, monotonic=read_clock)
    monkeypatch.setattr(train, 'time', time)
    monkeypatch.setattr('engine.clock.time', time)
    slow_down(train.optim, 'set_rates', 1)
    slow_down(train, 'evaluate', 100)
    slow_down(RunDirectory, 'save_weights', 1000)
    slow_down(RunDirectory, 'save_last', 1000)
    go(*tiny, f'--out_dir={tmp_path}', '--max_iters=7', '--log_interval=2')
    return tmp_path


def test_the_clock_counts_steps_alone_and_goes_on_with_the_run(timed_run):
    assert read_last(timed_run)['seconds'] == 7
    resume(timed_run, '--max_iters=9')

    assert column(timed_run, 'val', 'step') == [0, 3, 6, 9]
    assert column(timed_run, 'val', 'seconds') == [0, 3, 6, 9]
    # a step is logged when it is done
    steps_done = [step + 1 for step in column(timed_run, 'train', 'step')]
    assert column(timed_run, 'train', 'seconds') == steps_done
