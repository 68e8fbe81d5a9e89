"""matplotlib as every figure here uses it, and the curve of a run. matplotlib is imported when it
is first needed.
"""
import contextlib
from pathlib import Path

from engine.checkpoint import read_log, write_file

# Okabe and Ito's colours that are visible on white. People who confuse red and green can tell them
# apart.
COLOURS = '#0072b2', '#d55e00', '#009e73', '#cc79a7', '#56b4e9', '#e69f00', '#000000'
# two scales of colours for maps: in FROM_BLACK what is large glows, in FROM_WHITE a zero is white
FROM_BLACK = 'inferno'
FROM_WHITE = 'Blues'
# Where two lines lie on each other, the gaps of the upper one show the lower one.
DASHES = ('-', (0, (4, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)), (0, (8, 3)), (0, (3, 1, 1, 1, 1, 1)),
          (0, (2, 3)))
LETTERS = 13  # their size in points; a figure of 12 inches on a slide can be read from the back
# telemetry: {name in the log: title of its panel}
WATCHED = {
    'rate': 'coding rate R^c, nats',
    'nonzeros': 'share of non-zeros',
    'objective': 'objective, eq. (1)',
}


@contextlib.contextmanager
def house_style():
    """In this block matplotlib has its own defaults and our few settings, so that no settings of
    the user change a picture. After the block, settings are again as they were. matplotlib reads
    some of them when a part is drawn and others when the file is written, so a figure is made and
    saved in the same block."""
    import matplotlib.style
    # first all colours with solid lines, then all with dashed ones
    colours = matplotlib.cycler(color=COLOURS)
    line_styles = matplotlib.cycler(linestyle=('-', '--', ':'))
    ours = {
        'axes.prop_cycle': line_styles * colours,
        'axes.titlesize': 'medium',
        'figure.titlesize': 'medium',
        'font.size': LETTERS,
        'savefig.dpi': 120,
        'text.parse_math': False,  # a $ in the name of a folder stays a $
    }
    with matplotlib.style.context(['default', ours]):
        yield


def empty_figure(width, height, layout='constrained'):
    """A figure of width x height inches. pyplot does not know it, so it is in no window or notebook
    and nobody must close it. layout: the engine of matplotlib that places its parts, or None."""
    from matplotlib.figure import Figure
    return Figure(figsize=(width, height), layout=layout)


def save_picture(path, figure):
    """Write a figure. The name of a file may have bytes that are no text. matplotlib refuses them,
    so they become escapes."""
    for label in figure.findobj(lambda artist: hasattr(artist, 'set_text')):
        text = label.get_text().encode('utf-8', 'backslashreplace')
        label.set_text(text.decode())
    ending = Path(path).suffix[1:].lower()
    write_file(path, lambda f: figure.savefig(f, format=ending), 'wb')


# ---- the curve of a run -------------------------------------------------------------------------

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
    with house_style():
        figure = figure_of_run(Path(run).name, rows)
        save_picture(Path(run) / 'curve.png', figure)


def figure_of_run(run_name, rows):
    """The figure of draw_curve, from the rows of a log."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    watched = [row for row in rows if 'rate_1' in row]
    names = []
    if watched:
        names = [name for name in WATCHED if f'{name}_1' in watched[0]]

    figure = empty_figure(7 + 3.6 * len(names), 4.2)
    panels = figure.subplots(1, 1 + len(names), squeeze=False)[0]
    draw_losses(panels[0], rows)
    panels[0].set_title(f'{run_name}, {rows[-1]["step"]:,} steps')
    colours = ScalarMappable(Normalize(0, rows[-1]['step']), 'copper')
    for panel, name in zip(panels[1:], names):
        draw_layers(panel, watched, name, colours)
    if names:
        bar = figure.colorbar(colours, ax=panels[1:], label='step')
        bar.locator = whole_numbers()
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
    panel.set(xlabel='step', ylabel=loss_label(rows))
    if any(row['loss'] > top for row in rows):
        panel.set_xlabel(f'step; losses before step {start:,.0f} lie above')
    panel.xaxis.set_major_locator(whole_numbers())
    panel.legend()


def loss_label(rows):
    """The label of an axis of losses, from the rows of a log. A loss that is logged beside
    accuracies, bits per byte or an entropy is a cross-entropy, so its unit is the nat. Other losses
    are squared errors or have no unit."""
    for row in rows:
        if row.keys() & {'top1', 'bits_per_byte', 'entropy'}:
            return 'loss, nats'
    return 'loss'


def whole_numbers():
    """A locator for an axis that counts: its ticks are whole numbers."""
    from matplotlib.ticker import MaxNLocator
    return MaxNLocator(nbins='auto', integer=True)


def draw_layers(panel, rows, name, colours):
    """What telemetry calls `name`, for every layer: a line for each validation, from dark to bright
    (CRATE, Figure 4)."""
    for row in rows:
        values = [value for key, value in row.items() if key.startswith(f'{name}_')]
        layers = range(1, len(values) + 1)
        panel.plot(layers, values, '.-', color=colours.to_rgba(row['step']))
    panel.set(xlabel='layer', title=WATCHED[name])
    panel.xaxis.set_major_locator(whole_numbers())
