"""The inputs for lesson 8, your own network, and what must hold for any network."""
import math
import sys
from dataclasses import replace

import torch
from grade import HERE, SEEDS, Exercise, loaded, normal, number
from torch import nn
from torch.nn import functional as F

ANSWERS = loaded(HERE / 'answers' / 'lesson8.py', 'answers8')
SIZES = (
    dict(n_layer=3, n_head=2, n_embd=8, patch_size=(2, 4), image_size=(6, 12), channels=3,
         num_classes=5),
    dict(n_layer=3, n_head=3, n_embd=12, patch_size=(2, 2), image_size=(6, 4), channels=1,
         num_classes=7),
    dict(n_layer=1, n_head=1, n_embd=6, patch_size=3, image_size=6, channels=2, num_classes=3),
)


# ---- a network: what must hold for any ----------------------------------------------------------

class Broken(Exception):
    """A property that does not hold. Its arguments say it in words, and name the mistake or ''."""


def need(holds, message, diagnosis=''):
    if not holds:
        raise Broken(message, diagnosis)


def judge_network(Network):
    """The verdict of a student's Network: the properties of docs/extend.md must hold in three
    sizes, with weights drawn at random. It is made with the Config of its file, or with ours if
    this has none."""
    Config = getattr(sys.modules.get(Network.__module__), 'Config', ANSWERS.Config)
    for seed, sizes in zip(SEEDS, SIZES):
        config = Config(**sizes)
        torch.manual_seed(seed)
        try:
            question = check_network(Network, config, seed)
        except Broken as e:
            message, diagnosis = e.args
            return {'verdict': 'wrong', 'message': f'seed {seed}: {message}; with {config}',
                    'diagnosis': diagnosis}
        except Exception as e:
            e.args = (f'{e}; with {config}',)
            raise
    return {'verdict': 'right', 'message': f'for {len(SEEDS)} sizes{question}'}


def check_network(Network, config, seed):
    """Raises Broken for the first property that does not hold. If all hold, it returns a question
    about what may be a mistake all the same, or ''."""
    model = Network(config)
    need(isinstance(model, nn.Module),
         f'makes a {type(model).__name__}, and should be a torch.nn.Module')
    generator = torch.Generator().manual_seed(seed)
    for weight in model.parameters():  # none is zero, which could hide a mistake
        weight.data += 0.3 * torch.randn(weight.shape, generator=generator)

    H, W = ANSWERS.sides(config.image_size)
    h, w = ANSWERS.sides(config.patch_size)
    B = 4
    N = (H // h) * (W // w)
    x = torch.randn(B, config.channels, H, W, generator=generator)
    y = torch.randint(config.num_classes, (B,), generator=generator)

    need(getattr(model, 'config', None) is config,
         'model.config is not the config that it was made with',
         'a network that does not keep its config')
    check_output(model, x, config)
    check_loss(model, x, y)
    check_tokens_and_layers(model, x, N, config)
    deeper = Network(replace(config, n_layer=config.n_layer + 1))
    need(parameter_count(deeper) > parameter_count(model),
         'a network of one layer more has as many parameters',
         'one layer that is used again and again')
    model.eval()
    check_evaluation(model, x)
    return check_gradients(model, x.requires_grad_())


def check_output(model, x, config):
    """What model(x) returns."""
    results = model(x)
    need(isinstance(results, (tuple, list)) and len(results) == 2,
         'model(x) does not return (out, loss)', 'an output without a loss beside it')
    out, loss = results
    need(loss is None, 'model(x) returns a loss, although it gets no classes',
         'loss and out exchanged: out comes first' if out is None else '')

    expected = len(x), config.num_classes
    shape = tuple(getattr(out, 'shape', ()))
    name = 'an output for each token, not for each picture' if len(shape) == 3 else ''
    need(isinstance(out, torch.Tensor) and shape == expected,
         f'out has the shape {shape}, expected {expected}', name)
    need(not out.isnan().any(), 'out has NaN')
    sums_to_1 = (out.sum(1) - 1).abs().max() <= 1e-4
    need((out < 0).any() or not sums_to_1, 'the numbers of out are positive and sum to 1',
         'probabilities in place of logits')


def check_loss(model, x, y):
    """The loss that model(x, y) returns, and its gradient."""
    torch.manual_seed(0)  # for dropout
    out, loss = model(x, y)
    need(isinstance(loss, torch.Tensor),
         f'model(x, y) returns a {type(loss).__name__} as its loss')
    need(loss.dim() == 0, f'the loss has the shape {tuple(loss.shape)}, expected ()',
         'a loss for each picture, not their mean')

    expected = F.cross_entropy(out, y)
    mistakes = {
        'a loss that is the sum over the batch, not the mean': len(y) * expected,
        'a loss of softmax(out): cross_entropy has its own softmax':
            F.cross_entropy(out.softmax(1), y),
        'a loss in bits: nats have the natural logarithm': expected / math.log(2),
        'a loss with label smoothing': F.cross_entropy(out, y, label_smoothing=0.1),
        'nll_loss of out, which needs logarithms of probabilities: take cross_entropy':
            F.nll_loss(out, y),
    }
    diagnosis = ''
    for name, value in mistakes.items():
        if (loss - value).abs() < 1e-4 * value.abs():
            diagnosis = name
    need((loss - expected).abs() < 1e-4 * expected,
         f'the loss is {number(loss.item())}, and the mean cross-entropy of out and y is '
         f'{number(expected.item())}', diagnosis)

    need(loss.requires_grad, 'the loss has no gradient',
         'a loss that was cut off: .item(), .detach() or no_grad')
    loss.backward()
    not_reached = []
    for name, weight in model.named_parameters():
        if weight.requires_grad and weight.grad is None:
            not_reached.append(name)
    names = ', '.join(not_reached[:3])
    if len(not_reached) > 3:
        names += ', ..'
    need(not not_reached, f'the gradient of the loss does not reach {names}',
         'parameters that the loss does not reach')


def check_tokens_and_layers(model, x, N, config):
    """model.embed and model.layers. N is the number of patches of a picture."""
    need(callable(getattr(model, 'embed', None)), 'there is no model.embed')
    z = model.embed(x)
    expected = len(x), N, config.n_embd
    shape = tuple(z.shape)
    name = 'tokens as columns, (B, d, N)' if shape[:2] == (len(x), config.n_embd) else ''
    is_right = (len(shape) == 3 and shape[0] == len(x) and shape[1] >= N
                and shape[2] == config.n_embd)
    need(is_right,
         f'model.embed(x) has the shape {shape}, expected {expected}, or more tokens', name)

    layers = getattr(model, 'layers', None)
    need(hasattr(layers, '__len__'), 'there is no model.layers, or it has no length')
    need(isinstance(layers, nn.Module),
         f'model.layers is a {type(layers).__name__}, so its weights are not among the parameters '
         'of the network: use nn.Sequential or nn.ModuleList',
         'layers in a plain list, which nobody trains')
    need(len(layers) == config.n_layer, f'{len(layers)} layers, expected n_layer={config.n_layer}')
    for layer in layers:
        after = layer(z)
        need(after.shape == z.shape,
             f'a layer turns {tuple(z.shape)} into {tuple(after.shape)}')
        z = after


def check_evaluation(model, x):
    """After model.eval() a picture has one output, whenever and with whatever others it comes."""
    before = x.clone()
    with torch.no_grad():
        out = model(x)[0]
        out_again = model(x)[0]
        out_alone = torch.cat([model(picture[None])[0] for picture in x])
    tolerance = 1e-4 * out.abs().max().clamp_min(1)
    need(torch.equal(x, before), 'changes the pictures that it is given',
         'a network that changes its input')
    need((out - out_again).abs().max() < tolerance,
         'after model.eval() it gives different numbers when it is called again',
         'dropout that does not ask self.training')
    need((out - out_alone).abs().max() < tolerance,
         'a picture alone gives other numbers than in a batch (after model.eval())',
         'pictures of a batch that see each other')


def check_gradients(model, x):
    """All numbers of the pictures x must count in the output. Returns a question if the first and
    the last number of a token come from different pixels."""
    unseen = unseen_by(model(x)[0].square().sum(), x)
    diagnosis = ''
    first = ''
    if unseen:
        first = unseen[0]
        diagnosis = ('an output that some tokens do not reach: attention along another axis, '
                     'or a causal mask')
        if unseen_by(model.embed(x).square().sum(), x):
            diagnosis = 'patches with gaps between them'
    need(not unseen, f'no output depends on {len(unseen)} of the {x[0].numel()} numbers of a '
         f'picture, first on channel, row, column {first}', diagnosis)

    token = model.embed(x)[0, -1]
    slopes = []
    for i in (0, -1):
        slope, = torch.autograd.grad(token[i], x, retain_graph=True, allow_unused=True)
        slopes.append(slope)
    if any(slope is None for slope in slopes):
        return ''
    if torch.equal(slopes[0] != 0, slopes[1] != 0):
        return ''
    return ('; the numbers of a token come from different pixels: does embed reshape where it '
            'should transpose?')


def unseen_by(value, x):
    """The places (channel, row, column) of pictures x on which a value does not depend."""
    slope, = torch.autograd.grad(value, x)
    unseen = (slope.abs().amax(0) == 0).nonzero()
    return [tuple(place) for place in unseen.tolist()]


def parameter_count(model):
    return sum(weight.numel() for weight in model.parameters())


# ---- inputs -------------------------------------------------------------------------------------

def layer_sizes(seed):
    """(network, n_layer, d)"""
    return (
        ('crate', 3, 10),
        ('vit', 2, 7),
        ('crate', 5, 3),
    )[seed - 1]


def budgets(seed):
    """(network, n_layer, budget, heads). With the last one two widths are equally near."""
    return (
        ('vit', 2, 10_600, 4),
        ('crate', 4, 5_300, 3),
        ('crate', 1, 45, 2),
    )[seed - 1]


def nearest_for_other_budgets(width_for):
    """'' if width_for is right where a formula without biases and norms rounds down too far."""
    for network, width in (('crate', 24), ('vit', 12)):
        yours = width_for(network, 3, 5_000, 4)
        if yours != width:
            return (f'with {network}, 3 layers, a budget of 5000 and 4 heads the width is {yours}, '
                    f'and should be {width}')
    return ''


def token_sizes(seed):
    """(network, d, N)"""
    return (
        ('crate', 10, 7),
        ('vit', 6, 11),
        ('crate', 4, 3),
    )[seed - 1]


def tuned_losses(seed):
    """(losses (n,), tries)"""
    n, tries = ((5, 2), (6, 3), (4, 3))[seed - 1]
    return normal(seed)(n) + seed, tries


def runs(seed):
    """(ours {seed: loss}, theirs {seed: loss}, least). The seeds are in another order in each, and
    each lacks one of the other's. The gains have the standard error 1/2."""
    n = (4, 5, 3)[seed - 1]
    mean_gain = (1.8, -6.0, 0.8)[seed - 1]
    least = (2.0, 0.4, 0.2)[seed - 1]
    randn = normal(seed)
    losses = 2 * randn(n)
    gains = randn(n)
    gains = (gains - gains.mean()) / gains.std() * math.sqrt(n) / 2 + mean_gain

    ours = dict(enumerate(losses.tolist()))
    ours[17] = 9.0
    theirs = dict(enumerate((losses + gains).tolist()))
    theirs[18] = -9.0
    return ours, dict(sorted(theirs.items(), reverse=True)), least


def decides_when_it_can(verdict):
    """'' if the third result of verdict is right in four more cases, else what it should be."""
    for n in (1, 2):
        ours = {seed: 1.0 + 0.01 * seed for seed in (*range(n), 7, 8)}
        theirs = {seed: 2.0 + 0.02 * seed for seed in range(n)}
        if verdict(ours, theirs, 0.1)[2] != 0:
            seeds = 'seed' if n == 1 else 'seeds'
            return f'{n} common {seeds} should not be enough for a verdict'

    ours = {0: 1.0, 1: 1.0, 2: 1.0}
    if verdict(ours, {0: 0.9, 1: 1.0, 2: 1.1}, 0.5)[2] != 0:
        return 'with gains of -0.1, 0 and 0.1 and least 0.5 the verdict should be 0'
    if verdict(ours, {0: 2.0, 1: 2.1, 2: 2.2}, 0.5)[2] != 1:
        return 'with gains of 1.0, 1.1 and 1.2 and least 0.5 the verdict should be 1'
    return ''


EXERCISES = [
    Exercise('Network', None, judge=judge_network),
    Exercise('parameters', layer_sizes),
    Exercise('width_for', budgets, extra_check=nearest_for_other_budgets),
    Exercise('operations', token_sizes),
    Exercise('best_of', tuned_losses),
    Exercise('verdict', runs, extra_check=decides_when_it_can),
]
