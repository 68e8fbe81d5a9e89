"""Arrays of floats that are no pictures: prepare/arrays.py --npz, a task that reads them, and CRATE
and AoT with an embedding and a head for them, as on the page."""
import re

import numpy as np
import pytest
import torch
from helpers import ROOT, column, fails, go, losses
from test_own_network import TRAINING, search_in

import eval as scores
from prepare import arrays
from tasks.arrays import ArraySplit

PAGE = (ROOT / 'docs' / 'extend.md').read_text(encoding='utf-8')
TASK, NETWORK = re.findall(
    r'^```python\n(from tasks\.arrays.*?|"""CRATE on spectrograms.*?)^```', PAGE, re.M | re.S)


def spectra(n, seed=0):
    """Spectrograms with values from -1 to 1, with a ridge; y is its row and its column."""
    rng = np.random.default_rng(seed)
    y = rng.random((n, 2), np.float32)
    x = rng.uniform(-1, -0.9, (n, 2, 8, 16)).astype(np.float32)
    for i, (row, column_) in enumerate(y):
        x[i, :, int(8 * row)] = 1
        x[i, 0, :, int(16 * column_)] = 1
    return x, y


@pytest.fixture(scope='module')
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp('arrays')
    x, y = spectra(400)
    np.savez(folder / 'spectra.npz', x=x, y=y)
    np.savez(folder / 'classes.npz', x=x, y=(y[:, 0] > 0.5).astype(int))
    for name in ('spectra', 'classes'):
        arrays.main(['--npz', str(folder / f'{name}.npz'), '--out', str(folder / name)])
    return folder


def test_floats_are_kept_as_they_are(data):
    x, y = spectra(400)
    train_split, val = (ArraySplit(data / 'spectra', split) for split in ('train', 'val'))
    read = torch.cat([part.batch(np.arange(len(part)))[0] for part in (train_split, val)])

    assert read.dtype == torch.float32 and len(val) == 40
    rows = {row.tobytes() for row in x}
    assert {row.numpy().tobytes() for row in read} == rows


def test_an_epoch_has_every_row_once_and_depends_on_the_seed(data):
    split = ArraySplit(data / 'spectra', 'train')       # 360 rows

    def epoch(seed):
        return torch.cat([x for x, _ in split.batches(40, seed, [slice(0, 40)], 0, 9)])
    assert len({row.numpy().tobytes() for row in epoch(1)}) == 360
    assert torch.equal(epoch(1), epoch(1)) and not torch.equal(epoch(1), epoch(2))


@pytest.fixture(params=['crate', 'aot'])
def fork(request, data, tmp_path, monkeypatch):
    search_in(tmp_path, monkeypatch)
    network = NETWORK
    if request.param == 'aot':
        network = network.replace('model_crate', 'model_aot').replace('CRATE', 'AoT')
    name = f'spectra_{request.param}'
    (tmp_path / f'model_{name}.py').write_text(network)
    (tmp_path / 'task_spectra.py').write_text(TASK)
    return [f'--model={name}', f'--data_dir={data}', '--dataset=spectra', '--patch_size=4',
            '--n_embd=16', '--n_layer=2', '--n_head=2', f'--out_dir={tmp_path}/out', *TRAINING]


def test_a_network_with_the_body_of_ours_learns_them(fork, data, tmp_path, capsys):
    go(*fork, '--max_iters=60', '--eval_interval=60', '--learning_rate=6e-3', '--batch_size=32')
    out = capsys.readouterr().out
    first, last = column(tmp_path / 'out', 'val')

    assert last < 0.6 * first and 'analyze.py' not in out
    go('--init_from=resume', f'--out_dir={tmp_path}/out', '--max_iters=62', f'--data_dir={data}')
    scores.main([f'--ckpt={tmp_path}/out', f'--data_dir={data}', '--device=cpu'])
    assert 'loss' in capsys.readouterr().out and len(losses(tmp_path / 'out')) > 60


def test_arrays_of_another_shape_are_one_line_with_both(fork, data, tmp_path, capsys):
    go(*fork)
    x, y = spectra(50)
    np.savez(tmp_path / 'wide.npz', x=x[..., :12], y=y)
    arrays.main(['--npz', f'{tmp_path}/wide.npz', '--out', f'{tmp_path}/wide'])

    said = fails(capsys, scores.main, f'--ckpt={tmp_path}/out', f'--data_dir={tmp_path}',
                 '--dataset=wide')
    assert '2, 8, 16' in said and '2, 8, 12' in said


@pytest.mark.parametrize('x, y', [
    (np.zeros((4, 3), np.uint8), np.zeros(4)),
    (np.zeros((4, 3)), np.zeros(5)),
    (np.zeros((4, 3)), np.array([-1, 0, 1, 2])),
    (np.full((4, 3), np.nan), np.zeros(4))])
def test_what_is_no_such_array_is_one_line_with_its_shape(x, y, tmp_path, capsys):
    np.savez(tmp_path / 'a.npz', x=x, y=y)

    said = fails(capsys, arrays.main, '--npz', f'{tmp_path}/a.npz', '--out', f'{tmp_path}/d')
    assert 'a.npz' in said and not (tmp_path / 'd').exists()


def test_splits_of_another_shape_are_refused(tmp_path, capsys):
    x, y = spectra(20)
    np.savez(tmp_path / 'b.npz', x=x, y=y, val_x=x[:, :1], val_y=y)

    said = fails(capsys, arrays.main, '--npz', f'{tmp_path}/b.npz', '--out', f'{tmp_path}/d')
    assert '(1, 8, 16)' in said and '(2, 8, 16)' in said


def test_a_file_may_hold_all_splits(tmp_path):
    x, y = spectra(30)
    np.savez(tmp_path / 'c.npz', x=x[:20], y=y[:20], val_x=x[20:26], val_y=y[20:26],
             test_x=x[26:], test_y=y[26:])
    arrays.main(['--npz', f'{tmp_path}/c.npz', '--out', f'{tmp_path}/d'])

    lengths = [len(ArraySplit(tmp_path / 'd', name)) for name in ('train', 'val', 'test')]
    assert lengths == [20, 6, 4]
