"""Figures and pictures as files. A figure of numbers stands beside its table, a file of the same
name that ends with .csv.

matplotlib and Pillow are imported here when they are first needed.
"""
import csv
from pathlib import Path, PurePath

from engine.checkpoint import write_file
from engine.curve import COLOURS, pyplot, write_figure
from engine.settings import Mistake
from engine.trained import run_directory

# ---- figures, by matplotlib -----------------------------------------------------------------------------------------

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
