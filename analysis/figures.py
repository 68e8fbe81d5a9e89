"""Figures that commands write: the checks before the work, a figure and its table, titles, legends.

A figure of numbers stands beside its table, a file of the same name that ends with .csv.
"""
from pathlib import Path

from engine.checkpoint import run_directory
from engine.mistakes import Mistake
from engine.plots import LETTERS, save_picture, verbatim
from engine.tables import write_table

# two scales of colours for maps: in FROM_BLACK what is large glows, in FROM_WHITE a zero is white
FROM_BLACK = 'inferno'
FROM_WHITE = 'Blues'
# Where two lines lie on each other, the gaps of the upper one show the lower one.
DASHES = ('-', (0, (4, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)), (0, (8, 3)), (0, (3, 1, 1, 1, 1, 1)),
          (0, (2, 3)))
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


def check_out(c, endings=PICTURES):
    """check_free for the setting `out` of c. A file that the user did not name is replaced."""
    check_free(c.out, c.overwrite or c.out == type(c).out, endings=endings)


def check_figure(picture, overwrite, setting='--out'):
    """check_free for a figure and for the table beside it. Raises ModuleNotFoundError without
    matplotlib."""
    import matplotlib  # noqa: F401  (to know whether it is installed)
    check_free(picture, overwrite, setting)
    check_free(Path(picture).with_suffix('.csv'), overwrite, setting, ['.csv'])


def save(picture, figure, columns, rows):
    """Write a figure, and its table beside it."""
    table = Path(picture).with_suffix('.csv')
    write_table(table, [columns, *rows])
    save_picture(picture, figure)
    print(f'{picture}, {table}')


# ---- titles and legends -------------------------------------------------------------------------

def headline(figure, title):
    """Write a title above a figure, and widen the figure if the title needs that."""
    figure.suptitle(verbatim(title))
    figure.set_figwidth(max(figure.get_figwidth(), width_of(title)))


def width_of(words, points=LETTERS):
    """About how many inches the longest line of some words takes, in letters of so many points."""
    longest = max(len(line) for line in words.split('\n'))
    return 0.6 * longest * points / 72  # a letter is about 0.6 times as wide as high


def legend_below(figure, panels, title=None):
    """One legend below all panels of a figure, of what has a name in one of them."""
    entries = {}
    for panel in panels:
        for artist, name in zip(*panel.get_legend_handles_labels()):
            entries.setdefault(name, artist)
    # beside a name is a sample of its line, 0.8 inches wide; 0.83 is matplotlib's 'small'
    widest = 0.8 + max(width_of(name, 0.83 * LETTERS) for name in entries)
    columns = max(1, int(figure.get_figwidth() / widest))
    figure.legend(entries.values(), entries.keys(), loc='outside lower center', fontsize='small',
                  ncols=min(columns, len(entries)), title=title, title_fontsize='small')


def told_apart(paths):
    """{path: what a legend calls the run at this path}. That is the run's name without its folder,
    or the path where several runs have the same name."""
    names = [run_directory(path).name or str(path) for path in paths]
    titles = {}
    for path, name in zip(paths, names):
        titles[path] = name if names.count(name) == 1 else path
    return titles
