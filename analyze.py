"""Look inside: what the theory says each layer does, measured and drawn.

    python analyze.py denoise                            # AoT's Theorem 1 and Figure 4: no trained model is needed
    python analyze.py denoise --delta=0.3 --n_layer=20 --out=denoise_30.png
    python analyze.py --help

A command writes a picture, the numbers behind it as a table of the same name that ends with .csv, and prints what to see.
"""
import sys
from dataclasses import dataclass

import torch

import configurator
import figures
import measures
from augment import check_picture


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
        for name, least in (('n_head', 2), ('head_dim', 1), ('tokens', 2), ('n_layer', 1), ('seed', 0)):
            if getattr(self, name) < least:
                raise ValueError(f'{name}={getattr(self, name)} must be at least {least}')
        if self.delta <= 0 or self.eta <= 0 or not 0 <= self.tau < 1:
            raise ValueError(f'need delta > 0, eta > 0 and 0 <= tau < 1; got {self.delta}, {self.eta} and {self.tau}')


# ---- the denoising theorem ------------------------------------------------------------------------------------------------


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
               f'a step too large: eta = {5 * c.eta:g}': (5 * c.eta, c.delta),
               f'too much noise: delta = {2.5 * c.delta:g}': (c.eta, 2.5 * c.delta)}
    rows, figure = [], figures.pyplot().figure(figsize=(11, 3.6), layout='constrained')
    for axis, (name, (eta, delta)) in zip(figure.subplots(1, len(regimes)), regimes.items()):
        found = snr_of_layers(c, eta, delta)
        factor = 1 + eta * c.tau
        ratio, layers = found[1:] / found[:-1], range(c.n_layer + 1)
        expected = [found[0].mean().item() * factor ** l for l in layers]
        rows += [(name, l, k, found[l, k].item(), expected[l]) for l in layers for k in range(c.n_head)]
        axis.plot(layers, found.mean(1), marker='.', label='measured, all clusters')
        axis.fill_between(layers, found.amin(1), found.amax(1), alpha=0.2, linewidth=0)
        if c.tau:
            axis.plot(layers, expected, linestyle='--', color='black', linewidth=1,
                      label=f'Theorem 1: times {factor:.3g} a layer')
        axis.set(title=name, xlabel='layer', ylabel='signal to noise, eq. (6)', yscale='log')
        axis.legend(fontsize='small')
        print(f'{name}: every layer multiplies the signal-to-noise ratio by {ratio.min():.3f} to {ratio.max():.3f}'
              + f'; Theorem 1 says {factor:.3g}' * bool(c.tau))
    print('with a step too large tokens grow until noise passes the threshold too; with too much noise ever more of it does')
    figures.save(c.out, figure, ('regime', 'layer', 'cluster', 'snr', 'theorem'), rows, '--out')


COMMANDS = {'denoise': (denoise, DenoiseConfig)}


def main(argv):
    if '--help' in argv or '-h' in argv:
        print(configurator.help_text(__doc__, *(Config for _, Config in COMMANDS.values())))
        return
    what = argv[0] if argv else ''
    if what not in COMMANDS:
        raise ValueError(f"what to look at? '{what}' is unknown; choose {', '.join(COMMANDS)}, as in: python analyze.py "
                         'denoise')
    function, Config = COMMANDS[what]
    c = Config(**configurator.check(configurator.collect(argv[1:]), Config))
    check_picture(c.out, c.overwrite)
    figures.check_free(c.out, c.overwrite, '--out')
    function(c)


if __name__ == '__main__':
    with configurator.one_line_errors():
        main(sys.argv[1:])
