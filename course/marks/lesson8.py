"""The inputs for lesson 8, your own network."""
import math

import torch
from grade import Exercise, normal, of_size, seeded, variant

SIZES = (
    dict(n_layer=3, n_head=2, n_embd=8, patch_size=(2, 4), image_size=(6, 12), channels=3,
         num_classes=5),
    dict(n_layer=3, n_head=3, n_embd=12, patch_size=(2, 2), image_size=(6, 4), channels=1,
         num_classes=7),
    dict(n_layer=1, n_head=1, n_embd=6, patch_size=3, image_size=(6, 6), channels=2, num_classes=3),
)


def pictures(seed):
    """(settings of a network, x (4, C, H, W), y (4,)). What must hold for any network stands in
    judges.py."""
    settings = of_size(SIZES, seed)
    x = normal(seed)(4, settings['channels'], *settings['image_size']).float()
    y = torch.randint(settings['num_classes'], (4,), generator=seeded(seed))
    return settings, x, y


def layer_sizes(seed):
    """(network, n_layer, d)"""
    network, n_layer, d = of_size((('crate', 3, 10), ('vit', 2, 7), ('crate', 5, 3)), seed)
    return network, n_layer, d + variant(seed)


def budgets(seed):
    """(network, n_layer, budget, heads). With the last one the widths d and d + 2 are equally
    near."""
    d = 2 + 2 * variant(seed)
    return of_size((
        ('vit', 2, 10_600 + 500 * variant(seed), 4),
        ('crate', 4, 5_300 + 500 * variant(seed), 3),
        ('crate', 1, 3 * d ** 2 + 11 * d + 11, 2),
    ), seed)


def token_sizes(seed):
    """(network, d, N)"""
    network, d, N = of_size((('crate', 10, 7), ('vit', 6, 11), ('crate', 4, 3)), seed)
    return network, d + variant(seed), N


def tuned_losses(seed):
    """(losses (n,), tries)"""
    n, tries = of_size(((5, 2), (6, 3), (4, 3)), seed)
    return normal(seed)(n) + seed, tries


def runs(seed):
    """(ours {seed: loss}, theirs {seed: loss}, least). The seeds are in another order in each, and
    each lacks one of the other's. The gains have the standard error 1/2."""
    n, mean_gain, least = of_size(((4, 1.8, 2.0), (5, -6.0, 0.4), (3, 0.8, 0.2)), seed)
    randn = normal(seed)
    losses = 2 * randn(n)
    gains = randn(n)
    gains = (gains - gains.mean()) / gains.std() * math.sqrt(n) / 2 + mean_gain

    ours = dict(enumerate(losses.tolist()))
    ours[17] = 9.0
    theirs = dict(enumerate((losses + gains).tolist()))
    theirs[18] = -9.0
    return ours, dict(sorted(theirs.items(), reverse=True)), least


# two common seeds, then three seeds that do not tell, and three that do
OURS = {0: 1.0, 1: 1.0, 2: 1.0}
FEW_RUNS = [
    (OURS, {0: 2.0, 1: 2.01}, 0.1),
    (OURS, {0: 0.9, 1: 1.0, 2: 1.1}, 0.5),
    (OURS, {0: 2.0, 1: 2.1, 2: 2.2}, 0.5),
]
# where a formula without biases and norms rounds down too far
OTHER_BUDGETS = [('crate', 3, 5_000, 4), ('vit', 3, 5_000, 4)]

EXERCISES = [
    Exercise('Network', pictures, kind='network'),
    Exercise('parameters', layer_sizes),
    Exercise('width_for', budgets, more=OTHER_BUDGETS),
    Exercise('operations', token_sizes),
    Exercise('best_of', tuned_losses),
    Exercise('verdict', runs, more=FEW_RUNS),
]
