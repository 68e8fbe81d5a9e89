"""Lesson 1, the coding rate: inputs."""
import torch
from grade import Exercise

SIZES = ((7, 4, 3, 2, 0.4), (9, 6, 4, 3, 0.3), (8, 5, 6, 2, 0.8))   # N, d, K, p, eps; bases are not orthonormal


def tokens(seed):
    """(Z (N, d), eps)"""
    N, d, *_, eps = SIZES[seed - 1]
    return torch.randn(N, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64), eps


def tokens_and_bases(seed):
    """(Z (N, d), U (K, d, p), eps)"""
    (Z, eps), (_, d, K, p, _) = tokens(seed), SIZES[seed - 1]
    return Z, torch.randn(K, d, p, generator=torch.Generator().manual_seed(seed + 100), dtype=torch.float64), eps


EXERCISES = [
    Exercise('coding_rate', tokens),
    Exercise('compressed_rate', tokens_and_bases),
    Exercise('compressed_rate_gradient', tokens_and_bases),
]
