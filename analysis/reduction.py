"""Which tokens have a large rate reduction, and which are sparse too? `reduction` is a command of
analyze.py that needs no trained network.

Tokens are rows, Z (N, d), where the paper has columns. Equation numbers are those of CRATE's longer
version (Yu et al., JMLR 2024), section 2.1: its Figure 5.
"""
from dataclasses import dataclass

import torch

from analysis.charts import panels
from analysis.figures import FROM_WHITE
from analysis.measures import coding_rate, compressed_rate, gaussian, nonzeros
from analysis.tables import say_rows
from analysis.theory import TheoryConfig


def rate_reduction(Z, U, eps):
    """R(Z) - R^c(Z | U_[K]), eq. (14), of tokens Z (N, d) and bases U (K, d, p)."""
    return coding_rate(Z, eps) - compressed_rate(Z @ U, eps)


def reduction_of_groups(Z, eps):
    """The rate reduction of K groups of n tokens each, Z (K, n, d), eqs. (7) and (9): R less the
    mean rate of the groups. Eq. (9) prints the sum of their rates, without the weights n_k / n of
    Yu et al. (2020). That sum is never below R."""
    return coding_rate(Z.flatten(0, 1), eps) - coding_rate(Z, eps).mean(0)


def energy(Z, U, eps, lam):
    """Eq. (19): minus the sparse rate reduction of eq. (17), for tokens Z (N, d) and bases
    U (K, d, p). The density exp(-energy) is eq. (18), which is printed without the square root of
    its determinants: a rate is half the logarithm of a determinant."""
    return lam * Z.abs().sum() - rate_reduction(Z, U, eps)


@dataclass
class ReductionConfig(TheoryConfig):
    n_head: int = 4      # K, subspaces
    head_dim: int = 4    # p, dimension of a subspace; all together fill d = n_head x head_dim
    tokens: int = 32     # tokens in each subspace
    cosine: float = 0.7  # between the subspaces of (a)
    eps: float = 0.5     # precision of the coding rates
    lam: float = 0.01    # weight lambda of sparsity, eq. (17)


def subspaces(c, generator):
    """{(a), (b), (c) of Figure 5: bases (K, d, p)}: subspaces close to each other, orthogonal, and
    along the axes."""
    K = c.n_head
    axes = torch.eye(c.d, dtype=torch.float64).unflatten(1, (K, c.head_dim)).permute(1, 0, 2)
    orthogonal = c.random_bases(generator)

    # if b mean(U) is added to every U_k, then U_k^T U_j becomes r I, and U_k^T U_k (1 + r) I. So
    # the cosine is r / (1 + r), and after the division columns have length 1 again
    r = c.cosine / (1 - c.cosine)
    b = (1 + K * r) ** 0.5 - 1
    close = (orthogonal + b * orthogonal.mean(0)) / (1 + r) ** 0.5
    return {'(a) close': close, '(b) orthogonal': orthogonal, '(c) along the axes': axes}


def draw_reduction(c):
    """The longer version's Figure 5: the same codes in three sets of subspaces."""
    generator = c.generator()
    codes = gaussian(generator, c.n_head, c.tokens, c.head_dim) / c.head_dim ** 0.5
    bases = subspaces(c, generator)
    groups_of_tokens = {name: codes @ U.mT for name, U in bases.items()}    # (K, n, d) each
    largest = max(groups.abs().max().item() for groups in groups_of_tokens.values())

    rows = []
    figure, axes = panels(12, 5, 3)
    for axis, (name, groups) in zip(axes, groups_of_tokens.items()):
        Z = groups.flatten(0, 1)                                            # (N, d)
        U = bases[name]
        row = {
            'subspaces': name,
            'rate_reduction': rate_reduction(Z, U, c.eps),
            'rate_reduction_of_groups': reduction_of_groups(groups, c.eps),
            'nonzeros': nonzeros(Z),
            'energy': energy(Z, U, c.eps, c.lam),
        }
        rows.append(row)
        # all panels have one scale of colours
        image = axis.imshow(Z.abs().numpy(), aspect='auto', cmap=FROM_WHITE, vmin=0, vmax=largest,
                            interpolation='nearest')
        title = (f'{name}\nreduction {row["rate_reduction"]:.3g} nats,\n'
                 f'non-zeros {row["nonzeros"]:.0%}')
        axis.set(title=title, xlabel='coordinate', ylabel='token')
        axis.label_outer()
    figure.colorbar(image, ax=axes, label='size of the number')

    say_rows(rows)
    say_changes(*rows)
    return figure, rows


def say_changes(close, orthogonal, along_axes):
    """Print how the rate reduction and the energy change from row to row, and what the theory says
    of it."""
    rises = 'rises' if orthogonal['rate_reduction'] > close['rate_reduction'] else 'does not rise'
    difference = abs(orthogonal['rate_reduction'] - along_axes['rate_reduction'])
    print(f'here the rate reduction {rises} from (a) to (b), and differs by {difference:.0e} from '
          '(b) to (c); the theory says it rises, then stays')

    falls = 'falls' if along_axes['energy'] < orthogonal['energy'] else 'does not fall'
    print(f'here the energy {falls} from (b) to (c); the theory says it falls: sparsity alone '
          'prefers the axes')
