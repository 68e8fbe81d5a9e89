"""Do networks find the objects in pictures, although nobody showed them masks? `segment`, the attention of the class
token and MaskCut against true masks, layer by layer, and `objects`, the same in pictures.

Masks that are found are sets of cells of a grid: patches, or pixels. How much of an object a cell
holds is counted in pixels, so masks of patches are compared with true ones of pixels exactly.
Pixels of which it is not known what they show do not count.
"""
from typing import NamedTuple

import numpy as np
import torch

from analysis import layers
from analysis.maskcut import CORNERS, maskcut, numbered
from analysis.charts import over_layers, picture_grid
from analysis.subjects import batches, choose, pixels, which_layer
from analysis.tables import mean_and_spread, say_rows, say_table
from engine import figures
from engine.plots import COLOURS
from tasks import augment
from tasks.masks import UNKNOWN, Masks
from tasks.pictures import named

CUTS = 'key', 'query', 'value', 'token', 'none'
THRESHOLDS = tuple(0.5 + 0.05 * i for i in range(10))  # of average precision, as COCO's


# ---- true masks -----------------------------------------------------------------------------------------------------

def truth(net, images, chosen):
    """The true masks of pictures of an ImageSplit, by index, as a network sees these: numbers, uint8 (n, H, W), as in
    tasks/masks.py. Raises Mistake if the dataset has no masks."""
    masks, found = Masks(images), torch.zeros(len(chosen), *net.model.config.image_size, dtype=torch.uint8)
    for i, seen in zip(chosen, found):
        numbers, _ = masks[i]
        for m in np.unique(numbers[numbers > 0]).tolist():                              # UNKNOWN, 255, is the last
            grey = pixels(net, [('', (numbers == m)[..., None] * np.uint8(255))])       # (1, 1, H, W)
            seen[augment.denormalize(grey)[0, ..., 0].cpu() > 127] = m
    return found


def cells(numbers, grid, M=0):
    """Of true masks (n, H, W), in a grid (down, across) of N cells: the pixels that each object has in each cell
    (n, M, N), and the pixels of each cell that are known (n, N); float32. M: objects, 0 for the largest number."""
    M = M or max(1, (numbers * (numbers != UNKNOWN)).max().item())
    sides = [side // n for side, n in zip(numbers.shape[1:], grid)]
    masks = torch.stack([*(numbers == m for m in range(1, M + 1)), numbers != UNKNOWN], 1)      # (n, M + 1, H, W)
    counted = torch.nn.functional.avg_pool2d(masks.float(), sides, divisor_override=1).flatten(2)  # sums: (n, M + 1, N)
    return counted[:, :M], counted[:, M]


# ---- scores ---------------------------------------------------------------------------------------------------------

def overlaps(found, inside, known):
    """Intersection over union of masks and objects. found: bool (.., P, N); inside: pixels of each
    object in each cell (.., M, N); known: pixels of each cell (.., N) -> (.., P, M)."""
    found = found.float()
    both = found @ inside.mT                                                            # pixels, exactly
    either = (found @ known[..., None]) + inside.sum(-1)[..., None, :] - both
    return both / either.clamp_min(1)


class Scores(NamedTuple):
    """Of P masks for each of n pictures: the overlap with all objects together (n, P), with each of them (n, P, M), and
    the share of the known pixels that they cover (n, P)."""
    whole: torch.Tensor
    each: torch.Tensor
    covers: torch.Tensor

    @staticmethod
    def of(found, inside, known):
        """Arguments as of `overlaps`."""
        whole = overlaps(found, inside.sum(-2, keepdim=True), known)[..., 0]
        covers = (found.float() @ known[..., None])[..., 0] / known.sum(-1, keepdim=True).clamp_min(1)
        return Scores(whole, overlaps(found, inside, known), covers)


def average_precision(each, found, certainty, real, thresholds=THRESHOLDS):
    """How many of the masks find an object, and how many objects are found: the area below precision
    as a function of recall, at 101 values of recall, in the mean over thresholds of the overlap, as COCO has it (Lin et
    al. 2014), of objects of all classes together.

    each (n, P, M): the overlap of masks and objects; found (n, P): which masks there are; certainty
    (n, P), which does not rise from mask to mask: masks of higher ones come first, and equal ones at once; real (n, M):
    which objects there are. From the first mask of a picture on, each takes the object that it overlaps most, at least
    by the threshold, of those that are left. Returns a number in [0, 1]; 0 without objects.
    """
    if not real.any():
        return 0.0
    pictures, areas = torch.arange(len(each)), []
    each, real = each.flip(2), real.flip(1)                                             # of equal overlaps the last
    for threshold in thresholds:
        left, right = real.clone(), torch.zeros_like(found)
        for p in range(each.size(1)):
            overlap, m = each[:, p].where(left, -1.0).max(1)
            right[:, p] = found[:, p] & (overlap >= threshold)
            left[pictures, m] &= ~right[:, p]
        sure, sorting = certainty[found].sort(descending=True, stable=True)
        count = sure.unique_consecutive(return_counts=True)[1].cumsum(0)                # with all that are equal
        hits = right[found][sorting].double().cumsum(0)[count - 1]
        precision, recall = (hits / count).flip(0).cummax(0).values.flip(0), hits / real.sum()
        at = torch.searchsorted(recall, torch.from_numpy(np.linspace(0, 1, 101)))
        areas.append(torch.cat((precision, precision.new_zeros(1)))[at].mean().item())
    return sum(areas) / len(areas)


# ---- guesses without a network --------------------------------------------------------------------------------------

def two_means(x, steps=20):
    """Pictures (n, H, W, C) split into two groups of pixels by their colours: bool (n, H, W), True for
    the group that has fewer of the corners, of equal ones the smaller. Lloyd's algorithm, from the
    darkest and the brightest pixel on."""
    flat = x.flatten(1, 2).float()                                                      # (n, N, C)
    ends = torch.stack((flat.mean(-1).argmin(1), flat.mean(-1).argmax(1)), 1)
    means = flat.gather(1, ends[..., None].expand(-1, -1, flat.size(2)))                # (n, 2, C)
    for _ in range(steps):
        second = torch.cdist(flat, means).argmin(-1)                                    # (n, N), 0 or 1
        groups = torch.stack((second == 0, second == 1), 1).float()                     # (n, 2, N)
        means = (groups @ flat) / groups.sum(-1, keepdim=True).clamp_min(1)
    part = (second == 1).unflatten(1, x.shape[1:3])
    corners, share = part.movedim(0, -1)[CORNERS].sum(0), part.float().mean((1, 2))
    return part ^ ((corners > 2) | (corners == 2) & (share > 0.5))[:, None, None]


def connected(masks, most):
    """The largest connected parts of masks, bool (n, H, W), by neighbours left, right, above and
    below: bool (n, most, H, W), the largest first, empty where there are fewer."""
    numbers = [numbered(mask) for mask in masks]
    sizes = [number.flatten().bincount(minlength=most + 1)[1:] for number in numbers]   # without the outside
    return torch.stack([number == 1 + size.topk(most).indices[:, None, None] for number, size in zip(numbers, sizes)])


def guesses_of(net, picture, numbers, M):
    """{name: (Scores of a mask of all objects together, Scores of masks of each)} of guesses that need no network, of
    one picture with these true masks (H, W), numbers up to M. (Pixels of many pictures would take gigabytes.)"""
    H, W = net.model.config.image_size
    middle = torch.zeros(1, 1, H, W, dtype=torch.bool)
    middle[..., H // 4:H - H // 4, W // 4:W - W // 4] = True
    patches, dots = (cells(numbers[None], grid, M) for grid in (net.patches, (H, W)))
    cover = patches[0] * patches[0].size(-1) / (H * W)                  # of each patch by each object (1, M, N)
    colours = two_means(augment.denormalize(pixels(net, [picture])).cpu())
    return {
        'the patches that objects cover most of': [
            Scores.of(found > 0.5, *patches) for found in (cover.sum(1, keepdim=True), cover)],
        'two groups of pixels by colour': [
            Scores.of(found.flatten(2), *dots) for found in (colours[:, None], connected(colours, 3))],
        'the middle, half as wide and high': [Scores.of(middle.flatten(2), *dots)] * 2,
        'the whole picture': [Scores.of(torch.ones_like(middle).flatten(2), *dots)] * 2}


# ---- what networks find ---------------------------------------------------------------------------------------------

def masks_in(c, step, grid):
    """Of n pictures in a layer: maps, the class token's attention over patches (n, K, N); head, the patches that hold
    most of it, bool (n, K, N); cut, MaskCut's, bool (n, masks, N), unless it is left out."""
    maps = layers.class_maps(step.attention, step.normed).float().cpu()
    found = {'maps': maps, 'head': layers.top_mass(maps, c.share)}
    if c.cut != 'none':
        z = step.after if c.cut == 'token' else layers.coordinates(step.attention, step.normed, c.cut)
        cuts = [maskcut(of_one.mT, grid, c.tau, c.masks) for of_one in z[:, 1:].float().cpu()]
        found['cut'] = torch.stack(cuts).flatten(2)
    return found


# ---- the table ------------------------------------------------------------------------------------------------------

def of_objects(scores, real, one_by_one):
    """How well masks find each object of those that there are, bool (n, M). one_by_one: the first mask of a picture is
    more certain than the second; else all are equally certain."""
    order = -torch.arange(scores.whole.size(1)) * one_by_one
    held = scores.each, scores.covers > 0, order.expand_as(scores.whole), real
    return {'object': scores.each.amax(1)[real].mean().item(), 'ap50': average_precision(*held, thresholds=(0.5,)),
            'ap': average_precision(*held)}


def rows_of(name, masks, inside, known, **more):
    """Rows of the table, of masks (n, P, N) called `name`, more {column: (n, P)}: each mask, the best of each picture
    or object, and for heads the mean of all. Other arguments as of `overlaps`."""
    scores = Scores.of(masks, inside, known)
    values = {'iou': scores.whole, 'covers': scores.covers, **more}
    for i in range(scores.whole.size(1)):
        yield {'masks': f'{name} {i + 1}', **mean_and_spread({k: t[:, i] for k, t in values.items()})}
    best = scores.whole.argmax(1, keepdim=True)
    yield {'masks': f'best {name}', **mean_and_spread({k: t.gather(1, best)[:, 0] for k, t in values.items()}),
           **of_objects(scores, inside.any(-1), one_by_one=name == 'cut')}
    if name == 'head':
        yield {'masks': 'mean head', **mean_and_spread({k: t.mean(1) for k, t in values.items()})}


def draw_segmentation(c, nets):
    """Attention and MaskCut against true masks, layer by layer."""
    images, chosen = choose(c, nets[0], c.num_samples or 1000)
    true, rows = truth(nets[0], images, chosen), []
    real = cells(true, nets[0].patches)[0].any(-1)                      # which objects there are to see, (n, M)
    for net in nets:
        found = layers.measure_layers(net.model, batches(c, net, 1000), lambda step: masks_in(c, step, net.patches))
        inside, known = cells(truth(net, images, chosen), net.patches)
        for l, (maps, heads) in enumerate(zip(found['maps'], found['head']), 1):
            on = (maps @ inside.sum(1)[..., None] / (maps @ known[..., None]).clamp_min(1e-9))[..., 0]      # (n, K)
            of_layer = [*rows_of('head', heads, inside, known, on_mask=on)]
            if 'cut' in found:
                of_layer += rows_of('cut', found['cut'][l - 1], inside, known)
            rows += [{'network': net.name, 'weights': net.kind, 'layer': l, **row} for row in of_layer]
    of_each, guesses = [guesses_of(nets[0], *one, real.size(1)) for one in zip(named(images, chosen), true)], []
    for name, of_all in torch.utils.data.default_collate(of_each).items():
        guess, each = (Scores(*(t.flatten(0, 1) for t in scores)) for scores in of_all)
        guesses.append({'network': name, 'weights': 'none', **of_objects(each, real, True),
                        **mean_and_spread({'iou': guess.whole, 'covers': guess.covers})})
    say_scores(c, rows, guesses, nets)
    area = (((true > 0) & (true < UNKNOWN)).sum() / (true != UNKNOWN).sum()).item()
    print(f'{real.sum():,} objects cover {area:.1%} of these {len(chosen):,} pictures; CRATE, ViT and AoT never see masks')
    panels = {'best head': (f"patches with {c.share:.0%} of the attention of the best head,\n"
                            'chosen for each picture by the true mask', 'intersection over union'),
              'mean head': ('attention on the objects, mean head', 'share')}
    if c.cut != 'none':
        panels['best cut'] = f"best of MaskCut's masks (at most {c.masks}), of {c.cut}s,\nchosen by the true mask", 'overlap with each object'
    drawn = [{masks: torch.tensor([[row[name]] for row in rows if (row['network'], row['masks']) == (net.name, masks)])
              for masks, name in zip(panels, ('iou', 'on_mask', 'object'))} for net in nets]
    levels = {row['network']: {'best head': row['iou'], 'best cut': row['object']} for row in guesses}
    levels['the share of the objects in the pictures'] = {'mean head': area}
    return over_layers(nets, drawn, panels, levels)[0], rows + guesses


def say_scores(c, rows, guesses, nets):
    """Print what the table says of one layer of each network, and of the guesses."""
    shown = [row for net in nets for row in rows
             if (row['network'], row['layer']) == (net.name, which_layer(c, net.model))]
    say_rows(shown + guesses, 'network', 'layer', 'masks', 'iou', 'object', 'ap50', 'ap', 'on_mask', 'covers')
    best = {row['weights']: row['iou'] for row in reversed(shown) if row['masks'] == 'best head'}   # the first of each
    guess = max(guesses[1:], key=lambda row: row['iou'])                # the first of them knows the masks
    print(f'here the best head of {nets[0].name} scores {best["trained"]:.3f}, with random weights '
          f'{best["random"]:.3f}, and {guess["network"]} without a network {guess["iou"]:.3f}')


# ---- pictures -------------------------------------------------------------------------------------------------------

MASK_COLOURS = COLOURS[:5]
HEAD_COLOUR = COLOURS[5:6]


def draw_objects(c, nets):
    """The same pictures for each network: the patches of the head that finds the objects best, and
    MaskCut's objects, each in a colour."""
    images, chosen = choose(c, nets[0], c.num_samples or 6)
    shown, rows, said = list(named(images, chosen)), [], []
    seen = [(augment.visible(pixels(net, shown)), truth(net, images, chosen)) for net in nets]
    left = ['the picture and\nits true masks']
    for net in nets:
        left.append(figures.title_of(net.label, net.run, which_layer(c, net.model), len(net.model.layers))
                    .replace(', ', '\n'))
    figure, axes = picture_grid(1.25, left, 2 * len(shown) * [''], (
        f'left of each pair: the patches with {c.share:.0%} of the attention of the best head,\n'
        'which is chosen for each picture by its true mask; numbers: intersection over union'))
    picture, true = seen[0]
    for i, numbers in enumerate(true * (true != UNKNOWN)):
        axes[0, 2 * i].imshow(picture[i])
        paint(axes[0, 2 * i + 1], picture[i], numbers, 'true masks')
    for row, net, (picture, true) in zip(axes[1:], nets, seen):
        l, grid, pixels_of = which_layer(c, net.model), net.patches, cells(true, net.patches)
        found = masks_in(c, list(layers.inside(net.model, pixels(net, shown)))[l - 1], grid)
        overlap, best = Scores.of(found['head'], *pixels_of).whole.max(1)               # of each picture
        of_cuts = Scores.of(found.get('cut', found['head'][:, :0]), *pixels_of).each.amax(2)
        said.append((net.name, overlap.mean(), of_cuts.mean() if 'cut' in found else ''))
        for i, k in enumerate(best.tolist()):
            masks = {f'head {k + 1}': overlap[i], **{f'cut {m}': iou for m, iou in enumerate(of_cuts[i], 1)}}
            rows += [{'network': net.name, 'layer': l, 'picture': shown[i][0], 'masks': name, 'iou': iou}
                     for name, iou in masks.items()]
            of_head = found['head'][i, k].byte().view(grid)
            paint(row[2 * i], picture[i], of_head, f'head {k + 1}: {overlap[i]:.2f}', HEAD_COLOUR)
            row[2 * i + 1].set_visible('cut' in found)
            if 'cut' in found:
                numbers = (found['cut'][i] * torch.arange(1, c.masks + 1)[:, None]).amax(0)     # (N,), 0 for none
                paint(row[2 * i + 1], picture[i], numbers.view(grid), 'MaskCut')
    say_table(('mean intersection over union', 'best head', 'each of MaskCut'), said)
    figure.set_figheight(figure.get_figheight() + 0.3 * len(axes) + 0.7)                # titles, and the legend
    explain_colours(figure, true, 0 if c.cut == 'none' else c.masks)
    print(f'left of each pair: patches that hold {c.share:.0%} of the attention of the best head; right: MaskCut')
    return figure, rows


def paint(axis, picture, numbers, title, colours=MASK_COLOURS):
    """A picture in grey, with the pixels or patches of each number above 0 in a colour of its own. When the colours are
    used up they begin again."""
    from matplotlib.colors import ListedColormap
    place = axis.imshow(picture.mean(-1), cmap='gray', vmin=-128, vmax=383).get_extent()
    n = len(colours)
    axis.imshow(torch.where(numbers > 0, (numbers - 1) % n, torch.nan), cmap=ListedColormap(colours), vmin=-0.5,
                vmax=n - 0.5, alpha=0.65, interpolation='nearest', extent=place)
    axis.set_title(title, fontsize='small')


def explain_colours(figure, true, cuts):
    """A legend below a figure: the colour of a head's patches, and those of the masks of a picture. true: true masks (n,
    H, W); cuts: how many masks MaskCut looks for."""
    from matplotlib.patches import Patch
    objects = int((true * (true != UNKNOWN)).max())                     # the most in a picture
    count = max(objects, cuts)
    entries = [Patch(color=HEAD_COLOUR[0], alpha=0.65, label="the head's patches")]
    for m, colour in enumerate(MASK_COLOURS[:count], 1):
        entries.append(Patch(color=colour, alpha=0.65, label=f'mask {m} of a picture, true or of MaskCut'))
    figure.legend(handles=entries, loc='outside lower center', ncols=2, fontsize='small')
