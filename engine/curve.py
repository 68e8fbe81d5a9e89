"""matplotlib as every figure here uses it, and the curve of a run.

matplotlib is imported when it is first needed.
"""
from pathlib import Path

from engine.checkpoint import read_log, write_file

# those of Okabe and Ito that are seen on white; who confuses red and green can tell them apart
COLOURS = '#0072b2', '#d55e00', '#009e73', '#cc79a7', '#56b4e9', '#e69f00', '#000000'
WATCHED = {'rate': 'coding rate R^c, nats', 'nonzeros': 'share of non-zeros', 'objective': 'objective, eq. (1)'}


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


def draw(run):
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
