"""`analyze.py atoms`: what the units of a layer stand for, in sheets of the patches or tokens that
use them most, and what the network does without them. analysis/units.py says what units, concepts
and scores are."""
import html
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from tqdm import tqdm

from analysis import figures, layers, units
from analysis.charts import panels, picture_grid, title_of
from analysis.predictions import classes_of
from analysis.segmentation import truth
from analysis.subjects import choose, chunk, pixels, which_layer
from analysis.tables import say_rows, say_table
from engine.mistakes import Mistake
from engine.names import printable
from engine.plots import verbatim
from engine.settings import check_ranges
from engine.writing import write_file
from tasks import augment
from tasks.imagenet import readable
from tasks.pictures import named
from tasks.tokenizer import Tokenizer
from weights.generate import generate

MOST_TOKENS = 2 ** 16   # of all samples together, whose units are kept
SHOWN = 6               # units in a row of a sheet
EXAMPLES = 9            # samples of each unit in a sheet
AROUND = 12             # characters before and behind the end of a token


class Samples(NamedTuple):
    """What a network is shown: n pictures of N patches, or n texts of N tokens."""
    x: torch.Tensor         # what it gets: (n, C, H, W), or (n, N)
    y: torch.Tensor         # the class of each picture (n,), or the next tokens (n, N)
    drawn: object           # the pictures, uint8 (n, H, W, 3), or the texts, n lists of N tokens
    concepts: dict          # {name: bool (n, N)}

    @property
    def N(self):
        return next(iter(self.concepts.values())).size(1)


class Recorded(NamedTuple):
    """The units of a network for k tokens of each sample."""
    net: object
    samples: Samples
    places: torch.Tensor    # which tokens of a sample they are, (n, k)
    units: list             # of each layer, float16 (n, k, m)
    explained: list         # of each layer, see `outputs` in units.py
    names: list             # of the C concepts
    concepts: torch.Tensor  # 0 or 1: (n k, C)
    is_first: torch.Tensor  # whether a token is of the first half of the samples, bool (n k,)


# ---- what is shown ------------------------------------------------------------------------------

def samples_of(c, net):
    """The Samples of --num_samples pictures or texts; by default 400 pictures, or texts of 65,536
    tokens. Raises Mistake for a network that reads neither."""
    if net.reads == 'images':
        return picture_samples(c, net, c.num_samples or 400)
    if net.reads == 'text':
        return text_samples(c, net, c.num_samples or MOST_TOKENS // net.model.config.block_size)
    raise Mistake(f'{net.name} reads {net.reads}, and atoms is for pictures and text; take --ckpt '
                  'of another run')


def picture_samples(c, net, n):
    images, chosen = choose(c, net, n)
    x = pixels(net, named(images, chosen))
    labels = images.labels[chosen]
    true = None
    if images.folder.joinpath(f'{images.split}.masks.npy').exists():
        true = truth(net, images, chosen) > 0
    classes = [readable(name) for name in images.classes]
    drawn = augment.visible(x)
    concepts = units.concepts_of_pictures(drawn, net.patches, labels, classes, true)
    return Samples(x, torch.from_numpy(labels), drawn, concepts)


def text_samples(c, net, n):
    x, y = chunk(c, net, n)
    tokenizer = Tokenizer(**net.run.data['tokenizer'])
    pieces = [tokenizer.piece(i) for i in x.flatten().tolist()]
    text = b''.join(pieces).decode(errors='surrogateescape')
    concepts, is_python = units.concepts_of_text(text, [len(piece) for piece in pieces])
    if not is_python:
        print('Python cannot read this text, so concepts are characters, places in words and '
              'common words')
    shown = [piece.decode(errors='replace') for piece in pieces]
    drawn = [shown[start:start + x.size(1)] for start in range(0, len(shown), x.size(1))]
    return Samples(x, y, drawn, {name: has.view_as(x) for name, has in concepts.items()})


def record(c, net, samples):
    """The Recorded units of a network."""
    n = len(samples.x)
    N = samples.N
    k = min(N, max(1, MOST_TOKENS // n))
    generator = torch.Generator().manual_seed(c.seed)
    places = torch.rand(n, N, generator=generator).topk(k).indices.sort().values
    units_of_layers = []
    explained = []
    for start in tqdm(range(0, n, c.batch_size), net.name, disable=None, leave=False):
        rows = slice(start, start + c.batch_size)
        index = places[rows, :, None]
        for l, step in enumerate(layers.inside(net.model, samples.x[rows].to(net.device))):
            if start == 0:
                units_of_layers.append([])
                output, rest = units.outputs(step, units.strongest)
                lost = (output - rest).square().sum() / output.square().sum()
                explained.append(1 - lost.item())
            of_patches = units.units_of(step)[:, -N:].cpu()         # without the class token
            units_of_layers[l].append(of_patches.take_along_dim(index, 1).half())

    is_first = (torch.arange(n) < n // 2)[:, None].expand(n, k).flatten()
    names, concepts = units.joined(
        {name: has.gather(1, places).flatten() for name, has in samples.concepts.items()}, is_first)
    return Recorded(net, samples, places, [torch.cat(parts) for parts in units_of_layers],
                    explained, names, concepts, is_first)


# ---- how selective units are --------------------------------------------------------------------

class Scored(NamedTuple):
    """The scores of a layer of a network."""
    own: units.Scores       # of all its units
    few: torch.Tensor       # some of them, as many as of each other network, chosen at random
    turned: units.Scores    # of as many units of its basis turned at random


def score(c, recorded):
    """[[Scored of each layer] of each of the Recorded networks]."""
    count = min(of_layer.size(2) for of_net in recorded for of_layer in of_net.units)
    scored = []
    for of_net in recorded:
        generator = torch.Generator().manual_seed(c.seed)
        scored.append([])
        for of_layer in of_net.units:
            values = of_layer.flatten(0, 1).float()                 # (n k, m)
            m = values.size(1)
            few = torch.randperm(m, generator=generator)[:count]
            rotation, _ = torch.linalg.qr(torch.randn(m, m, generator=generator))
            known = of_net.concepts, of_net.is_first
            scored[-1].append(Scored(units.scores(values, *known), few,
                                     units.scores(values @ rotation[:, :count], *known)))
    return scored


def rows_of_layers(recorded, scored):
    """A row of a table for each layer of each network."""
    rows = []
    for of_net, of_layers in zip(recorded, scored):
        for l, (own, few, turned) in enumerate(of_layers):
            sizes = of_net.units[l].flatten(0, 1).float().abs()
            shares = sizes / sizes.sum(1, keepdim=True).clamp_min(1e-9)
            rows.append({
                'network': of_net.net.name,
                'layer': l + 1,
                'units': len(own.mcc),
                'dead': own.is_dead.sum(),
                'score': own.mcc[few].mean(),
                'turned': turned.mcc.mean(),
                'lift': own.lift[few].mean(),
                'concepts': covered(own.concept[few], own.mcc[few]),
                'of turned': covered(turned.concept, turned.mcc),
                'units of a token': torch.special.entr(shares).sum(1).exp().mean(),
                'explained': of_net.explained[l],
            })
    return rows


def covered(concept, mcc):
    """How many different concepts have a unit that tells them."""
    return len(concept[mcc > units.COVERS].unique())


# ---- the command --------------------------------------------------------------------------------

def draw_atoms(c, nets):
    """Draw a sheet of the most selective units of each layer, or one unit in depth, or what happens
    when units are switched off."""
    model = nets[0].model
    check_ranges(c, {(0, len(model.layers)): ['layer']})
    off = c.off
    if c.atom:
        off = f'{which_layer(c, model)}:{c.atom}'
    values = units.places(off, model, c.to) if off else {}
    recorded = [record(c, net, samples_of(c, net)) for net in nets]
    for l, of_layer in values.items():
        m = recorded[0].units[l - 1].size(2)
        for unit in of_layer:
            if unit > m:
                raise Mistake(f'layer {l} has atoms 1 to {m}, not {unit}')
    scored = score(c, recorded)
    say_rows(rows_of_layers(recorded, scored))
    if values:
        effects = effects_of(c, recorded, scored, values)
        say_rows(effects)
        say_answers(c, recorded[0], values)
    if c.off:
        return bars(recorded[0], effects), effects
    own = [of_layer.own for of_layer in scored[0]]
    if c.atom:
        return draw_unit(c, recorded[0], own), rows_of_units(recorded[0], own)
    return draw_sheet(c, recorded[0], own), rows_of_units(recorded[0], own)


def rows_of_units(recorded, scored):
    """A row of a table for each unit of each layer of a network."""
    rows = []
    for l, own in enumerate(scored, 1):
        for unit in range(len(own.mcc)):
            rows.append({
                'layer': l,
                'atom': unit + 1,
                'on': own.on[unit],
                'dead': int(own.is_dead[unit]),
                'concept': recorded.names[own.concept[unit]],
                'score': own.mcc[unit],
                'lift': own.lift[unit],
            })
    return rows


# ---- a sheet ------------------------------------------------------------------------------------

def draw_sheet(c, recorded, scored):
    """A figure with a row of panels for each layer, or with four rows for the one that the user
    asked for: its most selective units, each with the samples that use it most."""
    firsts = [(l, 0) for l in range(1, len(scored) + 1)]            # (layer, rank) of each row
    if c.layer:
        firsts = [(c.layer, rank) for rank in range(0, 4 * SHOWN, SHOWN)]
    figure, axes = panels_of(recorded, [f'layer {l}' for l, _ in firsts], [''] * SHOWN)
    page = ['<meta charset="utf-8">']
    for row, (l, rank) in zip(axes, firsts):
        own = scored[l - 1]
        best = own.mcc.argsort(descending=True)[rank:rank + SHOWN].tolist()
        for axis, unit in zip(row, best):
            words = (f'{unit + 1}: on {own.on[unit]:.1%}\n{recorded.names[own.concept[unit]]} '
                     f'{own.mcc[unit]:.2f}')
            axis.set_title(verbatim(words), fontsize='x-small')
            examples = strongest_of(recorded, l, unit)
            draw_examples(axis, recorded, l, unit, examples)
            if recorded.net.reads == 'text':
                lines = lines_of(recorded, l, unit, examples)
                page += [f'<p>layer {l}, atom {html.escape(words)}</p>', html_of(lines)]
    if recorded.net.reads == 'text':
        path = Path(c.out or 'atoms.png').with_suffix('.html')
        write_file(path, lambda f: f.write('\n'.join(page)))
        print(path)
    return figure


def panels_of(recorded, row_names, column_names):
    side = 2.3 if recorded.net.reads == 'text' else 1.8
    return picture_grid(side, row_names, column_names, title_of([recorded.net]))


def strongest_of(recorded, l, unit):
    """The samples that use a unit most, and the token of each that does: [(sample, token)]."""
    values, k = recorded.units[l - 1][..., unit].float().max(1)     # (n,) each
    samples = values.topk(min(EXAMPLES, len(values))).indices.tolist()
    return [(i, recorded.places[i, k[i]].item()) for i in samples]


def units_in(recorded, l, x):
    """The units of layer l for samples x, (B, N, m)."""
    for number, step in enumerate(layers.inside(recorded.net.model, x), 1):
        if number == l:
            return units.units_of(step)[:, -recorded.samples.N:]


def draw_examples(axis, recorded, l, unit, examples):
    """Draw examples [(sample, token)] of a unit in one panel."""
    if recorded.net.reads == 'text':
        draw_lines(axis, lines_of(recorded, l, unit, examples))
    else:
        draw_tiles(axis, [tile(recorded, *example) for example in examples])


# ---- patches ------------------------------------------------------------------------------------

def patch_of(picture, place, grid, around=0):
    """A patch of a picture (H, W, C), with so many pixels of the picture around it."""
    h, w = (length // count for length, count in zip(picture.shape, grid))
    row, column = divmod(place, grid[1])
    padded = np.pad(picture, ((around, around), (around, around), (0, 0)), constant_values=255)
    return padded[row * h:(row + 1) * h + 2 * around, column * w:(column + 1) * w + 2 * around]


def tile(recorded, i, place):
    """A patch of picture i, and paler the two patches on each side of it, in a white frame."""
    picture = recorded.samples.drawn[i]
    grid = recorded.net.patches
    around = 2 * (picture.shape[0] // grid[0])
    part = patch_of(picture, place, grid, around)
    pale = 255 - (255 - part) // 2
    inner = slice(around, -around)
    pale[inner, inner] = part[inner, inner]
    return np.pad(pale, ((1, 1), (1, 1), (0, 0)), constant_values=255)


def draw_tiles(axis, tiles):
    """Draw tiles in three columns."""
    tiles = tiles + [np.full_like(tiles[0], 255)] * (-len(tiles) % 3)
    rows = [np.concatenate(tiles[i:i + 3], 1) for i in range(0, len(tiles), 3)]
    axis.imshow(np.concatenate(rows))


# ---- lines of text ------------------------------------------------------------------------------

def lines_of(recorded, l, unit, examples):
    """[[(character, how strong the unit is for it, from 0 to 1)]] around the tokens of examples."""
    texts = [i for i, _ in examples]
    strength = units_in(recorded, l, recorded.samples.x[texts])[..., unit]  # (E, N)
    top = strength.max().clamp_min(1e-9)
    lines = []
    for (i, place), of_text in zip(examples, (strength / top).clamp(0, 1).tolist()):
        tokens = recorded.samples.drawn[i]
        characters = [(printable(character), value) for token, value in zip(tokens, of_text)
                      for character in token]
        end = sum(map(len, tokens[:place + 1])) + AROUND
        lines.append(characters[max(0, end - 2 * AROUND):end])
    return lines


def draw_lines(axis, lines):
    """Draw the first lines of text in one panel, darker where the unit is stronger."""
    lines = lines[:5]
    colours = np.zeros((len(lines), 2 * AROUND))
    for row, line in enumerate(lines):
        for column, (character, value) in enumerate(line):
            colours[row, column] = value
            axis.text(column, row, verbatim(character), fontsize=6, family='monospace', ha='center',
                      va='center')
    axis.imshow(colours, cmap=figures.FROM_WHITE, vmin=0, vmax=2, aspect='auto')


def html_of(lines):
    parts = ['<pre>']
    for line in lines:
        for character, value in line:
            parts.append(f'<span style="background:rgba(0,114,178,{value / 2:.2f})">'
                         f'{html.escape(character)}</span>')
        parts.append('\n')
    return ''.join(parts) + '</pre>'


# ---- one unit -----------------------------------------------------------------------------------

def draw_unit(c, recorded, scored):
    """A figure of one unit: tokens from the strongest to the weakest tenth of those that use it;
    of pictures also where it is on in four of them, and what in a patch makes it stronger."""
    l, unit = which_layer(c, recorded.net.model), c.atom - 1
    values = recorded.units[l - 1][..., unit].float()                       # (n, k)
    order = values.flatten().argsort(descending=True)
    users = order[:(values > 0).sum()].numpy()
    if len(users) < 10:
        raise Mistake(f'layer {l}: atom {c.atom} is on for {len(users)} of {values.numel():,} '
                      'tokens, too few to draw; take more --num_samples')
    generator = np.random.default_rng(c.seed)
    of_pictures = recorded.net.reads == 'images'
    figure, axes = panels_of(recorded, ['strongest\nfirst', 'where'][:1 + of_pictures],
                             [f'{tenth}0 to {tenth + 1}0%' for tenth in range(10)])
    for axis, tenth in zip(axes[0], np.array_split(users, 10)):
        drawn = generator.permutation(tenth)[:EXAMPLES].tolist()
        draw_examples(axis, recorded, l, unit, [
            (i // values.size(1), recorded.places.flatten()[i].item()) for i in drawn])
    if of_pictures:
        examples = strongest_of(recorded, l, unit)[:4]
        x = recorded.samples.x[[i for i, _ in examples]]
        maps = units_in(recorded, l, x)[..., unit].unflatten(1, recorded.net.patches)
        for number, (i, _) in enumerate(examples):
            axes[1, 2 * number].imshow(recorded.samples.drawn[i])
            axes[1, 2 * number + 1].imshow(maps[number], vmin=0, vmax=maps.max(),
                                           cmap=figures.FROM_BLACK)
        axes[1, 8].imshow(direction(recorded, l, unit, examples))
        axes[1, 8].set_xlabel('what makes\nit stronger', fontsize='x-small')
        axes[1, 9].axis('off')
    return figure


def direction(recorded, l, unit, examples):
    """The mean gradient of a unit by the pixels of its own patch, where it is strongest: (h, w, 3),
    from 0 to 1. Grey is no change."""
    x = recorded.samples.x[[i for i, _ in examples]].clone().requires_grad_()
    with torch.enable_grad():
        values = units_in(recorded, l, x)[..., unit]                        # (E, N)
        strongest = sum(values[row, place] for row, (_, place) in enumerate(examples))
    gradient, = torch.autograd.grad(strongest, x)                           # (E, C, H, W)
    pictures = gradient.permute(0, 2, 3, 1).numpy()
    patches = [patch_of(picture, place, recorded.net.patches)
               for picture, (_, place) in zip(pictures, examples)]
    mean = augment.drawable(np.mean(patches, 0))
    return 0.5 + mean / (2 * np.abs(mean).max())


# ---- switched off -------------------------------------------------------------------------------

def effects_of(c, recorded, scored, values):
    """The rows of a table: what happens if units have other values, {layer: {unit: value}}. Beside
    them: the same units at their means, as many others that a seed chooses, and the unit of each
    other network that tells their concept best. The concept is that of the first unit."""
    first = recorded[0]
    l, of_layer = next(iter(values.items()))
    concept = first.names[scored[0][l - 1].own.concept[next(iter(of_layer)) - 1]]
    generator = np.random.default_rng(c.seed)
    means, others = {}, {}
    for layer, of_layer in values.items():
        mean = first.units[layer - 1].float().mean((0, 1))                  # (m,)
        means[layer] = {unit: mean[unit - 1].item() for unit in of_layer}
        alive = (~scored[0][layer - 1].own.is_dead).nonzero()[:, 0].numpy() + 1
        others[layer] = dict.fromkeys(generator.choice(alive, len(of_layer)).tolist(), c.to)
    rows = [effect(first, 'these', values, concept),
            effect(first, 'at their means', means, concept),
            effect(first, 'others, at random', others, concept)]
    for of_net, of_layers in zip(recorded[1:], scored[1:]):
        if of_net.net.kind == 'trained' and concept in of_net.names:
            number = of_net.names.index(concept)
            found = torch.stack([torch.where(own.concept == number, own.mcc, -1)
                                 for own, _, _ in of_layers])               # (L, m)
            l, unit = divmod(found.argmax().item(), found.size(1))
            rows.append(effect(of_net, f'{of_net.net.label}, {l + 1}:{unit + 1}',
                               {l + 1: {unit + 1: c.to}}, concept))
    return rows


def effect(recorded, words, values, concept):
    """A row of a table: how much the loss rises, in nats, for tokens or pictures with a concept and
    for the others, on the half of the samples that chose nothing. Beside it: by how much of its
    norm the output of the first layer changes."""
    second = slice(len(recorded.samples.x) // 2, None)
    samples = recorded.samples
    x, y, has = samples.x[second], samples.y[second], samples.concepts[concept][second]
    model = recorded.net.model
    before = losses(model, x, y)
    with units.fixed(model, values):
        rise = losses(model, x, y) - before
    if before.dim() == 1:  # of pictures
        has = has.any(1)
    l, of_layer = next(iter(values.items()))
    *_, step = zip(range(l), layers.inside(model, x[:64]))
    output, after = units.outputs(step[1], units.fixing(l, of_layer))
    return {'off': words, 'concept': concept, 'norm': (output - after).norm() / output.norm(),
            'loss': before.mean(), 'rise with it': rise[has].mean(),
            'rise without it': rise[~has].mean()}


def losses(model, x, y):
    """The loss of each picture (n,), or of each token (n, N)."""
    logits = torch.cat([model(part)[0] for part in x.split(64)])
    return F.cross_entropy(logits.flatten(0, -2), y.flatten(), reduction='none').view(y.shape)


def say_answers(c, recorded, values):
    """Print how likely a classifier finds each class, or how a network continues a text, with units
    as they are and with other values."""
    model = recorded.net.model
    answers = [answer(c, recorded)]
    with units.fixed(model, values):
        answers.append(answer(c, recorded))
    if model.config.task == 'text':
        print(f'as it is: {answers[0]}\nchanged: {answers[1]}')
    if model.config.task == 'image':
        names = classes_of(recorded.net.run, model)
        say_table(('mean probability of', 'as it is', 'changed'), zip(names, *answers))


def answer(c, recorded):
    model = recorded.net.model
    if model.config.task == 'image':
        logits = torch.cat([model(part)[0] for part in recorded.samples.x.split(64)])
        return logits.softmax(1).mean(0).tolist()
    if model.config.task == 'text':
        tokenizer = Tokenizer(**recorded.net.run.data['tokenizer'])
        prompt = torch.tensor([tokenizer.encode(c.start or 'def ')])
        ids = generate(model, prompt, 80, temperature=0)
        return repr(tokenizer.decode(ids[0].tolist()))


def bars(recorded, rows):
    """A figure of what `effects_of` gives."""
    figure, axes = panels(10, 3.5, 2, sharey=True, sharex=True)
    for axis, column in zip(axes, ('rise with it', 'rise without it')):
        axis.barh([verbatim(row['off']) for row in rows], [row[column] for row in rows])
        axis.set(title=column.replace('it', rows[0]['concept']), xlabel='nats')
    axes[0].invert_yaxis()
    figures.headline(figure, title_of([recorded.net]))
    return figure
