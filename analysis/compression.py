"""Does attention compress tokens, as a step down the gradient of the coding rate does? These are
CRATE's eqs. (8) to (12) (Yu et al., NeurIPS 2023).

The command `compress` measures it on tokens that are drawn from the paper's own model, and with
--ckpt in a trained network. Tokens are rows here, Z (N, d), where the paper has columns.
"""
from dataclasses import dataclass, replace

import torch
from torch.nn.functional import cosine_similarity, normalize

from analysis import figures, layers, measures
from analysis.charts import lines, over_layers, panels
from analysis.subjects import measured
from analysis.tables import say_first_and_last, say_rows, say_table, span
from analysis.theory import TheoryConfig, shipped_attention
from engine.plots import verbatim


# ---- with the true subspaces --------------------------------------------------------------------

@dataclass
class CompressConfig(TheoryConfig):
    delta: float = 0.2  # size of the noise
    eps: float = 0.5    # precision of the coding rate, eq. (8)
    step: float = 0.5   # kappa gamma of eq. (10): (1 - step) Z + step gamma attention(Z)
    n_layer: int = 6    # steps of a walk

    @property
    def gamma(self):
        """The factor p / (N eps^2) of eqs. (8) to (12)."""
        return self.head_dim / (self.tokens * self.eps ** 2)


def sample_tokens(c):
    """Draw tokens Z (N, d) around true subspaces. Returns Z, the bases U of these subspaces, and
    the bases V of random subspaces, (K, d, p) each. The tokens have length 1, the condition of
    Approximation 4."""
    generator = c.generator()
    n = c.tokens // c.n_head  # tokens of a subspace
    Z, U = measures.noisy_mixture(c.n_head, c.head_dim, n, c.d, c.delta, generator)
    V = c.random_bases(generator)
    Z = normalize(Z.flatten(0, 1), dim=-1)
    return Z, U, V


def attend(Z, U, scale):
    """What shipped attention with the bases U (K, d, p) adds to tokens Z (N, d) -> (N, d). The
    tokens are multiplied by `scale` before attention, and what it adds is divided by `scale`
    again."""
    mssa = shipped_attention(U)
    added = mssa((scale * Z)[None])
    return added[0] / scale


def eq10_update(c, Z, U):
    """What a step of eq. (10) with kappa = 1 adds to tokens Z (N, d) -> (N, d). Shipped attention
    divides scores by sqrt(p), and eq. (11) does not. With tokens times p^(1/4) the shipped scores
    are those of eq. (11)."""
    attention = attend(Z, U, scale=c.head_dim ** 0.25)
    return c.gamma * (c.gamma * attention - Z)


def walks(c):
    """Take n_layer steps with each of four methods, from the same tokens. Returns a list of their
    rows of the table, see `walk`. Only the last method does not know the true subspaces."""
    start, U, V = sample_tokens(c)
    kappa = c.step / c.gamma
    scale = c.d ** 0.5  # a token has length 1 here, and sqrt(d) after a LayerNorm

    def gradient_update(Z):
        return -kappa * measures.compressed_rate_gradient(Z, U, c.eps)

    def approximate_update(Z):
        return kappa * eq10_update(c, Z, U)

    def shipped_update(Z):
        return attend(Z, U, scale)

    def random_update(Z):
        return attend(Z, V, scale)

    # {method: (its update, whether tokens get one length after a step)}. After a step of shipped
    # attention the next LayerNorm would do that. The steps of eqs. (9) and (10) are free to change
    # lengths.
    methods = {
        'gradient step, eq. (9)': (gradient_update, False),
        'approximation, eq. (10)': (approximate_update, False),
        'as shipped, true subspaces': (shipped_update, True),
        'as shipped, random subspaces': (random_update, True),
    }
    return [walk(c, method, update_of, start, U, normalizes)
            for method, (update_of, normalizes) in methods.items()]


def walk(c, method, update_of, Z, U, normalizes):
    """Take n_layer steps from tokens Z (N, d). update_of(Z) is what a step of the method adds to
    them (N, d); normalizes: whether tokens get the length 1 again after a step. Returns the rows of
    the table, which are measured in the subspaces U (K, d, p): one before each step, and one after
    the last. `cosine_turning` is of the step that would come next, also in the last row."""
    rows = []
    for l in range(c.n_layer + 1):
        update = update_of(Z)
        downhill = -measures.compressed_rate_gradient(Z, U, c.eps)
        update_turn = measures.turning(update, Z).flatten()
        downhill_turn = measures.turning(downhill, Z).flatten()
        rows.append({
            'method': method,
            'tokens': c.tokens,
            'step': l,
            'rate': measures.compressed_rate(Z @ U, c.eps).item(),
            'cosine_turning': cosine_similarity(update_turn, downhill_turn, dim=0),
            'snr': measures.snr(Z.unflatten(0, (c.n_head, -1)), U).mean().item(),
        })
        Z = Z + update
        if normalizes:
            Z = normalize(Z, dim=-1)
    return rows


def draw_compression(c):
    """CRATE's compression with the true subspaces U: R^c (eq. 8) and signal to noise after each
    step of the exact gradient (eq. 9), of eq. (10), and of attention as shipped, with U and with
    random subspaces. Then the same for fewer and for more tokens, because appendix A.3 of CRATE and
    Assumption 2 of CRATE-MAE need N <= d."""
    tokens_of_subspace = max(1, c.tokens // c.n_head)
    c = replace(c, tokens=c.n_head * tokens_of_subspace)
    fewest = c.n_head * max(1, c.head_dim // 8)
    token_counts = {c.tokens, *(fewest * 2 ** i for i in range(7))}

    rows = []
    best_rows = []
    for N in sorted(token_counts):
        for path in walks(replace(c, tokens=N)):
            rows += path
            best_rows.append(best_step(path, N / c.d))

    rows_of_setting = [row for row in rows if row['tokens'] == c.tokens]
    say_steps(c, rows_of_setting)
    print('factor of the best step on signal to noise, by the number of tokens:')
    say_rows(best_rows)
    return draw_paths(c, rows_of_setting, best_rows), rows


def best_step(path, tokens_per_dimension):
    """A row about the step after which signal to noise is largest, 0 if no step raises it. path:
    the rows of one method."""
    ratios = [row['snr'] for row in path]
    return {
        'method': path[0]['method'],
        'N/d': tokens_per_dimension,
        'factor': max(ratios) / ratios[0],
    }


def draw_paths(c, rows, best_rows):
    """The figure of `compress`: R^c and signal to noise step by step, and the best factor by the
    number of tokens."""
    figure, axes = panels(13.2, 5.2, 3)
    lines(axes[0], rows, 'method', 'step', 'rate', ylim=(0, None),
          title=f'$R^c$ in the true subspaces,\n{c.tokens} tokens in {c.d} dimensions',
          ylabel='nats a token, eq. (8)')
    lines(axes[1], rows, 'method', 'step', 'snr', ylim=(0, None),
          title='signal to noise\nof the same tokens',
          ylabel="signal to noise, AoT's eq. (6)")
    lines(axes[2], best_rows, 'method', 'N/d', 'factor',
          title='what the best of all steps\nmultiplies it by',
          xlabel='tokens / dimensions;\nthe theory is left of the line',
          ylabel='factor; 1 = unchanged')
    axes[2].set_xscale('log', base=2)  # the numbers of tokens double
    axes[2].axvline(1, color='black', linewidth=1, linestyle=':')
    figures.legend_below(figure, axes)
    return figure


def say_steps(c, rows):
    """Print what the steps do, and how far eqs. (10) and (68) are from the gradient step. Eq. (68)
    replaces the inverse in the gradient by its first-order series. rows: those of all methods."""
    print(f'N/d = {c.tokens / c.d:g}; before the first step, after it and after {c.n_layer}:')
    say_first_and_last(rows, c.n_layer)

    Z, U, _ = sample_tokens(c)
    downhill = -measures.compressed_rate_gradient(Z, U, c.eps)
    turn = measures.turning(downhill, Z)
    # of the squared norm of the gradient, the share of the part that only shortens tokens
    shortening_share_of_square = 1 - (turn.norm() / downhill.norm()) ** 2

    P = Z @ U  # the projections, (K, N, p)
    # (I + gamma P P^T)^-1 P, to first order
    P_shrunk = P - (c.gamma * P) @ (P.mT @ P)  # (K, N, p)
    approximations = {
        'eq. (10)': eq10_update(c, Z, U),
        'eq. (68)': -c.gamma * (P_shrunk @ U.mT).sum(0),
    }
    distances = [f'{name} {measures.relative_distance(update, downhill):.1%}'
                 for name, update in approximations.items()]
    print(f'{shortening_share_of_square:.1%} of the gradient only shortens tokens; off by, of the '
          f'gradient step: {", ".join(distances)}')

    before = [row['rate'] for row in rows if row['step'] == 0]
    after = [row['rate'] for row in rows if row['step'] == 1]
    # the last method has random subspaces
    lowered = [old > new for old, new in zip(before[:-1], after)]
    print(f'here a step with the true subspaces lowers R^c in {lowered.count(True)} of '
          f'{len(lowered)} ways; the theory says in all')


# ---- in trained networks ------------------------------------------------------------------------

# how R^c is measured: {end of the column's name: words}
RATE_COLUMNS = {
    '': 'eq. (8), tokens as they are',
    '_released': 'as the released code measures it',
}


def rates_around_steps(step):
    """R^c of Z^l, Z^(l+1/2) and Z^(l+1) in the subspaces of a layer, (B,) each: first by eq. (8),
    then as the released code measures it. Also the cosine between the attention step and the step
    down the gradient, eq. (9), (B,).

    Eq. (8) is measured on the tokens as they are, because the step of eq. (10) and Figure 3 go from
    Z^l to Z^(l+1/2), the tokens of the skip. By eq. (8) R^c grows with the length of tokens. The
    released code takes the tokens after the LayerNorm of the layer, and scales their projections to
    unit length, so that only directions count.

    The gradient is taken at LN(Z^l), which is where the attention of the network is computed. Of
    both steps only the part that turns tokens is compared. From this part its mean over the tokens
    is subtracted, because a turn that all tokens share does not tell them apart. In a network of
    text, attention sees no later tokens, but the gradient does. Eq. (10) also multiplies tokens by
    1 - kappa p / (N eps^2), which shortens them. Neither the authors' layer nor ours does so.
    """
    U = layers.bases(step.attention).float()
    norm = layers.needed(step.layer, 'norm1')
    tokens = {'before': step.z, 'half': step.half, 'after': step.after}
    values = {name: measures.compressed_rate(z[:, None].float() @ U) for name, z in tokens.items()}
    for name, z in tokens.items():
        values[f'{name}_released'] = measures.released_rate(norm(z)[:, None].float() @ U)

    downhill = -measures.compressed_rate_gradient(step.normed.float(), U)
    update_turn = centred_turn(step.update, step.normed)
    downhill_turn = centred_turn(downhill, step.normed)
    values['cosine'] = cosine_similarity(update_turn, downhill_turn)
    return values


def centred_turn(step, Z):
    """The part of a step (B, N, d) that turns the tokens Z (B, N, d), less the mean of this part
    over the tokens: (B, N d)."""
    turn = measures.turning(step, Z)
    return (turn - turn.mean(-2, keepdim=True)).flatten(1)


def draw_rate_changes(c, nets):
    """CRATE's claim about attention, eqs. (8) to (11), in trained layers: it lowers R^c."""
    values_of_nets = measured(c, nets, 256, rates_around_steps)
    rows = []
    for net, values in zip(nets, values_of_nets):
        rows += change_rows(net, values)
    say_table(('', 'R^c by', 'step', 'lowers R^c in', 'adds, nats', 'cosine to the gradient'), rows)
    for name, measure, step_name, lowered, *_ in rows:
        if name == nets[0].name and step_name == 'attention':
            print(f'here attention lowers R^c in {lowered} layers ({measure}); the theory says in '
                  'all')

    # over_layers hands each key to draw_layer_lines as `column`; here it is the end of the names of
    # three columns
    panel_titles = {}
    for suffix, measure in RATE_COLUMNS.items():
        title = f'$R^c$ before a layer (ring), after its attention, after it:\n{measure}'
        panel_titles[suffix] = (title, 'nats')
    return over_layers(nets, values_of_nets, panel_titles, draw=draw_layer_lines)


def change_rows(net, values):
    """Rows of the printed table: how the two steps of the layers of a network change R^c. A dense
    layer, with neither ISTA nor an MLP, has only the first step, attention."""
    first_layer = net.model.layers[0]
    step_names = ['attention']
    if getattr(first_layer, 'ista', None) is not None:
        step_names.append('ISTA')
    elif not layers.is_dense(first_layer):
        step_names.append('the MLP')

    rows = []
    for suffix, measure in RATE_COLUMNS.items():
        changes_of_steps = mean_rates(values, suffix).diff(dim=0)  # (2, L)
        for step_name, changes in zip(step_names, changes_of_steps):
            lowered = f'{(changes < 0).sum()} of {len(changes)}'
            added = f'{changes.min():+.1f} to {changes.max():+.1f}'
            cosine = ''
            if step_name == 'attention':
                cosine = span(values['cosine'].mean(1), '.2f')
            rows.append((net.name, measure, step_name, lowered, added, cosine))
    return rows


def mean_rates(values, suffix):
    """R^c of Z^l, Z^(l+1/2) and Z^(l+1), means over samples: (3, L)."""
    rates = [values[name + suffix].mean(1) for name in ('before', 'half', 'after')]
    return torch.stack(rates)


def draw_layer_lines(axis, net, values, suffix):
    """Draw a line for each layer of a network, with a ring before the layer."""
    rates = mean_rates(values, suffix)  # (3, L)
    layer_numbers = torch.arange(1, rates.size(1) + 1)
    # the three points of layer l are at l, l + 0.35 and l + 0.7, so that lines do not touch
    x_of_points = torch.tensor([[0], [0.35], [0.7]]) + layer_numbers  # (3, L)
    style = '-' if net.kind == 'trained' else '--'
    axis.plot(x_of_points, rates, color=net.colour, linestyle=style, marker='o', markevery=[0],
              fillstyle='none', label=verbatim(net.label))
