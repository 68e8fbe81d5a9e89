"""The pictures that analyze.py draws of trained networks. Each function takes a LookConfig and networks, the one asked about
first; it prints what to see, and returns a figure with the columns and rows of its table."""
import math

import numpy as np
import torch
import torch.nn.functional as F
from tqdm import tqdm

from tasks import augment
from tasks import files as data
from engine import plots as figures
from analysis import layers as inside
from analysis import measures
from engine.checkpoints import grid, reads
from analysis.samples import (batches, choose, only_pictures, pictures, pixels, read, tokens_each, tokens_of, view_of, which_heads,
                      which_layer, which_part)

# ---- figures ----------------------------------------------------------------------------------------------------------


def side_by_side(panels):
    """A figure and its panels."""
    figure = figures.pyplot().figure(figsize=(5.4 * panels, 4), layout='constrained')
    return figure, figure.subplots(1, panels, squeeze=False)[0]


def small_multiples(figure, n, wide):
    """n panels without axes, `wide` in a row."""
    axes = list(figure.subplots(math.ceil(n / wide), wide, squeeze=False).flat)
    for axis in axes:
        axis.axis('off')
    return axes[:n]


def over_layers(axis, net, values, band=True):
    """A line of the mean of values (L, n) against layers, dashed for random weights, and around it their standard deviation."""
    x, mean, spread = range(1, len(values) + 1), values.mean(1), values.std(1, correction=0)
    axis.plot(x, mean, marker='.', color=net.colour, linestyle='-' if net.kind == 'trained' else '--', label=net.name)
    if band:
        axis.fill_between(x, mean - spread, mean + spread, alpha=0.15, linewidth=0, color=net.colour)


def say_what(figure, axes, titles, units):
    """Titles and units of panels over layers, and one legend below them."""
    for axis, title, unit in zip(axes, titles, units):
        axis.set_title(title, fontsize='medium')
        axis.set(xlabel='layer', ylabel=unit)
        axis.xaxis.get_major_locator().set_params(integer=True)
    figure.legend(*axes[0].get_legend_handles_labels(), loc='outside lower center', ncols=2, fontsize='small')


def level(axis, height, name=''):
    """A thin line to compare with."""
    axis.axhline(height, linewidth=0.8, color='grey', linestyle=':')
    axis.annotate(name, (0.99, height), xycoords=('axes fraction', 'data'), fontsize='x-small', ha='right', va='bottom')


def mean_and_spread(values):
    return values.mean().item(), values.std(correction=0).item()


# ---- layers, subspaces, tokens ------------------------------------------------------------------------------------------


def layers(c, nets):
    """CRATE, Figures 3, 4, 5 and 12: R^c and sparsity of every layer."""
    if c.show not in ('', 'rate', 'sparsity'):
        raise ValueError(f'show={c.show} is unknown; choose rate or sparsity, or leave it out for both')
    if c.measure not in inside.EPS:
        raise ValueError(f'measure={c.measure} is unknown; choose {" or ".join(inside.EPS)}')
    part, dense = which_part(c, nets, 'value'), [net for net in nets if inside.why_not_sparse(net.model)]
    if c.show == 'sparsity' and dense:
        raise ValueError(f'{dense[0].name} has no sparsity to show: {inside.why_not_sparse(dense[0].model)}; give --show=rate')
    eps, above = c.eps or inside.EPS[c.measure], f', |z| > {c.threshold:g}' * bool(c.threshold)
    what = 'coding rate R^c of Z^(l+1/2)' if c.measure == 'paper' else "the released code's R^c, of LN(Z^l)"
    titles = {'rate': f'{what}, eps = {eps:g}', 'sparsity': f'share of non-zeros in Z^(l+1){above}'}
    if c.show or len(dense) == len(nets):
        titles = {k: v for k, v in titles.items() if k == (c.show or 'rate')}
    (figure, axes), rows = side_by_side(len(titles)), []
    for net in nets:
        settings = c.measure, c.eps, part, c.threshold
        rates, shares = inside.of_all(batches(c, net, 256), inside.layer_measures, net.model, *settings)
        if not rates.isfinite().all():
            raise ValueError(f'{net.name}: the coding rate with eps={eps:g} is not finite; give a larger --eps')
        measured = {'rate': rates, 'sparsity': shares}
        for k, axis in zip(titles, axes):
            if k == 'rate' or net not in dense:
                over_layers(axis, net, measured[k])
                rows += [(net.name, net.kind, k, l, *mean_and_spread(v)) for l, v in enumerate(measured[k], 1)]
        said = {'rate': from_to('R^c', '.1f', rates.mean(1)), 'sparsity': from_to('non-zeros', '.1%', shares.mean(1))}
        print(f'{net.name}: ' + '; '.join(said[k] for k in titles if k == 'rate' or net not in dense))
    warn_if_they_differ(nets)
    say_what(figure, axes, titles.values(), [{'rate': 'nats', 'sparsity': 'share'}[k] for k in titles])
    print('to see: from layer to layer of a trained CRATE both should fall, R^c and non-zeros; bands are one standard '
          'deviation over samples, dashed lines random weights')
    return figure, ('network', 'weights', 'measure', 'layer', 'mean', 'spread'), rows


def from_to(name, unit, values):
    """Where values (L,) start and end, and how often they fall."""
    if len(values) == 1:
        return f'{name} {values[0]:{unit}} in the only layer'
    return f'{name} {values[0]:{unit}} in layer 1, {values[-1]:{unit}} in layer {len(values)}, falling at ' \
           f'{(values.diff() < 0).sum()} of {len(values) - 1} steps'


def warn_if_they_differ(nets):
    """Say so if networks see samples of different length, with which R^c grows."""
    lengths = {net.name: tokens_each(net) for net in nets}
    if len(set(lengths.values())) > 1:
        print('their R^c do not compare: a sample has ' + ', '.join(f'{n} tokens in {name}' for name, n in lengths.items()))


def warn_if_untrained(net):
    """Say so if nothing trains the class token of a network to look at the picture."""
    c = net.model.config
    if net.kind == 'trained' and (hasattr(c, 'mask_ratio') or c.pool == 'mean'):
        print(f'{net.name} ' + ('reconstructs pictures' if hasattr(c, 'mask_ratio') else 'classifies a mean of tokens')
              + ': its class token is not asked what it sees, so where it looks may mean little')


def subspaces(c, nets):
    """CRATE, Figure 7: |U^T U| of every layer, columns made one long, and its mean between subspaces over that inside them."""
    net, L, K = nets[0], len(nets[0].model.layers), nets[0].model.config.n_head
    if K < 2:
        raise ValueError(f'{net.name} has one head: there are no two subspaces to compare')
    part = which_part(c, nets, 'value')
    trained, random = ([measures.coherence(inside.bases(a, part).float().cpu())
                        for a in inside.attentions(n.model)] for n in nets)
    p, rng, rows, wide = len(trained[0][0]) // K, np.random.default_rng(c.seed), [], min(L, 6)
    m, down = min(c.directions, p), math.ceil(L / wide)
    figure = figures.pyplot().figure(figsize=(1.8 * wide + 1, 2 * down + 2.6), layout='constrained')
    upper, lower = figure.subfigures(2, 1, height_ratios=(2 * down, 2.6))
    axes = small_multiples(upper, L, wide)
    for l, (axis, (G, number)) in enumerate(zip(axes, trained), 1):
        columns = np.concatenate([k * p + np.sort(rng.permutation(p)[:m]) for k in range(K)])
        drawn = G[columns][:, columns]
        image = axis.imshow(drawn.numpy(), vmin=0, vmax=1, cmap='magma')
        axis.set_title(f'layer {l}', fontsize='small')
        places = [(column // p + 1, column % p + 1) for column in columns]                    # head, and column in it
        rows += [(l, number, random[l - 1][1], *places[i], *places[j], drawn[i, j].item())
                 for i in range(K * m) for j in range(K * m)]
    upper.colorbar(image, ax=axes, shrink=0.8)
    axis = lower.subplots()
    for n, found in zip(nets, (trained, random)):
        over_layers(axis, n, torch.tensor([[number] for _, number in found]), band=False)
    say_what(lower, [axis], ['coherence: mean |U^T U| between subspaces over mean inside them'], [''])
    print(f'to see: blocks on the diagonal are subspaces with themselves, the others dark where subspaces are apart; coherence '
          f'is {trained[0][1]:.3f} in layer 1 and {trained[-1][1]:.3f} in layer {L}, with random weights {random[0][1]:.3f} '
          f'and {random[-1][1]:.3f}')
    return figure, ('layer', 'coherence', 'coherence_random', 'head_i', 'column_i', 'head_j', 'column_j', 'value'), rows


def tokens(c, nets):
    """CRATE, Figure 6: the tokens of one sample after every layer, a random part of them."""
    net, name = nets[0], 'a text'
    if reads(net.model.config) == 'images':
        shown = pictures(c, net, 1)[:1]
        x, name = pixels(net, shown), shown[0][0]
    else:
        x, _ = tokens_of(c, net, net.model.config.block_size, net.model.config.block_size)
    after = [z[0].float().cpu() for *_, z in inside.inside(net.model, x)]                             # L of (N, d)
    rng, L = np.random.default_rng(c.seed), len(after)
    some, channels = (np.sort(rng.permutation(n)[:c.size]) for n in after[0].shape)
    parts, share = [z[some][:, channels] for z in after], [measures.nonzeros(z).item() for z in after]
    largest, wide = max(part.abs().max().item() for part in parts), min(L, 6)
    figure = figures.pyplot().figure(figsize=(1.8 * wide + 1, 2.1 * math.ceil(L / wide)), layout='constrained')
    axes = small_multiples(figure, L, wide)
    for l, (axis, part) in enumerate(zip(axes, parts), 1):
        image = axis.imshow(part.numpy(), vmin=-largest, vmax=largest, cmap='RdBu_r', interpolation='nearest')
        axis.set_title(f'layer {l}: {share[l - 1]:.0%} not 0', fontsize='small')
    figure.colorbar(image, ax=axes, shrink=0.8)
    print(f'to see: {name}, tokens as rows, white where they are zero; of all their numbers {share[0]:.1%} are not zero after '
          f'layer 1, {share[-1]:.1%} after layer {L}')
    return figure, ('layer', 'token', 'channel', 'value'), [
        (l, some[i] + 1, channels[j] + 1, part[i, j].item())
        for l, part in enumerate(parts, 1) for i in range(len(some)) for j in range(len(channels))]


# ---- attention, principal components, segmentation -----------------------------------------------------------------------


def at_layer(model, l, x):
    """Attention of layer l, and what it is given, for inputs x."""
    return next((a, normed) for i, (a, normed, *_) in enumerate(inside.inside(model, x), 1) if i == l)


def attention(c, nets):
    """Where each head looks: of pictures the class token, of a text every token."""
    net, l, heads = nets[0], which_layer(c, nets[0].model), which_heads(c, nets[0].model)
    return (attention_in_pictures if reads(net.model.config) == 'images' else attention_in_text)(c, net, l, heads)


def attention_in_pictures(c, net, l, heads):
    """CRATE-MAE, Figure 7b, and AoT, Figure 7: the class token's attention, drawn over pictures."""
    shown, (H, W) = pictures(c, net, 4), net.model.config.image_size
    x, (down, across) = pixels(net, shown), grid(net.model.config)
    maps = inside.class_maps(*at_layer(net.model, l, x)).cpu()                                # (B, K, N)
    figure = figures.pyplot().figure(figsize=(1.3 * (len(heads) + 1), 1.3 * len(shown) + 0.3), layout='constrained')
    axes = small_multiples(figure, len(shown) * (len(heads) + 1), len(heads) + 1)
    for picture, of_heads in zip(augment.denormalize(x).cpu().numpy(), maps):
        axes.pop(0).imshow(picture)
        for k in heads:
            axis = axes.pop(0)
            axis.imshow(picture, extent=(0, W, H, 0))
            axis.imshow(of_heads[k - 1].view(down, across).numpy(), extent=(0, W, H, 0), cmap='inferno', alpha=0.75)
            axis.set_title(f'head {k}', fontsize='x-small')
    warn_if_untrained(net)
    print(f'to see: where the class token looks in layer {l} of {len(net.model.layers)}, brightest where a head attends most, '
          'each map by its own scale')
    return figure, ('picture', 'layer', 'head', 'row', 'column', 'weight'), [
        (name, l, k, n // across + 1, n % across + 1, of_heads[k - 1, n].item())
        for (name, _), of_heads in zip(shown, maps) for k in heads for n in range(down * across)]


def attention_in_text(c, net, l, heads):
    """Which tokens each token averages, the text on both axes."""
    x, labels = tokens_of(c, net, 24, 64)
    maps, wide = inside.weights(*at_layer(net.model, l, x))[0].cpu(), min(len(heads), 4)      # (K, N, N)
    side, N = max(2.4, 0.14 * len(labels)), range(len(labels))
    figure = figures.pyplot().figure(figsize=(side * wide, (side + 0.3) * math.ceil(len(heads) / wide)), layout='constrained')
    for axis, k in zip(small_multiples(figure, len(heads), wide), heads):
        axis.axis('on')
        axis.imshow(maps[k - 1].numpy(), vmin=0, cmap='viridis')
        axis.set_xticks(N, labels, rotation=90, fontsize=6, fontfamily='monospace', parse_math=False)
        axis.set_yticks(N, labels, fontsize=6, fontfamily='monospace', parse_math=False)
        axis.set_title(f'head {k}', fontsize='x-small')
    print(f'to see: in layer {l} of {len(net.model.layers)} a token, its row, is replaced by an average of the tokens that are '
          'bright in that row')
    return figure, ('layer', 'head', 'query', 'query_token', 'key', 'key_token', 'weight'), [
        (l, k, i + 1, labels[i], j + 1, labels[j], maps[k - 1, i, j].item()) for k in heads for i in N for j in N]


def pca(c, nets):
    """CRATE-MAE, Figure 7a: patches of pictures of one class, the foreground by its first component, then three as colours."""
    net = nets[0]
    only_pictures(net, 'pca')
    shown, l = pictures(c, net, 8, c.label), which_layer(c, net.model)
    x, (down, across) = pixels(net, shown), grid(net.model.config)
    part = which_part(c, [net], 'key')
    heads = inside.coordinates(*at_layer(net.model, l, x), part)[:, :, 1:]                    # (J, K, N, p)
    heads = heads.transpose(1, 2).flatten(2).cpu()                                            # side by side: (J, N, K p)
    first, kept, three = inside.two_stage_pca(heads, (down, across), c.keep)
    low, high = three[kept].amin(0), three[kept].amax(0)
    rgb = torch.where(kept[..., None], (three - low) / (high - low).clamp_min(1e-12), 0.0)
    figure = figures.pyplot().figure(figsize=(1.3 * len(shown) + 0.4, 4), layout='constrained')
    axes = figure.subplots(3, len(shown), squeeze=False)
    for j, picture in enumerate(augment.denormalize(x).cpu().numpy()):
        axes[0, j].imshow(picture)
        axes[1, j].imshow(first[j].view(down, across).numpy(), vmin=first.min(), vmax=first.max(), cmap='viridis')
        axes[2, j].imshow(rgb[j].view(down, across, 3).numpy())
    for axis in axes.flat:
        axis.set(xticks=[], yticks=[])
    for axis, label in zip(axes[:, 0], ('picture', 'first component', 'three, as colours')):
        axis.set_ylabel(label, fontsize='small')
    print(f'to see: {kept.float().mean():.0%} of the patches are kept as foreground by the first component in layer {l}; if '
          'that found the objects, patches that are alike have like colours')
    return figure, ('picture', 'row', 'column', 'first', 'kept', 'red', 'green', 'blue'), [
        (name, n // across + 1, n % across + 1, first[j, n].item(), int(kept[j, n]), *three[j, n].tolist())
        for j, (name, _) in enumerate(shown) for n in range(down * across)]


def true_masks(net, images, chosen):
    """The masks of pictures, as a network sees these, bool (n, H, W): SPLIT.masks.npy of the dataset."""
    path = images.folder / f'{images.split}.masks.npy'
    if images.size is None or not path.exists():
        raise ValueError(f'no {path}: segment needs pictures of one size and their true masks, bool (pictures, height, width); '
                         'python prepare/shapes.py draws some')
    masks = data.open_array(path, np.dtype(bool), len(images), *images.size)
    grey = (('', np.repeat(masks[i][..., None] * np.uint8(255), 3, 2)) for i in chosen)
    return torch.cat([(augment.denormalize(pixels(net, [one]))[..., 0] > 127).cpu() for one in grey])


def scores_of_heads(net, shown, masks, share, rows):
    """For every layer, picture and head: the intersection over union of the patches that hold `share` of the class token's
    attention with the mask, how much of the attention lies on the mask, and how many of the patches these are, a share. Three
    tensors (L, n, K)."""
    found, mc = [], net.model.config
    for i in tqdm(range(0, len(shown), rows), net.name, disable=None, leave=False):
        batch, mask = [], masks[i:i + rows, None]                                             # (B, 1, H, W)
        for attention, normed, *_ in net.model.inside(pixels(net, shown[i:i + rows])):
            maps = inside.class_maps(attention, normed).float().cpu()                         # (B, K, N)
            top = inside.top_mass(maps, share)                                                # (B, K, N)
            iou = inside.overlap(inside.enlarged(top, grid(mc), mc.image_size), mask)
            on_mask = (inside.enlarged(maps, grid(mc), mc.image_size) * mask).sum((-2, -1)) / math.prod(mc.patch_size)
            batch.append(torch.stack((iou, on_mask, top.float().mean(-1))))                   # (3, B, K)
        found.append(torch.stack(batch, 1))                                                   # (3, L, B, K)
    return torch.cat(found, 2)


def yardsticks(net, masks):
    """What simple masks score against true ones (n, H, W), in the grid of a network: {name: intersection over union (n,)}."""
    (H, W), patches, middle = masks.shape[1:], grid(net.model.config), torch.zeros(masks.shape[1:], dtype=torch.bool)
    middle[H // 4:H - H // 4, W // 4:W - W // 4] = True
    cover = F.adaptive_avg_pool2d(masks.float(), patches).flatten(1)                          # share of each patch: (n, N)
    simple = {'the patches that the mask covers most of': inside.enlarged(cover > 0.5, patches, (H, W)),
              'the middle, half as wide and high': middle.expand_as(masks), 'the whole picture': torch.ones_like(masks)}
    return {name: inside.overlap(mask, masks) for name, mask in simple.items()}


def segment(c, nets):
    """The attention of the class token against true masks, layer by layer."""
    for net in nets:  # refused now, if at all
        only_pictures(net, 'segment')
        which_layer(c, net.model)
    images, chosen = choose(c, nets[0], c.num_samples or 1000)
    shown, seers = read(images, chosen), {view_of(net): net for net in nets}  # most see a picture alike, and so its mask
    views = {view: true_masks(net, images, chosen) for view, net in seers.items()}
    masks = views[view_of(nets[0])]
    (figure, axes), rows, others, area = side_by_side(2), [], yardsticks(nets[0], masks), masks.float().mean().item()
    for net in nets:
        iou, on_mask, kept = scores_of_heads(net, shown, views[view_of(net)], c.share, c.batch_size)
        over_layers(axes[0], net, iou.amax(2), band=False)
        over_layers(axes[1], net, on_mask.mean(2), band=False)
        for l, (x, y, k) in enumerate(zip(iou, on_mask, kept), 1):                            # (n, K) of a layer
            best = x.argmax(1, keepdim=True)
            heads = (*zip(range(1, x.size(1) + 1), x.T, y.T, k.T), ('best', *(t.gather(1, best)[:, 0] for t in (x, y, k))),
                     ('mean', *(t.mean(1) for t in (x, y, k))))
            rows += [(net.name, net.kind, l, head, *mean_and_spread(a), *mean_and_spread(b), share.mean().item())
                     for head, a, b, share in heads]
        l = which_layer(c, net.model)
        x, y = iou[l - 1], on_mask[l - 1]
        warn_if_untrained(net)
        print(f'{net.name}, layer {l} of {len(iou)}: intersection over union {x.amax(1).mean():.3f} with the best head of each '
              f'picture, {x.mean(0).max():.3f} with head {x.mean(0).argmax() + 1} in all, {x.mean():.3f} in the mean of all '
              f'heads, which keep {kept[l - 1].mean():.1%} of the patches; {y.mean():.1%} of the attention lies on the masks')
    for name, values in others.items():
        level(axes[0], values.mean(), name)
        rows.append((name, 'none', '', '', *mean_and_spread(values), '', '', ''))
    level(axes[1], area, 'the share of the masks in the pictures')
    say_what(figure, axes, [f'patches with {c.share:.0%} of the best head\'s attention', 'attention on the mask, mean head'],
             ['intersection over union', 'share'])
    print(f'to see: nobody told a network what a mask is; where training makes heads find it, solid lines are above dashed '
          f'ones. Of these {len(masks):,} pictures ' + ', '.join(f'{name} scores {v.mean():.3f}' for name, v in others.items())
          + f', and {area:.1%} is mask')
    return figure, ('network', 'weights', 'layer', 'head', 'iou', 'iou_spread', 'on_mask', 'on_mask_spread', 'kept'), rows
