"""A network with trained weights, also with another head, another resolution, or shorter texts."""
import torch
import torch.nn.functional as F

from engine.checkpoint import weights_of
from engine.mistakes import Mistake
from engine.networks import config_class, config_from, grid, network_class
from engine.settings import show

# settings of a network that its weights do not show, but that they were trained with
FIXED_OF_NETWORK = ('n_head', 'decoder_n_head', 'causal', 'gelu', 'norm_pix_loss')


def load_model(run, new_head=False, **changes):
    """The network of a Run, in evaluation mode, with some settings changed. new_head: with a
    fresh classifier, and num_classes from the changes. image_size in the changes: positions are
    interpolated. Raises Mistake if a change does not fit the weights."""
    if run.headless and not new_head:
        raise Mistake('these are the weights of a masked autoencoder, which has no classifier yet: '
                      f'give --model={run.headless}, or train one: train.py --init_from=PATH '
                      f'--model={run.model}')
    Config = config_class(run.model)
    old = config_from(Config, run.network)
    new = config_from(Config, run.network | changes)
    check_fixed(old, new)

    Network = network_class(run.model)
    model = Network(new)
    weights = dict(run.weights)
    if new_head:
        weights.update(fresh_head(model))
    if has_other_positions(old, new):
        interpolate_positions(weights, grid(old), grid(new))
    if getattr(new, 'block_size', 0) < getattr(old, 'block_size', 0):  # texts are shorter now
        cut_positions(weights, weights_of(model), old.block_size, new.block_size)

    differences = []
    for name in changes:
        trained = getattr(old, name)
        now = getattr(new, name)
        is_of_head = new_head and name == 'num_classes'
        if trained != now and not is_of_head:
            differences.append(f'{name}={show(now)}, but the weights have {name}={show(trained)}')
    check_fits(weights, weights_of(model), differences)
    check_numbers(model, weights)
    model.load_state_dict(weights, strict=False)  # weights with two names are there once
    return model.eval()


def check_fixed(old, new):
    """Raises Mistake if a new config differs from the old one in a setting that must stay."""
    for name in FIXED_OF_NETWORK:
        if getattr(old, name, 0) != getattr(new, name, 0):
            raise Mistake(f'the network was trained with {name}={show(getattr(old, name))}; leave '
                          f'{name} out')


def fresh_head(model):
    """{name: tensor} of the classifier that a new network begins with."""
    head = {name: value for name, value in model.state_dict().items()
            if name.startswith('read.head.')}
    if not head:
        raise Mistake(f'{type(model).__name__} has no read.head to replace; docs/extend.md says '
                      'what new_head needs')
    return head


def has_other_positions(old, new):
    """Whether pictures have another size; 0 is that of a network that reads none."""
    old_size = getattr(old, 'image_size', 0)
    new_size = getattr(new, 'image_size', 0)
    return old_size != new_size and 0 not in (old_size, new_size)


def interpolate_positions(weights, old, new):
    """Make the positions among the weights, {name: tensor}, those of another grid. old, new: (rows,
    columns)."""
    for name in weights:  # also student.net.embed.pos, of the network inside DINO
        if name.endswith(('embed.pos', 'decoder_pos')):
            weights[name] = resize_positions(weights[name], old, new)


def resize_positions(pos, old, new):
    """Positions (1, N + 1, d), the class token's first, of an `old` grid (rows, columns) for a
    `new` one: bicubic, except for the class token's."""
    of_class_token = pos[:, :1]                             # (1, 1, d)
    # float32, because PyTorch does not interpolate float16, in which runs are shipped, on a CPU
    of_patches = pos[:, 1:].float().mT.unflatten(2, old)    # (1, d, rows, columns)
    of_patches = F.interpolate(of_patches, size=new, mode='bicubic', align_corners=False,
                               antialias=True)
    return torch.cat((of_class_token, of_patches.flatten(2).mT), 1)


def cut_positions(weights, wanted, old_length, new_length):
    """Keep the first new_length positions of each of the weights, {name: tensor}, that has
    old_length of them. wanted: the weights of the shorter network, such as embed.pos_emb.weight
    (new_length, d)."""
    for name, tensor in weights.items():
        if name not in wanted:
            continue
        for dim, lengths in enumerate(zip(tensor.shape, wanted[name].shape)):
            if lengths == (old_length, new_length):
                tensor = tensor.narrow(dim, 0, new_length)
        weights[name] = tensor


def misfits(weights, expected):
    """{name: what is wrong} for all names that one of the two, both {name: tensor}, lacks, or whose
    shapes differ. Missing ones come first."""
    wrong = {name: 'missing' for name in expected if name not in weights}
    for name, t in weights.items():
        if name not in expected:
            wrong[name] = 'unexpected'
        elif t.shape != expected[name].shape:
            wrong[name] = f'{tuple(t.shape)}, expected {tuple(expected[name].shape)}'
    return wrong


def check_fits(weights, wanted, differences):
    """Raises Mistake if weights, {name: tensor}, have other names or shapes than those wanted.
    differences: a line for each setting that is not the one that they were trained with."""
    wrong = misfits(weights, wanted)
    if not wrong:
        return
    if not differences:
        raise Mistake(f'the weights are not those of config.json of their run ({min(wrong)} '
                      'differs); get both again')
    raise Mistake(f'{"; ".join(differences)} ({min(wrong)} differs); leave out what differs')


def check_numbers(model, weights):
    """Raises Mistake if one of the weights, {name: tensor}, is NaN or infinite, or has integers
    where the model computes with floats. Buffers may be infinite, as some masks are."""
    parameters = dict(model.named_parameters())
    wanted = model.state_dict()
    for name, tensor in weights.items():
        if tensor.dtype.is_floating_point != wanted[name].dtype.is_floating_point:
            raise Mistake(f'the weights are of no use: {name} is of type {tensor.dtype}; get '
                          'others')
        is_infinite = name in parameters and tensor.isinf().any()
        if is_infinite or tensor.isnan().any():
            raise Mistake(f'the weights are of no use: {name} has numbers that are not finite; get '
                          'others')
