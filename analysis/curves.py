"""Runs side by side: training and validation loss over steps, over data seen, and over time.
`curves` is a command of analyze.py that reads the log of each run, and from its config.json the
name of its dataset.
"""
from dataclasses import dataclass
from pathlib import Path

from analysis import figures
from analysis.tables import say_table
from engine import plots
from engine.checkpoint import read_log
from engine.mistakes import Mistake
from engine.settings import check, split
from weights.runs import read_config

AXES = {  # {column of the log: what stands along the horizontal axis}
    'step': 'steps',
    'seen': 'tokens or pictures seen',
    'seconds': 'seconds of training',
}


@dataclass
class CurvesConfig:
    out: str = 'curves.png'      # the picture to write; curves.png is replaced if it exists
    overwrite: bool = False      # replace another file if it exists
    log: bool = False            # logarithmic horizontal axes: the early part takes more room


def main(words):
    """Draw the losses of the runs that a command line names. words: the command line without
    `curves`."""
    folders, typed = split(words)
    c = CurvesConfig(**check(typed, CurvesConfig))
    if not folders:
        raise Mistake('name the directories of runs, such as: '
                      'python analyze.py curves out/mssa out/gpt2')
    figures.check_out(c)
    runs = {folder: read_log(folder) for folder in folders}
    say_losses(runs)
    with plots.house_style():
        plots.save_picture(c.out, figure_of_losses(runs, c.log))
    print(f'{c.out}: {len(runs)} runs')


def say_losses(runs):
    """Print the last and the best validation loss of each run. runs: {folder: rows of its log}.
    Raises Mistake for a run without a validation."""
    table = []
    for folder, rows in runs.items():
        validations = [row for row in rows if row['split'] == 'val']
        if not validations:
            raise Mistake(f'{folder} has no validation loss yet; leave it out, or wait for its '
                          'first one')
        last = validations[-1]
        best = min(validations, key=lambda row: row['loss'])
        table.append((
            folder,
            f'{last["loss"]:.4f}',
            last['step'],
            float(last['seen']),
            f'{last["seconds"]:.0f}',
            f'{best["loss"]:.4f}',
            best['step'],
        ))
    say_table(('validation loss', 'last', 'at step', 'seen', 'seconds', 'best', 'at step'), table)


def dataset_of(folder):
    """The dataset of a run, or words for a folder that holds a log alone."""
    if not (Path(folder) / 'config.json').exists():
        return 'an unknown dataset'
    return read_config(folder).settings['dataset']


def figure_of_losses(runs, logarithmic):
    """A figure with training losses above validation losses, over each of the AXES. Its title names
    the dataset. If the runs have different ones, the legend says which run has which. runs:
    {folder: rows of its log}; logarithmic: whether the horizontal axes are."""
    figure = plots.empty_figure(13, 8)
    axes = figure.subplots(2, len(AXES), sharey=True, sharex='col')
    names = figures.told_apart(runs)
    datasets = {folder: dataset_of(folder) for folder in runs}
    different_datasets = dict.fromkeys(datasets.values())
    if len(different_datasets) > 1:
        names = {folder: f'{names[folder]}, on {datasets[folder]}' for folder in runs}
    labels = {plots.loss_label(rows) for rows in runs.values()}
    unit = ''  # if the runs have losses of different kinds, these share no unit
    if labels == {'loss, nats'}:
        unit = ', nats'
    kinds = (
        ('train', f'training loss{unit}', ''),
        ('val', f'validation loss{unit}', '.'),
    )
    for row_axes, (kind, label, marker) in zip(axes, kinds):
        for axis, column in zip(row_axes, AXES):
            for folder, rows in runs.items():
                points = [(row[column], row['loss']) for row in rows if row['split'] == kind]
                axis.plot(*zip(*points), label=plots.verbatim(names[folder]), marker=marker)
            axis.set(xlabel=AXES[column], ylabel=label)
            if logarithmic:
                axis.set_xscale('symlog', linthresh=1)  # there is a place for step 0
                axis.xaxis.get_major_locator().set_params(numticks=6)  # their numbers fit
            axis.label_outer()
    figures.headline(figure, f'losses on {", ".join(different_datasets)}')
    figures.legend_below(figure, axes.flat)
    return figure
