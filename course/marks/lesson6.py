"""Lesson 6, CRATE-MAE: inputs."""
import torch
from grade import Exercise

SIZES = (2, 5, 3, 4, 8), (1, 6, 4, 2, 12), (3, 4, 5, 2, 16)     # B, N, K, p, d; K p is not d
PATCHES = (2, 4, 18, 8), (3, 10, 4, 8), (2, 6, 6, 12)           # B, N, P, d


def generator(seed):
    g = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(shape, generator=g, dtype=torch.float64)


def noise_inputs(seed):
    """(noise (B, N), ratio): N (1 - ratio) is 2.8, 2 and 4.5."""
    B, N, ratio = ((2, 7, 0.6), (3, 8, 0.75), (2, 9, 0.5))[seed - 1]
    return torch.rand(B, N, generator=torch.Generator().manual_seed(seed), dtype=torch.float64), ratio


def embed_inputs(seed):
    """(patches (B, N, P), hidden (B, N), weights): pictures hide equally many."""
    randn, (B, N, P, d) = generator(seed), PATCHES[seed - 1]
    hidden = randn(B, N).argsort(1).argsort(1) >= (3, 4, 2)[seed - 1]
    return randn(B, N, P), hidden, {'patch.weight': randn(d, P), 'patch.bias': randn(d), 'mask_token': randn(1, 1, d),
                                    'cls': randn(1, 1, d), 'pos': randn(1, N + 1, d)}


def layer_inputs(seed):
    """(Y (B, N, d), weights, heads)"""
    randn, (B, N, K, p, d) = generator(seed), SIZES[seed - 1]
    norms = {f'norm{i}.{k}': (k == 'weight') + 0.3 * randn(d) for i in (1, 2) for k in ('weight', 'bias')}
    return 1 + 2 * randn(B, N, d), {**norms, 'E.weight': randn(d, d) / 2, 'attn.U.weight': 0.6 * randn(K * p, d),
                                    'attn.W.weight': 0.5 * randn(d, K * p), 'attn.W.bias': 0.5 * randn(d)}, K


def patch_inputs(seed):
    """(patches (B, N, P),): of low contrast, the first one flat."""
    randn, (B, N, P, _) = generator(seed), PATCHES[seed - 1]
    patches = randn(B, N, 1) + 0.01 * randn(B, N, 1).exp() * randn(B, N, P)
    patches[0, 0] = 0.5
    return (patches,)


def loss_inputs(seed):
    """(pred (B, N, P), target (B, N, P), hidden (B, N)): pictures do not hide equally many."""
    randn, (B, N, P, _) = generator(seed + 10), PATCHES[seed - 1]
    hidden = randn(B, N) > 0
    hidden[0], hidden[0, 1], hidden[-1, 0], hidden[-1, 1] = False, True, True, True
    return randn(B, N, P), randn(B, N, P), hidden


EXERCISES = [
    Exercise('visible', noise_inputs),
    Exercise('embed', embed_inputs),
    Exercise('decoder_layer', layer_inputs),
    Exercise('targets', patch_inputs),
    Exercise('masked_loss', loss_inputs),
]
