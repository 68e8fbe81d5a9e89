"""Look inside: what the theory says each layer does, measured and drawn.

    python analyze.py layers --ckpt=out/crate_shapes --beside=out/vit_shapes    # coding rate and sparsity after every layer
    python analyze.py subspaces --ckpt=out/crate_shapes                         # how far apart a layer's subspaces are
    python analyze.py tokens --ckpt=out/crate_shapes --image=cat.jpg            # tokens as heat maps
    python analyze.py attention --ckpt=out/crate_shapes --image=cat.jpg         # where each head looks
    python analyze.py attention --ckpt=out/aot_stdlib --start="def __init__(self):"
    python analyze.py pca --ckpt=out/crate_shapes --label=ring                  # patches coloured by their principal components
    python analyze.py segment --ckpt=out/crate_shapes --beside=out/vit_shapes   # attention against true masks
    python analyze.py compress --ckpt=out/crate_shapes                          # R^c before and after each attention step
    python analyze.py ista --ckpt=out/crate_shapes                              # the LASSO before and after each ISTA step
    python analyze.py denoise --ckpt=out/crate_shapes                           # signal to noise before and after attention
    python analyze.py layers --official=crate_base.pth --model=crate --n_head=12 --dataset=imagenet
    python analyze.py compress                                                  # the theory itself, on tokens drawn from its
    python analyze.py ista                                                      # own model: no network is needed
    python analyze.py denoise
    python analyze.py --help

A command writes a picture, the numbers behind it as a table of the same name that ends with .csv, and prints what to see.
Networks run in float32, coding rates in float64. Layers and heads are counted from 1.
"""
import sys
from dataclasses import dataclass, fields, replace

import torch

from engine import settings as configurator
from engine import plots as figures
from analysis import layers as inside
from analysis import drawings as looks
from analysis import derivation as steps
from analysis import theory
from engine.checkpoints import from_command_line
from analysis.samples import networks


@dataclass
class LookConfig:
    ckpt: str = 'out/crate_shapes'  # a checkpoint, a run directory for its best.pt, or official:PATH for the authors' weights
    model: str = ''                 # network of an official file: crate, crate_mae, vit or vit_mae
    beside: str = ''                # other checkpoints in the same picture, with commas between them
    dataset: str = ''               # folder in data_dir; empty takes what the network was trained on
    data_dir: str = 'data'          # where prepared datasets lie
    split: str = ''                 # its split; empty takes test, or else val
    image: str = ''                 # pictures of your own instead: a file, a folder of files
    start: str = ''                 # a text of your own instead; \n is a new line, FILE:path reads a file
    num_samples: int = 0            # pictures or texts; 0: 256 for layers, compress and denoise, segment 1000, pca 8, others 4
    label: str = ''                 # pca: the class that its pictures are of; empty takes the first
    layer: int = 0                  # attention, pca: which layer, segment: which to report; 0 the last but one, as the papers
    heads: str = ''                 # attention: which, such as 1,4; empty takes all
    show: str = ''                  # layers: rate or sparsity; empty takes both, or what the network has
    measure: str = 'paper'          # layers: R^c of the half step (paper), or as the authors' code measures it (released)
    eps: float = 0.0                # layers: precision of the coding rate; 0 takes 0.5, of the released measure 0.01
    threshold: float = 0.0          # layers: numbers of at most this count as zeros
    part: str = ''                  # of networks with three projections: query, key or value; empty value, pca key
    share: float = 0.6              # segment: the patches kept hold this share of a head's attention
    keep: float = 0.5               # pca: foreground is what lies above this share of the first component's range
    directions: int = 4             # subspaces: columns of each that are drawn, at random; the number is of all
    size: int = 50                  # tokens: rows and columns that are drawn, at random
    batch_size: int = 64            # samples a forward pass
    seed: int = 1337                # of random weights, and of what is chosen at random
    device: str = 'auto'            # cpu, cuda, cuda:1, mps
    out: str = ''                   # the picture to write, the table is beside it; empty means COMMAND.png
    overwrite: bool = False         # replace them if they exist


COMMON = {'ckpt', 'model', 'data_dir', 'seed', 'device', 'out', 'overwrite'}
SAMPLES = {'dataset', 'split', 'image'}
COMMANDS = {  # of a trained network: what draws it, and the settings that this reads beside the common ones
    'layers': (looks.layers, SAMPLES | {'beside', 'num_samples', 'show', 'measure', 'eps', 'threshold', 'part', 'batch_size'}),
    'subspaces': (looks.subspaces, {'part', 'directions'}),
    'tokens': (looks.tokens, SAMPLES | {'start', 'size'}),
    'attention': (looks.attention, SAMPLES | {'start', 'num_samples', 'layer', 'heads'}),
    'pca': (looks.pca, SAMPLES | {'label', 'num_samples', 'layer', 'part', 'keep'}),
    'segment': (looks.segment, {'dataset', 'split', 'beside', 'num_samples', 'layer', 'share', 'batch_size'}),
    'compress': (steps.compress, SAMPLES | {'beside', 'num_samples', 'batch_size'}),
    'ista': (steps.ista, SAMPLES | {'beside', 'num_samples', 'batch_size'}),
    'denoise': (steps.denoise, SAMPLES | {'beside', 'num_samples', 'batch_size'})}


def check(c, what, reads_these):
    """Raises ValueError for a setting that does not go with a command, or that no command can use."""
    for f in fields(c):
        if f.name not in COMMON | reads_these and getattr(c, f.name) != f.default:
            raise ValueError(f'--{f.name} does not go with {what}; leave it out')
    for name in ('dataset', 'split'):
        if (c.image or c.start) and getattr(c, name):
            raise ValueError(f'--{name} does not go with --{"image" if c.image else "start"}; leave one of them out')
    if c.image and c.label:
        raise ValueError('--label says which pictures of a dataset; leave it out beside --image, where all are one class')
    configurator.check_least(c, num_samples=0, batch_size=1, directions=1, size=1, seed=0, eps=0, threshold=0)
    if c.directions > 16 or c.seed >= 2 ** 63:
        raise ValueError(f'directions={c.directions} must be at most 16, seed={c.seed} below 2^63')
    if c.part not in ('', *inside.PARTS):
        raise ValueError(f'part={c.part} is unknown; choose {", ".join(inside.PARTS)}')
    if not 0 < c.keep <= 1 or not 0 < c.share <= 1:
        raise ValueError(f'need 0 < keep <= 1 and 0 < share <= 1; got {c.keep} and {c.share}')


def of_network(what, words):
    """What draws a trained network, and its settings, as a function without arguments; its LookConfig."""
    draw, reads_these = COMMANDS[what]
    c, checkpoint, overrides = from_command_line(words, LookConfig)
    check(c, what, reads_these)
    c = replace(c, out=c.out or f'{what}.png', dataset=c.dataset or checkpoint['config'].get('dataset', ''))  # one for all
    random = what not in ('tokens', 'attention', 'pca')  # there is one network in these
    return lambda: draw(c, networks(c, checkpoint, overrides, random)), c


def of_theory(what, given):
    """The same of an experiment that needs no network."""
    draw, Config = theory.COMMANDS[what]
    for name in given.keys() & {f.name for f in fields(LookConfig)} - {f.name for f in fields(Config)}:
        raise ValueError(f'--{name} is about a trained network: give its --ckpt too, or leave it out')
    c = Config(**configurator.check(given, Config))
    return lambda: draw(c), c


def main(argv):
    if '--help' in argv or '-h' in argv:
        print(configurator.help_text(__doc__, LookConfig, *(Config for _, Config in theory.COMMANDS.values())))
        return
    what, words = argv[0] if argv else '', argv[1:]
    if what not in COMMANDS:
        raise ValueError(f"what to look at? '{what}' is unknown; choose {', '.join(COMMANDS)}, as in: python analyze.py layers")
    for word, alone in configurator.marked(words):
        if alone and not word.endswith('.py'):
            raise ValueError(f'{word} stands alone; did you mean --ckpt={word}?')
    given = configurator.collect(words)
    trained = what not in theory.COMMANDS or {'ckpt', 'official'} & given.keys()
    draw, c = of_network(what, words) if trained else of_theory(what, given)
    figures.check_free(c.out, c.overwrite, '--out')
    with torch.no_grad():
        figure, columns, rows = draw()
    figures.save(c.out, figure, columns, rows, '--out')


if __name__ == '__main__':
    with configurator.one_line_errors():
        main(sys.argv[1:])
