"""What each layer of a trained network does, in figures: `layers`, `subspaces`, `tokens`, `attention`, `pca`. Each
function gets an AnalyzeConfig and subjects, the one asked about first; it prints what it found, and returns the figure
with the columns and rows of its table."""
import math

import numpy as np
import torch

from analysis import layers, measures
from analysis.panels import (colour_bar, label_panels, mean_and_spread, over_layers, picture_grid, say_table, scale_of,
                             side_by_side, small_maps)
from analysis.samples import (batches, patches, pictures, pixels, tokens_of, warn_if_lengths_differ, warn_if_unused,
                              which_heads, which_layer)
from engine import plots
from engine.settings import Mistake
from tasks import augment


# ---- layers ---------------------------------------------------------------------------------------------------------

SHOWN = {'rate': ('R^c', 'falls', 'R^c, nats'), 'sparsity': ('the share of non-zeros', 'falls', 'share'),
         'objective': ('the objective', 'rises', 'eq. (1)')}  # name, what CRATE's layers are derived to do, unit


def draw_layers(c, nets):
    """CRATE, Figures 3, 4, 5 and 12, and eq. (1): R^c, sparsity and the objective of every layer."""
    dense, eps = [net for net in nets if layers.is_dense(net.model)], c.eps or layers.EPS[c.measure]
    if c.show == 'sparsity' and dense:
        raise Mistake(f'{dense[0].name} has no sparsity to show: its layers have neither ISTA nor an MLP, which could '
                      'set numbers to zero; give --show=rate')
    shown = [k for k in SHOWN if c.show in ('', k) and not (k == 'sparsity' and len(dense) == len(nets))]
    (figure, axes), rows, said = side_by_side(len(shown)), [], []
    for net in nets:
        settings = c.measure, c.eps, c.part or 'value', c.threshold
        found = layers.of_all(batches(c, net, 256), layers.layer_measures, net.model, *settings)
        measured = dict(zip(('rate', 'sparsity', 'objective'), found))
        for k, axis in zip(shown, axes):
            if k == 'sparsity' and net in dense:
                continue
            over_layers(axis, net, measured[k])
            rows += [(net.name, net.kind, k, l, *mean_and_spread(v)) for l, v in enumerate(measured[k], 1)]
            said.append((net.name, k, *walked(measured[k].mean(1))))
    say_table(('', 'measure', 'layer 1', 'last layer', 'falls in', 'rises in'),
              [(name, SHOWN[k][0], *numbers) for name, k, *numbers in said])
    say_verdicts(nets[0], said)
    warn_if_lengths_differ(c, nets)
    above = f', |z| > {c.threshold:g}' * bool(c.threshold)
    tokens = 'after attention, Z^(l+1/2)' if c.measure == 'paper' else 'before attention, LN(Z^l), as released'
    titles = {'rate': f'coding rate {tokens}, eps = {eps:g}',
              'sparsity': f'share of non-zeros after the layer, Z^(l+1){above}',
              'objective': 'R - R^c - lambda |Z|_0 after the layer, Z^(l+1)'}
    label_panels(figure, axes, [titles[k] for k in shown], [SHOWN[k][2] for k in shown], nets)
    for k, axis in zip(shown, axes):
        axis.set_ylim(0 if k != 'objective' else None)
    return figure, ('network', 'weights', 'measure', 'layer', 'mean', 'spread'), rows


def walked(values):
    """Where values (L,) start and end, and in how many of the steps from layer to layer they fall and rise."""
    steps = values.diff()
    return values[0].item(), values[-1].item(), *(f'{n.sum()} of {len(steps)}' for n in (steps < 0, steps > 0))


def say_verdicts(net, said):
    """Print what the layers of a network do beside what they are derived to do."""
    first = net.model.layers[0]
    if not hasattr(first, 'ista'):
        return print(f'nothing in {type(net.model).__name__} is derived to lower R^c from layer to layer, as in CRATE')
    for name, k, _, _, falls, rises in said:
        if name == net.name:
            what, way, _ = SHOWN[k]
            print(f'here {what} {way} in {falls if way == "falls" else rises} steps; the theory says {way}')
    if layers.decodes(first):
        print('the non-zeros are those of the codes, which the layer decodes again, so its tokens are dense')


# ---- subspaces and tokens -------------------------------------------------------------------------------------------

def draw_subspaces(c, nets):
    """CRATE, Figure 7: |U^T U| of every layer, with columns of unit norm, and its mean between
    subspaces over that within."""
    net, part = nets[0], c.part or 'value'
    trained, random = ([measures.coherence(layers.bases(a, part).float().cpu()) for a in layers.attentions(n.model)]
                       for n in nets)
    K, p = layers.bases(layers.attentions(net.model)[0], part).shape[::2]
    if K < 2:
        raise Mistake(f'{net.name} has one head: there are no two subspaces to compare')
    rng, rows, m, parts = np.random.default_rng(c.seed), [], min(c.directions, p), []
    for l, (G, number) in enumerate(trained, 1):
        columns = np.concatenate([k * p + np.sort(rng.permutation(p)[:m]) for k in range(K)])
        parts.append(G[columns][:, columns].numpy())
        places = [(column // p + 1, column % p + 1) for column in columns]              # head, and column in it
        rows += [(l, number, random[l - 1][1], *places[i], *places[j], parts[-1][i, j].item())
                 for i in range(K * m) for j in range(K * m)]
    numbers = {n.name: [number for _, number in found] for n, found in zip(nets, (trained, random))}
    say_table(('coherence', 'layer 1', 'last layer', 'falls in', 'rises in'),
              [(name, *walked(torch.tensor(found))) for name, found in numbers.items()])
    print(f'here the subspaces are {"farther apart" if trained[-1][1] < random[-1][1] else "no farther apart"} in the '
          'last layer than with random weights')
    maps = {f'layer {l}: coherence {mine:.2f},\nrandom weights {other:.2f}': part
            for l, (part, (_, mine), (_, other)) in enumerate(zip(parts, trained, random), 1)}
    return figure_of_subspaces(maps, K, m), \
        ('layer', 'coherence', 'coherence_random', 'head_i', 'column_i', 'head_j', 'column_j', 'value'), rows


def figure_of_subspaces(maps, K, m):
    """|U^T U| of m columns of each of K heads; maps {title: (K m, K m)}, one for each layer."""
    wide, down, side = sizes(len(maps), 1.9, 3.0)
    figure = plots.pyplot().figure(figsize=(side * wide + 1.2, (side + 0.4) * down + 0.3), layout='constrained')
    top = scale_of([part[~np.eye(K * m, dtype=bool)] for part in maps.values()], most=0.95)         # without the ones
    heads = range(1, K + 1, -(-K // 8))
    middles = [(k - 0.5) * m - 0.5 for k in heads]
    for axis in small_maps(figure, wide, maps, 'head', 'head', '|cosine| of two columns,\ngrey above the scale', vmin=0,
                           vmax=top, cmap=plots.pyplot().get_cmap('magma').with_extremes(over='0.75')):
        axis.set_xticks(middles, heads)
        axis.set_yticks(middles, heads)
        for k in range(1, K):                                                           # between heads
            axis.axhline(k * m - 0.5, color='white', linewidth=1)
            axis.axvline(k * m - 0.5, color='white', linewidth=1)
    return figure


def sizes(n, least, most):
    """For n small maps: how many are in a row, how many rows there are, and the side of each in inches."""
    wide = min(n, 6)
    return wide, math.ceil(n / wide), max(least, min(most, 8.4 / wide))


def draw_tokens(c, nets):
    """CRATE, Figure 6: the tokens of one sample after every layer, a random part of them."""
    net, name, words = nets[0], 'a text', []
    if net.reads == 'images':
        shown = pictures(c, net, 1)[:1]
        x, name = pixels(net, shown), shown[0][0]
    else:
        x, words = tokens_of(c, net, net.model.config.block_size, net.model.config.block_size)
    after = [step.after[0].float().cpu() for step in layers.inside(net.model, x)]       # L of (N, d)
    rng, L = np.random.default_rng(c.seed), len(after)
    some, channels = (np.sort(rng.permutation(n)[:c.size]) for n in after[0].shape)
    parts, share = [z[some][:, channels].numpy() for z in after], [measures.nonzeros(z).item() for z in after]
    wide, down, side = sizes(L, 1.8, 2.6)
    figure = plots.pyplot().figure(figsize=(side * wide + 2.4, max(2.7, (side + 0.3) * down + 0.2)),
                                   layout='constrained')
    left, right = figure.subfigures(1, 2, width_ratios=(2, side * wide + 0.4))
    draw_input(left.subplots(), net, x, name, words)
    top, signed = scale_of(parts), any((part < 0).any() for part in parts)
    maps = {f'layer {l}: {there:.0%} not 0': part for l, (there, part) in enumerate(zip(share, parts), 1)}
    for axis in small_maps(right, wide, maps, 'channel', 'token', 'number in the token', 'both' if signed else 'max',
                           vmin=-top * signed, vmax=top, cmap='RdBu_r' if signed else 'Blues', aspect='auto',
                           interpolation='nearest'):
        for set_ticks, numbers, n in ((axis.set_xticks, channels, 5), (axis.set_yticks, some, 9)):
            places = np.unique(np.linspace(0, len(numbers) - 1, n).round().astype(int))
            set_ticks(places, numbers[places] + 1)
    print(f'{name}: a token is a row, and white where it is zero')
    say_table(('', 'layer 1', 'last layer', 'falls in', 'rises in'),
              [('share of non-zeros', *walked(torch.tensor(share)))])
    return figure, ('layer', 'token', 'channel', 'value'), [
        (l, some[i] + 1, channels[j] + 1, part[i, j].item())
        for l, part in enumerate(parts, 1) for i in range(len(some)) for j in range(len(channels))]


def draw_input(axis, net, x, name, words):
    """The picture x (1, C, H, W) called name, cut into its patches, or the text of words; with the
    number of the token at the start of each line."""
    if words:
        axis.axis('off')
        axis.set_title('the text', fontsize='small')
        axis.text(0, 1, '\n'.join(numbered_lines(words)), va='top', fontsize=7, fontfamily='monospace',
                  parse_math=False)  # a text may have two dollars
        return
    axis.imshow(augment.visible(x)[0])
    axis.set_title(name, fontsize='small')
    axis.set(xticks=[], yticks=[])
    try:
        down, across = patches(net)
    except ValueError:  # its tokens are not a class token and patches; the other panels are of any tokens
        return
    H, W = x.shape[2:]
    axis.set_xticks([n * W / across - 0.5 for n in range(across)], [''] * across)
    axis.set_yticks([n * H / down - 0.5 for n in range(down)], [n * across + 2 for n in range(down)], fontsize=7)
    axis.grid(color='white', linewidth=0.4)
    axis.set_ylabel('first token of the row', fontsize='small')
    axis.set_xlabel('a patch is a token;\ntoken 1 is the class token', fontsize='small')


def numbered_lines(words, wide=26, most=20):
    """A text of tokens as lines, each after the number of its first token; at most so many."""
    lines, used = [], wide + 1
    for n, word in enumerate(words, 1):
        if used + len(word) > wide:
            lines.append(f'{n:>4}  ')
            used = 0
        lines[-1] += word
        used += len(word)
    return lines[:most] + ['  ..'] * (len(lines) > most)


# ---- attention ------------------------------------------------------------------------------------------------------

def draw_attention(c, nets):
    """Where each head looks: the class token of pictures, every token of a text."""
    net, l = nets[0], which_layer(c, nets[0].model)
    heads = which_heads(c, layers.attentions(net.model)[l - 1])
    return (attention_in_pictures if net.reads == 'images' else attention_in_text)(c, net, l, heads)


def attention_in_pictures(c, net, l, heads):
    """CRATE-MAE, Figure 7b, and AoT, Figure 7: the class token's attention, drawn over pictures."""
    (down, across), shown, (H, W) = patches(net), pictures(c, net, 4), net.model.config.image_size
    x, wide = pixels(net, shown), len(heads) + 1
    maps = layers.class_maps(*layers.at_layer(net.model, l, x)).cpu()                   # (B, K, N)
    figure, axes = picture_grid(min(1.5, 12 / wide), [name[:20] for name, _ in shown],
                                [f'layer {l}', *(f'head {k}' for k in heads)])
    for row, picture, of_heads in zip(axes, augment.visible(x), maps):
        row[0].imshow(picture)
        for k, axis in zip(heads, row[1:]):
            axis.imshow(picture.mean(-1), extent=(0, W, H, 0), cmap='gray', vmin=0, vmax=255)
            drawn = of_heads[k - 1] - of_heads[k - 1].min()
            image = axis.imshow((drawn / drawn.max().clamp_min(1e-12)).view(down, across).numpy(), vmin=0, vmax=1,
                                extent=(0, W, H, 0), cmap='inferno', alpha=0.75)
    colour_bar(figure, image, axes, 'attention of this head', ticks=[0, 1]).set_ticklabels(['least', 'most'])
    warn_if_unused(net)
    print(f'where the class token looks in layer {l} of {len(net.model.layers)}; each map has its own scale')
    return figure, ('picture', 'layer', 'head', 'row', 'column', 'weight'), [
        (name, l, k, n // across + 1, n % across + 1, of_heads[k - 1, n].item())
        for (name, _), of_heads in zip(shown, maps) for k in heads for n in range(down * across)]


def attention_in_text(c, net, l, heads):
    """Which tokens each token averages, with the text on both axes."""
    x, labels = tokens_of(c, net, 24, 64)
    maps = layers.weights(*layers.at_layer(net.model, l, x), layers.causal(net.model))[0].cpu()       # (K, N, N)
    side, N = max(2.6, 0.14 * len(labels)), range(len(labels))
    wide = max(1, min(len(heads), 4, int(13 / side)))
    figure = plots.pyplot().figure(figsize=(side * wide + 1, (side + 0.4) * math.ceil(len(heads) / wide)),
                                   layout='constrained')
    top = scale_of([maps.numpy()], share=0.98)                          # the first tokens have few to average
    shown = {f'layer {l}, head {k}': maps[k - 1].where(maps[k - 1] > 0, math.nan).numpy() for k in heads}
    for axis in small_maps(figure, wide, shown, 'token that is averaged', 'token', 'weight of attention', vmin=0,
                           vmax=top, cmap='viridis'):
        axis.tick_params(labelleft=True, labelbottom=True)
        axis.set_xticks(N, labels, rotation=90, fontsize=7, fontfamily='monospace', parse_math=False)
        axis.set_yticks(N, labels, fontsize=7, fontfamily='monospace', parse_math=False)
    print(f'in layer {l} of {len(net.model.layers)} each token (a row) becomes an average of those bright in its row')
    return figure, ('layer', 'head', 'query', 'query_token', 'key', 'key_token', 'weight'), [
        (l, k, i + 1, labels[i], j + 1, labels[j], maps[k - 1, i, j].item()) for k in heads for i in N for j in N]


# ---- principal components -------------------------------------------------------------------------------------------

def draw_components(c, nets):
    """CRATE-MAE, Figure 7a: patches of pictures of one class, the foreground by its first
    component, then three as colours."""
    net = nets[0]
    (down, across), l, shown = patches(net), which_layer(c, net.model), pictures(c, net, 8, c.label)
    x, J = pixels(net, shown), len(shown)
    heads = layers.coordinates(*layers.at_layer(net.model, l, x), c.part or 'key')[:, 1:].cpu()     # (J, N, K p)
    first, kept, three = layers.two_stage_pca(heads, (down, across), c.keep)
    low, high = three[kept].amin(0), three[kept].amax(0)
    rgb = torch.where(kept[..., None], (three - low) / (high - low).clamp_min(1e-12), 0.0)
    left = f'picture; layer {l}', 'first component', 'the first three as\nred, green, blue'
    figure, axes = picture_grid(max(1.2, min(2.4, 10 / J)), left, [name[:20] for name, _ in shown])
    for j, picture in enumerate(augment.visible(x)):
        axes[0, j].imshow(picture)
        image = axes[1, j].imshow(first[j].view(down, across).numpy(), vmin=first.min(), vmax=first.max(),
                                  cmap='viridis')
        axes[2, j].imshow(rgb[j].view(down, across, 3).numpy())
    colour_bar(figure, image, axes[1], 'coordinate')
    print(f'{kept.float().mean():.0%} of the patches are kept as foreground by the first component in layer {l}; if '
          'these are the objects, similar patches have similar colours')
    return figure, ('picture', 'row', 'column', 'first', 'kept', 'red', 'green', 'blue'), [
        (name, n // across + 1, n % across + 1, first[j, n].item(), int(kept[j, n]), *three[j, n].tolist())
        for j, (name, _) in enumerate(shown) for n in range(down * across)]
