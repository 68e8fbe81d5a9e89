"""A figure and the numbers behind it: a picture, and a table of the same name that ends with .csv."""
import csv
from pathlib import Path

from engine import run as rundir


def pyplot():
    """matplotlib.pyplot, for files. Raises ValueError with what to install."""
    try:
        import matplotlib
    except ImportError:
        raise ValueError('the picture needs matplotlib: pip install matplotlib') from None
    matplotlib.use('Agg')
    from matplotlib import pyplot as plt
    return plt


def check_free(picture, overwrite, setting):
    """Raises ValueError, before any work, if the picture or its table is there and must stay, or cannot be written; setting is
    what names them, such as --out."""
    pyplot()
    from matplotlib.backend_bases import FigureCanvasBase
    table = Path(picture).with_suffix('.csv')
    rundir.check_picture_path(picture, [f'.{kind}' for kind in FigureCanvasBase.get_supported_filetypes()], setting)
    rundir.check_writable(table, f'give another {setting}')
    for path in (table, picture):
        rundir.check_new(path, overwrite, setting)


def save(picture, figure, columns, rows, setting):
    """Write the figure, and its table; close the figure."""
    table, advice = Path(picture).with_suffix('.csv'), f'run this again, or give another {setting}'

    def write(f):
        csv.writer(f, lineterminator='\n').writerows([columns, *rows])
    rundir.write_file(table, write, advice=advice)
    rundir.write_file(picture, lambda f: figure.savefig(f, dpi=120, format=Path(picture).suffix[1:].lower()), 'wb', advice)
    pyplot().close(figure)
    print(f'{picture}, {table}')
