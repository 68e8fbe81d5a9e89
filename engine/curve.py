"""The curve of a run, from its log."""
from pathlib import Path

from engine import plots
from engine.checkpoint import read_log


def draw_curve(run):
    """Draw curve.png of a run from its log.jsonl: training and validation loss over steps. With
    telemetry there are panels of coding rate and sparsity too. Does nothing without matplotlib, or
    if the run ended before its first validation."""
    try:
        import matplotlib  # noqa: F401  (to know whether it is installed)
    except ModuleNotFoundError:
        return
    rows = read_log(run)
    if not rows:
        return
    with plots.house_style():
        figure = figure_of_run(Path(run).name, rows)
        plots.save_picture(Path(run) / 'curve.png', figure)


def figure_of_run(run_name, rows):
    """The figure of draw_curve, from the rows of a log."""
    names = []
    watched = [row for row in rows if 'rate_1' in row]  # those that telemetry has written
    if watched:
        from engine import watched_layers
        names = watched_layers.names_in(watched[0])

    figure = plots.empty_figure(7 + 3.6 * len(names), 4.2)
    panels = figure.subplots(1, 1 + len(names), squeeze=False)[0]
    draw_losses(panels[0], rows)
    last_step = rows[-1]['step']
    panels[0].set_title(f'{run_name}, {last_step:,} steps')
    if watched:
        watched_layers.draw(figure, panels[1:], names, watched, last_step)
    return figure


def draw_losses(panel, rows):
    """A line for the training loss and one for the validation loss."""
    for split, name, style in (('train', 'training', '-'), ('val', 'validation', 'o-')):
        points = [row for row in rows if row['split'] == split]
        steps = [row['step'] for row in points]
        panel.plot(steps, [row['loss'] for row in points], style, label=name)
    # the first losses are far above all others, so they do not count for the height of the panel
    start = 0.05 * rows[-1]['step']
    late = [row['loss'] for row in rows if row['step'] >= start]
    margin = 0.05 * (max(late) - min(late)) + 1e-6
    top = max(late) + margin
    panel.set_ylim(min(late) - margin, top)
    panel.set(xlabel='step', ylabel=plots.loss_label(rows))
    if any(row['loss'] > top for row in rows):
        panel.set_xlabel(f'step; losses before step {start:,.0f} lie above')
    panel.xaxis.set_major_locator(plots.whole_numbers())
    panel.legend()
