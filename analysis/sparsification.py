"""Does a step of ISTA lower the LASSO that it is derived from? CRATE's eqs. (16) and (17) (Yu et al.,
NeurIPS 2023), on sparse codes drawn for dictionaries from orthogonal to coherent, without a trained
network. Tokens are rows here, Z (N, d), where the paper has columns.
"""
from dataclasses import dataclass

import numpy as np
import torch

from analysis import measures
from engine import plots
from engine.settings import check_least, check_ranges
from model_crate import CRATE, CRATEConfig, ISTA


@dataclass
class ISTAConfig:
    n_embd: int = 64             # d, width of a token; the dictionary is (d, d)
    tokens: int = 256            # tokens, each D x + noise
    share: float = 0.1           # of non-zeros in x, which are positive
    noise: float = 0.05          # size of the noise
    lam: float = 0.1             # weight lambda of sparsity, eq. (16)
    eta: float = 0.1             # step size, eq. (17), as CRATE is shipped
    steps: int = 64              # the first is the layer
    seed: int = 1337             # of dictionaries, codes and noise
    out: str = 'ista.png'        # the picture to write; the table is beside it
    overwrite: bool = False      # replace them if they exist

    def __post_init__(self):
        check_least(self, n_embd=2, tokens=1, steps=1, seed=0)
        check_ranges(self, {(1e-6, 1): ('share',), (0, 100): ('noise',), (1e-6, 100): ('lam', 'eta')})


def initial_norm(d, seed):
    """|D|^2 of the dictionary of a new CRATE. Its numbers are uniform within +-sqrt(6/d), so of
    variance 2/d, and |D|^2 is about 2 (1 + 1)^2 = 8."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = CRATE(CRATEConfig(image_size=0, vocab_size=1, block_size=1, n_layer=1, n_head=1, n_embd=d))
    return torch.linalg.matrix_norm(model.layers[0].ista.D.detach(), 2).item() ** 2


def unrolled(Y, D, eta, lam, steps):
    """[relu(Y), Z after one layer as shipped, after two steps, ..] for the same Y (N, d). Eq. (17)
    starts at Y, whose negative numbers the LASSO forbids: the gradient is taken at Y, but the
    objective is stated at the nearest allowed relu(Y)."""
    layer = ISTA(CRATEConfig(n_head=1, n_embd=Y.size(1), eta=eta, lam=lam, ista='relu')).to(Y.dtype)
    with torch.no_grad():
        layer.D.copy_(D)
        found = [Y.relu(), layer(Y)]
    while len(found) <= steps:
        found.append(measures.ista_step(found[-1], Y, D, eta, lam))
    return found


def draw_sparsification(c):
    """The LASSO of eq. (16) along steps of eq. (17), and at its minimizer, for dictionaries from
    orthogonal to coherent."""
    generator = torch.Generator().manual_seed(c.seed)
    Ds = measures.dictionaries(c.n_embd, generator)
    X, mask, noise = (draw(c.tokens, c.n_embd, generator=generator, dtype=torch.float64)
                      for draw in (torch.randn, torch.rand, torch.randn))
    X = X.abs() * (mask < c.share)
    rows, figure = [], plots.pyplot().figure(figsize=(12, 4.2), layout='constrained')
    axes = figure.subplots(1, len(Ds), sharey=True)
    for axis, (name, D) in zip(axes, Ds.items()):
        rows += one_dictionary(c, axis, name, D, X, X @ D.mT + c.noise * noise)
    axes[0].set(ylabel='LASSO per token, eq. (16)', yscale='log')
    plots.plain_numbers(*axes)
    figure.legend(*axes[0].get_legend_handles_labels(), loc='outside lower center', ncols=5, fontsize='small')
    fresh = initial_norm(c.n_embd, c.seed)
    print('to see: with eta < 2/|D|^2 a step from any Z >= 0 lowers the LASSO, and so does the layer if D is '
          f'incoherent; but the layer starts at Y, which is not >= 0. A new CRATE of width {c.n_embd} has |D|^2 = '
          f'{fresh:.3g}, so eta = {c.eta:g} is {"below" if c.eta < 2 / fresh else "above"} its 2/|D|^2 = '
          f'{2 / fresh:.3g}')
    return figure, ('dictionary', 'norm2', 'eta', 'step', 'objective', 'nonzeros', 'minimum', 'minimum_nonzeros',
                    'objective_of_zero'), rows


def one_dictionary(c, axis, name, D, X, Y):
    """Draw and print the steps for tokens Y, which are sparse codes X in a dictionary D with noise;
    returns rows."""
    def f(Z):
        return measures.lasso_objective(Z, Y, D, c.lam).mean().item()
    norm, exact, rows, said = torch.linalg.matrix_norm(D, 2).item() ** 2, measures.lasso_minimizer(Y, D, c.lam), [], []
    least, sparse, empty = f(exact), measures.nonzeros(exact).item(), f(torch.zeros_like(Y))
    too_large = ', above 2/|D|^2' * (c.eta > 2 / norm)
    for eta, label, more, marker in ((c.eta, f'eta = {c.eta:g}', too_large, 'o'), (1 / norm, 'eta = 1/|D|^2', '', 's')):
        path = unrolled(Y, D, eta, c.lam, c.steps)
        values, shares = [f(Z) for Z in path], [measures.nonzeros(Z).item() for Z in path]
        rows += [(name, norm, eta, *found, least, sparse, empty) for found in zip(range(c.steps + 1), values, shares)]
        line, = axis.plot(values, linewidth=1, marker=marker, markersize=3, label=f'step size {label}')
        axis.plot(1, values[1], marker='o', markersize=9, fillstyle='none', linestyle='', color=line.get_color())
        said.append(f'{label}{more}: {values[1]:.3g} after the layer, {values[-1]:.3g} after {c.steps} steps, '
                    f'non-zeros {shares[1]:.0%} and {shares[-1]:.0%}')
    axis.axhline(least, color='black', linestyle='--', linewidth=1, label='the minimum')
    axis.axhline(empty, color='grey', linestyle=':', linewidth=1, label='codes Z = 0')
    axis.set_xscale('function', functions=(np.log1p, np.expm1))         # from 0 on, the first steps apart
    ticks = [0, *(2 ** i for i in range(c.steps.bit_length()))]
    axis.set_xticks(ticks, ticks)
    axis.set(title=f'{name} dictionary, |D|^2 = {norm:.3g}\n' + f'eta = {c.eta:g} is above 2/|D|^2' * bool(too_large),
             xlabel='step; the ring is the layer', xlim=(0, c.steps))
    print(f'{name}, |D|^2 = {norm:.3g}: from {values[0]:.3g} at relu(Y), non-zeros {shares[0]:.0%}; ' + '; '.join(said)
          + f'; minimum {least:.3g}, non-zeros {sparse:.0%} (drawn with {measures.nonzeros(X):.0%}); Z = 0 has '
            f'{empty:.3g}')
    return rows


COMMANDS = {'ista': (draw_sparsification, ISTAConfig)}
