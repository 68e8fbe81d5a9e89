"""What all figures and printed tables are made of: panels, lines over layers, small maps, names, levels to compare
with."""
import math

import numpy as np

from engine import plots

MARKERS = 'osD^vPX'  # as many as colours
STYLES = ':', '-.', (0, (6, 2)), (0, (1, 4)), (0, (8, 2, 1, 2, 1, 2))  # of lines to compare with
RANDOM = ', random weights'  # at the end of the name of a network with such


# ---- printed --------------------------------------------------------------------------------------------------------

def say_table(columns, rows):
    """Print a small table. Columns of words begin at the left; numbers, with four digits, end at the right."""
    said = [[f'{v:.4g}' if isinstance(v, float) else str(v) for v in row] for row in (columns, *rows)]
    widths = [max(map(len, column)) for column in zip(*said)]
    numbers = [next(filter(None, cells), 'a')[0] in '0123456789+-' for _, *cells in zip(*said)]
    for row in said:
        cells = [v.rjust(n) if number else v.ljust(n) for v, n, number in zip(row, widths, numbers)]
        print('  '.join([row[0].ljust(widths[0]), *cells[1:]]).rstrip())


def span(values, unit='.3f'):
    return f'{min(values):{unit}} to {max(values):{unit}}'


def mean_and_spread(*parts):
    """The mean of each part and its standard deviation, one after the other."""
    return [n for values in parts for n in (values.mean().item(), values.std(correction=0).item())]


# ---- panels ---------------------------------------------------------------------------------------------------------

def panels(wide, high, down, across, **more):
    """A figure of so many inches, and its panels (down x across) in one list."""
    figure = plots.pyplot().figure(figsize=(wide, high), layout='constrained')
    return figure, list(figure.subplots(down, across, squeeze=False, **more).flat)


def side_by_side(n):
    """A figure and its n panels over layers."""
    return panels((8.4, 10.8)[n - 1] if n < 3 else 13.2, 3.8, 1, n)


def lines(axis, x, curves, **labels):
    """A line with markers for each {name: values} over x, None for 0, 1, ..; labels: those of the axis."""
    for (name, values), marker in zip(curves.items(), MARKERS):
        axis.plot(range(len(values)) if x is None else x, values, marker=marker, markersize=4, label=name)
    axis.set(**labels)
    plots.plain_numbers(axis)


def picture_grid(side, left, above):
    """A figure, and its panels without ticks of so many inches each, an array (rows, columns), with these words left of
    the rows and above the columns."""
    figure, axes = panels(side * len(above) + 1.2, side * len(left) + 0.3, len(left), len(above),
                          subplot_kw={'xticks': [], 'yticks': []})
    axes = np.reshape(axes, (len(left), len(above)))
    for axis, words in zip(axes[:, 0], left):
        axis.set_ylabel(words, fontsize='small')
    for axis, words in zip(axes[0], above):
        axis.set_title(words, fontsize='small')
    return figure, axes


def small_maps(figure, wide, maps, x, y, bar, extend='max', **colours):
    """The panels of maps {title: array}, `wide` in a row, and a bar of colours. x and y say what their axes are, below
    the last and left of the first of each row."""
    axes, n = list(figure.subplots(math.ceil(len(maps) / wide), wide, squeeze=False).flat), len(maps)
    for i, axis in enumerate(axes):
        axis.set_visible(i < n)
        axis.tick_params(labelsize=7, length=2, labelleft=i % wide == 0, labelbottom=i + wide >= n)
        axis.set_xlabel(x if i + wide >= n else '', fontsize='small')
        axis.set_ylabel(y if i % wide == 0 else '', fontsize='small')
    for axis, (title, values) in zip(axes, maps.items()):
        image = axis.imshow(values, **colours)
        axis.set_title(title, fontsize='small')
    colour_bar(figure, image, axes[:n], bar, extend=extend)
    return axes[:n]


def plane(axis, x, arrows, subspaces, title, reach=2.15, **scale):
    """Arrows at points x (n, 2), and one-dimensional subspaces (K, 2, 1) as lines."""
    axis.quiver(*x.T, *arrows.T, angles='xy', color='C0', **scale)
    for u in subspaces[..., 0]:
        axis.axline((0, 0), u.tolist(), color='C1', linewidth=1)
    axis.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect='equal', xticks=[], yticks=[], title=title)
    axis.set_xlabel('blue: where a token goes; orange: the subspaces', fontsize='small')


def colour_bar(figure, image, axes, label, **more):
    """What the colours of an image mean, right of these axes."""
    bar = figure.colorbar(image, ax=axes, shrink=0.8, fraction=0.05, pad=0.01, **more)
    bar.ax.tick_params(labelsize='small')
    bar.set_label(label, fontsize='small')
    return bar


def scale_of(parts, most=math.inf, share=0.99):
    """Where a scale of colours ends for arrays of numbers: this share of those that are not 0 are smaller."""
    sizes = np.abs(np.concatenate([part.ravel() for part in parts]))
    return min(float(np.quantile(sizes[sizes > 0], share)) if sizes.any() else 1.0, most)


def legend_below(axis):
    axis.legend(fontsize='small', loc='upper center', bbox_to_anchor=(0.5, -0.15))


# ---- panels over layers ---------------------------------------------------------------------------------------------

def names_of(nets):
    """How figures call networks, {full name: name}: without folders, as far as that tells them apart."""
    names = plots.told_apart([net.name for net in nets if net.kind == 'trained'])
    for net in nets:
        first = net.name.removesuffix(RANDOM)
        names.setdefault(net.name, names[first] + RANDOM if first in names else net.name)
    return names


def over_layers(axis, net, values, band=True):
    """A line of the mean of values (L, n) over layers, dashed and hollow for random weights, in a band
    of one standard deviation."""
    x, mean, spread = range(1, len(values) + 1), values.mean(1), values.std(1, correction=0)
    line, fill = ('-', 'full') if net.kind == 'trained' else ('--', 'none')
    marker = MARKERS[int(net.colour[1:]) % len(MARKERS)]
    axis.plot(x, mean, marker=marker, markersize=4, color=net.colour, label=net.name, linestyle=line, fillstyle=fill)
    if band:
        axis.fill_between(x, mean - spread, mean + spread, alpha=0.15, linewidth=0, color=net.colour)


def label_panels(figure, axes, titles, units, nets):
    """Titles and units of panels over layers, and one legend below them, of networks and of levels."""
    held = {}
    for axis, title, unit in zip(axes, titles, units):
        axis.set_title(title, fontsize='medium')
        axis.set(xlabel='layer', ylabel=unit)
        axis.xaxis.get_major_locator().set_params(integer=True)
        held |= dict(reversed(pair) for pair in zip(*axis.get_legend_handles_labels()))
    names = names_of(nets)
    columns = len(axes) + (len(axes) > 2 or len(held) > 4)
    figure.set_figheight(figure.get_figheight() + 0.2 * math.ceil(len(held) / columns))
    figure.legend(held.values(), [names.get(name, name) for name in held], loc='outside lower center', ncols=columns,
                  fontsize='small')


def levels(axis, heights, first=0):
    """Thin grey lines to compare with, {name: height}, on an axis from 0 on. Each has a style, from number `first` on,
    which the legend names."""
    for (name, height), style in zip(heights.items(), STYLES[first:]):
        axis.axhline(height, linewidth=1, color='grey', linestyle=style, label=name)
    axis.set_ylim(bottom=min(0, axis.dataLim.ymin))
