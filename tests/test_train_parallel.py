"""A run is the same however it is computed: in more passes, with layers that are computed twice,
on another device, and by two processes, each with its own copy of the network."""
import json
import shutil

import pytest
import torch
from fake_mps import FakeMPS
from helpers import (HARD, KINDS, column, equal, go, losses,
                     snapshot, torchrun, weights)

from engine.checkpoint import read_log
from weights.runs import read_last


def repeatable(words):
    """Without dropout, which each process draws for itself, and without Muon, whose bfloat16
    magnifies rounding."""
    words = [word for word in words if 'dropout' not in word]
    return [*words, '--optimizer=adamw', '--dtype=float32']


def check_close(out, expected):
    """Fails unless the logs of two runs have the same rows, and numbers that differ by rounding
    alone."""
    for split in ('train', 'val'):
        assert column(out, split) == pytest.approx(column(expected, split), abs=1e-4)
    for row, expected_row in zip(read_log(out), read_log(expected), strict=True):
        del row['seconds']
        del expected_row['seconds']
        assert row.pop('split') == expected_row.pop('split')
        assert row == pytest.approx(expected_row, rel=2e-3, abs=2e-4)


# ---- in one process

@pytest.mark.slow
@pytest.mark.parametrize('kind', ['text', 'pictures', 'vit_mae', 'dino'])
def test_passes_of_a_step_are_one_batch(kind, words_of, tmp_path):
    """Of the same rows, pictures and masks."""
    words = repeatable(words_of(kind))

    go(*words, '--batch_size=8', '--gradient_accumulation_steps=1', f'--out_dir={tmp_path}/one')
    go(*words, '--batch_size=2', '--gradient_accumulation_steps=4', f'--out_dir={tmp_path}/four')

    for name in ('loss', 'grad_norm'):
        in_one_pass = column(tmp_path / 'one', 'train', name)
        assert column(tmp_path / 'four', 'train', name) == pytest.approx(in_one_pass, rel=1e-3)


def test_layers_computed_twice_give_the_same_run(text_run, tiny, tmp_path):
    go(*tiny, *HARD, '--recompute=true', f'--out_dir={tmp_path}')  # with dropout

    assert losses(tmp_path) == losses(text_run)
    assert equal(weights(tmp_path), weights(text_run))


@pytest.mark.slow
@pytest.mark.parametrize('kind', [*KINDS, 'pack'])
def test_a_run_on_another_device_is_the_run_on_the_cpu(kind, words_of, tmp_path, capsys):
    """Every tensor is made there, or sent there. (There embedding and output map are two tensors,
    so gradients differ a little.)"""
    if kind == 'pack':
        words = [*repeatable(words_of('pictures')), '--dataset=pack', '--image_size=8',
                 '--workers=0', '--randaugment_n=3']
    else:
        words = repeatable(words_of(kind))
    if 'dino' not in kind:
        words += ['--telemetry=true', '--ema=0.9']
    if kind == 'text':
        words += ['--show_samples=true']  # they are computed there too
    words += ['--learning_rate=1e-3', '--max_iters=3']

    go(*words, f'--out_dir={tmp_path}/cpu')
    with FakeMPS():
        go(*words, '--device=mps', f'--out_dir={tmp_path}/mps')

    assert '\non mps x 1' in capsys.readouterr().out
    for split in ('train', 'val'):
        on_cpu = column(tmp_path / 'cpu', split)
        assert column(tmp_path / 'mps', split) == pytest.approx(on_cpu, rel=2e-3)


# ---- in two processes

SCRIPT = """
import json
import os
import signal
import sys

import torch.distributed as dist

import train
from engine import curve, distributed
from tasks.text import TextSplit

curve.draw_curve = lambda run: None  # it takes most of the time of a short run
init_process_group = dist.init_process_group

def init_once(backend):  # all runs have the same group
    if not dist.is_initialized():
        init_process_group(backend)

dist.init_process_group = init_once
{}
if __name__ == '__main__':
    for words in json.loads(sys.argv[1]):
        code = train.main(words)
    distributed.leave()
    sys.exit(code)
"""


@pytest.fixture(scope='module')
def train_by_two(tmp_path_factory):
    """train_by_two(*runs) trains each of these words, in two processes that start once for all.
    They run the lines of Python `first` before. Returns what they printed."""
    script = tmp_path_factory.mktemp('script') / 'all.py'

    def train_by_two(*runs, first='', code=0):
        script.write_text(SCRIPT.format(first))
        output, errors = torchrun(json.dumps(runs), script=script, code=code)
        return output
    return train_by_two


FOUR_ROWS = ['--eval_iters=3', '--gradient_accumulation_steps=4', '--batch_size=2', '--ema=0.9',
             '--telemetry=true']
RUNS = {  # name: (kind, words)
    'text': ('text', FOUR_ROWS),
    'muon': ('text', [*FOUR_ROWS, '--optimizer=muon', '--muon_lr=0.002', '--max_iters=4']),
    # of one validation batch the second process has none
    'functions': ('functions', [*FOUR_ROWS, '--eval_iters=1']),
    'pictures': ('pictures', FOUR_ROWS),
    'vit_mae': ('vit_mae', FOUR_ROWS),
    'dino': ('dino', ['--probe_interval=3']),
    'simdino': ('simdino', ['--grad_clip=0']),
    'simdino_passes': ('simdino', ['--gradient_accumulation_steps=2']),
}


@pytest.fixture(scope='module')
def both(train_by_two, words_of, tmp_path_factory):
    """A folder with all these runs by one process, one/NAME, and by two, two/NAME."""
    folder = tmp_path_factory.mktemp('both')
    runs = []
    for name, (kind, last_words) in RUNS.items():
        words = [*repeatable(words_of(kind)), *last_words]
        go(*words, f'--out_dir={folder}/one/{name}')
        runs.append([*words, f'--out_dir={folder}/two/{name}'])
    train_by_two(*runs)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize('name', RUNS)
def test_two_processes_equal_one(name, both):
    """Of DINO, the centre, the coding rate and its gradient are those of all pictures of a pass.
    So are the features that are scored."""
    check_close(both / 'two' / name, both / 'one' / name)


@pytest.mark.slow
@pytest.mark.parametrize('name', ['dino', 'simdino', 'simdino_passes'])
def test_two_processes_have_the_teacher_of_one(name, both):
    by_two = weights(both / 'two' / name)

    for key, weight in weights(both / 'one' / name).items():
        if 'teacher' in key:
            assert torch.allclose(by_two[key], weight, atol=1e-4)


@pytest.mark.slow
def test_a_batch_that_two_processes_cannot_share_is_refused(words_of, tmp_path):
    out = tmp_path / 'none'

    _, errors = torchrun(*words_of('dino'), '--batch_size=9', f'--out_dir={out}', code=1)

    assert 'batch_size=9' in errors
    assert 'Traceback' not in errors.split('error: ')[0]
    assert not out.exists()


# ---- checkpoints

@pytest.fixture(scope='module')
def words(tiny):
    return [*tiny, '--dtype=float32', '--optimizer=adamw', '--gradient_accumulation_steps=4',
            '--batch_size=2', '--eval_iters=5']


@pytest.fixture(scope='module')
def averaged(train_by_two, words, tmp_path_factory):
    """A folder with a run of eight steps, `all`, and four steps of it by one process and by two,
    `one` and `two`."""
    folder = tmp_path_factory.mktemp('averaged')
    words = [*words, '--ema=0.9', '--eval_interval=4', '--lr_decay_iters=8']
    half = [*words, '--max_iters=4', '--checkpoint_minutes=1e-9']
    go(*words, '--max_iters=8', f'--out_dir={folder}/all')
    go(*half, f'--out_dir={folder}/one')
    train_by_two([*half, f'--out_dir={folder}/two'])
    return folder


@pytest.fixture(params=['one', 'two'])
def half_run(request, averaged):
    return averaged / request.param


@pytest.mark.slow
def test_last_pt_holds_plain_tensors(half_run):
    last = read_last(half_run)

    tensors = list(last['weights'].values())
    for optimizer in last['optimizers']:
        for state in optimizer['state'].values():
            tensors += state.values()
    for tensor in tensors:
        assert type(tensor) is torch.Tensor


@pytest.mark.slow
def test_last_pt_holds_tied_weights_once(half_run, averaged):
    size = (half_run / 'last.pt').stat().st_size

    assert size < 1.05 * (averaged / 'all' / 'last.pt').stat().st_size


@pytest.mark.slow
def test_the_best_weights_are_the_average(half_run):
    assert equal(weights(half_run, 'best'), read_last(half_run)['average'])


@pytest.fixture(scope='module')
def resumed(train_by_two, averaged, tmp_path_factory):
    """A folder with the runs that go on, WRITER_READER."""
    folder = tmp_path_factory.mktemp('resumed')
    for name in ('two_one', 'one_two', 'two_two'):
        shutil.copytree(averaged / name[:3], folder / name)
    words = ['--init_from=resume', '--max_iters=8']
    go(*words, f'--out_dir={folder}/two_one')
    train_by_two([*words, f'--out_dir={folder}/one_two'], [*words, f'--out_dir={folder}/two_two'])
    return folder


@pytest.mark.slow
@pytest.mark.parametrize('name', ['two_one', 'one_two', 'two_two'])
def test_what_one_or_two_processes_write_one_or_two_go_on_with(name, resumed, averaged):
    check_close(resumed / name, averaged / 'all')


# ---- the end of a process

LEAVE = """
import weakref

leave = distributed.leave

def leave_and_check():
    group = weakref.ref(dist.group.WORLD)
    leave()
    assert not group()  # threads of a group can abort an interpreter that ends before them

distributed.leave = leave_and_check
"""


@pytest.mark.slow
def test_evaluation_in_two_processes_ends_well(text_run, train_by_two):
    before = snapshot(text_run)

    printed = train_by_two(
        ['--init_from=resume', f'--out_dir={text_run}', '--eval_only=true'], first=LEAVE)

    assert printed.count('validation  loss') == 1
    assert snapshot(text_run) == before


STOP = """
rank = int(os.environ['RANK'])
fixed = TextSplit.fixed
validations = 0

def signalled(*args):
    global validations
    validations += 1
    for number, batch in enumerate(fixed(*args)):
        if (rank, validations, number) == (1, 2, 1):
            os.kill(os.getpid(), signal.SIGTERM)
        print('batch', rank, validations, number, flush=True)
        yield batch

TextSplit.fixed = signalled
"""


@pytest.fixture(scope='module')
def stopped(train_by_two, words, tmp_path_factory):
    """(run, what was printed). The second process gets a signal in its second validation."""
    out = tmp_path_factory.mktemp('stopped')
    # the first process has 5 batches, the second has 4
    printed = train_by_two([*words, '--eval_iters=9', f'--out_dir={out}'], first=STOP, code=1)
    return out, printed


@pytest.mark.slow
def test_a_signal_to_one_process_stops_all(stopped):
    out, printed = stopped

    line = 'stopped at step 3; go on with: python train.py --init_from=resume'
    assert line in printed
    assert 'done:' not in printed
    assert read_last(out)['step'] == 3
    # the signal ends the validation of its process
    assert 'batch 1 2 1' in printed
    assert 'batch 1 2 2' not in printed


@pytest.mark.slow
def test_two_processes_go_on_after_a_signal_as_if_there_was_none(
        stopped, train_by_two, words, tmp_path):
    out, _ = stopped

    train_by_two(['--init_from=resume', f'--out_dir={out}'],
                 [*words, '--eval_iters=9', f'--out_dir={tmp_path}/all'])

    assert losses(out) == losses(tmp_path / 'all')


# ---- compiled layers

# what compile_graphs_alone does, in each of the two processes
GRAPHS_ALONE = """
import functools

import torch

torch.compile = functools.partial(torch.compile, backend='aot_eager')
"""


@pytest.mark.slow
def test_compiled_layers_may_be_trained_by_two_processes(words, train_by_two, tmp_path):
    """Layers that are compiled, computed twice and looked into."""
    words = [*words, '--telemetry=true', '--n_layer=3', '--recompute=true']

    go(*words, f'--out_dir={tmp_path}/one')
    train_by_two([*words, '--compile=true', f'--out_dir={tmp_path}/two'], first=GRAPHS_ALONE)

    check_close(tmp_path / 'two', tmp_path / 'one')
