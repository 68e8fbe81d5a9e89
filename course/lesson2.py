"""Lesson 2: MSSA. Fill in the gaps; lesson2.md says what they are about.

    python course/check.py 2
"""
import torch


def attention_weights(Z: torch.Tensor, U: torch.Tensor, causal: bool) -> torch.Tensor:
    """How much each token takes from each other one, in each head: the softmax of eq. (11), of scores
    divided by sqrt(p). Z (B, N, d); U (K, d, p). Returns (B, K, N, N): row n is the token that looks,
    and sums to 1. With causal, token n gets nothing from tokens n + 1, n + 2, .."""
    raise NotImplementedError


def mssa(Z: torch.Tensor, U: torch.Tensor, causal: bool) -> torch.Tensor:
    """MSSA(Z | U) of eqs. (11) and (12), without the factor p / (N eps^2), and with scores divided by
    sqrt(p). Z (B, N, d), U (K, d, p) -> (B, N, d)."""
    raise NotImplementedError


def mssa_free(Z: torch.Tensor, U: torch.Tensor, W: torch.Tensor, bias: torch.Tensor, causal: bool) -> torch.Tensor:
    """The same with a free output map, eq. (115), as networks are trained: W (d, K p) and bias (d,) in
    place of [U_1, .., U_K]. The columns of W are those of head 1, then those of head 2, and so on."""
    raise NotImplementedError


def half_step(Z: torch.Tensor, U: torch.Tensor, causal: bool) -> torch.Tensor:
    """Z^(l+1/2) of eq. (18), without norms: Z (B, N, d), U (K, d, p) -> (B, N, d)."""
    raise NotImplementedError
