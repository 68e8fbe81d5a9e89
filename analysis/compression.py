"""Does attention compress tokens, as a step along the gradient of the coding rate does? CRATE's eqs. (8) to (12) (Yu et
al., NeurIPS 2023): `compress`, on tokens drawn from the paper's own model, and with --ckpt in a trained network.
Tokens are rows here, Z (N, d), where the paper has columns.
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


# ---- with the true subspaces ----------------------------------------------------------------------------------------

@dataclass
class CompressConfig(TheoryConfig):
    delta: float = 0.2              # size of the noise
    eps: float = 0.5                # precision of the coding rate, eq. (8)
    step: float = 0.5               # size of a step of eq. (10), kappa gamma; with 1 only its attention is left
    n_layer: int = 6                # steps

    @property
    def gamma(self):
        """p / (N eps^2), the factor of eqs. (8) to (12)."""
        return self.head_dim / (self.tokens * self.eps ** 2)


def attend(mssa, Z, length):
    """What attention adds to tokens Z (N, d) that are multiplied by `length` for it."""
    return mssa((length * Z)[None])[0] / length


def eq10_step(c, Z, mssa):
    """What a step of eq. (10) with kappa = 1 adds; p^(1/4) is the length for which shipped attention is that of eq.
    (11)."""
    return c.gamma * (c.gamma * attend(mssa, Z, c.head_dim ** 0.25) - Z)


def draw_tokens(c):
    """Tokens (N, d) around true subspaces, of length 1 (the condition of Approximation 4); the bases of these, U, and
    of random subspaces, V (K, d, p)."""
    generator = torch.Generator().manual_seed(c.seed)
    Z, U = measures.noisy_mixture(c.n_head, c.head_dim, c.tokens // c.n_head, c.d, c.delta, generator)
    return normalize(Z.flatten(0, 1), dim=-1), U, measures.random_bases(c.n_head, c.head_dim, c.d, generator)


def walks(c):
    """{method: rows of the table}, measured before each of n_layer steps and after the last. After a shipped step
    tokens get length 1 again, as by the next LayerNorm; eqs. (9) and (10) are free to change lengths."""
    start, U, V = draw_tokens(c)
    true, other, kappa = shipped_attention(U), shipped_attention(V), c.step / c.gamma
    # what a step of each method adds to tokens (N, d)
    steps = {'gradient step, eq. (9)': lambda Z: -kappa * measures.compressed_rate_gradient(Z, U, c.eps),
             'approximation, eq. (10)': lambda Z: kappa * eq10_step(c, Z, true),
             'as shipped, true subspaces': lambda Z: attend(true, Z, c.d ** 0.5),      # the length after a LayerNorm
             'as shipped, random subspaces': lambda Z: attend(other, Z, c.d ** 0.5)}
    paths = {}
    for method, step_of in steps.items():
        Z, paths[method] = start, []
        for l in range(c.n_layer + 1):
            step, down = step_of(Z), -measures.compressed_rate_gradient(Z, U, c.eps)
            cosine = cosine_similarity(*(measures.turning(way, Z).flatten() for way in (step, down)), dim=0)
            paths[method].append({'method': method, 'tokens': c.tokens, 'step': l,
                                  'rate': measures.compressed_rate(Z @ U, c.eps).item(), 'cosine_turning': cosine,
                                  'snr': measures.snr(Z.unflatten(0, (c.n_head, -1)), U).mean().item()})
            Z = normalize(Z + step, dim=-1) if 'shipped' in method else Z + step
    return paths


def draw_compression(c):
    """CRATE's compression with the true subspaces U: R^c (eq. 8) and signal to noise after each step of the exact
    gradient (eq. 9), of eq. (10), and of attention as shipped, with U and with random subspaces. Then the same for
    fewer and for more tokens: appendix A.3 of CRATE and Assumption 2 of CRATE-MAE need N <= d."""
    least = c.n_head * max(1, c.head_dim // 8)
    c = replace(c, tokens=c.n_head * max(1, c.tokens // c.n_head))
    rows, best = [], []
    for N in sorted({c.tokens} | {least * 2 ** i for i in range(7)}):
        for method, path in walks(replace(c, tokens=N)).items():
            rows += path
            top = max(path, key=lambda row: row['snr'])
            best.append({'method': method, 'N/d': N / c.d, 'factor': top['snr'] / path[0]['snr'],
                         'best_step': top['step'], 'cosine_turning': path[0]['cosine_turning']})
    mine = [row for row in rows if row['tokens'] == c.tokens]
    say_steps(c, mine)
    print('factor of the best step on signal to noise, by the number of tokens:')
    say_rows(best)
    figure, axes = panels(13.2, 5.2, 3)
    lines(axes[0], mine, 'method', 'step', 'rate', legend=False, ylabel='nats a token, eq. (8)', ylim=(0, None),
          title=f'R^c in the true subspaces,\n{c.tokens} tokens in {c.d} dimensions')
    lines(axes[1], mine, 'method', 'step', 'snr', legend=False, ylabel="signal to noise, AoT's eq. (6)", ylim=(0, None),
          title='signal to noise\nof the same tokens')
    lines(axes[2], best, 'method', 'N/d', 'factor', legend=False, title='what the best of all steps\nmultiplies it by',
          xscale='log', xlabel='tokens / dimensions;\nthe theory is left of the line', ylabel='factor; 1 = unchanged')
    axes[2].axvline(1, color='black', linewidth=1, linestyle=':')
    figures.legend_below(figure, axes)
    return figure, rows


def say_steps(c, rows):
    """Print what the steps do, and how far eq. (10) is from the gradient step."""
    Z, U, _ = draw_tokens(c)
    g, W, down, mssa = c.gamma, Z @ U, -measures.compressed_rate_gradient(Z, U, c.eps), shipped_attention(U)
    approximations = {'eq. (10)': eq10_step(c, Z, mssa), 'eq. (68)': -g * ((W - g * W @ (W.mT @ W)) @ U.mT).sum(0)}
    shortens = 1 - (measures.turning(down, Z).norm() / down.norm()) ** 2
    print(f'N/d = {c.tokens / c.d:g}; before the first step, after it and after {c.n_layer}:')
    say_rows([row for row in rows if row['step'] in (0, 1, c.n_layer)])
    print(f'{shortens:.1%} of the gradient only shortens tokens; off by, of the gradient step: '
          + ', '.join(f'{k} {(step - down).norm() / down.norm():.1%}' for k, step in approximations.items()))
    lower = sum(after['rate'] < before['rate'] for before, after in zip(rows, rows[1:])
                if after['step'] == 1 and 'random' not in after['method'])
    print(f'here a step with the true subspaces lowers R^c in {lower} of 3 ways; the theory says in all')


# ---- in trained networks --------------------------------------------------------------------------------------------

COMPRESSED = {'': 'eq. (8), tokens as they are', '_released': 'as the released code measures it'}  # ends of columns


def rates_around_steps(step):
    """R^c in the subspaces of a layer, (B,) each: of Z^l, Z^(l+1/2) and Z^(l+1), first by eq. (8), then as the released
    code measures it; and the cosine between the attention step and the step down the gradient, eq. (9).

    Eq. (8) is of the tokens as they are: the step of eq. (10) and Figure 3 go from Z^l to Z^(l+1/2), the tokens of the
    skip. There R^c grows with their length. The released code takes tokens behind the LayerNorm of the layer and
    projections of unit length, so that only directions count. The gradient is taken where the network computes, at
    LN(Z^l). Of both steps only what turns tokens is compared, without its mean over tokens: a part that is the same
    for all tells none from another. In a network of text the gradient sees later tokens too. Eq. (10) also shortens
    tokens, by 1 - kappa p / (N eps^2), a factor that neither the authors' layer nor ours has.
    """
    U, norm = layers.bases(step.attention).float(), layers.needed(step.layer, 'norm1')
    parts = {'before': step.z, 'half': step.half, 'after': step.after}
    found = {name: measures.compressed_rate(t[:, None] @ U) for name, t in parts.items()}
    found |= {f'{name}_released': measures.released_rate(norm(t)[:, None] @ U) for name, t in parts.items()}
    steps = step.update, -measures.compressed_rate_gradient(step.normed, U)
    turns = (measures.turning(way, step.normed) for way in steps)
    return found | {'cosine': cosine_similarity(*((t - t.mean(-2, keepdim=True)).flatten(1) for t in turns))}


def draw_rate_changes(c, nets):
    """CRATE's claim about attention, eqs. (8) to (11), in trained layers: it lowers R^c."""
    found, said = [layers.measure_layers(net.model, batches(c, net, 256), rates_around_steps) for net in nets], []
    for net, values in zip(nets, found):
        first, cosine = net.model.layers[0], span(values['cosine'].mean(1), '.2f')
        halves = ('attention', 'ISTA' if hasattr(first, 'ista') else 'the MLP')[:2 - layers.is_dense(first)]
        for how, measure in COMPRESSED.items():
            for half, added in zip(halves, means_of(values, how).diff(dim=0)):
                said.append((net.name, measure, half, f'{(added < 0).sum()} of {len(added)}',
                             f'{added.min():+.1f} to {added.max():+.1f}', cosine if half == 'attention' else ''))
    say_table(('', 'R^c by', 'step', 'lowers R^c in', 'adds, nats', 'cosine to the gradient'), said)
    for name, measure, half, lower, *_ in said:
        if name == nets[0].name and half == 'attention':
            print(f'here attention lowers R^c in {lower} layers ({measure}); the theory says in all')
    titles = {how: (f'R^c before a layer (ring), after its attention, after it:\n{measure}', 'nats')
              for how, measure in COMPRESSED.items()}
    return over_layers(nets, found, titles, draw=draw_steps)


def means_of(values, how):
    """R^c of Z^l, Z^(l+1/2) and Z^(l+1), (3, L)."""
    return torch.stack([values[part + how].mean(1) for part in ('before', 'half', 'after')])


def draw_steps(axis, net, values, how):
    """A line for each layer, with a ring before it."""
    rates = means_of(values, how)
    places = torch.tensor([[0], [0.35], [0.7]]) + torch.arange(1, rates.size(1) + 1)
    axis.plot(places, rates, color=net.colour, linestyle='-' if net.kind == 'trained' else '--', label=net.label,
              marker='o', markevery=[0], fillstyle='none')
