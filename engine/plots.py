"""Figures and pictures as files. A figure of numbers stands beside its table, a file of the same
name that ends with .csv.

matplotlib and Pillow are imported here when they are first needed.
"""
import csv
from pathlib import Path, PurePath

from engine.log import read_log
from engine.output import check_new, check_picture_path, check_writable, write_file
from engine.settings import Mistake

# ---- figures, by matplotlib -----------------------------------------------------------------------------------------

# those of Okabe and Ito that are seen on white; who confuses red and green can tell them apart
COLOURS = '#0072b2', '#d55e00', '#009e73', '#cc79a7', '#56b4e9', '#e69f00', '#000000'


def pyplot():
    """matplotlib.pyplot, for files, with our colours. Raises Mistake with what to install."""
    try:
        import matplotlib
    except ImportError:
        raise Mistake('the picture needs matplotlib: pip install matplotlib') from None
    matplotlib.use('Agg')
    matplotlib.rcParams['text.parse_math'] = False  # a $ in the name of a folder is a $
    matplotlib.rcParams['axes.prop_cycle'] = matplotlib.cycler(color=COLOURS)
    from matplotlib import pyplot as plt
    return plt


def check_free(picture, overwrite, setting, maker=None):
    """check_picture for a figure and its table. Both may be replaced if the same command, `maker`,
    made the picture."""
    check_picture(picture, True, setting)
    overwrite = overwrite or was_made_by(picture, maker)
    for path in (Path(picture).with_suffix('.csv'), picture):
        check_new(path, overwrite, setting)


def was_made_by(picture, maker):
    """Whether a PNG file says that this command of ours made it."""
    if maker is None:
        return False
    try:
        with pillow().open(picture, formats=['PNG']) as image:
            return image.info.get('Software') == maker
    except OSError:  # there is none, or it is another kind of file
        return False


def check_picture(picture, overwrite, setting):
    """Raises Mistake, before any work, if a figure cannot be written to this path, or the path
    exists and must not be replaced. setting: the option that gives the path, such as --out."""
    pyplot()
    from matplotlib.backend_bases import FigureCanvasBase
    check_picture_path(picture, [f'.{kind}' for kind in FigureCanvasBase.get_supported_filetypes()], setting)
    check_writable(picture, f'give another {setting}')
    check_new(picture, overwrite, setting)


def save(picture, figure, columns, rows, setting, maker=None):
    """Write a figure and its table; close the figure. maker: see check_free."""
    table = Path(picture).with_suffix('.csv')
    write_file(table, lambda f: csv.writer(f, lineterminator='\n').writerows([columns, *rows]), advice=again(setting))
    save_picture(picture, figure, setting, maker)
    print(f'{picture}, {table}')


def save_picture(picture, figure, setting, maker=None):
    """Write a figure; close it."""
    kind = Path(picture).suffix[1:].lower()
    told = {'metadata': {'Software': maker}} if maker and kind == 'png' else {}
    write_file(picture, lambda f: write_figure(figure, f, format=kind, **told), 'wb', again(setting))
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
    folder = PurePath(path).parent if PurePath(path).suffix == '.pt' else PurePath(path)
    return folder.name or str(path)


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

def pillow():
    """PIL.Image. Raises Mistake with what to install."""
    try:
        from PIL import Image
    except ImportError:
        raise Mistake('the picture needs Pillow: pip install pillow') from None
    return Image


def check_image(path, overwrite, maker=None):
    """Raises Mistake, before any work, if no image can be written to --out=path, or it exists
    and must not be replaced. maker: see check_free."""
    check_picture_path(path, pillow().registered_extensions(), '--out')
    check_new(path, overwrite or was_made_by(path, maker), '--out')
    check_writable(path, again('--out'))


def write_image(image, path, maker=None):
    """Write a Pillow image to --out=path, whole or not at all. maker: see check_free."""
    kind, told = pillow().registered_extensions()[Path(path).suffix.lower()], {}
    if maker and kind == 'PNG':
        from PIL.PngImagePlugin import PngInfo
        told['pnginfo'] = PngInfo()
        told['pnginfo'].add_text('Software', maker)

    def write(f):
        try:
            image.save(f, kind, **told)
        except (ValueError, KeyError) as e:  # a format that Pillow can read but not write
            raise OSError(e) from None
    write_file(path, write, 'wb', again('--out') + ', such as --out=sheet.png')


# ---- the curve of a run ---------------------------------------------------------------------------------------------

def draw_curve(run):
    """Draw curve.png from log.csv: training and validation loss over steps; with telemetry also
    coding rate and sparsity of every layer, a line for each validation, dark to bright (CRATE,
    Figure 4). Does nothing without matplotlib."""
    try:
        plt = pyplot()
    except Mistake:
        return
    rows = read_log(Path(run) / 'log.csv')
    if not rows:
        return
    watched = [r for r in rows if r.get('rate_1')]
    panels = [(k, *words) for k, *words in (('rate', 'coding rate of each layer', 'R^c, nats'),
                                            ('nonzeros', 'sparsity of each layer', 'share of non-zeros'))
              if watched and watched[0].get(f'{k}_1')]
    figure = plt.figure(figsize=((8.4, 10.2, 13.2)[len(panels)], 4), layout='constrained')
    losses, *layers = figure.subplots(1, 1 + len(panels), squeeze=False)[0]
    for split, name, style in (('train', 'training', {'linewidth': 0.8}), ('val', 'validation', {'marker': 'o'})):
        points = [(int(r['step']), float(r['loss'])) for r in rows if r['split'] == split]
        if points:
            label = f'{name}, {points[-1][1]:.3f} at step {points[-1][0]:,}'
            losses.plot(*zip(*points), label=label, markersize=4, **style)
    late = [float(r['loss']) for r in rows if int(r['step']) >= 0.05 * int(rows[-1]['step'])]  # the start is far above
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
    steps = [int(r['step']) for r in watched]
    bright = colors.ListedColormap(pyplot().get_cmap('viridis')([i / 290 for i in range(256)]))
    return cm.ScalarMappable(colors.Normalize(steps[0], max(steps[-1], steps[0] + 1)), bright)


def over_steps(axis, k, watched):
    """A line over layers for each validation, of the columns k_1, k_2 .. of its row of the log."""
    colours = steps_as_colours(watched)
    for r in watched:
        values = [float(r[f'{k}_{l}']) for l in range(1, len(r)) if r.get(f'{k}_{l}')]
        axis.plot(range(1, len(values) + 1), values, marker='o', markersize=3, color=colours.to_rgba(int(r['step'])))
