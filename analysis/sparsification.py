"""Does a step of ISTA lower the LASSO that it is derived from? CRATE's eqs. (16) and (17) (Yu et al., NeurIPS 2023):
`ista`, on sparse codes drawn for dictionaries from orthogonal to coherent, and with --ckpt in a trained network. Tokens
are rows here, Z (N, d), where the paper has columns.
"""
from dataclasses import dataclass

import torch

from analysis import layers, measures
from analysis.charts import lines, over_layers, panels
from analysis.subjects import batches
from analysis.tables import say_rows, say_walks
from analysis.theory import Shared, shipped_ista
from engine import figures


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


def unrolled(Y, D, eta, lam, steps):
    """[relu(Y), Z after one layer as shipped, after two steps, ..] for the same Y (N, d). Eq. (17)
    starts at Y, whose negative numbers the LASSO forbids: the gradient is taken at Y, but the
    objective is stated at the nearest allowed relu(Y)."""
    found = [Y.relu(), shipped_ista(D, eta=eta, lam=lam, ista='relu')(Y)]
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
    rows, (figure, axes) = [], panels(13.2, 5, len(Ds), sharey=True)
    for axis, (name, D) in zip(axes, Ds.items()):
        Y, norm = X @ D.mT + c.noise * noise, torch.linalg.matrix_norm(D, 2).item() ** 2
        found = steps_in(c, D, Y, norm)
        rows += [{'dictionary': name, 'norm2': norm, **row} for row in found]
        axis.axhline(found[0]['minimum'], color='black', linestyle='--', linewidth=1, label='the minimum')
        axis.axhline(found[0]['objective_of_zero'], color='grey', linestyle=':', linewidth=1, label='codes Z = 0')
        lines(axis, found, 'step_size', 'step', 'objective', legend=False, xscale='symlog', yscale='log',
              title=f'{name} dictionary,\n2/|D|^2 = {2 / norm:.3g}', xlabel='step; the first is the layer',
              ylabel='LASSO per token, eq. (16)')
        axis.label_outer()
    figures.legend_below(figure, axes)
    print(f'before the layer, at relu(Y), after it and after {c.steps} steps:')
    say_rows([row for row in rows if row['step'] in (0, 1, c.steps)])
    first = [(before, after) for before, after in zip(rows, rows[1:]) if after['step'] == 1]
    down = sum(after['objective'] < before['objective'] for before, after in first)
    small = sum(after['eta'] * after['norm2'] < 2 for _, after in first)
    print(f'here the layer lowers the LASSO in {down} of {len(first)} ways; the theory says {small}, by eta < 2/|D|^2')
    return figure, rows


def steps_in(c, D, Y, norm):
    """Rows of the table, for tokens Y that are sparse codes in a dictionary D with noise: the steps of two sizes."""
    def f(Z):
        return measures.lasso_objective(Z, Y, D, c.lam).mean().item()
    least = measures.lasso_minimizer(Y, D, c.lam)
    same = {'minimum': f(least), 'minimum_nonzeros': measures.nonzeros(least), 'objective_of_zero': f(0 * Y)}
    return [{'step_size': name, 'eta': eta, 'step': step, 'objective': f(Z), 'nonzeros': measures.nonzeros(Z), **same}
            for name, eta in ((f'eta = {c.eta:g}', c.eta), ('eta = 1/|D|^2', 1 / norm))
            for step, Z in enumerate(unrolled(Y, D, eta, c.lam, c.steps))]


# ---- in trained networks --------------------------------------------------------------------------------------------

def lasso_values(step):
    """The LASSO objective per token of a layer, eq. (16) with a factor 1/2 and Y = LN(Z^(l+1/2)): where the layer
    starts (relu(Y), or 0 if it decodes), at its codes, at the minimum and at Z = 0; the share of the way from the start
    to the minimum; and eta |D|^2. Each (B,)."""
    ista = layers.needed(step.layer, 'ista')
    Y, D = layers.needed(step.layer, 'norm2')(step.half).float(), ista.D.float()
    empty = Y.new_zeros(*Y.shape[:-1], D.shape[1])
    points = {'at_start': empty if layers.decodes(step.layer) else Y.relu(), 'after_layer': layers.codes(step).float(),
              'minimum': measures.lasso_minimizer(Y, D, ista.lam, tolerance=1e-3), 'at_zero': empty}
    found = {name: measures.lasso_objective(Z, Y, D, ista.lam).mean(-1) for name, Z in points.items()}
    found['share_of_the_way'] = (found['at_start'] - found['after_layer']) / (found['at_start'] - found['minimum'])
    if hasattr(ista, 'eta'):
        found['eta_norm2'] = (ista.eta * torch.linalg.matrix_norm(D, 2) ** 2).expand(len(Y))
    return found


def draw_lasso(c, nets):
    """CRATE's claim about ISTA, eqs. (16) and (17), in trained layers: it lowers the LASSO objective."""
    found = [layers.measure_layers(net.model, batches(c, net, 4), lasso_values) for net in nets]
    shown = {'share_of_the_way': ('share of the way from its start\nto the minimum of the LASSO', 'share')}
    if any('eta_norm2' in values for values in found):
        shown['eta_norm2'] = 'step size for the dictionary', 'eta |D|^2'
    say_walks(nets, found, *shown)
    way = found[0]['share_of_the_way'].mean(1)
    print(f'here ISTA lowers its LASSO in {(way > 0).sum()} of {len(way)} layers; the theory says in all')
    return over_layers(nets, found, shown, {
        'where the layer starts': {'share_of_the_way': 0},
        'below this every step from Z >= 0 goes down': {'eta_norm2': 2}})
