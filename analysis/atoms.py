"""`analyze.py atoms`: what the units of a layer stand for, in sheets of the patches or tokens that
use them most, and what the network does without them. analysis/units.py says what units, concepts
and scores are."""
import collections
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
from analysis.segmentation import numbers_of_objects, truth
from analysis.subjects import choose, chunk, pixels, tokens_of, which_layer
from analysis.tables import say_rows, say_table
from engine.mistakes import Mistake
from engine.names import printable
from engine.plots import verbatim
from engine.writing import write_file
from tasks import augment
from tasks.dataset import check_classes
from tasks.imagenet import readable
from tasks.pictures import named
from weights.generate import generate

MOST_TOKENS = 2 ** 15   # of all samples together, whose units are kept
FEWEST = 30             # of these in each half that have a concept, and that have it not
COVERS = 0.5            # the score from which on a unit covers its concept
SHOWN = 6               # units in a row of a sheet
EXAMPLES = 9            # samples of each unit in a sheet
AROUND = 12             # characters before and behind the end of a token


class Samples(NamedTuple):
    """What a network is shown: n pictures of N patches, or n texts of N tokens. Concepts are chosen
    and scored on k tokens of each sample."""
    x: torch.Tensor         # pictures as the network sees them, uint8 (n, H, W, C), or ids (n, N)
    y: torch.Tensor         # the class of each picture (n,), or the next tokens (n, N)
    places: torch.Tensor    # which k tokens of a sample are taken, (n, k)
    names: list             # of the C concepts that are frequent and rare enough
    has: torch.Tensor       # which tokens have them, bool (n, N, C)


class Seen(NamedTuple):
    """A network, and its units in each layer for the tokens that are taken."""
    net: object
    samples: Samples
    units: list             # of each layer, bfloat16 (n, k, m)
    explained: list         # of each layer, in the first batch, see `explained` in units.py
    scores: list            # of each layer, see `Scores` there; `score` fills this list


# ---- the command --------------------------------------------------------------------------------

def draw_atoms(c, nets):
    """Draw a sheet of the most selective units of each layer, or with --atom one unit in depth, or
    with --off what happens when units are switched off. Returns a figure of the first network, and
    rows of a table. What is drawn of text is also written to an HTML file."""
    net = nets[0]
    values = requested_values(c, net)
    page = Path(c.out or 'atoms.png').with_suffix('.html')
    has_page = net.reads == 'text' and not c.off
    if has_page:
        figures.check_free(page, c.overwrite or not c.out, endings=['.html'])

    # a network with random weights sees what the trained network of the same run sees
    samples = {id(net.run): samples_of(c, net) for net in nets if net.kind == 'trained'}
    with units.fixed(net.model, values):
        # one pass before the work, because it raises Mistake for an atom that is not there
        net.model(input_of(net, samples[id(net.run)].x[:1]))
    seen = [record(c, net, samples[id(net.run)]) for net in nets]
    say_rows(score(c, seen))
    if values and has_loss(net):
        effects = effects_of(c, seen, values)
        say_rows(effects)
        say_answers(c, seen[0], values)
    if c.off:
        return bars(net, effects), effects
    draw = draw_unit if c.atom else draw_sheet
    figure, lines = draw(c, seen[0])
    if has_page:
        write_file(page, lambda f: print('<meta charset="utf-8">', *lines, sep='\n', file=f))
        print(page)
    return figure, rows_of_units(seen[0])


def requested_values(c, net):
    """The units that --off or --atom name, and the value that they get: {(layer, unit): value}.
    Raises Mistake for settings that do not fit together, or do not fit the network."""
    layer = which_layer(c, net.model)
    if c.off:
        if c.atom or c.layer:
            raise Mistake('--off names layers itself; leave --layer and --atom out')
        if not has_loss(net):
            raise Mistake(f'{net.name} has no classes and no next tokens, so there is no loss that '
                          'could rise; leave --off out')
        return units.values_of(c.off, net.model, c.to)
    if (c.to or c.start) and not (c.atom and has_loss(net)):
        raise Mistake('--to and --start are about atoms that are switched off, in a network with '
                      'classes or next tokens; give --off or --atom too, or leave them out')
    if c.atom:
        return units.values_of(f'{layer}:{c.atom}', net.model, c.to)
    return {}


def has_loss(net):
    """Whether a network has learned to classify pictures or to predict the next token."""
    is_read = net.model.config.task in ('image', 'text')
    return is_read and not net.run.headless and not net.run.unlabelled


# ---- what is shown ------------------------------------------------------------------------------

def samples_of(c, net):
    """The Samples of --num_samples pictures or texts; by default 400 pictures, or texts of
    MOST_TOKENS tokens. Raises Mistake if they are too few."""
    if net.reads == 'images':
        x, y, names, has = pictures_with_concepts(c, net)
    else:
        x, y, names, has = texts_with_concepts(c, net)
    n, N, _ = has.shape
    k = min(N, max(1, MOST_TOKENS // n))
    places = torch.rand(n, N, generator=c.generator()).topk(k).indices.sort().values

    samples = Samples(x, y, places, names, has)
    concepts, is_first = taken_concepts(samples)
    is_usual = torch.ones(len(names), dtype=torch.bool)
    for half in (concepts[is_first], concepts[~is_first]):
        is_usual &= (half.sum(0) >= FEWEST) & ((1 - half).sum(0) >= FEWEST)
    if not is_usual.any():
        raise Mistake(f'{n * k} tokens of {n} samples are too few to score an atom; give a larger '
                      '--num_samples, or another --dataset or --split')
    names = [name for name, usual in zip(names, is_usual) if usual]
    return samples._replace(names=names, has=has[..., is_usual])


def pictures_with_concepts(c, net):
    """x and y of Samples, the names of concepts, and which patches have them, bool (n, N, C)."""
    images, chosen = choose(c, net, 400)
    if (c.off or c.atom) and has_loss(net):
        check_classes(net.run, images.classes, images.folder)
    labels = images.labels[chosen]
    # one after the other, as the numbers of many pictures would take gigabytes
    x = torch.cat([augment.denormalize(pixels(net, [picture])).cpu()
                   for picture in named(images, chosen)])               # (n, H, W, C)
    masks = [None] * len(x)
    if images.folder.joinpath(f'{images.split}.masks.npy').exists():
        masks = numbers_of_objects(truth(net, images, chosen)).numpy() > 0
    classes = [readable(name) for name in images.classes]
    concepts = [units.concepts_of_picture(picture, net.patches, label, classes, mask)
                for picture, label, mask in zip(augment.drawable(x.numpy()), labels, masks)]
    # (n, C, down, across)
    has = torch.from_numpy(np.array([list(of_picture.values()) for of_picture in concepts]))
    return x, torch.from_numpy(labels), list(concepts[0]), has.flatten(2).mT


def texts_with_concepts(c, net):
    """The same of texts that follow each other, the first ones of a dataset."""
    x, y = chunk(c, net, c.num_samples or max(2, MOST_TOKENS // net.model.config.block_size))
    tokenizer = net.tokenizer
    pieces = [tokenizer.piece(i) for i in x.flatten().tolist()]
    text = b''.join(pieces).decode(errors='surrogateescape')
    concepts, is_python = units.concepts_of_text(text, [len(piece) for piece in pieces])
    if not is_python:
        print('Python cannot read this text, so concepts are characters, places in words and '
              'common words')
    has = torch.from_numpy(np.stack(list(concepts.values()), 1))        # (n N, C)
    return x, y, list(concepts), has.unflatten(0, x.shape)


def input_of(net, x):
    """What a network gets of `x` of Samples, on its device."""
    x = x.to(net.device)
    if net.reads == 'images':
        return augment.normalize(augment.planes(x))                     # (B, C, H, W)
    return x


def units_for(seen, l, unit, inputs):
    """One unit of layer l for what a network gets, without that of a class token: (B, N)."""
    N = seen.samples.has.size(1)
    return units.units_of(layers.step_at(seen.net.model, l, inputs))[:, -N:, unit]


# ---- how selective units are --------------------------------------------------------------------

def record(c, net, samples):
    """The Seen of a network, without scores."""
    N = samples.has.size(1)
    of_layers = [[] for _ in net.model.layers]
    explained = []
    batches = list(zip(samples.x.split(c.batch_size), samples.places.split(c.batch_size)))
    for x, places in tqdm(batches, net.name, disable=None, leave=False):
        for step, of_layer in zip(layers.inside(net.model, input_of(net, x)), of_layers):
            if not of_layer:  # the first batch alone
                explained.append(units.explained(step))
            of_tokens = units.units_of(step)[:, -N:].cpu()              # without a class token
            of_layer.append(of_tokens.take_along_dim(places[..., None], 1).bfloat16())
    return Seen(net, samples, [torch.cat(parts) for parts in of_layers], explained, [])


def score(c, seen):
    """Score the units of each network, and return a row of a table for each layer. Layers differ in
    width, so `score`, `lift` and `concepts` are of equally many units of each, which are chosen at
    random, and `turned` and `of turned` of as many directions of a random rotation. The other
    columns are of all units. The last row of text is that of the tokens alone: a random vector for
    each token of the vocabulary."""
    count = min(of_layer.size(2) for of_net in seen for of_layer in of_net.units)
    rows = []
    for net, samples, of_layers, explained, scores in seen:
        concepts, is_first = taken_concepts(samples)
        generator = c.generator()
        for l, of_layer in enumerate(of_layers):
            values = of_layer.flatten(0, 1).float()                         # (n k, m)
            m = values.size(1)
            own = units.Scores(*in_blocks(units.scores, values, concepts, is_first))
            scores.append(own)
            few = torch.randperm(m, generator=generator)[:count]
            rotation, _ = torch.linalg.qr(torch.randn(m, m, generator=generator))
            turned = in_blocks(units.choose, values @ rotation[:, :count], concepts, is_first)
            shares = F.normalize(values.abs(), p=1)                         # they sum to 1
            rows.append({
                'network': net.name,
                'layer': l + 1,
                'units': m,
                'dead': own.is_dead.sum(),
                'score': own.mcc[few].mean(),
                'turned': turned[1].mean(),
                'lift': own.lift[few].mean(),
                'concepts': covered(own.concept[few], own.mcc[few]),
                'of turned': covered(*turned),
                'units of a token': torch.special.entr(shares).sum(1).exp().mean(),
                'explained': explained[l],
            })
    first = seen[0]
    if first.net.reads == 'text':
        ids = first.samples.x.gather(1, first.samples.places).flatten()     # (n k,)
        vectors = torch.randn(int(ids.max()) + 1, count, generator=c.generator())
        alone = in_blocks(units.choose, vectors[ids], *taken_concepts(first.samples))
        rows.append({'network': 'random vectors of tokens', 'units': count,
                     'score': alone[1].mean(), 'concepts': covered(*alone)})
    return rows


def taken_concepts(samples):
    """Which of the n k tokens that are taken have the concepts, float (n k, C), and which of them
    are of the first half, bool (n k,)."""
    taken = samples.has.take_along_dim(samples.places[..., None], 1)    # (n, k, C)
    n, k, _ = taken.shape
    return taken.flatten(0, 1).float(), torch.arange(n).repeat_interleave(k) < n // 2


def in_blocks(function, values, *arguments):
    """What a function of units (T, m) returns, tensors (m,). It gets 64 units at a time, because
    sorted copies of all units would take a gigabyte."""
    results = [function(block, *arguments) for block in values.split(64, 1)]
    return [torch.cat(parts) for parts in zip(*results)]


def covered(concept, mcc):
    """How many different concepts have a unit that tells them."""
    return len(concept[mcc > COVERS].unique())


def rows_of_units(seen):
    """A row of a table for each unit of each layer of a network."""
    rows = []
    for l, own in enumerate(seen.scores, 1):
        for unit, numbers in enumerate(zip(*own), 1):
            row = {'layer': l, 'atom': unit} | dict(zip(own._fields, numbers))
            row['concept'] = seen.samples.names[row['concept']]
            rows.append(row)
    return rows


# ---- sheets -------------------------------------------------------------------------------------
# From here to the end of the part about one unit, a layer l counts from 1, and `unit` from 0.

def draw_sheet(c, seen):
    """A figure with a row of panels for each layer, or with four rows for the one that the user
    asked for: its most selective units, each with the samples that use it most. Of text, also the
    lines of an HTML page."""
    firsts = [(l, 0) for l in range(1, len(seen.scores) + 1)]           # (layer, rank) of each row
    if c.layer:
        firsts = [(c.layer, rank) for rank in range(0, 4 * SHOWN, SHOWN)]
    figure, axes = panels_of(seen.net, [f'layer {l}' for l, _ in firsts], [''] * SHOWN)
    page = []
    for row, (l, rank) in zip(axes, firsts):
        own = seen.scores[l - 1]
        best = own.mcc.argsort(descending=True)[rank:rank + SHOWN].tolist()
        for axis, unit in zip(row, best):
            title = (f'{unit + 1}: on {own.on[unit]:.1%}\n'
                     f'{seen.samples.names[own.concept[unit]]} {own.mcc[unit]:.2f}')
            axis.set_title(verbatim(title), fontsize='x-small')
            page.append(f'<p>layer {l}, atom {html.escape(title)}</p>')
            page += draw_examples(axis, seen, l, unit, *strongest_of(seen, l, unit))
    return figure, page


def panels_of(net, row_names, column_names):
    """A figure with a grid of panels, and the panels. Those of text are larger."""
    side = 2.3 if net.reads == 'text' else 1.8
    return picture_grid(side, row_names, column_names, title_of([net]))


def strongest_of(seen, l, unit):
    """The samples that use a unit most, at most EXAMPLES, and the token of each that does: (E,)
    each."""
    strength, k = seen.units[l - 1][..., unit].max(1)                   # (n,) each
    chosen = strength.topk(min(EXAMPLES, len(strength))).indices
    return chosen, seen.samples.places[chosen, k[chosen]]


def draw_examples(axis, seen, l, unit, chosen, places):
    """Draw a unit for these tokens of these samples, (E,) each, in one panel. Of text, returns
    lines of HTML."""
    x = seen.samples.x[chosen]
    if seen.net.reads == 'images':
        draw_tiles(axis, x, places, seen.net.patches)
        return []
    strength = units_for(seen, l, unit, input_of(seen.net, x)).cpu()    # (E, N)
    top = seen.units[l - 1][..., unit].float().max().clamp_min(1e-9)    # one scale for a unit
    strength = (strength / top).clamp(0, 1).numpy()
    tokenizer = seen.net.tokenizer
    colours = np.zeros((EXAMPLES, 2 * AROUND))
    page = ['<pre>']
    for row, (ids, place) in enumerate(zip(x.tolist(), places)):
        tokens = [tokenizer.piece(i).decode(errors='replace') for i in ids]
        lengths = [len(token) for token in tokens]
        end = sum(lengths[:place + 1]) + AROUND
        window = slice(max(0, end - 2 * AROUND), end)
        values = np.repeat(strength[row], lengths)[window]
        colours[row, :len(values)] = values
        line = ''
        for column, character in enumerate(''.join(tokens)[window]):
            character = printable(character)
            axis.text(column, row, verbatim(character), fontsize=6, family='monospace',
                      ha='center', va='center')
            line += (f'<span style="background:rgba(0,114,178,{values[column] / 2:.2f})">'
                     f'{html.escape(character)}</span>')
        page.append(line)
    axis.imshow(colours, cmap=figures.FROM_WHITE, vmin=0, vmax=2, aspect='auto')
    return [*page, '</pre>']


def draw_tiles(axis, x, places, grid):
    """Draw one patch of each picture, uint8 (E, H, W, C), in its colours, and two patches on each
    side of it in paler ones. Numbers are darkness, 1 minus the colour, so that 0 beyond the picture
    is white."""
    pictures = torch.from_numpy(augment.drawable(x.numpy())).permute(0, 3, 1, 2)
    tiles = patches_of(1 - pictures / 255, places, grid, around=2)      # (E, 3, 5 h, 5 w)
    h, w = (side // 5 for side in tiles.shape[2:])
    tiles /= 2
    tiles[..., 2 * h:3 * h, 2 * w:3 * w] *= 2                           # the patch in full
    # a frame around each tile, and empty tiles up to EXAMPLES
    tiles = F.pad(tiles, (1, 1, 1, 1, 0, 0, 0, EXAMPLES - len(tiles)))
    # EXAMPLES tiles in three rows of three
    rows = tiles.unflatten(0, (3, 3)).permute(0, 3, 1, 4, 2)            # (3, h, 3, w, C)
    picture = 1 - rows.flatten(2, 3).flatten(0, 1).numpy()
    axis.imshow(picture, interpolation='nearest')


def patches_of(pictures, places, grid, around=0):
    """One patch of each picture (E, C, H, W) in a grid (down, across), with so many patches on each
    side of it, and 0 beyond the picture: (E, C, h, w)."""
    h, w = (side // count for side, count in zip(pictures.shape[2:], grid))
    size = (h * (1 + 2 * around), w * (1 + 2 * around))
    # of all N patches: (E, C h w, N)
    patches = F.unfold(pictures, size, padding=(h * around, w * around), stride=(h, w))
    return patches[torch.arange(len(patches)), :, places].unflatten(1, (-1, *size))


# ---- one unit -----------------------------------------------------------------------------------

def draw_unit(c, seen):
    """A figure of one unit: tokens from the strongest to the weakest tenth of those that use it. Of
    pictures also where it is on in four of them, and what in a patch makes it stronger. Of text
    also the lines of an HTML page."""
    l, unit = which_layer(c, seen.net.model), c.atom - 1
    values = seen.units[l - 1][..., unit].flatten()                     # (n k,)
    users = values.argsort(descending=True)[:(values > 0).sum()]
    if len(users) < 10:
        raise Mistake(f'layer {l}: atom {c.atom} is on for {len(users)} of {len(values):,} tokens, '
                      'too few to draw; give a larger --num_samples')
    rows = ['strongest\nfirst']
    if seen.net.reads == 'images':
        rows.append('where')
    figure, axes = panels_of(seen.net, rows, [f'{10 * i} to {10 * i + 10}%' for i in range(10)])
    page = []
    places = seen.samples.places
    generator = c.generator()
    for axis, tenth in zip(axes[0], users.tensor_split(10)):
        page.append(f'<p>{axis.get_title()}</p>')
        drawn = tenth[torch.randperm(len(tenth), generator=generator)[:EXAMPLES]]
        page += draw_examples(axis, seen, l, unit, drawn // places.size(1), places.flatten()[drawn])
    if seen.net.reads == 'images':
        draw_where(axes[1], seen, l, unit)
    return figure, page


@torch.enable_grad()
def draw_where(axes, seen, l, unit):
    """Draw four pictures, a map of a unit beside each, and the direction of the unit: the mean
    gradient of the unit by the pixels of its own patch, where grey is no change."""
    grid = seen.net.patches
    chosen, places = strongest_of(seen, l, unit)
    x = seen.samples.x[chosen]
    inputs = input_of(seen.net, x).requires_grad_()
    values = units_for(seen, l, unit, inputs)                           # (E, N)
    strongest = values[torch.arange(len(values)), places].sum()
    gradient, = torch.autograd.grad(strongest, inputs)                  # (E, C, H, W)
    direction = patches_of(gradient.cpu(), places, grid).mean(0).permute(1, 2, 0)
    direction = augment.drawable(direction.numpy())
    maps = values.detach().cpu().unflatten(1, grid).numpy()             # (E, down, across)
    for i, (picture, of_picture) in enumerate(zip(augment.drawable(x.numpy())[:4], maps)):
        axes[2 * i].imshow(picture)
        axes[2 * i + 1].imshow(of_picture, vmin=0, vmax=maps.max(), cmap=figures.FROM_BLACK)
    axes[8].imshow(0.5 + direction / (2 * np.abs(direction).max()))
    axes[8].set_xlabel('what makes\nit stronger', fontsize='x-small')
    axes[9].axis('off')


# ---- switched off -------------------------------------------------------------------------------

def effects_of(c, seen, values):
    """The rows of a table: what happens if units have other values, {(layer, unit): value}. Beside
    them: the same units at their means, as many others that a seed chooses, and of each other
    trained network with a loss the unit that tells their concept best, if it has such a unit. The
    concept is that of the first unit."""
    first = seen[0]
    l, unit = next(iter(values))
    concept = first.samples.names[first.scores[l - 1].concept[unit - 1]]
    means = {(l, unit): first.units[l - 1][..., unit - 1].float().mean().item()
             for l, unit in values}
    others = {}
    generator = np.random.default_rng(c.seed)
    for l, count in collections.Counter(l for l, _ in values).items():
        m = first.units[l - 1].size(2)
        left = [unit for unit in range(1, m + 1) if (l, unit) not in values]
        for unit in generator.permutation(left)[:count].tolist():
            others[l, unit] = c.to
    rows = [effect(first, 'these', values, concept),
            effect(first, 'at their means', means, concept)]
    if others:  # none are left if a whole layer is off
        rows.append(effect(first, 'others, at random', others, concept))

    for other in seen[1:]:
        with_concept = [row for row in rows_of_units(other) if row['concept'] == concept]
        if other.net.kind == 'trained' and has_loss(other.net) and with_concept:
            best = max(with_concept, key=lambda row: row['mcc'])
            place = best['layer'], best['atom']
            words = f'{other.net.label}, {best["layer"]}:{best["atom"]}'
            rows.append(effect(other, words, {place: c.to}, concept))
    return rows


def effect(seen, words, values, concept):
    """A row of a table: by how many nats the loss rises if units have other values, for the tokens
    or pictures with a concept and for those without it, which is nan if all pictures have it, such
    as a place. The samples are those of the second half,
    on which no concept was chosen. 'norm': how much the output of ISTA or of the MLP changes in the
    first of these layers, as a share of its norm."""
    net, samples = seen.net, seen.samples
    second = slice(len(samples.x) // 2, None)
    x, y = samples.x[second], samples.y[second]
    has = samples.has[second, :, samples.names.index(concept)]          # (n / 2, N)
    if y.dim() == 1:  # of pictures
        has = has.any(1)
    first_layer, _ = min(values)
    step = layers.step_at(net.model, first_layer, input_of(net, x[:64]))
    output = units.output_of(step)
    before = losses(net, x, y)
    with units.fixed(net.model, values):
        change = units.output_of(step) - output
        rise = losses(net, x, y) - before
    is_counted = y >= 0
    return {'off': words, 'concept': concept, 'norm': change.norm() / output.norm(),
            'loss': before[is_counted].mean(), 'rise with it': rise[has & is_counted].mean(),
            'rise without it': rise[~has & is_counted].mean()}


def losses(net, x, y):
    """The loss of each picture (n,), or of each token (n, N), which is 0 where y is -1."""
    of_batches = []
    for inputs, targets in zip(x.split(8), y.split(8)):
        logits = net.model(input_of(net, inputs))[0].cpu()
        logits = logits.movedim(-1, 1)                                  # of text (B, V, N)
        of_batches.append(F.cross_entropy(logits, targets, reduction='none', ignore_index=-1))
    return torch.cat(of_batches)


def say_answers(c, seen, values):
    """Print how likely a classifier finds each class, or how a network continues a text, with units
    as they are and with other values."""
    net = seen.net
    answers = []
    for words, changes in (('as it is', {}), ('changed', values)):
        with units.fixed(net.model, changes):
            if net.reads == 'text':
                prompt, _ = tokens_of(c, net, 16)
                ids = generate(net.model, prompt, 80, temperature=0)
                print(f'{words}: {net.tokenizer.decode(ids[0].tolist())!r}')
            else:
                logits = [net.model(input_of(net, x))[0] for x in seen.samples.x.split(64)]
                answers.append(torch.cat(logits).softmax(1).mean(0).tolist())
    if net.reads == 'images':
        names = [readable(name) for name in classes_of(net.run, net.model)]
        say_table(('mean probability of', 'as it is', 'changed'), zip(names, *answers))


def bars(net, rows):
    """A figure of what `effects_of` gives."""
    figure, axes = panels(10, 3.5, 2, sharey=True, sharex=True)
    for axis, words in zip(axes, ('with', 'without')):
        rises = [row[f'rise {words} it'].item() for row in rows]
        axis.barh([verbatim(row['off']) for row in rows], rises)
        axis.set(title=verbatim(f'rise {words} {rows[0]["concept"]}'), xlabel='nats')
    axes[0].invert_yaxis()
    figures.headline(figure, title_of([net]))
    return figure
