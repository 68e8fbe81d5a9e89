"""The pictures that analyze.py draws of trained networks. Each function takes a LookConfig and networks, the one asked about
first; it prints what to see, and returns a figure with the columns and rows of its table."""
import math

import numpy as np
import torch
import torch.nn.functional as F

import augment
import figures
import inside
import measures
from models import grid, reads
from subjects import only_pictures, pictures, pixels, samples, tokens_of, which_heads, which_layer

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
    axis.plot(x, mean, marker='.', color=net.colour, linestyle='-' if net.trained else '--', label=net.name)
    if band:
        axis.fill_between(x, mean - spread, mean + spread, alpha=0.15, linewidth=0, color=net.colour)


def say_what(figure, axes, titles, units):
    """Titles and units of panels over layers, and one legend below them."""
    for axis, title, unit in zip(axes, titles, units):
        axis.set_title(title, fontsize='medium')
        axis.set(xlabel='layer', ylabel=unit)
        axis.xaxis.get_major_locator().set_params(integer=True)
    figure.legend(*axes[0].get_legend_handles_labels(), loc='outside lower center', ncols=2, fontsize='small')


def level(axis, height, name):
    """A thin line to compare with."""
    axis.axhline(height, linewidth=0.8, color='grey', linestyle=':')
    axis.annotate(name, (0.99, height), xycoords=('axes fraction', 'data'), fontsize='x-small', ha='right', va='bottom')


def mean_and_spread(values):
    return values.mean().item(), values.std(correction=0).item()


# ---- layers, subspaces, tokens ------------------------------------------------------------------------------------------


def layers(c, nets):
    """CRATE, Figures 3, 4, 5 and 12: R^c and sparsity of every layer."""
    why = {net.name: inside.why_not_sparse(net.model) for net in nets}
    if c.show not in ('', 'rate', 'sparsity'):
        raise ValueError(f'show={c.show} is unknown; choose rate or sparsity, or leave it out for both')
    if c.measure not in inside.EPS:
        raise ValueError(f'measure={c.measure} is unknown; choose {" or ".join(inside.EPS)}')
    if c.show == 'sparsity' and any(why.values()):
        name, reason = next((k, v) for k, v in why.items() if v)
        raise ValueError(f'{name} has no sparsity to show: {reason}; give --show=rate')
    shown = [panel for panel in ('rate', 'sparsity') if c.show in ('', panel)]
    if all(why.values()):
        shown = ['rate']
    (figure, axes), rows = side_by_side(len(shown)), []
    for net in nets:
        found = [inside.layer_measures(net.model, batch, c.measure, c.eps, c.part or 'value', c.threshold)
                 for batch in samples(c, net, c.num_samples)]
        measured, said = dict(zip(('rate', 'sparsity'), (torch.cat(part, 1).cpu() for part in zip(*found)))), []
        for panel, axis in zip(shown, axes):
            if panel == 'sparsity' and why[net.name]:
                continue
            values, name, unit = measured[panel], *(('R^c', '{:.1f}') if panel == 'rate' else ('non-zeros', '{:.1%}'))
            over_layers(axis, net, values)
            rows += [(net.name, net.weights, panel, l, *mean_and_spread(v)) for l, v in enumerate(values, 1)]
            mean = values.mean(1)
            said.append(f'{name} {unit.format(mean[0])} in layer 1, {unit.format(mean[-1])} in layer {len(mean)}, falling '
                        f'at {(mean.diff() < 0).sum()} of {len(mean) - 1} steps')
        print(f'{net.name}: ' + '; '.join(said))
    what = {'rate': ('coding rate R^c of Z^(l+1/2)' if c.measure == 'paper' else "the released code's R^c, of LN(Z^l)")
            + f', eps = {c.eps or inside.EPS[c.measure]:g}',
            'sparsity': 'share of non-zeros in Z^(l+1)' + f', |z| > {c.threshold:g}' * bool(c.threshold)}
    say_what(figure, axes, [what[panel] for panel in shown], [{'rate': 'nats', 'sparsity': 'share'}[panel] for panel in shown])
    print('to see: in a trained CRATE both should fall from layer to layer; bands are one standard deviation over samples, '
          'dashed lines random weights')
    return figure, ('network', 'weights', 'measure', 'layer', 'mean', 'spread'), rows


def subspaces(c, nets):
    """CRATE, Figure 7: |U^T U| of every layer, columns made one long, and its mean between subspaces over that inside them."""
    net, L, K = nets[0], len(nets[0].model.layers), nets[0].model.config.n_head
    if K < 2:
        raise ValueError(f'{net.name} has one head: there are no two subspaces to compare')
    trained, random = ([measures.coherence(inside.bases(a, c.part or 'value').float().cpu())
                        for a in inside.attentions(n.model)] for n in nets)
    p, rng, rows, wide = len(trained[0][0]) // K, np.random.default_rng(c.seed), [], min(L, 6)
    m, down = min(c.directions, p), math.ceil(L / wide)
    figure = figures.pyplot().figure(figsize=(1.8 * wide + 1, 2 * down + 2.6), layout='constrained')
    upper, lower = figure.subfigures(2, 1, height_ratios=(2 * down, 2.6))
    axes = small_multiples(upper, L, wide)
    for l, (axis, (G, number)) in enumerate(zip(axes, trained), 1):
        columns = np.concatenate([k * p + np.sort(rng.permutation(p)[:m]) for k in range(K)])
        part = G[columns][:, columns]
        image = axis.imshow(part.numpy(), vmin=0, vmax=1, cmap='magma')
        axis.set_title(f'layer {l}', fontsize='small')
        places = [(column // p + 1, column % p + 1) for column in columns]                    # head, and column in it
        rows += [(l, number, random[l - 1][1], *places[i], *places[j], part[i, j].item())
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
        shown = pictures(c, net, 1)[0][:1]
        x, name = pixels(net, shown), shown[0][0]
    else:
        x, _ = tokens_of(c, net, net.model.config.block_size)
    after = [z[0].float().cpu() for *_, z in net.model.inside(x)]                             # L of (N, d)
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
    return next((a, normed) for i, (a, normed, *_) in enumerate(model.inside(x), 1) if i == l)


def attention(c, nets):
    """Where each head looks: of pictures the class token, of a text every token."""
    net, l, heads = nets[0], which_layer(c, nets[0].model), which_heads(c, nets[0].model)
    return (attention_in_pictures if reads(net.model.config) == 'images' else attention_in_text)(c, net, l, heads)


def attention_in_pictures(c, net, l, heads):
    """CRATE-MAE, Figure 7b, and AoT, Figure 7: the class token's attention, drawn over pictures."""
    if c.start:
        raise ValueError(f'{net.name} looks at pictures: give --image instead of --start')
    shown, (H, W) = pictures(c, net, c.num_samples or 4)[0], net.model.config.image_size
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
    print(f'to see: where the class token looks in layer {l} of {len(net.model.layers)}, brightest where a head attends most, '
          'each map by its own scale')
    return figure, ('picture', 'layer', 'head', 'row', 'column', 'weight'), [
        (name, l, k, n // across + 1, n % across + 1, of_heads[k - 1, n].item())
        for (name, _), of_heads in zip(shown, maps) for k in heads for n in range(down * across)]


def attention_in_text(c, net, l, heads):
    """Which tokens each token averages, the text on both axes."""
    if c.image or c.num_samples > 1:
        raise ValueError(f'{net.name} reads one text at a time: give --start=TEXT, and leave --image and --num_samples out')
    x, labels = tokens_of(c, net, 24)
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
    if c.image and c.label:
        raise ValueError('--label says which pictures of a dataset; leave it out beside --image, where all are one class')
    shown, l = pictures(c, net, c.num_samples, None if c.image else c.label)[0], which_layer(c, net.model)
    x, (down, across) = pixels(net, shown), grid(net.model.config)
    heads = inside.coordinates(*at_layer(net.model, l, x), c.part or 'key')[:, :, 1:]         # (J, K, N, p)
    first, kept, three = (t.cpu() for t in inside.two_stage_pca(heads.transpose(1, 2).flatten(2), (down, across), c.keep))
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
    if not path.exists():
        raise ValueError(f'no {path}: segment needs true masks, bool (pictures, height, width); python prepare/shapes.py '
                         'draws some')
    masks = np.load(path, mmap_mode='r')
    if masks.ndim != 3 or len(masks) != len(images):
        raise ValueError(f'{path} has shape {masks.shape}, for {len(images)} pictures; it must be (pictures, height, width)')
    grey = [('', np.repeat(masks[i][..., None] * np.uint8(255), 3, 2)) for i in chosen]
    return (augment.denormalize(pixels(net, grey))[..., 0] > 127).cpu()


def scores_of_heads(net, shown, masks, share, rows):
    """For every layer, picture and head: the intersection over union of the patches that hold `share` of the class token's
    attention with the mask, and how much of the attention lies on the mask. Two tensors (L, n, K)."""
    found, mc = [], net.model.config
    for i in range(0, len(shown), rows):
        batch, mask = [], masks[i:i + rows, None]                                                        # (B, 1, H, W)
        for a, normed, *_ in net.model.inside(pixels(net, shown[i:i + rows])):
            maps = inside.class_maps(a, normed).float().cpu()                                            # (B, K, N)
            iou = inside.overlap(inside.enlarged(inside.top_mass(maps, share), grid(mc), mc.image_size), mask)
            lies = (inside.enlarged(maps, grid(mc), mc.image_size) * mask).sum((-2, -1)) / math.prod(mc.patch_size)
            batch.append(torch.stack((iou, lies)))                                                       # (2, B, K)
        found.append(torch.stack(batch, 1))                                                              # (2, L, B, K)
    return torch.cat(found, 2)


def segment(c, nets):
    """The attention of the class token against true masks, layer by layer."""
    only_pictures(nets[0], 'segment')
    shown, images, chosen = pictures(c, nets[0], c.num_samples)
    (figure, axes), rows = side_by_side(2), []
    for net in nets:
        masks = true_masks(net, images, chosen)
        iou, lies = scores_of_heads(net, shown, masks, c.share, c.batch_size)
        over_layers(axes[0], net, iou.amax(2), band=False)
        over_layers(axes[1], net, lies.mean(2), band=False)
        for l, (i, o) in enumerate(zip(iou, lies), 1):
            heads = (*zip(range(1, i.size(1) + 1), i.T, o.T), ('best', i.amax(1), o.amax(1)), ('mean', i.mean(1), o.mean(1)))
            rows += [(net.name, net.weights, l, head, *mean_and_spread(a), *mean_and_spread(b)) for head, a, b in heads]
        l = which_layer(c, net.model)
        i, o = iou[l - 1], lies[l - 1]
        print(f'{net.name}, layer {l} of {len(iou)}: intersection over union {i.amax(1).mean():.3f} with the best head of each '
              f'picture, {i.mean(0).max():.3f} with head {i.mean(0).argmax() + 1} in all, {i.mean():.3f} in the mean of all '
              f'heads; {o.mean():.1%} of the attention lies on the masks')
    size, patches = masks.shape[1:], grid(nets[0].model.config)
    cover = F.adaptive_avg_pool2d(masks.float(), patches).flatten(1)
    middle = torch.zeros(size, dtype=torch.bool)
    middle[size[0] // 4:size[0] - size[0] // 4, size[1] // 4:size[1] - size[1] // 4] = True
    others = {'the patches that the mask covers most of': inside.enlarged(cover > 0.5, patches, size),
              'the middle, half as wide and high': middle.expand_as(masks), 'the whole picture': torch.ones_like(masks)}
    others = {name: inside.overlap(mask, masks) for name, mask in others.items()}
    for name, values in others.items():
        rows.append((name, '', '', '', *mean_and_spread(values), '', ''))
        level(axes[0], values.mean(), name)
    level(axes[1], masks.float().mean(), 'the share of the masks in the pictures')
    say_what(figure, axes, [f'patches with {c.share:.0%} of the best head\'s attention', 'attention on the mask, mean head'],
             ['intersection over union', 'share'])
    print(f'to see: nobody told the network what a mask is, so a trained head should find it better than a random one; of '
          f'these {len(masks):,} pictures ' + ', '.join(f'{name} scores {v.mean():.3f}' for name, v in others.items())
          + f', and {masks.float().mean():.1%} is mask')
    return figure, ('network', 'weights', 'layer', 'head', 'iou', 'iou_spread', 'on_mask', 'on_mask_spread'), rows
