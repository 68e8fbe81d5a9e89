"""Does a step of ISTA lower the LASSO that it is derived from? CRATE's eqs. (16) and (17) (Yu et al., NeurIPS 2023):
`ista`, on sparse codes drawn for dictionaries from orthogonal to coherent, and with --ckpt in a trained network. Tokens
are rows here, Z (N, d), where the paper has columns.
"""
from dataclasses import dataclass

import numpy as np
import torch
from tqdm import tqdm

from analysis import layers, measures
from analysis.panels import (label_panels, levels, mean_and_spread, over_layers, panels, say_table, side_by_side,
                             span)
from analysis.samples import batches
from analysis.theory import Shared
from engine import plots
from model_crate import CRATE, CRATEConfig, ISTA


# ---- with codes that one knows --------------------------------------------------------------------------------------

@dataclass
class ISTAConfig(Shared):
    n_embd: int = 64                # d, width of a token; the dictionary is (d, d)
    tokens: int = 256               # tokens, each D x + noise
    share: float = 0.1              # of non-zeros in x, which are positive
    noise: float = 0.05             # size of the noise
    lam: float = 0.1                # weight lambda of sparsity, eq. (16)
    eta: float = 0.1                # step size, eq. (17), as CRATE is shipped
    steps: int = 64                 # the first is the layer
    ranges = {'n_embd': (2, None), 'tokens': (1, None), 'share': (1e-6, 1), 'noise': (0, 100), 'lam': (1e-6, 100),
              'eta': (1e-6, 100), 'steps': (1, None)}


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
    rows, said, (figure, axes) = [], [], panels(12, 4.2, 1, len(Ds), sharey=True)
    for axis, (name, D) in zip(axes, Ds.items()):
        found, told = one_dictionary(c, axis, name, D, X @ D.mT + c.noise * noise)
        rows, said = rows + found, said + told
    axes[0].set(ylabel='LASSO per token, eq. (16)', yscale='log')
    plots.plain_numbers(*axes)
    figure.legend(*axes[0].get_legend_handles_labels(), loc='outside lower center', ncols=5, fontsize='small')
    print(f'LASSO per token and share of non-zeros, from relu(Y) on, after the layer and after {c.steps} steps; codes '
          f'are drawn with {measures.nonzeros(X):.1%} non-zeros')
    say_table(('dictionary', '|D|^2', 'eta', 'start', 'layer', 'end', 'minimum', 'Z = 0', 'non-zeros: start', 'layer',
               'end', 'minimum'), said)
    down = [row for row in said if row[4] < row[3]]
    print(f'here the layer lowers the LASSO in {len(down)} of {len(said)} rows; the theory says where eta < 2/|D|^2, '
          f'for a step from Z >= 0, in {sum(row[2] * row[1] < 2 for row in said)}. The layer starts at Y')
    fresh = initial_norm(c.n_embd, c.seed)
    print(f'a new CRATE of width {c.n_embd} has |D|^2 = {fresh:.3g}, so eta = {c.eta:g} is '
          f'{"below" if c.eta < 2 / fresh else "above"} its 2/|D|^2 = {2 / fresh:.3g}')
    return figure, ('dictionary', 'norm2', 'eta', 'step', 'objective', 'nonzeros', 'minimum', 'minimum_nonzeros',
                    'objective_of_zero'), rows


def one_dictionary(c, axis, name, D, Y):
    """Draw the steps for tokens Y, which are sparse codes in a dictionary D with noise; returns rows, and what to print
    of both step sizes."""
    def f(Z):
        return measures.lasso_objective(Z, Y, D, c.lam).mean().item()
    norm, exact, rows, said = torch.linalg.matrix_norm(D, 2).item() ** 2, measures.lasso_minimizer(Y, D, c.lam), [], []
    least, sparse, empty = f(exact), measures.nonzeros(exact).item(), f(torch.zeros_like(Y))
    for eta, label, marker in ((c.eta, f'eta = {c.eta:g}', 'o'), (1 / norm, 'eta = 1/|D|^2', 's')):
        path = unrolled(Y, D, eta, c.lam, c.steps)
        values, shares = [f(Z) for Z in path], [measures.nonzeros(Z).item() for Z in path]
        rows += [(name, norm, eta, *found, least, sparse, empty) for found in zip(range(c.steps + 1), values, shares)]
        said.append((name, norm, eta, values[0], values[1], values[-1], least, empty, shares[0], shares[1], shares[-1],
                     sparse))
        line, = axis.plot(values, linewidth=1, marker=marker, markersize=3, label=f'step size {label}')
        axis.plot(1, values[1], marker='o', markersize=9, fillstyle='none', linestyle='', color=line.get_color())
    axis.axhline(least, color='black', linestyle='--', linewidth=1, label='the minimum')
    axis.axhline(empty, color='grey', linestyle=':', linewidth=1, label='codes Z = 0')
    axis.set_xscale('function', functions=(np.log1p, np.expm1))         # from 0 on, the first steps apart
    ticks = [0, *(2 ** i for i in range(c.steps.bit_length()))]
    axis.set_xticks(ticks, ticks)
    too_large = f'eta = {c.eta:g} is above 2/|D|^2' * (c.eta > 2 / norm)
    axis.set(title=f'{name} dictionary, |D|^2 = {norm:.3g}\n{too_large}', xlabel='step; the ring is the layer',
             xlim=(0, c.steps))
    return rows, said


# ---- in trained networks --------------------------------------------------------------------------------------------

def lasso_values(model, inputs):
    """The LASSO objective per token of each layer, eq. (16) with a factor 1/2 and Y =
    LN(Z^(l+1/2)): where the layer starts (relu(Y), or 0 if it decodes), at its codes, at the minimum
    and at Z = 0. Four tensors (L, B)."""
    found = []
    for step in tqdm(layers.inside(model, *inputs), 'LASSO', len(model.layers), leave=False, disable=None):
        ista = step.layer.ista
        Y, D = layers.needed(step.layer, 'norm2')(step.half).float(), ista.D.float()
        empty = Y.new_zeros(*Y.shape[:-1], D.shape[1])
        start = empty if layers.decodes(step.layer) else Y.relu()
        points = start, layers.codes(step).float(), measures.lasso_minimizer(Y, D, ista.lam, tolerance=1e-3), empty
        found.append([measures.lasso_objective(Z, Y, D, ista.lam).mean(-1) for Z in points])
    return [torch.stack(part) for part in zip(*found)]


def draw_lasso(c, nets):
    """CRATE's claim about ISTA, eqs. (16) and (17), in trained layers: it lowers the LASSO objective."""
    (figure, axes), rows, said = side_by_side(2), [], []
    for net in nets:
        start, end, least, empty = layers.of_all(batches(c, net, 4), lasso_values, net.model)
        way = (start - end) / (start - least)
        ista = [layer.ista for layer in net.model.layers]
        steps = [step.eta * torch.linalg.matrix_norm(step.D.float(), 2).item() ** 2 for step in ista]
        over_layers(axes[0], net, way)
        over_layers(axes[1], net, torch.tensor(steps)[:, None], band=False)
        values, w = torch.stack((start, end, least, empty)).mean(2), way.mean(1)        # (4, L), (L,)
        rows += [(net.name, net.kind, l + 1, *values[:, l].tolist(), *mean_and_spread(way[l]), steps[l])
                 for l in range(len(way))]
        said.append((net.name, '0' if layers.decodes(net.model.layers[0]) else 'relu(Y)', span(w, '.1%'),
                     span(steps, '.2f'), f'{(w > 0).sum()} of {len(w)}'))
    levels(axes[0], {'where the layer starts': 0})
    levels(axes[1], {'below this every step from Z >= 0 goes down': 2}, first=1)
    titles = 'share of the way from its start to the minimum of the LASSO', 'step size for the dictionary'
    label_panels(figure, axes, titles, ['share', 'eta |D|^2'], nets)
    say_table(('', 'from', 'share of the way to the minimum', 'eta |D|^2', 'lowers its LASSO in'), said)
    print(f'here ISTA lowers its LASSO in {said[0][-1]} layers; the theory says in all')
    return figure, ('network', 'weights', 'layer', 'at_start', 'after_layer', 'minimum', 'at_zero', 'share_of_the_way',
                    'share_spread', 'eta_norm2'), rows
