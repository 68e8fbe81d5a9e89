"""Scores of a network on a whole split of a dataset: classes, ReaL, reconstruction, text."""
import json
import math
import re
from collections import Counter
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tqdm import tqdm

from engine.networks import grid
from engine.settings import reading
from tasks import accuracies, augment
from tasks.text import rows_at_once


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
def classification(model, images, autocast, batch_size, view):
    """({'count', 'loss', 'top1', 'top5'}, the class that the network gives each picture)."""
    means, guesses = Means(), []
    for x, y, _ in batches(model, images, batch_size, view):
        with autocast:
            logits = model(x)[0].float()
        means.add(*accuracies(logits, F.cross_entropy(logits, y), y))
        guesses += logits.argmax(1).tolist()
    return means.result(), guesses


def real_labels(path, images):
    """The ImageNet-ReaL labels (Beyer et al. 2020) of each picture of an ImageSplit, lists that may
    be empty. path: real.json, a list of lists for ILSVRC2012_val_00000001, .. 2, .."""
    with reading(f'--real={path} has no labels for these pictures',
                 'give real.json of github.com/google-research/reassessed-imagenet, with the val split of imagenet'):
        labels = json.loads(Path(path).read_bytes())
        names = np.load(images.folder / f'{images.split}.names.npy')
        return [labels[int(re.search(rb'ILSVRC2012_val_(\d{8})', name)[1]) - 1] for name in names]


@torch.no_grad()
def reconstruction(model, images, autocast, batch_size, view):
    """{'count', 'loss', 'baseline', 'hidden'} of a masked autoencoder. The baseline predicts the
    mean colour of each picture's visible patches, or, with norm_pix_loss, the mean of each patch,
    which is then 0. hidden: share of patches."""
    c, means = model.config, Means()
    for x, y, noise in batches(model, images, batch_size, view, draws=math.prod(grid(c))):
        with autocast:
            loss = model(x, noise)[1]
        hidden, target = model.hide(noise), model.target(x)
        flat = torch.zeros_like(target) if c.norm_pix_loss else visible_colour(target, hidden, c.channels)
        means.add(len(x), {'loss': loss, 'baseline': model.loss(x, flat, hidden), 'hidden': hidden.float().mean()})
    return means.result()


def visible_colour(patches, hidden, channels):
    """Patches (B, N, h w C) in the mean colour of their picture's visible ones; hidden bool (B,
    N)."""
    pixels = patches.unflatten(2, (-1, channels))                                           # (B, N, h w, C)
    colour = (pixels.mean(2) * ~hidden[..., None]).sum(1) / (~hidden).sum(1)[:, None]       # (B, C)
    return colour[:, None, None].expand_as(pixels).flatten(2)


# ---- text -----------------------------------------------------------------------------------------------------------

@torch.no_grad()
def tokens(model, text, autocast, batch_size):
    """{'count', 'loss', 'commonest'} of the next tokens of a TextSplit: commonest is the top-1 accuracy of always
    predicting the most frequent one. Of the hidden tokens of a MaskedTextSplit also 'top1' and 'top5'."""
    c, means, device = model.config, Means(), next(model.parameters()).device
    masked = c.task == 'masked_text'
    rows = rows_at_once(c, batch_size) if masked else batch_size
    frequency = torch.zeros(c.vocab_size, dtype=torch.int64)
    total = math.ceil(len(text) / rows)
    for x, y in tqdm(text.fixed(rows, total), f'{text.path.parent.name} {text.path.stem}', total, disable=None):
        frequency += y[y >= 0].bincount(minlength=c.vocab_size)
        x, y = x.to(device), y.to(device)
        with autocast:
            logits, loss = model(x, y)
        means.add(*(accuracies(logits, loss, y) if masked else (y.numel(), {'loss': loss})))
    return means.result() | {'commonest': frequency.max().item() / means['count']}
