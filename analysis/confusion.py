"""Which classes a classifier takes for which: counted, named, drawn."""
import numpy as np

from analysis import figures
from engine import plots
from tasks.imagenet import readable

MOST_NAMED = 40    # classes in a picture whose names can be read
MOST_WRITTEN = 15  # classes in a picture whose counts can be read


@plots.house_style()
def report(labels, guesses, classes, picture, network):
    """Print the five most frequent confusions, and write the table and the picture of all.

    labels, guesses: the number of the true class and of the guessed class of each picture.
    classes: the names of all classes; picture: the path of the picture; network: what its title
    says of the network.
    """
    n = len(classes)
    names = [readable(name) for name in classes]
    counts = np.zeros((n, n), int)              # rows: the true class
    np.add.at(counts, (labels, guesses), 1)
    print_most_frequent(counts, names)

    rows = [[name, *row] for name, row in zip(names, counts.tolist())]
    figures.save(picture, drawn(counts, names, network), ['true class', *names], rows)


def print_most_frequent(counts, names):
    """Print the five most frequent confusions, or all if there are fewer."""
    n = len(names)
    wrong = counts.copy()
    np.fill_diagonal(wrong, 0)
    order = (-wrong).argsort(axis=None, kind='stable')  # of equal ones, the first class first
    for i in order[:min(5, np.count_nonzero(wrong))]:
        true, guess = divmod(i, n)
        count = wrong[true, guess]
        total = counts[true].sum()
        confusion = f'{names[true]} is taken for {names[guess]}'
        print(f'{confusion}: {count:,} of {total:,} ({count / total:.1%})')


def drawn(counts, names, network):
    """A figure: the shares of each true class as colours.

    If there are few classes it has their names, and if there are very few, the counts too.
    """
    n = len(names)
    has_counts = n <= MOST_WRITTEN
    inches_per_class = 0.6 if has_counts else 0.26
    side = 2.5 + inches_per_class * min(n, MOST_NAMED)
    figure = plots.empty_figure(side + 1, side, 'compressed')
    axis = figure.subplots()

    shares = counts / np.maximum(1, counts.sum(1, keepdims=True))  # a class may have no pictures
    image = axis.imshow(shares, cmap=figures.FROM_WHITE, vmin=0, vmax=1)
    figure.colorbar(image, label='share of the true class', shrink=0.8)
    accuracy = counts.trace() / counts.sum()
    axis.set(xlabel='taken for', ylabel='true class')
    figures.headline(figure, f'{network}\n{accuracy:.1%} are right')
    if n <= MOST_NAMED:
        shown = [plots.verbatim(name) for name in names]
        axis.set_xticks(range(n), shown, rotation=90, fontsize='small')
        axis.set_yticks(range(n), shown, fontsize='small')
    if has_counts:
        for i, j in np.argwhere(counts):
            colour = 'white' if shares[i, j] > 0.5 else 'black'
            axis.text(j, i, counts[i, j], ha='center', va='center', fontsize='small', color=colour)
    return figure
