"""analyze.py: what it writes is what one computes."""
import csv

import pytest
import torch
from conftest import fails

import analyze
import measures


def test_the_denoising_figure_holds_the_theorems_numbers(tmp_path, capsys):
    analyze.main(['denoise', f'--out={tmp_path}/d.png', '--n_layer=3', '--seed=5'])
    rows = list(csv.DictReader((tmp_path / 'd.csv').read_text().splitlines()))
    regimes = list(dict.fromkeys(row['regime'] for row in rows))
    assert len(regimes) == 3 and len(rows) == 3 * 4 * 8 and (tmp_path / 'd.png').stat().st_size > 5000
    for name, eta, delta in zip(regimes, (0.1, 0.5, 0.1), (0.2, 0.2, 0.5)):
        Z, U = measures.noisy_mixture(8, 16, 128, 128, delta, torch.Generator().manual_seed(5))
        start = measures.snr(Z, U).mean().item()
        for layer in range(4):
            mine = [row for row in rows if row['regime'] == name and int(row['layer']) == layer]
            assert [float(row['snr']) for row in mine] == pytest.approx(measures.snr(Z, U).tolist())
            assert float(mine[0]['theorem']) == pytest.approx(start * (1 + eta * 0.6) ** layer)
            Z = measures.denoise(Z, U, eta, 0.6)
    said = capsys.readouterr().out
    assert 'Theorem 1 says 1.06' in said and 'Theorem 1 says 1.3' in said
    assert '--overwrite=true' in fails(capsys, analyze.main, 'denoise', f'--out={tmp_path}/d.png')
    (tmp_path / 'd.png').unlink()
    assert 'd.csv exists' in fails(capsys, analyze.main, 'denoise', f'--out={tmp_path}/d.png')
    analyze.main(['denoise', f'--out={tmp_path}/d.png', '--overwrite=true', '--n_layer=1', '--tau=0'])
    assert 'Theorem' not in capsys.readouterr().out  # which is not about the plain softmax


@pytest.mark.parametrize('words, message', [
    ([], "choose denoise"), (['layer'], "'layer' is unknown"), (['denoise', '--delta=0'], 'delta > 0'), (['denoise', '--tau=1'], 'tau < 1'),
    (['denoise', '--n_layer=0'], 'n_layer=0 must be at least 1'), (['denoise', '--etta=1'], 'did you mean eta?'),
    (['denoise', '--out=x.doc'], 'format of pictures'), (['denoise', '--out=no/where.png'], 'no folder')])
def test_mistakes_get_one_line(words, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in fails(capsys, analyze.main, *words) and not list(tmp_path.iterdir())
