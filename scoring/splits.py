"""Scores of a network on a whole split of a dataset: loss and accuracies, ImageNet-ReaL,
reconstruction, text."""
import json
import math
import re
from collections import defaultdict
from pathlib import Path

import torch
import torch.nn.functional as F
from tqdm import tqdm

from engine.checkpoints import grid
from tasks import augment, top1_top5
from tasks.text import rows_at_once

REAL = 'give real.json of github.com/google-research/reassessed-imagenet, with the val split of imagenet'


class Means:
    """Weighted means of named numbers over batches."""

    def __init__(self):
        self.count, self.sums = 0, defaultdict(float)

    def add(self, count, numbers):
        self.count += count
        for name, value in numbers.items():
            self.sums[name] += count * float(value)

    def result(self):
        return {'count': self.count} | {name: total / self.count for name, total in self.sums.items()}


# ---- pictures -------------------------------------------------------------------------------------------------------

def batches(model, images, batch_size, eval_crop, draws=0):
    """All pictures of an ImageSplit in order: pixels (B, C, H, W), labels (B,), and `draws` random
    numbers for each picture (B, draws), on the network's device."""
    device, total = next(model.parameters()).device, math.ceil(len(images) / batch_size)
    parts = images.fixed(batch_size, total, draws=draws)
    for pictures, sizes, y, noise in tqdm(parts, f'{images.folder.name} {images.split}', total, disable=None):
        x = augment.eval_pictures(pictures.to(device), sizes, model.config.image_size, eval_crop)
        yield x, y.to(device), noise.float().to(device)


@torch.no_grad()
def outputs(model, images, function, autocast, batch_size, eval_crop):
    """function(x) of all pictures of an ImageSplit in order, float32 (N, ..), and their labels
    (N,)."""
    out, labels = [], []
    for x, y, _ in batches(model, images, batch_size, eval_crop):
        with autocast:
            out.append(function(x).float())
        labels.append(y)
    return torch.cat(out), torch.cat(labels)


def classification(model, images, autocast, batch_size, eval_crop):
    """({'loss', 'top1', 'top5'}, the class that the network gives each picture)."""
    logits, y = outputs(model, images, lambda x: model(x)[0], autocast, batch_size, eval_crop)
    shares = {name: share.item() for name, share in top1_top5(logits, y)[1].items()}
    return {'loss': F.cross_entropy(logits, y).item()} | shares, logits.argmax(1).tolist()


def check_real(path, images):
    """Raises ValueError, before any work, if there is no real.json at path or the dataset has no
    names of pictures."""
    if images.names() is None:
        raise ValueError(f'--real needs the names of the picture files; {images.folder} was not prepared from files')
    if not Path(path).is_file():
        raise ValueError(f'--real={path}: no such file; {REAL}')


def real_accuracy(guesses, names, path):
    """Share of ImageNet's validation pictures whose predicted class is among their ReaL labels
    (Beyer et al. 2020). Pictures without a label do not count. path: real.json, a list of lists for
    ILSVRC2012_val_00000001, .. 2, .."""
    try:
        labels = json.loads(Path(path).read_text())
        places = [int(re.fullmatch(r'(?:.*/)?ILSVRC2012_val_(\d{8})\.\w+', name.decode())[1]) for name in names]
        assert isinstance(labels, list) and min(places) > 0
        right = [guess in labels[i - 1] for guess, i in zip(guesses, places) if labels[i - 1]]
    except (OSError, ValueError, TypeError, IndexError, AssertionError) as e:
        raise ValueError(f'--real={path} does not hold the labels of these pictures ({type(e).__name__}: {e}); '
                         f'{REAL}') from None
    if not right:
        raise ValueError(f'--real={path} has no label for any of these pictures')
    return sum(right) / len(right)


@torch.no_grad()
def reconstruction(model, images, autocast, batch_size, eval_crop):
    """{'count', 'loss', 'baseline', 'hidden'} of a masked autoencoder. The baseline predicts the
    mean colour of each picture's visible patches, or, with norm_pix_loss, the mean of each patch,
    which is then 0. hidden: share of patches."""
    c, means = model.config, Means()
    for x, y, noise in batches(model, images, batch_size, eval_crop, draws=math.prod(grid(c))):
        with autocast:
            loss = model(x, noise)[1]
        hidden, target = model.hide(noise), model.target(x)
        flat = torch.zeros_like(target) if c.norm_pix_loss else visible_colour(target, hidden, c.channels)
        means.add(len(x), {'loss': loss, 'baseline': model.loss(x, flat, hidden), 'hidden': hidden.float().mean()})
    return means.result()


def visible_colour(patches, hidden, channels):
    """Patches (B, N, h w C), all in the mean colour of their picture's visible patches; hidden bool
    (B, N)."""
    pixels = patches.unflatten(2, (-1, channels))                                           # (B, N, h w, C)
    colour = (pixels.mean(2) * ~hidden[..., None]).sum(1) / (~hidden).sum(1)[:, None]       # (B, C)
    return colour[:, None, None].expand_as(pixels).flatten(2)


# ---- text -----------------------------------------------------------------------------------------------------------

@torch.no_grad()
def tokens(model, text, autocast, batch_size):
    """{'count', 'loss'} of the next tokens of a TextSplit. Of the hidden tokens of a
    MaskedTextSplit also 'top1', 'top5' and 'commonest', the top-1 accuracy of always predicting the
    most frequent one."""
    c, means, device = model.config, Means(), next(model.parameters()).device
    masked = c.task == 'masked_text'
    rows = rows_at_once(c, batch_size) if masked else batch_size
    frequency = torch.zeros(c.vocab_size, dtype=torch.int64)
    total = math.ceil(len(text) / rows)
    for x, y in tqdm(text.fixed(rows, total), f'{text.path.parent.name} {text.path.stem}', total, disable=None):
        x, y = x.to(device), y.to(device)
        with autocast:
            logits, loss = model(x, y)
        count, shares = top1_top5(logits, y) if masked else (y.numel(), {})
        means.add(count, {'loss': loss} | shares)
        if masked:
            frequency += torch.bincount(y[y != -1].cpu(), minlength=c.vocab_size)
    return means.result() | ({'commonest': frequency.max().item() / means.count} if masked else {})
