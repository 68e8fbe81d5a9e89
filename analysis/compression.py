"""Does attention compress tokens, as a step down the gradient of the coding rate does? These are
CRATE's eqs. (8) to (12) (Yu et al., NeurIPS 2023).

The command `compress` measures it on tokens that are drawn from the paper's own model, and with
--ckpt in a trained network. Tokens are rows here, Z (N, d), where the paper has columns.
"""
from dataclasses import dataclass, replace

import torch
from torch.nn.functional import cosine_similarity, normalize

from analysis import layers, measures
from analysis.charts import lines, over_layers, panels
from analysis.subjects import batches
from analysis.tables import say_rows, say_table, span
from analysis.theory import TheoryConfig, shipped_attention
from engine import figures


# ---- with the true subspaces --------------------------------------------------------------------

@dataclass
class CompressConfig(TheoryConfig):
    delta: float = 0.2  # size of the noise
    eps: float = 0.5    # precision of the coding rate, eq. (8)
    step: float = 0.5   # size of a step of eq. (10), kappa gamma; with 1 only its attention is left
    n_layer: int = 6    # steps

    @property
    def gamma(self):
        """The factor p / (N eps^2) of eqs. (8) to (12)."""
        return self.head_dim / (self.tokens * self.eps ** 2)


def draw_tokens(c):
    """Draw tokens Z (N, d) around true subspaces. Returns Z, the bases U of these subspaces, and
    the bases V of random subspaces, (K, d, p) each. The tokens have length 1, the condition of
    Approximation 4."""
    generator = torch.Generator().manual_seed(c.seed)
    n = c.tokens // c.n_head  # tokens of a subspace
    Z, U = measures.noisy_mixture(c.n_head, c.head_dim, n, c.d, c.delta, generator)
    V = measures.random_bases(c.n_head, c.head_dim, c.d, generator)
    Z = normalize(Z.flatten(0, 1), dim=-1)
    return Z, U, V


def attend(mssa, Z, length):
    """What attention adds to tokens Z (N, d) -> (N, d). The tokens are multiplied by `length`
    before attention, and what it adds is divided by `length` again."""
    added = mssa((length * Z)[None])
    return added[0] / length


def eq10_step(c, Z, mssa):
    """What a step of eq. (10) with kappa = 1 adds to tokens Z (N, d) -> (N, d). Where tokens are
    multiplied by p^(1/4), shipped attention is the attention of eq. (11)."""
    attention = attend(mssa, Z, length=c.head_dim ** 0.25)
    return c.gamma * (c.gamma * attention - Z)


def walks(c):
    """Take n_layer steps with each of four methods, from the same tokens. Returns {method: rows of
    the table}, see `walk`."""
    start, U, V = draw_tokens(c)
    attention = shipped_attention(U)
    random_attention = shipped_attention(V)
    kappa = c.step / c.gamma
    length = c.d ** 0.5  # of a token after a LayerNorm

    def gradient_step(Z):
        return -kappa * measures.compressed_rate_gradient(Z, U, c.eps)

    def approximate_step(Z):
        return kappa * eq10_step(c, Z, attention)

    def shipped_step(Z):
        return attend(attention, Z, length)

    def random_step(Z):
        return attend(random_attention, Z, length)

    steps = {
        'gradient step, eq. (9)': gradient_step,
        'approximation, eq. (10)': approximate_step,
        'as shipped, true subspaces': shipped_step,
        'as shipped, random subspaces': random_step,
    }
    return {method: walk(c, method, step_of, start, U) for method, step_of in steps.items()}


def walk(c, method, step_of, Z, U):
    """Take n_layer steps from tokens Z (N, d), each of which adds step_of(Z). Returns the rows of
    the table, measured in the subspaces U (K, d, p): one before each step, and one after the last.

    After a step of shipped attention tokens get the length 1 again, as the next LayerNorm would do
    it. The steps of eqs. (9) and (10) are free to change lengths.
    """
    rows = []
    for l in range(c.n_layer + 1):
        step = step_of(Z)
        downhill = -measures.compressed_rate_gradient(Z, U, c.eps)
        step_turn = measures.turning(step, Z).flatten()
        downhill_turn = measures.turning(downhill, Z).flatten()
        rows.append({
            'method': method,
            'tokens': c.tokens,
            'step': l,
            'rate': measures.compressed_rate(Z @ U, c.eps).item(),
            'cosine_turning': cosine_similarity(step_turn, downhill_turn, dim=0),
            'snr': measures.snr(Z.unflatten(0, (c.n_head, -1)), U).mean().item(),
        })
        Z = Z + step
        if 'shipped' in method:
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
    token_counts = {c.tokens}
    for i in range(7):
        token_counts.add(fewest * 2 ** i)

    rows = []
    best_rows = []
    for N in sorted(token_counts):
        for path in walks(replace(c, tokens=N)).values():
            rows += path
            best_rows.append(best_step(path, N / c.d))

    rows_as_set = [row for row in rows if row['tokens'] == c.tokens]
    say_steps(c, rows_as_set)
    print('factor of the best step on signal to noise, by the number of tokens:')
    say_rows(best_rows)
    figure = draw_paths(c, rows_as_set, best_rows)
    return figure, rows


def best_step(path, tokens_per_dimension):
    """A row about the step after which signal to noise is largest, of the rows of one method."""
    first = path[0]
    best = max(path, key=lambda row: row['snr'])
    return {
        'method': first['method'],
        'N/d': tokens_per_dimension,
        'factor': best['snr'] / first['snr'],
        'best_step': best['step'],
        'cosine_turning': first['cosine_turning'],
    }


def draw_paths(c, rows, best_rows):
    """The figure of `compress`: R^c and signal to noise step by step, and the best factor by the
    number of tokens."""
    figure, axes = panels(13.2, 5.2, 3)
    lines(axes[0], rows, 'method', 'step', 'rate', legend=False, ylim=(0, None),
          title=f'R^c in the true subspaces,\n{c.tokens} tokens in {c.d} dimensions',
          ylabel='nats a token, eq. (8)')
    lines(axes[1], rows, 'method', 'step', 'snr', legend=False, ylim=(0, None),
          title='signal to noise\nof the same tokens',
          ylabel="signal to noise, AoT's eq. (6)")
    lines(axes[2], best_rows, 'method', 'N/d', 'factor', legend=False, xscale='log',
          title='what the best of all steps\nmultiplies it by',
          xlabel='tokens / dimensions;\nthe theory is left of the line',
          ylabel='factor; 1 = unchanged')
    axes[2].axvline(1, color='black', linewidth=1, linestyle=':')
    figures.legend_below(figure, axes)
    return figure


def say_steps(c, rows):
    """Print what the steps do, and how far eqs. (10) and (68) are from the gradient step."""
    print(f'N/d = {c.tokens / c.d:g}; before the first step, after it and after {c.n_layer}:')
    say_rows([row for row in rows if row['step'] in (0, 1, c.n_layer)])

    Z, U, _ = draw_tokens(c)
    downhill = -measures.compressed_rate_gradient(Z, U, c.eps)
    turn = measures.turning(downhill, Z)
    shortening_share = 1 - (turn.norm() / downhill.norm()) ** 2

    W = Z @ U  # (K, N, p)
    W_step = W - c.gamma * W @ (W.mT @ W)  # (K, N, p)
    approximations = {
        'eq. (10)': eq10_step(c, Z, shipped_attention(U)),
        'eq. (68)': -c.gamma * (W_step @ U.mT).sum(0),
    }
    distances = []
    for name, step in approximations.items():
        distance = (step - downhill).norm() / downhill.norm()
        distances.append(f'{name} {distance:.1%}')
    print(f'{shortening_share:.1%} of the gradient only shortens tokens; off by, of the gradient '
          f'step: {", ".join(distances)}')

    lowered = 0
    for before, after in zip(rows, rows[1:]):
        is_true_first_step = after['step'] == 1 and 'random' not in after['method']
        if is_true_first_step and after['rate'] < before['rate']:
            lowered += 1
    print(f'here a step with the true subspaces lowers R^c in {lowered} of 3 ways; the theory says '
          'in all')


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

    The gradient is taken where the network computes, at LN(Z^l). Of both steps only the part that
    turns tokens is compared, without its mean over tokens: a turn that all tokens share does not
    tell them apart. In a network of text the gradient sees later tokens too. Eq. (10) also shortens
    tokens, by 1 - kappa p / (N eps^2), a factor that neither the authors' layer nor ours has.
    """
    U = layers.bases(step.attention).float()
    norm = layers.needed(step.layer, 'norm1')
    tokens = {'before': step.z, 'half': step.half, 'after': step.after}
    values = {}
    for name, z in tokens.items():
        values[name] = measures.compressed_rate(z[:, None] @ U)
    for name, z in tokens.items():
        values[f'{name}_released'] = measures.released_rate(norm(z)[:, None] @ U)

    downhill = -measures.compressed_rate_gradient(step.normed, U)
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
    values_of_nets = []
    for net in nets:
        samples = batches(c, net, 256)
        values_of_nets.append(layers.measure_layers(net.model, samples, rates_around_steps))

    rows = []
    for net, values in zip(nets, values_of_nets):
        rows += change_rows(net, values)
    say_table(('', 'R^c by', 'step', 'lowers R^c in', 'adds, nats', 'cosine to the gradient'), rows)
    for name, measure, half, lowered, *_ in rows:
        if name == nets[0].name and half == 'attention':
            print(f'here attention lowers R^c in {lowered} layers ({measure}); the theory says in '
                  'all')

    panel_titles = {}
    for suffix, measure in RATE_COLUMNS.items():
        title = f'R^c before a layer (ring), after its attention, after it:\n{measure}'
        panel_titles[suffix] = (title, 'nats')
    return over_layers(nets, values_of_nets, panel_titles, draw=draw_steps)


def change_rows(net, values):
    """Rows of the printed table: how the two halves of the layers of a network change R^c. A dense
    layer, with neither ISTA nor an MLP, has only the first half, attention."""
    first_layer = net.model.layers[0]
    halves = ['attention']
    if not layers.is_dense(first_layer):
        halves.append('ISTA' if hasattr(first_layer, 'ista') else 'the MLP')

    rows = []
    for suffix, measure in RATE_COLUMNS.items():
        changes_of_halves = mean_rates(values, suffix).diff(dim=0)  # (2, L)
        for half, changes in zip(halves, changes_of_halves):
            lowered = f'{(changes < 0).sum()} of {len(changes)}'
            added = f'{changes.min():+.1f} to {changes.max():+.1f}'
            cosine = ''
            if half == 'attention':
                cosine = span(values['cosine'].mean(1), '.2f')
            rows.append((net.name, measure, half, lowered, added, cosine))
    return rows


def mean_rates(values, suffix):
    """R^c of Z^l, Z^(l+1/2) and Z^(l+1), means over samples: (3, L)."""
    rates = [values[name + suffix].mean(1) for name in ('before', 'half', 'after')]
    return torch.stack(rates)


def draw_steps(axis, net, values, suffix):
    """Draw a line for each layer of a network, with a ring before the layer."""
    rates = mean_rates(values, suffix)
    layer_numbers = torch.arange(1, rates.size(1) + 1)
    places = torch.tensor([[0], [0.35], [0.7]]) + layer_numbers  # (3, L)
    style = '-' if net.kind == 'trained' else '--'
    axis.plot(places, rates, color=net.colour, linestyle=style, label=net.label, marker='o',
              markevery=[0], fillstyle='none')
