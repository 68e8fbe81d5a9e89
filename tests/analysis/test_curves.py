"""analyze.py curves: the losses in the logs of runs, printed and drawn; and the curve of one run."""
import json

import numpy as np
from helpers import fails
from PIL import Image

import analyze
from engine import curve, plots


def a_run(folder, losses, per_step=10, splits=('train', 'val')):
    """A run directory with such validation losses; those of training are larger by one."""
    folder.mkdir()
    config = {'model': 'aot', 'settings': {'dataset': 'stdlib'}, 'network': {}, 'data': {}}
    (folder / 'config.json').write_text(json.dumps(config))
    (folder / 'log.jsonl').write_text(''.join(
        json.dumps({'step': i, 'split': split, 'loss': loss + (split == 'train'), 'lr': 0.1,
                    'seen': (i + (split == 'train')) * per_step, 'seconds': 0.5 * i}) + '\n'
        for i, loss in enumerate(losses) for split in splits))
    return str(folder)


def test_runs_are_read_printed_and_drawn(tmp_path, capsys, monkeypatch):
    from matplotlib.axes import Axes
    drawn, panels, plot = [], [], Axes.plot

    def noted(self, x, y, **settings):
        drawn.append((list(x), list(y), settings['label']))
        panels.append(self)
        return plot(self, x, y, **settings)
    monkeypatch.setattr(Axes, 'plot', noted)
    a, b = a_run(tmp_path / 'a', [3.0, 1.0, 2.0]), a_run(tmp_path / 'b', [4.0, 3.5], 100)
    analyze.main(['curves', a, b, f'--out={tmp_path}/x.png'])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == [a, '2.0000', '2', '20', '1', '1.0000', '1']             # the last loss, and the best
    assert lines[2].split()[:4] == [b, '3.5000', '1', '100'] and lines[3].endswith('2 runs')
    assert Image.open(tmp_path / 'x.png').size[0] > 1000
    for k, x in enumerate(([0, 1, 2], [10, 20, 30], [0, 0.5, 1])):
        assert drawn[2 * k] == (x, [4, 2, 3], 'a')
    for k, x in enumerate(([0, 1, 2], [0, 10, 20], [0, 0.5, 1])):
        assert drawn[6 + 2 * k] == (x, [3, 1, 2], 'a')
    assert [label for _, _, label in drawn] == ['a', 'b'] * 6
    for panel in panels:  # all of both runs is seen
        assert panel.get_ylim()[0] < 1 and panel.get_ylim()[1] > 5
    analyze.main(['curves', a, '--out', f'{tmp_path}/log.png', '--log=true', b, '--top=2'])
    pictures = [np.asarray(Image.open(tmp_path / f'{name}.png')) for name in ('x', 'log')]
    assert not np.array_equal(*pictures)


def test_legends_name_runs_without_folders_if_that_tells_them_apart():
    def names(*paths):
        return list(plots.told_apart(paths).values())
    assert names('/x/out/a', 'out/b', '/tmp/c/', 'out/d/best.safetensors') == ['a', 'b', 'c', 'd'] and names() == []
    assert names('x/a', 'y/a', 'b', 'a/') == ['x/a', 'y/a', 'b', 'a/']


def test_the_numbers_of_logarithmic_axes_are_no_math():
    for limits, scale, shown in (((1e-5, 10), 'log', '0.01'), ((0.3, 2), 'log', '0.5'), ((0, 100), 'symlog', '10')):
        figure, panel = plots.pyplot().subplots()
        panel.set(xscale=scale, xlim=limits)
        plots.plain_numbers(panel)
        figure.canvas.draw()
        said = [label.get_text() for label in panel.get_xticklabels(which='both')]
        assert shown in said and not any('$' in word for word in said)
        plots.pyplot().close(figure)


def test_the_curve_of_a_run_is_titled_without_its_folder(tmp_path, monkeypatch):
    run, figures = a_run(tmp_path / 'out_of_here', [3.0, 1.0]), []
    monkeypatch.setattr('matplotlib.figure.Figure.savefig',
                        lambda figure, f, **more: figures.append(figure) or f.write(b'a picture'))
    curve.draw(run)
    panel, = figures[0].axes
    assert panel.get_title() == 'out_of_here' and str(tmp_path) not in panel.get_title()
    assert [label.get_text() for label in panel.get_legend().get_texts()] == ['train', 'val']


def test_mistakes_get_one_line(tmp_path, capsys):
    a = a_run(tmp_path / 'a', [3.0, 1.0])
    analyze.main(['curves', a, f'--out={tmp_path}/x.png'])
    capsys.readouterr()
    odd, early = a_run(tmp_path / 'odd', []), a_run(tmp_path / 'early', [1.0], splits=['train'])
    (tmp_path / 'odd' / 'log.jsonl').write_text('{"step": 1, "split"\n')
    before = (tmp_path / 'x.png').read_bytes()
    for words, message in (
            ([], 'name the directories'), ([a, f'--out={tmp_path}/x.png'], 'exists'),
            ([f'{tmp_path}/none', '--out=y.png'], f'no {tmp_path}/none'),
            ([odd, '--out=y.png'], 'log.jsonl, line 1 is damaged'),
            ([early, '--out=y.png'], 'no validation loss yet'), ([a, '--out=y.what'], 'must end with'),
            ([a, '--outt=y.png'], 'did you mean out')):
        assert message in fails(capsys, analyze.main, 'curves', *words)
    assert (tmp_path / 'x.png').read_bytes() == before
