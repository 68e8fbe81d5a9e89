"""Figures that commands write: the checks before the work, a figure and its table, axes, legends.

A figure of numbers stands beside its table, a file of the same name that ends with .csv.
"""
import csv
from pathlib import Path

from engine.checkpoint import run_directory, write_file
from engine.plots import pyplot, save_picture
from engine.settings import Mistake

PICTURES = '.png', '.jpg', '.pdf', '.svg'  # how the name of a figure may end


# ---- files --------------------------------------------------------------------------------------

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


def save(picture, figure, columns, rows):
    """Write a figure, and its table beside it; then close the figure."""
    def write_table(f):
        csv.writer(f, lineterminator='\n').writerows([columns, *rows])

    table = Path(picture).with_suffix('.csv')
    write_file(table, write_table)
    save_picture(picture, figure)
    print(f'{picture}, {table}')


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
