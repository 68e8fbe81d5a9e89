"""matplotlib as every figure here uses it, figures as files, and the curve of a run. A figure of numbers stands beside
its table, a file of the same name that ends with .csv.

matplotlib is imported when it is first needed.
"""
import csv
from pathlib import Path

from engine.checkpoint import read_log, run_directory, write_file
from engine.settings import Mistake

# those of Okabe and Ito that are seen on white; who confuses red and green can tell them apart
COLOURS = '#0072b2', '#d55e00', '#009e73', '#cc79a7', '#56b4e9', '#e69f00', '#000000'
WATCHED = {'rate': 'coding rate R^c, nats', 'nonzeros': 'share of non-zeros', 'objective': 'objective, eq. (1)'}

PICTURES = '.png', '.jpg', '.pdf', '.svg'  # how the name of a figure may end


def pyplot():
    """matplotlib.pyplot, for files, with our colours. A $ in the name of a folder is a $."""
    import matplotlib
    from matplotlib import pyplot as plt
    matplotlib.use('Agg')
    colours = matplotlib.cycler(linestyle=('-', '--', ':')) * matplotlib.cycler(color=COLOURS)
    plt.rcParams.update({'axes.prop_cycle': colours, 'text.parse_math': False, 'savefig.dpi': 120})
    return plt


def save_picture(path, figure):
    """Write a figure; close it. Bytes in names of files that are no text, which matplotlib refuses, become escapes."""
    for label in figure.findobj(lambda artist: hasattr(artist, 'set_text')):
        label.set_text(label.get_text().encode('utf-8', 'backslashreplace').decode())
    write_file(path, lambda f: figure.savefig(f, format=Path(path).suffix[1:].lower()), 'wb')
    pyplot().close(figure)


def check_free(path, overwrite, setting='--out', endings=PICTURES):
    """Raises Mistake, before any work, if a path has no such ending, its folder does not exist, or it exists and must
    not be replaced. setting: the option that gives the path."""
    path = Path(path)
    if path.suffix.lower() not in endings:
        raise Mistake(f'{path} must end with {" or ".join(endings)}; give another {setting}')
    if not path.parent.is_dir():
        raise Mistake(f'{path} cannot be written: {path.parent} is no folder; give another {setting}')
    if path.exists() and not overwrite:
        raise Mistake(f'{path} exists; give another {setting}, or --overwrite=true to replace it')


def check_figure(picture, overwrite, setting='--out'):
    """check_free for a figure and, beside it, its table; and that matplotlib is there."""
    pyplot()
    check_free(picture, overwrite, setting)
    check_free(Path(picture).with_suffix('.csv'), overwrite, setting, ['.csv'])


def save(picture, figure, columns, rows):
    """Write a figure and its table; close the figure."""
    table = Path(picture).with_suffix('.csv')
    write_file(table, lambda f: csv.writer(f, lineterminator='\n').writerows([columns, *rows]))
    save_picture(picture, figure)
    print(f'{picture}, {table}')


def plain_numbers(*panels):
    """Numbers such as 0.01, and no 10^-2, along the logarithmic axes of panels; call it when all is drawn."""
    from matplotlib import ticker
    for axis in (axis for panel in panels for axis in (panel.xaxis, panel.yaxis)):
        low, high = axis.get_view_interval()
        if axis.get_scale() == 'log' and high < 200 * low:
            axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        if axis.get_scale() != 'linear':
            axis.set_major_formatter('{x:g}')
            axis.set_minor_formatter(ticker.NullFormatter())


def told_apart(paths):
    """How a legend calls runs, {path: name}: without the folder that they lie in, and by their paths where these names
    are alike."""
    titles = [run_directory(path).name or str(path) for path in paths]
    return {path: title if titles.count(title) == 1 else path for path, title in zip(paths, titles)}


def draw_curve(run):
    """Draw curve.png from log.jsonl: training and validation loss over steps; with telemetry also coding rate and
    sparsity of every layer, a line for each validation, dark to bright (CRATE, Figure 4). Does nothing without
    matplotlib."""
    try:
        plt = pyplot()
    except ModuleNotFoundError:
        return
    rows = read_log(run)
    end = rows[-1]['step']
    watched = [row for row in rows if 'rate_1' in row]
    panels = [k for k in WATCHED if watched and f'{k}_1' in watched[0]]
    figure = plt.figure(figsize=(7 + 3 * len(panels), 4), layout='constrained')
    losses, *layers = figure.subplots(1, 1 + len(panels), squeeze=False)[0]
    for split, style in (('train', '-'), ('val', 'o-')):
        points = [row for row in rows if row['split'] == split]
        losses.plot([row['step'] for row in points], [row['loss'] for row in points], style, label=split)
    late = [row['loss'] for row in rows if row['step'] >= 0.05 * end]  # the start is far above
    room = 0.05 * (max(late) - min(late)) + 1e-6
    losses.set(xlabel='step', ylabel='loss', title=Path(run).name, ylim=(min(late) - room, max(late) + room))
    losses.legend()
    colours = plt.cm.ScalarMappable(plt.Normalize(0, end), 'copper')
    for axis, k in zip(layers, panels):
        for row in watched:
            values = [value for name, value in row.items() if name.startswith(f'{k}_')]
            axis.plot(range(1, len(values) + 1), values, '.-', color=colours.to_rgba(row['step']))
        axis.set(xlabel='layer', title=WATCHED[k])
        axis.locator_params(axis='x', integer=True)
    if panels:
        figure.colorbar(colours, ax=layers, label='step')
    save_picture(Path(run) / 'curve.png', figure)
