"""What the figures of analyze.py are made of: panels beside each other, lines over layers, small
maps, grids of pictures."""
import math

import numpy as np

from analysis import figures
from analysis.tables import mean_and_spread
from engine import plots
from weights import runs

MARKERS = 'osD^vPX'  # as many as colours
MANY = 20  # a line of more points than that has few markers


def panels(width, height, count, **settings):
    """A figure of width x height inches, and its `count` panels beside each other. settings: those
    of matplotlib's `subplots`."""
    figure = plots.empty_figure(width, height)
    axes = figure.subplots(1, count, squeeze=False, **settings)
    return figure, axes[0]


def lines(axis, rows, name, x, y, **labels):
    """Draw rows of a table, {column: value} each, as lines with markers. name: the column whose
    different values become a line each; x, y: the columns along the two axes. labels: further
    settings of the axis."""
    # where lines lie on each other, the larger markers of the lower one still show
    axis.set_prop_cycle(color=plots.COLOURS, linestyle=figures.DASHES, marker=list(MARKERS),
                        markersize=(10, 8, 6, 4, 4, 4, 4))
    for line_name in dict.fromkeys(row[name] for row in rows):
        points = [(row[x], row[y]) for row in rows if row[name] == line_name]
        marked = None  # all points
        if len(points) > MANY:  # the first two points, and every eighth
            marked = [0, 1, *range(8, len(points), 8)]
        axis.plot(*zip(*points), label=line_name, markevery=marked)

    axis.margins(y=0.08)  # so that the frame cuts no marker
    axis.set(**{'xlabel': x, 'ylabel': y} | labels)
    is_counted = all(isinstance(row[x], int) for row in rows)
    if is_counted and axis.get_xscale() == 'linear':
        axis.xaxis.set_major_locator(plots.whole_numbers())


def title_of(nets, layer=0):
    """What stands above a figure of networks: a line for each trained one. layer: from 1, or 0 if
    the figure shows no single layer."""
    title_lines = [runs.title_of(net.name, net.run, layer, len(net.model.layers))
                   for net in nets if net.kind == 'trained']
    return '\n'.join(title_lines)


def picture_grid(side, row_names, column_names, title='', right=0.2):
    """A figure with a grid of panels for pictures, without ticks, `side` inches each; and the
    panels, an array (rows, columns). row_names stand left of the rows, column_names above the
    columns, and the title above all. The figure grows with these words, so that none are cut.
    right: the inches for what stands at the right, such as a bar of colours."""
    letters = 0.83 * plots.LETTERS  # the size of the names, in points
    name_width = max(figures.width_of(name, letters) for name in row_names)
    margin = 0.2 + right + name_width
    top = 0.3 + 0.25 * title.count('\n')
    if title:
        top += 0.5
    width = side * len(column_names) + margin
    height = side * len(row_names) + top
    figure = plots.empty_figure(width, height, 'compressed')
    axes = figure.subplots(len(row_names), len(column_names), squeeze=False,
                           subplot_kw={'xticks': [], 'yticks': []})

    for axis, name in zip(axes[:, 0], row_names):
        axis.set_ylabel(plots.verbatim(name), fontsize='small', rotation=0, ha='right',
                        va='center')
    for axis, name in zip(axes[0], column_names):
        axis.set_title(plots.verbatim(name), fontsize='small')
    if title:
        figures.headline(figure, title)
    return figure, axes


def small_maps(maps, title, side, x, y, bar, xticks, yticks, groups=1, **colours):
    """A figure of maps, {title: array}, `side` inches each, with one bar of colours for all, below
    a title. Returns the figure and its panels. groups: the maps are so many groups of equal size,
    each of which begins a new row. x, y: the names of the two axes, which stand below the last map
    of a column and left of the first map of a row; bar: settings of the bar; xticks, yticks:
    (places, names) of the ticks; colours: settings of matplotlib's `imshow`."""
    most_columns = max(1, int(12 / side))
    maps_of_group = len(maps) // groups
    rows_of_group = math.ceil(maps_of_group / most_columns)
    columns = math.ceil(maps_of_group / rows_of_group)  # so that all rows are about as long
    rows = groups * rows_of_group
    width = side * columns + 1.9
    height = (side + 0.6) * rows + 0.6
    figure = plots.empty_figure(width, height, 'compressed')

    axes = []
    for i, (name, values) in enumerate(maps.items()):
        group, place = divmod(i, maps_of_group)
        place += 1 + group * rows_of_group * columns
        axis = figure.add_subplot(rows, columns, place, xlabel=x, ylabel=y)
        axes.append(axis)
        image = axis.imshow(values, **colours)
        axis.set_title(name, fontsize='small')
        axis.set_xticks(*xticks)
        axis.set_yticks(*yticks)
        axis.tick_params(labelsize=9, length=2)
        axis.label_outer()
    figure.colorbar(image, ax=axes, extend='max', aspect=40, **bar)
    figures.headline(figure, title)
    return figure, axes


def scale_of(arrays, most=np.inf, share=0.99):
    """The number at which the colours of some arrays end: `share` of the sizes that are not 0 are
    smaller. It is 1 if all numbers are 0, and never above `most`."""
    sizes = np.abs(np.concatenate([array.ravel() for array in arrays]))
    sizes = sizes[sizes > 0]
    end = np.quantile(sizes, share) if len(sizes) > 0 else 1.0
    return min(float(end), most)


# ---- panels over layers -------------------------------------------------------------------------

def draw_line(axis, net, values, column):
    """Draw the mean of a column over the layers of a network, in a band of one standard deviation.
    values: {column: numbers (L, n)} of L layers and n samples. The line of random weights is
    dashed and hollow. For a network without this column nothing is drawn."""
    if column not in values:
        return
    mean = values[column].mean(1)                           # (L,)
    spread = values[column].std(1, correction=0)            # (L,)
    layers = range(1, len(mean) + 1)

    number = int(net.colour[1:]) % len(MARKERS)  # a colour is C0, C1, ..
    if net.kind == 'random':
        # wider than the full marker of the trained network, so that both are seen where the two
        # lines lie on each other
        style = {'markersize': 10.5 - number / 2, 'linestyle': '--', 'fillstyle': 'none'}
    else:
        style = {'markersize': 7 - number / 2, 'linestyle': '-'}
    axis.plot(layers, mean, label=plots.verbatim(net.label), color=net.colour,
              marker=MARKERS[number], **style)
    axis.fill_between(layers, mean - spread, mean + spread, alpha=0.15, linewidth=0,
                      color=net.colour)


def over_layers(nets, values_of_nets, shown, levels=None, draw=draw_line):
    """A figure that compares the layers of networks. Returns it, with one legend, and the rows of
    its table, see rows_of_layers.

    values_of_nets: of each network {column: numbers (L, n)} of L layers and n samples. shown:
    {column: (title, unit)}, a panel each. draw: the function that draws a network in a panel.
    levels: {name: {column: height}}, thin lines to compare with.
    """
    levels = levels or {}
    figure, axes = panels(max(8.4, 5.2 * len(shown)), 4.8, len(shown))
    for axis, (column, (title, unit)) in zip(axes, shown.items()):
        for net, values in zip(nets, values_of_nets):
            draw(axis, net, values, column)
        for (name, heights), style in zip(levels.items(), figures.DASHES[1:]):
            if column in heights:
                axis.axhline(heights[column], linewidth=1, color='grey', linestyle=style,
                             label=name)

        if all(min(line.get_ydata()) >= 0 for line in axis.lines):
            axis.set_ylim(0)
        axis.set_title(title, fontsize='small')
        axis.set(xlabel='layer', ylabel=unit)
        axis.xaxis.set_major_locator(plots.whole_numbers())
    figures.headline(figure, title_of(nets))

    first_values = next(iter(values_of_nets[0].values()))   # (L, n)
    has_bands = draw is draw_line and first_values.size(1) > 1
    bands = 'bands: one standard deviation of the samples' if has_bands else None
    figures.legend_below(figure, axes, bands)
    return figure, rows_of_layers(nets, values_of_nets)


def rows_of_layers(nets, values_of_nets):
    """The rows of a table: for each layer of each network the mean of every column over the
    samples, and its standard deviation. values_of_nets: as for over_layers."""
    rows = []
    for net, values in zip(nets, values_of_nets):
        for l in range(len(net.model.layers)):
            of_layer = {column: numbers[l] for column, numbers in values.items()}
            row = {'network': net.name, 'weights': net.kind, 'layer': l + 1}
            rows.append(row | mean_and_spread(of_layer))
    return rows
