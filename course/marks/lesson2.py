"""Lesson 2, MSSA: inputs."""
import torch
from grade import Exercise

SIZES = (2, 7, 3, 4, 10), (1, 5, 4, 2, 6), (3, 4, 5, 2, 7)      # B, N, K, p, d; the last two are causal


def inputs(seed):
    """(Z (B, N, d), U (K, d, p), causal)"""
    (B, N, K, p, d), g = SIZES[seed - 1], torch.Generator().manual_seed(seed)
    return (torch.randn(B, N, d, generator=g, dtype=torch.float64),
            0.6 * torch.randn(K, d, p, generator=g, dtype=torch.float64), seed > 1)


def with_output(seed):
    """(Z (B, N, d), U (K, d, p), W (d, K p), bias (d,), causal)"""
    (Z, U, causal), g = inputs(seed), torch.Generator().manual_seed(seed + 100)
    K, d, p = U.shape
    return Z, U, *(torch.randn(*s, generator=g, dtype=torch.float64) for s in ((d, K * p), (d,))), causal


EXERCISES = [
    Exercise('attention_weights', inputs),
    Exercise('mssa', inputs),
    Exercise('mssa_free', with_output),
    Exercise('half_step', inputs),
]
