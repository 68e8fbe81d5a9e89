"""Which classes a classifier takes for which: counted, named, drawn."""
import numpy as np

from engine import figures, plots
from tasks.imagenet import readable

MOST_NAMED = 40    # classes in a picture whose names can be read
MOST_WRITTEN = 15  # classes in a picture whose counts can be read


def report(labels, guesses, classes, picture):
    """Print the five most frequent confusions; write the table and the picture of all. Of each picture its class and
    the one that it is taken for, by number."""
    names, n = [readable(name) for name in classes], len(classes)
    counts = np.bincount(np.asarray(labels) * n + guesses, minlength=n * n).reshape(n, n)  # rows: the true class
    wrong = counts * (1 - np.eye(n, dtype=int))
    for i in (-wrong).argsort(axis=None, kind='stable')[:min(5, np.count_nonzero(wrong))]:
        own, other = divmod(i, n)
        count, of = wrong[own, other], counts[own].sum()
        print(f'{names[own]} is taken for {names[other]}: {count:,} of {of:,} ({count / of:.1%})')
    rows = [[name, *row] for name, row in zip(names, counts.tolist())]
    figures.save(picture, drawn(counts, names), ['true class', *names], rows)


def drawn(counts, names):
    """A figure: shares of each true class as colours. Few classes have names, and very few counts as numbers."""
    n, written = len(names), len(names) <= MOST_WRITTEN
    side = 2.5 + (0.45 if written else 0.22) * min(n, MOST_NAMED)
    figure, axis = plots.pyplot().subplots(figsize=(side + 1, side), layout='constrained')
    shares = counts / np.maximum(1, counts.sum(1, keepdims=True))
    shown = axis.imshow(shares, cmap='Blues', vmin=0, vmax=1)
    figure.colorbar(shown, label='share of the true class', shrink=0.8)
    axis.set(xlabel='taken for', ylabel='true class', title=f'{counts.trace() / counts.sum():.1%} are right')
    if n <= MOST_NAMED:
        axis.set_xticks(range(n), names, rotation=90, fontsize=8)
        axis.set_yticks(range(n), names, fontsize=8)
    if written:
        for i, j in np.argwhere(counts):
            axis.text(j, i, counts[i, j], ha='center', va='center', fontsize=7,
                      color='white' if shares[i, j] > 0.5 else 'black')
    return figure
