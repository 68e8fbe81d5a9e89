"""Does a step along the gradient of the coding rate compress tokens, and does attention in its place?
CRATE's eqs. (8) to (12) (Yu et al., NeurIPS 2023), on tokens drawn from the paper's own model,
without a trained network. Tokens are rows here, Z (N, d), where the paper has columns.
"""
from dataclasses import dataclass, replace

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
    tokens: int = 64             # N, of all subspaces together, scaled to length 1; the theory needs N <= d
    delta: float = 0.2           # size of the noise
    eps: float = 0.5             # precision of the coding rate, eq. (8)
    step: float = 0.5            # size of a step of eq. (10), kappa gamma; with 1 only its attention is left
    length: float = 0.0          # length to which tokens are scaled for attention; 0: sqrt(d), as LayerNorm does
    n_layer: int = 6             # steps
    seed: int = 1337             # of subspaces, tokens and noise
    out: str = 'compress.png'    # the picture to write; the table is beside it
    overwrite: bool = False      # replace them if they exist

    def __post_init__(self):
        check_least(self, n_head=2, head_dim=1, tokens=2, n_layer=1, seed=0)
        check_ranges(self, {(1e-6, 100): ('delta',), (1e-3, 1000): ('eps',), (1e-9, 1): ('step',),
                            (0, 1e6): ('length',)})
        if self.tokens % self.n_head:
            raise Mistake(f'tokens={self.tokens} must be a multiple of n_head={self.n_head}')

    @property
    def d(self):
        return self.n_head * self.head_dim

    @property
    def gamma(self):
        """p / (N eps^2), the factor of eqs. (8) to (12)."""
        return self.head_dim / (self.tokens * self.eps ** 2)

    @property
    def scale(self):
        """The length of the tokens that attention gets."""
        return self.length or self.d ** 0.5

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


def draw_tokens(c):
    """Tokens (N, d) around true subspaces, of length 1 (the condition of Approximation 4); the bases of these, U, and
    of random subspaces, V (K, d, p)."""
    generator = torch.Generator().manual_seed(c.seed)
    Z, U = measures.noisy_mixture(c.n_head, c.head_dim, c.tokens // c.n_head, c.d, c.delta, generator)
    V = torch.linalg.qr(torch.randn(c.d, c.d, generator=generator, dtype=Z.dtype))[0]
    return normalize(Z.flatten(0, 1), dim=-1), U, V.unflatten(1, (c.n_head, -1)).permute(1, 0, 2)


def compression_steps(c, U, V):
    """{method: a function from tokens (N, d) to what one step adds to them}. U: the true subspaces,
    V: random ones."""
    true, other, g = shipped_attention(U), shipped_attention(V), c.gamma
    kappa = c.step / g
    return {'gradient step, eq. (9)': lambda Z: -kappa * measures.compressed_rate_gradient(Z, U, c.eps),
            'approximation, eq. (10)': lambda Z: kappa * g * (g * attend(true, Z, c.eq11_scale) - Z),
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


def walks(c):
    """{method: `measured` before each of n_layer steps and after the last}. After a shipped step tokens get
    length 1 again, as by the next LayerNorm; eqs. (9) and (10) are free to change lengths."""
    start, U, V = draw_tokens(c)
    paths = {}
    for method, step_of in compression_steps(c, U, V).items():
        Z, paths[method] = start, []
        for _ in range(c.n_layer + 1):
            step = step_of(Z)
            paths[method].append(measured(c, Z, U, step))
            Z = normalize(Z + step, dim=-1) if 'shipped' in method else Z + step
    return paths


def draw_compression(c):
    """CRATE's compression with the true subspaces U: R^c (eq. 8) and signal to noise after each step of the exact
    gradient (eq. 9), of eq. (10), and of attention as shipped, with U and with random subspaces. Then the same for
    fewer and for more tokens: appendix A.3 of CRATE and Assumption 2 of CRATE-MAE need N <= d."""
    paths = walks(c)
    least = c.n_head * max(1, c.d // 8 // c.n_head)
    counts = sorted({c.tokens} | {least * 2 ** i for i in range(7)})
    sweep = {n: walks(replace(c, tokens=n)) for n in counts}
    say_one_step(c, paths)
    say_all_steps(c, *paths.values())
    say_sweep(c, sweep)
    rows = [(method, N, l, c.scale if 'shipped' in method else 1.0, *row.values())
            for N, found in sweep.items() for method, path in found.items() for l, row in enumerate(path)]
    columns = 'method', 'tokens', 'step', 'length', *paths['gradient step, eq. (9)'][0]
    return figure_of_compression(c, paths, sweep), columns, rows


def gains(path):
    """What steps make of the signal-to-noise ratio: (factor of the best step, which one, factor of all)."""
    ratios = [row['snr'] / path[0]['snr'] for row in path]
    best = max(range(len(path)), key=ratios.__getitem__)
    return ratios[best], best, ratios[-1]


def figure_of_compression(c, paths, sweep):
    figure = plots.pyplot().figure(figsize=(11, 7.4), layout='constrained')
    panels = figure.subplots(2, 2).flat
    for axis, column, title, unit in zip(panels, ('rate', 'snr', 'cosine_turning'), (
            'coding rate in the true subspaces', 'signal to noise', 'direction: how the step turns tokens'), (
            'R^c, nats a token, eq. (8)', "ratio, AoT's eq. (6)", 'cosine to the gradient step')):
        for (method, path), marker in zip(paths.items(), 'osD^'):
            axis.plot([row[column] for row in path], marker=marker, markersize=4, label=method)
        axis.set(title=f'{title}, N/d = {c.tokens / c.d:g}', xlabel='step', ylabel=unit)
        axis.set_ylim(0 if column != 'cosine_turning' else None)
    near = panels[3]
    for method, marker in zip(paths, 'osD^'):
        near.plot([N / c.d for N in sweep], [gains(found[method])[0] for found in sweep.values()], marker=marker,
                  markersize=4)
    near.axvline(1, color='black', linewidth=1, linestyle=':')
    near.set(title='signal to noise, by the number of tokens', xlabel='N/d; the theory is left of the line',
             xscale='log', ylabel='factor of the best step')
    plots.plain_numbers(near)
    figure.legend(*panels[0].get_legend_handles_labels(), loc='outside lower center', ncols=4, fontsize='small')
    return figure


def say_one_step(c, paths):
    """Print what the first step does to R^c, and how far eq. (10) is from the gradient step."""
    Z, U, _ = draw_tokens(c)
    g, W, down, mssa = c.gamma, Z @ U, -measures.compressed_rate_gradient(Z, U, c.eps), shipped_attention(U)
    eq10 = g * (g * attend(mssa, Z, c.eq11_scale) - Z)
    errors = [((step - down).norm() / down.norm()).item() for step in (  # eq. (10), it without attention, eq. (68)
        eq10, -g * Z, -g * ((W - g * W @ (W.mT @ W)) @ U.mT).sum(0))]
    shortens = 1 - (measures.turning(down, Z).norm() / down.norm()).item() ** 2
    rates = [path[1]['rate'] for path in paths.values()]
    turns = [path[0]['cosine_turning'] for path in paths.values()]
    print(f'one step, N/d = {c.tokens / c.d:g}: R^c {next(iter(paths.values()))[0]["rate"]:.2f} becomes {rates[0]:.2f} '
          f'by the gradient, {rates[1]:.2f} by eq. (10), {rates[2]:.2f} as shipped; {shortens:.1%} of the gradient '
          f'only shortens tokens. Eq. (10) is off by {errors[0]:.1%} of the gradient step, by {errors[1]:.1%} without its '
          f'attention, by {errors[2]:.1%} with eq. (68). The part that turns tokens has cosine {turns[1]:.2f} to that '
          f'of the gradient with eq. (10), {turns[2]:.2f} as shipped, {turns[3]:.2f} with random subspaces')


def say_all_steps(c, eq9, eq10, shipped, random):
    """Print what all steps do. Each path is one of `walks`."""
    ends = eq9[0], eq9[-1], shipped[-1], random[-1]
    kept = [end['whole_rate_at_length_1'] - end['rate_at_length_1'] for end in ends]
    _, best, _ = gains(shipped)
    print(f'{c.n_layer} steps: R^c {eq9[-1]["rate"]:.2f} by the gradient, {eq10[-1]["rate"]:.2f} by eq. (10), but '
          f'{eq9[-1]["rate_at_length_1"]:.2f} and {eq10[-1]["rate_at_length_1"]:.2f} with tokens at length 1 again; as '
          f'shipped {shipped[-1]["rate"]:.2f}, with random subspaces {random[-1]["rate"]:.2f}. At length 1, R - R^c = '
          f'{kept[0]:.1f} becomes {kept[1]:.1f} by the gradient, {kept[2]:.1f} as shipped, {kept[3]:.1f} with random '
          f'subspaces. Signal to noise {eq9[0]["snr"]:.2f} becomes {eq9[-1]["snr"]:.2f} by the gradient; as shipped '
          f'{shipped[best]["snr"]:.2f} after step {best}, {shipped[-1]["snr"]:.2f} after step {c.n_layer}')


def say_sweep(c, sweep):
    """Print what the number of tokens changes, and which of the two denoises more on each side of N = d."""
    for N, (eq9, _, shipped, _) in ((N, found.values()) for N, found in sweep.items()):
        (gradient, *_), (best, at, end) = gains(eq9), gains(shipped)
        print(f'N/d = {N / c.d:<6g} signal to noise x {gradient:.2f} by the gradient; as shipped x {best:.2f} after '
              f'step {at}, x {end:.2f} after step {c.n_layer}; cosine of its first step {shipped[0]["cosine_turning"]:.2f}')
    more = [N / c.d for N, (eq9, _, shipped, _) in ((N, f.values()) for N, f in sweep.items())
            if gains(eq9)[0] > gains(shipped)[0]]
    print('to see: the gradient denoises more than attention as shipped does at its best step '
          + (f'for N/d = {", ".join(f"{r:g}" for r in more)}' if more else 'for no N/d that is shown'))


COMMANDS = {'compress': (draw_compression, CompressConfig)}
