"""Does the gradient of the coding rate point to the nearest subspace? `nearest` is a command of
analyze.py that needs no trained network.

Tokens are rows, Z (N, d), where the paper has columns. Equation numbers are CRATE-MAE's (Pai et
al., ICLR 2024): Theorem 1, which is Theorem 3 in its appendix A.2, and Figure 3.
"""
import math
from dataclasses import dataclass

import torch

from analysis.charts import panels
from analysis.measures import compressed_rate_gradient, gaussian, turning
from analysis.scores import equal_mixture, nearest_projection, projected, score
from analysis.tables import say_table
from analysis.theory import TheoryConfig, shipped_attention


# ---- the theorem --------------------------------------------------------------------------------

def noisy_codebook(U, N, sigma, generator):
    """Draw N tokens of eq. (A.34): U_s alpha + delta, where alpha ~ N(0, I / p) and
    delta ~ N(0, sigma^2 I / d). Returns the clean tokens X (N, d), the noise Delta (N, d) and the
    subspaces s (N,)."""
    K, d, p = U.shape
    s = torch.randint(K, (N,), generator=generator)
    alpha = gaussian(generator, N, p) / p ** 0.5
    delta = gaussian(generator, N, d) / d ** 0.5
    belongs = (s[:, None] == torch.arange(K))[..., None]  # (N, K, 1)
    coordinates = (belongs * alpha[:, None]).flatten(1)  # (N, K p), 0 in other subspaces
    X = coordinates @ U.mT.flatten(0, 1)
    return X, sigma * delta, s


def outside(T, U, s):
    """The part of each row of T (N, d) outside the subspace of its token, s (N,)."""
    return T - projected(T, U, s)


def best_eps(K, p, N, sigma):
    """The precision for which the theorem's bound is least, eq. (A.46)."""
    d = K * p
    return (sigma * d / (N * K * (sigma + (N / d) ** 0.5) ** 0.5)) ** 0.5


def relevant_noise(X, Delta, s, U, beta):
    """P_U(Delta), eqs. (A.116) and (A.117): of the noise of each token, the part in the subspaces
    U_k to which the token does not belong, and there, as beta grows, only what the tokens A_k of
    U_k do not span. X and Delta (N, d), s (N,), U (K, d, p) -> (N, d)."""
    noise = torch.zeros_like(X)
    for k, u in enumerate(U):
        A = (X[s == k] @ u).T  # (p, N_k)
        eye_N = torch.eye(A.size(1), dtype=X.dtype)
        eye_p = torch.eye(A.size(0), dtype=X.dtype)
        not_spanned = eye_p - A @ torch.linalg.solve(eye_N / beta + A.T @ A, A.T)  # (p, p)
        noise_in_k = Delta @ u * (s != k)[:, None]  # (N, p)
        noise += noise_in_k @ not_spanned @ u.T
    return noise


def theorem(U, N, sigma, eps, generator):
    """What one gradient step Z - eta grad R^c, eq. (A.39) with eta = 1 / beta, does to N tokens.
    Returns a row of the table:

        cosine            of the step to the direction of the nearest subspace
        cosine_outside    the same, without the part of the step inside the token's subspace
        noise_left        the share of the noise in other subspaces that the step leaves
        signal_left       the share of the signal that the step leaves
        .._full           the same for a step up R - R^c
        rest              the norm of what eq. (A.42) does not explain
        noise             the norm of the noise
    """
    K, d, p = U.shape
    X, Delta, s = noisy_codebook(U, N, sigma, generator)
    Z = X + Delta
    beta = p / (N * eps ** 2)  # eq. (A.37)

    down = -compressed_rate_gradient(Z, U, eps)
    R_gradient = compressed_rate_gradient(Z, torch.eye(d, dtype=Z.dtype)[None], eps)
    after = Z + down / beta
    after_full = Z + (down + R_gradient) / beta  # up R - R^c

    to_nearest = nearest_projection(Z, U) - Z
    explained = Delta - relevant_noise(X, Delta, s, U, beta) + X / (1 + 1 / beta)  # eq. (A.42)
    noise_before = outside(Z, U, s).square().sum()

    def noise_left(tokens):
        return outside(tokens, U, s).square().sum() / noise_before

    def signal_left(tokens):
        return (tokens * X).sum() / X.square().sum()

    return {
        'N': N,
        'N/d': N / d,
        'sigma': sigma,
        'eps': eps,
        'beta': beta,
        'cosine': torch.cosine_similarity(down, to_nearest).mean(),
        'cosine_outside': torch.cosine_similarity(outside(down, U, s), to_nearest).mean(),
        'noise_left': noise_left(after),
        'signal_left': signal_left(after),
        'noise_left_full': noise_left(after_full),
        'signal_left_full': signal_left(after_full),
        'rest': torch.linalg.matrix_norm(after - explained, 2),
        'noise': torch.linalg.matrix_norm(Delta, 2),
    }


def conditions(K, p, N, eps):
    """The conditions of Theorem 3 that have no unknown constants: [(the condition, whether it
    holds)].

    Above eq. (A.97) the paper says that "eps <= 1 and the rest of Assumption 2 implies that
    beta >= 1". This is wrong: beta >= 1 needs eps^2 <= p / N.
    """
    d = K * p
    largest = N / (2 * K * math.sqrt(N * math.log(N)))
    return [
        (f'eps <= 1: {eps:.3g}', eps <= 1),
        (f'd >= N >= p >= K >= 2: {d}, {N}, {p}, {K}', d >= N >= p >= K >= 2),
        (f'C_1 sqrt(N log N) <= N / (2 K) needs C_1 <= {largest:.3g}, but eqs. (A.196) and '
         '(A.197) need C_1 >= sqrt(3/2) = 1.22', largest >= 1.5 ** 0.5),
    ]


# ---- Figure 3: fields in the plane, with two lines as subspaces ---------------------------------

def fields(generator):
    """{name: what moves a token at each point}, and the points, (n, 2) each. The subspaces are two
    lines, the axes of the plane."""
    U = torch.eye(2, dtype=torch.float64)[..., None]  # (2, 2, 1)
    ticks = torch.linspace(-1.9, 1.9, 14, dtype=U.dtype)
    points = torch.cartesian_prod(ticks, ticks)  # none is on an axis
    distances = points.abs()  # from the axes
    is_between = (distances[:, 0] - distances[:, 1]).abs() <= 1e-9
    points = points[~is_between]

    coordinates = gaussian(generator, 2, 50, 1)
    half_crowd = torch.block_diag(*coordinates)  # (100, 2): 50 tokens on each axis
    crowd = torch.cat((half_crowd, -half_crowd))  # of mean 0, as the model is
    crowds = crowd.expand(len(points), -1, -1)
    together = torch.cat((crowds, points[:, None]), 1)  # (n, 201, 2), the last is our token

    gradient_alone = compressed_rate_gradient(points[:, None], U, eps=0.3)
    gradient_together = compressed_rate_gradient(together, U, eps=0.3)
    mssa = shipped_attention(U)
    mixture = equal_mixture(U, U.new_ones(1))
    arrows = {
        '-grad R^c, a token alone': -gradient_alone[:, 0],
        '-grad R^c, 200 more tokens': -gradient_together[:, -1],
        'MSSA, eq. (2.8), 200 more': mssa(together)[:, -1],
        'score, sigma = 0.2': score(points, mixture, sigma=0.2),
    }
    return arrows, points


def towards(field, points):
    """The mean cosine to the direction of the nearest line, and the share of points where the field
    turns a token towards it."""
    U = torch.eye(2, dtype=points.dtype)[..., None]
    to_nearest = nearest_projection(points, U) - points
    cosine = torch.cosine_similarity(field, to_nearest).mean()
    turns_to_it = (turning(field, points) * to_nearest).sum(-1) > 0
    return cosine, turns_to_it.double().mean()


# ---- the command --------------------------------------------------------------------------------

@dataclass
class NearestConfig(TheoryConfig):
    n_head: int = 12     # K, subspaces; the sizes are those of CRATE-MAE-Base
    head_dim: int = 64   # p, dimension of a subspace; all together fill d = n_head x head_dim
    tokens: int = 196    # N, tokens of all subspaces together
    sigma: float = 0.01  # length of the noise, of a token of length about 1


def draw_nearest(c):
    """CRATE-MAE's Theorem 1 measured under its noise model, for more and more tokens, and its
    Figure 3."""
    generator = c.generator()
    U = c.random_bases(generator)
    shares = (1/32, 1/16, 1/8, 1/4, 1/2, 3/4, 1, 3/2)
    token_counts = {c.tokens, *(max(2, round(share * c.d)) for share in shares)}

    rows_by_count = {}
    for N in sorted(token_counts):
        eps = best_eps(c.n_head, c.head_dim, N, c.sigma)
        rows_by_count[N] = theorem(U, N, c.sigma, eps, generator)
    row = rows_by_count[c.tokens]
    arrows, points = fields(generator)

    say_theorem(c, row)
    field_rows = [(name, *towards(field, points)) for name, field in arrows.items()]
    say_table(('Figure 3, two lines', 'mean cosine', 'turns to the nearest'), field_rows)
    print('here the cosine to the direction of the nearest subspace is '
          f'{row["cosine"]:.2f}; the theory says 1')
    return draw_fields(arrows, points), list(rows_by_count.values())


def say_theorem(c, row):
    """Print which conditions of Theorem 3 hold, and what a step does to as many tokens as are
    set."""
    of_theorem = conditions(c.n_head, c.head_dim, c.tokens, row['eps'])
    say_table((f'conditions of Theorem 3, d = {c.d}', 'met'), of_theorem)
    say_table((f'a step down the gradient, {c.tokens} tokens', ''), row.items())

    share = row['N/d']
    expected_cosine = max(0, 1 - share) ** 0.5
    print(f'by N/d = {share:.3g} cosine_outside is {expected_cosine:.3f}, noise_left {share:.3f}. '
          f'Remark 4: signal_left is {row["signal_left"]:.4f}, and up R - R^c '
          f'{row["signal_left_full"]:.4f}')


def draw_fields(arrows, points):
    """The figure of `nearest`: a panel for each field. The longest arrow of each panel has the same
    length, about that from a point to the next one, and the frame has room for it."""
    longest = 0.35
    end = points.abs().max().item() + longest
    figure, axes = panels(13.2, 4.3, 4, sharey=True)
    for axis, (name, field) in zip(axes, arrows.items()):
        scaled = longest * field / field.norm(dim=1).max()
        axis.quiver(*points.T, *scaled.T, angles='xy', scale_units='xy', scale=1, color='C0',
                    width=0.006)
        axis.axhline(0, color='C1', linewidth=1)
        axis.axvline(0, color='C1', linewidth=1)
        axis.set(aspect='equal', xlim=(-end, end), ylim=(-end, end), xticks=range(-2, 3),
                 yticks=range(-2, 3), title=name.replace('-grad R^c', r'$-\nabla R^c$'))
    figure.supxlabel('arrows: where a token goes, the longest of each panel equally long; '
                     'orange lines: the subspaces', fontsize='medium')
    return figure
