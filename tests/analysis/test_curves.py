"""analyze.py curves: the losses in the logs of runs, printed and drawn."""
import json

import pytest
from helpers import fails

import analyze
from analysis import figures


def a_run(folder, losses, per_step=10, splits=('train', 'val')):
    """A run directory with such validation losses; those of training are larger by one."""
    folder.mkdir()
    rows = [{'step': i, 'split': split, 'loss': loss + (split == 'train'), 'seen': (i + (split == 'train')) * per_step,
             'seconds': 0.5 * i} for i, loss in enumerate(losses) for split in splits]
    (folder / 'log.jsonl').write_text(''.join(json.dumps(row) + '\n' for row in rows))
    return str(folder)


def test_runs_are_read_printed_and_drawn(tmp_path, capsys, undrawn):
    a, b = a_run(tmp_path / 'a', [3.0, 1.0, 2.0]), a_run(tmp_path / 'b', [4.0, 3.5], 100)
    analyze.main(['curves', a, f'--out={tmp_path}/x.png', b])
    _, first, second, *_ = capsys.readouterr().out.splitlines()
    assert first.split() == [a, '2.0000', '2', '20', '1', '1.0000', '1']  # the last loss, and the best
    assert second.split()[:4] == [b, '3.5000', '1', '100']
    losses = 2 * [[[4, 2, 3], [5, 4.5]]], 2 * [[[3, 1, 2], [4, 3.5]]]   # of training and validation
    seen = [[10, 20, 30], [100, 200]], [[0, 10, 20], [0, 100]]
    for i, panel in enumerate(undrawn[0].axes):
        x = ([[0, 1, 2], [0, 1]], seen[i // 3], [[0, 0.5, 1], [0, 0.5]])[i % 3]
        drawn = [(line.get_label(), *map(list, line.get_data())) for line in panel.lines]
        assert drawn == [(name, *points) for name, *points in zip('ab', x, losses[i // 3][0])]
        assert panel.get_ylim()[0] < 1 and panel.get_ylim()[1] > 5      # all of both runs is seen
    analyze.main(['curves', a, b, f'--out={tmp_path}/y.png', '--log=true'])
    assert {panel.get_xscale() for panel in undrawn[1].axes} == {'symlog'}
    assert '--overwrite=true' in fails(capsys, analyze.main, 'curves', a, f'--out={tmp_path}/y.png')


def test_legends_name_runs_without_folders_if_that_tells_them_apart():
    def names(*paths):
        return list(figures.told_apart(paths).values())
    assert names('/x/out/a', 'out/b', '/tmp/c/', 'out/d/best.safetensors') == ['a', 'b', 'c', 'd'] and names() == []
    assert names('x/a', 'y/a', 'b', 'a/') == ['x/a', 'y/a', 'b', 'a/']


@pytest.mark.parametrize('losses, line', [([1.0], ''), ([], '{"step": 1, "split"\n')])
def test_a_run_without_validation_or_with_a_damaged_log_is_named(losses, line, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    a_run(tmp_path / 'odd', losses, splits=['train'])
    (tmp_path / 'odd' / 'log.jsonl').open('a').write(line)
    assert 'odd' in fails(capsys, analyze.main, 'curves', 'odd') and [p.name for p in tmp_path.iterdir()] == ['odd']
