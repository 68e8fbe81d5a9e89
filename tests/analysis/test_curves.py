"""analyze.py curves: the losses in the logs of runs, printed and drawn."""
import json
import shutil

import pytest
from helpers import ROOT, edited, fails
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

import analyze
from analysis import figures
from engine import plots


def a_run(folder, losses, per_step=10, splits=('train', 'val'), steps=range(9)):
    """A run directory with such validation losses; those of training are larger by one."""
    folder.mkdir()
    rows = []
    for step, loss in zip(steps, losses):
        for split in splits:
            more = int(split == 'train')
            rows.append({'step': step, 'split': split, 'loss': loss + more,
                         'seen': (step + more) * per_step, 'seconds': 0.5 * step})
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


@pytest.mark.parametrize('factor', [1, 1e7])
def test_numbers_along_logarithmic_axes_do_not_touch(factor, tmp_path, undrawn):
    run = a_run(tmp_path / 'a', 4 * [1.0], factor, steps=(0, 10, 1000, 10 ** 6))
    analyze.main(['curves', run, f'--out={tmp_path}/x.png', '--log=true'])
    with plots.house_style():
        FigureCanvasAgg(undrawn[0]).draw()
        for panel in undrawn[0].axes[3:]:
            low, high = panel.get_xlim()
            shown = [tick.label1 for tick in panel.xaxis.get_major_ticks() if low <= tick.get_loc() <= high]
            boxes = [label.get_window_extent() for label in shown if label.get_text()]
            assert len(boxes) >= 4 and all(a.x1 < b.x0 for a, b in zip(boxes, boxes[1:]))


def test_runs_on_different_datasets_say_so(tmp_path, undrawn):
    runs = {}
    for name, dataset in (('a', 'shapes'), ('b', 'shapes'), ('c', 'other_pictures')):
        runs[name] = a_run(tmp_path / name, [2.0, 1.0])
        shutil.copy(ROOT / 'trained' / 'crate_shapes' / 'config.json', tmp_path / name)
        with edited(tmp_path / name / 'config.json') as config:
            config['settings']['dataset'] = dataset

    def words_for(*names):
        analyze.main(['curves', *(runs[name] for name in names), f'--out={tmp_path}/x.png', '--overwrite=true'])
        legend, = undrawn[-1].legends
        return undrawn[-1].get_suptitle(), [text.get_text() for text in legend.findobj(Text) if text.get_text()]
    title, labels = words_for('a', 'b')
    assert 'shapes' in title and labels == ['a', 'b']
    title, labels = words_for('a', 'c')
    assert 'shapes' in title and 'other_pictures' in title
    assert 'shapes' in labels[0] and 'other_pictures' in labels[1]


@pytest.mark.parametrize('losses, line', [([1.0], ''), ([], '{"step": 1, "split"\n')])
def test_a_run_without_validation_or_with_a_damaged_log_is_named(losses, line, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    a_run(tmp_path / 'odd', losses, splits=['train'])
    (tmp_path / 'odd' / 'log.jsonl').open('a').write(line)
    assert 'odd' in fails(capsys, analyze.main, 'curves', 'odd') and [p.name for p in tmp_path.iterdir()] == ['odd']
