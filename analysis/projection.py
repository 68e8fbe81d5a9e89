"""Does the gradient of the coding rate point to the nearest subspace? `nearest`, a command of
analyze.py that needs no trained network.

Tokens are rows, Z (N, d), where the paper has columns. Equation numbers are CRATE-MAE's (Pai et
al., ICLR 2024): Theorem 1, which is Theorem 3 in its appendix A.2, and Figure 3.
"""
import math
from dataclasses import dataclass

import torch

from analysis.measures import compressed_rate_gradient, random_bases, turning
from analysis.charts import panels
from analysis.tables import say_table
from analysis.scores import Mixture, nearest_projection, projected, score
from analysis.theory import TheoryConfig, shipped_attention


# ---- the theorem ----------------------------------------------------------------------------------------------------

def noisy_codebook(U, N, sigma, generator):
    """N tokens of eq. (A.34): U_s alpha + delta, where alpha ~ N(0, I / p) and delta ~ N(0, sigma^2 I /
    d). Returns the clean tokens X (N, d), the noise Delta (N, d) and the subspaces s (N,)."""
    K, d, p = U.shape
    s = torch.randint(K, (N,), generator=generator)
    alpha, delta = (torch.randn(N, n, generator=generator, dtype=U.dtype) / n ** 0.5 for n in (p, d))
    own = (s[:, None] == torch.arange(K))[..., None]                    # (N, K, 1)
    X = (own * alpha[:, None]).flatten(1) @ U.mT.flatten(0, 1)
    return X, sigma * delta, s


def outside(T, U, s):
    """The part of each row of T (N, d) outside the subspace of its token."""
    return T - projected(T, U, s)


def best_eps(K, p, N, sigma):
    """The precision for which the theorem's bound is least, eq. (A.46)."""
    d = K * p
    return (sigma * d / (N * K * (sigma + (N / d) ** 0.5) ** 0.5)) ** 0.5


def relevant_noise(X, Delta, s, U, beta):
    """P_U(Delta), eqs. (A.116) and (A.117): of the noise in other subspaces U_k, what the tokens A_k of
    those subspaces do not span, as beta grows. (N, d)."""
    found, eye = torch.zeros_like(X), torch.eye(U.size(2), dtype=X.dtype)
    for k, u in enumerate(U):
        A = (X[s == k] @ u).T                                           # (p, N_k)
        inner = eye - A @ torch.linalg.solve(torch.eye(A.size(1), dtype=X.dtype) / beta + A.T @ A, A.T)
        found += (Delta @ u * (s != k)[:, None]) @ inner @ u.T
    return found


def theorem(U, N, sigma, eps, generator):
    """What one gradient step Z - eta grad R^c, eq. (A.39) with eta = 1 / beta, does to N tokens. `cosine`: to the
    direction of the nearest subspace, and `cosine_outside` without the part inside the own subspace; `noise_left` in
    other subspaces and `signal_left` by the step, and `_full` by one up R - R^c; `rest`: what eq. (A.42) does not
    explain."""
    K, d, p = U.shape
    X, Delta, s = noisy_codebook(U, N, sigma, generator)
    beta = p / (N * eps ** 2)                                           # eq. (A.37)
    Z = X + Delta
    down = -compressed_rate_gradient(Z, U, eps)
    full = down + compressed_rate_gradient(Z, torch.eye(d, dtype=Z.dtype)[None], eps)       # up R - R^c
    there, after, off = nearest_projection(Z, U) - Z, Z + down / beta, outside(Z, U, s)

    def left(after):                                                    # of the noise in other subspaces, of the signal
        return outside(after, U, s).square().sum() / off.square().sum(), (after * X).sum() / X.square().sum()
    (noise, signal), (noise_full, signal_full) = left(after), left(Z + full / beta)
    rest = after - (Delta - relevant_noise(X, Delta, s, U, beta) + X / (1 + 1 / beta))      # eq. (A.42)
    return {'N': N, 'N/d': N / d, 'sigma': sigma, 'eps': eps, 'beta': beta,
            'cosine': torch.cosine_similarity(down, there).mean(),
            'cosine_outside': torch.cosine_similarity(outside(down, U, s), there).mean(),
            'noise_left': noise, 'signal_left': signal, 'noise_left_full': noise_full, 'signal_left_full': signal_full,
            'rest': torch.linalg.matrix_norm(rest, 2), 'noise': torch.linalg.matrix_norm(Delta, 2)}


def conditions(K, p, N, eps):
    """[(whether it holds; the condition)] of Theorem 3 that have no unknown constants. ("eps <= 1 and the rest of
    Assumption 2 implies that beta >= 1", above eq. (A.97), is wrong: it needs eps^2 <= p / N.)"""
    d, most = K * p, N / (2 * K * math.sqrt(N * math.log(N)))
    return [(eps <= 1, f'eps <= 1: {eps:.3g}'),
            (d >= N >= p >= K >= 2, f'd >= N >= p >= K >= 2: {d}, {N}, {p}, {K}'),
            (most >= 1.5 ** 0.5, f'C_1 sqrt(N log N) <= N / (2 K) needs C_1 <= {most:.3g}, but eqs. (A.196) and '
                                 '(A.197) need C_1 >= sqrt(3/2) = 1.22')]


# ---- Figure 3: fields in the plane, with two lines as subspaces -----------------------------------------------------

def fields(generator, eps=0.3, sigma=0.2):
    """{name: what moves a token at each point}, and the points (n, 2). The lines are the axes."""
    U = torch.eye(2, dtype=torch.float64)[..., None]                    # (2, 2, 1)
    ticks = torch.linspace(-1.9, 1.9, 14, dtype=U.dtype)                # no point is on an axis or between them
    x = torch.cartesian_prod(ticks, ticks)
    x = x[(x[:, 0].abs() - x[:, 1].abs()).abs() > 1e-9]
    crowd = torch.block_diag(*torch.randn(2, 50, 1, generator=generator, dtype=U.dtype))    # 50 on each axis
    crowd = torch.cat((crowd, -crowd))                                  # of mean 0, as the model is
    together = torch.cat((crowd.expand(len(x), -1, -1), x[:, None]), 1)  # (n, 201, 2), our token is the last
    m = Mixture(U, U.new_ones(2, 1), U.new_full((2,), 0.5))
    return {'-grad R^c, a token alone': -compressed_rate_gradient(x[:, None], U, eps)[:, 0],
            '-grad R^c, 200 more tokens': -compressed_rate_gradient(together, U, eps)[:, -1],
            'MSSA, eq. (2.8), 200 more': shipped_attention(U)(together)[:, -1],
            f'score, sigma = {sigma:g}': score(x, m, sigma)}, x


def towards(field, x):
    """The mean cosine to the direction of the nearest line, and the share of points where the field
    turns a token towards it."""
    there = nearest_projection(x, torch.eye(2, dtype=x.dtype)[..., None]) - x
    return torch.cosine_similarity(field, there).mean(), ((turning(field, x) * there).sum(-1) > 0).double().mean()


# ---- the command ----------------------------------------------------------------------------------------------------

@dataclass
class NearestConfig(TheoryConfig):
    n_head: int = 12                # K, subspaces; the sizes are those of CRATE-MAE-Base
    head_dim: int = 64              # p, dimension of a subspace; together they fill d = n_head x head_dim dimensions
    tokens: int = 196               # N, tokens of all subspaces together
    sigma: float = 0.01             # length of the noise, of a token of length about 1


def draw_nearest(c):
    """CRATE-MAE's Theorem 1 measured under its noise model, for more and more tokens, and its Figure 3."""
    generator, d, N = torch.Generator().manual_seed(c.seed), c.d, c.tokens
    U = random_bases(c.n_head, c.head_dim, d, generator)
    numbers = sorted({N, *(max(2, round(d * share)) for share in (1/32, 1/16, 1/8, 1/4, 1/2, 3/4, 1, 3/2))})
    rows = [theorem(U, n, c.sigma, best_eps(c.n_head, c.head_dim, n, c.sigma), generator) for n in numbers]
    mine, (arrows, x) = rows[numbers.index(N)], fields(generator)
    say_table((f'conditions of Theorem 3, d = {d}', 'met'),
              [row[::-1] for row in conditions(c.n_head, c.head_dim, N, mine['eps'])])
    say_table((f'a step down the gradient, {N} tokens', ''), mine.items())
    print(f'by N/d = {N / d:.3g} cosine_outside is {max(0, 1 - N / d) ** 0.5:.3f}, noise_left {N / d:.3f}. Remark 4: '
          f'signal_left is {mine["signal_left"]:.4f}, and up R - R^c {mine["signal_left_full"]:.4f}')
    say_table(('Figure 3, two lines', 'mean cosine', 'turns to the nearest'),
              [(name, *towards(field, x)) for name, field in arrows.items()])
    print(f'here the cosine to the direction of the nearest subspace is {mine["cosine"]:.2f}; the theory says 1')
    figure, axes = panels(13.2, 4.3, 4)
    for axis, (name, field) in zip(axes, arrows.items()):
        axis.quiver(*x.T, *(field / field.norm(dim=1).max()).T, angles='xy', color='C0')
        axis.axhline(0, color='C1', linewidth=1)
        axis.axvline(0, color='C1', linewidth=1)
        axis.set(aspect='equal', xticks=[], yticks=[], title=name)
    figure.supxlabel('arrows: where a token goes; orange lines: the subspaces')
    return figure, rows
