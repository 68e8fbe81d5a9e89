"""matplotlib as every figure here uses it, and the curve of a run.

matplotlib is imported when it is first needed.
"""
from pathlib import Path

from engine.checkpoint import read_log, write_file

# those of Okabe and Ito that are seen on white; who confuses red and green can tell them apart
COLOURS = '#0072b2', '#d55e00', '#009e73', '#cc79a7', '#56b4e9', '#e69f00', '#000000'


def pyplot():
    """matplotlib.pyplot, for files, with our colours."""
    import matplotlib
    matplotlib.use('Agg')
    matplotlib.rcParams['text.parse_math'] = False  # a $ in the name of a folder is a $
    matplotlib.rcParams['axes.prop_cycle'] = matplotlib.cycler(color=COLOURS)
    from matplotlib import pyplot as plt
    return plt


def write_figure(figure, f, **told):
    """Bytes in names of files that are no text, which matplotlib refuses, become escapes."""
    for label in figure.findobj(lambda artist: hasattr(artist, 'set_text')):
        label.set_text(label.get_text().encode('utf-8', 'backslashreplace').decode())
    figure.savefig(f, dpi=120, **told)


def draw(run):
    """Draw curve.png from log.jsonl: training and validation loss over steps; with telemetry also coding rate and
    sparsity of every layer, a line for each validation, dark to bright (CRATE, Figure 4). Does nothing without
    matplotlib."""
    try:
        plt = pyplot()
    except ModuleNotFoundError:
        return
    rows = read_log(run)
    if not rows:
        return
    watched = [r for r in rows if r.get('rate_1')]
    panels = [(k, *words) for k, *words in (('rate', 'coding rate of each layer', 'R^c, nats'),
                                            ('nonzeros', 'sparsity of each layer', 'share of non-zeros'),
                                            ('objective', 'objective after each layer', 'eq. (1)'))
              if watched and watched[0].get(f'{k}_1')]
    figure = plt.figure(figsize=((8.4, 10.2, 13.2, 16.2)[len(panels)], 4), layout='constrained')
    losses, *layers = figure.subplots(1, 1 + len(panels), squeeze=False)[0]
    for split, name, style in (('train', 'training', {'linewidth': 0.8}), ('val', 'validation', {'marker': 'o'})):
        points = [(r['step'], r['loss']) for r in rows if r['split'] == split]
        if points:
            label = f'{name}, {points[-1][1]:.3f} at step {points[-1][0]:,}'
            losses.plot(*zip(*points), label=label, markersize=4, **style)
    late = [r['loss'] for r in rows if r['step'] >= 0.05 * rows[-1]['step']]  # the start is far above
    room = 0.05 * (max(late) - min(late)) or 0.1
    losses.set(xlabel='step', ylabel='loss', title=Path(run).resolve().name, ylim=(min(late) - room, max(late) + room))
    losses.grid(alpha=0.3)
    losses.legend()
    for axis, (k, title, unit) in zip(layers, panels):
        over_steps(axis, k, watched)
        axis.set(xlabel='layer', ylabel=unit, title=title)
        axis.xaxis.get_major_locator().set_params(integer=True)
    if panels:
        figure.colorbar(steps_as_colours(watched), ax=layers, label='step')
    write_file(Path(run) / 'curve.png', lambda f: write_figure(figure, f), 'wb')
    plt.close(figure)


def steps_as_colours(watched):
    """The colour of each step, from dark to bright, and not as bright as white."""
    from matplotlib import cm, colors
    steps = [r['step'] for r in watched]
    bright = colors.ListedColormap(pyplot().get_cmap('viridis')([i / 290 for i in range(256)]))
    return cm.ScalarMappable(colors.Normalize(steps[0], max(steps[-1], steps[0] + 1)), bright)


def over_steps(axis, k, watched):
    """A line over layers for each validation, of the columns k_1, k_2 .. of its row of the log."""
    colours = steps_as_colours(watched)
    for r in watched:
        values = [r[f'{k}_{l}'] for l in range(1, len(r)) if r.get(f'{k}_{l}')]
        axis.plot(range(1, len(values) + 1), values, marker='o', markersize=3, color=colours.to_rgba(r['step']))
