"""The figures that analyze.py draws of networks. Each function gets an AnalyzeConfig and subjects,
the one asked about first; it prints what to see, and returns the figure with the columns and rows
of its table."""
import math

import numpy as np
import torch
import torch.nn.functional as F
from tqdm import tqdm

from analysis import layers, measures
from analysis.samples import (batches, choose, only_pictures, patches, pictures, pixels, tokens_each, tokens_of,
                              view_of, which_heads, which_layer, which_part)
from engine import plots
from tasks import augment
from tasks.files import open_array
from tasks.pictures import named

# ---- parts of figures -----------------------------------------------------------------------------------------------

def side_by_side(panels):
    """A figure and its panels."""
    figure = plots.pyplot().figure(figsize=(5.4 * panels, 4), layout='constrained')
    return figure, figure.subplots(1, panels, squeeze=False)[0]


def small_multiples(figure, n, wide):
    """n panels without axes, `wide` in a row."""
    axes = list(figure.subplots(math.ceil(n / wide), wide, squeeze=False).flat)
    for axis in axes:
        axis.axis('off')
    return axes[:n]


def over_layers(axis, net, values, band=True):
    """A line of the mean of values (L, n) over layers, dashed for random weights, in a band of one
    standard deviation."""
    x, mean, spread = range(1, len(values) + 1), values.mean(1), values.std(1, correction=0)
    axis.plot(x, mean, marker='.', color=net.colour, linestyle='-' if net.kind == 'trained' else '--', label=net.name)
    if band:
        axis.fill_between(x, mean - spread, mean + spread, alpha=0.15, linewidth=0, color=net.colour)


def label_panels(figure, axes, titles, units):
    """Titles and units of panels over layers, and one legend below them."""
    for axis, title, unit in zip(axes, titles, units):
        axis.set_title(title, fontsize='medium')
        axis.set(xlabel='layer', ylabel=unit)
        axis.xaxis.get_major_locator().set_params(integer=True)
    figure.legend(*axes[0].get_legend_handles_labels(), loc='outside lower center', ncols=2, fontsize='small')


def level(axis, height, name=''):
    """A thin horizontal line to compare with."""
    axis.axhline(height, linewidth=0.8, color='grey', linestyle=':')
    axis.annotate(name, (0.99, height), xycoords=('axes fraction', 'data'), fontsize='x-small', ha='right', va='bottom')


def mean_and_spread(values):
    return values.mean().item(), values.std(correction=0).item()


def visible(x):
    """Normalized pictures (B, C, H, W) as uint8 (B, H, W, 3), to draw."""
    return augment.as_rgb(augment.denormalize(x)).cpu().numpy()


# ---- layers, subspaces, tokens --------------------------------------------------------------------------------------

def expected(model):
    """What the papers expect of R^c and sparsity in the layers of a network, in words."""
    if layers.decodes(model.layers[0]):
        return 'the non-zeros are those of the codes, which the layer decodes again, so its tokens are dense'
    if not layers.why_not_sparse(model):
        return 'once trained, both R^c and the share of non-zeros should fall from layer to layer, as derived for CRATE'
    return f'nothing in {type(model).__name__} is derived to lower R^c from layer to layer, as it is in CRATE'


def draw_layers(c, nets):
    """CRATE, Figures 3, 4, 5 and 12: R^c and sparsity of every layer."""
    dense, eps = [net for net in nets if layers.why_not_sparse(net.model)], c.eps or layers.EPS[c.measure]
    if c.show == 'sparsity' and dense:
        raise ValueError(f'{dense[0].name} has no sparsity to show: {layers.why_not_sparse(dense[0].model)}; give '
                         '--show=rate')
    part, panels = which_part(c, nets, 'value'), panels_of_layers(c, eps, len(dense) == len(nets))
    (figure, axes), rows = side_by_side(len(panels)), []
    for net in nets:
        settings = c.measure, c.eps, part, c.threshold
        rates, shares = layers.of_all(batches(c, net, 256), layers.layer_measures, net.model, *settings)
        if not rates.isfinite().all():
            raise ValueError(f'{net.name}: the coding rate with eps={eps:g} is not finite; give a larger --eps')
        measured = {'rate': rates} if net in dense else {'rate': rates, 'sparsity': shares}
        for (k, _), axis in zip(panels, axes):
            if k in measured:
                over_layers(axis, net, measured[k])
                rows += [(net.name, net.kind, k, l, *mean_and_spread(v)) for l, v in enumerate(measured[k], 1)]
        said = {'rate': from_to('R^c', '.1f', rates.mean(1)), 'sparsity': from_to('non-zeros', '.1%', shares.mean(1))}
        print(f'{net.name}: ' + '; '.join(said[k] for k, _ in panels if k in measured))
    warn_if_lengths_differ(c, nets)
    units = [{'rate': 'nats', 'sparsity': 'share'}[k] for k, _ in panels]
    label_panels(figure, axes, [title for _, title in panels], units)
    print(f'to see: {expected(nets[0].model)}; bands are one standard deviation over samples, dashed lines are random '
          'weights')
    return figure, ('network', 'weights', 'measure', 'layer', 'mean', 'spread'), rows


def panels_of_layers(c, eps, no_sparsity):
    """The panels of `layers`: pairs of measure and title."""
    above = f', |z| > {c.threshold:g}' * bool(c.threshold)
    what = 'coding rate R^c of Z^(l+1/2)' if c.measure == 'paper' else "the released code's R^c, of LN(Z^l)"
    panels = ('rate', f'{what}, eps = {eps:g}'), ('sparsity', f'share of non-zeros in Z^(l+1){above}')
    only = c.show or 'rate' * no_sparsity
    return [(k, title) for k, title in panels if only in ('', k)]


def from_to(name, unit, values):
    """Where values (L,) start and end, and how often they fall."""
    if len(values) == 1:
        return f'{name} {values[0]:{unit}} in the only layer'
    return f'{name} {values[0]:{unit}} in layer 1, {values[-1]:{unit}} in layer {len(values)}, falling at ' \
           f'{(values.diff() < 0).sum()} of {len(values) - 1} steps'


def warn_if_lengths_differ(c, nets):
    """Say so if the samples of networks have different numbers of tokens, with which R^c grows."""
    lengths = {net.name: tokens_each(c, net) for net in nets if net.kind == 'trained'}
    if len(set(lengths.values())) > 1:
        counts = ', '.join(f'{n} tokens in {name}' for name, n in lengths.items())
        print(f'their R^c cannot be compared: a sample has {counts}')


def draw_subspaces(c, nets):
    """CRATE, Figure 7: |U^T U| of every layer, with columns of unit norm, and its mean between
    subspaces over that within."""
    net, part = nets[0], which_part(c, nets, 'value')
    trained, random = ([measures.coherence(layers.bases(a, part).float().cpu()) for a in layers.attentions(n.model)]
                       for n in nets)
    L, K, p = len(trained), *layers.bases(layers.attentions(net.model)[0], part).shape[::2]
    if K < 2:
        raise ValueError(f'{net.name} has one head: there are no two subspaces to compare')
    rng, rows, wide, m = np.random.default_rng(c.seed), [], min(L, 6), min(c.directions, p)
    down = math.ceil(L / wide)
    figure = plots.pyplot().figure(figsize=(1.8 * wide + 1, 2 * down + 2.6), layout='constrained')
    upper, lower = figure.subfigures(2, 1, height_ratios=(2 * down, 2.6))
    axes = small_multiples(upper, L, wide)
    for l, (axis, (G, number)) in enumerate(zip(axes, trained), 1):
        columns = np.concatenate([k * p + np.sort(rng.permutation(p)[:m]) for k in range(K)])
        drawn = G[columns][:, columns]
        image = axis.imshow(drawn.numpy(), vmin=0, vmax=1, cmap='magma')
        axis.set_title(f'layer {l}', fontsize='small')
        places = [(column // p + 1, column % p + 1) for column in columns]              # head, and column in it
        rows += [(l, number, random[l - 1][1], *places[i], *places[j], drawn[i, j].item())
                 for i in range(K * m) for j in range(K * m)]
    upper.colorbar(image, ax=axes, shrink=0.8)
    axis = lower.subplots()
    for n, found in zip(nets, (trained, random)):
        over_layers(axis, n, torch.tensor([[number] for _, number in found]), band=False)
    label_panels(lower, [axis], ['coherence: mean |U^T U| between subspaces over mean within them'], [''])
    print('to see: blocks on the diagonal compare a subspace with itself, the other blocks are dark where two '
          f'subspaces are far apart; coherence is {trained[0][1]:.3f} in layer 1 and {trained[-1][1]:.3f} in layer '
          f'{L}, with random weights {random[0][1]:.3f} and {random[-1][1]:.3f}')
    return figure, ('layer', 'coherence', 'coherence_random', 'head_i', 'column_i', 'head_j', 'column_j', 'value'), rows


def draw_tokens(c, nets):
    """CRATE, Figure 6: the tokens of one sample after every layer, a random part of them."""
    net, name = nets[0], 'a text'
    if net.reads == 'images':
        shown = pictures(c, net, 1)[:1]
        x, name = pixels(net, shown), shown[0][0]
    else:
        x, _ = tokens_of(c, net, net.model.config.block_size, net.model.config.block_size)
    after = [z[0].float().cpu() for *_, z in layers.inside(net.model, x)]               # L of (N, d)
    rng, L = np.random.default_rng(c.seed), len(after)
    some, channels = (np.sort(rng.permutation(n)[:c.size]) for n in after[0].shape)
    parts, share = [z[some][:, channels] for z in after], [measures.nonzeros(z).item() for z in after]
    largest, wide = max(part.abs().max().item() for part in parts), min(L, 6)
    figure = plots.pyplot().figure(figsize=(1.8 * wide + 1, 2.1 * math.ceil(L / wide)), layout='constrained')
    axes = small_multiples(figure, L, wide)
    for l, (axis, part) in enumerate(zip(axes, parts), 1):
        image = axis.imshow(part.numpy(), vmin=-largest, vmax=largest, cmap='RdBu_r', interpolation='nearest')
        axis.set_title(f'layer {l}: {share[l - 1]:.0%} not 0', fontsize='small')
    figure.colorbar(image, ax=axes, shrink=0.8)
    print(f'to see: the tokens of {name}, one per row, white where they are zero; of all numbers {share[0]:.1%} are '
          f'not zero after layer 1, {share[-1]:.1%} after layer {L}')
    return figure, ('layer', 'token', 'channel', 'value'), [
        (l, some[i] + 1, channels[j] + 1, part[i, j].item())
        for l, part in enumerate(parts, 1) for i in range(len(some)) for j in range(len(channels))]


# ---- attention ------------------------------------------------------------------------------------------------------

def draw_attention(c, nets):
    """Where each head looks: the class token of pictures, every token of a text."""
    net, l = nets[0], which_layer(c, nets[0].model)
    heads = which_heads(c, layers.attentions(net.model)[l - 1])
    return (attention_in_pictures if net.reads == 'images' else attention_in_text)(c, net, l, heads)


def attention_in_pictures(c, net, l, heads):
    """CRATE-MAE, Figure 7b, and AoT, Figure 7: the class token's attention, drawn over pictures."""
    (down, across), shown, (H, W) = patches(net), pictures(c, net, 4), net.model.config.image_size
    x = pixels(net, shown)
    maps = layers.class_maps(*layers.at_layer(net.model, l, x)).cpu()                   # (B, K, N)
    figure = plots.pyplot().figure(figsize=(1.3 * (len(heads) + 1), 1.3 * len(shown) + 0.3), layout='constrained')
    axes = small_multiples(figure, len(shown) * (len(heads) + 1), len(heads) + 1)
    for picture, of_heads in zip(visible(x), maps):
        axes.pop(0).imshow(picture)
        for k in heads:
            axis = axes.pop(0)
            axis.imshow(picture, extent=(0, W, H, 0))
            axis.imshow(of_heads[k - 1].view(down, across).numpy(), extent=(0, W, H, 0), cmap='inferno', alpha=0.75)
            axis.set_title(f'head {k}', fontsize='x-small')
    warn_if_unused(net)
    print(f'to see: where the class token looks in layer {l} of {len(net.model.layers)}, brightest where a head '
          'attends most; each map has its own scale')
    return figure, ('picture', 'layer', 'head', 'row', 'column', 'weight'), [
        (name, l, k, n // across + 1, n % across + 1, of_heads[k - 1, n].item())
        for (name, _), of_heads in zip(shown, maps) for k in heads for n in range(down * across)]


def warn_if_unused(net):
    """Say so if training does not use the class token of a network."""
    c = net.model.config
    if net.kind == 'trained' and (c.task == 'masked_image' or getattr(c, 'pool', 'cls') == 'mean'):
        print(f'{net.name} ' + ('reconstructs pictures' if c.task == 'masked_image' else 'classifies the mean of its '
                                                                                         'tokens')
              + ': training does not use its class token, so where that token looks may mean little')


def attention_in_text(c, net, l, heads):
    """Which tokens each token averages, with the text on both axes."""
    x, labels = tokens_of(c, net, 24, 64)
    maps = layers.weights(*layers.at_layer(net.model, l, x), layers.causal(net.model))[0].cpu()       # (K, N, N)
    side, N, wide = max(2.4, 0.14 * len(labels)), range(len(labels)), min(len(heads), 4)
    size = side * wide, (side + 0.3) * math.ceil(len(heads) / wide)
    figure = plots.pyplot().figure(figsize=size, layout='constrained')
    for axis, k in zip(small_multiples(figure, len(heads), wide), heads):
        axis.axis('on')
        axis.imshow(maps[k - 1].numpy(), vmin=0, cmap='viridis')
        axis.set_xticks(N, labels, rotation=90, fontsize=6, fontfamily='monospace', parse_math=False)
        axis.set_yticks(N, labels, fontsize=6, fontfamily='monospace', parse_math=False)
        axis.set_title(f'head {k}', fontsize='x-small')
    print(f'to see: in layer {l} of {len(net.model.layers)} each token (a row) becomes an average of the tokens that '
          'are bright in its row')
    return figure, ('layer', 'head', 'query', 'query_token', 'key', 'key_token', 'weight'), [
        (l, k, i + 1, labels[i], j + 1, labels[j], maps[k - 1, i, j].item()) for k in heads for i in N for j in N]


# ---- principal components -------------------------------------------------------------------------------------------

def draw_components(c, nets):
    """CRATE-MAE, Figure 7a: patches of pictures of one class, the foreground by its first
    component, then three as colours."""
    net = nets[0]
    only_pictures(net, 'pca')
    (down, across), l, part = patches(net), which_layer(c, net.model), which_part(c, [net], 'key')
    shown = pictures(c, net, 8, c.label)
    x = pixels(net, shown)
    heads = layers.coordinates(*layers.at_layer(net.model, l, x), part)[:, :, 1:]       # (J, K, N, p)
    heads = heads.transpose(1, 2).flatten(2).cpu()                                      # side by side: (J, N, K p)
    first, kept, three = layers.two_stage_pca(heads, (down, across), c.keep)
    low, high = three[kept].amin(0), three[kept].amax(0)
    rgb = torch.where(kept[..., None], (three - low) / (high - low).clamp_min(1e-12), 0.0)
    figure = plots.pyplot().figure(figsize=(1.3 * len(shown) + 0.4, 4), layout='constrained')
    axes = figure.subplots(3, len(shown), squeeze=False)
    for j, picture in enumerate(visible(x)):
        axes[0, j].imshow(picture)
        axes[1, j].imshow(first[j].view(down, across).numpy(), vmin=first.min(), vmax=first.max(), cmap='viridis')
        axes[2, j].imshow(rgb[j].view(down, across, 3).numpy())
    for axis in axes.flat:
        axis.set(xticks=[], yticks=[])
    for axis, label in zip(axes[:, 0], ('picture', 'first component', 'three, as colours')):
        axis.set_ylabel(label, fontsize='small')
    print(f'to see: {kept.float().mean():.0%} of the patches are kept as foreground by the first component in layer '
          f'{l}; if these are the objects, similar patches have similar colours')
    return figure, ('picture', 'row', 'column', 'first', 'kept', 'red', 'green', 'blue'), [
        (name, n // across + 1, n % across + 1, first[j, n].item(), int(kept[j, n]), *three[j, n].tolist())
        for j, (name, _) in enumerate(shown) for n in range(down * across)]


# ---- segmentation ---------------------------------------------------------------------------------------------------

def draw_segmentation(c, nets):
    """The attention of the class token against true masks, layer by layer."""
    for net in nets:  # before any work
        only_pictures(net, 'segment')
        patches(net), which_layer(c, net.model)
    images, chosen = choose(c, nets[0], c.num_samples or 1000)
    shown, first_with = list(named(images, chosen)), {view_of(net): net for net in nets}
    views = {view: true_masks(net, images, chosen) for view, net in first_with.items()}
    masks, (figure, axes), rows = views[view_of(nets[0])], side_by_side(2), []
    for net in nets:
        iou, on_mask, kept = scores_of_heads(net, shown, views[view_of(net)], c.share, c.batch_size)
        over_layers(axes[0], net, iou.amax(2), band=False)
        over_layers(axes[1], net, on_mask.mean(2), band=False)
        rows += [(net.name, net.kind, l, *row) for l, scores in enumerate(zip(iou, on_mask, kept), 1)
                 for row in rows_of_heads(*scores)]
        l = which_layer(c, net.model)
        x, y, k = iou[l - 1], on_mask[l - 1], kept[l - 1]
        warn_if_unused(net)
        print(f'{net.name}, layer {l} of {len(iou)}: intersection over union {x.amax(1).mean():.3f} with the best head '
              f'of each picture, {x.mean(0).max():.3f} with head {x.mean(0).argmax() + 1} in all, {x.mean():.3f} in '
              f'the mean of all heads, which keep {k.mean():.1%} of the patches; {y.mean():.1%} of the attention lies '
              'on the masks')
    guesses, area = scores_of_guesses(nets[0], masks), masks.float().mean().item()
    for name, values in guesses.items():
        level(axes[0], values.mean(), name)
        rows.append((name, 'none', '', '', *mean_and_spread(values), '', '', ''))
    level(axes[1], area, 'the share of the masks in the pictures')
    titles = f"patches with {c.share:.0%} of the best head's attention", 'attention on the mask, mean head'
    label_panels(figure, axes, titles, ['intersection over union', 'share'])
    said = ', '.join(f'{name} scores {values.mean():.3f}' for name, values in guesses.items())
    print('to see: no network was trained on masks; where training makes heads find the objects, solid lines are above '
          f'dashed ones. Of these {len(masks):,} pictures {said}, and {area:.1%} is mask')
    columns = 'network', 'weights', 'layer', 'head', 'iou', 'iou_spread', 'on_mask', 'on_mask_spread', 'kept'
    return figure, columns, rows


def true_masks(net, images, chosen):
    """The masks of pictures, as a network sees the pictures, bool (n, H, W): SPLIT.masks.npy of the
    dataset."""
    path = images.folder / f'{images.split}.masks.npy'
    if images.size is None or not path.exists():
        raise ValueError(f'no {path}: segment needs pictures of one size and their true masks, bool (pictures, height, '
                         'width); python prepare/shapes.py draws some')
    masks = open_array(path, np.dtype(bool), len(images), *images.size)
    grey = [pixels(net, [('', masks[i, ..., None] * np.uint8(255))]) for i in chosen]             # each (1, 1, H, W)
    return torch.cat([(augment.denormalize(x)[..., 0] > 127).cpu() for x in grey])


def scores_of_heads(net, shown, masks, share, rows):
    """For every layer, picture and head three tensors (L, n, K): the intersection over union of the
    mask with the patches that hold `share` of the class token's attention; the share of the
    attention on the mask; the share of patches kept."""
    found, size, grid = [], net.model.config.image_size, patches(net)
    for i in tqdm(range(0, len(shown), rows), net.name, disable=None, leave=False):
        batch, mask = [], masks[i:i + rows, None]                                       # (B, 1, H, W)
        for attention, normed, *_ in layers.inside(net.model, pixels(net, shown[i:i + rows])):
            maps = layers.class_maps(attention, normed).float().cpu()                   # (B, K, N)
            top = layers.top_mass(maps, share)                                          # (B, K, N)
            iou = layers.overlap(layers.enlarged(top, grid, size), mask)
            pixels_each = math.prod(size) / math.prod(grid)
            on_mask = (layers.enlarged(maps, grid, size) * mask).sum((-2, -1)) / pixels_each
            batch.append(torch.stack((iou, on_mask, top.float().mean(-1))))             # (3, B, K)
        found.append(torch.stack(batch, 1))                                             # (3, L, B, K)
    return torch.cat(found, 2)


def rows_of_heads(*scores):
    """Rows of the table for one layer: each head, the best head of each picture, the mean of all.
    scores: three of (n, K)."""
    best, K = scores[0].argmax(1, keepdim=True), scores[0].size(1)
    heads = {k + 1: [score[:, k] for score in scores] for k in range(K)}
    heads |= {'best': [score.gather(1, best) for score in scores], 'mean': [score.mean(1) for score in scores]}
    for head, (iou, on_mask, kept) in heads.items():
        yield head, *mean_and_spread(iou), *mean_and_spread(on_mask), kept.mean().item()


def scores_of_guesses(net, masks):
    """{name: intersection over union (n,)} of simple guesses with true masks (n, H, W), in the grid
    of a network."""
    (H, W), grid, middle = masks.shape[1:], patches(net), torch.zeros(masks.shape[1:], dtype=torch.bool)
    middle[H // 4:H - H // 4, W // 4:W - W // 4] = True
    cover = F.adaptive_avg_pool2d(masks.float(), grid).flatten(1)                       # share of each patch: (n, N)
    guesses = {'the patches that the mask covers most of': layers.enlarged(cover > 0.5, grid, (H, W)),
               'the middle, half as wide and high': middle.expand_as(masks),
               'the whole picture': torch.ones_like(masks)}
    return {name: layers.overlap(guess, masks) for name, guess in guesses.items()}
