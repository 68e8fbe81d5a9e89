"""What a network says of pictures, for sample.py --image. A classifier names the likeliest classes,
a masked autoencoder fills in patches that were hidden from it, and both have features. The result
is printed, drawn, or written to a file."""
import math
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from analysis import figures
from engine import plots
from engine.mistakes import Mistake
from engine.networks import grid
from engine.tables import write_table
from engine.writing import write_file
from tasks import augment
from tasks.dataset import check_labelled
from tasks.imagenet import readable
from tasks.pictures import labelled_pictures_of, seen, sight
from weights.runs import title_of

MOST_DRAWN = 60  # pictures in the grid, of which a reconstruction needs four
IN_A_ROW = 4
RIGHT, WRONG = 'C0', 'C1'  # blue and orange: the colours of guesses
ENDINGS = (*figures.PICTURES, '.csv', '.npy')  # of --out: drawings, guesses, features


@dataclass
class Panel:
    """A picture in the grid: pixels (H, W, C), the words above it, and those below it with their
    colour."""
    pixels: np.ndarray
    above: str
    below: str = ''
    colour: str = 'black'


def likeliest(probabilities):
    """The five most likely indices of probabilities (V,): a list of (index, probability)."""
    best = probabilities.topk(min(5, len(probabilities)))
    return list(zip(best.indices.tolist(), best.values.tolist()))


def look_at_pictures(c, run, model):
    """Print what the network makes of each picture that --image names, and write it to --out: a
    drawing of the first ones, a table of guesses (.csv), or features (.npy). Without --out a
    classifier writes nothing. c: sample.py's SampleConfig."""
    out = c.out
    if model.config.task == 'masked_image' and not out:
        out = 'reconstruction.png'
    if not c.image:
        raise Mistake('this network looks at pictures: give --image=PATH of a picture, a folder or '
                      'a prepared dataset')
    if out:
        # the file that nobody named is replaced
        figures.check_free(out, c.overwrite or not c.out, endings=ENDINGS)
        if Path(out).suffix.lower() in figures.PICTURES:
            import matplotlib  # noqa: F401  (now, in case it is not installed)

    channels = getattr(model.config, 'channels', 3)  # a network of one's own may have no such field
    pictures = labelled_pictures_of(c.image, c.num_samples, c.seed, channels)
    words = sight(c.image, model, run)
    ending = Path(out).suffix.lower()
    if ending == '.npy':
        write_features(out, pictures, run, model)
    elif ending == '.csv':
        write_guesses(out, pictures, run, model)
    else:
        title = title_of(c.ckpt, run)
        if words:
            title += '\n' + words.replace('; ', '\n')
        show_pictures(out, pictures, run, model, title)
    if words:
        print(f'({words})', file=sys.stderr)


def show_pictures(out, pictures, run, model, title):
    """Print what the network makes of each of the pictures, an iterable of (name, pixels, class or
    None), and draw the first ones in the file `out`, or none if it is empty. title: what stands
    above the drawing."""
    panels = []
    for name, picture, label in pictures:
        x = seen(picture, model, run)                       # (1, C, H, W)
        if model.config.task == 'masked_image':
            words, new_panels = reconstruct(x, model)
        else:
            words, new_panels = classify(x, name, label, run, model)
        print(f'{name}: {words}')
        if len(panels) < MOST_DRAWN:
            panels.extend(new_panels)
    if out:
        draw(out, panels, title)


# ---- tables -------------------------------------------------------------------------------------

def write_features(out, pictures, run, model):
    """Write the features of pictures, float32 (n, d), to a .npy file, and print the name of each
    picture: line i is that of row i. pictures: as of `show_pictures`. Raises Mistake for a network
    without a method `features`."""
    if not hasattr(model, 'features'):
        raise Mistake(f'{out} needs {type(model).__name__}.features(x); see docs/extend.md')
    rows = []
    for name, picture, _ in pictures:
        x = seen(picture, model, run)                       # (1, C, H, W)
        features = model.features(x)                        # (1, d)
        rows.append(features.float().cpu())
        print(name)
    table = torch.cat(rows).numpy()                         # (n, d)
    write_file(out, lambda f: np.save(f, table), 'wb')
    print(out)


def write_guesses(out, pictures, run, model):
    """Write a .csv file with a row for each picture: its name, its class if it is known, the
    likeliest class, and the probability of each class. Print the same as without a file. pictures:
    as of `show_pictures`. Raises Mistake for a network that names no classes."""
    if model.config.task != 'image':
        raise Mistake(f'{out} is for the guesses of a classifier; this network has features: '
                      'give --out=features.npy')
    classes = classes_of(run, model)
    columns = ['picture', 'class', 'guess']
    for class_name in classes:
        columns.append(f'probability_{readable(class_name)}')
    rows = [columns]
    for name, picture, label in pictures:
        probabilities = probabilities_of(seen(picture, model, run), run, model)
        guesses = guesses_of(probabilities, classes)
        best_guess, _ = guesses[0]
        numbers = [f'{p:.6g}' for p in probabilities.tolist()]
        rows.append([name, readable(label or ''), best_guess, *numbers])
        print(f'{name}: {in_words(guesses)}')
    write_table(out, rows)
    print(out)


# ---- one picture --------------------------------------------------------------------------------

def probabilities_of(x, run, model):
    """How probable each class is for a picture, pixels x (1, C, H, W): float32 (num_classes,).
    Raises Mistake if the network was trained without labels."""
    check_labelled(run)
    logits = model(x)[0]                                    # (1, num_classes)
    return logits[0].float().softmax(0)                     # (num_classes,)


def guesses_of(probabilities, classes):
    """The five likeliest classes, of probabilities (num_classes,): a list of (name,
    probability)."""
    return [(readable(classes[i]), p) for i, p in likeliest(probabilities)]


def classes_of(run, model):
    """The names of the classes that a network knows. The weights of others come without names."""
    return run.data.get('classes') or [f'class {i}' for i in range(model.config.num_classes)]


def in_words(guesses):
    return ', '.join(f'{class_name} {p:.1%}' for class_name, p in guesses)


def classify(x, name, label, run, model):
    """The likeliest classes of a picture, pixels x (1, C, H, W): in words, and a list of one Panel.
    label: its class, if it is known."""
    classes = classes_of(run, model)
    best = guesses_of(probabilities_of(x, run, model), classes)
    title = name
    colour = 'black'  # nobody knows what is right
    if label in classes:
        title = readable(label)
        colour = RIGHT if title == best[0][0] else WRONG
    below = '\n'.join(f'{class_name:.22} {p:.0%}' for class_name, p in best[:3])
    return in_words(best), [Panel(augment.visible(x)[0], title, below, colour)]


def reconstruct(x, model):
    """The error at the hidden patches of a picture, pixels x (1, C, H, W): in words, and four
    Panels: the picture, its visible patches, the reconstruction, and the visible patches with the
    hidden ones as reconstructed."""
    rows, columns = grid(model.config)
    noise = torch.rand(1, rows * columns).to(x.device)      # decides which patches are hidden
    rebuilt = model.reconstruct(x, noise).float()           # (1, C, H, W)
    hidden = model.hide(noise).view(rows, columns)
    one_patch = x.new_ones(model.config.patch_size)         # ones (h, w)
    hidden = torch.kron(hidden, one_patch).bool()           # of each pixel: (H, W)
    error = (rebuilt - x)[hidden.expand_as(x)].square().mean()

    masked = x.masked_fill(hidden, 0.0)
    pasted = torch.where(hidden, rebuilt, x)
    pictures = augment.visible(torch.cat((x, masked, rebuilt, pasted)))
    titles = ('original', f'{hidden.float().mean():.0%} masked', 'reconstruction', 'pasted')
    panels = [Panel(pixels, title) for pixels, title in zip(pictures, titles)]
    words = f'squared error of the masked patches {error:.4f}'
    if model.config.norm_pix_loss:
        words += ' (true patch statistics undo norm_pix_loss)'
    return words, panels


@plots.house_style()
def draw(out, panels, title):
    """Write a grid of Panels, four in a row, under a title."""
    across = min(IN_A_ROW, len(panels))
    down = math.ceil(len(panels) / IN_A_ROW)
    height = 2.75  # of a row, in inches
    if any(panel.below for panel in panels):
        height += 0.75
    figure = plots.empty_figure(2.4 * across, height * down + 0.6, 'compressed')
    for number, panel in enumerate(panels, 1):
        axis = figure.add_subplot(down, across, number, xticks=[], yticks=[])
        axis.imshow(panel.pixels)
        axis.set_title(plots.verbatim(f'{panel.above:.22}'), fontsize='small')
        axis.set_xlabel(plots.verbatim(panel.below), fontsize='small', color=panel.colour)
    if {panel.colour for panel in panels} & {RIGHT, WRONG}:
        title += '\nguesses in blue are right, those in orange wrong'
    figures.headline(figure, title)
    plots.save_picture(out, figure)
    print(out)
