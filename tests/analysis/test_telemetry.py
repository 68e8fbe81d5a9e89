"""train.py --telemetry and --keep_checkpoints: they add to the files of a run, and change nothing else."""
import numpy as np
import pytest
from helpers import equal, fails, go, losses, weights

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


@pytest.mark.parametrize('kind', KINDS)
def test_telemetry_logs_the_layers_and_changes_nothing_else(kind, place, tmp_path, quick):
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
    if kind in ('aot', 'gpt2'):                                         # means over one fixed batch
        x = next(TextSplit(place / 'tiny', 'val', 16).fixed(4, 1))[0]
        for step, row in zip((0, 3, 6), (row for row in watched if row['split'] == 'val')):
            model = load_model(open_run(f'{tmp_path}/b/step_{step}.safetensors'))
            for k, values in zip(('rate', 'nonzeros', 'objective'), layers.layer_measures(model, (x,))):
                found = [row.get(f'{k}_{l}') for l in (1, 2)]
                assert found == pytest.approx(values.mean(1).tolist(), rel=1e-5) or k == 'nonzeros' and not sparse


@pytest.mark.slow
def test_a_stopped_run_goes_on_with_its_columns(place, tmp_path):
    start(place, 'crate', tmp_path / 'whole', '--telemetry=true')
    start(place, 'crate', tmp_path / 'parts', '--telemetry=true', '--max_iters=3', '--lr_decay_iters=6')
    go('--init_from=resume', f'--out_dir={tmp_path}/parts', '--max_iters=6')
    assert losses(tmp_path / 'whole') == losses(tmp_path / 'parts')
    go('--init_from=resume', f'--out_dir={tmp_path}/parts', '--max_iters=7', '--telemetry=false')
    after = read_log(tmp_path / 'parts')
    assert 'rate_1' in after[0] and 'rate_1' not in after[-1] and after[-1]['step'] == 7


def test_the_curve_gets_panels(place, tmp_path, undrawn):
    counts = []
    for kind, watched in (('crate', 'false'), ('aot', 'true'), ('crate', 'true')):
        start(place, kind, tmp_path / f'{kind}_{watched}', f'--telemetry={watched}')
        counts.append(len(undrawn[-1].axes))
    assert counts[0] < counts[1] < counts[2]


def test_kept_checkpoints_belong_to_the_run(place, tmp_path, capsys, quick):
    start(place, 'aot', tmp_path / 'a', '--keep_checkpoints=true')
    words = [f'--data_dir={place}', *SHORT, *TEXT, f'--out_dir={tmp_path}/a']
    assert 'step_3.safetensors' in fails(capsys, train.main, *words)
    go(*words, '--overwrite=true', '--eval_interval=2', '--keep_checkpoints=false')
    assert not list((tmp_path / 'a').glob('step_[0-9]*'))
