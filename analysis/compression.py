"""Does a step along the gradient of the coding rate compress tokens, and does attention in its place?
CRATE's eqs. (8) to (12) (Yu et al., NeurIPS 2023), on tokens drawn from the paper's own model,
without a trained network. Tokens are rows here, Z (N, d), where the paper has columns.
"""
from dataclasses import dataclass

import torch
from torch.nn.functional import normalize

from analysis import measures
from engine import plots
from engine.settings import Mistake, check_least, check_ranges
from model_crate import CRATEConfig, MSSA


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
        check_ranges(self, {(1e-6, 100): ('delta',), (1e-3, 1000): ('eps',), (1e-6, 1e6): ('kappa',),
                            (0, 1e6): ('length',)})
        if self.kappa * self.gamma > 1:
            raise Mistake(f'kappa={self.kappa:g} is too large a step: eq. (10) would reverse tokens; set '
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


COMMANDS = {'compress': (draw_compression, CompressConfig)}
