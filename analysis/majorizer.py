"""The function of which ISTA with ista='mm' takes the minimum: `majorize`, a command of analyze.py
that needs no trained network.

Tokens are rows, Z (N, d), where the paper has columns. Equation numbers are CRATE's (Yu et al.,
NeurIPS 2023), appendix A.3. The sparse rate reduction phi, eq. (77), is replaced near a point Z0 by
a quadratic function that lies above it and touches it at Z0; the layer goes to the minimum of that.
"""
from dataclasses import dataclass

import torch
from torch.nn.functional import normalize

from analysis.measures import compressed_rate_gradient, random_bases
from analysis.charts import lines, panels
from analysis.tables import say_rows, say_table
from analysis.theory import Shared, shipped_ista

PAPER, SHARP = 9 / 4, 1 / 8  # L / alpha, what bounds the curvature of -R: by Lemma 6, and the least that does


# ---- the function, its majorizer and the minimum --------------------------------------------------------------------

def rate(Z, alpha):
    """R(Z), eq. (77): 1/2 logdet(I + alpha Z^T Z). (.., N, d) -> (..)."""
    return torch.logdet(torch.eye(Z.size(-2), dtype=Z.dtype) + alpha * Z @ Z.mT) / 2


def rate_gradient(Z, alpha):
    """Eq. (78), which is eq. (9) of one subspace with U = I."""
    eye = torch.eye(Z.size(1), dtype=Z.dtype)[None]
    return compressed_rate_gradient(Z, eye, eps=(Z.size(1) / (Z.size(0) * alpha)) ** 0.5)  # p / (N eps^2) = alpha


def phi(Z, alpha, lam):
    """The objective of eq. (77): infinite where a number is negative."""
    return lam * Z.sum() - rate(Z, alpha) if (Z >= 0).all() else torch.tensor(torch.inf)


def bound(Z, Z0, alpha, curvature=PAPER):
    """Eq. (84): lies above -R(Z) and touches it at Z0. L = alpha curvature."""
    step = Z - Z0
    return -rate(Z0, alpha) - (rate_gradient(Z0, alpha) * step).sum() + alpha * curvature / 2 * step.square().sum()


def minimum(Z0, alpha, lam, curvature=PAPER):
    """The Z >= 0 with the least bound(Z) + lam |Z|_1: a proximal step, eqs. (80) and (87)."""
    L = alpha * curvature
    return (Z0 + rate_gradient(Z0, alpha) / L - lam / L).relu()


def layer(Z0, alpha, lam, D=None):
    """ISTA of model_crate.py with ista='mm', eq. (92); D = I makes it eq. (88)."""
    D = torch.eye(Z0.size(1), dtype=Z0.dtype) if D is None else D
    return shipped_ista(D, ista='mm', alpha=alpha, lam=lam)(Z0)


# ---- the curvature --------------------------------------------------------------------------------------------------

def second_derivative(Z, Delta, alpha):
    """The Hessian of R at Z applied to Delta, eqs. (95) and (96). Both (.., N, d) -> (.., N, d)."""
    inverse = torch.linalg.inv(torch.eye(Z.size(-2), dtype=Z.dtype) + alpha * Z @ Z.mT)  # (.., N, N)
    mixed = Delta @ Z.mT + Z @ Delta.mT
    return alpha * inverse @ Delta - alpha ** 2 * inverse @ mixed @ inverse @ Z


def curvatures(Z, alpha):
    """The smallest and the largest eigenvalue of the Hessian of R at Z, over alpha."""
    units = torch.eye(Z.numel(), dtype=Z.dtype).view(-1, *Z.shape)
    found = torch.linalg.eigvalsh(second_derivative(Z, units, alpha).flatten(1)) / alpha
    return found[0], found[-1]


# ---- the command ----------------------------------------------------------------------------------------------------

@dataclass
class MajorizeConfig(Shared):
    n_embd: int = 64                # d, width of a token
    tokens: int = 16                # N, at most d: orthogonal tokens of length 1
    alpha: float = 1.0              # alpha of eq. (77), as in a CRATE with ista='mm'
    lam: float = 0.1                # weight lambda of sparsity
    steps: int = 64                 # the first is the layer


def starts(c, generator):
    """{name: N orthogonal tokens of length 1}: random, and without negative numbers, which is possible
    only if no two tokens use the same coordinate."""
    Q = random_bases(1, c.tokens, c.n_embd, generator)[0]
    own = torch.arange(c.n_embd) % c.tokens == torch.arange(c.tokens)[:, None]
    Z = torch.rand(c.tokens, c.n_embd, generator=generator, dtype=torch.float64) * own
    return {'random': Q.T.contiguous(), 'without negative numbers': normalize(Z, dim=1)}


def descend(Z, c, curvature):
    """phi before each of `steps` proximal steps, eq. (80), and after the last; before the first at
    relu(Z), because phi is infinite at a point with negative numbers."""
    path = [Z]
    for _ in range(c.steps):
        path.append(minimum(path[-1], c.alpha, c.lam, curvature))
    return [phi(Z.relu(), c.alpha, c.lam).item() for Z in path]


def draw_majorizer(c):
    """CRATE, appendix A.3: the bound lies above -R, touches it, and its minimum is the layer; how tight
    it is; and phi along the steps. From tokens without negative numbers the layer lowers the objective
    from -2.7 to -3.6; with alpha / 8 it would reach -12.1."""
    generator = torch.Generator().manual_seed(c.seed)
    points = starts(c, generator)
    Z0, alpha, lam = points['random'], c.alpha, c.lam
    ways = normalize(torch.randn(200, c.tokens, c.n_embd, generator=generator, dtype=Z0.dtype), dim=(1, 2))
    ways *= 4 * torch.rand(200, 1, 1, generator=generator, dtype=Z0.dtype) * c.tokens ** 0.5    # of up to 4 |Z0|
    D = random_bases(1, c.n_embd, c.n_embd, generator)[0]
    shape, scales = torch.randn(3, 5, generator=generator, dtype=Z0.dtype), [2 ** (i / 4) for i in range(-16, 17)]
    lows, highs = zip(*(curvatures(normalize(shape, dim=1) * x / alpha ** 0.5, alpha) for x in scales))

    def above(way, k):
        return bound(Z0 + way, Z0, alpha, k) + rate(Z0 + way, alpha)
    gaps = {k: min(above(way, k) for way in ways) for k in (PAPER, SHARP)}
    touches = abs(above(0 * Z0, PAPER))
    say_table(('the bound of eq. (84) and the layer', ''), [
        ('bound less -R at Z0', touches), ('the least at 200 other points', gaps[PAPER]),
        ('with alpha/8 in place of 9 alpha/4', gaps[SHARP]),
        ('its minimum, eq. (80), from the layer, eq. (88)',
         (layer(Z0, alpha, lam) - minimum(Z0, alpha, lam)).abs().max()),
        ('with D, eq. (92)', (layer(Z0, alpha, lam, D) - minimum(Z0 @ D, alpha, lam)).abs().max()),
        ('least eigenvalue of the Hessian of R, over alpha', min(lows)),
        ('largest one; Lemma 6 says at most 9/4 in size', max(highs))])
    rows = [{'phi': f'{name}, L = {k:.4g} alpha', 'step': step, 'value': value} for name, Z in points.items()
            for k in (PAPER, SHARP) for step, value in enumerate(descend(Z, c, k))]
    say_rows([row for row in rows if row['step'] in (0, 1, c.steps)])
    holds = touches < 1e-9 and gaps[PAPER] >= -1e-9
    print(f'here the bound {"lies above -R" if holds else "does not lie above -R"}; the theory says it lies above')
    figure, (axis,) = panels(8.4, 4.6, 1)
    lines(axis, rows, 'phi', 'step', 'value', title='phi, eq. (77), step by step; first the layer', xscale='symlog')
    return figure, rows
