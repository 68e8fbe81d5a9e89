"""Lesson 8: your own network. Fill in the gaps; lesson8.md says what they are about.

    python course/check.py 8
"""
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Config:
    """The settings of your network. You may add others, if they have a default."""
    n_layer: int = 2                # layers
    n_head: int = 4                 # attention heads
    n_embd: int = 64                # width of a token, d
    patch_size: int | tuple = 4     # pixels of a patch, or (height, width)
    image_size: int | tuple = 32    # pixels, or (height, width), which the dataset fills in
    channels: int = 3               # 3 for colour, 1 for grey
    num_classes: int = 10           # classes

    task = 'image'                  # not a setting: what a network of this kind learns


def sides(size):
    """(height, width) of a size, which may be one number for both."""
    return tuple(size) if isinstance(size, (tuple, list)) else (size, size)


class Network(nn.Module):
    """A network for pictures that keeps the contract of docs/extend.md. Which layers it has is your choice.

        model.config            the config that it was made with
        model.embed(x)          pictures, float (B, channels, H, W) -> tokens (B, N, d), a token for each
                                patch at least
        model.layers            a module of n_layer layers, with weights of their own; layer(z): (B, N, d) -> (B, N, d)
        model(x)                (out, None), out (B, num_classes): logits, so any numbers
        model(x, y)             (out, loss) with classes y, int64 (B,): the mean cross-entropy in nats
    """

    def __init__(self, config):
        super().__init__()
        raise NotImplementedError

    def forward(self, x, y=None):
        raise NotImplementedError


def parameters(network: str, n_layer: int, d: int) -> int:
    """The parameters of n_layer layers of width d, biases and norms included, without what is before and
    after the layers. network: 'crate' or 'vit', for the layers of model_crate.py (with its free output
    map) and model_vit.py. A LayerNorm has 2 d."""
    raise NotImplementedError


def width_for(network: str, n_layer: int, budget: int, heads: int) -> int:
    """The width d, a multiple of the number of heads, with which n_layer layers have a number of
    parameters nearest to the budget; of two that are equally near the smaller."""
    raise NotImplementedError


def operations(network: str, d: int, N: int) -> int:
    """The multiply-adds of one layer for one of N tokens of width d: in the linear maps, in the scores
    and in the average. Softmax, norms and biases are not counted. 'crate' or 'vit', as above, with heads
    of width p = d / K."""
    raise NotImplementedError


def best_of(losses: torch.Tensor, tries: int) -> torch.Tensor:
    """What trying more settings is worth. losses (n,): those of n settings of one network. If somebody
    tries only so many of the n, chosen at random without repeating one, and reports the lowest loss:
    which loss is that on average, over all choices? Returns one number."""
    raise NotImplementedError


def verdict(ours: dict, theirs: dict, least: float) -> tuple:
    """What a report may say. ours, theirs: {seed: loss}, of which lower is better; only seeds that both
    have count, each paired with itself. The gain of a seed is theirs - ours. Returns three numbers: mean
    gain - 2 standard errors, mean gain + 2 standard errors, and 1 if the first is above `least`, the
    smallest gain that matters, -1 if the second is below -least, else 0. With fewer than three seeds it
    is always 0."""
    raise NotImplementedError
