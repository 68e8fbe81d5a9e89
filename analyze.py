"""Look inside: what the theory says each layer does, measured and drawn.

    python analyze.py layers --ckpt=out/crate_shapes --beside=out/vit_shapes    # R^c and sparsity
    python analyze.py subspaces --ckpt=out/crate_shapes         # how far apart subspaces are
    python analyze.py tokens --ckpt=out/crate_shapes --image=assets/cat.jpg     # as heat maps
    python analyze.py attention --ckpt=out/crate_shapes --image=assets/cat.jpg  # where heads look
    python analyze.py attention --ckpt=out/crate_shapes --image=assets/cat.jpg --over=true
    python analyze.py attention --ckpt=out/aot_stdlib --start="def __init__(self):"
    python analyze.py pca --ckpt=out/crate_shapes --label=ring  # patches by principal components
    python analyze.py segment --ckpt=out/crate_shapes --beside=out/vit_shapes   # against true masks
    python analyze.py objects --ckpt=out/crate_shapes --beside=out/vit_shapes   # drawn in pictures
    python analyze.py objects --ckpt=out/crate_shapes --image=FOLDER --masks_to=masks   # your own
    python analyze.py atoms --ckpt=out/crate_shapes     # what each unit of a layer stands for
    python analyze.py atoms --ckpt=out/crate_shapes --layer=6 --atom=115        # one of them
    python analyze.py atoms --ckpt=out/crate_shapes --off=6:115,6:145           # without some
    python analyze.py compress --ckpt=out/crate_shapes  # R^c before and after each attention step
    python analyze.py ista --ckpt=out/crate_shapes      # the LASSO before and after each ISTA step
    python analyze.py denoise --ckpt=out/crate_shapes   # signal to noise before and after attention
    python analyze.py compress          # the theory itself, without a network,
    python analyze.py ista              # on tokens drawn from its own model
    python analyze.py denoise
    python analyze.py tweedie           # one token denoised, and how MSSA does it
    python analyze.py nearest           # does the gradient of R^c point to a subspace?
    python analyze.py diffuse           # how far encoder and decoder are from each other's inverse
    python analyze.py majorize          # the function below which ISTA with ista='mm' goes down
    python analyze.py reduction         # rate reduction and sparsity of three sets of subspaces
    python analyze.py diagram           # a layer of CRATE beside a block of ViT
    python analyze.py diagram --out=layer.pdf       # for slides
    python analyze.py assets --overwrite=true       # pictures of assets/ again, from trained/
    python analyze.py augment --dataset=shapes      # training pictures, as training sees them
    python analyze.py augment config/train_crate_shapes.py --out=sheet.png
    python analyze.py curves out/aot_owt out/aot_mhsa_owt out/gpt2_owt  # losses (AoT's Figure 5)
    python analyze.py curves out/* --out=all.png --overwrite=true --log=true
    python analyze.py page --ckpt=out/crate_shapes --beside=out/vit_shapes      # HTML that computes
    python analyze.py --help

A command writes a picture and a table of its numbers with the same name and .csv at the end
(augment, curves and diagram write a picture alone, page an HTML file, assets many pictures), and
prints what to see. Networks run in float32, coding rates in float64. Layers and heads are counted
from 1.
"""
import sys
from dataclasses import dataclass, fields, replace

from engine.process import prepare_process

if __name__ == '__main__':
    prepare_process()  # before torch is loaded

import torch

from analysis import (assets, atoms, compression, curves, denoising, diagram, diffusion, figures,
                      layers, majorizer, network_figures, page, projection, reduction, scores,
                      segmentation, sheet, sparsification)
from analysis.subjects import SubjectsConfig, subjects
from analysis.tables import plain
from engine import plots, settings
from engine.mistakes import one_line_errors
from request.help import asks_for_help, help_text, version
from request.trained import from_command_line
from tasks import AugmentConfig


@dataclass
class AnalyzeConfig(SubjectsConfig):
    """Settings of the commands that look at trained networks and draw a figure."""
    num_samples: int = 0    # 0: 256, segment 1000, atoms 400, pca 8, objects 6, attention, ista 4
    label: str = ''         # pca: the class of its pictures; empty: the first
    layer: int = 0          # attention, pca, segment, objects: which; 0: last but one, atoms: all
    atom: int = 0           # atoms: the one of --layer to draw in depth; 0: a sheet of the best
    off: str = ''           # atoms: those to switch off, LAYER:ATOM with commas between them
    to: float = 0.0         # atoms: the number that those of --off or --atom have instead
    heads: str = ''         # attention: the heads, such as 1,4; empty: all
    over: bool = False      # attention: over whole pictures, with a frame around what is seen
    show: str = ''          # layers: rate, sparsity or objective; empty: all that the network has
    measure: str = 'paper'  # layers: R^c of the half step (paper), or as in the released code
    threshold: float = 0.0  # layers: numbers up to this size count as zeros
    part: str = ''          # of three projections: query, key or value; empty: value, for pca key
    share: float = 0.6      # segment, objects: keep patches with this share of a head's attention
    cut: str = 'key'        # segment, objects: MaskCut of key, query, value or token; none: without
    masks: int = 3          # segment, objects: how many masks MaskCut looks for in a picture
    masks_to: str = ''      # objects: a folder for MaskCut's masks of --ckpt, a PNG file each
    tau: float = 0.15       # segment, objects: the cosine from which patches are alike for MaskCut
    keep: float = 0.5       # pca: foreground is above this share of the first component's range
    directions: int = 4     # subspaces: random columns of each to draw; coherence is of all columns
    size: int = 50          # tokens: how many rows and columns to draw, chosen at random
    batch_size: int = 64    # samples in a forward pass

    ranges = {
        'num_samples': (0, None),
        'threshold': (0, None),
        'batch_size': (1, None),
        'size': (1, None),
        'masks': (1, None),
        'directions': (1, 16),
        'keep': (1e-9, 1),
        'share': (1e-9, 1),
        'tau': (-1, 1),
    }


# ---- the commands -------------------------------------------------------------------------------

COMMON = {'ckpt', 'data_dir', 'seed', 'device', 'out', 'overwrite'}
SAMPLES = COMMON | {'dataset', 'split', 'image'}
MANY_SAMPLES = SAMPLES | {'beside', 'num_samples', 'batch_size'}
MASKS = MANY_SAMPLES - {'image'} | {'layer', 'share', 'cut', 'masks', 'tau'}

COMMANDS = {  # about trained networks: the function that draws, and its settings
    'layers': (network_figures.draw_layers,
               MANY_SAMPLES | {'show', 'measure', 'threshold', 'part'}),
    'subspaces': (network_figures.draw_subspaces, COMMON | {'part', 'directions'}),
    'tokens': (network_figures.draw_tokens, SAMPLES | {'start', 'size'}),
    'attention': (network_figures.draw_attention,
                  SAMPLES | {'start', 'num_samples', 'layer', 'heads', 'over'}),
    'pca': (network_figures.draw_components,
            SAMPLES | {'label', 'num_samples', 'layer', 'part', 'keep'}),
    'segment': (segmentation.draw_segmentation, MASKS),
    'objects': (segmentation.draw_objects, MASKS - {'batch_size'} | {'image', 'masks_to'}),
    'atoms': (atoms.draw_atoms, MANY_SAMPLES - {'image'} | {'layer', 'atom', 'off', 'to', 'start'}),
    'compress': (compression.draw_rate_changes, MANY_SAMPLES),
    'ista': (sparsification.draw_lasso, MANY_SAMPLES),
    'denoise': (denoising.draw_signal_to_noise, MANY_SAMPLES),
}

THEORIES = {  # without a network: the function that draws, and its settings
    'denoise': (denoising.draw_denoising, denoising.DenoiseConfig),
    'compress': (compression.draw_compression, compression.CompressConfig),
    'ista': (sparsification.draw_sparsification, sparsification.ISTAConfig),
    'tweedie': (scores.draw_tweedie, scores.TweedieConfig),
    'nearest': (projection.draw_nearest, projection.NearestConfig),
    'diffuse': (diffusion.draw_diffusion, diffusion.DiffuseConfig),
    'majorize': (majorizer.draw_majorizer, majorizer.MajorizeConfig),
    'reduction': (reduction.draw_reduction, reduction.ReductionConfig),
}

OTHERS = {  # these read their words themselves: the function, and the classes of its settings
    'assets': (assets.main, [assets.AssetsConfig]),
    'augment': (sheet.main, [sheet.SheetConfig, AugmentConfig]),
    'curves': (curves.main, [curves.CurvesConfig]),
    'diagram': (diagram.main, [diagram.DiagramConfig]),
    'page': (page.main, [page.PageConfig]),
}


@torch.no_grad()
def main(argv):
    """Run the command that a command line asks for."""
    if '--version' in argv:
        print(version())
        return
    if asks_for_help(argv):
        print(help_of(argv))
        return
    command, *words = argv or ['']
    command = settings.choice_of('command', command, COMMANDS | THEORIES | OTHERS)
    if command in OTHERS:
        run_command, _ = OTHERS[command]
        run_command(words)
        return

    # compress, ista and denoise are about a network if one is named, and else about the theory
    requested = settings.collect(words)
    if command in COMMANDS and ('ckpt' in requested or command not in THEORIES):
        draw, _ = COMMANDS[command]
        c, nets = read_networks(command, words)
        arguments = (c, nets)
    else:
        draw, Config = THEORIES[command]
        c = Config(**settings.check(requested, Config))
        arguments = (c,)
    picture = c.out or f'{command}.png'
    # noticed before any work; a file that the user did not name is replaced
    figures.check_figure(picture, c.overwrite or not c.out)
    with plots.house_style():
        figure, rows = draw(*arguments)
        save(picture, figure, rows)


def read_networks(command, words):
    """The settings of a command about trained networks, an AnalyzeConfig, and the networks, a list
    of Subjects. words: the command line without the command."""
    c, run, changes = from_command_line(words, AnalyzeConfig)
    commands_with = {}
    for field in fields(c):
        names = [name for name, (_, known) in COMMANDS.items() if field.name in known]
        commands_with[field.name] = names
    settings.check_meant(c, commands_with, command)
    settings.take_choices(c,
                          part=('', *layers.PARTS),
                          cut=segmentation.CUTS,
                          measure=('paper', 'released'),
                          show=('', 'rate', 'sparsity', 'objective'))
    # all networks are shown the dataset of the first one
    dataset = c.dataset or run.settings.get('dataset', '')
    c = replace(c, dataset=dataset)
    return c, subjects(c, run, changes, command)


def save(picture, figure, rows):
    """Write a figure, and its table beside it. rows: {column: value} each; a row may lack columns
    that others have."""
    columns = {}  # as an ordered set
    for row in rows:
        columns.update(row)
    table = []
    for row in rows:
        table.append([plain(row.get(column, '')) for column in columns])
    figures.save(picture, figure, columns, table)


# ---- help ---------------------------------------------------------------------------------------

def help_of(words):
    """What --help prints: the settings of the command that the words name, or without a command
    the list of commands."""
    command = words[0]
    if command.startswith('-'):
        return f'{__doc__.strip()}\n\nThe settings of a command: python analyze.py layers --help'

    command = settings.choice_of('command', command, COMMANDS | THEORIES | OTHERS)
    usage = f'python analyze.py {command}'
    parts = []
    if command in COMMANDS:
        of_network = f'{usage} --ckpt=RUN: of a network'
        _, known = COMMANDS[command]
        parts.append(help_text(of_network, AnalyzeConfig, only=known))
    if command in THEORIES:
        _, Config = THEORIES[command]
        parts.append(help_text(f'{usage}: the theory, without a network', Config))
    if command in OTHERS:
        _, setting_classes = OTHERS[command]
        parts.append(help_text(usage, *setting_classes))
    return '\n\n'.join(parts)


if __name__ == '__main__':
    with one_line_errors():
        main(sys.argv[1:])
