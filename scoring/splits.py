"""What eval.py computes of a split beyond what validation reports: guesses, ReaL, reconstruction."""
import json
import math
import re
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from engine.networks import grid
from engine.settings import reading
from tasks import augment


class Means(Counter):
    """Weighted means of named numbers."""

    def add(self, count, numbers):
        self.update({name: count * float(value) for name, value in numbers.items()}, count=count)

    def result(self):
        return {name: total / self['count'] for name, total in self.items()} | {'count': self['count']}


# ---- pictures -------------------------------------------------------------------------------------------------------

def batches(model, images, batch_size, view, draws=0):
    """All pictures of an ImageSplit in order: pixels (B, C, H, W), labels (B,), and `draws` random
    numbers for each picture (B, draws), on the network's device. view: as of eval_pictures."""
    device, total = next(model.parameters()).device, math.ceil(len(images) / batch_size)
    parts = images.fixed(batch_size, total, draws=draws, image_size=model.config.image_size)
    for pictures, sizes, y, noise in tqdm(parts, f'{images.folder.name} {images.split}', total, disable=None):
        x = augment.eval_pictures(pictures.to(device), sizes, model.config.image_size, view)
        yield x, y.to(device), noise.float().to(device)


@torch.no_grad()
def guesses(model, images, autocast, batch_size, view):
    """The class that a network gives each picture, a list."""
    classes = []
    for x, _, _ in batches(model, images, batch_size, view):
        with autocast:
            logits = model(x)[0].float()
        classes += logits.argmax(1).tolist()
    return classes


def real_labels(path, images):
    """The ImageNet-ReaL labels (Beyer et al. 2020) of each picture of an ImageSplit, lists that may
    be empty. path: real.json, a list of lists for ILSVRC2012_val_00000001, .. 2, .."""
    with reading(f'--real={path} has no labels for these pictures',
                 'give real.json of github.com/google-research/reassessed-imagenet, with the val split of imagenet'):
        labels = json.loads(Path(path).read_bytes())
        names = np.load(images.folder / f'{images.split}.names.npy')
        return [labels[int(re.search(rb'ILSVRC2012_val_(\d{8})', name)[1]) - 1] for name in names]


@torch.no_grad()
def hidden_and_baseline(model, images, batch_size, view):
    """(share of patches that are hidden, the loss of a baseline) of a masked autoencoder. The baseline predicts the
    mean colour of each picture's visible patches, or, with norm_pix_loss, the mean of each patch,
    which is then 0."""
    c, means = model.config, Means()
    for x, _, noise in batches(model, images, batch_size, view, draws=math.prod(grid(c))):
        hidden, target = model.hide(noise), model.target(x)
        flat = torch.zeros_like(target) if c.norm_pix_loss else visible_colour(target, hidden, c.channels)
        means.add(len(x), {'baseline': model.loss(x, flat, hidden), 'hidden': hidden.float().mean()})
    result = means.result()
    return result['hidden'], result['baseline']


def visible_colour(patches, hidden, channels):
    """Patches (B, N, h w C) in the mean colour of their picture's visible ones; hidden bool (B,
    N)."""
    pixels = patches.unflatten(2, (-1, channels))                                           # (B, N, h w, C)
    colour = (pixels.mean(2) * ~hidden[..., None]).sum(1) / (~hidden).sum(1)[:, None]       # (B, C)
    return colour[:, None, None].expand_as(pixels).flatten(2)


# ---- text -----------------------------------------------------------------------------------------------------------

def commonest_share(text, rows):
    """The top-1 accuracy of always predicting the most frequent of the hidden tokens of a MaskedTextSplit."""
    frequency = torch.zeros(text.vocab_size, dtype=torch.int64)
    for _, y in text.fixed(rows, math.ceil(len(text) / rows)):
        frequency += y[y >= 0].bincount(minlength=text.vocab_size)
    return frequency.max().item() / frequency.sum().item()
