"""Which tokens have a large rate reduction, and which are sparse too? `reduction`, a command of
analyze.py that needs no trained network.

Tokens are rows, Z (N, d), where the paper has columns. Equation numbers are those of CRATE's longer
version (Yu et al., JMLR 2024), section 2.1: its Figure 5.
"""
from dataclasses import dataclass

import torch

from analysis.measures import coding_rate, compressed_rate, nonzeros, random_bases
from analysis.charts import panels
from analysis.tables import say_rows
from analysis.theory import TheoryConfig
from engine.plots import FROM_WHITE


def rate_reduction(Z, U, eps):
    """R(Z) - R^c(Z | U_[K]), eq. (14), of tokens Z (N, d) and bases U (K, d, p)."""
    return coding_rate(Z, eps) - compressed_rate(Z @ U, eps)


def reduction_of_groups(Z, eps):
    """Eqs. (7) and (9) of K groups of n tokens each, Z (K, n, d): R less the mean rate of the groups. Eq.
    (9) prints their sum, without the weights n_k / n of Yu et al. (2020). That sum is never below R."""
    return coding_rate(Z.flatten(0, 1), eps) - coding_rate(Z, eps).mean(0)


def energy(Z, U, eps, lam):
    """Eq. (19), less the sparse rate reduction of eq. (17). The density exp(-energy) is eq. (18), which is
    printed without the square root of its determinants: a rate is half a logarithm of one."""
    return lam * Z.abs().sum() - rate_reduction(Z, U, eps)


@dataclass
class ReductionConfig(TheoryConfig):
    n_head: int = 4                 # K, subspaces
    head_dim: int = 4               # p, dimension of a subspace; together they fill d = n_head x head_dim dimensions
    tokens: int = 32                # tokens in each subspace
    cosine: float = 0.7             # between the subspaces of (a)
    eps: float = 0.5                # precision of the coding rates
    lam: float = 0.01               # weight lambda of sparsity, eq. (17)


def subspaces(c, generator):
    """{(a), (b), (c) of Figure 5: bases (K, d, p)}: close to each other, orthogonal, and along the axes."""
    K, d = c.n_head, c.d
    axes = torch.eye(d, dtype=torch.float64).unflatten(1, (K, c.head_dim)).permute(1, 0, 2)
    turned = random_bases(K, c.head_dim, d, generator)
    more = c.cosine / (1 - c.cosine)                                    # what makes the cosine more / (1 + more)
    close = (turned + ((1 + K * more) ** 0.5 - 1) * turned.mean(0)) / (1 + more) ** 0.5
    return {'(a) close': close, '(b) orthogonal': turned, '(c) along the axes': axes}


def draw_reduction(c):
    """The longer version's Figure 5: the same codes in three sets of subspaces."""
    generator = torch.Generator().manual_seed(c.seed)
    codes = torch.randn(c.n_head, c.tokens, c.head_dim, generator=generator, dtype=torch.float64) / c.head_dim ** 0.5
    bases = subspaces(c, generator)
    most = max((codes @ U.mT).abs().max().item() for U in bases.values())   # so that all have one scale of colours
    rows, (figure, axes) = [], panels(12, 5, 3)
    for axis, (name, U) in zip(axes, bases.items()):
        groups = codes @ U.mT                                           # (K, n, d)
        Z = groups.flatten(0, 1)
        row = {'subspaces': name, 'rate_reduction': rate_reduction(Z, U, c.eps),
               'rate_reduction_of_groups': reduction_of_groups(groups, c.eps), 'nonzeros': nonzeros(Z),
               'energy': energy(Z, U, c.eps, c.lam)}
        rows.append(row)
        image = axis.imshow(Z.abs().numpy(), aspect='auto', cmap=FROM_WHITE, vmin=0, vmax=most, interpolation='nearest')
        axis.set(title=f'{name}\nreduction {row["rate_reduction"]:.3g} nats,\nnon-zeros {row["nonzeros"]:.0%}',
                 xlabel='coordinate', ylabel='token')
        axis.label_outer()
    figure.colorbar(image, ax=axes, label='size of the number')
    say_rows(rows)
    a, b, same = (row['rate_reduction'] for row in rows)
    print(f'here the rate reduction {"rises" if b > a else "does not rise"} from (a) to (b), and differs by '
          f'{abs(b - same):.0e} from (b) to (c); the theory says it rises, then stays')
    falls = 'falls' if rows[2]['energy'] < rows[1]['energy'] else 'does not fall'
    print(f'here the energy {falls} from (b) to (c); the theory says it falls: sparsity alone prefers the axes')
    return figure, rows
