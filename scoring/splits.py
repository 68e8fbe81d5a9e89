"""What eval.py computes of a split beyond what validation reports: guesses, ReaL, reconstruction.
"""
import json
import math
import re
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from engine.mistakes import reading
from engine.networks import grid
from tasks import augment

# ---- pictures -----------------------------------------------------------------------------------


def batches(model, images, batch_size, view, draws=0):
    """All pictures of an ImageSplit in order: (pixels, labels, noise) of each batch.

    pixels (B, C, H, W), labels (B,), and noise (B, draws), `draws` random numbers for each picture,
    are on the network's device. view: as of eval_pictures.
    """
    device = next(model.parameters()).device
    image_size = model.config.image_size
    n_batches = math.ceil(len(images) / batch_size)
    loaded = images.fixed(batch_size, n_batches, draws=draws, image_size=image_size)
    label = f'{images.folder.name} {images.split}'
    for pictures, sizes, y, noise in tqdm(loaded, label, n_batches, disable=None):
        x = augment.eval_pictures(pictures.to(device), sizes, image_size, view)
        yield x, y.to(device), noise.float().to(device)


@torch.no_grad()
def guesses(model, images, autocast, batch_size, view):
    """The class that a network gives each picture, a list of numbers."""
    classes = []
    for x, _, _ in batches(model, images, batch_size, view):
        with autocast:
            logits = model(x)[0].float()                    # (B, num_classes)
        classes += logits.argmax(1).tolist()
    return classes


def real_labels(path, images):
    """The ImageNet-ReaL labels (Beyer et al. 2020) of each picture of an ImageSplit.

    They are lists of classes, which may be empty. path: real.json, a list with such a list for
    ILSVRC2012_val_00000001, .. 2, .. Raises Mistake if it has no labels for these pictures.
    """
    problem = f'--real={path} has no labels for these pictures'
    advice = ('give real.json of github.com/google-research/reassessed-imagenet, '
              'with the val split of imagenet')
    with reading(problem, advice):
        all_labels = json.loads(Path(path).read_bytes())
        labels = []
        for name in np.load(images.folder / f'{images.split}.names.npy'):
            number = re.search(rb'ILSVRC2012_val_(\d{8})', name)[1]
            labels.append(all_labels[int(number) - 1])
        return labels


@torch.no_grad()
def hidden_and_baseline(model, images, batch_size, view):
    """(share of patches that are hidden, loss of a baseline) of a masked autoencoder.

    The baseline predicts the mean colour of each picture's visible patches. With norm_pix_loss it
    predicts the mean of each patch, which is 0 then.
    """
    c = model.config
    n_patches = math.prod(grid(c))
    count = 0
    hidden_sum = 0.0
    loss_sum = 0.0
    for x, _, noise in batches(model, images, batch_size, view, draws=n_patches):
        hidden = model.hide(noise)                          # (B, N)
        target = model.target(x)                            # (B, N, h w C)
        if c.norm_pix_loss:
            prediction = torch.zeros_like(target)
        else:
            prediction = visible_colour(target, hidden, c.channels)
        count += len(x)
        hidden_sum += len(x) * hidden.float().mean().item()
        loss_sum += len(x) * model.loss(x, prediction, hidden).item()
    return hidden_sum / count, loss_sum / count


def visible_colour(patches, hidden, channels):
    """Patches (B, N, h w C) that all have the mean colour of their picture's visible patches.

    hidden: bool (B, N).
    """
    pixels = patches.unflatten(2, (-1, channels))           # (B, N, h w, C)
    colours = pixels.mean(2)                                # of each patch: (B, N, C)
    visible = ~hidden[..., None]                            # (B, N, 1)
    colour = (colours * visible).sum(1) / visible.sum(1)    # of each picture: (B, C)
    return colour[:, None, None].expand_as(pixels).flatten(2)


# ---- text ---------------------------------------------------------------------------------------

def commonest_share(text, rows):
    """The top-1 accuracy of always predicting the most frequent of the hidden tokens.

    text: a MaskedTextSplit; rows: sequences in a batch.
    """
    frequency = torch.zeros(text.vocab_size, dtype=torch.int64)
    n_batches = math.ceil(len(text) / rows)
    for _, y in text.fixed(rows, n_batches):
        frequency += y[y >= 0].bincount(minlength=text.vocab_size)
    return frequency.max().item() / frequency.sum().item()
