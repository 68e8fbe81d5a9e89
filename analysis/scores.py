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
from analysis.panels import lines, panels, say_rows, say_table
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


def log_density(x, m, sigma):
    """log q(x), eqs. (23) and (26): (n, d) -> (n,)."""
    return gaussian_logits(x, m, sigma).logsumexp(0) - x.size(-1) / 2 * math.log(2 * math.pi)


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


def monte_carlo_mean(x, m, sigma, n, generator):
    """E[z | x] of one token x (d,) without any formula of the mixture: the mean of n clean tokens z,
    weighted by the density of the noise x - z. Returns it and its standard error, both (d,)."""
    z, _ = m.draw(n, generator)
    weights = (-(x - z).square().sum(-1) / (2 * sigma ** 2)).softmax(0)[:, None]
    mean = (weights * z).sum(0)
    return mean, (weights * (z - mean)).square().sum(0).sqrt()


# ---- the approximations ---------------------------------------------------------------------------------------------

def approximation(x, U, sigma):
    """Approximation 2, eq. (38), which is eqs. (6) and (60) and the longer version's eq. (47): the
    projections U_k U_k^T x, weighted by softmax_k of |U_k^T x|^2 / (2 sigma^2). (n, d) -> (n, d)."""
    w = x @ U                                                           # (K, n, p)
    r = (w.square().sum(-1) / (2 * sigma ** 2)).softmax(0)              # (K, n)
    return (r[..., None] * (w @ U.mT)).sum(0)


def nearest_projection(x, U):
    """x projected onto the nearest subspace; it is the limit of eq. (38) for sigma to 0."""
    best, found = (x @ U).square().sum(-1).argmax(0), torch.zeros_like(x)  # (n,), (n, d)
    for k, u in enumerate(U):
        found[best == k] = x[best == k] @ u @ u.T
    return found


def proof_lines(x, m, sigma):
    """{line: E[z | x] by that line of the proof of Approximation 2}, each by Tweedie's formula,
    eq. (5). P_k = I - sigma M_k, eq. (42)."""
    shrink = 1 - sigma / (m.lam[:, None] + sigma ** 2).sqrt()           # P_k = U_k shrink U_k^T, eq. (48)
    w = x @ m.U
    r = ((shrink * w).square().sum(-1) / (2 * sigma ** 2)).softmax(0)[..., None]
    lines = {'eq. (54)': (w * (1 - (1 - shrink) ** 2)) @ m.U.mT,            # x - (I - P_k)(I - P_k) x
             'eq. (55)': (w * shrink) @ m.U.mT}                             # x - (I - P_k) x
    return {name: (r * z).sum(0) for name, z in lines.items()} | {'eq. (58)': approximation(x, m.U, sigma)}


def reverse(x, m, sigma, steps, generator, last=1e-3):
    """Eq. (49) of the longer version: dz = score dt + dw, from variance T = sigma^2 down to (last
    sigma)^2, by Euler steps in geometric progression; x (n, d) -> samples of z (n, d)."""
    ratio = last ** (2 / steps)
    for step in range(steps):
        t = sigma ** 2 * ratio ** step                                  # the variance that is left
        dt = t * (1 - ratio)
        x = x + dt * score(x, m, t ** 0.5) + dt ** 0.5 * torch.randn(x.shape, generator=generator, dtype=x.dtype)
    return x


# ---- the command ----------------------------------------------------------------------------------------------------

@dataclass
class TweedieConfig(TheoryConfig):
    n_head: int = 4                 # K, subspaces
    head_dim: int = 3               # p, dimension of a subspace; together they fill d = n_head x head_dim dimensions
    tokens: int = 4000              # tokens for the errors
    spread: float = 4.0             # largest eigenvalue of Lambda_k, which is 1, over the smallest
    tilt: float = 1.0               # probability of a subspace over that of the one before; 1: all alike
    sigma: float = 0.5              # noise of the tokens for Monte Carlo, and where eq. (49) starts
    ranges = TheoryConfig.ranges | {'spread': (1, 1e6), 'tilt': (0.01, 100), 'sigma': (0.01, 10)}

    def mixture(self, generator):
        K, p = self.n_head, self.head_dim
        lam = self.spread ** -torch.linspace(0, 1, p, dtype=torch.float64)
        pi = self.tilt ** torch.arange(K, dtype=torch.float64)
        return Mixture(random_bases(K, p, self.d, generator), lam.repeat(K, 1), pi / pi.sum())


def rms(a):
    """Root of the mean squared length of tokens (n, d)."""
    return a.square().sum(-1).mean().sqrt().item()


def draw_tweedie(c):
    """Tweedie's formula: the closed form, automatic differentiation and Monte Carlo against each
    other; how fast Approximation 2 becomes right; and what each denoiser leaves of the noise."""
    generator = torch.Generator().manual_seed(c.seed)
    m, sigmas, rows = c.mixture(generator), [2 ** (i / 2) / 64 for i in range(13)], []
    mssa = shipped_attention(m.U)
    z, s = m.draw(c.tokens, generator)
    noise = torch.randn(z.shape, generator=generator, dtype=z.dtype)
    weights = log_weights(m, c.sigma)
    apart = weights.max() - weights.min()
    print(f'Proposition 1 needs all pi_k det(M_k) equal: the largest is {apart.exp():.3g} times the smallest. '
          f'Approximation 2 needs sigma^2 below every eigenvalue, so sigma below {m.lam.min() ** 0.5:.3g}')
    say_three_ways(c, m, z + c.sigma * noise, generator)
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
    print('error of lines of the proof of Approximation 2, of |z|, and what a denoiser leaves of the noise:')
    say_rows([row for row in rows if row['sigma'] in (sigmas[0], sigmas[-1])])
    say_limits(c, rows, sigmas)
    figure, axes = panels(11, 4.4, 1, 2)
    for axis, kind, title in ((axes[0], 'from E[z | x]', 'error of lines of the proof, of |z|'),
                              (axes[1], 'from z', 'what denoisers leave of |sigma w|')):
        lines(axis, [row for row in rows if row['compared'] == kind], 'name', 'sigma', 'error', title=title,
              ylabel=f'distance {kind}', xscale='log', yscale='log')
    return figure, rows


def say_three_ways(c, m, x, generator):
    with torch.enable_grad():
        leaf = x.clone().requires_grad_()
        slope, = torch.autograd.grad(log_density(leaf, m, c.sigma).sum(), leaf)
    exact = posterior_mean(x, m, c.sigma)
    ways = {'eq. (32)': score(x, m, c.sigma), 'automatic differentiation of log q': slope,
            'eq. (21), without weights': score(x, m, c.sigma, equal=True)}
    print(f'E[z | x] in closed form, sigma = {c.sigma:g}; its distance from x + sigma^2 score, eq. (5):')
    say_table(('score by', 'distance'),
              [(name, (exact - x - c.sigma ** 2 * way).abs().max().item()) for name, way in ways.items()])
    found = [monte_carlo_mean(token, m, c.sigma, 100_000, generator) for token in x[:4]]
    means, errors = (torch.stack(part) for part in zip(*found))
    paths = reverse(x[:1].expand(2000, -1), m, c.sigma, 400, generator)
    off = {'the Monte-Carlo mean': (means - exact[:4]) / errors,
           'the mean of 2000 paths of eq. (49)': (paths.mean(0) - exact[0]) / (paths.std(0) / 2000 ** 0.5)}
    print('in standard errors: ' + ', '.join(f'{name} {way.square().mean().sqrt():.4g}' for name, way in off.items())
          + f'; these paths end {rms(paths - nearest_projection(paths, m.U)):.0e} from a subspace')


def say_limits(c, rows, sigmas):
    error = {(row['name'], row['sigma']): row['error'] for row in rows}
    first, third = sigmas[0], sigmas[2]                                 # a factor of 2
    order = {name: math.log2(error[name, third] / error[name, first]) for name in ('eq. (55)', 'eq. (58)')}
    print(f'here the error of Approximation 2, eq. (58), falls as sigma^{order["eq. (58)"]:.2f}, that of eq. (55) as '
          f'sigma^{order["eq. (55)"]:.2f}; the theory says to 0')
    print(f'a projection leaves sqrt(p/d) = {(c.head_dim / c.d) ** 0.5:.3f} of the noise, here MSSA of one token '
          f'{error["MSSA of one token, eq. (12)", first]:.3f}: it does not choose among the subspaces')
