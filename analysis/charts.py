"""What the figures of analyze.py are made of: panels beside each other, lines over layers, small maps, grids of
pictures."""
import math

import numpy as np

from analysis.tables import mean_and_spread
from engine import figures, plots

MARKERS = 'osD^vPX'  # as many as colours
MANY = 20  # a line of more points has markers at its first two, and at every eighth
STYLES = ':', '-.', (0, (6, 2)), (0, (1, 4)), (0, (8, 2, 1, 2, 1, 2))  # of lines to compare with


def panels(wide, high, across, **more):
    """A figure of so many inches, and its panels beside each other."""
    figure = plots.pyplot().figure(figsize=(wide, high), layout='constrained')
    return figure, figure.subplots(1, across, squeeze=False, **more)[0]


def lines(axis, rows, name, x, y, legend=True, **labels):
    """Of the rows of a table a line with markers for each value of the column `name`: column y over column x. legend:
    whether the panel has its own. labels: those of the axis."""
    for number, value in enumerate(dict.fromkeys(row[name] for row in rows)):
        points = [(row[x], row[y]) for row in rows if row[name] == value]
        style = number % len(MARKERS)
        marked = range(len(points))
        if len(points) > MANY:
            marked = 0, 1, *range(8, len(points), 8)
        # where lines lie on each other, the larger markers of the lower one still show
        axis.plot(*zip(*points), marker=MARKERS[style], markersize=max(4, 10 - 2 * style), markevery=list(marked),
                  linestyle=plots.DASHES[style], color=plots.COLOURS[style], label=value)
    axis.set(**{'xlabel': x, 'ylabel': y} | labels)
    if axis.get_xscale() == 'linear' and all(isinstance(row[x], int) for row in rows):
        axis.xaxis.set_major_locator(plots.whole_numbers())
    if legend:
        axis.legend(fontsize='small')
    figures.plain_numbers(axis)


def title_of(nets, layers=()):
    """What stands above a figure of networks: a line for each trained one, with the layer that is shown, if it is
    one: the number of each of `layers`."""
    title_lines = []
    for number, net in enumerate(net for net in nets if net.kind == 'trained'):
        layer = layers[number] if layers else 0
        title_lines.append(figures.title_of(net.name, net.run, layer, len(net.model.layers)))
    return '\n'.join(title_lines)


def picture_grid(side, left, above, title='', right=0.2):
    """A figure, and its panels without ticks of so many inches each, an array (rows, columns), with these words left of
    the rows, above the columns and above all. The figure grows with the words, so that none are cut. right: the inches
    for what stands at the right, such as a bar of colours."""
    letters = 0.83 * plots.LETTERS                                      # their size left and above
    margin = 0.2 + right + max(figures.width_of(words, letters) for words in left)
    top = 0.3 + 0.25 * title.count('\n') + 0.5 * bool(title)
    figure = plots.pyplot().figure(figsize=(side * len(above) + margin, side * len(left) + top), layout='compressed')
    axes = figure.subplots(len(left), len(above), squeeze=False, subplot_kw={'xticks': [], 'yticks': []})
    for axis, words in zip(axes[:, 0], left):
        axis.set_ylabel(words, fontsize='small', rotation=0, ha='right', va='center')
    for axis, words in zip(axes[0], above):
        axis.set_title(words, fontsize='small')
    if title:
        figures.headline(figure, title)
    return figure, axes


def small_maps(maps, side, x, y, bar, xticks, yticks, **colours):
    """A figure of maps {title: array} of so many inches each, with a bar of colours of the name `bar`, its panels, and
    the bar. x and y say what their axes are, below the last and left of the first of each row; xticks, yticks: (where,
    what) on them."""
    most = max(1, int(12 / side))
    down = math.ceil(len(maps) / most)
    wide = math.ceil(len(maps) / down)                                  # so that all rows are about as long
    figure = plots.pyplot().figure(figsize=(side * wide + 1.9, (side + 0.6) * down + 0.6), layout='compressed')
    axes = [figure.add_subplot(down, wide, i + 1, xlabel=x, ylabel=y) for i in range(len(maps))]
    for axis, (title, values) in zip(axes, maps.items()):
        image = axis.imshow(values, **colours)
        axis.set_title(title, fontsize='small')
        axis.set_xticks(*xticks)
        axis.set_yticks(*yticks)
        axis.tick_params(labelsize=9, length=2)
        axis.label_outer()
    return figure, axes, figure.colorbar(image, ax=axes, label=bar, extend='max')


def scale_of(parts, most=np.inf, share=0.99):
    """Where a scale of colours ends for arrays of numbers: this share of those that are not 0 are smaller."""
    sizes = np.abs(np.concatenate([part.ravel() for part in parts]))
    return min(float(np.quantile(sizes[sizes > 0], share)) if sizes.any() else 1.0, most)


# ---- panels over layers ---------------------------------------------------------------------------------------------

def draw_line(axis, net, values, column):
    """The mean of values {column: (L, n)} over layers, dashed and hollow for random weights, in a band of one standard
    deviation; nothing for a network without this column."""
    if column not in values:
        return
    mean, spread = values[column].mean(1), values[column].std(1, correction=0)
    x, number = range(1, len(mean) + 1), int(net.colour[1:]) % len(MARKERS)
    style = dict(marker=MARKERS[number], markersize=7 - number / 2, linestyle='-', color=net.colour)
    if net.kind == 'random':
        # wider than the full marker of the trained network, so that one sees two lines that lie on each other
        style |= dict(markersize=10.5 - number / 2, linestyle='--', fillstyle='none')
    axis.plot(x, mean, label=net.label, **style)
    axis.fill_between(x, mean - spread, mean + spread, alpha=0.15, linewidth=0, color=net.colour)


def over_layers(nets, found, shown, levels={}, draw=draw_line):
    """Networks side by side. found: of each network {column: numbers (L, n)}; shown {column: (title, unit)}: a panel
    each, with what `draw` draws of a network; levels {name: {column: height}}: thin lines to compare with. Returns the
    figure, with one legend, and the rows of its table: of each layer the mean of each column and its standard
    deviation."""
    figure, axes = panels(max(8.4, 5.2 * len(shown)), 4.8, len(shown))
    for axis, (column, (title, unit)) in zip(axes, shown.items()):
        for net, values in zip(nets, found):
            draw(axis, net, values, column)
        for (name, heights), style in zip(levels.items(), STYLES):
            if column in heights:
                axis.axhline(heights[column], linewidth=1, color='grey', linestyle=style, label=name)
        if all(min(line.get_ydata()) >= 0 for line in axis.lines):
            axis.set_ylim(0)
        axis.set_title(title, fontsize='small')
        axis.set(xlabel='layer', ylabel=unit)
        axis.xaxis.set_major_locator(plots.whole_numbers())
    figures.headline(figure, title_of(nets))
    samples = next(iter(found[0].values())).size(1)
    has_bands = draw is draw_line and samples > 1
    bands = 'bands: one standard deviation of the samples' if has_bands else None
    figures.legend_below(figure, axes, bands)
    return figure, [{'network': net.name, 'weights': net.kind, 'layer': l + 1,
                     **mean_and_spread({name: numbers[l] for name, numbers in values.items()})}
                    for net, values in zip(nets, found) for l in range(len(net.model.layers))]
