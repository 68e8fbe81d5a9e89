"""Look inside: what the theory says each layer does, measured and drawn.

    python analyze.py layers --ckpt=out/crate_shapes --beside=out/vit_shapes    # coding rate and sparsity
    python analyze.py subspaces --ckpt=out/crate_shapes                         # how far apart subspaces are
    python analyze.py tokens --ckpt=out/crate_shapes --image=assets/cat.jpg     # tokens as heat maps
    python analyze.py attention --ckpt=out/crate_shapes --image=assets/cat.jpg  # where each head looks
    python analyze.py attention --ckpt=out/aot_stdlib --start="def __init__(self):"
    python analyze.py pca --ckpt=out/crate_shapes --label=ring                  # patches by principal components
    python analyze.py segment --ckpt=out/crate_shapes --beside=out/vit_shapes   # attention, MaskCut and true masks
    python analyze.py objects --ckpt=out/crate_shapes --beside=out/vit_shapes   # what they find, in pictures
    python analyze.py compress --ckpt=out/crate_shapes      # R^c before and after each attention step
    python analyze.py ista --ckpt=out/crate_shapes          # the LASSO before and after each ISTA step
    python analyze.py denoise --ckpt=out/crate_shapes       # signal to noise before and after attention
    python analyze.py compress                              # the theory itself, without a network,
    python analyze.py ista                                  # on tokens drawn from its own model
    python analyze.py denoise
    python analyze.py tweedie                               # one token denoised, and how MSSA does it
    python analyze.py nearest                               # does the gradient of R^c point to a subspace?
    python analyze.py diffuse                               # how far encoder and decoder are from each other's inverse
    python analyze.py majorize                              # the function below which ISTA with ista='mm' goes down
    python analyze.py reduction                             # rate reduction and sparsity of three sets of subspaces
    python analyze.py diagram                               # a layer of CRATE beside a block of ViT
    python analyze.py diagram --out=layer.pdf               # for slides
    python analyze.py assets --overwrite=true               # the pictures of assets/ again, from runs in trained/
    python analyze.py augment --dataset=shapes              # training pictures, as training sees them
    python analyze.py augment config/train_crate_shapes.py --out=sheet.png
    python analyze.py curves out/aot_owt out/aot_mhsa_owt out/gpt2_owt          # losses of runs (AoT's Figure 5)
    python analyze.py curves out/* --out=all.png --overwrite=true --log=true
    python analyze.py page --ckpt=out/crate_shapes --beside=out/vit_shapes      # one HTML file that computes
    python analyze.py --help

A command writes a picture and a table of its numbers with the same name and .csv at the end (augment,
curves and diagram write a picture alone, page an HTML file, assets many pictures), and prints what to see.
Networks run in float32, coding rates in float64. Layers and heads are counted from 1.
"""
import sys
from dataclasses import dataclass, fields, replace

import engine  # before torch
import torch

from analysis import (assets, compression, curves, denoising, diagram, diffusion, network_figures, layers, majorizer, page, projection,
                      reduction, scores, segmentation, sheet, sparsification)
from analysis.subjects import SubjectsConfig, subjects
from analysis.tables import plain
from engine import figures, settings
from engine.help import help_text, version
from engine.trained import from_command_line
from tasks import AugmentConfig


@dataclass
class AnalyzeConfig(SubjectsConfig):
    num_samples: int = 0            # samples; 0: 256, but segment 1000, pca 8, objects 6, attention and ista 4
    label: str = ''                 # pca: the class of its pictures; empty: the first
    layer: int = 0                  # attention, pca, segment, objects: which; 0: the last but one, as in CRATE-MAE
    heads: str = ''                 # attention: the heads, such as 1,4; empty: all
    show: str = ''                  # layers: rate, sparsity or objective; empty: all that the network has
    measure: str = 'paper'          # layers: R^c of the half step (paper), or as the released code measures it
    threshold: float = 0.0          # layers: numbers up to this size count as zeros
    part: str = ''                  # networks with three projections: query, key or value; empty: value, for pca key
    share: float = 0.6              # segment, objects: keep the patches that hold this share of a head's attention
    cut: str = 'key'                # segment, objects: MaskCut of key, query, value or token; none: leave it out
    masks: int = 3                  # segment, objects: how many masks MaskCut looks for in a picture
    tau: float = 0.15               # segment, objects: the cosine from which patches are alike for MaskCut
    keep: float = 0.5               # pca: foreground is above this share of the range of the first component
    directions: int = 4             # subspaces: how many columns of each to draw, chosen at random; coherence is of all
    size: int = 50                  # tokens: how many rows and columns to draw, chosen at random
    batch_size: int = 64            # samples in a forward pass
    ranges = {'num_samples': (0, None), 'threshold': (0, None), 'batch_size': (1, None),
              'size': (1, None), 'masks': (1, None), 'directions': (1, 16), 'keep': (1e-9, 1), 'share': (1e-9, 1),
              'tau': (-1, 1)}


COMMON = {'ckpt', 'data_dir', 'seed', 'device', 'out', 'overwrite'}
SAMPLES = {'dataset', 'split', 'image'}
MANY = SAMPLES | {'beside', 'num_samples', 'batch_size'}
CUT = {'layer', 'share', 'cut', 'masks', 'tau'}
COMMANDS = {  # for networks: the function that draws, and its settings besides the common ones
    'layers': (network_figures.draw_layers, MANY | {'show', 'measure', 'threshold', 'part'}),
    'subspaces': (network_figures.draw_subspaces, {'part', 'directions'}),
    'tokens': (network_figures.draw_tokens, SAMPLES | {'start', 'size'}),
    'attention': (network_figures.draw_attention, SAMPLES | {'start', 'num_samples', 'layer', 'heads'}),
    'pca': (network_figures.draw_components, SAMPLES | {'label', 'num_samples', 'layer', 'part', 'keep'}),
    'segment': (segmentation.draw_segmentation, MANY - {'image'} | CUT),
    'objects': (segmentation.draw_objects, MANY - {'image', 'batch_size'} | CUT),
    'compress': (compression.draw_rate_changes, MANY),
    'ista': (sparsification.draw_lasso, MANY),
    'denoise': (denoising.draw_signal_to_noise, MANY)}
THEORIES = {  # they need no network
    'denoise': (denoising.draw_denoising, denoising.DenoiseConfig),
    'compress': (compression.draw_compression, compression.CompressConfig),
    'ista': (sparsification.draw_sparsification, sparsification.ISTAConfig),
    'tweedie': (scores.draw_tweedie, scores.TweedieConfig),
    'nearest': (projection.draw_nearest, projection.NearestConfig),
    'diffuse': (diffusion.draw_diffusion, diffusion.DiffuseConfig),
    'majorize': (majorizer.draw_majorizer, majorizer.MajorizeConfig),
    'reduction': (reduction.draw_reduction, reduction.ReductionConfig)}
OTHERS = {  # they read their words themselves: the function, and the classes of its settings
    'assets': (assets.main, [assets.AssetsConfig]),
    'augment': (sheet.main, [sheet.SheetConfig, AugmentConfig]),
    'curves': (curves.main, [curves.CurvesConfig]),
    'diagram': (diagram.main, [diagram.DiagramConfig]),
    'page': (page.main, [page.PageConfig])}


@torch.no_grad()
def main(argv):
    if settings.asks_for_help(argv):
        print(help_of(argv))
        return
    if '--version' in argv:
        print(version())
        return
    command, *words = argv or ['']
    command = settings.choice_of('command', command, COMMANDS | THEORIES | OTHERS)
    if command in OTHERS:
        main_of_command, _ = OTHERS[command]
        main_of_command(words)
        return
    given = settings.collect(words)
    if command in COMMANDS and ('ckpt' in given or command not in THEORIES):
        draw, _ = COMMANDS[command]
        c, run, changes = from_command_line(words, AnalyzeConfig)
        only_for = {f.name: [k for k, (_, own) in COMMANDS.items() if f.name in COMMON | own] for f in fields(c)}
        settings.check_meant(c, only_for, command)
        settings.take_choices(c, part=('', *layers.PARTS), cut=segmentation.CUTS, measure=('paper', 'released'),
                              show=('', 'rate', 'sparsity', 'objective'))
        c = replace(c, dataset=c.dataset or run['settings'].get('dataset', ''))  # one for all networks
        shown = [subjects(c, run, changes, command)]
    else:
        draw, Config = THEORIES[command]
        c, shown = Config(**settings.check(given, Config)), []
    out = c.out or f'{command}.png'
    figures.check_figure(out, c.overwrite or not c.out)
    figure, rows = draw(c, *shown)
    columns = dict.fromkeys(name for row in rows for name in row)
    figures.save(out, figure, columns, [[plain(row.get(name, '')) for name in columns] for row in rows])


def help_of(words):
    """The settings of the command that somebody names, or the list of commands; with --help=all everything."""
    if '--help=all' in words:
        classes = [AnalyzeConfig, *[Config for _, Config in THEORIES.values()]]
        for _, setting_classes in OTHERS.values():
            classes += setting_classes
        return help_text(__doc__, *classes)
    command = words[0]
    if command.startswith('-'):
        return f'{__doc__.strip()}\n\nThe settings of a command: python analyze.py layers --help, or --help=all'
    command = settings.choice_of('command', command, COMMANDS | THEORIES | OTHERS)
    parts = []
    if command in COMMANDS:
        usage = f'python analyze.py {command} --ckpt=RUN: of a network'
        parts.append(help_text(usage, AnalyzeConfig, only=COMMON | COMMANDS[command][1]))
    if command in THEORIES:
        parts.append(help_text(f'python analyze.py {command}: the theory, without a network', THEORIES[command][1]))
    if command in OTHERS:
        parts.append(help_text(f'python analyze.py {command}', *OTHERS[command][1]))
    return '\n\n'.join(parts)


if __name__ == '__main__':
    with settings.one_line_errors():
        main(sys.argv[1:])
