"""The curve of a run with --telemetry=true: panels of its layers stand beside the losses."""
from pathlib import Path

from engine import curve, plots
from engine.checkpoint import read_log

# telemetry: {name in the log: title of its panel}
WATCHED = {
    'rate': 'coding rate $R^c$, nats',
    'nonzeros': 'share of non-zeros',
    'objective': 'objective, eq. (1)',  # of CRATE
}


def draw_curve(run):
    """Draw curve.png of a run from its log.jsonl, as engine/curve.py does, with a panel for each
    number of WATCHED. Does nothing without matplotlib, or if the run ended before its first
    validation."""
    try:
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import Normalize
    except ModuleNotFoundError:
        return
    rows = read_log(run)
    watched = [row for row in rows if any(f'{name}_1' in row for name in WATCHED)]
    if not watched:
        return
    names = [name for name in WATCHED if f'{name}_1' in watched[0]]
    colours = ScalarMappable(Normalize(0, rows[-1]['step']), 'copper')
    with plots.house_style():
        figure = plots.empty_figure(7 + 3.6 * len(names), 4.2)
        losses, *panels = figure.subplots(1, 1 + len(names))
        curve.draw_losses(losses, Path(run).name, rows)
        for panel, name in zip(panels, names):
            draw_layers(panel, watched, name, colours)
        bar = figure.colorbar(colours, ax=panels, label='step')
        bar.locator = plots.whole_numbers()
        plots.save_picture(Path(run) / 'curve.png', figure)


def draw_layers(panel, rows, name, colours):
    """What telemetry calls `name`, for every layer: a line for each validation, from dark to bright
    (CRATE, Figure 4)."""
    for row in rows:
        values = [value for key, value in row.items() if key.startswith(f'{name}_')]
        layers = range(1, len(values) + 1)
        panel.plot(layers, values, '.-', color=colours.to_rgba(row['step']))
    panel.set(xlabel='layer', title=WATCHED[name])
    panel.xaxis.set_major_locator(plots.whole_numbers())
