"""The curve of a run, from its log."""
from pathlib import Path

from engine import plots
from engine.checkpoint import read_log


def draw_curve(run):
    """Draw curve.png of a run from its log.jsonl: training and validation loss over steps. Does
    nothing without matplotlib, or if the run ended before its first validation."""
    try:
        import matplotlib  # noqa: F401  (to know whether it is installed)
    except ModuleNotFoundError:
        return
    rows = read_log(run)
    if not rows:
        return
    with plots.house_style():
        figure = plots.empty_figure(7, 4.2)
        draw_losses(figure.subplots(), Path(run).name, rows)
        plots.save_picture(Path(run) / 'curve.png', figure)


def draw_losses(panel, run_name, rows):
    """A line for the training loss and one for the validation loss, from the rows of a log. The
    first twentieth of the steps is left out, because those losses are far above all later ones."""
    last_step = rows[-1]['step']
    rows = [row for row in rows if row['step'] >= 0.05 * last_step]
    for split, name, style in (('train', 'training', '-'), ('val', 'validation', 'o-')):
        points = [row for row in rows if row['split'] == split]
        steps = [row['step'] for row in points]
        panel.plot(steps, [row['loss'] for row in points], style, label=name)
    panel.set(xlabel='step', ylabel=plots.loss_label(rows),
              title=f'{plots.verbatim(run_name)}, {last_step:,} steps')
    panel.xaxis.set_major_locator(plots.whole_numbers())
    panel.legend()
