"""matplotlib as every figure here uses it, figures as files, and the curve of a run.

A figure of numbers stands beside its table, a file of the same name that ends with .csv. matplotlib
is imported when it is first needed.
"""
import csv
from pathlib import Path

from engine.checkpoint import read_log, run_directory, write_file
from engine.settings import Mistake

# Okabe and Ito's colours that are visible on white. People who confuse red and green can tell them
# apart.
COLOURS = '#0072b2', '#d55e00', '#009e73', '#cc79a7', '#56b4e9', '#e69f00', '#000000'
# telemetry: {name in the log: title of its panel}
WATCHED = {
    'rate': 'coding rate R^c, nats',
    'nonzeros': 'share of non-zeros',
    'objective': 'objective, eq. (1)',
}
PICTURES = '.png', '.jpg', '.pdf', '.svg'  # how the name of a figure may end


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


# ---- files --------------------------------------------------------------------------------------

def save_picture(path, figure):
    """Write a figure, and close it. The name of a file may have bytes that are no text. matplotlib
    refuses them, so they become escapes."""
    for label in figure.findobj(lambda artist: hasattr(artist, 'set_text')):
        text = label.get_text().encode('utf-8', 'backslashreplace')
        label.set_text(text.decode())
    ending = Path(path).suffix[1:].lower()
    write_file(path, lambda f: figure.savefig(f, format=ending), 'wb')
    pyplot().close(figure)


def save(picture, figure, columns, rows):
    """Write a figure, and its table beside it; then close the figure."""
    def write_table(f):
        csv.writer(f, lineterminator='\n').writerows([columns, *rows])

    table = Path(picture).with_suffix('.csv')
    write_file(table, write_table)
    save_picture(picture, figure)
    print(f'{picture}, {table}')


def check_free(path, overwrite, setting='--out', endings=PICTURES):
    """Raises Mistake, before any work, for a path with none of the endings, for a path in a folder
    that does not exist, and for a file that exists and must not be replaced. setting: the option
    that gives the path."""
    path = Path(path)
    if path.suffix.lower() not in endings:
        raise Mistake(f'{path} must end with {" or ".join(endings)}; give another {setting}')
    if not path.parent.is_dir():
        raise Mistake(f'{path} cannot be written: {path.parent} is no folder; '
                      f'give another {setting}')
    if path.exists() and not overwrite:
        raise Mistake(f'{path} exists; give another {setting}, or --overwrite=true to replace it')


def check_figure(picture, overwrite, setting='--out'):
    """check_free for a figure and for the table beside it. Raises ModuleNotFoundError without
    matplotlib."""
    pyplot()
    check_free(picture, overwrite, setting)
    check_free(Path(picture).with_suffix('.csv'), overwrite, setting, ['.csv'])


# ---- axes and legends ---------------------------------------------------------------------------

def plain_numbers(*panels):
    """Write numbers such as 0.01, not 10^-2, along the logarithmic axes of panels. Call it when all
    is drawn."""
    from matplotlib import ticker
    for panel in panels:
        for axis in (panel.xaxis, panel.yaxis):
            low, high = axis.get_view_interval()
            if axis.get_scale() == 'log' and high < 200 * low:
                axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
            if axis.get_scale() != 'linear':
                axis.set_major_formatter('{x:g}')
                axis.set_minor_formatter(ticker.NullFormatter())


def told_apart(paths):
    """{path: what a legend calls the run at this path}. That is the run's name without its folder,
    or the path where several runs have the same name."""
    names = [run_directory(path).name or str(path) for path in paths]
    titles = {}
    for path, name in zip(paths, names):
        titles[path] = name if names.count(name) == 1 else path
    return titles


# ---- the curve of a run -------------------------------------------------------------------------

def draw_curve(run):
    """Draw curve.png of a run from its log.jsonl: training and validation loss over steps. With
    telemetry there are panels of coding rate and sparsity too. Does nothing without matplotlib."""
    try:
        plt = pyplot()
    except ModuleNotFoundError:
        return
    rows = read_log(run)
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
