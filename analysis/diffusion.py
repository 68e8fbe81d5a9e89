"""Structured diffusion and its inverse: the encoder walks down the gradient of the coding rate, and
the decoder walks up again. `diffuse` is a command of analyze.py that needs no trained network.

Tokens are rows, Z (.., N, d), where the paper has columns. Equation numbers are CRATE-MAE's (Pai et
al., ICLR 2024), section 2.4 and appendix A.3.
"""
import math
from dataclasses import dataclass

import torch

from analysis.charts import lines, panels
from analysis.measures import compressed_rate_gradient, relative_distance
from analysis.projection import noisy_codebook, outside
from analysis.scores import diffuse, equal_mixture, score_drift
from analysis.tables import say_rows, say_table
from analysis.theory import TheoryConfig, shipped_attention


# ---- the flow, and its two discretizations ------------------------------------------------------

def encode(Z, move, kappa, n_layer):
    """Eq. (2.12), n_layer times: Z + kappa move(Z), where move is minus the gradient of R^c, or
    MSSA."""
    for _ in range(n_layer):
        Z = Z + kappa * move(Z)
    return Z


def decode(Y, move, kappa, n_layer):
    """Eq. (2.16), n_layer times: the same steps with the opposite sign, and as many."""
    return encode(Y, move, -kappa, n_layer)


def flow(Z, U, eps, depth):
    """Eq. (2.11) solved exactly for orthogonal subspaces U (K, d, p): Z (N, d) -> (N, d).

    In the time tau = -1/2 log((T - t) / T) the equation is dZ = -grad R^c dtau, and a step of
    eq. (2.12) takes a time kappa of tau. Here tau = depth; a negative depth is the decoder's
    eq. (2.15).

    The gradient keeps the singular vectors of W_k = Z U_k. The singular values of W_k follow
    ds/dtau = -beta s / (1 + beta s^2), so s^2 / 2 + log(s) / beta falls at rate 1. Then w + log(w)
    of w = beta s^2 falls at rate 2 beta, and Wright's omega function gives w.
    """
    from scipy.special import wrightomega
    beta = U.size(2) / (Z.size(0) * eps ** 2)
    W = Z @ U  # (K, N, p)
    left_vectors, s, right_vectors = torch.linalg.svd(W, full_matrices=False)
    s = s.clamp_min(1e-150)  # a singular value of 0 stays 0
    w = beta * s.square()
    w_at_end = wrightomega((w + w.log() - 2 * beta * depth).numpy())
    s_at_end = torch.from_numpy(w_at_end / beta).sqrt()
    change = (left_vectors * (s_at_end - s)[:, None]) @ right_vectors  # of W: (K, N, p)
    return Z + (change @ U.mT).sum(0)  # (N, d)


def round_trips(Z, U, eps, depth, layer_counts):
    """{name: [error for each number of layers]}, for tokens Z (N, d) and bases U (K, d, p). Every
    number of layers L goes equally far: kappa L = depth."""
    mssa = shipped_attention(U)
    end_of_flow = flow(Z, U, eps, depth)

    def downhill(Z):
        return -compressed_rate_gradient(Z, U, eps)

    def attention(Z):
        return mssa(Z[None])[0]

    def there_and_back(move, kappa, n_layer):
        encoded = encode(Z, move, kappa, n_layer)
        return relative_distance(decode(encoded, move, kappa, n_layer), Z)

    errors = {}
    for L in layer_counts:
        kappa = depth / L
        encoded = encode(Z, downhill, kappa, L)
        decoded = decode(end_of_flow, downhill, kappa, L)
        errors_of_count = {
            'encoder from the flow (2.11)': relative_distance(encoded, end_of_flow),
            'decoder from the flow (2.15)': relative_distance(decoded, Z),
            'there and back, gradient': there_and_back(downhill, kappa, L),
            'there and back, attention': there_and_back(attention, kappa, L),
            'one layer and back, gradient': there_and_back(downhill, kappa, 1),
        }
        for name, error in errors_of_count.items():
            errors.setdefault(name, []).append(error)
    return errors


def order(layer_counts, errors):
    """The power p if the error falls as kappa^p, from the last two numbers of layers."""
    error_ratio = errors[-2] / errors[-1]
    kappa_ratio = layer_counts[-1] / layer_counts[-2]
    return math.log(error_ratio) / math.log(kappa_ratio)


# ---- the stochastic equation and the ordinary one -----------------------------------------------

def drifts(U, eps):
    """{name: drift(Z, variance)}, two functions that stand for -variance x score: the true score of
    the tokens of eq. (A.34), and the gradient of R^c, the drop-in replacement of appendix A.3."""
    p = U.size(2)
    mixture = equal_mixture(U, U.new_full((p,), 1 / p))

    def gradient_drift(Z, variance):
        return compressed_rate_gradient(Z, U, eps)

    return {'score': score_drift(mixture), 'gradient of R^c': gradient_drift}


def energies(Z, U, s, time_left):
    """{column: number} of tokens Z (sets, N, d), which belong to subspaces s (sets N,) with bases
    U (K, d, p). time_left: T - t.

    `value` is the mean squared length of tokens inside their subspaces, and `standard_error` is the
    standard error of this mean over sets. `noise` is the mean squared length outside, for each
    dimension, divided by the variance 2 (T - t) of the noise.
    """
    d, p = U.shape[1:]
    noise = outside(Z.flatten(0, 1), U, s).view_as(Z).square().sum(-1)  # (sets, N)
    inside = (Z.square().sum(-1) - noise).mean(1)  # (sets,)
    return {
        'value': inside.mean().item(),
        'standard_error': inside.std().item() / len(inside) ** 0.5,
        'noise': noise.mean().item() / (d - p) / (2 * time_left),
    }


# ---- the command --------------------------------------------------------------------------------

@dataclass
class DiffuseConfig(TheoryConfig):
    sets: int = 16      # sets of tokens for eqs. (2.10) and (2.11)
    sigma: float = 0.3  # length of the noise, of a token of length about 1; T = sigma^2 / (2 d)
    eps: float = 0.5    # precision of the coding rate
    depth: float = 1.0  # kappa x layers, how far the encoder walks; the way back magnifies rounding
    n_layer: int = 128  # 2, 4, 8 .. layers up to it; kappa is below 1/2 and N eps^2 / p
    ranges = {'n_layer': (4, None)}


def draw_diffusion(c):
    """CRATE-MAE: how far encoder and then decoder are from the identity as steps get small; and
    whether eqs. (2.10) and (2.11) have the same law."""
    generator = c.generator()
    U = c.random_bases(generator)
    X, _, s = noisy_codebook(U, c.sets * c.tokens, 0, generator)
    X = X.unflatten(0, (c.sets, -1))  # (sets, N, d)
    T = c.sigma ** 2 / (2 * c.d)
    Z = X + (2 * T) ** 0.5 * torch.randn_like(X, generator=generator)

    layer_counts = [2 ** i for i in range(1, c.n_layer.bit_length())]
    errors = round_trips(Z[0], U, c.eps, c.depth, layer_counts)
    trip_rows = []
    for name, errors_of_trip in errors.items():
        for L, error in zip(layer_counts, errors_of_trip):
            trip_rows.append({'what': name, 'kappa': c.depth / L, 'value': error})
    law_rows = laws(c, Z, U, s, T, generator)

    say_orders(layer_counts, errors)
    signal = X.square().sum(-1).mean()
    print(f'squared length inside the own subspace, without noise {signal:.3f}, and noise outside:')
    say_rows(law_rows)
    say_differences(law_rows)

    figure, axes = panels(8.4, 4.8, 1)
    lines(axes[0], trip_rows, 'what', 'kappa', 'value', xscale='log', yscale='log',
          title=rf'errors, with $\kappa$ x layers = {c.depth:g}', xlabel=r'$\kappa$',
          ylabel=r'distance, of $\|Z\|$')
    axes[0].legend(fontsize='small')
    return figure, trip_rows + law_rows


def laws(c, Z, U, s, T, generator):
    """Rows of the table, see `energies`: of tokens Z (sets, N, d) at the start, then at the end of
    eqs. (2.10) and (2.11) with the score, then with the gradient of R^c."""
    time_left = T * math.exp(-2 * c.depth)  # at the end
    rows = [{'what': 'at the start', **energies(Z, U, s, T)}]
    for name, drift in drifts(U, c.eps).items():
        for noisy, equation in ((True, '(2.10)'), (False, '(2.11)')):
            end = diffuse(Z, drift, T, c.depth, 100, noisy, generator)
            what = f'eq. {equation} with the {name}'
            rows.append({'what': what, **energies(end, U, s, time_left)})
    return rows


def say_orders(layer_counts, errors):
    """Print the errors for the fewest and the most layers, and how fast they fall."""
    columns = ('distance, of the length of the tokens', f'{layer_counts[0]} layers',
               f'{layer_counts[-1]} layers', 'falls as')
    rows = []
    for name, errors_of_trip in errors.items():
        power = order(layer_counts, errors_of_trip)
        rows.append((name, errors_of_trip[0], errors_of_trip[-1], f'kappa^{power:.2f}'))
    say_table(columns, rows)


def say_differences(rows):
    """Print how far the two equations are from each other, with the score and with the gradient.
    rows: those of `laws`, of which the first is about the start."""
    for stochastic, ordinary in (rows[1:3], rows[3:5]):
        error = math.hypot(stochastic['standard_error'], ordinary['standard_error'])
        difference = abs(stochastic['value'] - ordinary['value']) / error
        print(f'here {stochastic["what"]} and (2.11) differ by {difference:.1f} standard errors; '
              'the paper says by none')
