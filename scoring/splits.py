"""What eval.py computes of a split beyond what validation reports: guesses, ReaL, reconstruction.
"""
import json
import re

import numpy as np
import torch
from tqdm import tqdm

from engine.mistakes import reading, regular

# ---- pictures -----------------------------------------------------------------------------------


@torch.no_grad()
def guesses(model, task):
    """The class that a network gives each picture, a list of numbers. task: a Classification."""
    classes = []
    for x, _ in tqdm(task.all_batches(), 'guesses', disable=None):
        with task.device.autocast:
            logits = model(x)[0]                            # (B, num_classes)
        classes += logits.argmax(1).tolist()
    return classes


def real_labels(path, images):
    """The ImageNet-ReaL labels (Beyer et al. 2020) of each picture of an ImageSplit.

    They are lists of classes, which may be empty. path: real.json, a list with such a list for
    ILSVRC2012_val_00000001, .. 2, .. Raises Mistake if it has no label for any of these pictures.
    """
    problem = f'--real={path} has no labels for these pictures'
    advice = ('give real.json of github.com/google-research/reassessed-imagenet, '
              'with the val split of imagenet')
    with reading(problem, advice):
        all_labels = json.loads(regular(path).read_bytes())
        labels = []
        for name in np.load(images.folder / f'{images.split}.names.npy'):
            number = re.search(rb'ILSVRC2012_val_(\d{8})', name)[1]
            labels.append(all_labels[int(number) - 1])
        if not any(labels):
            raise ValueError('they are empty')
        return labels


@torch.no_grad()
def hidden_and_baseline(model, task):
    """(share of patches that are hidden, loss of a baseline) of a masked autoencoder.

    The baseline predicts the mean colour of each picture's visible patches. With norm_pix_loss it
    predicts the mean of each patch, which is 0 then. task: a Reconstruction.
    """
    c = model.config
    loss_sum = 0.0
    for x, noise in tqdm(task.all_batches(), 'baseline', disable=None):
        hidden = model.hide(noise)                          # (B, N)
        target = model.target(x)                            # (B, N, h w C)
        if c.norm_pix_loss:
            prediction = torch.zeros_like(target)
        else:
            prediction = visible_colour(target, hidden, c.channels)
        loss_sum += len(x) * model.loss(x, prediction, hidden).item()
    hidden_share = hidden.float().mean().item()             # of every picture the same
    return hidden_share, loss_sum / len(task.valid)


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

def commonest_share(task):
    """The top-1 accuracy of always predicting the most frequent of the hidden tokens. task:
    HiddenTokens."""
    vocab_size = task.valid.vocab_size
    frequency = torch.zeros(vocab_size, dtype=torch.int64)
    for _, y in task.all_batches():
        frequency += y[y >= 0].cpu().bincount(minlength=vocab_size)
    return frequency.max().item() / frequency.sum().item()
