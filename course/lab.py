"""What the experiments of the lessons need besides your functions: data, first weights, figures.

    python course/lesson4.py        # each lesson's file runs its experiment, with the functions in it
"""
import sys
import time
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from analysis import layers  # noqa: E402  (from the project, which is above)
from analysis.measures import noisy_mixture  # noqa: E402
from engine import figures, networks, trained  # noqa: E402
from engine.checkpoint import read_log  # noqa: E402
from engine.plots import pyplot  # noqa: E402
from tasks import augment, find_data, pictures  # noqa: E402
from tasks.masks import Masks  # noqa: E402
from tasks.text import TextSplit  # noqa: E402

torch.manual_seed(1)  # so that a lesson's numbers can be had again


def mixture(K, p, N, d, delta):
    """N tokens of length 1 around K orthogonal subspaces of dimension p, with noise of size delta, sorted by subspace:
    Z (N, d) and the bases U (K, d, p), float64."""
    Z, U = noisy_mixture(K, p, N // K, d, delta)
    return torch.nn.functional.normalize(Z.flatten(0, 1), dim=-1), U


def find(dataset):
    return find_data(dataset, ROOT / 'data')


def shapes(split):
    """Drawn shapes: pictures, float32 (n, 3, 32, 32), of mean 0 and deviation 1; their classes, int64 (n,)."""
    images = pictures.ImageSplit(find('shapes'), split)
    return augment.normalize(augment.planes(torch.tensor(images.pixels))), torch.tensor(images.labels)


def text_batches(split, steps):
    """The source code of Python, byte by byte: `steps` batches of x and y, int64 (32, 64); y is one byte ahead."""
    return list(TextSplit(find('stdlib'), split, 64).batches(32, 1, [slice(32)], 0, steps))


def new(model, **settings):
    """A new network (model='crate': of model_crate.py)."""
    Network, Config = networks.network(model)
    return Network(Config(**settings))


def first_weights(model, **settings):
    """The weights that a new network has, as a dict of tensors with the names of the lessons. The kernel of a
    convolution becomes the matrix of a patch, in the order row, column, channel."""
    weights = new(model, **settings).state_dict()
    return {k: v.permute(0, 2, 3, 1).flatten(1) if v.dim() == 4 else v for k, v in weights.items()}


def masks(split):
    """Which pixels of the drawn shapes belong to the shape: bool (n, 32, 32)."""
    return torch.tensor(Masks(pictures.ImageSplit(find('shapes'), split)).stored)


def runs_of(name):
    """The run directories out/NAME_1, out/NAME_2 and so on that are there."""
    return [str(path.parent) for path in sorted(Path('out').glob(f'{name}_*/config.json'))]


def class_maps(run, x):
    """Where the class token looks in the last layer but one, for the network of a run directory and for the same
    network with random weights: {name: (n, K, N)}, attention over the N patches of each of pictures x (n, 3, H, W)."""
    model, found = trained.load_model(trained.open_run(run)), {}
    for name, net in (('trained', model), ('random weights', type(model)(model.config).eval())):
        with torch.no_grad():
            found[name] = layers.class_maps(*layers.at_layer(net, len(net.layers) - 1, x))
    return found


def last_losses(name):
    """{seed: the last validation loss, in nats} of the runs out/NAME_1, out/NAME_2 and so on that are there."""
    return {run.rpartition('_')[2]: [row['loss'] for row in read_log(run) if row['split'] == 'val'][-1]
            for run in runs_of(name)}


def cost(model, x, y):
    """What a batch costs: the milliseconds of a step, forward and backward, the median of 10; and the MB that the
    forward pass keeps for the backward pass."""
    kept, ms = {}, []

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        _, loss = model(x, y)
    for _ in range(10):
        start = time.perf_counter()
        model(x, y)[1].backward()
        ms.append(1000 * (time.perf_counter() - start))
    return sorted(ms)[5], sum(kept.values()) / 1e6


def smooth(losses):
    """The mean of 10 losses at each step, its own and those before, of losses (n,)."""
    return [losses[max(0, i - 9):i + 1].mean() for i in range(len(losses))]


def draw(path, x, y, curves, **axes):
    """Write a figure of curves, {name: list of numbers, or (where, numbers)}."""
    plt = pyplot()
    figure, axis = plt.subplots(figsize=(6, 4), layout='constrained')
    for name, values in curves.items():
        where, values = values if isinstance(values, tuple) else (range(len(values)), values)
        axis.plot(where, [float(v) for v in values], label=name)
    axis.set(xlabel=x, ylabel=y, **axes)
    figures.plain_numbers(axis)
    axis.legend()
    figure.savefig(path)
    print(f'  {path}')


def draw_pictures(path, rows):
    """Write a figure of pictures: {name of a row: float (n, 3, H, W), as `shapes` gives them}."""
    plt = pyplot()
    figure, axes = plt.subplots(len(rows), len(next(iter(rows.values()))), squeeze=False, layout='constrained')
    for line, (name, images) in zip(axes, rows.items()):
        for axis, image in zip(line, augment.visible(images.detach())):
            axis.imshow(image)
            axis.set(xticks=[], yticks=[])
        line[0].set_ylabel(name)
    figure.savefig(path)
    print(f'  {path}')
