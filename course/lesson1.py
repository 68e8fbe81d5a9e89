"""Lesson 1: the coding rate. Fill in the gaps; lesson1.md says what they are about.

    python course/check.py 1
"""
import torch


def coding_rate(Z: torch.Tensor, eps: float = 0.5) -> torch.Tensor:
    """R(Z) of eq. (7), in nats. Z (N, d): N tokens, one in each row. Returns one number, shape ()."""
    raise NotImplementedError


def compressed_rate(Z: torch.Tensor, U: torch.Tensor, eps: float = 0.5) -> torch.Tensor:
    """R^c(Z; U) of eq. (8): the sum of the coding rates of the tokens in each subspace. Z (N, d); U (K,
    d, p): U[k] is the basis U_k of subspace k. Returns one number, shape ()."""
    raise NotImplementedError


def compressed_rate_gradient(Z: torch.Tensor, U: torch.Tensor, eps: float = 0.5) -> torch.Tensor:
    """The gradient of R^c(Z; U) with respect to Z, eq. (9). Z (N, d), U (K, d, p) -> (N, d)."""
    raise NotImplementedError
