"""Denoising one token of a mixture of low-dimensional Gaussians: `tweedie`, a command of analyze.py
that needs no trained network.

Tokens are rows, x (n, d), where the papers have columns. Equation numbers are CRATE's (Yu et al.,
NeurIPS 2023, section 2.2 and appendix A.1); those of its longer version (JMLR 2024, section 3.1)
say so.
"""
import math
from dataclasses import dataclass

import torch

from analysis.measures import random_bases
from analysis.charts import lines, panels
from analysis.tables import say_rows
from analysis.theory import TheoryConfig, shipped_attention


# ---- the signal model, and its exact denoiser -----------------------------------------------------------------------

@dataclass
class Mixture:
    """Proposition 1: z = U_k a with probability pi_k, where a ~ N(0, Lambda_k). So Sigma_k = U_k
    Lambda_k U_k^T, and the noisy token is x = z + sigma w, eq. (3)."""
    U: torch.Tensor              # orthonormal bases U_k: (K, d, p)
    lam: torch.Tensor            # the diagonals of Lambda_k: (K, p)
    pi: torch.Tensor             # probabilities: (K,)

    def draw(self, n, generator):
        """n tokens without noise (n, d), and the subspace of each (n,)."""
        s = torch.multinomial(self.pi, n, replacement=True, generator=generator)
        a = torch.randn(n, self.lam.size(1), generator=generator, dtype=self.U.dtype) * self.lam[s].sqrt()
        return torch.einsum('ndp,np->nd', self.U[s], a), s


def gaussian_logits(x, m, sigma):
    """log pi_k q(x | k) up to a constant, eqs. (26) and (32): log pi_k det(M_k) - |M_k x|^2 / 2 with
    M_k = (Sigma_k + sigma^2 I)^(-1/2), eq. (19). (n, d) -> (K, n)."""
    w, noisy = x @ m.U, m.lam[:, None] + sigma ** 2                     # U_k^T x (K, n, p), and (K, 1, p)
    outside = x.square().sum(-1) - w.square().sum(-1)                   # |x|^2 - |U_k^T x|^2: (K, n)
    return log_weights(m, sigma)[:, None] - (outside / sigma ** 2 + (w.square() / noisy).sum(-1)) / 2


def log_weights(m, sigma):
    """log pi_k det(M_k) of each subspace, (K,). Proposition 1 assumes that they are equal."""
    d, p = m.U.shape[1:]
    return m.pi.log() - ((m.lam + sigma ** 2).log().sum(-1) + (d - p) * math.log(sigma ** 2)) / 2


def score(x, m, sigma, equal=False):
    """The gradient of log q, eq. (32): - sum_k softmax_k M_k M_k x. With `equal` it is eq. (21), which
    leaves the weights pi_k det(M_k) out of the softmax. (n, d) -> (n, d)."""
    logits, w = gaussian_logits(x, m, sigma), x @ m.U
    r = (logits - equal * log_weights(m, sigma)[:, None]).softmax(0)    # (K, n)
    inside = w * (1 / (m.lam[:, None] + sigma ** 2) - 1 / sigma ** 2)   # M_k M_k x = x / sigma^2 + U_k inside_k
    return -x / sigma ** 2 - ((r[..., None] * inside) @ m.U.mT).sum(0)


def posterior_mean(x, m, sigma):
    """E[z | x], the denoiser of least squared error, eq. (4): in each subspace the Wiener filter
    Lambda_k / (Lambda_k + sigma^2), weighted by the probability that x belongs to it."""
    r = gaussian_logits(x, m, sigma).softmax(0)                         # P(k | x): (K, n)
    kept = x @ m.U * (m.lam / (m.lam + sigma ** 2))[:, None]            # (K, n, p)
    return (r[..., None] * (kept @ m.U.mT)).sum(0)


# ---- the approximations ---------------------------------------------------------------------------------------------

def approximation(x, U, sigma):
    """Approximation 2, eq. (38), which is eqs. (6) and (60) and the longer version's eq. (47): the
    projections U_k U_k^T x, weighted by softmax_k of |U_k^T x|^2 / (2 sigma^2). (n, d) -> (n, d)."""
    w = x @ U                                                           # (K, n, p)
    r = (w.square().sum(-1) / (2 * sigma ** 2)).softmax(0)              # (K, n)
    return (r[..., None] * (w @ U.mT)).sum(0)


def projected(x, U, s):
    """Each row of x (n, d) projected onto its subspace, s (n,)."""
    own = (s == torch.arange(len(U))[:, None])[..., None]               # (K, n, 1)
    return (own * (x @ U) @ U.mT).sum(0)


def nearest_projection(x, U):
    """x projected onto the nearest subspace; it is the limit of eq. (38) for sigma to 0."""
    return projected(x, U, (x @ U).square().sum(-1).argmax(0))


def proof_lines(x, m, sigma):
    """{line: E[z | x] by that line of the proof of Approximation 2}, each by Tweedie's formula,
    eq. (5). P_k = I - sigma M_k, eq. (42)."""
    shrink = 1 - sigma / (m.lam[:, None] + sigma ** 2).sqrt()           # P_k = U_k shrink U_k^T, eq. (48)
    w = x @ m.U
    r = ((shrink * w).square().sum(-1) / (2 * sigma ** 2)).softmax(0)[..., None]
    lines = {'eq. (54)': (w * (1 - (1 - shrink) ** 2)) @ m.U.mT,            # x - (I - P_k)(I - P_k) x
             'eq. (55)': (w * shrink) @ m.U.mT}                             # x - (I - P_k) x
    return {name: (r * z).sum(0) for name, z in lines.items()} | {'eq. (58)': approximation(x, m.U, sigma)}


def diffuse(Z, drift, T, depth, n_steps, noisy, generator):
    """CRATE-MAE's eq. (2.10) if noisy, else eq. (2.11), by Euler steps in which T - t falls by the same factor, down
    to T exp(-2 depth). Noise of tokens at time t has variance 2 (T - t), of which -drift(Z, variance) /
    variance stands for the score. Tokens (.., N, d) -> the same."""
    left, ratio = T, math.exp(-2 * depth / n_steps)
    for _ in range(n_steps):
        step = (1 - ratio) * left                                       # dt
        Z = Z - step / left * (1 if noisy else 0.5) * drift(Z, 2 * left)
        if noisy:
            Z = Z + (2 * step) ** 0.5 * torch.randn_like(Z, generator=generator)
        left *= ratio
    return Z


def reverse(x, m, sigma, steps, generator, last=1e-3):
    """Eq. (49) of the longer version: dz = score dt + dw, from variance T = sigma^2 down to (last sigma)^2. It is eq.
    (2.10) in CRATE-MAE's time; x (n, d) -> samples of z (n, d)."""
    return diffuse(x, lambda x, v: -v * score(x, m, v ** 0.5), sigma ** 2 / 2, -math.log(last), steps, True, generator)


# ---- the command ----------------------------------------------------------------------------------------------------

@dataclass
class TweedieConfig(TheoryConfig):
    n_head: int = 4                 # K, subspaces
    head_dim: int = 3               # p, dimension of a subspace; together they fill d = n_head x head_dim dimensions
    tokens: int = 4000              # tokens for the errors
    sigma: float = 0.5              # noise of the token from which eq. (49) starts

    def mixture(self, generator):
        U = random_bases(self.n_head, self.head_dim, self.d, generator)
        lam = 4 ** -torch.linspace(0, 1, self.head_dim, dtype=U.dtype)
        return Mixture(U, lam.repeat(self.n_head, 1), U.new_full((self.n_head,), 1 / self.n_head))


def rms(a):
    """Root of the mean squared length of tokens (n, d)."""
    return a.square().sum(-1).mean().sqrt().item()


def draw_tweedie(c):
    """Tweedie's formula, and the way back from one token; how fast Approximation 2 becomes right; and what each
    denoiser leaves of the noise."""
    generator = torch.Generator().manual_seed(c.seed)
    m, sigmas, rows = c.mixture(generator), [2 ** (i / 2) / 64 for i in range(13)], []
    mssa, (z, _) = shipped_attention(m.U), m.draw(c.tokens, generator)
    noise = torch.randn_like(z, generator=generator)
    x = z + c.sigma * noise
    exact, paths = posterior_mean(x, m, c.sigma), reverse(x[:1].expand(2000, -1), m, c.sigma, 400, generator)
    off = (exact - x - c.sigma ** 2 * score(x, m, c.sigma)).abs().max()
    away = (paths.mean(0) - exact[0]) / (paths.std(0) / 2000 ** 0.5)
    print(f'E[z | x] is x + sigma^2 score, eqs. (5) and (32), up to {off:.0e}; the mean of 2000 paths of eq. (49) is '
          f'{away.square().mean().sqrt():.2g} standard errors from it')
    for sigma in sigmas:
        x = z + sigma * noise
        exact = posterior_mean(x, m, sigma)
        denoisers = {'E[z | x], eq. (4)': exact, 'eq. (38)': approximation(x, m.U, sigma),
                     'nearest subspace': nearest_projection(x, m.U),
                     'MSSA of one token, eq. (12)': mssa(x[:, None])[:, 0]}  # every x is a sequence by itself
        for kind, exact, found, unit in (('from E[z | x]', exact, proof_lines(x, m, sigma), rms(z)),
                                         ('from z', z, denoisers, rms(x - z))):
            rows += [{'compared': kind, 'name': name, 'sigma': sigma, 'error': rms(estimate - exact) / unit}
                     for name, estimate in found.items()]
    print(f'Approximation 2 needs sigma below {m.lam.min() ** 0.5:.3g}; errors in units of |z|, then of the noise:')
    say_rows([row for row in rows if row['sigma'] in (sigmas[0], sigmas[-1])])
    error = {(row['name'], row['sigma']): row['error'] for row in rows}
    powers = {name: math.log2(error[name, sigmas[2]] / error[name, sigmas[0]]) for name in ('eq. (55)', 'eq. (58)')}
    print(f'here the error of Approximation 2, eq. (58), falls as sigma^{powers["eq. (58)"]:.2f}, that of eq. (55) as '
          f'sigma^{powers["eq. (55)"]:.2f}; the theory says to 0')
    figure, axes = panels(12, 5.2, 2)
    for axis, kind, title, unit in (
            (axes[0], 'from E[z | x]', 'error of what the proof puts\nin the place of the best estimate', '|z|'),
            (axes[1], 'from z', 'what denoisers leave of the noise;\n1 = all of it', '|sigma w|')):
        lines(axis, [row for row in rows if row['compared'] == kind], 'name', 'sigma', 'error', title=title,
              xlabel='sigma, size of the noise', ylabel=f'distance {kind}, over {unit}', xscale='log', yscale='log')
    return figure, rows
