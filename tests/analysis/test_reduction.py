"""Figure 5 of CRATE's longer version: what rate reduction sees of three sets of subspaces, and what it does not."""
import csv

import pytest

import analyze


@pytest.mark.parametrize('words', [[], ['--seed=1'], ['--n_head=2', '--head_dim=4'], ['--n_head=5', '--tokens=9']])
def test_rate_reduction_rises_to_orthogonal_subspaces_and_does_not_see_the_axes(words, tmp_path, capsys):
    analyze.main(['reduction', *words, f'--out={tmp_path}/x.png'])
    close, orthogonal, axes = csv.DictReader((tmp_path / 'x.csv').read_text().splitlines())
    said = capsys.readouterr().out
    K = int(next((w.split('=')[1] for w in words if 'n_head' in w), 3))
    for column in ('reduction, eq. (7)', 'reduction, eq. (14)'):
        a, b, c = (float(row[column]) for row in (close, orthogonal, axes))
        assert 0 < b - a and b == pytest.approx(c) and b > 0
        assert f'{column} {a:.2f}, {b:.2f}, {c:.2f}' in said
    assert float(orthogonal['share of non-zeros']) == 1 and float(axes['share of non-zeros']) == pytest.approx(1 / K)
    assert all(float(axes[column]) > float(orthogonal[column]) for column in ('eq. (16)', '-E, eq. (19)'))
