"""What a network says of pictures, in words and drawn: a classifier their likeliest classes, a
masked autoencoder patches that were hidden from it. sample.py --image shows it."""
import math
from dataclasses import dataclass

import torch

from engine import figures, plots
from engine.networks import grid
from engine.settings import Mistake
from engine.trained import check_labelled
from tasks import augment
from tasks.imagenet import readable
from tasks.pictures import labelled_pictures_of, seen

MOST_DRAWN = 60  # pictures in the grid, of which a reconstruction needs four
IN_A_ROW = 4


@dataclass
class Panel:
    """A picture in the grid: pixels (H, W, C), the words above it, and those below it with their
    colour."""
    pixels: torch.Tensor
    above: str
    below: str = ''
    colour: str = 'black'


def likeliest(logits):
    """The five most likely indices of logits (V,): a list of (index, probability)."""
    probabilities = logits.float().softmax(0)
    best = probabilities.topk(min(5, len(logits)))
    return list(zip(best.indices.tolist(), best.values.tolist()))


def look_at_pictures(c, run, model):
    """Print what the network makes of each picture that --image names, and draw the first ones. A
    classifier draws only if --out says where. c: sample.py's SampleConfig."""
    reconstructs = model.config.task == 'masked_image'
    out = c.out
    if reconstructs and not out:
        out = 'reconstruction.png'
    if not c.image:
        raise Mistake('this network looks at pictures: give --image=PATH of a picture, a folder or '
                      'a prepared dataset')
    if out:
        # the file that nobody named is replaced
        figures.check_free(out, c.overwrite or not c.out)

    channels = getattr(model.config, 'channels', 3)  # a network of one's own may have no such field
    panels = []
    for name, picture, label in labelled_pictures_of(c.image, c.num_samples, c.seed, channels):
        x = seen(picture, model, run)                       # (1, C, H, W)
        if reconstructs:
            words, new_panels = reconstruct(x, model)
        else:
            words, new_panels = classify(x, name, label, run, model)
        print(f'{name}: {words}')
        if len(panels) < MOST_DRAWN:
            panels.extend(new_panels)
    if out:
        draw(out, panels)


def classify(x, name, label, run, model):
    """The likeliest classes of a picture, pixels x (1, C, H, W): in words, and a list of one Panel.
    label: its class, if it is known."""
    check_labelled(run)
    classes = run['data']['classes']
    if not classes:  # the weights of others come without names
        classes = [f'class {i}' for i in range(model.config.num_classes)]
    logits = model(x)[0]                                    # (1, num_classes)
    best = [(readable(classes[i]), p) for i, p in likeliest(logits[0])]

    title = readable(label) if label in classes else name
    below = '\n'.join(f'{class_name:.22} {p:.0%}' for class_name, p in best[:3])
    is_right = title == best[0][0]
    blue = 'C0'
    panel = Panel(augment.visible(x)[0], title, below, blue if is_right else 'black')
    words = ', '.join(f'{class_name} {p:.1%}' for class_name, p in best)
    return words, [panel]


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


def draw(out, panels):
    """Write a grid of Panels, four in a row."""
    across = min(IN_A_ROW, len(panels))
    down = math.ceil(len(panels) / IN_A_ROW)
    figure = plots.pyplot().figure(figsize=(2.1 * across, 2.8 * down), layout='constrained')
    for number, panel in enumerate(panels, 1):
        axis = figure.add_subplot(down, across, number, xticks=[], yticks=[])
        axis.imshow(panel.pixels)
        axis.set_title(f'{panel.above:.22}', fontsize=9)
        axis.set_xlabel(panel.below, fontsize=9, color=panel.colour)
    plots.save_picture(out, figure)
    print(out)
