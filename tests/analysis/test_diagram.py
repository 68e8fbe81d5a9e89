"""The diagram of a layer: what its small pictures show is what the operators do."""
import xml.etree.ElementTree as xml

import pytest
from helpers import fails

import analyze
from analysis.diagram import compress, sparsify


def test_similar_tokens_move_together_in_a_subspace():
    before, after = (tokens.unflatten(0, (3, -1)) for tokens in compress())         # (3, n, 2)
    spread_before, spread_after = ((t - t.mean(1, keepdim=True)).norm(dim=2).mean(1) for t in (before, after))
    assert (spread_after < 0.75 * spread_before).all()
    apart = before.mean(1).norm(dim=1).mean()
    assert (after.mean(1) - before.mean(1)).norm(dim=1).max() < 0.2 * apart          # the groups stay where they are


def test_small_and_negative_numbers_become_zero():
    before, after = sparsify()
    assert (after >= 0).all() and (after[before < 0] == 0).all()
    small = (before > 0) & (after == 0)
    assert small.any() and before[small].max() < before[after > 0].min()


@pytest.mark.parametrize('name', ['layer.svg', 'layer.png', 'layer.pdf'])
def test_it_is_drawn_without_a_network_and_replaces_nothing(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    analyze.main(['diagram', f'--out={name}'])
    data = (tmp_path / name).read_bytes()
    assert data.startswith({'svg': b'<?xml', 'png': b'\x89PNG', 'pdf': b'%PDF'}[name[-3:]])
    assert not name.endswith('svg') or xml.fromstring(data).tag.endswith('svg')
    capsys.readouterr()
    assert name in fails(capsys, analyze.main, 'diagram', f'--out={name}')
    assert (tmp_path / name).read_bytes() == data
