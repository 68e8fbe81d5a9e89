"""Do networks find the objects in pictures, although nobody showed them masks? The attention of the
class token and MaskCut against true masks: a table over layers, and pictures."""
import math

import numpy as np
import torch
from tqdm import tqdm

from analysis import layers
from analysis.drawings import warn_if_unused
from analysis.maskcut import maskcut
from analysis.objects import Scores, average_precision, connected, truth, two_means
from analysis.panels import label_panels, levels, mean_and_spread, names_of, over_layers, side_by_side
from analysis.samples import choose, only_pictures, patches, pixels, view_of, which_layer
from engine import plots
from engine.settings import Mistake
from tasks import augment
from tasks.masks import UNKNOWN
from tasks.pictures import named

CUTS = 'key', 'query', 'value', 'token', 'none'
COLUMNS = ('network', 'weights', 'layer', 'masks', 'class', 'iou', 'iou_spread', 'object', 'ap50', 'ap', 'on_mask',
           'on_mask_spread', 'covers')


# ---- what is found --------------------------------------------------------------------------------------------------

def found_by(c, net, shown, only=None):
    """For each layer, or one of them: the class token's attention over patches (B, K, N); the patches
    that hold most of it, bool (B, K, N); MaskCut's, bool (B, masks, N), or None. All on the CPU."""
    grid = patches(net)
    for l, (attention, normed, _, after) in enumerate(layers.inside(net.model, pixels(net, shown)), 1):
        if only not in (None, l):
            continue
        maps = layers.class_maps(attention, normed).float().cpu()
        cuts = None
        if c.cut != 'none':
            z = after[:, 1:] if c.cut == 'token' else \
                layers.coordinates(attention, normed, c.cut)[:, :, 1:].transpose(1, 2).flatten(2)   # (B, N, K p)
            cuts = torch.stack([maskcut(of_one.mT, grid, c.tau, c.masks) for of_one in z.float().cpu()]).flatten(2)
        yield maps, layers.top_mass(maps, c.share), cuts


def scores_of(c, net, shown, true):
    """For each layer {'head': Scores, 'cut': Scores, 'cuts': of all cuts together, 'on_mask': of each
    head's attention on known pixels, the share on the objects (n, K)}; without cuts if there are
    none."""
    grid, gathered = patches(net), []
    for i in tqdm(range(0, len(shown), c.batch_size), net.name, disable=None, leave=False):
        part = slice(i, i + c.batch_size)
        inside, known = true.cells(part, grid)
        batch = []
        for maps, heads, cuts in found_by(c, net, shown[part]):
            on, of = maps @ inside.sum(1)[..., None], maps @ known[..., None]           # pixels (B, K, 1)
            batch.append({'head': Scores.of(heads, inside, known), 'on_mask': (on / of.clamp_min(1e-9))[..., 0]})
            if cuts is not None:
                batch[-1] |= {'cut': Scores.of(cuts, inside, known),
                              'cuts': Scores.of(cuts.any(1, keepdim=True), inside, known)}
        gathered.append(batch)
    return [{k: torch.cat([b[k] for b in parts]) if k == 'on_mask' else Scores.joined([b[k] for b in parts])
             for k in parts[0]} for parts in zip(*gathered)]


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
        batch = [[Scores.of(found > 0.5, inside, known) for found in (cover.sum(1, keepdim=True), cover)]]
        inside, known = true.cells(part, (H, W))
        colours = two_means(augment.denormalize(pixels(net, shown[part])).cpu())
        fixed = torch.stack((middle, torch.ones_like(middle))).flatten(1).expand(len(inside), -1, -1)
        for pair in ((colours[:, None].flatten(2), connected(colours, 3).flatten(2)), [fixed[:, :1]] * 2,
                     [fixed[:, 1:]] * 2):
            batch.append([Scores.of(found, inside, known) for found in pair])
        gathered.append(batch)
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


def rows_of(scores, true, name, one_by_one=False, on_mask=None):
    """Rows of the table, from the column `masks` on: each mask, the best of each picture or object,
    for heads the mean of all, and for each class that occurs the best of each object."""
    P = scores.whole.size(1)
    one = {f'{name} {i + 1}': (scores.whole[:, i], on_mask[:, i] if on_mask is not None else None,
                               scores.covers[:, i]) for i in range(P)}
    best = scores.whole.argmax(1, keepdim=True)
    picked = [None if t is None else t.gather(1, best)[:, 0] for t in (scores.whole, on_mask, scores.covers)]
    overlap, kinds = scores.best(true.classes)
    for label, (iou, on, covers) in (one | {f'best {name}': picked}).items():
        more = ('',) * 3 if label in one else (overlap.mean().item(), *precision_of(scores, true.classes, one_by_one))
        yield (label, '', *mean_and_spread(iou), *more, *(mean_and_spread(on) if on is not None else ('', '')),
               covers.mean().item())
    if on_mask is not None:
        yield (f'mean {name}', '', *mean_and_spread(scores.whole.mean(1)), '', '', '',
               *mean_and_spread(on_mask.mean(1)), scores.covers.mean().item())
    for k in kinds.unique().tolist():
        yield f'best {name}', true.names[k], '', '', overlap[kinds == k].mean().item(), *5 * ('',)


def rows_of_layer(scores, true):
    yield from rows_of(scores['head'], true, 'head', on_mask=scores['on_mask'])
    if 'cut' in scores:
        yield from rows_of(scores['cut'], true, 'cut', one_by_one=True)
        all_cuts = scores['cuts']
        yield 'all cuts', '', *mean_and_spread(all_cuts.whole[:, 0]), *5 * ('',), all_cuts.covers.mean().item()


def check(c, nets, command):
    """Raises Mistake, before any work, for networks and settings that a command cannot use."""
    for net in nets:
        only_pictures(net, command)
        N = math.prod(patches(net))
        if c.cut != 'none' and c.masks > N:
            raise Mistake(f'masks={c.masks} must be at most the number of patches of {net.name}, {N}')
        which_layer(c, net.model)


def draw_segmentation(c, nets):
    """Attention and MaskCut against true masks, layer by layer."""
    check(c, nets, 'segment')
    images, chosen = choose(c, nets[0], c.num_samples or 1000)
    first_with = {view_of(net): net for net in nets}
    views = {view: truth(net, images, chosen) for view, net in first_with.items()}
    shown, true, rows = list(named(images, chosen)), views[view_of(nets[0])], []
    if (true.classes < 0).all():
        raise Mistake(f'the {len(shown):,} chosen pictures show no object; give a larger --num_samples, or another '
                      '--seed')
    figure, axes = side_by_side(2 + (c.cut != 'none'))
    for net in nets:
        mine = views[view_of(net)]
        scores = scores_of(c, net, shown, mine)
        over_layers(axes[0], net, torch.stack([s['head'].whole.amax(1) for s in scores]), band=False)
        over_layers(axes[1], net, torch.stack([s['on_mask'].mean(1) for s in scores]), band=False)
        if c.cut != 'none':
            over_layers(axes[2], net, torch.stack([s['cut'].best(mine.classes)[0] for s in scores]), band=False)
        rows += [(net.name, net.kind, l, *row) for l, s in enumerate(scores, 1) for row in rows_of_layer(s, mine)]
        say(net, which_layer(c, net.model), scores, mine)
    together, apart = {}, {}
    for name, (guess, each) in guesses_of(nets[0], shown, true, c.batch_size).items():
        together[name], apart[name] = guess.whole.mean().item(), each.best(true.classes)[0].mean().item()
        ap = precision_of(each, true.classes, True)
        rows.append((name, 'none', '', '', '', *mean_and_spread(guess.whole[:, 0]), apart[name], *ap, '', '',
                     guess.covers.mean().item()))
        print(f'{name}: intersection over union {together[name]:.3f} with all objects together, {apart[name]:.3f} with '
              f'each object, AP50 {ap[0]:.1%}, AP {ap[1]:.1%}')
    area = (((true.numbers > 0) & (true.numbers < UNKNOWN)).sum() / (true.numbers != UNKNOWN).sum()).item()
    levels(axes[0], together, from_zero=True)
    levels(axes[1], {'the share of the objects in the pictures': area}, from_zero=True, letters='e')
    if c.cut != 'none':
        levels(axes[2], apart, from_zero=True)
    titles = (f"patches with {c.share:.0%} of the best head's attention", 'attention on the objects, mean head',
              f"best of MaskCut's masks (at most {c.masks}), of {c.cut}s")
    label_panels(figure, axes, titles, ['intersection over union', 'share', 'intersection over union, each object'],
                 nets)
    count = (true.classes >= 0).sum().item()
    print('to see: no network was trained on masks; where training makes heads find the objects, solid lines are above '
          f'dashed ones. These {len(shown):,} pictures have {count:,} objects, which cover {area:.1%} of them')
    return figure, COLUMNS, rows


def say(net, l, scores, true):
    """One layer of a network in words."""
    s = scores[l - 1]
    head, on_mask = s['head'], s['on_mask'].mean()
    each = head.whole.mean(0)
    warn_if_unused(net)
    print(f'{net.name}, layer {l} of {len(scores)}: intersection over union {head.whole.amax(1).mean():.3f} with the '
          f'best head of each picture, {each.max():.3f} with head {each.argmax() + 1} in all, {each.mean():.3f} in the '
          f'mean of all heads, which keep {head.covers.mean():.1%} of the patches; {on_mask:.1%} of the attention lies '
          'on the objects')
    if 'cut' in s:
        ap50, ap = precision_of(s['cut'], true.classes, True)
        print(f'{net.name}, layer {l}: MaskCut {s["cuts"].whole.mean():.3f} with all objects together, '
              f'{s["cut"].best(true.classes)[0].mean():.3f} with each object, AP50 {ap50:.1%}, AP {ap:.1%}')


# ---- pictures -------------------------------------------------------------------------------------------------------

def draw_objects(c, nets):
    """The same pictures for each network: the patches of the head that finds the objects best, and
    MaskCut's objects, each in a colour."""
    check(c, nets, 'objects')
    for net in nets:
        if view_of(net) != view_of(nets[0]):
            raise Mistake(f'{net.name} sees pictures in another size or crop than {nets[0].name}; leave one out')
    images, chosen = choose(c, nets[0], c.num_samples or 6)
    shown, true, rows = list(named(images, chosen)), truth(nets[0], images, chosen), []
    picture = augment.visible(pixels(nets[0], shown))
    wide, (H, W) = len(shown), true.numbers.shape[1:]
    figure = plots.pyplot().figure(figsize=(2.1 * wide + 0.3, 1.15 * (len(nets) + 1) + 0.3), layout='constrained')
    axes = figure.subplots(len(nets) + 1, 2 * wide, squeeze=False)
    names = names_of(nets)
    numbers = true.numbers.masked_fill(true.numbers == UNKNOWN, 0)
    for i in range(wide):
        axes[0, 2 * i].imshow(picture[i])
        paint(axes[0, 2 * i + 1], picture[i], numbers[i])
        axes[0, 2 * i + 1].set_title('true masks', fontsize='small')
    for row, net in zip(axes[1:], nets):
        l, grid = which_layer(c, net.model), patches(net)
        inside, known = true.cells(slice(None), grid)
        (_, heads, cuts), = found_by(c, net, shown, l)
        scores = Scores.of(heads, inside, known)
        k = scores.whole.argmax(1)                                                      # the best head of each picture
        of_cuts = Scores.of(cuts, inside, known) if cuts is not None else None
        row[0].set_ylabel(f'{names[net.name]}\nlayer {l}', fontsize='small')
        for i in range(wide):
            mask = layers.enlarged(heads[i, k[i]], grid, (H, W))
            paint(row[2 * i], picture[i], mask.byte())
            row[2 * i].set_title(f'head {k[i] + 1}', fontsize='small')
            rows.append((net.name, l, shown[i][0], f'head {k[i] + 1}', scores.whole[i, k[i]].item()))
            if of_cuts is None:
                row[2 * i + 1].axis('off')
                continue
            parts = layers.enlarged(cuts[i], grid, (H, W))                              # (masks, H, W)
            paint(row[2 * i + 1], picture[i], (parts * torch.arange(1, len(parts) + 1)[:, None, None]).amax(0).byte())
            row[2 * i + 1].set_title('MaskCut', fontsize='small')
            rows += [(net.name, l, shown[i][0], f'cut {m + 1}', of_cuts.each[i, m].amax().item())
                     for m in range(len(parts))]
    for axis in axes.flat:
        axis.set(xticks=[], yticks=[])
    for net in nets:
        warn_if_unused(net)
    print(f'to see: on the left of each pair the patches that hold {c.share:.0%} of the attention of the head that '
          "covers the objects best, on the right MaskCut's masks; the top row shows what is true")
    return figure, ('network', 'layer', 'picture', 'masks', 'iou'), rows


def paint(axis, picture, numbers):
    """A picture in grey, with the pixels of each number above 0 in a colour of its own."""
    from matplotlib.colors import to_rgb
    grey = (0.25 + 0.5 * picture.mean(-1, keepdims=True) / 255).repeat(3, -1)
    for m in numbers.unique().tolist():
        if m:
            grey[numbers == m] = 0.35 * grey[numbers == m] + 0.65 * np.array(to_rgb(plots.COLOURS[(m - 1) % 6]))
    axis.imshow(grey.clip(0, 1))
