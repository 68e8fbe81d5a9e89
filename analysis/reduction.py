"""Rate reduction and sparsity of three sets of tokens: Figure 5 of CRATE's longer version (Yu et al., JMLR 2024), whose
equation numbers these are. `reduction`, a command of analyze.py that needs no trained network. Tokens are rows, Z (N,
d)."""
from dataclasses import dataclass

import torch

from analysis.measures import coding_rate, compressed_rate, nonzeros
from engine import plots
from engine.settings import check_least, check_ranges


@dataclass
class ReductionConfig:
    n_head: int = 3               # K, subspaces
    head_dim: int = 2             # p, dimension of a subspace; all together fill d = n_head x head_dim dimensions
    tokens: int = 50              # tokens in each subspace
    eps: float = 0.5              # precision of the coding rate
    lam: float = 0.1              # weight of sparsity in eqs. (16) and (19)
    seed: int = 1337              # of subspaces and tokens
    out: str = 'reduction.png'    # the picture to write; the table is beside it
    overwrite: bool = False       # replace them if they exist

    def __post_init__(self):
        check_least(self, n_head=2, head_dim=1, tokens=2, seed=0)
        check_ranges(self, {(1e-3, 1000): ('eps',), (0, 1000): ('lam',)})


def three_bases(K, p, generator):
    """{name: bases U (K, d, p) with orthonormal columns}: subspaces that are close to each other, orthogonal ones, and
    orthogonal ones along the axes."""
    d = K * p
    G = torch.randn(d, d, generator=generator, dtype=torch.float64)
    split = lambda M: M.unflatten(1, (K, p)).permute(1, 0, 2)                               # (d, K p) -> (K, d, p)
    close = split(torch.eye(d, dtype=G.dtype)) + torch.randn(d, p, generator=generator, dtype=G.dtype)
    return {'(a) close': torch.linalg.qr(close).Q, '(b) orthogonal': split(torch.linalg.qr(G).Q),
            '(c) along the axes': split(torch.eye(d, dtype=G.dtype))}


def rates(A, U, c):
    """The numbers of the table for tokens with coordinates A (K, n, p) in subspaces U (K, d, p)."""
    parts = A @ U.mT                                                                        # (K, n, d)
    Z = parts.flatten(0, 1)                                                                 # (N, d)
    R, bound = coding_rate(Z, c.eps), compressed_rate(Z @ U, c.eps)
    known = coding_rate(parts, c.eps).mean()  # with weights n_k / N, as in Yu et al. (2020); eq. (9) is without them
    return {'R': R, 'R^c, eq. (9)': known, 'reduction, eq. (7)': R - known, 'reduction, eq. (14)': R - bound,
            'share of non-zeros': nonzeros(Z), 'eq. (16)': R - bound - c.lam * (Z != 0).sum(),
            '-E, eq. (19)': R - bound - c.lam * Z.abs().sum()}


def draw_reduction(c):
    """R, R^c and sparsity of the same coordinates in three sets of subspaces."""
    generator = torch.Generator().manual_seed(c.seed)
    bases = three_bases(c.n_head, c.head_dim, generator)
    A = torch.randn(c.n_head, c.tokens, c.head_dim, generator=generator, dtype=torch.float64)
    found = {name: {k: v.item() for k, v in rates(A, U, c).items()} for name, U in bases.items()}
    columns = [*next(iter(found.values()))]
    figure = plots.pyplot().figure(figsize=(11, 3.6), layout='constrained')
    for axis, column in zip(figure.subplots(1, 3), ('reduction, eq. (7)', 'reduction, eq. (14)', 'share of non-zeros')):
        axis.bar([*found], [row[column] for row in found.values()])
        axis.set(title=column, ylabel='share' if 'share' in column else 'nats per token')
    for name, row in found.items():
        print(f'{name:<20}' + '  '.join(f'{k} {v:.3f}' for k, v in row.items()))
    a, b, along = ([row[k] for k in columns] for row in found.values())
    gains = [f'{k} {x:.2f}, {y:.2f}, {z:.2f}' for k, x, y, z in zip(columns, a, b, along)]
    print(f'from (a) to (b) to (c): {gains[2]}; {gains[3]}; {gains[4]}')
    return figure, ('subspaces', *columns), [(name, *row.values()) for name, row in found.items()]


COMMANDS = {'reduction': (draw_reduction, ReductionConfig)}
