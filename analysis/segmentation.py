"""Do networks find the objects in pictures, although nobody showed them masks? `segment` compares
the attention of the class token and MaskCut with true masks, layer by layer, and `objects` shows
the same in pictures.

A mask that is found is a set of cells of a grid, which are patches or pixels. A true mask is kept
as numbers: how many pixels of an object lie in each cell. So the overlap of a mask of patches and
an object is exact. Pixels that a dataset marks as UNKNOWN do not count.
"""
import warnings
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, ImageColor
from tqdm import tqdm

from analysis import layers
from analysis.charts import over_layers, picture_grid
from analysis.maskcut import CORNERS, maskcut, numbered
from analysis.subjects import choose, drawn_pictures, measured, pixels, which_layer
from analysis.tables import mean_and_spread, say_rows, say_table
from engine.mistakes import Mistake
from engine.plots import COLOURS
from engine.writing import write_file, writing
from tasks import augment
from tasks.masks import UNKNOWN, Masks
from tasks.pictures import named, part_seen
from weights.runs import title_of

CUTS = 'key', 'query', 'value', 'token', 'none'
THRESHOLDS = tuple(0.5 + 0.05 * i for i in range(10))  # of average precision, as COCO's
PICTURES = 1000  # how many `segment` takes, unless the user gives --num_samples


# ---- true masks ---------------------------------------------------------------------------------

def truth(net, images, chosen):
    """The true masks of pictures, as a network sees these: numbers as in tasks/masks.py, uint8
    (n, H, W). images: an ImageSplit; chosen: the indices of the pictures. Raises Mistake if the
    dataset has no masks."""
    masks = Masks(images)
    true = torch.zeros(len(chosen), *net.model.config.image_size, dtype=torch.uint8)
    for place, i in enumerate(chosen):
        numbers, _ = masks[i]
        # Each object is drawn in white on black, and this picture is resized and cropped as any
        # other. UNKNOWN, 255, comes last, so that unknown pixels stay unknown.
        for m in np.unique(numbers[numbers > 0]).tolist():
            white = np.uint8(255 * (numbers == m))
            x = pixels(net, [('', white[..., None])])                   # (1, 1, H, W)
            grey = augment.denormalize(x)[0, ..., 0].cpu()              # (H, W)
            true[place][grey > 127] = m
    return true


def numbers_of_objects(true):
    """True masks, uint8 (n, H, W), in which what is UNKNOWN becomes background, 0."""
    return true.masked_fill(true == UNKNOWN, 0)


def pixels_in_cells(true, grid, M=0):
    """Count the pixels of true masks (n, H, W) in each of the N cells of a grid (down, across).
    Returns the pixels that each object has in each cell (n, M, N), and the pixels of each cell that
    are known (n, N), float32. The objects are those with the numbers 1 to M. If M is 0, they end at
    the largest number that occurs."""
    if M == 0:
        M = max(1, numbers_of_objects(true).max().item())
    masks = [true == m for m in range(1, M + 1)]
    masks.append(true != UNKNOWN)
    stacked = torch.stack(masks, 1).float()                             # (n, M + 1, H, W)
    cell_size = [side // count for side, count in zip(true.shape[1:], grid)]
    # with the divisor 1, the mean over a cell is its sum
    sums = torch.nn.functional.avg_pool2d(stacked, cell_size, divisor_override=1)
    sums = sums.flatten(2)                                              # (n, M + 1, N)
    return sums[:, :M], sums[:, M]


# ---- scores -------------------------------------------------------------------------------------

class Scores(NamedTuple):
    """Scores of P masks for each of n pictures with up to M objects."""
    iou: torch.Tensor               # (n, P), intersection over union with all objects together
    iou_of_objects: torch.Tensor    # (n, P, M), intersection over union with each object
    covers: torch.Tensor            # (n, P), the share of the known pixels that the mask covers


def score_masks(masks, object_pixels, known):
    """The Scores of masks, bool (n, P, N). object_pixels: how many pixels of each object lie in
    each cell (n, M, N); known: how many pixels of each cell are known (n, N)."""
    masks = masks.float()
    all_objects = object_pixels.sum(1, keepdim=True)                    # (n, 1, N)
    objects = torch.cat((all_objects, object_pixels), 1)                # (n, 1 + M, N)
    both = masks @ objects.mT                                           # exact: whole numbers
    of_masks = masks @ known[..., None]                                 # (n, P, 1)
    either = of_masks + objects.sum(2)[:, None] - both
    iou = both / either.clamp_min(1)                                    # (n, P, 1 + M)
    covers = of_masks[..., 0] / known.sum(1, keepdim=True).clamp_min(1)
    return Scores(iou[..., 0], iou[..., 1:], covers)


def average_precision(iou, exists, certainty, is_visible, thresholds=THRESHOLDS):
    """Average precision as in COCO (Lin et al. 2014), but of the objects of all classes together.
    Precision is the share of the masks that find an object, and recall is the share of the objects
    that are found. Average precision is the area below precision as a function of recall, read at
    101 recalls, and averaged over thresholds of the overlap. It is 0 if there are no objects or no
    masks.

    iou (n, P, M): the overlap of masks and objects. exists (n, P): which masks there are. certainty
    (n, P): the masks of all pictures enter one after the other, the most certain first, and masks
    of equal certainty enter together; within a picture the masks must be sorted, the most certain
    first. is_visible (n, M): which objects there are to find.
    """
    if not (is_visible.any() and exists.any()):
        return 0.0
    # of objects with equal overlaps COCO takes the last one, and torch.max the first, so the
    # objects are reversed
    iou = iou.flip(2)
    is_visible = is_visible.flip(1)
    areas = []
    for threshold in thresholds:
        hits = match_objects(iou, exists, is_visible, threshold)
        areas.append(area_below(hits[exists], certainty[exists], is_visible.sum()))
    return sum(areas) / len(areas)


def match_objects(iou, exists, is_visible, threshold):
    """Which masks find an object, bool (n, P). From the first mask of a picture on, each takes the
    object that it overlaps most, of those that no mask before it has taken, if the overlap is at
    least the threshold. Arguments as of `average_precision`."""
    pictures = torch.arange(len(iou))
    free = is_visible.clone()                                           # (n, M)
    hits = torch.zeros_like(exists)
    for p in range(iou.size(1)):
        overlap, m = iou[:, p].where(free, -1.0).max(1)                 # (n,) each
        hits[:, p] = exists[:, p] & (overlap >= threshold)
        free[pictures, m] &= ~hits[:, p]
    return hits


def area_below(hits, certainty, n_objects):
    """The area below precision as a function of recall, at 101 values of recall. hits and certainty
    say of every mask of all pictures whether it finds an object, and how certain it is."""
    sorted_certainty, order = certainty.sort(descending=True, stable=True)
    _, sizes = sorted_certainty.unique_consecutive(return_counts=True)
    counts = sizes.cumsum(0)  # masks, after each group of equally certain ones
    hits_so_far = hits[order].double().cumsum(0)[counts - 1]
    recall = hits_so_far / n_objects
    precision = hits_so_far / counts
    # at each of 101 recalls the best precision of the groups that reach it, 0 if none does
    recalls = torch.from_numpy(np.linspace(0, 1, 101))[:, None]
    best = torch.where(recall >= recalls, precision, 0).amax(1)         # (101,)
    return best.mean().item()


# ---- guesses without a network ------------------------------------------------------------------

def two_means(picture):
    """A picture (H, W, C) split into two groups of pixels by their colours: bool (H, W), True for
    the group that has fewer of the corners, or if both have two, for the smaller one. The groups
    grow from the darkest and the brightest pixel."""
    from scipy.cluster.vq import kmeans2
    flat = picture.flatten(0, 1).double().numpy()                       # (N, C)
    brightness = flat.mean(1)
    starts = flat[[brightness.argmin(), brightness.argmax()]]           # (2, C)
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # where all pixels are alike, a group is empty
        _, groups = kmeans2(flat, starts, 20)                        # (N,), 0 or 1
    second = torch.from_numpy(groups == 1).view(picture.shape[:2])      # (H, W)
    corners = second[CORNERS].sum()
    if corners > 2 or (corners == 2 and second.float().mean() > 0.5):
        return ~second  # the second group is the background
    return second


def connected(mask, most):
    """The largest connected parts of a mask, bool (H, W), where neighbours lie left, right, above
    and below: bool (most, H, W), the largest first, empty where there are fewer."""
    numbers = numbered(mask)                                            # (H, W)
    sizes = numbers.flatten().bincount(minlength=most + 1)
    largest = 1 + sizes[1:].topk(most).indices  # without 0, the outside
    return numbers == largest[:, None, None]


def guesses_of(net, picture, numbers, M):
    """{name: (Scores of a mask of all objects together, Scores of masks of single objects)} of
    guesses that need no network. The first guess alone knows the true masks. picture: (name, uint8
    (H, W, C)), a single one, because the pixels of many would take gigabytes; numbers: its true
    masks (H, W), numbers up to M."""
    H, W = net.model.config.image_size
    true = numbers[None]
    object_pixels, known = pixels_in_cells(true, net.patches, M)
    pixel_is_object, pixel_is_known = pixels_in_cells(true, (H, W), M)  # each pixel is a cell

    half_a_patch = H * W / known.size(1) / 2  # pixels
    all_objects = object_pixels.sum(1, keepdim=True)                    # (1, 1, N)
    by_colour = two_means(augment.denormalize(pixels(net, [picture]))[0].cpu())     # (H, W)
    middle = torch.zeros(1, H, W, dtype=torch.bool)
    middle[:, H // 4:H - H // 4, W // 4:W - W // 4] = True

    def score_pixels(masks):
        return score_masks(masks.flatten(1)[None], pixel_is_object, pixel_is_known)

    middle_scores = score_pixels(middle)
    everything_scores = score_pixels(torch.ones_like(middle))
    return {
        'the patches that objects cover most of': (
            score_masks(all_objects > half_a_patch, object_pixels, known),
            score_masks(object_pixels > half_a_patch, object_pixels, known)),
        'two groups of pixels by colour': (
            score_pixels(by_colour[None]),
            score_pixels(connected(by_colour, 3))),
        'the middle, half as wide and high': (middle_scores, middle_scores),
        'the whole picture': (everything_scores, everything_scores),
    }


# ---- what networks find -------------------------------------------------------------------------

def maps_and_masks(c, step, grid):
    """What a layer finds in n pictures: {'maps': the class token's attention over patches,
    (n, K, N); 'head': the patches with the most attention, which together hold the share c.share of
    it, bool (n, K, N); 'cut': MaskCut's masks, bool (n, masks, N), unless c.cut leaves them out}.
    step: what the layer does, a layers.Step."""
    maps = layers.class_maps(step.attention, step.normed).float().cpu()
    of_layer = {'maps': maps, 'head': layers.top_mass(maps, c.share)}
    if c.cut == 'none':
        return of_layer
    if c.cut == 'token':
        features = step.after
    else:
        features = layers.coordinates(step.attention, step.normed, c.cut)
    patches = features[:, 1:].float().cpu()                             # without the class token
    cuts = [maskcut(of_picture.mT, grid, c.tau, c.masks) for of_picture in patches]
    of_layer['cut'] = torch.stack(cuts).flatten(2)
    return of_layer


# ---- the table ----------------------------------------------------------------------------------

def object_scores(scores, is_visible, ranked):
    """Three columns of the table, about single objects: the mean overlap of an object and the mask
    that overlaps it most, and the average precision at an overlap of 0.5 and over all THRESHOLDS.
    is_visible (n, M): which objects there are to find. ranked: whether the first mask of a picture
    is the most certain one, the second comes next, and so on. If not, all are equally certain."""
    n, P = scores.iou.shape
    certainty = torch.zeros(n, P)
    if ranked:
        certainty -= torch.arange(P)
    exists = scores.covers > 0  # a mask of unknown pixels alone counts as none
    best = scores.iou_of_objects.amax(1)                                # (n, M)
    return {
        'object': best[is_visible].mean().item(),
        'ap50': average_precision(scores.iou_of_objects, exists, certainty, is_visible, (0.5,)),
        'ap': average_precision(scores.iou_of_objects, exists, certainty, is_visible),
    }


def rows_of(name, masks, object_pixels, known, **extra_columns):
    """Rows of the table about the masks of n pictures, bool (n, P, N). `name` says what the P masks
    of a picture are of: 'head' or 'cut'. Each of the P masks has a row, with means over pictures.
    One row, 'best NAME', has iou, covers and the extra columns of the mask with the highest iou in
    each picture; its object, ap50 and ap are about single objects, each with its own mask, see
    object_scores. For heads, one more row has the mean of all. extra_columns: {column: (n, P)};
    object_pixels, known: as for `score_masks`."""
    scores = score_masks(masks, object_pixels, known)
    values = {'iou': scores.iou, 'covers': scores.covers, **extra_columns}
    rows = []
    for p in range(masks.size(1)):
        of_mask = {column: numbers[:, p] for column, numbers in values.items()}
        rows.append({'masks': f'{name} {p + 1}', **mean_and_spread(of_mask)})

    best = scores.iou.argmax(1, keepdim=True)                           # (n, 1)
    of_best = {column: numbers.gather(1, best)[:, 0] for column, numbers in values.items()}
    # MaskCut finds the clearest object first, while heads have no order
    of_objects = object_scores(scores, object_pixels.any(-1), ranked=(name == 'cut'))
    rows.append({'masks': f'best {name}', **mean_and_spread(of_best), **of_objects})

    if name == 'head':
        of_all = {column: numbers.mean(1) for column, numbers in values.items()}
        rows.append({'masks': 'mean head', **mean_and_spread(of_all)})
    return rows


def rows_of_network(c, net, images, chosen):
    """The rows of the table about a network, for every layer."""
    def measure(step):
        return maps_and_masks(c, step, net.patches)

    # `measured` calls `choose` with the same seed, number and dataset (analyze.py sets one dataset
    # for all networks), so it takes the `chosen` pictures, in this order
    of_layers, = measured(c, [net], PICTURES, measure)
    object_pixels, known = pixels_in_cells(truth(net, images, chosen), net.patches)
    all_objects = object_pixels.sum(1)[..., None]                       # (n, N, 1)
    # the share of a head's attention to known pixels that falls on objects
    maps = of_layers['maps']                                            # (L, n, K, N)
    to_known = (maps @ known[..., None]).clamp_min(1e-9)                # (L, n, K, 1)
    on_mask = (maps @ all_objects / to_known)[..., 0]                   # (L, n, K)
    rows = []
    for l, heads in enumerate(of_layers['head']):
        layer_rows = rows_of('head', heads, object_pixels, known, on_mask=on_mask[l])
        if 'cut' in of_layers:
            layer_rows += rows_of('cut', of_layers['cut'][l], object_pixels, known)
        for row in layer_rows:
            rows.append({'network': net.name, 'weights': net.kind, 'layer': l + 1, **row})
    return rows


def rows_of_guesses(net, images, chosen, true, is_visible):
    """The rows of the table about guesses that need no network. true: the true masks (n, H, W);
    is_visible: which objects there are to find, bool (n, M)."""
    guesses = []
    shown = tqdm(named(images, chosen), 'guesses', len(chosen), disable=None, leave=False)
    for picture, numbers in zip(shown, true):
        guesses.append(guesses_of(net, picture, numbers, is_visible.size(1)))
    rows = []
    for name in guesses[0]:
        together = joined([guess[name][0] for guess in guesses])
        single = joined([guess[name][1] for guess in guesses])
        of_objects = object_scores(single, is_visible, ranked=True)
        of_all = mean_and_spread({'iou': together.iou, 'covers': together.covers})
        rows.append({'network': name, 'weights': 'none', **of_objects, **of_all})
    return rows


def joined(scores):
    """A list of Scores, of some pictures each, as one Scores of all pictures."""
    return Scores(*map(torch.cat, zip(*scores)))


def draw_segmentation(c, nets):
    """Compare attention and MaskCut with true masks, layer by layer. Returns the figure, and the
    rows of its table."""
    for net in nets:
        which_layer(c, net.model)  # raises Mistake now, and not after the work
    images, chosen = choose(c, nets[0], PICTURES)
    true = truth(nets[0], images, chosen)
    object_pixels, known = pixels_in_cells(true, nets[0].patches)
    is_visible = object_pixels.any(-1)                                  # (n, M)

    rows = []
    for net in nets:
        rows += rows_of_network(c, net, images, chosen)
    guesses = rows_of_guesses(nets[0], images, chosen, true, is_visible)
    say_scores(c, rows, guesses, nets)

    area = (object_pixels.sum() / known.sum()).item()
    print(f'{is_visible.sum():,} objects cover {area:.1%} of these {len(chosen):,} pictures; '
          'CRATE, ViT and AoT never see masks')
    return figure_of_scores(c, nets, rows, guesses, area), rows + guesses


# what the figure shows: {value of the column `masks` in a row: the column that is drawn}
DRAWN = {
    'best head': 'iou',
    'mean head': 'on_mask',
    'best cut': 'object',
}


def figure_of_scores(c, nets, rows, guesses, area):
    """A figure of the scores of networks over their layers, beside those of the guesses. rows,
    guesses: the rows of the table about both; area: the share of the objects in the pictures."""
    panels = {
        'best head': (f'patches with {c.share:.0%} of the attention of the best head,\n'
                      'chosen for each picture by the true mask', 'intersection over union'),
        'mean head': ('attention on the objects, mean head', 'share'),
    }
    if c.cut != 'none':
        title = (f"best of MaskCut's masks (at most {c.masks}), of {c.cut}s,\n"
                 'chosen by the true mask')
        panels['best cut'] = (title, 'overlap with each object')

    values_of_nets = []
    for net in nets:
        values = {}
        for name in panels:
            numbers = [row[DRAWN[name]] for row in rows
                       if row['network'] == net.name and row['masks'] == name]
            values[name] = torch.tensor(numbers)[:, None]               # (L, 1)
        values_of_nets.append(values)

    levels = {}
    for row in guesses:
        levels[row['network']] = {name: row[DRAWN[name]] for name in ('best head', 'best cut')}
    levels['the share of the objects in the pictures'] = {'mean head': area}
    figure, _ = over_layers(nets, values_of_nets, panels, levels)
    return figure


def say_scores(c, rows, guesses, nets):
    """Print what the table says about one layer of each network, and about the guesses."""
    shown = []
    for net in nets:
        l = which_layer(c, net.model)
        shown += [row for row in rows if row['network'] == net.name and row['layer'] == l]
    say_rows(shown + guesses, 'network', 'layer', 'masks', 'iou', 'object', 'ap50', 'ap',
             'on_mask', 'covers')


# ---- pictures -----------------------------------------------------------------------------------

MASK_COLOURS = COLOURS[:5]
HEAD_COLOUR = COLOURS[5]


def draw_objects(c, nets):
    """Draw the same pictures for each network: the patches of the head that finds the objects best,
    and MaskCut's objects, each in a colour. The user's own pictures have no true masks that could
    choose a head, so the attention of all heads together is drawn. Returns the figure, and the rows
    of its table."""
    if c.masks_to and c.cut == 'none':
        raise Mistake('--masks_to is for the masks of MaskCut; leave --cut=none out')
    if c.masks_to and Path(c.masks_to).exists() and not c.overwrite:
        raise Mistake(f'{c.masks_to} exists; give another --masks_to, or --overwrite=true to write '
                      'there')
    shown = drawn_pictures(c, nets[0], 6)
    if c.image:
        # the one object is the whole picture, so its overlap with a mask is what the mask covers
        sizes = [net.model.config.image_size for net in nets]
        true_masks = [torch.ones(len(shown), *size, dtype=torch.uint8) for size in sizes]
        most_objects = 0
        row_names = ['the picture']
        heads = 'all heads together'
        numbers = 'share of the picture'
    else:
        images, chosen = choose(c, nets[0], 6)  # those that are shown
        true_masks = [truth(net, images, chosen) for net in nets]
        most_objects = int(numbers_of_objects(true_masks[0]).max())
        row_names = ['the picture and\nits true masks']
        heads = 'the best head,\nwhich is chosen for each picture by its true mask'
        numbers = 'intersection over union'

    for net in nets:
        layer = which_layer(c, net.model)
        row_name = title_of(net.label, net.run, layer, len(net.model.layers))
        row_names.append(row_name.replace(', ', '\n'))
    no_names = [''] * (2 * len(shown))  # of columns, two for each picture
    title = (f'left of each pair: the patches with {c.share:.0%} of the attention of {heads};\n'
             f'numbers: {numbers}')
    figure, axes = picture_grid(1.25, row_names, no_names, title)
    pairs = axes.reshape(len(axes), len(shown), 2)

    visible = augment.visible(pixels(nets[0], shown))
    first_masks = numbers_of_objects(true_masks[0])
    for (left, right), picture, true in zip(pairs[0], visible, first_masks):
        left.imshow(picture)
        paint(right, picture, true, 'true masks', MASK_COLOURS)
        right.set_visible(not c.image)

    # a row for each network
    rows = []
    means = []
    for net, true, row_pairs in zip(nets, true_masks, pairs[1:]):
        of_net, mean_head, mean_cut, cuts = draw_network(c, net, shown, true, row_pairs)
        rows += of_net
        means.append((net.name, mean_head, mean_cut))
        if c.masks_to and net is nets[0]:
            write_masks(c, net, shown, cuts)
    say_table((f'mean {numbers}', 'heads' if c.image else 'best head', 'each of MaskCut'), means)

    # higher, for titles and for the legend
    figure.set_figheight(figure.get_figheight() + 0.3 * len(axes) + 0.7)
    n_cuts = 0 if c.cut == 'none' else c.masks
    explain_colours(figure, max(n_cuts, most_objects))
    print(title)
    return figure, rows


def draw_network(c, net, shown, true, pairs):
    """Draw what a network finds in pictures into a pair of panels for each picture: the patches of
    heads, and MaskCut's masks. shown: [(name, picture)]; true: their true masks (n, H, W).
    Returns the rows of the table; the mean overlap of the best heads with all objects; the mean
    overlap of each of MaskCut's masks with the object that it overlaps most, '' without MaskCut;
    and which of MaskCut's masks each patch belongs to, uint8 (n, down, across), 0 for none. In the
    means a mask in which MaskCut found no object counts as 0. In the rows of MaskCut's masks `iou`
    is the overlap with that object, and not with all of them. For the user's own pictures, shares
    of the picture stand in place of overlaps."""
    x = pixels(net, shown)
    visible = augment.visible(x)
    l = which_layer(c, net.model)
    of_layer = maps_and_masks(c, layers.step_at(net.model, l, x), net.patches)
    object_pixels, known = pixels_in_cells(true, net.patches)
    heads = of_layer['head']                                            # (n, K, N)
    if c.image:
        heads = layers.top_mass(of_layer['maps'].mean(1, keepdim=True), c.share)    # (n, 1, N)
    head_scores, best_heads = score_masks(heads, object_pixels, known).iou.max(1)   # (n,) each
    cuts = of_layer.get('cut', heads[:, :0])                            # (n, masks, N)
    cut_scores = score_masks(cuts, object_pixels, known).iou_of_objects.amax(2)     # (n, masks)
    # MaskCut's masks do not overlap
    numbers = cuts * torch.arange(1, 1 + cuts.size(1))[:, None]         # (n, masks, N)
    numbers = numbers.sum(1).byte().unflatten(1, net.patches)           # (n, down, across)

    rows = []
    for i, k in enumerate(best_heads.tolist()):
        left, right = pairs[i]
        row = {'network': net.name, 'layer': l, 'picture': shown[i][0]}
        name = 'all heads' if c.image else f'head {k + 1}'
        column = 'covers' if c.image else 'iou'
        rows.append(row | {'masks': name, column: head_scores[i]})
        of_head = heads[i, k].byte().view(net.patches)
        paint(left, visible[i], of_head, f'{name}: {head_scores[i]:.2f}', [HEAD_COLOUR])
        for m, score in enumerate(cut_scores[i], 1):
            rows.append(row | {'masks': f'cut {m}', column: score})
        paint(right, visible[i], numbers[i], 'MaskCut', MASK_COLOURS)
        right.set_visible(c.cut != 'none')
    mean_cut = '' if c.cut == 'none' else cut_scores.mean()
    return rows, head_scores.mean(), mean_cut, numbers


def write_masks(c, net, shown, numbers):
    """Write a PNG file for each picture, as large as the picture: in each pixel the number of the
    mask that it belongs to, 0 for none, and UNKNOWN where the network does not see the picture.
    shown: [(name, picture)]; numbers: of each patch, uint8 (n, down, across)."""
    folder = Path(c.masks_to)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    palette = [0, 0, 0]
    for colour in MASK_COLOURS:
        palette += ImageColor.getrgb(colour)
    palette += [255] * (768 - len(palette))  # all other numbers are white
    for (name, picture), of_patches in zip(shown, numbers.numpy()):
        left, top, width, height = part_seen(picture, net.model, net.run)
        of_part = Image.fromarray(of_patches).resize((width, height), Image.Resampling.NEAREST)
        mask = Image.new('P', (picture.shape[1], picture.shape[0]), UNKNOWN)
        mask.putpalette(palette)
        mask.paste(of_part, (left, top))
        file = folder / f'{name.replace("/", "_")}.png'
        write_file(file, partial(mask.save, format='PNG'), 'wb')
    print(f'{folder}: {len(shown)} masks')


def paint(axis, picture, numbers, title, colours):
    """Draw a picture in grey, with the pixels or patches of each number above 0 in a colour of
    their own. When the colours are used up they begin again."""
    from matplotlib.colors import ListedColormap
    # between -128 and 383 no picture is black or white, so that the colours show
    grey = axis.imshow(picture.mean(-1), cmap='gray', vmin=-128, vmax=383)
    n = len(colours)
    colour_numbers = torch.where(numbers > 0, (numbers - 1) % n, torch.nan)
    axis.imshow(colour_numbers, cmap=ListedColormap(colours), vmin=-0.5, vmax=n - 0.5, alpha=0.65,
                interpolation='nearest', extent=grey.get_extent())
    axis.set_title(title, fontsize='small')


def explain_colours(figure, n_masks):
    """Write a legend below a figure: the colour of a head's patches, and those of the masks of a
    picture, of which there are up to n_masks."""
    from matplotlib.patches import Patch
    entries = [Patch(color=HEAD_COLOUR, alpha=0.65, label="the head's patches")]
    for m, colour in enumerate(MASK_COLOURS[:n_masks], 1):
        entries.append(Patch(color=colour, alpha=0.65, label=f'mask {m} of a picture'))
    figure.legend(handles=entries, loc='outside lower center', ncols=2, fontsize='small')
