"""What the experiments of the lessons need besides your functions: data, first weights, figures.

    python course/lesson4.py    # each lesson's file runs its experiment, with the functions in it
"""
import sys
import time
import traceback
from pathlib import Path

import torch
from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from analysis import figures, layers  # from the project, which is above
from analysis.measures import noisy_mixture
from engine import networks
from engine.checkpoint import validations_of
from engine.mistakes import Mistake, one_line_errors
from engine.plots import COLOURS, empty_figure, house_style, save_picture, whole_numbers
from prepare.lib.inputs import Help, Parser
from tasks import augment, find_data, pictures
from tasks.masks import Masks
from tasks.text import TextSplit
from weights.runs import open_run
from weights.surgery import load_model

torch.manual_seed(1)  # so that a lesson's numbers can be had again
# The networks here are tiny. Beside another program a second thread mostly waits for the first.
torch.set_num_threads(1)


def run(main, doc):
    """The file of a lesson as a user starts it. With --help it prints doc, its docstring. Else
    main() is its experiment. Raises Mistake for a function that is still a gap."""
    with one_line_errors():
        Parser(description=doc, formatter_class=Help).parse_args()
        try:
            main()
        except NotImplementedError as e:
            if e.args:  # a library has raised it
                raise
            *_, gap = traceback.extract_tb(e.__traceback__)
            raise Mistake(f'{gap.name} of {Path(gap.filename).name} is a gap: fill it in') from None


# ---- data ---------------------------------------------------------------------------------------

def mixture(K, p, N, d, delta):
    """N tokens of length 1 around K orthogonal subspaces of dimension p, with noise of size delta.

    Returns the tokens Z (N, d), sorted by subspace, and the bases U (K, d, p), float64.
    """
    Z, U = noisy_mixture(K, p, N // K, d, delta)
    return torch.nn.functional.normalize(Z.flatten(0, 1), dim=-1), U


def images_of(split):
    """Drawn shapes, as they are stored. They are drawn where they are missing."""
    return pictures.ImageSplit(find_data('shapes', ROOT / 'data'), split)


def shapes(split):
    """Drawn shapes: pictures as networks see them, float32 (n, 3, 32, 32), of a mean near 0 and a
    standard deviation near 1; and their classes, int64 (n,)."""
    images = images_of(split)
    pixels = augment.planes(torch.tensor(images.pixels))
    return augment.normalize(pixels), torch.tensor(images.labels)


def masks(split):
    """Which pixels of the drawn shapes belong to the shape: bool (n, 32, 32)."""
    return torch.tensor(Masks(images_of(split)).stored)


def text_batches(split, steps):
    """The source code of Python, byte by byte: `steps` batches of x and y, both int64 (32, 64).
    y[i] is the byte that follows x[i]."""
    text = TextSplit(find_data('stdlib', ROOT / 'data'), split, 64)
    return list(text.batches(32, 1, [slice(32)], 0, steps))


# ---- networks -----------------------------------------------------------------------------------

def new(model, **settings):
    """A new network. model='crate' means that of model_crate.py."""
    Network = networks.network_class(model)
    Config = networks.config_class(model)
    return Network(Config(**settings))


def weights_of(model):
    """The weights of a network: a dict of tensors with the names of the lessons. The kernel of a
    convolution becomes the matrix of a patch, in the order row, column, channel."""
    weights = model.state_dict()
    for name, weight in weights.items():
        if weight.dim() == 4:                                           # (d, C, h, w)
            weights[name] = weight.permute(0, 2, 3, 1).flatten(1)       # (d, h w C)
    return weights


def first_weights(model, **settings):
    """The weights of a new network, as weights_of returns them."""
    return weights_of(new(model, **settings))


def trained_crate():
    """A CRATE that was trained on drawn shapes, and came with the project. Returns its weights, as
    weights_of does, and its config."""
    model = load_model(open_run(str(ROOT / 'trained' / 'crate_shapes')))
    return weights_of(model), model.config


def progress(batches, steps):
    """The same batches, of which a bar on the screen shows how many were taken."""
    return tqdm(batches, total=steps, disable=None, leave=False)


def cost(model, x, y):
    """What a batch costs. Returns the milliseconds of a step, forward and backward, the median of
    11; and the MB that the forward pass keeps for the backward pass, weights included."""
    bytes_of_storage = {}                       # a tensor may be kept twice, and views share memory

    def remember(tensor):
        storage = tensor.untyped_storage()
        bytes_of_storage[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(remember, lambda tensor: tensor):
        model(x, y)
    milliseconds = []
    for _ in range(11):
        start = time.perf_counter()
        _, loss = model(x, y)
        loss.backward()
        milliseconds.append(1000 * (time.perf_counter() - start))
    return sorted(milliseconds)[5], sum(bytes_of_storage.values()) / 1e6


# ---- runs ---------------------------------------------------------------------------------------

def runs_of(name):
    """The run directories out/NAME_1, out/NAME_2 and so on that are there."""
    return [str(path.parent) for path in sorted(Path('out').glob(f'{name}_*/config.json'))]


def last_losses(name):
    """{seed: the last validation loss, in nats} of the runs out/NAME_1, out/NAME_2 and so on."""
    losses = {}
    for run in runs_of(name):
        rows = validations_of(run)
        if rows:
            losses[run.rpartition('_')[2]] = rows[-1]['loss']
    return losses


def class_maps(run, x):
    """Where the class token looks in the last layer but one, for pictures x (n, 3, H, W): attention
    over the N patches, of the network of a run directory and of the same network with random
    weights. Returns {'trained': (n, K, N), 'random weights': (n, K, N)}."""
    model = load_model(open_run(run))
    untrained = type(model)(model.config).eval()
    return {'trained': class_maps_of(model, x), 'random weights': class_maps_of(untrained, x)}


@torch.no_grad()
def class_maps_of(network, x):
    """class_maps of one network, (n, K, N)."""
    last_but_one = len(network.layers) - 1  # at_layer counts from 1
    attention, normed = layers.at_layer(network, last_but_one, x)
    return layers.class_maps(attention, normed)


# ---- figures ------------------------------------------------------------------------------------

def smooth(losses):
    """For each of losses (n,) the mean of up to 10 of them: itself and those before."""
    return [losses[max(0, i - 9):i + 1].mean() for i in range(len(losses))]


@house_style()
def draw(path, x, y, curves, **axes):
    """Write a figure of curves: {name: list of numbers, or (places, numbers)}.

    x, y: the names of the axes. Each curve has a colour and dashes of its own, so that one sees
    curves that lie on each other.
    """
    figure = empty_figure(6, 4)
    axis = figure.subplots()
    for number, (name, values) in enumerate(curves.items()):
        if isinstance(values, tuple):
            places, values = values
        else:
            places = range(len(values))
        axis.plot(places, [float(value) for value in values], linestyle=figures.DASHES[number],
                  color=COLOURS[number], label=name)
    axis.set(xlabel=x, ylabel=y, **axes)
    if x.startswith('step') and axis.get_xscale() == 'linear':
        axis.xaxis.set_major_locator(whole_numbers())
    figures.legend_below(figure, [axis])
    save_picture(path, figure)
    print(f'  {path}')


@house_style()
def draw_pictures(path, rows):
    """Write a figure of pictures: {name of a row: float (n, 3, H, W), as `shapes` gives them}."""
    across = max(len(images) for images in rows.values())
    figure = empty_figure(6.4, 4.8)
    draw_rows(figure.subplots(len(rows), across, squeeze=False), rows)
    save_picture(path, figure)
    print(f'  {path}')


def draw_rows(axes, rows):
    """Draw pictures, as draw_pictures gets them, into the axes of a figure."""
    for line, (name, images) in zip(axes, rows.items()):
        for axis, image in zip(line, augment.visible(images.detach())):
            axis.imshow(image)
            axis.set(xticks=[], yticks=[])
        line[0].set_ylabel(name)
