"""A figure and the numbers behind it: a picture, and a table of the same name that ends with .csv."""
import csv
from pathlib import Path

from rundir import check_writable, write_file


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
    picture, table = Path(picture), Path(picture).with_suffix('.csv')
    pyplot()
    from matplotlib.backend_bases import FigureCanvasBase
    if picture.suffix[1:].lower() not in FigureCanvasBase.get_supported_filetypes():
        raise ValueError(f'{picture} cannot be written: its ending is no format of pictures; give another {setting}, such as '
                         f'{setting}=figure.png')
    if picture.is_dir() or not picture.parent.is_dir():
        raise ValueError(f'{picture} cannot be written: {"it" if picture.is_dir() else picture.parent} is '
                         f'{"a" if picture.is_dir() else "no"} folder; give another {setting}')
    check_writable(table, f'give another {setting}')
    for path in (table, picture):
        if Path(path).exists() and not overwrite:
            raise ValueError(f'{path} exists; give another {setting}, or --overwrite=true to replace it')


def save(picture, figure, columns, rows, setting):
    """Write the figure, and its table; close the figure."""
    table, advice = Path(picture).with_suffix('.csv'), f'run this again, or give another {setting}'

    def write(f):
        csv.writer(f, lineterminator='\n').writerows([columns, *rows])
    write_file(table, write, advice=advice)
    write_file(picture, lambda f: figure.savefig(f, dpi=120, format=Path(picture).suffix[1:].lower()), 'wb', advice)
    pyplot().close(figure)
    print(f'{picture}, {table}')
