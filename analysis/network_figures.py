"""What each layer of a trained network does, in figures: `layers`, `subspaces`, `tokens`, `attention`, `pca`. Each
function gets an AnalyzeConfig and subjects, the one asked about first; it prints what it found, and returns the figure
and the rows of its table, {column: value} each."""
import numpy as np
import torch

from analysis import layers, measures
from analysis.charts import over_layers, picture_grid, scale_of, small_maps, title_of
from analysis.subjects import (batches, pictures, pixels, tokens_of, which_heads, which_layer)
from analysis.tables import say_walks
from engine import figures, plots
from engine.settings import Mistake
from tasks import augment


# ---- layers ---------------------------------------------------------------------------------------------------------

def draw_layers(c, nets):
    """CRATE, Figures 3, 4, 5 and 12, and eq. (1): R^c, sparsity and the objective of every layer."""
    found = [layers.measure_layers(net.model, batches(c, net, 256), lambda step: layers.layer_measures(
        step, c.measure, c.part or 'value', c.threshold)) for net in nets]
    above = f', |z| > {c.threshold:g}' * bool(c.threshold)
    tokens = {'paper': 'after attention, Z^(l+1/2), eps = 0.5',
              'released': 'before attention, LN(Z^l), as released, eps = 0.01'}[c.measure]
    labels = {'rate': (f'coding rate {tokens}', 'R^c, nats'),
              'sparsity': (f'share of non-zeros after the layer, Z^(l+1){above}', 'share'),
              'objective': ('R - R^c - lambda |Z|_0 after the layer, Z^(l+1)', 'eq. (1)'),
              # of layers without attention
              'coding_rate': ('coding rate R after the layer, Z^(l+1)', 'R, nats'),
              'norm': ('mean norm of a token after the layer', 'norm')}
    shown = {k: words for k, words in labels.items() if c.show in ('', k) and any(k in values for values in found)}
    if not shown:
        raise Mistake(f'{nets[0].name} has no sparsity to show: nothing in it sets numbers to zero; give --show=rate')
    say_walks(nets, found, *shown)
    for k in shown if hasattr(nets[0].model.layers[0], 'ista') else ():
        way, sign = ('rises', 1) if k == 'objective' else ('falls', -1)
        seen = sign * found[0][k].mean(1).diff() > 0
        print(f'here {k} {way} in {seen.sum()} of {len(seen)} steps; the theory says {way}')
    return over_layers(nets, found, shown)


# ---- subspaces and tokens -------------------------------------------------------------------------------------------

def draw_subspaces(c, nets):
    """CRATE, Figure 7: |U^T U| of every layer, with columns of unit norm, and its mean between
    subspaces over that within."""
    net, part = nets[0], c.part or 'value'
    K, p = layers.bases(layers.attentions(net.model)[0], part).shape[::2]
    trained, random = ([measures.coherence(layers.bases(a, part).float().cpu()) for a in layers.attentions(n.model)]
                       for n in nets)
    rng, m, rows, maps = np.random.default_rng(c.seed), min(c.directions, p), [], {}
    for l, ((G, mine), (_, other)) in enumerate(zip(trained, random), 1):
        columns = np.concatenate([k * p + np.sort(rng.permutation(p)[:m]) for k in range(K)])
        drawn = maps[f'layer {l}: coherence {mine:.2f},\nrandom weights {other:.2f}'] = G[columns][:, columns].numpy()
        head, column = columns // p + 1, columns % p + 1
        rows += [{'layer': l, 'coherence': mine, 'coherence_random': other, 'head_i': head[i], 'column_i': column[i],
                  'head_j': head[j], 'column_j': column[j], 'value': drawn[i, j]} for i, j in np.ndindex(drawn.shape)]
    say_walks(nets, [{'coherence': torch.tensor([[number] for _, number in found])} for found in (trained, random)],
              'coherence')
    print(f'here the subspaces are {"farther apart" if trained[-1][1] < random[-1][1] else "no farther apart"} in the '
          'last layer than with random weights')
    top = scale_of([part[~np.eye(K * m, dtype=bool)] for part in maps.values()], most=0.95)         # without the ones
    heads = range(1, K + 1, -(-K // 8))
    ticks = [(k - 0.5) * m - 0.5 for k in heads], heads                                 # in the middle of each
    grey_above = plots.pyplot().get_cmap(plots.FROM_BLACK).with_extremes(over='0.75')
    figure, axes, _ = small_maps(maps, 2.4, 'head', 'head', '|cosine| of two columns,\ngrey above the scale', ticks,
                                 ticks, vmin=0, vmax=top, cmap=grey_above)
    figures.headline(figure, title_of(nets))
    for axis in axes:
        for k in range(1, K):                                                           # between heads
            axis.axhline(k * m - 0.5, color='white', linewidth=1)
            axis.axvline(k * m - 0.5, color='white', linewidth=1)
    return figure, rows


def draw_tokens(c, nets):
    """CRATE, Figure 6: the tokens of one sample after every layer, a random part of them."""
    net = nets[0]
    shown = pictures(c, net, 1)[:1] if net.reads == 'images' else []
    x = pixels(net, shown) if shown else tokens_of(c, net)[0]
    after = [step.after[0].float().cpu() for step in layers.inside(net.model, x)]       # L of (N, d)
    rng = np.random.default_rng(c.seed)
    some, channels = (np.sort(rng.permutation(n)[:c.size]) for n in after[0].shape)
    parts, share = [z[some][:, channels].numpy() for z in after], [measures.nonzeros(z) for z in after]
    top, signed = scale_of(parts), any((part < 0).any() for part in parts)
    maps = {f'layer {l}: {there:.0%} not 0': part for l, (there, part) in enumerate(zip(share, parts), 1)}
    ticks = [(range(len(them))[::step], them[::step] + 1) for them, step in ((channels, 12), (some, 6))]
    N, d = after[0].shape
    x, y = part_of('channel', len(channels), d), part_of('token', len(some), N)
    figure, _, _ = small_maps(maps, 2.1, x, y, 'number in the token', *ticks, vmin=-top * signed, vmax=top,
                              cmap='RdBu_r' if signed else plots.FROM_WHITE, aspect='auto', interpolation='nearest')
    figures.headline(figure, title_of(nets))
    print(f'{shown[0][0] if shown else "a text"}: a token is a row, and white where it is zero')
    say_walks(nets, [{'share of non-zeros': torch.tensor(share)[:, None]}], 'share of non-zeros')
    return figure, [{'layer': l, 'token': some[i] + 1, 'channel': channels[j] + 1, 'value': part[i, j]}
                    for l, part in enumerate(parts, 1) for i, j in np.ndindex(part.shape)]


def part_of(what, drawn, count):
    """The label of an axis with so many rows or columns out of `count`. It says why the numbers on the axis have gaps."""
    return what if drawn == count else f'{what}, {drawn} of {count}\nat random'


# ---- attention ------------------------------------------------------------------------------------------------------

def draw_attention(c, nets):
    """Where each head looks, and where the same network with random weights does: the class token of pictures, every
    token of a text."""
    net, l = nets[0], which_layer(c, nets[0].model)
    heads = which_heads(c, layers.attentions(net.model)[l - 1])
    return (attention_in_pictures if net.reads == 'images' else attention_in_text)(c, nets, l, heads)


def attention_in_pictures(c, nets, l, heads):
    """CRATE-MAE, Figure 7b, and AoT, Figure 7: the class token's attention to the patches of pictures. Below each row
    of the trained network is one of random weights."""
    net, shown = nets[0], pictures(c, nets[0], 4)
    x = pixels(net, shown)
    maps, random = (layers.class_maps(*layers.at_layer(n.model, l, x)).cpu().unflatten(-1, net.patches)
                    for n in nets)                                      # (B, K, down, across)
    # All maps share one scale. With a scale of its own each map would go from black to bright, and weights that are
    # nearly equal, as without training, would look as if the head had chosen. For the same reason the scale ends well
    # above equal weights. What is most in a map is written in it.
    alike = 1 / (net.patches[0] * net.patches[1])                       # what each patch gets if all get the same
    top = max(scale_of([maps[:, [k - 1 for k in heads]].numpy()]), 5 * alike)
    row_labels = []
    for name, _ in shown:
        row_labels += [name[:20].replace(', ', '\n'), 'random\nweights']
    wide = len(heads) + 1
    figure, axes = picture_grid(min(1.4, 12 / wide), row_labels, ['picture', *(f'head {k}' for k in heads)],
                                title_of(nets[:1], [l]), right=1.7)
    rows = zip(axes[::2], axes[1::2], augment.visible(x), maps, random)
    for trained_row, random_row, picture, of_trained, of_random in rows:
        for row, of_heads in ((trained_row, of_trained), (random_row, of_random)):
            row[0].imshow(picture)
            for k, axis in zip(heads, row[1:]):
                image = draw_weights(axis, of_heads[k - 1], top)
    figure.colorbar(image, ax=axes, extend='max', format=percent(), aspect=40, label=(
        f"share of the class token's attention\nthat a patch gets ({alike:.1%} if all are alike)"))
    print(f'where the class token looks in layer {l} of {len(net.model.layers)}; below each row, random weights')
    return figure, [{'picture': name, 'layer': l, 'head': k, 'row': i + 1, 'column': j + 1,
                     'weight': of_heads[k - 1, i, j]}
                    for (name, _), of_heads in zip(shown, maps) for k in heads for i, j in np.ndindex(net.patches)]


def draw_weights(axis, weights, top):
    """A map of shares of attention (down, across) in colours up to `top`, and its largest number in a corner."""
    image = axis.imshow(weights.numpy(), cmap=plots.FROM_BLACK, vmin=0, vmax=top)
    axis.text(0.04, 0.05, f'{weights.max():.1%}', transform=axis.transAxes, color='white', fontsize='x-small',
              bbox=dict(color='black', alpha=0.6, pad=1.5))
    return image


def percent():
    """How a bar of colours writes a share."""
    from matplotlib.ticker import FuncFormatter
    return FuncFormatter(lambda share, place: f'{100 * share:g}%')


def attention_in_text(c, nets, l, heads):
    """Which tokens each token averages, with the text on both axes; then the same for random weights."""
    net, (x, labels) = nets[0], tokens_of(c, nets[0], 24, 64)
    maps, random = (layers.weights(*layers.at_layer(n.model, l, x))[0].cpu() for n in nets)         # (K, N, N)
    top = scale_of([maps.numpy()], share=0.98)                          # the first tokens have few to average
    shown = {}
    for name, of_heads in (('', maps), ('random weights, ', random)):
        for k in heads:
            shown[f'{name}head {k}'] = of_heads[k - 1].where(of_heads[k - 1] > 0, torch.nan).numpy()
    ticks = range(len(labels)), labels
    figure, axes, bar = small_maps(shown, max(2.6, 0.16 * len(labels)), 'token that is averaged', 'token',
                                   "share of a token's attention", ticks, ticks, vmin=0, vmax=top,
                                   cmap=plots.FROM_BLACK)
    bar.formatter = percent()
    figures.headline(figure, title_of(nets[:1], [l]))
    for axis in axes:
        axis.tick_params(labelleft=True, labelbottom=True)
        axis.tick_params('x', labelrotation=90)
    print(f'in layer {l} of {len(net.model.layers)} each token (a row) becomes an average of those bright in its row')
    return figure, [{'layer': l, 'head': k, 'query': i + 1, 'query_token': labels[i], 'key': j + 1,
                     'key_token': labels[j], 'weight': maps[k - 1, i, j]}
                    for k in heads for i, j in np.ndindex(maps[0].shape)]


# ---- principal components -------------------------------------------------------------------------------------------

def draw_components(c, nets):
    """CRATE-MAE, Figure 7a: patches of pictures of one class, the foreground by its first
    component, then three as colours."""
    net = nets[0]
    l, shown = which_layer(c, net.model), pictures(c, net, 8, c.label)
    x, J = pixels(net, shown), len(shown)
    heads = layers.coordinates(*layers.at_layer(net.model, l, x), c.part or 'key')[:, 1:].cpu()     # (J, N, K p)
    first, kept, three = layers.two_stage_pca(heads, net.patches, c.keep)
    low, high = three[kept].amin(0), three[kept].amax(0)
    rgb = torch.where(kept[..., None], (three - low) / (high - low).clamp_min(1e-12), 0.0)
    left = 'picture', 'first\ncomponent', 'the first three\nas red, green,\nblue'
    above = [name[:20].replace(', ', '\n') for name, _ in shown]
    figure, axes = picture_grid(max(1.2, min(2.4, 10 / J)), left, above, title_of(nets, [l]), right=1.2)
    for j, picture in enumerate(augment.visible(x)):
        axes[0, j].imshow(picture)
        image = axes[1, j].imshow(first[j].numpy(), vmin=first.min(), vmax=first.max(), cmap=plots.FROM_BLACK)
        axes[2, j].imshow(rgb[j].numpy())
    figure.colorbar(image, ax=axes[1], label='coordinate')
    print(f'{kept.float().mean():.0%} of the patches are foreground in layer {l}; similar ones have similar colours')
    return figure, [{'picture': shown[at[0]][0], 'row': at[1] + 1, 'column': at[2] + 1, 'first': first[at],
                     'kept': int(kept[at]), **dict(zip(('red', 'green', 'blue'), three[at].tolist()))}
                    for at in np.ndindex(first.shape)]
