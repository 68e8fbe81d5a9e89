"""Lesson 1, solved."""
import torch


def coding_rate(Z, eps=0.5):
    N, d = Z.shape
    gram = Z.T @ Z                                                                      # (d, d)
    return 0.5 * torch.logdet(torch.eye(d, dtype=Z.dtype) + d / (N * eps ** 2) * gram)


def compressed_rate(Z, U, eps=0.5):
    return sum(coding_rate(Z @ U_k, eps) for U_k in U)                                  # Z U_k: (N, p)


def compressed_rate_gradient(Z, U, eps=0.5):
    N, p = len(Z), U.shape[-1]
    beta, total = p / (N * eps ** 2), torch.zeros_like(Z)
    for U_k in U:
        W = Z @ U_k                                                                     # (N, p)
        inner = torch.eye(N, dtype=Z.dtype) + beta * W @ W.T                            # (N, N)
        total += beta * torch.linalg.solve(inner, W) @ U_k.T
    return total
