"""Which classes a classifier takes for which: counted, named, drawn."""
import csv
from pathlib import Path

import numpy as np

from engine import plots
from engine.checkpoint import write_file
from tasks.imagenet import readable

MOST_DRAWN = 40    # classes in a picture that can be read
MOST_WRITTEN = 15  # classes in a picture whose counts can be read


def count(labels, guesses, classes):
    """How many pictures of each class (rows) are taken for each class (columns): int64 (classes,
    classes)."""
    return np.bincount(np.asarray(labels) * classes + guesses, minlength=classes ** 2).reshape(classes, classes)


def commonest(counts, names, most=5):
    """The most frequent confusions in words, a line each."""
    wrong = counts - np.diag(np.diag(counts))
    found = [divmod(int(i), len(names)) for i in (-wrong).argsort(axis=None, kind='stable')[:most]]
    return [f'{names[own]} is taken for {names[other]}: {wrong[own, other]:,} of {counts[own].sum():,} '
            f'({wrong[own, other] / counts[own].sum():.1%})' for own, other in found if wrong[own, other]]


def report(counts, classes, picture):
    """Print the most frequent confusions; write the table beside `picture` and, of up to MOST_DRAWN
    classes, the picture."""
    names = [readable(name) for name in classes]
    lines = commonest(counts, names)
    print('\n'.join(lines) if lines else 'no picture is taken for one of another class')
    columns, rows = ['true class', *names], [[name, *row] for name, row in zip(names, counts.tolist())]
    if len(names) <= MOST_DRAWN:
        return plots.save(picture, drawn(counts, names), columns, rows, '--confusion')
    table = Path(picture).with_suffix('.csv')
    write_file(table, lambda f: csv.writer(f, lineterminator='\n').writerows([columns, *rows]),
               advice=plots.again('--confusion'))
    print(f'{table}; a picture of {len(names):,} classes could not be read, so none is drawn')


def drawn(counts, names):
    """A figure: shares of each true class as colours and, of few classes, counts as numbers."""
    shares = counts / np.maximum(1, counts.sum(1, keepdims=True))
    side = 2.5 + (0.45 if len(names) <= MOST_WRITTEN else 0.22) * len(names)
    figure = plots.pyplot().figure(figsize=(side + 1, side), layout='constrained')
    axis = figure.subplots()
    shown = axis.imshow(shares, cmap='Blues', vmin=0, vmax=1)
    places, size = range(len(names)), 9 if len(names) <= MOST_WRITTEN else 7
    axis.set_xticks(places, names, rotation=90, fontsize=size)
    axis.set_yticks(places, names, fontsize=size)
    axis.set(xlabel='taken for', ylabel='true class', title=f'{counts.trace() / counts.sum():.1%} are right')
    for i, j in np.argwhere(counts) if len(names) <= MOST_WRITTEN else ():
        axis.text(j, i, f'{counts[i, j]}', ha='center', va='center', fontsize=7,
                  color='white' if shares[i, j] > 0.5 else 'black')
    figure.colorbar(shown, label='share of the true class', shrink=0.8)
    return figure
