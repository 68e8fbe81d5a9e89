"""True masks, and how well others find the same objects.

Masks that are found are sets of cells of a grid: patches, or pixels. How much of an object a cell
holds is counted in pixels, so masks of patches are compared with true ones of pixels exactly.
Pixels of which it is not known what they show do not count.
"""
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from analysis.maskcut import CORNERS, numbered
from analysis.samples import pixels
from tasks import augment
from tasks.masks import UNKNOWN, Masks

THRESHOLDS = tuple(0.5 + 0.05 * i for i in range(10))  # of average precision, as COCO's


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
    counted = F.avg_pool2d(masks.float(), sides, divisor_override=1).flatten(2)         # sums, exactly: (n, M + 1, N)
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
