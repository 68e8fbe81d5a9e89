"""Does a step of ISTA lower the LASSO that it is derived from? These are CRATE's eqs. (16) and (17)
(Yu et al., NeurIPS 2023).

The command `ista` measures it on sparse codes that are drawn for dictionaries from orthogonal to
coherent, and with --ckpt in a trained network. Tokens are rows here, Z (N, d), where the paper has
columns.
"""
from dataclasses import dataclass

import torch

from analysis import figures, layers, measures
from analysis.charts import lines, over_layers, panels
from analysis.subjects import measured
from analysis.tables import say_first_and_last, say_walks
from analysis.theory import Shared, shipped_ista

# The figure ends here, and the table goes on. A step that is too long jumps over the minimum and
# back again, and lines of many such steps would fill the panel.
LAST_STEP_DRAWN = 16


# ---- with codes that one knows ------------------------------------------------------------------

@dataclass
class ISTAConfig(Shared):
    n_embd: int = 64     # d, width of a token; the dictionary is (d, d)
    tokens: int = 256    # tokens, each D x + noise
    share: float = 0.1   # of non-zeros in x, which are positive
    noise: float = 0.05  # size of the noise
    lam: float = 0.1     # weight lambda of sparsity, eq. (16)
    eta: float = 0.1     # step size, eq. (17), as CRATE is shipped
    steps: int = 64      # the first is the layer


def draw_sparsification(c):
    """The LASSO of eq. (16) along steps of eq. (17), and at its minimizer, for dictionaries from
    orthogonal to coherent."""
    generator = c.generator()
    dictionaries = measures.dictionaries(c.n_embd, generator)
    # a number of the sparse codes X is positive with the probability c.share, and else 0
    numbers = measures.gaussian(generator, c.tokens, c.n_embd)          # (N, d)
    chances = torch.rand(numbers.shape, generator=generator, dtype=numbers.dtype)
    X = numbers.abs() * (chances < c.share)
    noise = measures.gaussian(generator, *X.shape)

    rows = []
    figure, axes = panels(13.2, 5, len(dictionaries), sharey=True)
    for axis, (name, D) in zip(axes, dictionaries.items()):
        Y = X @ D.mT + c.noise * noise
        norm2 = torch.linalg.matrix_norm(D, 2).item() ** 2
        rows_of_dictionary = step_rows(c, name, D, Y, norm2)
        rows += rows_of_dictionary
        axis.axhline(rows[-1]['minimum'], color='black', linestyle='--', linewidth=1,
                     label='the minimum')
        axis.axhline(rows[-1]['objective_of_zero'], color='grey', linestyle=':', linewidth=1,
                     label='codes Z = 0')
        drawn = [row for row in rows_of_dictionary if row['step'] <= LAST_STEP_DRAWN]
        lines(axis, drawn, 'step_size', 'step', 'objective', yscale='log',
              title=f'{name} dictionary,\n$2/\\|D\\|^2$ = {2 / norm2:.3g}',
              xlabel='step; the first is the layer', ylabel='LASSO per token, eq. (16)')
        axis.label_outer()
    figures.legend_below(figure, axes)

    say_steps(c, rows)
    return figure, rows


def step_rows(c, name, D, Y, norm2):
    """Rows of the table: steps of two sizes for tokens Y (N, d), which are sparse codes in a
    dictionary D (d, d) with noise. name: that of the dictionary; norm2: |D|^2."""
    def objective(Z):
        return measures.lasso_objective(Z, Y, D, c.lam).mean().item()

    minimizer = measures.lasso_minimizer(Y, D, c.lam)
    columns_of_all = {
        'minimum': objective(minimizer),
        'minimum_nonzeros': measures.nonzeros(minimizer),
        'objective_of_zero': objective(0 * Y),
    }
    step_sizes = {f'eta = {c.eta:g}': c.eta, 'eta = 1/|D|^2': 1 / norm2}
    rows = []
    for step_size, eta in step_sizes.items():
        for step, Z in enumerate(unrolled(Y, D, eta, c.lam, c.steps)):
            rows.append({
                'dictionary': name,
                'norm2': norm2,
                'step_size': step_size,
                'eta': eta,
                'step': step,
                'objective': objective(Z),
                'nonzeros': measures.nonzeros(Z),
                **columns_of_all,
            })
    return rows


def unrolled(Y, D, eta, lam, steps):
    """The codes of tokens Y (N, d) step by step: [relu(Y), Z after one layer as shipped, Z after
    two steps, ..], each (N, d), all for the same Y.

    Eq. (17) starts at Y, but the LASSO forbids the negative numbers of Y. So the gradient is taken
    at Y, but the objective is stated at relu(Y), the nearest point that is allowed.
    """
    first_layer = shipped_ista(D, eta=eta, lam=lam, ista='relu')
    path = [Y.relu(), first_layer(Y)]
    while len(path) <= steps:
        path.append(measures.ista_step(path[-1], Y, D, eta, lam))
    return path


def say_steps(c, rows):
    """Print what the first step and all steps do to the LASSO."""
    print(f'before the layer, at relu(Y), after it and after {c.steps} steps:')
    say_first_and_last(rows, c.steps)

    before_layer = [row['objective'] for row in rows if row['step'] == 0]
    after_layer = [row for row in rows if row['step'] == 1]
    lowered = [before > row['objective'] for before, row in zip(before_layer, after_layer)]
    small = [row['eta'] * row['norm2'] < 2 for row in after_layer]
    print(f'here the layer lowers the LASSO in {lowered.count(True)} of {len(lowered)} ways; the '
          f'theory says {small.count(True)}, by eta < 2/|D|^2')


# ---- in trained networks ------------------------------------------------------------------------

def lasso_values(step):
    """The LASSO objective per token of a layer, eq. (16) with a factor 1/2 and Y = LN(Z^(l+1/2)):
    where the layer starts (relu(Y), or 0 if it decodes), at its codes, at the minimum and at Z = 0.
    Also the share of the way from the start to the minimum that the layer goes, and eta |D|^2.
    Each (B,)."""
    ista = layers.needed(step.layer, 'ista')
    norm = layers.needed(step.layer, 'norm2')
    Y = norm(step.half).float()
    D = ista.D.float()
    zero = Y.new_zeros(*Y.shape[:-1], D.shape[1])
    start = zero if layers.decodes(step.layer) else Y.relu()
    points = {
        'at_start': start,
        'after_layer': layers.codes(step).float(),
        'minimum': measures.lasso_minimizer(Y, D, ista.lam, tolerance=1e-3),
        'at_zero': zero,
    }
    values = {name: measures.lasso_objective(Z, Y, D, ista.lam).mean(-1)
              for name, Z in points.items()}

    way_of_layer = values['at_start'] - values['after_layer']
    way_to_minimum = values['at_start'] - values['minimum']
    values['share_of_the_way'] = way_of_layer / way_to_minimum
    if hasattr(ista, 'eta'):
        eta_norm2 = ista.eta * torch.linalg.matrix_norm(D, 2) ** 2
        values['eta_norm2'] = eta_norm2.expand(len(Y))
    return values


def draw_lasso(c, nets):
    """CRATE's claim about ISTA, eqs. (16) and (17), in trained layers: it lowers the LASSO
    objective."""
    values_of_nets = measured(c, nets, 4, lasso_values)
    panel_titles = {
        'share_of_the_way': ('share of the way from its start\nto the minimum of the LASSO',
                             'share'),
    }
    if any('eta_norm2' in values for values in values_of_nets):
        panel_titles['eta_norm2'] = ('step size for the dictionary', r'$\eta \|D\|^2$')
    say_walks(nets, values_of_nets, *panel_titles)

    shares = values_of_nets[0]['share_of_the_way'].mean(1)  # (L,)
    print(f'here ISTA lowers its LASSO in {(shares > 0).sum()} of {len(shares)} layers; the theory '
          'says in all')
    levels = {
        'where the layer starts': {'share_of_the_way': 0},
        'below this every step from Z >= 0 goes down': {'eta_norm2': 2},
    }
    return over_layers(nets, values_of_nets, panel_titles, levels)
