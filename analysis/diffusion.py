"""Structured diffusion and its inverse, without a trained network: `diffuse`, a command of
analyze.py. The encoder walks down the gradient of the coding rate, the decoder up again.

Tokens are rows, Z (.., N, d), where the paper has columns. Equation numbers are CRATE-MAE's (Pai et
al., ICLR 2024), section 2.4 and appendix A.3.
"""
import math
from dataclasses import dataclass

import torch

from analysis.measures import compressed_rate_gradient, random_bases
from analysis.charts import lines, panels
from analysis.tables import say_rows, say_table
from analysis.projection import noisy_codebook, outside
from analysis.scores import Mixture, diffuse, score
from analysis.theory import TheoryConfig, shipped_attention


# ---- the flow, and its two discretizations --------------------------------------------------------------------------

def encode(Z, move, kappa, n_layer):
    """Eq. (2.12), n_layer times: Z + kappa move(Z), where move is minus the gradient of R^c, or MSSA."""
    for _ in range(n_layer):
        Z = Z + kappa * move(Z)
    return Z


def decode(Y, move, kappa, n_layer):
    """Eq. (2.16), n_layer times: the same steps with the opposite sign, and as many."""
    return encode(Y, move, -kappa, n_layer)


def flow(Z, U, eps, depth):
    """Eq. (2.11) solved exactly for orthogonal subspaces U (K, d, p): Z (N, d) -> (N, d). In the time
    tau = -1/2 log((T - t) / T) it is dZ = -grad R^c dtau, and a step of eq. (2.12) is kappa of tau.
    Here tau = depth; a negative depth is the decoder's eq. (2.15).

    The gradient keeps the singular vectors of W_k = Z U_k, and its singular values follow ds/dtau =
    -beta s / (1 + beta s^2), so s^2 / 2 + log(s) / beta falls at rate 1."""
    beta, W = U.size(2) / (Z.size(0) * eps ** 2), Z @ U                 # W: (K, N, p)
    left, s, right = torch.linalg.svd(W, full_matrices=False)
    s = s.clamp_min(1e-150)                                             # a singular value of 0 stays 0
    end, y = s.square() / 2 + s.log() / beta - depth, s.log() + max(0.0, -beta * depth)
    for _ in range(200):                                                # Newton's method from above, y = log s
        y = y - ((2 * y).exp() / 2 + y / beta - end) / ((2 * y).exp() + 1 / beta)
    return Z + ((left * (y.exp() - s)[:, None]) @ right @ U.mT).sum(0)  # (K, N, p) to (N, d)


def far(a, b):
    """The distance of tokens a from tokens b, as a share of the length of b."""
    return ((a - b).norm() / b.norm()).item()


def round_trips(Z, U, eps, depth, numbers):
    """{name: [error for each number of layers]}; every number of layers L goes kappa L = depth."""
    attention, there = shipped_attention(U), flow(Z, U, eps, depth)
    moves = {'gradient': lambda Z: -compressed_rate_gradient(Z, U, eps), 'attention': lambda Z: attention(Z[None])[0]}

    def back(move, L, n):                                               # n layers there and back, kappa = depth / L
        return far(decode(encode(Z, move, depth / L, n), move, depth / L, n), Z)
    down = moves['gradient']
    errors = {'encoder from the flow (2.11)': [far(encode(Z, down, depth / L, L), there) for L in numbers],
              'decoder from the flow (2.15)': [far(decode(there, down, depth / L, L), Z) for L in numbers]}
    errors |= {f'there and back, {name}': [back(move, L, L) for L in numbers] for name, move in moves.items()}
    return errors | {'one layer and back, gradient': [back(down, L, 1) for L in numbers]}


def order(numbers, errors):
    """p where the error falls as kappa^p, from the last two numbers of layers."""
    return math.log(errors[-2] / errors[-1]) / math.log(numbers[-1] / numbers[-2])


# ---- the stochastic equation and the ordinary one -------------------------------------------------------------------

def drifts(U, eps):
    """{name: what stands for -variance x score}: the true score of the tokens of eq. (A.34), and the
    gradient of R^c, the drop-in replacement of appendix A.3."""
    K, _, p = U.shape
    m = Mixture(U, U.new_full((K, p), 1 / p), U.new_full((K,), 1 / K))
    return {'score': lambda Z, v: -v * score(Z.flatten(0, -2), m, v ** 0.5).view_as(Z),
            'gradient of R^c': lambda Z, v: compressed_rate_gradient(Z, U, eps)}


def energies(Z, U, s, left):
    """{column: value}: the mean squared length of tokens inside their own subspaces, with its standard error over sets
    (sets, N, d); and of the noise outside, for each dimension, over its variance 2 (T - t)."""
    d, p = U.shape[1:]
    off = outside(Z.flatten(0, 1), U, s).view_as(Z).square().sum(-1)
    inside = (Z.square().sum(-1) - off).mean(1)                         # (sets,)
    return {'value': inside.mean().item(), 'standard_error': inside.std().item() / len(inside) ** 0.5,
            'noise': off.mean().item() / (d - p) / (2 * left)}


# ---- the command ----------------------------------------------------------------------------------------------------

@dataclass
class DiffuseConfig(TheoryConfig):
    sets: int = 16                  # sets of tokens for eqs. (2.10) and (2.11)
    sigma: float = 0.3              # length of the noise, of a token of length about 1; T = sigma^2 / (2 d)
    eps: float = 0.5                # precision of the coding rate
    depth: float = 1.0              # kappa x layers, how far the encoder walks; the way back magnifies rounding
    n_layer: int = 128              # the most layers, with kappa below 1/2 and N eps^2 / p; the others are 2, 4, 8 ..
    ranges = {'n_layer': (4, None)}


def draw_diffusion(c):
    """CRATE-MAE: how far encoder and then decoder are from the identity as steps get small; and whether
    eqs. (2.10) and (2.11) have the same law."""
    generator = torch.Generator().manual_seed(c.seed)
    U = random_bases(c.n_head, c.head_dim, c.d, generator)
    X, _, s = noisy_codebook(U, c.sets * c.tokens, 0, generator)
    X, T = X.unflatten(0, (c.sets, -1)), c.sigma ** 2 / (2 * c.d)
    Z = X + (2 * T) ** 0.5 * torch.randn_like(X, generator=generator)
    numbers = [2 ** i for i in range(1, c.n_layer.bit_length())]
    errors = round_trips(Z[0], U, c.eps, c.depth, numbers)
    trips = [{'what': name, 'kappa': c.depth / L, 'value': error}
             for name, found in errors.items() for L, error in zip(numbers, found)]
    laws = [{'what': 'at the start', **energies(Z, U, s, T)}]
    laws += [{'what': f'eq. {equation} with the {name}',
              **energies(diffuse(Z, drift, T, c.depth, 100, noisy, generator), U, s, T * math.exp(-2 * c.depth))}
             for name, drift in drifts(U, c.eps).items() for noisy, equation in ((True, '(2.10)'), (False, '(2.11)'))]
    say_table(('distance, of the length of the tokens', f'{numbers[0]} layers', f'{numbers[-1]} layers', 'falls as'),
              [(name, found[0], found[-1], f'kappa^{order(numbers, found):.2f}') for name, found in errors.items()])
    print(f'squared length inside the own subspace, without noise {X.square().sum(-1).mean():.3f}, and noise outside:')
    say_rows(laws)
    for noisy, ordinary in (laws[1:3], laws[3:]):
        error = math.hypot(noisy['standard_error'], ordinary['standard_error'])
        apart = abs(noisy['value'] - ordinary['value']) / error
        print(f'here {noisy["what"]} and (2.11) differ by {apart:.1f} standard errors; the paper says by none')
    figure, (axis,) = panels(8.4, 4.8, 1)
    lines(axis, trips, 'what', 'kappa', 'value', title=f'errors, with kappa x layers = {c.depth:g}',
          ylabel='distance, of |Z|', xscale='log', yscale='log')
    return figure, trips + laws
