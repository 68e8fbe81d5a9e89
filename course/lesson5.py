"""Lesson 5: denoising and AoT. Fill in the gaps; lesson5.md says what they are about.

    python course/check.py 5
"""
import torch


def snr(Z: torch.Tensor, U: torch.Tensor) -> torch.Tensor:
    """Signal to noise of each cluster, eq. (6). Z (K, n, d): the n tokens Z[k] belong to subspace k; U (K,
    d, p): U[k] is its basis, with orthonormal columns. Returns (K,)."""
    raise NotImplementedError


def membership(Z: torch.Tensor, U: torch.Tensor, tau: float) -> torch.Tensor:
    """phi of eq. (4), how much each token takes from each other one in each subspace. Z (N, d), U (K, d, p)
    -> (K, N, N): row n of [k] is the token that looks. With tau = 0 it is the softmax, not divided by
    sqrt(p). With tau > 0 it is as in Theorem 1: tau where the softmax is above tau, and 0 elsewhere. Of the
    dtype of Z."""
    raise NotImplementedError


def denoise(Z: torch.Tensor, U: torch.Tensor, eta: float, tau: float) -> torch.Tensor:
    """A layer of eq. (3), with MSSA as in eq. (4): Z (N, d), U (K, d, p) -> (N, d)."""
    raise NotImplementedError


def passing(phi: torch.Tensor) -> torch.Tensor:
    """Does phi (K, N, N) look as the proof of Theorem 1 needs it? The N tokens are those of subspace 1, then
    those of subspace 2, and so on, N / K of each. Returns two shares, (2,): of all tokens, those that take
    something from themselves in their own subspace; and of all N (K - 1) pairs of a token and a subspace
    that is not its own, those in which the token takes anything from any token. The proof needs 1 and 0."""
    raise NotImplementedError


def aot_layer(Z: torch.Tensor, weights: dict, heads: int) -> torch.Tensor:
    """A layer of AoT on text: Z (B, N, d) -> (B, N, d). A LayerNorm (eps 1e-5), causal MSSA with scores
    divided by sqrt(p) and a free output map, a skip. weights: 'norm1.weight' (d,), 'attn.U.weight' (K p,
    d), 'attn.W.weight' (d, K p). There are no biases."""
    raise NotImplementedError


def next_token_loss(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The mean cross-entropy in nats, shape (). logits (B, N, V) at each position; y, int64 (B, N): the id of
    the token that follows there, or -1 where none counts. Logits may be as large as 1000."""
    raise NotImplementedError
