"""Do networks find the objects in pictures, although nobody showed them masks? `segment`, the attention of the class
token and MaskCut against true masks, layer by layer, and `objects`, the same in pictures."""
import math

import numpy as np
import torch
from tqdm import tqdm

from analysis import layers
from analysis.maskcut import maskcut
from analysis.objects import Scores, average_precision, connected, truth, two_means
from analysis.panels import (label_panels, levels, mean_and_spread, names_of, over_layers, picture_grid, say_table,
                             side_by_side)
from analysis.samples import choose, patches, pixels, view_of, warn_if_unused, which_layer
from engine import plots
from engine.curve import COLOURS
from engine.settings import Mistake
from tasks import augment
from tasks.masks import UNKNOWN
from tasks.pictures import named

CUTS = 'key', 'query', 'value', 'token', 'none'
COLUMNS = ('network', 'weights', 'layer', 'masks', 'class', 'iou', 'iou_spread', 'object', 'ap50', 'ap', 'on_mask',
           'on_mask_spread', 'covers')


# ---- what is found --------------------------------------------------------------------------------------------------

def found_by(c, net, shown):
    """For each layer: the class token's attention over patches (B, K, N); the patches that hold most of it, bool
    (B, K, N); MaskCut's, bool (B, masks, N), or None. All on the CPU."""
    grid = patches(net)
    for step in layers.inside(net.model, pixels(net, shown)):
        maps, cuts = layers.class_maps(step.attention, step.normed).float().cpu(), None
        if c.cut != 'none':
            z = step.after if c.cut == 'token' else layers.coordinates(step.attention, step.normed, c.cut)
            cuts = [maskcut(of_one.mT, grid, c.tau, c.masks) for of_one in z[:, 1:].float().cpu()]
            cuts = torch.stack(cuts).flatten(2)
        yield maps, layers.top_mass(maps, c.share), cuts


def scores_of(c, net, shown, true):
    """For each layer {'head': Scores, 'cut': Scores}; without cuts if there are none."""
    grid, gathered = patches(net), []
    for i in tqdm(range(0, len(shown), c.batch_size), net.name, disable=None, leave=False):
        part = slice(i, i + c.batch_size)
        pixels_of = true.cells(part, grid)
        gathered.append([])
        for maps, heads, cuts in found_by(c, net, shown[part]):
            gathered[-1].append({'head': Scores.of(heads, *pixels_of, maps)})
            if cuts is not None:
                gathered[-1][-1]['cut'] = Scores.of(cuts, *pixels_of)
    return [{k: Scores.joined([batch[k] for batch in parts]) for k in parts[0]} for parts in zip(*gathered)]


def guesses_of(net, shown, true, rows):
    """{name: (Scores of a mask of all objects together, Scores of masks of each)} of guesses that need
    no network."""
    (H, W), grid, gathered = net.model.config.image_size, patches(net), []
    middle = torch.zeros(H, W, dtype=torch.bool)
    middle[H // 4:H - H // 4, W // 4:W - W // 4] = True
    for i in range(0, len(shown), rows):
        part = slice(i, i + rows)
        inside, known = true.cells(part, grid)
        cover = inside * math.prod(grid) / (H * W)                      # of each patch by each object (B, M, N)
        best = [Scores.of(found > 0.5, inside, known) for found in (cover.sum(1, keepdim=True), cover)]
        inside, known = true.cells(part, (H, W))
        colours = two_means(augment.denormalize(pixels(net, shown[part])).cpu())
        fixed = torch.stack((middle, torch.ones_like(middle))).flatten(1).expand(len(inside), -1, -1)
        pairs = ((colours[:, None].flatten(2), connected(colours, 3).flatten(2)), [fixed[:, :1]] * 2,
                 [fixed[:, 1:]] * 2)
        gathered.append([best, *([Scores.of(found, inside, known) for found in pair] for pair in pairs)])
    names = ('the patches that objects cover most of', 'two groups of pixels by colour',
             'the middle, half as wide and high', 'the whole picture')
    return {name: [Scores.joined(kind) for kind in zip(*parts)] for name, parts in zip(names, zip(*gathered))}


# ---- the table ------------------------------------------------------------------------------------------------------

def precision_of(scores, classes, one_by_one):
    """(AP50, AP) of the masks. one_by_one: the first of a picture is more certain than the second;
    else all are equally certain."""
    order = -torch.arange(scores.whole.size(1)) if one_by_one else torch.zeros(scores.whole.size(1))
    held = scores.each, scores.covers > 0, order.expand_as(scores.whole), classes >= 0
    return average_precision(*held, thresholds=(0.5,)), average_precision(*held)


def of_objects(scores, classes, one_by_one):
    """How well masks find each object."""
    ap50, ap = precision_of(scores, classes, one_by_one)
    return {'object': scores.best(classes)[0].mean().item(), 'ap50': ap50, 'ap': ap}


def row_of(masks, iou, covers, on=None, **more):
    """A row of the table, from the column `masks` on."""
    found = {'masks': masks, 'covers': covers.mean().item(), **more}
    for name, values in (('iou', iou), ('on_mask', on)):
        if values is not None:
            found[name], found[f'{name}_spread'] = mean_and_spread(values)
    return found


def rows_of(scores, true, name):
    """Rows of the table: each mask, the best of each picture or object, for heads the mean of all, and for each class
    that occurs the best of each object."""
    numbers = scores.whole, scores.covers, *([] if scores.on is None else [scores.on])
    for i in range(scores.whole.size(1)):
        yield row_of(f'{name} {i + 1}', *(t[:, i] for t in numbers))
    best = scores.whole.argmax(1, keepdim=True)
    yield row_of(f'best {name}', *(t.gather(1, best)[:, 0] for t in numbers),
                 **of_objects(scores, true.classes, one_by_one=name == 'cut'))
    if scores.on is not None:
        yield row_of(f'mean {name}', scores.whole.mean(1), scores.covers, scores.on.mean(1))
    overlap, kinds = scores.best(true.classes)
    for k in kinds.unique().tolist():
        yield {'masks': f'best {name}', 'class': true.names[k], 'object': overlap[kinds == k].mean().item()}


def draw_segmentation(c, nets):
    """Attention and MaskCut against true masks, layer by layer."""
    at = {net.name: which_layer(c, net.model) for net in nets}
    images, chosen = choose(c, nets[0], c.num_samples or 1000)
    views = {view: truth(net, images, chosen) for view, net in {view_of(net): net for net in nets}.items()}
    shown, true, rows = list(named(images, chosen)), views[view_of(nets[0])], []
    figure, axes = side_by_side(2 + (c.cut != 'none'))
    for net in nets:
        mine = views[view_of(net)]
        scores = scores_of(c, net, shown, mine)
        drawn = [[s['head'].whole.amax(1) for s in scores], [s['head'].on.mean(1) for s in scores]]
        if c.cut != 'none':
            drawn.append([s['cut'].best(mine.classes)[0] for s in scores])
        for axis, values in zip(axes, drawn):
            over_layers(axis, net, torch.stack(values), band=False)
        rows += [{'network': net.name, 'weights': net.kind, 'layer': l, **row}
                 for l, found in enumerate(scores, 1) for name, s in found.items() for row in rows_of(s, mine, name)]
        warn_if_unused(net)
    guesses = [{'network': name, 'weights': 'none',
                **row_of('', guess.whole[:, 0], guess.covers, **of_objects(each, true.classes, True))}
               for name, (guess, each) in guesses_of(nets[0], shown, true, c.batch_size).items()]
    say_scores(rows, guesses, nets, at)
    area = (((true.numbers > 0) & (true.numbers < UNKNOWN)).sum() / (true.numbers != UNKNOWN).sum()).item()
    print(f'no network was trained on masks; these {len(shown):,} pictures have {(true.classes >= 0).sum():,} objects, '
          f'which cover {area:.1%} of them')
    levels(axes[0], {row['network']: row['iou'] for row in guesses})
    levels(axes[1], {'the share of the objects in the pictures': area}, first=4)
    if c.cut != 'none':
        levels(axes[2], {row['network']: row['object'] for row in guesses})
    titles = (f"patches with {c.share:.0%} of the best head's attention", 'attention on the objects, mean head',
              f"best of MaskCut's masks (at most {c.masks}), of {c.cut}s")
    label_panels(figure, axes, titles, ['intersection over union', 'share', 'intersection over union, each object'],
                 nets)
    return figure, COLUMNS, [[row.get(k, '') for k in COLUMNS] for row in rows + guesses]


def say_scores(rows, guesses, nets, at):
    """Print what the table says of one layer of each network, at {network: layer}, and of the guesses."""
    shown = []
    for net in nets:
        mine = [row for row in rows if row['network'] == net.name and row['layer'] == at[net.name]
                and 'class' not in row]
        heads = [row for row in mine if row['masks'].startswith('head ')]
        shown += [max(heads, key=lambda row: row['iou']), *(row for row in mine if not row['masks'][-1].isdigit())]
    said = {'network': 'intersection over union', 'layer': 'layer', 'masks': 'of', 'iou': 'all objects',
            'object': 'each object', 'ap50': 'AP50', 'ap': 'AP', 'on_mask': 'on objects', 'covers': 'covers'}
    say_table(said.values(), [[row.get(k, '') for k in said] for row in shown + guesses])
    best = {row['network']: row['iou'] for row in shown if row['masks'] == 'best head'}
    random = next(net.name for net in nets if net.kind == 'random')
    guess = max(guesses[1:], key=lambda row: row['iou'])                # the first of them knows the masks
    print(f'here the best head of {nets[0].name} scores {best[nets[0].name]:.3f}, with random weights '
          f'{best[random]:.3f}, and {guess["network"]} without a network {guess["iou"]:.3f}')


# ---- pictures -------------------------------------------------------------------------------------------------------

def draw_objects(c, nets):
    """The same pictures for each network: the patches of the head that finds the objects best, and
    MaskCut's objects, each in a colour."""
    for net in nets:
        if view_of(net) != view_of(nets[0]):
            raise Mistake(f'{net.name} sees pictures in another size or crop than {nets[0].name}; leave one out')
    images, chosen = choose(c, nets[0], c.num_samples or 6)
    shown, true, rows, names = list(named(images, chosen)), truth(nets[0], images, chosen), [], names_of(nets)
    picture, (H, W) = augment.visible(pixels(nets[0], shown)), true.numbers.shape[1:]
    at = {net.name: which_layer(c, net.model) for net in nets}
    left = ['', *(f'{names[name]}\nlayer {l}' for name, l in at.items())]
    figure, axes = picture_grid(1.05, left, 2 * len(shown) * [''])
    for i, numbers in enumerate(true.numbers.masked_fill(true.numbers == UNKNOWN, 0)):
        axes[0, 2 * i].imshow(picture[i])
        paint(axes[0, 2 * i + 1], picture[i], numbers, 'true masks')
    for row, net in zip(axes[1:], nets):
        l, grid = at[net.name], patches(net)
        pixels_of = true.cells(slice(None), grid)
        _, heads, cuts = list(found_by(c, net, shown))[l - 1]
        scores = Scores.of(heads, *pixels_of)
        for i, k in enumerate(scores.whole.argmax(1).tolist()):                         # the best head of each picture
            paint(row[2 * i], picture[i], layers.enlarged(heads[i, k], grid, (H, W)).byte(), f'head {k + 1}')
            rows.append((net.name, l, shown[i][0], f'head {k + 1}', scores.whole[i, k].item()))
            row[2 * i + 1].set_visible(cuts is not None)
            if cuts is not None:
                parts = layers.enlarged(cuts[i], grid, (H, W))                          # (masks, H, W)
                numbers = (parts * torch.arange(1, len(parts) + 1)[:, None, None]).amax(0).byte()
                paint(row[2 * i + 1], picture[i], numbers, 'MaskCut')
                rows += [(net.name, l, shown[i][0], f'cut {m + 1}', overlap.amax().item())
                         for m, overlap in enumerate(Scores.of(cuts, *pixels_of).each[i])]
        warn_if_unused(net)
    most, patch = max(true.classes.size(1), c.masks * (c.cut != 'none')), plots.pyplot().Rectangle
    figure.legend(handles=[patch((0, 0), 1, 1, color=COLOURS[m % 6], label=f'mask {m + 1}') for m in range(most)],
                  loc='outside lower center', ncols=most, fontsize='small')
    kinds = ('head', 'cut')[:1 + (c.cut != 'none')]
    say_table(('mean intersection over union', 'best head', 'each of MaskCut')[:1 + len(kinds)], [
        (net.name, *(np.mean([r[4] for r in rows if r[0] == net.name and r[3].startswith(kind)]).item()
                     for kind in kinds)) for net in nets])
    print(f'left of each pair: patches that hold {c.share:.0%} of the attention of the best head; right: MaskCut')
    return figure, ('network', 'layer', 'picture', 'masks', 'iou'), rows


def paint(axis, picture, numbers, title):
    """A picture in grey, with the pixels of each number above 0 in a colour of its own."""
    from matplotlib.colors import ListedColormap
    axis.imshow(picture.mean(-1), cmap='gray', vmin=-128, vmax=383)
    axis.imshow(np.where(numbers > 0, (numbers - 1) % 6, np.nan), cmap=ListedColormap(COLOURS[:6]), vmin=-0.5,
                vmax=5.5, alpha=0.65, interpolation='nearest')
    axis.set_title(title, fontsize='small')
