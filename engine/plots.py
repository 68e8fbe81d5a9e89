"""Figures and pictures as files. A figure of numbers stands beside its table, a file of the same
name that ends with .csv.

matplotlib and Pillow are imported here when they are first needed.
"""
import csv
from pathlib import Path, PurePath

from engine.checkpoint import read_log, run_directory, write_file
from engine.settings import Mistake

# ---- figures, by matplotlib -----------------------------------------------------------------------------------------

# those of Okabe and Ito that are seen on white; who confuses red and green can tell them apart
COLOURS = '#0072b2', '#d55e00', '#009e73', '#cc79a7', '#56b4e9', '#e69f00', '#000000'


def pyplot():
    """matplotlib.pyplot, for files, with our colours."""
    import matplotlib
    matplotlib.use('Agg')
    matplotlib.rcParams['text.parse_math'] = False  # a $ in the name of a folder is a $
    matplotlib.rcParams['axes.prop_cycle'] = matplotlib.cycler(color=COLOURS)
    from matplotlib import pyplot as plt
    return plt


def check_free(path, overwrite, setting, endings):
    """Raises Mistake, before any work, if a path does not end as one of these (such as .png), its folder does not
    exist, or it exists and must not be replaced. setting: the option that gives the path, such as --out."""
    path = Path(path)
    if path.suffix.lower() not in endings:
        known = [e for e in ('.png', '.jpg', '.pdf', '.svg', '.csv', '.html') if e in endings]
        raise Mistake(f'{path} must end with {" or ".join(known)}; give another {setting}')
    if path.is_dir() or not path.parent.is_dir():
        raise Mistake(f'{path} cannot be written: {"it is a" if path.is_dir() else f"{path.parent} is no"} folder; '
                      f'give another {setting}')
    if path.exists() and not overwrite:
        raise Mistake(f'{path} exists; give another {setting}, or --overwrite=true to replace it')


def check_figure(picture, overwrite, setting, table=True):
    """check_free for a figure and, beside it, its table."""
    pyplot()
    from matplotlib.backend_bases import FigureCanvasBase
    check_free(picture, overwrite, setting, [f'.{kind}' for kind in FigureCanvasBase.get_supported_filetypes()])
    if table:
        check_free(Path(picture).with_suffix('.csv'), overwrite, setting, ['.csv'])


def save(picture, figure, columns, rows, setting):
    """Write a figure and its table; close the figure."""
    table = Path(picture).with_suffix('.csv')
    write_file(table, lambda f: csv.writer(f, lineterminator='\n').writerows([columns, *rows]), advice=again(setting))
    save_picture(picture, figure, setting)
    print(f'{picture}, {table}')


def save_picture(picture, figure, setting):
    """Write a figure; close it."""
    kind = Path(picture).suffix[1:].lower()
    write_file(picture, lambda f: write_figure(figure, f, format=kind), 'wb', again(setting))
    pyplot().close(figure)


def write_figure(figure, f, **told):
    """Bytes in names of files that are no text, which matplotlib refuses, become escapes."""
    for label in figure.findobj(lambda artist: hasattr(artist, 'set_text')):
        label.set_text(label.get_text().encode('utf-8', 'backslashreplace').decode())
    figure.savefig(f, dpi=120, **told)


def plain_numbers(*axes):
    """Numbers such as 0.01 along the logarithmic axes of panels, whose usual 10^-2 would need math in
    text; call it when all is drawn."""
    from matplotlib import ticker
    for axis in (axis for panel in axes for axis in (panel.xaxis, panel.yaxis)):
        if axis.get_scale() in ('log', 'symlog'):
            low, high = axis.get_view_interval()
            if axis.get_scale() == 'log':
                axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5) if high < 200 * low else (1,)))
            axis.set_major_formatter('{x:g}')
            axis.set_minor_formatter(ticker.NullFormatter())


def title_of(path):
    """A run or checkpoint without the folder that the run directory lies in."""
    return run_directory(path).name or str(path)


def told_apart(titles):
    """How a legend calls runs, {path: title} -> {path: name}: by their titles; where these are alike,
    by as much of the end of their paths as differs."""
    names, longest = dict(titles), max((len(PurePath(path).parts) for path in titles), default=0)
    for n in range(1, longest + 2):
        held = list(names.values())
        for path in (path for path, name in titles.items() if held.count(names[path]) > 1):
            names[path] = str(PurePath(*PurePath(path).parts[-n:])) if n <= longest else path
    return names


def again(setting):
    return f'run this again, or give another {setting}'


# ---- pictures of pixels, by Pillow ----------------------------------------------------------------------------------

def check_image(path, overwrite):
    """Raises Mistake, before any work, if no image can be written to --out=path, or it exists and must not be
    replaced."""
    from PIL import Image
    check_free(path, overwrite, '--out', [e for e, kind in Image.registered_extensions().items() if kind in Image.SAVE])


def write_image(image, path):
    """Write a Pillow image to --out=path, whole or not at all."""
    from PIL import Image
    kind = Image.registered_extensions()[Path(path).suffix.lower()]
    write_file(path, lambda f: image.save(f, kind), 'wb', again('--out'))


# ---- the curve of a run ---------------------------------------------------------------------------------------------

def draw_curve(run):
    """Draw curve.png from log.jsonl: training and validation loss over steps; with telemetry also coding rate and
    sparsity of every layer, a line for each validation, dark to bright (CRATE, Figure 4). Does nothing without
    matplotlib."""
    try:
        plt = pyplot()
    except ModuleNotFoundError:
        return
    rows = read_log(run)
    if not rows:
        return
    watched = [r for r in rows if r.get('rate_1')]
    panels = [(k, *words) for k, *words in (('rate', 'coding rate of each layer', 'R^c, nats'),
                                            ('nonzeros', 'sparsity of each layer', 'share of non-zeros'))
              if watched and watched[0].get(f'{k}_1')]
    figure = plt.figure(figsize=((8.4, 10.2, 13.2)[len(panels)], 4), layout='constrained')
    losses, *layers = figure.subplots(1, 1 + len(panels), squeeze=False)[0]
    for split, name, style in (('train', 'training', {'linewidth': 0.8}), ('val', 'validation', {'marker': 'o'})):
        points = [(r['step'], r['loss']) for r in rows if r['split'] == split]
        if points:
            label = f'{name}, {points[-1][1]:.3f} at step {points[-1][0]:,}'
            losses.plot(*zip(*points), label=label, markersize=4, **style)
    late = [r['loss'] for r in rows if r['step'] >= 0.05 * rows[-1]['step']]  # the start is far above
    room = 0.05 * (max(late) - min(late)) or 0.1
    losses.set(xlabel='step', ylabel='loss', title=Path(run).resolve().name, ylim=(min(late) - room, max(late) + room))
    losses.grid(alpha=0.3)
    losses.legend()
    for axis, (k, title, unit) in zip(layers, panels):
        over_steps(axis, k, watched)
        axis.set(xlabel='layer', ylabel=unit, title=title)
        axis.xaxis.get_major_locator().set_params(integer=True)
    if panels:
        figure.colorbar(steps_as_colours(watched), ax=layers, label='step')
    write_file(Path(run) / 'curve.png', lambda f: write_figure(figure, f), 'wb')
    plt.close(figure)


def steps_as_colours(watched):
    """The colour of each step, from dark to bright, and not as bright as white."""
    from matplotlib import cm, colors
    steps = [r['step'] for r in watched]
    bright = colors.ListedColormap(pyplot().get_cmap('viridis')([i / 290 for i in range(256)]))
    return cm.ScalarMappable(colors.Normalize(steps[0], max(steps[-1], steps[0] + 1)), bright)


def over_steps(axis, k, watched):
    """A line over layers for each validation, of the columns k_1, k_2 .. of its row of the log."""
    colours = steps_as_colours(watched)
    for r in watched:
        values = [r[f'{k}_{l}'] for l in range(1, len(r)) if r.get(f'{k}_{l}')]
        axis.plot(range(1, len(values) + 1), values, marker='o', markersize=3, color=colours.to_rgba(r['step']))
