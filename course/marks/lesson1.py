"""Lesson 1, the coding rate: oracles, mistakes and hints."""
import math

import torch
from common import logdet
from grade import Exercise

# ---- inputs: negative numbers, all sizes different, bases that are not orthonormal ----------------------------------


def tokens(seed):
    """(Z (N, d), eps)"""
    g = torch.Generator().manual_seed(seed)
    N, d = ((7, 4), (3, 6), (9, 5))[seed - 1]
    return torch.randn(N, d, generator=g, dtype=torch.float64), (0.5, 0.3, 0.8)[seed - 1]


def tokens_and_bases(seed):
    """(Z (N, d), U (K, d, p), eps)"""
    Z, eps = tokens(seed)
    g = torch.Generator().manual_seed(seed + 100)
    K, p = ((2, 3), (4, 2), (3, 2))[seed - 1]
    return Z, torch.randn(K, Z.shape[1], p, generator=g, dtype=torch.float64), eps


# ---- oracles: loops over numbers ------------------------------------------------------------------------------------

def rate(Z, eps):
    """Eq. (7), token by token: I + d / (N eps^2) sum_i z_i z_i^T."""
    N, d = len(Z), len(Z[0])
    A = [[float(r == c) for c in range(d)] for r in range(d)]
    for z in Z:
        for r in range(d):
            for c in range(d):
                A[r][c] += d / (N * eps ** 2) * z[r] * z[c]
    return 0.5 * logdet(A)


def projected(Z, U):
    """U_k^T z of every token, for each k."""
    return [[[sum(z[i] * Uk[i][j] for i in range(len(z))) for j in range(len(Uk[0]))] for z in Z] for Uk in U]


def rate_of_subspaces(Z, U, eps):
    """Eq. (8)."""
    return sum(rate(W, eps) for W in projected(Z, U))


def gradient(Z, U, eps, h=1e-3):
    """Eq. (9), without its formula: the slope of eq. (8) along each number of Z, by differences of
    fourth order."""
    out = [[0.0] * len(Z[0]) for _ in Z]
    for i in range(len(Z)):
        for j in range(len(Z[0])):
            def at(step, i=i, j=j):
                moved = [row[:] for row in Z]
                moved[i][j] += step
                return rate_of_subspaces(moved, U, eps)
            out[i][j] = (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h)
    return out


# ---- right ways and mistakes ----------------------------------------------------------------------------------------

def R(Z, eps, half=0.5, power=2, scale=None, small=False, identity=1.0):
    N, d = Z.shape
    n = N if small else d
    gram = Z @ Z.T if small else Z.T @ Z
    return half * torch.logdet(identity * torch.eye(n, dtype=Z.dtype) + (scale or d / (N * eps ** power)) * gram)


def Rc(Z, U, eps, of=R):
    return sum(of(Z @ Uk, eps) for Uk in U)


def grad(Z, U, eps, beta=None, back=True, inverse=True, power=2, inner=None):
    N, p = len(Z), U.shape[-1]
    b = beta or p / (N * eps ** power)
    total = torch.zeros_like(Z)
    for Uk in U:
        W = Z @ Uk
        M = torch.eye(p, dtype=Z.dtype) + (inner or b) * W.T @ W
        total += b * (W @ torch.linalg.inv(M) if inverse else W) @ (Uk.T if back else torch.linalg.pinv(Uk))
    return total


def by_autograd(Z, U, eps):
    Z = Z.clone().requires_grad_()
    return torch.autograd.grad(Rc(Z, U, eps), Z)[0]


EXERCISES = [
    Exercise(
        'coding_rate', tokens, rate,
        {'the rate without the factor 1/2': lambda Z, eps: R(Z, eps, half=1.0),
         'the rate in bits: nats have the natural logarithm': lambda Z, eps: R(Z, eps) / math.log(2),
         'the rate with eps, and not eps squared': lambda Z, eps: R(Z, eps, power=1),
         'the rate with N / (d eps^2), upside down': lambda Z, eps: R(Z, eps, scale=len(Z) / (Z.shape[1] * eps ** 2)),
         'the rate with 1 / (N eps^2), without d': lambda Z, eps: R(Z, eps, scale=1 / (len(Z) * eps ** 2)),
         'the determinant without the identity': lambda Z, eps: R(Z, eps, identity=0.0),
         'the determinant without its logarithm': lambda Z, eps: 0.5 * torch.exp(2 * R(Z, eps)),
         'the trace in place of the determinant': lambda Z, eps: 0.5 * torch.log(
             1 + Z.shape[1] / (len(Z) * eps ** 2) * Z.square().sum()),
         'the rate of centred tokens: the formula has no mean': lambda Z, eps: R(Z - Z.mean(0), eps)},
        [lambda Z, eps: R(Z, eps), lambda Z, eps: R(Z, eps, small=True),
         lambda Z, eps: 0.5 * torch.log1p(Z.shape[1] / (len(Z) * eps ** 2)
                                          * torch.linalg.svdvals(Z).square()).sum()],
        ("The tokens are the rows of Z here, and the columns in the paper. Which of Z.T @ Z and Z @ Z.T is the paper's "
         'Z Z^*, and which size has the identity beside it?',
         'R(Z) = 1/2 logdet(I + d / (N eps^2) Z^T Z), eq. (7), for Z (N, d) with a token in each row.',
         'N, d = Z.shape\n'
         'gram = ...                        # (d, d)\n'
         'return 0.5 * torch.logdet(... + ... * gram)')),
    Exercise(
        'compressed_rate', tokens_and_bases, rate_of_subspaces,
        {'the rate of the tokens themselves, without any U_k': lambda Z, U, eps: R(Z, eps),
         'the rate in all subspaces side by side, not their sum': lambda Z, U, eps: R(
             torch.cat([Z @ u for u in U], 1), eps),
         'the mean over the subspaces, not the sum': lambda Z, U, eps: Rc(Z, U, eps) / len(U),
         'the first subspace alone': lambda Z, U, eps: R(Z @ U[0], eps),
         'the sum with d / (N eps^2), where p is the dimension now': lambda Z, U, eps: sum(
             R(Z @ u, eps, scale=Z.shape[1] / (len(Z) * eps ** 2)) for u in U),
         'the rate of U_k U_k^T z, which is back in d dimensions': lambda Z, U, eps: Rc(
             Z, torch.stack([u @ u.T for u in U]), eps),
         'the rate with eps = 0.5, whatever is given: eps is not passed on': lambda Z, U, eps: Rc(Z, U, 0.5),
         'the rate without the factor 1/2': lambda Z, U, eps: 2 * Rc(Z, U, eps)},
        [Rc, lambda Z, U, eps: sum(R(W, eps, small=True) for W in Z @ U)],
        ('Coding rates need tokens. What are the tokens of subspace k, and how many numbers has each?',
         'R^c(Z; U) = sum_k R(U_k^T Z), eq. (8): eq. (7) of the projected tokens, with p in place of d.',
         'total = 0\n'
         'for U_k in U:                     # (d, p)\n'
         '    total += coding_rate(..., eps)\n'
         'return total')),
    Exercise(
        'compressed_rate_gradient', tokens_and_bases, gradient,
        {'minus the gradient: this is the direction that compresses': lambda Z, U, eps: -grad(Z, U, eps),
         'the gradient without the inverse': lambda Z, U, eps: grad(Z, U, eps, inverse=False),
         'the gradient without the factor p / (N eps^2) in front': lambda Z, U, eps: grad(Z, U, eps) * (
             len(Z) * eps ** 2 / U.shape[-1]),
         'twice the gradient: the 1/2 of eq. (8) is gone': lambda Z, U, eps: 2 * grad(Z, U, eps),
         'the gradient with eps, and not eps squared': lambda Z, U, eps: grad(Z, U, eps, power=1),
         'the gradient with d in place of p': lambda Z, U, eps: grad(Z, U, eps, beta=Z.shape[1] / (len(Z) * eps ** 2)),
         'the gradient without p / (N eps^2) inside the inverse': lambda Z, U, eps: grad(Z, U, eps, inner=1.0),
         'the gradient of the first subspace alone': lambda Z, U, eps: grad(Z, U[:1], eps)},
        [grad, by_autograd],
        ('Which way does a token move if R^c shall fall: along the gradient, or against it? Which of the two does the '
         'function return?',
         'The gradient is p / (N eps^2) sum_k (I + p / (N eps^2) W_k W_k^T)^-1 W_k U_k^T with W_k = Z U_k (N, p): eq. '
         '(9) with tokens as rows.',
         'N, p = len(Z), U.shape[-1]\n'
         'beta, total = ..., torch.zeros_like(Z)\n'
         'for U_k in U:\n'
         '    W = Z @ U_k                   # (N, p)\n'
         '    total += beta * torch.linalg.solve(..., W) @ ...\n'
         'return total')),
]
