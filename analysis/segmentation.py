"""Do networks find the objects in pictures, although nobody showed them masks? `segment`, the attention of the class
token and MaskCut against true masks, layer by layer, and `objects`, the same in pictures."""
import itertools
import math

import numpy as np
import torch

from analysis import layers
from analysis.maskcut import maskcut
from analysis.objects import average_precision, connected, scores, truth, two_means
from analysis.panels import mean_and_spread, over_layers, picture_grid, say_rows, say_table
from analysis.samples import batches, choose, pixels, view_of, which_layer
from engine.curve import COLOURS
from engine.settings import Mistake
from tasks import augment
from tasks.masks import UNKNOWN
from tasks.pictures import named

CUTS = 'key', 'query', 'value', 'token', 'none'


# ---- what is found --------------------------------------------------------------------------------------------------

def masks_in(c, step, grid):
    """Of the pictures in a layer: the class token's attention over patches (n, K, N); and masks, {'head': the patches
    that hold most of it, bool (n, K, N), 'cut': MaskCut's, bool (n, masks, N), unless it is left out}."""
    maps = layers.class_maps(step.attention, step.normed).float().cpu()
    found = {'head': layers.top_mass(maps, c.share)}
    if c.cut != 'none':
        z = step.after if c.cut == 'token' else layers.coordinates(step.attention, step.normed, c.cut)
        cuts = [maskcut(of_one.mT, grid, c.tau, c.masks) for of_one in z[:, 1:].float().cpu()]
        found['cut'] = torch.stack(cuts).flatten(2)
    return maps, found


def joined(parts, dim):
    """What batches found, {(name, column): numbers} each -> {name: {column: numbers of all}}."""
    found = {}
    for name, column in parts[0]:
        found.setdefault(name, {})[column] = torch.cat([part[name, column] for part in parts], dim)
    return found


def scores_in(c, net, true):
    """What `scores` finds of the masks in every layer, {'head' or 'cut': {column: numbers (L, n, P, ..)}}. Maps and
    masks are kept for one batch alone."""
    gathered = []
    for i, inputs in enumerate(batches(c, net, 1000)):
        inside, known = true.cells(slice(i * c.batch_size, (i + 1) * c.batch_size), net.patches)

        def measure(step):
            maps, masks = masks_in(c, step, net.patches)
            on = (maps @ inside.sum(1)[..., None] / (maps @ known[..., None]).clamp_min(1e-9))[..., 0]      # (n, K)
            return {(name, column): values for name, found in masks.items()
                    for column, values in scores(found, inside, known).items()} | {('head', 'on_mask'): on}
        gathered.append(layers.of_all(net.model, [inputs], measure))
    return joined(gathered, 1)


def guesses_of(net, shown, true, rows):
    """What `scores` finds of guesses that need no network, of a mask of all objects together and of masks of each:
    {(name, 'all' or 'each'): {column: numbers (n, P, ..)}}."""
    (H, W), grid, gathered = net.model.config.image_size, net.patches, []
    middle = torch.zeros(1, H, W, dtype=torch.bool)
    middle[:, H // 4:H - H // 4, W // 4:W - W // 4] = True
    middle, whole = middle.flatten(1), torch.ones(1, H * W, dtype=torch.bool)
    for i in range(0, len(shown), rows):
        part = slice(i, i + rows)
        cells, dots = true.cells(part, grid), true.cells(part, (H, W))
        cover = cells[0] * math.prod(grid) / (H * W)                    # of each patch by each object (B, M, N)
        colours = two_means(augment.denormalize(pixels(net, shown[part])).cpu())
        parts = connected(colours, 3).flatten(2)
        found = {'the patches that objects cover most of': (cover.sum(1, keepdim=True) > 0.5, cover > 0.5, cells),
                 'two groups of pixels by colour': (colours.flatten(1)[:, None], parts, dots),
                 'the middle, half as wide and high': (middle, middle, dots),
                 'the whole picture': (whole, whole, dots)}
        gathered.append({((name, kind), column): values for name, (*both, pixels_of) in found.items()
                         for kind, masks in zip(('all', 'each'), both)
                         for column, values in scores(masks, *pixels_of).items()})
    return joined(gathered, 0)


# ---- the table ------------------------------------------------------------------------------------------------------

def of_objects(found, real, one_by_one):
    """How well masks, of which `scores` found this, find each object of those that there are, bool (n, M). one_by_one:
    the first mask of a picture is more certain than the second; else all are equally certain."""
    covers = found['covers']
    certainty = -torch.arange(covers.size(1)) * one_by_one
    held = found['each'], covers > 0, certainty.expand_as(covers), real
    return {'object': found['each'].amax(1)[real].mean().item(), 'ap50': average_precision(*held, thresholds=(0.5,)),
            'ap': average_precision(*held)}


def rows_of(name, found, real):
    """Rows of the table, of P masks called `name`, found {column: (n, P), 'each': (n, P, M)}: each mask, the best of
    each picture or object, and for heads the mean of all."""
    values = {k: t for k, t in found.items() if k != 'each'}
    best = values['iou'].argmax(1, keepdim=True)
    shown = {f'{name} {i + 1}': {k: t[:, i] for k, t in values.items()} for i in range(values['iou'].size(1))}
    shown[f'best {name}'] = {k: t.gather(1, best)[:, 0] for k, t in values.items()}
    if name == 'head':
        shown['mean head'] = {k: t.mean(1) for k, t in values.items()}
    rows = {masks: {'masks': masks, **mean_and_spread(of_masks)} for masks, of_masks in shown.items()}
    rows[f'best {name}'] |= of_objects(found, real, one_by_one=name == 'cut')
    return rows.values()


def draw_segmentation(c, nets):
    """Attention and MaskCut against true masks, layer by layer."""
    images, chosen = choose(c, nets[0], c.num_samples or 1000)
    views = {view: truth(net, images, chosen) for view, net in {view_of(net): net for net in nets}.items()}
    true, rows = views[view_of(nets[0])], []
    for net in nets:
        mine = views[view_of(net)]
        found = scores_in(c, net, mine)
        for l, (name, values) in itertools.product(range(len(net.model.layers)), found.items()):
            rows += [{'network': net.name, 'weights': net.kind, 'layer': l + 1, **row}
                     for row in rows_of(name, {column: t[l] for column, t in values.items()}, mine.real)]
    found, guesses = guesses_of(nets[0], list(named(images, chosen)), true, c.batch_size), []
    for name in dict.fromkeys(name for name, _ in found):
        together = {column: found[name, 'all'][column] for column in ('iou', 'covers')}
        guesses.append({'network': name, 'weights': 'none', **of_objects(found[name, 'each'], true.real, True),
                        **mean_and_spread(together)})
    say_scores(c, rows, guesses, nets)
    area = (((true.numbers > 0) & (true.numbers < UNKNOWN)).sum() / (true.numbers != UNKNOWN).sum()).item()
    print(f'no network was trained on masks; these {len(chosen):,} pictures have {true.real.sum():,} '
          f'objects, which cover {area:.1%} of them')
    panels = {'best head': (f"patches with {c.share:.0%} of the best head's attention", 'intersection over union'),
              'mean head': ('attention on the objects, mean head', 'share'),
              'best cut': (f"best of MaskCut's masks (at most {c.masks}), of {c.cut}s", 'overlap with each object')}
    if c.cut == 'none':
        del panels['best cut']
    drawn = [{masks: torch.tensor([[row[name]] for row in rows if (row['network'], row['masks']) == (net.name, masks)])
              for masks, name in zip(panels, ('iou', 'on_mask', 'object'))} for net in nets]
    figure, _ = over_layers(nets, drawn, panels, {
        'best head': {row['network']: row['iou'] for row in guesses},
        'mean head': {'the share of the objects in the pictures': area},
        'best cut': {row['network']: row['object'] for row in guesses}})
    return figure, rows + guesses


def say_scores(c, rows, guesses, nets):
    """Print what the table says of one layer of each network, and of the guesses."""
    shown = []
    for net in nets:
        mine = [row for row in rows if (row['network'], row['layer']) == (net.name, which_layer(c, net.model))]
        heads = [row for row in mine if row['masks'].startswith('head ')]
        shown += [max(heads, key=lambda row: row['iou']), *(row for row in mine if not row['masks'][-1].isdigit())]
    say_rows(shown + guesses, 'network', 'layer', 'masks', 'iou', 'object', 'ap50', 'ap', 'on_mask', 'covers')
    best = {row['weights']: row['iou'] for row in reversed(shown) if row['masks'] == 'best head'}   # the first of each
    guess = max(guesses[1:], key=lambda row: row['iou'])                # the first of them knows the masks
    print(f'here the best head of {nets[0].name} scores {best["trained"]:.3f}, with random weights '
          f'{best["random"]:.3f}, and {guess["network"]} without a network {guess["iou"]:.3f}')


# ---- pictures -------------------------------------------------------------------------------------------------------

def draw_objects(c, nets):
    """The same pictures for each network: the patches of the head that finds the objects best, and
    MaskCut's objects, each in a colour."""
    for net in nets:
        if view_of(net) != view_of(nets[0]):
            raise Mistake(f'{net.name} sees pictures in another size or crop than {nets[0].name}; leave one out')
    images, chosen = choose(c, nets[0], c.num_samples or 6)
    shown, true, rows, said = list(named(images, chosen)), truth(nets[0], images, chosen), [], []
    picture, size = augment.visible(pixels(nets[0], shown)), true.numbers.shape[1:]
    left = ['', *(f'{net.label}\nlayer {which_layer(c, net.model)}' for net in nets)]
    figure, axes = picture_grid(1.05, left, 2 * len(shown) * [''])
    for i, numbers in enumerate(true.numbers.masked_fill(true.numbers == UNKNOWN, 0)):
        axes[0, 2 * i].imshow(picture[i])
        paint(axes[0, 2 * i + 1], picture[i], numbers, 'true masks')
    for row, net in zip(axes[1:], nets):
        l, pixels_of = which_layer(c, net.model), true.cells(slice(None), net.patches)
        _, found = masks_in(c, list(layers.inside(net.model, pixels(net, shown)))[l - 1], net.patches)
        overlap, best = scores(found['head'], *pixels_of)['iou'].max(1)                 # the best of each picture
        of_cuts = scores(found.get('cut', found['head'][:, :0]), *pixels_of)['each'].amax(2)
        said.append((net.name, overlap.mean().item(), of_cuts.mean().item() if 'cut' in found else ''))
        for i, k in enumerate(best.tolist()):
            masks = {f'head {k + 1}': overlap[i], **{f'cut {m}': cut for m, cut in enumerate(of_cuts[i], 1)}}
            rows += [{'network': net.name, 'layer': l, 'picture': shown[i][0], 'masks': name, 'iou': iou.item()}
                     for name, iou in masks.items()]
            head = layers.enlarged(found['head'][i, k], net.patches, size)
            paint(row[2 * i], picture[i], head.byte(), f'head {k + 1}')
            row[2 * i + 1].set_visible('cut' in found)
            if 'cut' in found:
                numbers = (found['cut'][i] * torch.arange(1, 1 + c.masks)[:, None]).amax(0)
                paint(row[2 * i + 1], picture[i], layers.enlarged(numbers, net.patches, size), 'MaskCut')
    say_table(('mean intersection over union', 'best head', 'each of MaskCut'), said)
    print(f'left of each pair: patches that hold {c.share:.0%} of the attention of the best head; right: MaskCut')
    return figure, rows


def paint(axis, picture, numbers, title):
    """A picture in grey, with the pixels of each number above 0 in a colour of its own."""
    from matplotlib.colors import ListedColormap
    axis.imshow(picture.mean(-1), cmap='gray', vmin=-128, vmax=383)
    axis.imshow(np.where(numbers > 0, (numbers - 1) % 6, np.nan), cmap=ListedColormap(COLOURS[:6]), vmin=-0.5,
                vmax=5.5, alpha=0.65, interpolation='nearest')
    axis.set_title(title, fontsize='small')
