"""train.py --telemetry and --keep_checkpoints: they add to a run's files, and change nothing else."""
import csv
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import fails

from tasks import files as data
from analysis import layers as inside
from engine import run as rundir
import train
from engine.checkpoints import load_model, load_weights
from prepare import shapes
from prepare.lib import pictures as images

SHORT = ['--n_layer=2', '--n_head=2', '--n_embd=16', '--batch_size=4', '--max_iters=6', '--eval_interval=3', '--eval_iters=2',
         '--log_interval=1', '--warmup_iters=2']


@pytest.fixture(scope='module')
def place(tmp_path_factory, bytes_data):
    """A data_dir with a text and pictures."""
    folder = tmp_path_factory.mktemp('telemetry')
    (folder / 'tiny').symlink_to(bytes_data / 'tiny')
    labels = np.arange(12) % len(shapes.CLASSES)
    drawn = shapes.draw(np.random.default_rng(0), labels, 16)[0]
    images.save_arrays(folder / 'shapes', {split: (drawn, labels) for split in ('train', 'val')}, shapes.CLASSES)
    return folder


def start(place, *words):
    return [f'--data_dir={place}', *SHORT, *words]


def rows(out):
    with open(Path(out) / 'log.csv', newline='') as f:
        return list(csv.DictReader(f))


KINDS = {
    'aot': ['--dataset=tiny', '--block_size=16'], 'gpt2': ['--dataset=tiny', '--block_size=16', '--attn=mhsa', '--mlp=true'],
    'crate-bert': ['--model=crate', '--dataset=tiny', '--block_size=16', '--image_size=0', '--causal=false', '--dropout=0.1'],
    'crate': ['--model=crate', '--dataset=shapes', '--patch_size=8'], 'vit': ['--model=vit', '--dataset=shapes', '--patch_size=8'],
    'crate_mae': ['--model=crate_mae', '--dataset=shapes', '--patch_size=4', '--ema=0.5'],
    'functions': ['--dataset=linear', '--n_dims=4', '--block_size=10']}


@pytest.mark.parametrize('kind', KINDS)
def test_telemetry_logs_the_layers_and_changes_nothing_else(kind, place, tmp_path, capsys):
    train.main(start(place, *KINDS[kind], f'--out_dir={tmp_path}/a'))
    capsys.readouterr()
    train.main(start(place, *KINDS[kind], f'--out_dir={tmp_path}/b', '--telemetry=true', '--keep_checkpoints=true'))
    assert re.search(r'telemetry took [\d.]+ s beside \d+ s of training, [\d.]+%\n', capsys.readouterr().out)
    plain, watched = rows(tmp_path / 'a'), rows(tmp_path / 'b')
    sparse = kind not in ('aot', 'functions')
    more = [f'{k}_{l}' for k in ('rate', 'nonzeros')[:1 + sparse] for l in (1, 2)]
    assert list(watched[0])[-1] == 'seconds' and set(watched[0]) == {*plain[0], *more}
    assert [{k: v for k, v in row.items() if k not in (*more, 'seconds')} for row in watched] == [
        {k: v for k, v in row.items() if k != 'seconds'} for row in plain]
    a, b = (torch.load(tmp_path / run / 'last.pt', weights_only=True)['weights'] for run in 'ab')
    assert all(torch.equal(a[k], b[k]) for k in a)
    assert all((row['rate_1'] != '') == (row['split'] == 'val') for row in watched)
    assert len({row['rate_1'] for row in watched if row['split'] == 'val'}) == 3  # it moves as the network learns
    assert sorted(p.name for p in (tmp_path / 'b').glob('step_*.pt')) == ['step_0.pt', 'step_3.pt', 'step_6.pt']
    assert not list((tmp_path / 'a').glob('step_*.pt'))


def test_the_numbers_are_those_of_a_fixed_batch(place, tmp_path):
    train.main(start(place, *KINDS['aot'], f'--out_dir={tmp_path}/a', '--telemetry=true', '--keep_checkpoints=true'))
    x = next(data.Text(place / 'tiny', 'val', 16).fixed(4, 1))[0]
    for step, row in zip((0, 3, 6), (row for row in rows(tmp_path / 'a') if row['split'] == 'val')):
        rates, _ = inside.layer_measures(load_model(load_weights(f'{tmp_path}/a/step_{step}.pt')), (x,))
        assert [float(row['rate_1']), float(row['rate_2'])] == pytest.approx(rates.mean(1).tolist(), rel=1e-5)


def test_a_stopped_run_goes_on_with_its_columns(place, tmp_path):
    words = [*KINDS['crate'], '--telemetry=true']
    train.main(start(place, *words, f'--out_dir={tmp_path}/whole'))
    train.main(start(place, *words, f'--out_dir={tmp_path}/parts', '--max_iters=3', '--lr_decay_iters=6'))
    train.main(['--init_from=resume', f'--out_dir={tmp_path}/parts', '--max_iters=6'])
    whole, parts = (open(tmp_path / run / 'log.csv').read().splitlines() for run in ('whole', 'parts'))
    assert [line.rsplit(',', 1)[0] for line in whole] == [line.rsplit(',', 1)[0] for line in parts]
    train.main(['--init_from=resume', f'--out_dir={tmp_path}/parts', '--max_iters=7', '--telemetry=false'])
    after = rows(tmp_path / 'parts')
    assert after[0]['rate_1'] and after[-1]['rate_1'] == '' and after[-1]['step'] == '7'


def test_columns_may_come_later(place, tmp_path):
    train.main(start(place, *KINDS['aot'], f'--out_dir={tmp_path}/a'))
    train.main(['--init_from=resume', f'--out_dir={tmp_path}/a', '--max_iters=7', '--telemetry=true'])
    after = rows(tmp_path / 'a')
    assert after[0]['rate_1'] == '' and after[-1]['rate_1'] and list(after[0])[-1] == 'seconds'


def test_the_curve_gets_panels(place, tmp_path):
    from PIL import Image
    sizes = []
    for name, words in (('a', KINDS['crate']), ('b', [*KINDS['crate'], '--telemetry=true']), ('c', [*KINDS['aot'], '--telemetry=true'])):
        train.main(start(place, *words, f'--out_dir={tmp_path}/{name}'))
        sizes.append(Image.open(tmp_path / name / 'curve.png').width)
    plain, both, one = sizes
    assert plain < one < both


def test_kept_checkpoints_belong_to_the_run(place, tmp_path, capsys):
    words = start(place, *KINDS['aot'], f'--out_dir={tmp_path}/a', '--keep_checkpoints=true')
    train.main(words)
    assert 'step_3.pt' in fails(capsys, train.main, *words)
    (tmp_path / 'a' / 'step_by_step.pt').write_text('mine')
    train.main([*words, '--overwrite=true', '--eval_interval=2', '--keep_checkpoints=false'])
    assert rundir.held_in(tmp_path / 'a') == ['config.json', 'log.csv', 'last.pt', 'best.pt', 'curve.png']
    assert (tmp_path / 'a' / 'step_by_step.pt').exists()


