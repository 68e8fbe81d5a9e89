"""Figures as files. A figure of numbers stands beside its table, a file of the same name that ends with .csv.

matplotlib is imported when it is first needed.
"""
import csv
from pathlib import Path

from engine.checkpoint import write_file
from engine.curve import pyplot, save_picture
from engine.settings import Mistake
from engine.trained import run_directory

PICTURES = '.png', '.jpg', '.pdf', '.svg'  # how the name of a figure may end


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
