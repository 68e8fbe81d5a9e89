"""matplotlib as every figure here uses it. It is imported when it is first needed."""
import contextlib
import sys
import warnings
from pathlib import Path

from engine.names import printable
from engine.writing import write_file

# Okabe and Ito's colours that are visible on white. People who confuse red and green can tell them
# apart.
COLOURS = '#0072b2', '#d55e00', '#009e73', '#cc79a7', '#56b4e9', '#e69f00', '#000000'
LETTERS = 13  # their size in points; a figure of 12 inches on a slide can be read from the back


@contextlib.contextmanager
def house_style():
    """In this block matplotlib has its own defaults and our few settings, so that no settings of
    the user change a picture. Only letters that our font lacks are taken from the user's font.
    After the block, settings are again as they were. matplotlib reads some of them when a part is
    drawn and others when the file is written, so a figure is made and saved in the same block."""
    import matplotlib.font_manager
    import matplotlib.style
    installed = matplotlib.font_manager.get_font_names()
    fonts_of_user = [name for name in matplotlib.rcParams['font.family'] if name in installed]
    # first all colours with solid lines, then with dashed, then with dotted ones
    colours = matplotlib.cycler(color=COLOURS)
    line_styles = matplotlib.cycler(linestyle=('-', '--', ':'))
    ours = {
        'axes.prop_cycle': line_styles * colours,
        'axes.titlesize': 'medium',
        'figure.titlesize': 'medium',
        'font.family': ['DejaVu Sans', *fonts_of_user],
        'font.size': LETTERS,
        'pdf.fonttype': 42,  # text stays text that can be selected; conferences refuse type 3
        'savefig.dpi': 120,
        'svg.hashsalt': 'nanocrate',  # the same figure has the same bytes
    }
    with matplotlib.style.context(['default', ours]):
        yield


def empty_figure(width, height, layout='constrained'):
    """A figure of width x height inches. pyplot does not know it, so it is in no window or notebook
    and need not be closed. layout: the engine of matplotlib that places its parts, or None."""
    from matplotlib.figure import Figure
    return Figure(figsize=(width, height), layout=layout)


def verbatim(name):
    """A name that a user chose, such as that of a folder, as matplotlib writes it unchanged. It
    takes what stands between two $ for a formula."""
    return name.replace('$', r'\$')


def save_picture(path, figure):
    """Write a figure, the same figure with the same bytes. A label may be the name of a file, with
    bytes that are no text. matplotlib refuses them, so they become escapes. What matplotlib warns
    of becomes a line. Mostly our font lacks letters of a label, such as those of Chinese, so the
    line says how to name another."""
    for label in figure.findobj(lambda artist: hasattr(artist, 'set_text')):
        label.set_text(printable(label.get_text(), keep='\n'))
    ending = Path(path).suffix[1:].lower()
    # the names under which these formats keep the time of writing
    times = {'pdf': {'CreationDate': None}, 'svg': {'Date': None}}
    metadata = times.get(ending)
    with warnings.catch_warnings(record=True) as noticed:
        write_file(path, lambda f: figure.savefig(f, format=ending, metadata=metadata), 'wb')
    if noticed:
        print(f'{path}: {noticed[0].message} If letters are missing, name an installed font that '
              'has them in a file matplotlibrc in this folder, with a line such as '
              'font.family: Noto Sans CJK JP', file=sys.stderr)


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
