"""What the figures of networks are made of: panels over layers, small maps, names, lines to compare
with."""
import math

import numpy as np

from engine import plots

MARKERS = 'osD^vPX'  # as many as colours
RANDOM = ', random weights'  # at the end of the name of a network with such


def side_by_side(panels):
    """A figure and its panels."""
    figure = plots.pyplot().figure(figsize=((8.4, 10.8)[panels - 1] if panels < 3 else 13.2, 3.8), layout='constrained')
    return figure, figure.subplots(1, panels, squeeze=False)[0]


def small_multiples(figure, n, wide):
    """n panels without axes, `wide` in a row."""
    axes = list(figure.subplots(math.ceil(n / wide), wide, squeeze=False).flat)
    for axis in axes:
        axis.axis('off')
    return axes[:n]


def small_maps(figure, n, wide, x, y):
    """The same with axes: x and y say what they are, below the last and left of the first of each row."""
    axes = small_multiples(figure, n, wide)
    for i, axis in enumerate(axes):
        axis.axis('on')
        axis.tick_params(labelsize=7, length=2, labelleft=i % wide == 0, labelbottom=i + wide >= n)
        axis.set_xlabel(x if i + wide >= n else '', fontsize='small')
        axis.set_ylabel(y if i % wide == 0 else '', fontsize='small')
    return axes


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


def colour_bar(figure, image, axes, label, **more):
    """What the colours of an image mean, right of these axes."""
    bar = figure.colorbar(image, ax=axes, shrink=0.8, fraction=0.05, pad=0.01, **more)
    bar.ax.tick_params(labelsize='small')
    bar.set_label(label, fontsize='small')
    return bar


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


def levels(axis, heights, from_zero=False, letters='abcdefgh'):
    """Thin horizontal lines to compare with, {name: height}. Right of the axis each has a letter, far
    enough from the next to be read, that the legend explains."""
    for letter, (name, height) in zip(letters, heights.items()):
        axis.axhline(height, linewidth=1, color='grey', linestyle=':', label=f'{letter}: {name}')
    low, high = axis.get_ylim()
    low = 0 if from_zero else low
    gap = 0.06 * (high - low)
    axis.set_ylim(low, max(high, max(heights.values()) + gap))
    last = -math.inf
    for letter, height in sorted(zip(letters, heights.values()), key=lambda each: each[1]):
        last = max(height, last + gap)
        axis.annotate(letter, (1, height), (1.02, last), ('axes fraction', 'data'), ('axes fraction', 'data'),
                      fontsize='small', va='center', annotation_clip=False,
                      arrowprops={'arrowstyle': '-', 'color': 'grey', 'linewidth': 0.5, 'shrinkA': 0, 'shrinkB': 0})


def mean_and_spread(values):
    return values.mean().item(), values.std(correction=0).item()


def scale_of(parts, most=math.inf, share=0.99):
    """Where a scale of colours ends for arrays of numbers: this share of those that are not 0 are smaller."""
    sizes = np.abs(np.concatenate([part.ravel() for part in parts]))
    return min(float(np.quantile(sizes[sizes > 0], share)) if sizes.any() else 1.0, most)
