"""train.py --telemetry and --keep_checkpoints: they add to the files of a run, and change nothing else."""
import pytest
from helpers import config_of, equal, fails, go, losses, weights

import train
from analysis import layers
from engine.checkpoint import read_log
from tasks.text import TextSplit
from weights.runs import open_run
from weights.surgery import load_model


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['text', 'functions', 'pictures', 'crate_mae'])
def test_telemetry_logs_the_layers_and_changes_nothing_else(kind, whole, words_of, bytes_data, tmp_path):
    go(*words_of(kind), f'--out_dir={tmp_path}', '--telemetry=true', '--keep_checkpoints=true')
    plain, watched, sparse = read_log(whole(kind)), read_log(tmp_path), kind not in ('text', 'functions')
    numbers = range(1, config_of(tmp_path)['n_layer'] + 1)
    more = [f'{k}_{l}' for k in ('rate', 'objective', 'nonzeros')[:2 + sparse] for l in numbers]
    assert [{k: v for k, v in row.items() if k not in (*more, 'seconds')} for row in watched] == [
        {k: v for k, v in row.items() if k != 'seconds'} for row in plain]
    assert equal(weights(whole(kind)), weights(tmp_path))
    assert all((row.keys() - old.keys() == set(more)) == (row['split'] == 'val') for row, old in zip(watched, plain))
    held_out = [row for row in watched if row['split'] == 'val']
    assert len({row['rate_1'] for row in held_out}) == 3                # it changes as the network learns
    assert all((tmp_path / f'step_{step}.safetensors').exists() for step in (0, 3, 6))
    assert not list(whole(kind).glob('step_*'))
    if kind == 'text':                                                  # means over one fixed batch
        x = next(TextSplit(bytes_data / 'tiny', 'val', 16).fixed(4, 1))[0]
        for step, row in zip((0, 3, 6), held_out):
            model = load_model(open_run(f'{tmp_path}/step_{step}.safetensors'))
            found = layers.measure_layers(model, [(x,)], layers.layer_measures)
            for name in ('rate', 'objective'):
                assert [row[f'{name}_{l}'] for l in numbers] == pytest.approx(found[name].mean(1).tolist(), rel=1e-5)


@pytest.mark.slow
def test_a_stopped_run_goes_on_with_its_columns(words_of, tmp_path):
    words = [*words_of('text'), '--telemetry=true']
    go(*words, f'--out_dir={tmp_path}/whole')
    go(*words, f'--out_dir={tmp_path}/parts', '--max_iters=3', '--lr_decay_iters=6')
    go('--init_from=resume', f'--out_dir={tmp_path}/parts', '--max_iters=6')
    assert losses(tmp_path / 'whole') == losses(tmp_path / 'parts')
    go('--init_from=resume', f'--out_dir={tmp_path}/parts', '--max_iters=7', '--telemetry=false')
    after = read_log(tmp_path / 'parts')
    assert 'rate_1' in after[0] and 'rate_1' not in after[-1] and after[-1]['step'] == 7


@pytest.mark.slow
def test_the_curve_gets_panels(words_of, tmp_path, undrawn, curve):
    counts = []
    for kind, watched in (('pictures', 'false'), ('text', 'true'), ('pictures', 'true')):
        go(*words_of(kind), f'--out_dir={tmp_path}/{kind}_{watched}', f'--telemetry={watched}')
        counts.append(len(undrawn[-1].axes))
    assert counts[0] < counts[1] < counts[2]


def test_kept_checkpoints_belong_to_the_run(words_of, tmp_path, capsys):
    words = [*words_of('text'), f'--out_dir={tmp_path}']
    go(*words, '--keep_checkpoints=true')
    assert 'step_3.safetensors' in fails(capsys, train.main, *words)
    go(*words, '--overwrite=true', '--eval_interval=2', '--keep_checkpoints=false')
    assert not list(tmp_path.glob('step_[0-9]*'))
