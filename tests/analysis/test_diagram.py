"""The diagram of a layer: what its small pictures show is what the operators do."""
import xml.etree.ElementTree as xml

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


def test_it_is_drawn_without_a_network_and_replaces_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    analyze.main(['diagram', '--out=layer.svg'])
    data = (tmp_path / 'layer.svg').read_bytes()
    assert xml.fromstring(data).tag.endswith('svg')
    capsys.readouterr()
    assert 'layer.svg' in fails(capsys, analyze.main, 'diagram', '--out=layer.svg')
    assert (tmp_path / 'layer.svg').read_bytes() == data
