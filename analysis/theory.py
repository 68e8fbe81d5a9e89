"""What the theory promises, on tokens drawn from the papers' own models: commands of analyze.py
that need no trained network.

Tokens are rows here, Z (N, d), where the papers have columns. Equation numbers of `compress` and
`ista` are CRATE's (Yu et al., NeurIPS 2023), those of `denoise` AoT's (Wang et al., ICML 2025).
Each command prints what to see, and returns a figure with the columns and rows of its table.
"""
import math
import operator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch.nn.functional import normalize

from analysis import measures
from engine import plots
from engine.settings import check_least
from model_crate import CRATE, CRATEConfig, ISTA, MSSA


# ---- denoising: the theorem -----------------------------------------------------------------------------------------

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
        if not (self.delta > 0 and self.eta > 0 and 0 <= self.tau < 1):
            raise ValueError(f'need delta > 0, eta > 0 and 0 <= tau < 1; got {self.delta}, {self.eta} and {self.tau}')


# Meets every condition but that of eq. (11) on N, for which a laptop is too small: 177,500 tokens.
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
    print('to see: ' + ('measured lines lie on the predicted one until noise passes the threshold too; tokens grow in '
                        'every layer, and with them their products with noise' if c.tau else
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


# ---- compression: the gradient of the coding rate, and attention instead of it --------------------------------------

@dataclass
class CompressConfig:
    n_head: int = 8              # K, subspaces
    head_dim: int = 16           # p, dimension of a subspace; all together fill d = n_head x head_dim dimensions
    tokens: int = 128            # tokens around each subspace, scaled to length 1
    delta: float = 0.2           # size of the noise
    eps: float = 0.5             # precision of the coding rate, eq. (8)
    kappa: float = 1.0           # step size of the gradient step, eq. (10)
    length: float = 0.0          # length to which tokens are scaled for attention; 0: sqrt(d), as LayerNorm does
    n_layer: int = 12            # steps
    seed: int = 1337             # of subspaces, tokens and noise
    out: str = 'compress.png'    # the picture to write; the table is beside it
    overwrite: bool = False      # replace them if they exist

    def __post_init__(self):
        check_least(self, n_head=2, head_dim=1, tokens=2, n_layer=1, seed=0)
        if not (self.delta > 0 and self.eps > 0 and self.kappa > 0 and self.length >= 0):
            raise ValueError(f'need delta > 0, eps > 0, kappa > 0 and length >= 0; got {self.delta}, {self.eps}, '
                             f'{self.kappa} and {self.length}')
        if self.kappa * self.gamma > 1:
            raise ValueError(f'kappa={self.kappa:g} is too large a step: eq. (10) would reverse tokens; set '
                             f'--kappa={0.99 / self.gamma:.3g} or less, or a larger eps')

    @property
    def gamma(self):
        """p / (N eps^2), the factor of eqs. (8) to (12)."""
        return self.head_dim / (self.n_head * self.tokens * self.eps ** 2)

    @property
    def scale(self):
        """The length of the tokens that attention gets."""
        return self.length or (self.n_head * self.head_dim) ** 0.5

    @property
    def eq11_scale(self):
        """The length for which shipped attention is that of eq. (11)."""
        return self.head_dim ** 0.25


def shipped_attention(U):
    """model_crate.MSSA with the bases U (K, d, p) as its weights, W = [U_1 .. U_K] (eq. 12), not
    causal: (B, N, d) -> same.

    Its softmax(w w^T / sqrt(p)) has a scale that eq. (11) lacks, and it lacks gamma: the MSSA of
    the paper is gamma mssa(a Z) / a with a = p^(1/4).
    """
    K, d, p = U.shape
    mssa = MSSA(CRATEConfig(image_size=0, causal=False, n_head=K, n_embd=d, head_dim=p, tie_out=True)).to(U.dtype)
    with torch.no_grad():
        mssa.U.weight.copy_(U.mT.flatten(0, 1))                         # all U_k^T, one below the other: (K p, d)
    return mssa.requires_grad_(False)


def attend(mssa, Z, length):
    """What attention adds to tokens Z (N, d) that are multiplied by `length` for it."""
    return mssa((length * Z)[None])[0] / length


def compression_steps(c, U, V):
    """{method: a function from tokens (N, d) to what one step adds to them}. U: the true subspaces,
    V: random ones."""
    true, other, g = shipped_attention(U), shipped_attention(V), c.gamma
    return {'gradient step, eq. (9)': lambda Z: -c.kappa * measures.compressed_rate_gradient(Z, U, c.eps),
            'approximation, eq. (10)': lambda Z: c.kappa * g * (g * attend(true, Z, c.eq11_scale) - Z),
            'as shipped, true subspaces': lambda Z: attend(true, Z, c.scale),
            'as shipped, random subspaces': lambda Z: attend(other, Z, c.scale)}


def measured(c, Z, U, step):
    """The numbers of the table for tokens Z (N, d) and what a step adds to them."""
    unit, down = normalize(Z, dim=-1), -measures.compressed_rate_gradient(Z, U, c.eps)
    turns = measures.turning(step, Z), measures.turning(down, Z)
    return {'rate': measures.compressed_rate(Z @ U, c.eps).item(),
            'rate_at_length_1': measures.compressed_rate(unit @ U, c.eps).item(),
            'whole_rate_at_length_1': measures.coding_rate(unit, c.eps).item(),
            'snr': measures.snr(Z.unflatten(0, (c.n_head, -1)), U).mean().item(),
            'cosine': measures.cosine(step, down).item(), 'cosine_turning': measures.cosine(*turns).item()}


def walk(c, Z, U, step_of, shipped):
    """`measured` before each of n_layer steps and after the last. After a shipped step tokens get
    length 1 again, as by the next LayerNorm; eq. (10) is free to change lengths."""
    found = []
    for _ in range(c.n_layer + 1):
        step = step_of(Z)
        found.append(measured(c, Z, U, step))
        Z = normalize(Z + step, dim=-1) if shipped else Z + step
    return found


def draw_compression(c):
    """CRATE's compression with the true subspaces U: R^c (eq. 8) and signal to noise after each
    step of the exact gradient (eq. 9), of eq. (10), and of attention as shipped, with U and with
    random subspaces. Also the cosine between what attention and the gradient turn, by the length of
    the tokens, which is the temperature of the softmax."""
    generator, d = torch.Generator().manual_seed(c.seed), c.n_head * c.head_dim
    Z, U = measures.noisy_mixture(c.n_head, c.head_dim, c.tokens, d, c.delta, generator)
    V = torch.linalg.qr(torch.randn(d, d, generator=generator, dtype=Z.dtype))[0]
    V = V.unflatten(1, (c.n_head, -1)).permute(1, 0, 2)                 # (K, d, p)
    Z = normalize(Z.flatten(0, 1), dim=-1)                              # (N, d), the condition of Approximation 4
    paths = {method: walk(c, Z, U, step, 'shipped' in method) for method, step in compression_steps(c, U, V).items()}
    mssa, scales = shipped_attention(U), {1.0, c.eq11_scale, d ** 0.5, c.scale}
    scales = sorted(scales | {2 ** (i / 2) for i in range(-4, 11)})
    single = {name: {s: measured(c, tokens, U, attend(mssa, tokens, s)) for s in scales}
              for name, tokens in (('one step', Z), ('one step, mean token subtracted', Z - Z.mean(0)))}
    figure = figure_of_compression(c, paths, single)
    say_one_step(c, Z, U, [path[:2] for path in paths.values()], single)
    say_all_steps(c, *paths.values())
    print('to see: the gradient lowers R^c mostly by shortening all tokens alike; it is the softmax that tells '
          'subspaces apart and denoises, for a few steps, if the subspaces are the true ones')
    rows = [(method, l, c.scale if 'shipped' in method else 1.0, *row.values())
            for method, path in paths.items() for l, row in enumerate(path)]
    rows += [(name, 0, s, *row.values()) for name, by_scale in single.items() for s, row in by_scale.items()]
    return figure, ('method', 'step', 'length', *paths['gradient step, eq. (9)'][0]), rows


def figure_of_compression(c, paths, single):
    figure = plots.pyplot().figure(figsize=(11, 7.4), layout='constrained')
    panels = figure.subplots(2, 2).flat
    for axis, column, title, unit in zip(panels, ('rate', 'snr', 'cosine_turning'), (
            'coding rate in the true subspaces', 'signal to noise', 'direction: how the step turns tokens'), (
            'R^c, nats, eq. (8)', "ratio, AoT's eq. (6)", 'cosine to the gradient step')):
        for (method, path), marker in zip(paths.items(), 'osD^'):
            axis.plot([row[column] for row in path], marker=marker, markersize=4, label=method)
        axis.set(title=title, xlabel='step', ylabel=unit)
        axis.set_ylim(0 if column != 'cosine_turning' else None)
    steps, near = axis.get_legend_handles_labels(), panels[3]
    for (name, by_scale), marker, colour in zip(single.items(), 'vP', ('C4', 'C5')):
        near.plot([*by_scale], [row['cosine_turning'] for row in by_scale.values()], marker=marker, markersize=4,
                  color=colour, label=name)
    d = c.n_head * c.head_dim
    for scale, style, label in ((c.eq11_scale, '--', 'as in eq. (11), tokens of length 1'),
                                (d ** 0.5, ':', 'after a LayerNorm, sqrt(d)')):
        near.axvline(scale, color='black', linewidth=1, linestyle=style, label=label)
    near.set(title='direction of one step, by the length of tokens', xlabel='length of the tokens that MSSA gets',
             xscale='log', ylabel='cosine to the gradient step')
    plots.plain_numbers(near)
    near.legend(fontsize='small', loc='center left')
    figure.legend(*steps, loc='outside lower center', ncols=4, fontsize='small')
    return figure


def say_one_step(c, Z, U, ends, single):
    """Print what the first step does. ends: `measured` before and after it, for each method."""
    g, W, down = c.gamma, Z @ U, -measures.compressed_rate_gradient(Z, U, c.eps)
    mssa = shipped_attention(U)
    errors = [((step - down).norm() / down.norm()).item() for step in (   # eq. (10), it without attention, eq. (68)
        g * (g * attend(mssa, Z, c.eq11_scale) - Z), -g * Z, -g * ((W - g * W @ (W.mT @ W)) @ U.mT).sum(0))]
    shortens = 1 - (measures.turning(down, Z).norm() / down.norm()).item() ** 2
    (start, eq9), (before10, eq10), (before, shipped), _ = ends
    print(f'one step: R^c {start["rate"]:.2f} becomes {eq9["rate"]:.2f} by the gradient, {eq10["rate"]:.2f} by eq. '
          f'(10), {shipped["rate"]:.2f} as shipped; {shortens:.1%} of the gradient only shortens tokens. Eq. (10) is '
          f'off by {errors[0]:.1%} of the gradient step, by {errors[1]:.1%} without its attention, by {errors[2]:.1%} '
          f'with eq. (68). The part that turns tokens has cosine {before10["cosine_turning"]:.3f} to that of the '
          f'gradient, {single["one step, mean token subtracted"][c.eq11_scale]["cosine_turning"]:.3f} if the mean '
          f'token is subtracted first, {before["cosine_turning"]:.3f} as shipped')


def say_all_steps(c, eq9, eq10, shipped, random):
    """Print what all steps do. Each path is what `walk` returns."""
    kept = [end['whole_rate_at_length_1'] - end['rate_at_length_1'] for end in (eq9[0], shipped[-1], random[-1])]
    best = max(range(c.n_layer + 1), key=lambda l: shipped[l]['snr'])
    print(f'{c.n_layer} steps: R^c {eq9[-1]["rate"]:.2f} by the gradient, {eq10[-1]["rate"]:.2f} by eq. (10), but '
          f'{eq9[-1]["rate_at_length_1"]:.2f} and {eq10[-1]["rate_at_length_1"]:.2f} with tokens at length 1 again; as '
          f'shipped {shipped[-1]["rate"]:.2f}, with random subspaces {random[-1]["rate"]:.2f}. Of R - R^c = '
          f'{kept[0]:.1f} the true subspaces keep {kept[1]:.1f}, random ones {kept[2]:.1f}. Signal to noise '
          f'{eq9[0]["snr"]:.2f} becomes {eq9[-1]["snr"]:.2f} by the gradient; as shipped {shipped[best]["snr"]:.2f} '
          f'after {best} steps, then {shipped[-1]["snr"]:.2f}')


# ---- sparsification: steps of ISTA, and the LASSO that they solve ---------------------------------------------------

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
        if not (0 < self.share <= 1 and self.noise >= 0 and self.lam > 0 and self.eta > 0):
            raise ValueError(f'need 0 < share <= 1, noise >= 0, lam > 0 and eta > 0; got {self.share}, {self.noise}, '
                             f'{self.lam} and {self.eta}')


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


COMMANDS = {'denoise': (draw_denoising, DenoiseConfig), 'compress': (draw_compression, CompressConfig),
            'ista': (draw_sparsification, ISTAConfig)}
