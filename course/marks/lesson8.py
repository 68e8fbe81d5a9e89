"""Lesson 8, your own network: what must hold for any, and inputs."""
import math
import sys
from dataclasses import replace

import torch
from grade import HERE, SEEDS, Exercise, loaded, number
from torch import nn
from torch.nn import functional as F

# ---- a network: what must hold for any ------------------------------------------------------------------------------

SIZES = (dict(n_layer=3, n_head=2, n_embd=8, patch_size=(2, 4), image_size=(6, 12), channels=3, num_classes=5),
         dict(n_layer=3, n_head=3, n_embd=12, patch_size=(2, 2), image_size=(6, 4), channels=1, num_classes=7),
         dict(n_layer=1, n_head=1, n_embd=6, patch_size=3, image_size=6, channels=2, num_classes=3))
Config, sides = (getattr(loaded(HERE / 'answers' / 'lesson8.py', 'answers8'), name) for name in ('Config', 'sides'))


class Found(Exception):
    """A property that does not hold: in words, and the mistake that has it."""


def need(holds, message, diagnosis=''):
    if not holds:
        raise Found(message, diagnosis)


def contract(Network):
    """The properties of docs/extend.md, for networks of three sizes with weights drawn at random."""
    Own = getattr(sys.modules.get(Network.__module__), 'Config', Config)
    for seed, sizes in zip(SEEDS, SIZES):
        c = Own(**sizes)
        torch.manual_seed(seed)
        try:
            model = Network(c)
            need(isinstance(model, nn.Module), f'makes a {type(model).__name__}, and should be a torch.nn.Module')
            note = keeps(model, c, seed, lambda **more: Network(replace(c, **more)))
        except Found as e:
            message, diagnosis = e.args
            return {'verdict': 'wrong', 'message': f'seed {seed}: {message}; with {c}', 'diagnosis': diagnosis}
        except Exception as e:
            e.args = f'{e}; with {c}',
            raise
    return {'verdict': 'right', 'message': f'for {len(SEEDS)} sizes{note}'}


def keeps(model, c, seed, another):
    """Raises Found for the first property that a network does not have. Returns what to ask about one that has all."""
    g = torch.Generator().manual_seed(seed)
    for p in model.parameters():  # no weight starts at zero
        p.data += 0.3 * torch.randn(p.shape, generator=g)
    (H, W), (h, w) = sides(c.image_size), sides(c.patch_size)
    B, K, N, d = 4, c.num_classes, (H // h) * (W // w), c.n_embd
    x, y = torch.randn(B, c.channels, H, W, generator=g), torch.randint(K, (B,), generator=g)
    need(getattr(model, 'config', None) is c, 'model.config is not the config that it was made with',
         'a network that does not keep its config')
    the_output(model, x, y, B, K)
    the_parts(model, x, c, B, N, d, another)
    model.eval()
    before = x.clone()
    with torch.no_grad():
        out, again = model(x)[0], model(x)[0]
        each = torch.cat([model(one[None])[0] for one in x])
    size = 1e-4 * out.abs().max().clamp_min(1)
    need(torch.equal(x, before), 'changes the pictures that it is given', 'a network that changes its input')
    need((out - again).abs().max() < size, 'after model.eval() it gives different numbers when it is called again',
         'dropout that does not ask self.training')
    need((out - each).abs().max() < size, 'a picture alone gives other numbers than in a batch (after model.eval())',
         'pictures of a batch that see each other')
    x.requires_grad_()
    unseen = unseen_by(model(x)[0].square().sum(), x)
    need(not unseen, f'no output depends on {len(unseen)} of the {x[0].numel()} numbers of a picture, '
         f'first on channel, row, column {next(iter(unseen), "")}',
         'patches with gaps between them' if unseen_by(model.embed(x).square().sum(), x) else
         'an output that some tokens do not reach: attention along another axis, or a causal mask')
    token = model.embed(x)[0, -1]
    first, last = (torch.autograd.grad(token[i], x, retain_graph=True, allow_unused=True)[0] for i in (0, -1))
    return '' if first is None or last is None or torch.equal(first != 0, last != 0) else \
        '; the numbers of a token come from different pixels: does embed reshape where it should transpose?'


def unseen_by(number, x):
    """The places (channel, row, column) of pictures x on which a number does not depend."""
    moved, = torch.autograd.grad(number, x)
    return [tuple(place) for place in (moved.abs().amax(0) == 0).nonzero().tolist()]


def the_output(model, x, y, B, K):
    """What model(x) and model(x, y) return."""
    both = model(x)
    need(isinstance(both, (tuple, list)) and len(both) == 2, 'model(x) does not return (out, loss)',
         'an output without a loss beside it')
    out, loss = both
    need(loss is None, 'model(x) returns a loss, although it gets no classes')
    need(isinstance(out, torch.Tensor) and out.shape == (B, K), f'out has the shape '
         f'{tuple(getattr(out, "shape", ()))}, expected {(B, K)}', 'an output for each token, not for each picture'
         if getattr(out, 'dim', int)() == 3 else '')
    need(not out.isnan().any(), 'out has NaN')
    need((out < 0).any() or (out.sum(1) - 1).abs().max() > 1e-4, 'the numbers of out are positive and sum to 1',
         'probabilities in place of logits')
    torch.manual_seed(0)  # for dropout
    out, loss = model(x, y)
    need(isinstance(loss, torch.Tensor), f'model(x, y) returns a {type(loss).__name__} as its loss')
    need(loss.dim() == 0, f'the loss has the shape {tuple(loss.shape)}, expected ()',
         'a loss for each picture, not their mean')
    expected = F.cross_entropy(out, y)
    wrong = {'a loss that is the sum over the batch, not the mean': len(y) * expected,
             'a loss of softmax(out): cross_entropy has its own softmax': F.cross_entropy(out.softmax(1), y),
             'a loss in bits: nats have the natural logarithm': expected / math.log(2)}
    need((loss - expected).abs() < 1e-4 * expected, f'the loss is {number(loss.item())}, and the mean cross-entropy of '
         f'out and y is {number(expected.item())}',
         next((name for name, value in wrong.items() if (loss - value).abs() < 1e-4 * value), ''))
    need(loss.requires_grad, 'the loss has no gradient', 'a loss that was cut off: .item(), .detach() or no_grad')
    loss.backward()
    missed = [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
    need(not missed, f'the gradient of the loss does not reach {", ".join(missed[:3])}' + ', ..' * (len(missed) > 3),
         'parameters that the loss does not reach')


def the_parts(model, x, c, B, N, d, another):
    """embed and layers."""
    need(callable(getattr(model, 'embed', None)), 'there is no model.embed')
    z = model.embed(x)
    need(z.dim() == 3 and z.shape[0] == B and z.shape[2] == d and z.shape[1] >= N,
         f'model.embed(x) has the shape {tuple(z.shape)}, expected {(B, N, d)}, or more tokens',
         'tokens as columns, (B, d, N)' if z.shape[:2] == (B, d) else '')
    need(hasattr(model, 'layers') and hasattr(model.layers, '__len__'), 'there is no model.layers, or it has no length')
    need(isinstance(model.layers, nn.Module), f'model.layers is a {type(model.layers).__name__}, so its weights are '
         'not among the parameters of the network: use nn.Sequential or nn.ModuleList',
         'layers in a plain list, which nobody trains')
    need(len(model.layers) == c.n_layer, f'{len(model.layers)} layers, expected n_layer={c.n_layer}')
    for layer in model.layers:
        after = layer(z)
        need(after.shape == z.shape, f'a layer turns {tuple(z.shape)} into {tuple(after.shape)}')
        z = after
    count, more = (sum(p.numel() for p in network.parameters()) for network in (model, another(n_layer=c.n_layer + 1)))
    need(more > count, 'a network of one layer more has as many parameters', 'one layer that is used again and again')


# ---- inputs ---------------------------------------------------------------------------------------------------------

def layer_sizes(seed):
    """(network, n_layer, d)"""
    return (('crate', 3, 10), ('vit', 2, 7), ('crate', 5, 3))[seed - 1]


def budgets(seed):
    """(network, n_layer, budget, heads); in the last one two widths are equally near"""
    return (('vit', 2, 10_600, 4), ('crate', 4, 5_300, 3), ('crate', 1, 45, 2))[seed - 1]


def token_sizes(seed):
    """(network, d, N)"""
    return (('crate', 10, 7), ('vit', 6, 11), ('crate', 4, 3))[seed - 1]


def tuned(seed):
    """(losses (n,), tries)"""
    n, tries = ((5, 2), (6, 3), (4, 3))[seed - 1]
    return torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + seed, tries


def runs(seed):
    """(ours {seed: loss}, theirs {seed: loss}, least): seeds in other orders, of which some are missing"""
    g, n = torch.Generator().manual_seed(seed), (4, 5, 3)[seed - 1]
    base, gain = 2 * torch.randn(n, generator=g, dtype=torch.float64), torch.randn(n, generator=g, dtype=torch.float64)
    gain = (gain - gain.mean()) / gain.std() * math.sqrt(n) / 2 + (1.3, -6.0, 0.8)[seed - 1]  # a standard error of 1/2
    ours, theirs = dict(enumerate(base.tolist())), dict(enumerate((base + gain).tolist()))
    return ours | {17: 9.0}, dict(sorted((theirs | {18: -9.0}).items(), reverse=True)), (1.5, 0.4, 0.2)[seed - 1]


def says_1_only_when_it_can(function):
    for n in (1, 2):
        if function({s: 1.0 + 0.01 * s for s in (*range(n), 7, 8)}, {s: 2.0 + 0.02 * s for s in range(n)}, 0.1)[2] != 0:
            return f'{n} common seed{"s" * (n > 1)} should not be enough for a verdict'
    ours = {0: 1.0, 1: 1.0, 2: 1.0}
    if function(ours, {0: 0.9, 1: 1.0, 2: 1.1}, 0.5)[2] != 0:
        return 'with gains of -0.1, 0 and 0.1 and least 0.5 the verdict should be 0'
    clear = function(ours, {0: 2.0, 1: 2.1, 2: 2.2}, 0.5)[2] == 1
    return '' if clear else 'with gains of 1.0, 1.1 and 1.2 and least 0.5 the verdict should be 1'


EXERCISES = [
    Exercise('Network', None, own=contract),
    Exercise('parameters', layer_sizes),
    Exercise('width_for', budgets),
    Exercise('operations', token_sizes),
    Exercise('best_of', tuned),
    Exercise('verdict', runs, also=says_1_only_when_it_can),
]
