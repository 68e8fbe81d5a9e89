"""Lesson 2, solved."""
import torch


def attention_weights(Z, U, causal):
    W = torch.einsum('bnd,kdp->bknp', Z, U)                                             # U_k^T z
    scores = W @ W.mT / U.shape[-1] ** 0.5                                              # (B, K, N, N)
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    return scores.softmax(-1)


def mssa(Z, U, causal):
    h = attention_weights(Z, U, causal) @ torch.einsum('bnd,kdp->bknp', Z, U)           # (B, K, N, p)
    return torch.einsum('bknp,kdp->bnd', h, U)


def mssa_free(Z, U, W, bias, causal):
    h = attention_weights(Z, U, causal) @ torch.einsum('bnd,kdp->bknp', Z, U)           # (B, K, N, p)
    return h.transpose(1, 2).flatten(2) @ W.T + bias


def half_step(Z, U, causal):
    return Z + mssa(Z, U, causal)
