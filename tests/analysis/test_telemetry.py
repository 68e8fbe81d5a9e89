"""train.py --telemetry and --keep_checkpoints: they add to the files of a run, and change nothing else."""
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import equal, fails, go, losses, weights
from insides import NETWORKS, loud_network, random_inputs
from PIL import Image

import train
from analysis import layers
from engine.checkpoint import read_log
from engine.trained import load_model, open_run
from prepare import shapes
from prepare.lib.pictures import save_arrays
from tasks.text import TextSplit

SHORT = ['--n_layer=2', '--n_head=2', '--n_embd=16', '--batch_size=4', '--max_iters=6', '--eval_interval=3',
         '--eval_iters=2', '--log_interval=1', '--warmup_iters=2']
TEXT, SHAPES = ['--dataset=tiny', '--block_size=16'], ['--dataset=shapes', '--patch_size=8']
KINDS = {
    'aot': TEXT, 'gpt2': [*TEXT, '--attn=mhsa', '--mlp=true'],
    'crate-bert': ['--model=crate', *TEXT, '--image_size=0', '--causal=false', '--dropout=0.1'],
    'crate': ['--model=crate', *SHAPES], 'vit': ['--model=vit', *SHAPES],
    'crate_mae': ['--model=crate_mae', '--dataset=shapes', '--patch_size=4', '--ema=0.5'],
    'functions': ['--dataset=linear', '--n_dims=4', '--block_size=10']}


@pytest.fixture(scope='module')
def place(tmp_path_factory, bytes_data):
    """A data_dir with a text and pictures."""
    folder = tmp_path_factory.mktemp('telemetry')
    (folder / 'tiny').symlink_to(bytes_data / 'tiny')
    labels = np.arange(12) % len(shapes.CLASSES)
    drawn = shapes.draw(np.random.default_rng(0), labels[:, None], 16)[0]
    save_arrays(folder / 'shapes', {split: (drawn, labels) for split in ('train', 'val')}, shapes.CLASSES)
    return folder


def start(place, kind, out, *words):
    """Train a short run, and return the rows of its log."""
    go(f'--data_dir={place}', *SHORT, *KINDS[kind], f'--out_dir={out}', *words)
    return read_log(out)


@pytest.mark.parametrize('name', NETWORKS)
def test_telemetry_is_means_and_leaves_no_trace(name):
    model, x = loud_network(name), random_inputs(name)
    task = SimpleNamespace(c=SimpleNamespace(batch_size=4), valid_wants={}, unit='prompts' if len(x) == 2 else 'other',
                           valid=SimpleNamespace(fixed=lambda n, batches: iter([x])), take=lambda x: (*x, None)[:2])
    rates, shares, objectives = layers.layer_measures(model, x)
    watch, state = layers.Telemetry(task), torch.random.get_rng_state()
    numbers = watch(model.train())
    assert model.training and torch.equal(state, torch.random.get_rng_state())
    assert all(p.grad is None for p in model.parameters())
    assert [numbers[f'rate_{l}'] for l in (1, 2, 3)] == pytest.approx(rates.mean(1).tolist())
    assert [numbers[f'objective_{l}'] for l in (1, 2, 3)] == pytest.approx(objectives.mean(1).tolist())
    if name in ('aot_text', 'aot_pictures', 'functions'):
        assert len(numbers) == 6
    else:
        assert [numbers[f'nonzeros_{l}'] for l in (1, 2, 3)] == pytest.approx(shares.mean(1).tolist())


@pytest.mark.parametrize('kind', KINDS)
def test_telemetry_logs_the_layers_and_changes_nothing_else(kind, place, tmp_path):
    plain = start(place, kind, tmp_path / 'a')
    watched = start(place, kind, tmp_path / 'b', '--telemetry=true', '--keep_checkpoints=true')
    sparse = kind not in ('aot', 'functions')
    more = [f'{k}_{l}' for k in ('rate', 'objective', 'nonzeros')[:2 + sparse] for l in (1, 2)]
    assert [{k: v for k, v in row.items() if k not in (*more, 'seconds')} for row in watched] == [
        {k: v for k, v in row.items() if k != 'seconds'} for row in plain]
    assert equal(weights(tmp_path / 'a'), weights(tmp_path / 'b'))
    assert all((row.keys() - old.keys() == set(more)) == (row['split'] == 'val') for row, old in zip(watched, plain))
    assert len({row['rate_1'] for row in watched if row['split'] == 'val'}) == 3  # it changes as the network learns
    assert [(tmp_path / run / f'step_{step}.safetensors').exists() for run in 'ab' for step in (0, 3, 6)] == \
        3 * [False] + 3 * [True]


def test_the_numbers_are_those_of_a_fixed_batch(place, tmp_path):
    watched = start(place, 'aot', tmp_path / 'a', '--telemetry=true', '--keep_checkpoints=true')
    x = next(TextSplit(place / 'tiny', 'val', 16).fixed(4, 1))[0]
    for step, row in zip((0, 3, 6), (row for row in watched if row['split'] == 'val')):
        rates, *_ = layers.layer_measures(load_model(open_run(f'{tmp_path}/a/step_{step}.safetensors')), (x,))
        assert [row['rate_1'], row['rate_2']] == pytest.approx(rates.mean(1).tolist(), rel=1e-5)


@pytest.mark.slow
def test_a_stopped_run_goes_on_with_its_columns(place, tmp_path):
    start(place, 'crate', tmp_path / 'whole', '--telemetry=true')
    start(place, 'crate', tmp_path / 'parts', '--telemetry=true', '--max_iters=3', '--lr_decay_iters=6')
    go('--init_from=resume', f'--out_dir={tmp_path}/parts', '--max_iters=6')
    assert losses(tmp_path / 'whole') == losses(tmp_path / 'parts')
    go('--init_from=resume', f'--out_dir={tmp_path}/parts', '--max_iters=7', '--telemetry=false')
    after = read_log(tmp_path / 'parts')
    assert 'rate_1' in after[0] and 'rate_1' not in after[-1] and after[-1]['step'] == 7


@pytest.mark.slow
def test_the_curve_gets_panels(place, tmp_path):
    widths = []
    for name, kind, watched in (('a', 'crate', 'false'), ('b', 'crate', 'true'), ('c', 'aot', 'true')):
        start(place, kind, tmp_path / name, f'--telemetry={watched}')
        widths.append(Image.open(tmp_path / name / 'curve.png').width)
    plain, both, one = widths
    assert plain < one < both


def test_kept_checkpoints_belong_to_the_run(place, tmp_path, capsys):
    start(place, 'aot', tmp_path / 'a', '--keep_checkpoints=true')
    words = [f'--data_dir={place}', *SHORT, *TEXT, f'--out_dir={tmp_path}/a']
    assert 'step_3.safetensors' in fails(capsys, train.main, *words)
    go(*words, '--overwrite=true', '--eval_interval=2', '--keep_checkpoints=false')
    assert not list((tmp_path / 'a').glob('step_[0-9]*'))
