"""The panels of curve.png that show the layers of a run with --telemetry=true. Only such runs load
this."""
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize

from engine.plots import whole_numbers

# telemetry: {name in the log: title of its panel}
WATCHED = {
    'rate': 'coding rate R^c, nats',
    'nonzeros': 'share of non-zeros',
    'objective': 'objective, eq. (1)',  # of CRATE
}


def names_in(row):
    """Those of WATCHED that a row of the log has."""
    return [name for name in WATCHED if f'{name}_1' in row]


def draw(figure, panels, names, rows, last_step):
    """Draw each of the names in a panel of a figure. rows: those of the log that have them."""
    colours = ScalarMappable(Normalize(0, last_step), 'copper')
    for panel, name in zip(panels, names):
        draw_layers(panel, rows, name, colours)
    bar = figure.colorbar(colours, ax=panels, label='step')
    bar.locator = whole_numbers()


def draw_layers(panel, rows, name, colours):
    """What telemetry calls `name`, for every layer: a line for each validation, from dark to bright
    (CRATE, Figure 4)."""
    for row in rows:
        values = [value for key, value in row.items() if key.startswith(f'{name}_')]
        layers = range(1, len(values) + 1)
        panel.plot(layers, values, '.-', color=colours.to_rgba(row['step']))
    panel.set(xlabel='layer', title=WATCHED[name])
    panel.xaxis.set_major_locator(whole_numbers())
