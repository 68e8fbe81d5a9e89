"""matplotlib as every figure here uses it, and the curve of a run. matplotlib is imported when it
is first needed.
"""
from pathlib import Path

from engine.checkpoint import read_log, write_file

# Okabe and Ito's colours that are visible on white. People who confuse red and green can tell them
# apart.
COLOURS = '#0072b2', '#d55e00', '#009e73', '#cc79a7', '#56b4e9', '#e69f00', '#000000'
# telemetry: {name in the log: title of its panel}
WATCHED = {
    'rate': 'coding rate R^c, nats',
    'nonzeros': 'share of non-zeros',
    'objective': 'objective, eq. (1)',
}


def pyplot():
    """matplotlib.pyplot, set up to write files in our colours. A $ in the name of a folder stays a
    $."""
    import matplotlib
    from matplotlib import pyplot as plt
    matplotlib.use('Agg')
    colours = matplotlib.cycler(color=COLOURS)
    styles = matplotlib.cycler(linestyle=('-', '--', ':'))
    plt.rcParams['axes.prop_cycle'] = styles * colours
    plt.rcParams['text.parse_math'] = False
    plt.rcParams['savefig.dpi'] = 120
    return plt


def save_picture(path, figure):
    """Write a figure, and close it. The name of a file may have bytes that are no text. matplotlib
    refuses them, so they become escapes."""
    for label in figure.findobj(lambda artist: hasattr(artist, 'set_text')):
        text = label.get_text().encode('utf-8', 'backslashreplace')
        label.set_text(text.decode())
    ending = Path(path).suffix[1:].lower()
    write_file(path, lambda f: figure.savefig(f, format=ending), 'wb')
    pyplot().close(figure)


# ---- the curve of a run -------------------------------------------------------------------------

def draw_curve(run):
    """Draw curve.png of a run from its log.jsonl: training and validation loss over steps. With
    telemetry there are panels of coding rate and sparsity too. Does nothing without matplotlib, or
    if the run ended before its first validation."""
    try:
        plt = pyplot()
    except ModuleNotFoundError:
        return
    rows = read_log(run)
    if not rows:
        return
    watched = [row for row in rows if 'rate_1' in row]
    names = []
    if watched:
        names = [name for name in WATCHED if f'{name}_1' in watched[0]]

    figure = plt.figure(figsize=(7 + 3 * len(names), 4), layout='constrained')
    losses, *panels = figure.subplots(1, 1 + len(names), squeeze=False)[0]
    draw_losses(losses, rows)
    losses.set_title(Path(run).name)
    colours = plt.cm.ScalarMappable(plt.Normalize(0, rows[-1]['step']), 'copper')
    for panel, name in zip(panels, names):
        draw_layers(panel, watched, name, colours)
    if names:
        figure.colorbar(colours, ax=panels, label='step')
    save_picture(Path(run) / 'curve.png', figure)


def draw_losses(panel, rows):
    """A line for the training loss and one for the validation loss."""
    for split, style in (('train', '-'), ('val', 'o-')):
        points = [row for row in rows if row['split'] == split]
        steps = [row['step'] for row in points]
        panel.plot(steps, [row['loss'] for row in points], style, label=split)
    # the first losses are far above all others, so they do not count for the height of the panel
    start = 0.05 * rows[-1]['step']
    late = [row['loss'] for row in rows if row['step'] >= start]
    margin = 0.05 * (max(late) - min(late)) + 1e-6
    panel.set_ylim(min(late) - margin, max(late) + margin)
    panel.set(xlabel='step', ylabel='loss')
    panel.legend()


def draw_layers(panel, rows, name, colours):
    """What telemetry calls `name`, for every layer: a line for each validation, from dark to bright
    (CRATE, Figure 4)."""
    for row in rows:
        values = [value for key, value in row.items() if key.startswith(f'{name}_')]
        layers = range(1, len(values) + 1)
        panel.plot(layers, values, '.-', color=colours.to_rgba(row['step']))
    panel.set(xlabel='layer', title=WATCHED[name])
    panel.locator_params(axis='x', integer=True)
