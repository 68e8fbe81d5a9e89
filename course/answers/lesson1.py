"""Lesson 1, solved."""
import torch


def coding_rate(Z, eps=0.5):
    # tokens are rows, so the paper's Z Z^* is Z^T Z here: (d, d), and not (N, N)
    N, d = Z.shape
    gram = Z.T @ Z                                              # (d, d)
    return 0.5 * torch.logdet(torch.eye(d, dtype=Z.dtype) + d / (N * eps ** 2) * gram)


def compressed_rate(Z, U, eps=0.5):
    # projected tokens (N, p) have p numbers each: coding_rate reads its d off them, so it is p
    return sum(coding_rate(Z @ U_k, eps) for U_k in U)


def compressed_rate_gradient(Z, U, eps=0.5):
    # p and not d in beta: the gradient is that of the rate of projections, which have p numbers
    N, p = len(Z), U.shape[-1]
    beta = p / (N * eps ** 2)
    total = torch.zeros_like(Z)
    for U_k in U:
        P = Z @ U_k                                             # (N, p)
        inner = torch.eye(N, dtype=Z.dtype) + beta * P @ P.T    # (N, N)
        # the inverse stands at the left, where it mixes tokens; U_k^T at the right leads back to d.
        # solve computes inverse times P without the inverse. For N > p it is cheaper to invert
        # p x p numbers: P (I + beta P^T P)^-1 is equal
        total += beta * torch.linalg.solve(inner, P) @ U_k.T
    return total
