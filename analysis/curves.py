"""Runs side by side: training and validation loss over steps, over data seen, and over time. `curves`, a command of
analyze.py that reads logs alone.
"""
from dataclasses import dataclass

from analysis.tables import say_table
from engine import figures, plots
from engine.checkpoint import read_log
from engine.settings import Mistake, check, split

AXES = {'step': 'steps', 'seen': 'tokens or pictures seen', 'seconds': 'seconds of training'}


@dataclass
class CurvesConfig:
    out: str = 'curves.png'      # the picture to write; curves.png is replaced if it exists
    overwrite: bool = False      # replace another file if it exists
    log: bool = False            # logarithmic horizontal axes: the early part of a run takes more room


def main(words):
    folders, typed = split(words)
    c = CurvesConfig(**check(typed, CurvesConfig))
    if not folders:
        raise Mistake('name the directories of runs, such as: python analyze.py curves out/mssa out/gpt2')
    figures.check_free(c.out, c.overwrite or c.out == CurvesConfig.out)
    runs = {folder: read_log(folder) for folder in folders}
    said = []
    for folder, rows in runs.items():
        held_out = [row for row in rows if row['split'] == 'val']
        if not held_out:
            raise Mistake(f'{folder} has no validation loss yet; leave it out, or wait for its first one')
        last, best = held_out[-1], min(held_out, key=lambda row: row['loss'])
        said.append((folder, f'{last["loss"]:.4f}', last['step'], float(last['seen']), f'{last["seconds"]:.0f}',
                     f'{best["loss"]:.4f}', best['step']))
    say_table(('validation loss', 'last', 'at step', 'seen', 'seconds', 'best', 'at step'), said)
    names = figures.told_apart(runs)
    labels = {plots.loss_label(rows) for rows in runs.values()}
    # runs with losses of different kinds share no unit
    unit = ', nats' if labels == {'loss, nats'} else ''
    figure, axes = plots.pyplot().subplots(2, 3, figsize=(13, 8), sharey=True, sharex='col', layout='constrained')
    for row, kind, name, marker in zip(axes, ('train', 'val'), ('training loss', 'validation loss'), ('', '.')):
        for axis, k in zip(row, AXES):
            for folder, rows in runs.items():
                points = [(point[k], point['loss']) for point in rows if point['split'] == kind]
                axis.plot(*zip(*points), label=names[folder], marker=marker)
            axis.set(xlabel=AXES[k], ylabel=f'{name}{unit}', xscale='symlog' if c.log else 'linear')
            axis.label_outer()
    figures.plain_numbers(*axes.flat)
    figures.legend_below(figure, axes.flat)
    plots.save_picture(c.out, figure)
    print(f'{c.out}: {len(runs)} runs')
