"""Does each step of attention remove noise, as AoT's Theorem 1 promises (Wang et al., ICML 2025)? On
tokens drawn from the paper's own model, without a trained network. Tokens are rows here, Z (N, d),
where the paper has columns.
"""
import math
import operator
from dataclasses import dataclass, replace

import torch

from analysis import measures
from engine import plots
from engine.settings import check_least, check_ranges


@dataclass
class DenoiseConfig:
    n_head: int = 8              # K, subspaces
    head_dim: int = 16           # p, dimension of a subspace; all together fill d = n_head x head_dim dimensions
    tokens: int = 128            # tokens around each subspace
    delta: float = 0.2           # size of the noise
    eta: float = 0.1             # step size of a layer
    tau: float = 0.6             # threshold of the attention weights; 0 keeps the plain softmax
    n_layer: int = 10            # layers
    seed: int = 1337             # of subspaces, tokens and noise
    out: str = 'denoise.png'     # the picture to write; the table is beside it
    overwrite: bool = False      # replace them if they exist

    def __post_init__(self):
        check_least(self, n_head=2, head_dim=1, tokens=2, n_layer=1, seed=0)
        check_ranges(self, {(1e-6, 100): ('delta', 'eta'), (0, 0.999999): ('tau',)})


# Meets every condition but that of eq. (11) on N, 177,500 tokens: their attention weights do not fit into memory.
NEAR = dict(n_head=2, head_dim=768, tokens=128, delta=0.01)
SIGNS = {'>': operator.gt, '>=': operator.ge, '<=': operator.le}


def conditions(c):
    """What Theorem 1 and the lemmas of its proof ask for: [(where, name, value, sign, limit in words,
    limit, whether it is met)].

    The theorem has its conditions on p, delta and N up to constants, which the lemmas give. It has
    none on eta or on the number of layers. How tokens are drawn meets the rest: Definition 1, eq.
    (7), and as many dimensions and tokens for one subspace as for another.
    """
    K, p, N = c.n_head, c.head_dim, c.n_head * c.tokens
    n, wide = math.log(N), (math.sqrt(math.log(N)) + 1) ** 2
    rows = [
        ('eq. (29)', 'tau', c.tau, '>', '1/2', 0.5),
        ('eq. (29)', 'tau', c.tau, '<=', '1 / (1 + N exp(-9p/32))', 1 / (1 + N * math.exp(-9 * p / 32))),
        ('eq. (11)', 'delta', c.delta, '<=', 'sqrt(log(N) / p) / 8', math.sqrt(n / p) / 8),
        ('eq. (11)', 'N', N, '>=', '8 pi K^2 log(N)^3', 8 * math.pi * K ** 2 * n ** 3),
        ('Lemma 2', 'p', p, '>=', '16 (sqrt(log N) + 1)^2', 16 * wide),
        ('Lemma 2 (iv)', 'N', N, '>=', '16 K^4', 16 * K ** 4),          # in its proof, as if eq. (11) implied it
        ('Lemma 3', 'p', p, '>=', '64 (sqrt(log N) + 1)^2', 64 * wide)]
    return [(*row, SIGNS[row[3]](row[2], row[5])) for row in rows]


def say_conditions(name, c):
    """Print the conditions as a list to tick off."""
    rows = conditions(c)
    print(f'{name}: {sum(row[-1] for row in rows)} of {len(rows)} conditions met')
    for where, what, value, sign, words, limit, met in rows:
        print(f'  {"met" if met else "NOT met":9}{where:14}{what} = {value:g} {sign} {words} = {limit:.4g}')
    if rows[1][5] <= rows[0][5]:
        print('  no tau meets both lines of eq. (29)')


def layer_by_layer(c):
    """The signal-to-noise ratio of each cluster before the first layer and after each layer,
    (n_layer + 1, K), and what passes the threshold in each layer, `measures.passing`, (n_layer, 2)."""
    Z, U = measures.noisy_mixture(c.n_head, c.head_dim, c.tokens, c.n_head * c.head_dim, c.delta,
                                  torch.Generator().manual_seed(c.seed))
    found, passed = [measures.snr(Z, U)], []
    for _ in range(c.n_layer):
        phi = measures.denoising_weights(Z, U, c.tau or None)
        passed.append(torch.stack(measures.passing(phi)))
        Z = measures.denoise(Z, U, c.eta, phi)
        found.append(measures.snr(Z, U))
    return torch.stack(found), torch.stack(passed)


def draw_denoising(c):
    """AoT, Figure 4: the signal-to-noise ratio of each layer and the theorem's, for subspaces as large
    as the theorem asks for and for those that are set; also with a larger step and with more noise.

    Lemma 3 uses eq. (18) of tokens that have grown by theta = (1 + eta tau)^l. Lemma 2 proves it for
    theta = 1. So a large step or many layers break the theorem, though none of its conditions says so.
    """
    settings = {'near the theorem': replace(c, **NEAR), 'as set': c}
    for name, s in settings.items() if c.tau else ():
        say_conditions(f'{name}, K = {s.n_head}, p = {s.head_dim}, N = {s.n_head * s.tokens}', s)
    regimes = {'as it is': (1, 1), 'five times the step': (5, 1), '2.5 times the noise': (1, 2.5)}
    rows, figure = [], plots.pyplot().figure(figsize=(11, 3.8), layout='constrained')
    for axis, (regime, (step, noise)) in zip(figure.subplots(1, len(regimes)), regimes.items()):
        for name, s in settings.items():
            rows += one_regime(replace(s, eta=step * s.eta, delta=noise * s.delta), axis, name, regime)
        if c.tau:
            axis.plot([(1 + step * c.eta * c.tau) ** l for l in range(c.n_layer + 1)], linestyle='--', color='black',
                      linewidth=1, label='Theorem 1')
        axis.set(title=f'{regime}: eta = {step * c.eta:g}' if noise == 1 else regime, xlabel='layer', ylim=(0, None),
                 ylabel='signal to noise, eq. (6),\nover that before the first layer')
    figure.legend(*axis.get_legend_handles_labels(), loc='outside lower center', ncols=3, fontsize='small')
    print('to see: ' + ('how long the measured lines lie on the predicted one, and in which layer noise passes the '
                        'threshold too: tokens grow in every layer, and with them their products with noise' if c.tau else
                        'what the plain softmax does, about which the theorem says nothing'))
    columns = 'setting', 'regime', 'layer', 'cluster', 'snr', 'theorem', 'signal_passing', 'noise_passing'
    return figure, columns, rows


def one_regime(c, axis, name, regime):
    """Draw and print one setting; returns rows."""
    found, passed = layer_by_layer(c)
    factor, factors, layers = 1 + c.eta * c.tau, found[1:] / found[:-1], range(c.n_layer + 1)
    relative = found / found[0]
    line, = axis.plot(relative.mean(1), marker='.', label=f'{name}: K = {c.n_head}, p = {c.head_dim}')
    axis.fill_between(layers, relative.amin(1), relative.amax(1), alpha=0.2, linewidth=0, color=line.get_color())
    print(f'{name}, {regime}: ' + (said_of_layers(factor, factors, passed[:, 1]) if c.tau else
                                   f'every layer multiplies the signal-to-noise ratio by {span(factors)}'))
    shares = [('', ''), *(passed.tolist() if c.tau else [('', '')] * c.n_layer)]
    return [(name, regime, l, k, found[l, k].item(), (found[0, k] * factor ** l).item() if c.tau else '', *shares[l])
            for l in layers for k in range(c.n_head)]


def said_of_layers(factor, factors, noise):
    """What each layer multiplies the ratio by, factors (n_layer, K), before and after the first layer in
    which noise passes the threshold, a share (n_layer,) of it."""
    clean, L = int((noise.cumsum(0) == 0).sum()), len(noise)
    said = [f'Theorem 1 says times {factor:.4g}']
    if clean:
        said.append(f'measured times {span(factors[:clean])} in layers 1 to {clean}')
    if clean < L:
        said.append(f'noise passes the threshold from layer {clean + 1} on ({noise[clean]:.2%} of it, {noise[-1]:.2%} '
                    f'in layer {L}), there measured times {span(factors[clean:])}')
    return '; '.join(said)


def span(values):
    return f'{values.min():.3f} to {values.max():.3f}'


COMMANDS = {'denoise': (draw_denoising, DenoiseConfig)}
