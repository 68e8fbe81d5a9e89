"""Denoising one token of a mixture of low-dimensional Gaussians: `tweedie`, a command of analyze.py
that needs no trained network.

Tokens are rows, x (n, d), where the papers have columns. m is a Mixture, s (n,) the number of each
token's subspace, and r (K, n) the weight of each subspace for each token. Equation numbers are
those of CRATE (Yu et al., NeurIPS 2023, section 2.2 and appendix A.1), unless the text names its
longer version (JMLR 2024, section 3.1).
"""
import math
from dataclasses import dataclass

import torch
from torch.nn.functional import one_hot

from analysis.charts import lines, panels
from analysis.measures import gaussian
from analysis.tables import say_rows
from analysis.theory import TheoryConfig, shipped_attention


# ---- the signal model, and its exact denoiser ---------------------------------------------------

@dataclass
class Mixture:
    """Proposition 1: z = U_k a with probability pi_k, where a ~ N(0, Lambda_k). So Sigma_k = U_k
    Lambda_k U_k^T, and the noisy token is x = z + sigma w, eq. (3)."""
    U: torch.Tensor              # orthonormal bases U_k: (K, d, p)
    lam: torch.Tensor            # the diagonals of Lambda_k: (K, p)
    pi: torch.Tensor             # probabilities: (K,)

    def draw(self, n, generator):
        """n tokens without noise (n, d), and the number of the subspace of each (n,)."""
        p = self.lam.size(1)
        s = torch.multinomial(self.pi, n, replacement=True, generator=generator)
        a = gaussian(generator, n, p) * self.lam[s].sqrt()
        z = torch.einsum('ndp,np->nd', self.U[s], a)        # U_k a
        return z, s


def equal_mixture(U, lam):
    """The Mixture of equally probable subspaces U (K, d, p), all with the variances lam (p,)."""
    K = len(U)
    return Mixture(U, lam.repeat(K, 1), pi=U.new_full((K,), 1 / K))


def gaussian_logits(x, m, sigma):
    """log pi_k q(x | k) of tokens x (n, d) up to a constant, eqs. (26) and (32): log pi_k det(M_k)
    - |M_k x|^2 / 2 with M_k = (Sigma_k + sigma^2 I)^(-1/2), eq. (19) -> (K, n)."""
    w = x @ m.U                                             # U_k^T x: (K, n, p)
    variance = m.lam[:, None] + sigma ** 2                  # of noisy tokens along U_k: (K, 1, p)
    outside = x.square().sum(-1) - w.square().sum(-1)       # |x|^2 - |U_k^T x|^2: (K, n)
    inside = (w.square() / variance).sum(-1)                # (K, n)
    squared_length = outside / sigma ** 2 + inside          # |M_k x|^2: (K, n)

    d, p = m.U.shape[1:]
    # of Sigma_k + sigma^2 I = M_k^(-2): (K, 1)
    log_det = variance.log().sum(-1) + (d - p) * math.log(sigma ** 2)
    log_weights = m.pi.log()[:, None] - log_det / 2         # log pi_k det(M_k): (K, 1)
    return log_weights - squared_length / 2


def score(x, m, sigma):
    """The gradient of log q, eq. (32): - sum_k softmax_k M_k M_k x. Eq. (21) leaves the weights
    pi_k det(M_k) out of the softmax, because Proposition 1 assumes that they are equal. (n, d) ->
    (n, d)."""
    r = gaussian_logits(x, m, sigma).softmax(0)             # (K, n)

    # M_k M_k x = x / sigma^2 + U_k inside_k
    w = x @ m.U                                             # U_k^T x: (K, n, p)
    variance = m.lam[:, None] + sigma ** 2                  # (K, 1, p)
    inside = w * (1 / variance - 1 / sigma ** 2)            # (K, n, p)
    weighted = r[..., None] * inside
    return -x / sigma ** 2 - (weighted @ m.U.mT).sum(0)


def posterior_mean(x, m, sigma):
    """E[z | x], the denoiser of least squared error, eq. (4): in each subspace the Wiener filter
    Lambda_k / (Lambda_k + sigma^2), weighted by the probability that x belongs to it. (n, d) ->
    (n, d)."""
    r = gaussian_logits(x, m, sigma).softmax(0)             # P(k | x): (K, n)
    wiener = m.lam / (m.lam + sigma ** 2)                   # (K, p)
    filtered = x @ m.U * wiener[:, None]                    # (K, n, p)
    denoised = filtered @ m.U.mT                            # in each subspace: (K, n, d)
    return (r[..., None] * denoised).sum(0)


# ---- the approximations -------------------------------------------------------------------------

def memberships(w, sigma):
    """softmax_k of |w_k|^2 / (2 sigma^2) for tokens in each subspace, w (K, n, p) -> (K, n, 1)."""
    squared_length = w.square().sum(-1, keepdim=True)
    return (squared_length / (2 * sigma ** 2)).softmax(0)


def approximation(x, U, sigma):
    """Approximation 2, eq. (38), which is eqs. (6) and (60) and the longer version's eq. (47): the
    projections U_k U_k^T x, weighted by softmax_k of |U_k^T x|^2 / (2 sigma^2). (n, d) -> (n,
    d)."""
    w = x @ U                                               # U_k^T x: (K, n, p)
    projections = w @ U.mT                                  # (K, n, d)
    return (memberships(w, sigma) * projections).sum(0)


def projected(x, U, s):
    """Each row of x (n, d) projected onto its subspace, whose number is in s (n,)."""
    is_in_subspace = one_hot(s, len(U)).T[..., None]        # 0 or 1: (K, n, 1)
    w = is_in_subspace * (x @ U)                            # (K, n, p)
    return (w @ U.mT).sum(0)


def nearest_projection(x, U):
    """x (n, d) projected onto the nearest subspace. It is the limit of eq. (38) for sigma to 0."""
    nearest = (x @ U).square().sum(-1).argmax(0)            # (n,)
    return projected(x, U, nearest)


def proof_lines(x, m, sigma):
    """{line: E[z | x] by that line of the proof of Approximation 2}, each by Tweedie's formula,
    eq. (5). P_k = I - sigma M_k, eq. (42)."""
    variance = m.lam[:, None] + sigma ** 2                  # (K, 1, p)
    shrink = 1 - sigma / variance.sqrt()                    # P_k = U_k shrink U_k^T, eq. (48)
    w = x @ m.U                                             # U_k^T x: (K, n, p)
    r = memberships(shrink * w, sigma)                      # by |P_k x|^2: (K, n, 1)
    eq_54 = (w * (1 - (1 - shrink) ** 2)) @ m.U.mT          # x - (I - P_k)(I - P_k) x: (K, n, d)
    eq_55 = (w * shrink) @ m.U.mT                           # x - (I - P_k) x: (K, n, d)
    return {
        'eq. (54)': (r * eq_54).sum(0),
        'eq. (55)': (r * eq_55).sum(0),
        'eq. (58)': approximation(x, m.U, sigma),
    }


def diffuse(Z, drift, T, depth, n_steps, noisy, generator):
    """CRATE-MAE's eq. (2.10) if noisy, and eq. (2.11) if not, by Euler steps. In each step the time
    that is left, T - t, falls by the same factor, down to T exp(-2 depth).

    Tokens Z (.., N, d) -> the same shape. Their noise at time t has variance 2 (T - t), and
    -drift(Z, variance) / variance stands for the score.
    """
    time_left = T                                           # T - t
    factor = math.exp(-2 * depth / n_steps)
    drift_share = 1 if noisy else 0.5
    for _ in range(n_steps):
        dt = (1 - factor) * time_left
        Z = Z - dt / time_left * drift_share * drift(Z, 2 * time_left)
        if noisy:
            Z = Z + (2 * dt) ** 0.5 * torch.randn_like(Z, generator=generator)
        time_left *= factor
    return Z


def score_drift(m):
    """The drift of `diffuse` that stands for the true score of the noisy tokens of a Mixture."""
    def drift(Z, variance):
        scores = score(Z.flatten(0, -2), m, variance ** 0.5)
        return -variance * scores.view_as(Z)
    return drift


def reverse(x, m, sigma, steps, generator):
    """Eq. (49) of the longer version: dz = score dt + dw, from variance T = sigma^2 down to (sigma
    / 1000)^2. In CRATE-MAE's time it is eq. (2.10). x (n, d) -> samples of z (n, d)."""
    T = sigma ** 2 / 2                                      # CRATE-MAE's variance is 2 T
    depth = -math.log(1e-3)
    return diffuse(x, score_drift(m), T, depth, steps, True, generator)


# ---- the command --------------------------------------------------------------------------------

@dataclass
class TweedieConfig(TheoryConfig):
    n_head: int = 4      # K, subspaces
    head_dim: int = 3    # p, dimension of a subspace; all together fill d = n_head x head_dim
    tokens: int = 4000   # tokens for the errors
    sigma: float = 0.5   # noise of the token from which eq. (49) starts

    def mixture(self, generator):
        """The Mixture of the command. Its subspaces are orthogonal and equally probable, and the
        variances in a subspace fall from 1 to 1/4."""
        U = self.random_bases(generator)
        lam = 4 ** -torch.linspace(0, 1, self.head_dim, dtype=U.dtype)
        return equal_mixture(U, lam)


def rms(tokens):
    """Root of the mean squared length of tokens (n, d)."""
    return tokens.square().sum(-1).mean().sqrt().item()


def draw_tweedie(c):
    """Tweedie's formula, and the way back from one token; how fast Approximation 2 becomes right;
    and what each denoiser leaves of the noise."""
    generator = c.generator()
    m = c.mixture(generator)
    z, _ = m.draw(c.tokens, generator)
    w = torch.randn_like(z, generator=generator)            # the noise, before its factor sigma
    say_tweedie(m, z + c.sigma * w, c.sigma, generator)

    sigmas = [2 ** (i / 2) / 64 for i in range(13)]         # from 1/64 to 1
    rows = []
    for sigma in sigmas:
        rows += error_rows(m, z, w, sigma)
    say_errors(m, rows, sigmas)
    return draw_errors(rows), rows


def say_tweedie(m, x, sigma, generator):
    """Print how well Tweedie's formula, eq. (5), agrees with eq. (4) for tokens x (n, d), and how
    well the mean of eq. (49) does for the first of them."""
    exact = posterior_mean(x, m, sigma)
    difference = exact - x - sigma ** 2 * score(x, m, sigma)
    tweedie_error = difference.abs().max()

    n_paths = 2000
    paths = reverse(x[:1].expand(n_paths, -1), m, sigma, 400, generator)
    standard_error = paths.std(0) / n_paths ** 0.5
    deviation = (paths.mean(0) - exact[0]) / standard_error     # of each dimension: (d,)
    mean_deviation = deviation.square().mean().sqrt()
    print(f'E[z | x] is x + sigma^2 score, eqs. (5) and (32), up to {tweedie_error:.0e}; the mean '
          f'of {n_paths} paths of eq. (49) is {mean_deviation:.2g} standard errors from it')


def error_rows(m, z, w, sigma):
    """Rows of the table for tokens z (n, d) with the noise sigma w: how far the lines of the proof
    are from E[z | x], in units of |z|, and how far denoisers are from z, in units of the noise."""
    x = z + sigma * w
    exact = posterior_mean(x, m, sigma)
    mssa = shipped_attention(m.U)
    denoisers = {
        'E[z | x], eq. (4)': exact,
        'eq. (38)': approximation(x, m.U, sigma),
        'nearest subspace': nearest_projection(x, m.U),
        'MSSA of one token, eq. (12)': mssa(x[:, None])[:, 0],  # every x is a sequence by itself
    }
    comparisons = (  # estimates, what they are compared with, and the unit
        ('from E[z | x]', proof_lines(x, m, sigma), exact, z),
        ('from z', denoisers, z, x - z),
    )
    rows = []
    for compared, estimates, target, unit in comparisons:
        for name, estimate in estimates.items():
            error = rms(estimate - target) / rms(unit)
            rows.append({'compared': compared, 'name': name, 'sigma': sigma, 'error': error})
    return rows


def say_errors(m, rows, sigmas):
    """Print the rows of the smallest and the largest noise, and the powers of sigma by which errors
    fall."""
    print(f'Approximation 2 needs sigma below {m.lam.min() ** 0.5:.3g}; '
          'errors in units of |z|, then of the noise:')
    extremes = (sigmas[0], sigmas[-1])
    say_rows([row for row in rows if row['sigma'] in extremes])

    powers = []
    for name in ('eq. (58)', 'eq. (55)'):
        errors = [row['error'] for row in rows if row['name'] == name]  # of each sigma
        powers.append(math.log2(errors[2] / errors[0]))                 # while sigma doubles
    print(f'here the error of Approximation 2, eq. (58), falls as sigma^{powers[0]:.2f}, that of '
          f'eq. (55) as sigma^{powers[1]:.2f}; the theory says to 0')


def draw_errors(rows):
    """The figure: errors over sigma, on the left those from E[z | x], on the right those from z."""
    figure, axes = panels(12, 5.2, 2)
    settings_of_panels = {
        'from E[z | x]': {
            'title': 'error of what the proof puts\nin the place of the best estimate',
            'ylabel': r'distance from E[z | x], over $\|z\|$',
            'yscale': 'log',
        },
        'from z': {
            'title': 'what denoisers leave of the noise;\n1 = all of it',
            'ylabel': r'distance from z, over $\|\sigma w\|$',
            'ylim': (0, None),
        },
    }
    for axis, (compared, settings) in zip(axes, settings_of_panels.items()):
        rows_of_panel = [row for row in rows if row['compared'] == compared]
        lines(axis, rows_of_panel, 'name', 'sigma', 'error', xscale='log',
              xlabel=r'$\sigma$, size of the noise', **settings)
        axis.legend(fontsize='small')
    return figure
