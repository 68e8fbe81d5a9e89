"""What the theory promises, on data drawn from the papers' own models: commands of analyze.py that need no trained network.

Tokens are rows here, Z (N, d), where the papers have columns. Equation numbers of `compress` and `ista` are CRATE's (Yu et
al., NeurIPS 2023), of `denoise` AoT's (Wang et al., ICML 2025). Each command prints what to see, and returns a figure with the
columns and rows of its table.
"""
from dataclasses import dataclass

import torch
from torch.nn.functional import normalize

from engine import plots as figures
from analysis import measures
from engine.settings import check_least
from model_crate import CRATE, CRATEConfig, ISTA, MSSA


# ---- the denoising theorem ------------------------------------------------------------------------------------------------


@dataclass
class DenoiseConfig:
    n_head: int = 8              # K, subspaces
    head_dim: int = 16           # p, dimension of a subspace; all together fill n_head x head_dim dimensions
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


def snr_of_layers(c, eta, delta):
    """SNR of each cluster before the first layer and after each, (n_layer + 1, K)."""
    Z, U = measures.noisy_mixture(c.n_head, c.head_dim, c.tokens, c.n_head * c.head_dim, delta,
                                  torch.Generator().manual_seed(c.seed))
    found = [measures.snr(Z, U)]
    for _ in range(c.n_layer):
        Z = measures.denoise(Z, U, eta, c.tau or None)
        found.append(measures.snr(Z, U))
    return torch.stack(found)


def denoise(c):
    """AoT, Figure 4: the SNR of each layer beside the theorem's, in the setting asked for and where its conditions fail."""
    regimes = {f'delta = {c.delta:g}, eta = {c.eta:g}': (c.eta, c.delta),
               f'five times the step: eta = {5 * c.eta:g}': (5 * c.eta, c.delta),
               f'2.5 times the noise: delta = {2.5 * c.delta:g}': (c.eta, 2.5 * c.delta)}
    rows, figure = [], figures.pyplot().figure(figsize=(11, 3.6), layout='constrained')
    for axis, (name, (eta, delta)) in zip(figure.subplots(1, len(regimes)), regimes.items()):
        found = snr_of_layers(c, eta, delta)
        factor = 1 + eta * c.tau
        ratio, layers = found[1:] / found[:-1], range(c.n_layer + 1)
        expected = [found[0].mean().item() * factor ** l for l in layers]
        rows += [(name, l, k, found[l, k].item(), expected[l] if c.tau else '') for l in layers for k in range(c.n_head)]
        axis.plot(layers, found.mean(1), marker='.', label='measured, all clusters')
        axis.fill_between(layers, found.amin(1), found.amax(1), alpha=0.2, linewidth=0)
        if c.tau:
            axis.plot(layers, expected, linestyle='--', color='black', linewidth=1,
                      label=f'Theorem 1: times {factor:.4g} a layer')
        axis.set(title=name, xlabel='layer', ylabel='signal to noise, eq. (6)', yscale='log')
        axis.legend(fontsize='small')
        print(f'{name}: every layer multiplies the signal-to-noise ratio by {ratio.min():.3f} to {ratio.max():.3f}'
              + f'; Theorem 1 says {factor:.4g}' * bool(c.tau))
    print("to see: in the theorem's conditions the measured line lies on the predicted one" * bool(c.tau)
          + 'to see: what the plain softmax does, about which the theorem says nothing' * (not c.tau)
          + '; with too large a step tokens grow until noise passes the threshold too, with too much noise ever more does')
    return figure, ('regime', 'layer', 'cluster', 'snr', 'theorem'), rows


# ---- compression: the gradient of the coding rate, and attention in its place ---------------------------------------------


@dataclass
class CompressConfig:
    n_head: int = 8              # K, subspaces
    head_dim: int = 16           # p, dimension of a subspace; all together fill d = n_head x head_dim dimensions
    tokens: int = 128            # tokens around each subspace, made one long
    delta: float = 0.2           # size of the noise
    eps: float = 0.5             # precision of the coding rate, eq. (8)
    kappa: float = 1.0           # step size of the gradient step, eq. (10)
    length: float = 0.0          # of the tokens that attention is shown; 0 is sqrt(d), which LayerNorm gives them
    n_layer: int = 12            # steps
    seed: int = 1337             # of subspaces, tokens and noise
    out: str = 'compress.png'    # the picture to write; the table is beside it
    overwrite: bool = False      # replace them if they exist

    def __post_init__(self):
        check_least(self, n_head=2, head_dim=1, tokens=2, n_layer=1, seed=0)
        if not (self.delta > 0 and self.eps > 0 and self.kappa > 0 and self.length >= 0):
            raise ValueError(f'need delta > 0, eps > 0, kappa > 0 and length >= 0; got {self.delta}, {self.eps}, {self.kappa} '
                             f'and {self.length}')
        if self.kappa * gamma(self) > 1:
            raise ValueError(f'kappa={self.kappa:g} is a step too large: eq. (10) then turns tokens round; set '
                             f'--kappa={0.99 / gamma(self):.3g} or less, or a larger eps')


def gamma(c):
    """p / (N eps^2), the factor of eqs. (8) to (12)."""
    return c.head_dim / (c.n_head * c.tokens * c.eps ** 2)


def attention(U):
    """model_crate.MSSA with the bases U (K, d, p) as its weights, W = [U_1 .. U_K] (eq. 12), nothing hidden: (B, N, d) -> same.

    It has softmax(w w^T / sqrt(p)) where eq. (11) has no scale, and no gamma: that MSSA is gamma mssa(a Z) / a, a = p^(1/4).
    """
    K, d, p = U.shape
    mssa = MSSA(CRATEConfig(image_size=0, causal=False, n_head=K, n_embd=d, head_dim=p, tie_out=True)).to(U.dtype)
    with torch.no_grad():
        mssa.U.weight.copy_(U.mT.flatten(0, 1))                                     # all U_k^T, one under the other: (K p, d)
    return mssa.requires_grad_(False)


def compress(c):
    """CRATE's compression step with the true subspaces U: R^c (eq. 8) and signal to noise per step of the exact gradient
    (eq. 9), of eq. (10), and of attention as shipped, with U and with random subspaces; and how near the direction of attention
    is to the gradient's, by the length of tokens, which is the temperature of its softmax."""
    generator, K, d, g = torch.Generator().manual_seed(c.seed), c.n_head, c.n_head * c.head_dim, gamma(c)
    Z, U = measures.noisy_mixture(K, c.head_dim, c.tokens, d, c.delta, generator)
    V = torch.linalg.qr(torch.randn(d, d, generator=generator, dtype=Z.dtype))[0].unflatten(1, (K, -1)).permute(1, 0, 2)
    start = normalize(Z.flatten(0, 1), dim=-1)                                      # (N, d), the condition of Approximation 4
    true, other, a, length = attention(U), attention(V), c.head_dim ** 0.25, c.length or d ** 0.5

    def downhill(Z):
        return -measures.compressed_rate_gradient(Z, U, c.eps)

    def attend(mssa, Z, scale):                                                     # what MSSA adds to tokens scale long
        return mssa((scale * Z)[None])[0] / scale
    moves = {'gradient step, eq. (9)': lambda Z: c.kappa * downhill(Z),             # what a step adds to tokens (N, d)
             'approximation, eq. (10)': lambda Z: c.kappa * g * (g * attend(true, Z, a) - Z),
             'as shipped, true subspaces': lambda Z: attend(true, Z, length),
             'as shipped, random subspaces': lambda Z: attend(other, Z, length)}

    def row(Z, move):
        unit, down = normalize(Z, dim=-1), downhill(Z)
        return (measures.compressed_rate(Z @ U, c.eps).item(), measures.compressed_rate(unit @ U, c.eps).item(),
                measures.coding_rate(unit, c.eps).item(), measures.snr(Z.unflatten(0, (K, -1)), U).mean().item(),
                measures.cosine(move, down).item(),
                measures.cosine(measures.sideways(move, Z), measures.sideways(down, Z)).item())
    found, columns = {}, ('rate', 'rate_at_length_1', 'whole_rate_at_length_1', 'snr', 'cosine', 'cosine_sideways')
    for method, move in moves.items():
        Z, shipped = start, 'shipped' in method
        for step in range(c.n_layer + 1):
            found[method, step, length if shipped else 1.0] = row(Z, v := move(Z))
            # A step of eq. (10) changes lengths as it will; the shipped layer's next LayerNorm puts them back.
            Z = normalize(Z + v, dim=-1) if shipped else Z + v
    centred, scales = start - start.mean(0), sorted({1.0, a, d ** 0.5, length, *(2 ** (i / 2) for i in range(-4, 11))})
    for name, Z in (('one step', start), ('one step, mean token off', centred)):
        found |= {(name, 0, s): row(Z, attend(true, Z, s)) for s in scales}
    of = {name: [dict(zip(columns, v)) for key, v in found.items() if key[0] == name] for name, *_ in found}

    figure = figures.pyplot().figure(figsize=(12.5, 3.8), layout='constrained')
    rates, noise, near = figure.subplots(1, 3)
    cosines = rates.twinx()
    for i, method in enumerate(moves):
        for axis, column, style in ((rates, 'rate', '.-'), (noise, 'snr', '.-'), (cosines, 'cosine_sideways', ':')):
            axis.plot([r[column] for r in of[method]], style, color=f'C{i}', label=method)
    for name in ('one step', 'one step, mean token off'):
        near.plot(scales, [r['cosine_sideways'] for r in of[name]], '.-', label=name)
    for scale, style, label in ((a, '--', 'eq. (11), tokens one long'), (d ** 0.5, ':', 'after a LayerNorm, sqrt(d)')):
        near.axvline(scale, color='black', linewidth=1, linestyle=style, label=label)
    rates.set(title='coding rate (dotted: cosine)', xlabel='step', ylabel='R^c, eq. (8)', ylim=(0, None))
    cosines.set(ylabel='cosine to the gradient step, sideways', ylim=(-0.6, 1.05))
    noise.set(title='noise', xlabel='step', ylabel='signal to noise, AoT eq. (6)', ylim=(0, None))
    near.set(title='attention against the gradient', xlabel='length of tokens that MSSA is shown', xscale='log',
             ylabel='cosine, sideways', ylim=(-0.1, 1.05))
    rates.legend(fontsize='x-small', loc='lower left')
    near.legend(fontsize='x-small', loc='center left')

    down, W = downhill(start), start @ U
    error = [((move - down).norm() / down.norm()).item() for move in (              # eq. (10), it without attention, eq. (68)
        g * (g * attend(true, start, a) - start), -g * start, -g * ((W - g * W @ (W.mT @ W)) @ U.mT).sum(0))]
    shortens = 1 - (measures.sideways(down, start).norm() / down.norm()).item() ** 2
    eq9, eq10, shipped, random = (of[method] for method in moves)
    kept = [end['whole_rate_at_length_1'] - end['rate_at_length_1'] for end in (eq9[0], shipped[-1], random[-1])]
    best = max(range(c.n_layer + 1), key=lambda l: shipped[l]['snr'])
    print(f'one step: R^c {eq9[0]["rate"]:.2f} becomes {eq9[1]["rate"]:.2f} by the gradient, {eq10[1]["rate"]:.2f} by eq. '
          f'(10), {shipped[1]["rate"]:.2f} as shipped; {shortens:.1%} of the gradient only shortens tokens. Eq. (10) is off by '
          f'{error[0]:.1%} of the gradient step, by {error[1]:.1%} without its attention, by {error[2]:.1%} with eq. (68). '
          f'What turns tokens has cosine {eq10[0]["cosine_sideways"]:.3f} to what turns them in the gradient, '
          f'{of["one step, mean token off"][scales.index(a)]["cosine_sideways"]:.3f} with the mean token taken off first, '
          f'{shipped[0]["cosine_sideways"]:.3f} as shipped')
    print(f'{c.n_layer} steps: R^c {eq9[-1]["rate"]:.2f} by the gradient, {eq10[-1]["rate"]:.2f} by eq. (10), but '
          f'{eq9[-1]["rate_at_length_1"]:.2f} and {eq10[-1]["rate_at_length_1"]:.2f} with tokens at length 1 again; as shipped '
          f'{shipped[-1]["rate"]:.2f}, with random subspaces {random[-1]["rate"]:.2f}. Of R - R^c = {kept[0]:.1f} the true '
          f'subspaces keep {kept[1]:.1f}, random ones {kept[2]:.1f}. Signal to noise {eq9[0]["snr"]:.2f} becomes '
          f'{eq9[-1]["snr"]:.2f} by the gradient; as shipped {shipped[best]["snr"]:.2f} after {best} steps, then '
          f'{shipped[-1]["snr"]:.2f}')
    print('to see: the gradient lowers R^c mostly by shortening tokens, all of them alike; it is the softmax that tells '
          'subspaces apart and denoises, while the steps are few, if the subspaces are the true ones')
    return figure, ('method', 'step', 'length', *columns), [key + v for key, v in found.items()]


# ---- sparsification: one step of ISTA, and the LASSO that it is a step of -------------------------------------------------


@dataclass
class ISTAConfig:
    n_embd: int = 64             # d, width of a token; the dictionary is (d, d)
    tokens: int = 256            # tokens, each D x + noise
    share: float = 0.1           # of non-zeros in x, which are not negative
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
    """|D|^2 of a fresh CRATE's dictionary, uniform within sqrt(6/d): numbers of variance 2/d, so it nears 2 (1 + 1)^2 = 8."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = CRATE(CRATEConfig(image_size=0, causal=False, vocab_size=1, block_size=1, n_layer=1, n_head=1, n_embd=d))
    return torch.linalg.matrix_norm(model.layers[0].ista.D.detach(), 2).item() ** 2


def unrolled(Y, D, eta, lam, steps):
    """[relu(Y), Z after one layer as shipped, after two steps, ..] towards the same Y (N, d). Eq. (17) starts at Y, whose
    negative numbers the LASSO forbids: its gradient is taken there, but the objective is stated at the nearest allowed relu(Y).
    """
    layer = ISTA(CRATEConfig(n_head=1, n_embd=Y.size(1), eta=eta, lam=lam, ista='relu')).to(Y.dtype)
    with torch.no_grad():
        layer.D.copy_(D)
        found = [Y.relu(), layer(Y)]
    while len(found) <= steps:
        found.append(measures.ista_step(found[-1], Y, D, eta, lam))
    return found


def ista(c):
    """The LASSO of eq. (16) along steps of eq. (17), and at its minimizer, with dictionaries from orthogonal to coherent."""
    generator = torch.Generator().manual_seed(c.seed)
    Ds = measures.dictionaries(c.n_embd, generator)
    X, mask, noise = (draw(c.tokens, c.n_embd, generator=generator, dtype=torch.float64)
                      for draw in (torch.randn, torch.rand, torch.randn))
    X = X.abs() * (mask < c.share)
    rows, figure = [], figures.pyplot().figure(figsize=(11, 3.6), layout='constrained')
    for axis, (name, D) in zip(figure.subplots(1, len(Ds)), Ds.items()):
        Y, norm = X @ D.mT + c.noise * noise, torch.linalg.matrix_norm(D, 2).item() ** 2

        def f(Z):
            return measures.lasso_objective(Z, Y, D, c.lam).mean().item()
        exact = measures.lasso_minimizer(Y, D, c.lam)
        least, sparse, empty = f(exact), measures.nonzeros(exact).item(), f(torch.zeros_like(Y))
        said = []
        for label, eta in ((f'eta = {c.eta:g}' + ', above 2/|D|^2' * (c.eta > 2 / norm), c.eta), ('eta = 1/|D|^2', 1 / norm)):
            path = unrolled(Y, D, eta, c.lam, c.steps)
            values, shares = [f(Z) for Z in path], [measures.nonzeros(Z).item() for Z in path]
            rows += [(name, norm, eta, *found, least, sparse, empty) for found in zip(range(c.steps + 1), values, shares)]
            axis.plot(range(c.steps + 1), values, marker='.', markersize=3, label=label)
            axis.plot(1, values[1], marker='o', fillstyle='none', color=axis.lines[-1].get_color())  # the layer
            said.append(f'{label}: {values[1]:.3g} after the layer, {values[-1]:.3g} after {c.steps} steps, non-zeros '
                        f'{shares[1]:.0%} and {shares[-1]:.0%}')
        axis.axhline(least, color='black', linestyle='--', linewidth=1, label='the minimum')
        axis.axhline(empty, color='grey', linestyle=':', linewidth=1, label='Z = 0')
        axis.set(title=f'{name}: 1/|D|^2 = {1 / norm:.3g}', xlabel='step; the ring is the layer', yscale='log', xscale='symlog',
                 xlim=(0, c.steps), ylabel='LASSO, eq. (16), a token')
        axis.legend(fontsize='x-small')
        print(f'{name}, |D|^2 = {norm:.3g}: from {values[0]:.3g} at relu(Y), non-zeros {shares[0]:.0%}; ' + '; '.join(said)
              + f'; minimum {least:.3g}, non-zeros {sparse:.0%} (drawn with {measures.nonzeros(X):.0%}); Z = 0 has {empty:.3g}')
    fresh = initial_norm(c.n_embd, c.seed)
    print(f'to see: with eta < 2/|D|^2 a step from any Z >= 0 lowers it, and the layer too if D is incoherent; but the layer '
          f'starts at Y, which is not >= 0. A fresh CRATE of width {c.n_embd} has |D|^2 = {fresh:.3g}, so eta = {c.eta:g} is '
          f'{"below" if c.eta < 2 / fresh else "above"} its 2/|D|^2 = {2 / fresh:.3g}')
    return figure, ('dictionary', 'norm2', 'eta', 'step', 'objective', 'nonzeros', 'minimum', 'minimum_nonzeros',
                    'objective_of_zero'), rows


COMMANDS = {'denoise': (denoise, DenoiseConfig), 'compress': (compress, CompressConfig), 'ista': (ista, ISTAConfig)}
