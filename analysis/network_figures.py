"""What each layer of a trained network does, in figures: `layers`, `subspaces`, `tokens`,
`attention`, `pca`. A function draw_x gets an AnalyzeConfig and Subjects, of which the first is the
network that the user asked about. Commands without --beside get this network and, where they
compare, the same one with random weights as the second. A function prints what it finds, and
returns the figure and the rows of its table, {column: value} each."""
import math

import numpy as np
import torch

from analysis import figures, layers, measures
from analysis.charts import over_layers, picture_grid, scale_of, small_maps, title_of
from analysis.subjects import (drawn_pictures, measured, pictures, pixels, tokens_of, which_heads,
                               which_layer)
from analysis.tables import say_walks
from engine.mistakes import Mistake
from engine.plots import verbatim
from tasks import augment
from tasks.pictures import part_seen, sight


# ---- layers -------------------------------------------------------------------------------------

def draw_layers(c, nets):
    """Draw R^c, sparsity and the objective of every layer: CRATE, Figures 3, 4, 5 and 12, and
    eq. (1)."""
    def measure(step):
        return layers.layer_measures(step, c.measure, c.part or 'value', c.threshold)

    values_of_nets = measured(c, nets, 256, measure)
    shown = {}
    for column, title_and_unit in titles_of_measures(c).items():
        is_measured = any(column in values for values in values_of_nets)
        if is_measured and c.show in ('', column):
            shown[column] = title_and_unit
    if not shown:
        raise Mistake(f'{nets[0].name} has no {c.show} to show; leave --show out to see what it '
                      'has')

    say_walks(nets, values_of_nets, *shown)
    # the theory is about layers of CRATE, and says nothing about others
    if getattr(nets[0].model.layers[0], 'ista', None) is not None:
        print('the theory says: rate and sparsity fall in every step, and the objective rises')
    return over_layers(nets, values_of_nets, shown)


def titles_of_measures(c):
    """{column: (title, unit)} of all that layers.layer_measures can measure."""
    tokens = r'after attention, $Z^{\ell+1/2}$, $\epsilon = 0.5$'
    if c.measure == 'released':
        tokens = r'before attention, LN($Z^\ell$), as released, $\epsilon = 0.01$'
    after = r'after the layer, $Z^{\ell+1}$'
    counted = f'$|z| > {c.threshold:g}$' if c.threshold > 0 else 'non-zeros'
    return {
        'rate': (f'coding rate {tokens}', '$R^c$, nats'),
        'sparsity': (f'share of {counted} {after}', 'share'),
        'objective': (rf'$R - R^c - \lambda \|Z\|_0$ {after}', 'eq. (1)'),
        # of layers without attention
        'coding_rate': (f'coding rate $R$ {after}', '$R$, nats'),
        'norm': ('mean norm of a token after the layer', 'norm'),
    }


# ---- subspaces ----------------------------------------------------------------------------------

def draw_subspaces(c, nets):
    """Draw |U^T U| of every layer, with columns of unit norm: CRATE, Figure 7. The number above a
    map is the mean of the entries between different subspaces, divided by the mean within
    subspaces. Of each subspace a few columns are drawn, chosen at random."""
    net, random_net = nets
    part = c.part or 'value'
    K, _, p = layers.bases(layers.attentions(net.model)[0], part).shape
    m = min(c.directions, p)  # columns of each subspace that are drawn
    grams, of_trained = coherences(net, part)
    _, of_random = coherences(random_net, part)
    say_walks(nets, [{'coherence': of_trained}, {'coherence': of_random}], 'coherence')
    distance = 'farther apart' if of_trained[-1] < of_random[-1] else 'no farther apart'
    print(f'here the subspaces are {distance} in the last layer than with random weights')
    rng = np.random.default_rng(c.seed)

    maps = {}
    rows = []
    for l, G in enumerate(grams, 1):
        coherence = of_trained[l - 1].item()
        coherence_random = of_random[l - 1].item()
        columns_of_heads = [k * p + np.sort(rng.permutation(p)[:m]) for k in range(K)]
        columns = np.concatenate(columns_of_heads)          # (K m,), indices from 0 to K p - 1
        drawn = G[columns][:, columns].numpy()              # (K m, K m)
        title = f'layer {l}: coherence {coherence:.2f},\nrandom weights {coherence_random:.2f}'
        maps[title] = drawn

        heads = columns // p + 1
        columns_in_heads = columns % p + 1
        for i, j in np.ndindex(drawn.shape):
            rows.append({
                'layer': l,
                'coherence': coherence,
                'coherence_random': coherence_random,
                'head_i': heads[i],
                'column_i': columns_in_heads[i],
                'head_j': heads[j],
                'column_j': columns_in_heads[j],
                'value': drawn[i, j],
            })
    return figure_of_subspaces(maps, title_of(nets), K, m), rows


def coherences(net, part):
    """What measures.coherence gives for every layer of a network: a list of |U^T U|, and the
    numbers (L, 1)."""
    grams = []
    numbers = []
    for attention in layers.attentions(net.model):
        U = layers.bases(attention, part).float().cpu()     # (K, d, p)
        G, number = measures.coherence(U)
        grams.append(G)
        numbers.append([number])
    return grams, torch.tensor(numbers)


def figure_of_subspaces(maps, title, K, m):
    """A figure of maps {name: array (K m, K m)} of the |cosines| of columns, m of each of K
    subspaces. White lines lie between the subspaces."""
    from matplotlib import colormaps
    # The diagonal is always 1, the cosine of a column with itself. The scale is chosen from the
    # other entries, so that they can be told apart.
    off_diagonal = ~np.eye(K * m, dtype=bool)
    top = scale_of([values[off_diagonal] for values in maps.values()], most=0.95)
    grey_above = colormaps[figures.FROM_BLACK].with_extremes(over='0.75')

    # at most eight ticks, each in the middle of the columns of a head
    heads = range(1, K + 1, math.ceil(K / 8))
    ticks = ([(k - 0.5) * m - 0.5 for k in heads], heads)
    bar = {'label': '|cosine| of two columns,\ngrey above the scale'}
    figure, axes = small_maps(maps, title, side=2.4, x='head', y='head', bar=bar, xticks=ticks,
                              yticks=ticks, vmin=0, vmax=top, cmap=grey_above)
    for axis in axes:
        for k in range(1, K):
            axis.axhline(k * m - 0.5, color='white', linewidth=1)
            axis.axvline(k * m - 0.5, color='white', linewidth=1)
    return figure


# ---- tokens -------------------------------------------------------------------------------------

def draw_tokens(c, nets):
    """Draw the tokens of one sample after every layer: CRATE, Figure 6. Where there are more than
    c.size tokens or channels, c.size of them are drawn, chosen at random."""
    net = nets[0]
    if net.reads == 'images':
        sample_name, picture = next(pictures(c, net, 1))
        x = pixels(net, [(sample_name, picture)])
    else:
        sample_name = 'a text'
        x, _ = tokens_of(c, net)
    after = [step.after[0].float().cpu() for step in layers.inside(net.model, x)]  # L of (N, d)

    N, d = after[0].shape
    rng = np.random.default_rng(c.seed)
    tokens = np.sort(rng.permutation(N)[:c.size])
    channels = np.sort(rng.permutation(d)[:c.size])
    maps = {}
    rows = []
    for l, z in enumerate(after, 1):
        share = measures.nonzeros(z)
        drawn = z[tokens][:, channels].numpy()
        maps[f'layer {l}: {share:.0%} not 0'] = drawn
        for i, j in np.ndindex(drawn.shape):
            rows.append({'layer': l, 'token': tokens[i] + 1, 'channel': channels[j] + 1,
                         'value': drawn[i, j]})

    top = scale_of(maps.values())
    colours = {'vmin': 0, 'vmax': top, 'cmap': figures.FROM_WHITE}
    if any(row['value'] < 0 for row in rows):
        colours = {'vmin': -top, 'vmax': top, 'cmap': 'RdBu_r'}
    # every 12th of the drawn channels has a tick, and every 6th token; numbers count from 1
    xticks = (range(len(channels))[::12], channels[::12] + 1)
    yticks = (range(len(tokens))[::6], tokens[::6] + 1)
    figure, _ = small_maps(maps, title_of(nets), side=2.1, bar={'label': 'number in the token'},
                           x=axis_label('channel', len(channels), d),
                           y=axis_label('token', len(tokens), N), xticks=xticks, yticks=yticks,
                           aspect='auto', interpolation='nearest', **colours)
    print(f'{sample_name}: a token is a row, and white where it is zero')
    return figure, rows


def axis_label(name, drawn, count):
    """The label of an axis with `drawn` rows or columns out of `count`. It says why the numbers on
    the axis have gaps."""
    if drawn == count:
        return name
    return f'{name}, {drawn} of {count}\nat random'


# ---- attention ----------------------------------------------------------------------------------

def draw_attention(c, nets):
    """Draw where each head of a layer looks, and where the same network with random weights does.
    Of pictures it is the class token that looks, and of a text every token."""
    net = nets[0]
    l = which_layer(c, net.model)
    heads = which_heads(c, layers.attentions(net.model)[l - 1])
    if net.reads == 'images':
        return attention_in_pictures(c, nets, l, heads)
    if c.over:
        raise Mistake(f'{net.name} reads text; leave --over out')
    return attention_in_text(c, nets, l, heads)


def attention_in_pictures(c, nets, l, heads):
    """Draw the class token's attention to the patches of pictures: CRATE-MAE, Figure 7b, and AoT,
    Figure 7. Below each row of the trained network is one of random weights. l: the layer; heads:
    the heads to draw; both are counted from 1."""
    net = nets[0]
    shown = drawn_pictures(c, net, 4)
    x = pixels(net, shown)
    # (B, heads, down, across) each
    maps, random_maps = [
        maps_of_heads(layers.class_maps, network, l, heads, x).unflatten(-1, net.patches)
        for network in nets]
    # All maps share one scale. It reaches at least 5 times the equal weight, so that nearly equal
    # weights, as without training, look dark, and not as if the head had chosen. The largest weight
    # of each map is written in it, so that dark maps say something too.
    equal_weight = 1 / math.prod(net.patches)
    top = max(scale_of([maps.numpy()]), 5 * equal_weight)

    row_names = []
    for name, _ in shown:
        row_names += [in_lines(name), 'random\nweights']
    column_names = ['picture', *(f'head {k}' for k in heads)]
    side = min(1.4, 12 / len(column_names))
    drawn = augment.visible(x)
    parts = [None] * len(shown)
    if c.over:
        # each photo has its own resolution, up to 720 pixels
        longest = max(max(picture.shape) for _, picture in shown)
        side = min(6, max(1.4, longest / 120))
        drawn = [augment.drawable(picture) for _, picture in shown]
        parts = [part_seen(picture, net.model, net.run) for _, picture in shown]
    title = title_of(nets, l)
    words = sight(c.image, net.model, net.run) if c.image else ''
    if words:
        print(words)
        title += '\n' + words.replace('; ', '\n')
    figure, axes = picture_grid(side, row_names, column_names, title, right=1.7)
    for b, picture in enumerate(drawn):
        draw_heads(axes[2 * b], picture, parts[b], maps[b], top)
        image = draw_heads(axes[2 * b + 1], picture, parts[b], random_maps[b], top)
    # short lines, because a figure of one picture is not high
    bar = f'attention of the\nclass token ({equal_weight:.1%}\nif all are alike)'
    # any image will do for the bar, because all have one scale
    figure.colorbar(image, ax=axes, extend='max', aspect=40, label=bar, format='{x:.1%}')
    print(f'where the class token looks in layer {l} of {len(net.model.layers)}; below each row, '
          'random weights')

    rows = []
    for b, h, i, j in np.ndindex(maps.shape):
        rows.append({'picture': shown[b][0], 'layer': l, 'head': heads[h], 'row': i + 1,
                     'column': j + 1, 'weight': maps[b, h, i, j]})
    return figure, rows


def maps_of_heads(maps_of, net, l, heads, x):
    """What `maps_of`, layers.class_maps or layers.weights, gives for samples x in layer l, of these
    heads alone, which are counted from 1: (B, heads, ..)."""
    attention, normed = layers.at_layer(net.model, l, x)
    return maps_of(attention, normed)[:, [k - 1 for k in heads]].cpu()


def in_lines(name):
    """The name of a picture as it stands beside it: at most 20 letters, in lines."""
    return name[:20].replace(', ', '\n')


def draw_heads(axes, picture, part, maps, top):
    """Draw a row of panels: a picture, and beside it the map of each head. In the corner of a map
    stands its largest number. part: None, or what part_seen gives for the picture. Then the maps
    lie over this part of the picture, in a frame. maps: (heads, down, across); top: the number at
    which the colours end. Returns what `imshow` gives for the last map, because a bar of colours
    needs it."""
    from matplotlib.patches import Rectangle
    axes[0].imshow(picture)
    box = {'color': 'black', 'alpha': 0.6, 'pad': 1.5}
    colours = {'cmap': figures.FROM_BLACK, 'vmin': 0, 'vmax': top}
    if part is not None:
        left, above, width, height = part
        # a pixel is as wide as 1, and its middle has whole coordinates
        colours['extent'] = (left - 0.5, left + width - 0.5, above + height - 0.5, above - 0.5)
        colours['alpha'] = 0.6
    for axis, weights in zip(axes[1:], maps):
        image = axis.imshow(weights.numpy(), **colours)
        if part is not None:
            axis.imshow(picture, zorder=-1)  # below the map
            axis.add_patch(Rectangle((left - 0.5, above - 0.5), width, height, fill=False,
                                     edgecolor='white'))
        axis.text(0.04, 0.05, f'{weights.max():.1%}', transform=axis.transAxes, color='white',
                  fontsize='x-small', bbox=box)
    return image


def attention_in_text(c, nets, l, heads):
    """Draw which tokens each token averages, with the text on both axes, and then the same for
    random weights. l: the layer; heads: the heads to draw; both are counted from 1."""
    net = nets[0]
    x, labels = tokens_of(c, net, usual=24, most=64)
    # (heads, N, N) each
    maps, random_maps = [
        maps_of_heads(layers.weights, network, l, heads, x)[0] for network in nets]
    # the first tokens of a text have few tokens to attend to, so their weights are large; the scale
    # leaves out the largest 2%
    top = scale_of([maps.numpy()], share=0.98)

    shown = {}
    for prefix, of_heads in (('', maps), ('random weights, ', random_maps)):
        for k, weights in zip(heads, of_heads):
            weights = weights.where(weights > 0, torch.nan)  # stays white
            shown[f'{prefix}head {k}'] = weights.numpy()
    ticks = (range(len(labels)), [verbatim(label) for label in labels])
    side = max(2.4, 0.14 * len(labels))
    bar = {'label': "share of a token's attention", 'format': '{x:.1%}'}
    figure, axes = small_maps(
        shown, title_of(nets, l), side=side, x='token that is averaged', y='token', bar=bar,
        xticks=ticks, yticks=ticks, groups=2, vmin=0, vmax=top, cmap=figures.FROM_BLACK)
    for axis in axes:
        axis.tick_params(labelleft=True, labelbottom=True)
        axis.tick_params('x', labelrotation=90)
    print(f'in layer {l} of {len(net.model.layers)} each token (a row) becomes an average of those '
          'bright in its row')

    rows = []
    for h, i, j in np.ndindex(maps.shape):
        rows.append({'layer': l, 'head': heads[h], 'query': i + 1, 'query_token': labels[i],
                     'key': j + 1, 'key_token': labels[j], 'weight': maps[h, i, j]})
    return figure, rows


# ---- principal components -----------------------------------------------------------------------

def draw_components(c, nets):
    """Draw the patches of pictures of one class by their principal components: CRATE-MAE, Figure
    7a. The first component separates the foreground. The first three components of the foreground
    alone are then its red, green and blue."""
    net = nets[0]
    l = which_layer(c, net.model)
    if c.image and c.label:
        raise Mistake('--label is for pictures of a dataset; leave --image or --label out')
    shown = drawn_pictures(c, net, 8, c.label)
    x = pixels(net, shown)
    attention, normed = layers.at_layer(net.model, l, x)
    tokens = layers.coordinates(attention, normed, c.part or 'key')
    patches = tokens[:, 1:].cpu()                           # (J, N, K p), without the class token
    first, is_foreground, components = layers.two_stage_pca(patches, net.patches, c.keep)
    print(f'{is_foreground.float().mean():.0%} of the patches are foreground in layer {l}; '
          'similar ones have similar colours')
    rows = []
    for j, row, column in np.ndindex(first.shape):
        red, green, blue = components[j, row, column]
        rows.append({
            'picture': shown[j][0],
            'row': row + 1,
            'column': column + 1,
            'first': first[j, row, column],
            'kept': int(is_foreground[j, row, column]),
            'red': red,
            'green': green,
            'blue': blue,
        })
    return figure_of_components(shown, x, first, is_foreground, components, title_of(nets, l)), rows


def figure_of_components(shown, x, first, is_foreground, components, title):
    """Three rows of J pictures: the pictures, their first components, and three components as
    colours. shown: [(name, picture)]; x: the pictures as the network sees them; first,
    is_foreground, components: what layers.two_stage_pca gives."""
    low = components[is_foreground].amin(0)
    high = components[is_foreground].amax(0)
    scaled = (components - low) / (high - low).clamp_min(1e-12)
    rgb = torch.where(is_foreground[..., None], scaled, 0.0)            # (J, down, across, 3)

    row_names = ['picture', 'first\ncomponent', 'the first three\nas red, green,\nblue']
    column_names = [in_lines(name) for name, _ in shown]
    side = max(1.2, min(2.4, 10 / len(shown)))
    figure, axes = picture_grid(side, row_names, column_names, title, right=1.2)
    for j, picture in enumerate(augment.visible(x)):
        axes[0, j].imshow(picture)
        image = axes[1, j].imshow(first[j].numpy(), vmin=first.min(), vmax=first.max(),
                                  cmap=figures.FROM_BLACK)
        axes[2, j].imshow(rgb[j].numpy())
    figure.colorbar(image, ax=axes[1], label='coordinate')
    return figure
