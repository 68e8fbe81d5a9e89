"""Lesson 8, your own network: oracles, mistakes and hints."""
import itertools
import math
import sys
from dataclasses import dataclass, replace

import torch
from grade import SEEDS, Exercise, number
from torch import nn
from torch.nn import functional as F



# ---- a network: what must hold for any ------------------------------------------------------------------------------

@dataclass
class Config:
    n_layer: int = 2
    n_head: int = 4
    n_embd: int = 64
    patch_size: int | tuple = 4
    image_size: int | tuple = 32
    channels: int = 3
    num_classes: int = 10
    task = 'image'


SIZES = (dict(n_layer=2, n_head=2, n_embd=8, patch_size=(2, 4), image_size=(8, 12), channels=3, num_classes=5),
         dict(n_layer=3, n_head=3, n_embd=12, patch_size=(2, 2), image_size=(6, 4), channels=1, num_classes=7),
         dict(n_layer=1, n_head=1, n_embd=6, patch_size=3, image_size=6, channels=2, num_classes=3))


def sides(size):
    return tuple(size) if isinstance(size, (tuple, list)) else (size, size)


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
            keeps(model, c, seed, lambda **more: Network(replace(c, **more)))
        except Found as e:
            message, diagnosis = e.args
            return {'verdict': 'wrong', 'message': f'seed {seed}: {message}; with {c}', 'diagnosis': diagnosis}
        except Exception as e:
            e.args = f'{e}; with {c}',
            raise
    return {'verdict': 'right', 'message': f'for {len(SEEDS)} sizes'}


def keeps(model, c, seed, another):
    """Raises Found for the first property that one network does not have."""
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
    moved, = torch.autograd.grad(model(x)[0].square().sum(), x)
    unseen = (moved.abs().amax(0) == 0).nonzero()
    need(not len(unseen), f'no output depends on {len(unseen)} of the {x[0].numel()} numbers of a picture, first on '
         f'channel, row, column {tuple(unseen[0].tolist()) if len(unseen) else ""}', 'patches with gaps between them')


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

    def count(network):
        return sum(p.numel() for p in network.parameters())
    more = count(another(n_layer=c.n_layer + 1)) - count(model)
    need(more > 0, 'a network of one layer more has as many parameters',
         'one layer that is used again and again')


# ---- networks, right and wrong --------------------------------------------------------------------------------------

class Mixing(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.K, self.norm = c.n_head, nn.LayerNorm(c.n_embd)
        self.U, self.W = nn.Linear(c.n_embd, c.n_embd, bias=False), nn.Linear(c.n_embd, c.n_embd)

    def forward(self, z):
        w = self.U(self.norm(z)).unflatten(2, (self.K, -1)).transpose(1, 2)
        return z + self.W(F.scaled_dot_product_attention(w, w, w).transpose(1, 2).flatten(2))


class Base(nn.Module):
    """A right network. What is wrong with the others is what they write anew."""

    def __init__(self, config):
        super().__init__()
        c = self.config = config
        self.patch = nn.Conv2d(c.channels, c.n_embd, sides(c.patch_size), sides(c.patch_size))
        self.layers = nn.Sequential(*self.made(c))
        self.head = nn.Linear(c.n_embd, c.num_classes)

    def made(self, c):
        return [Mixing(c) for _ in range(c.n_layer)]

    def embed(self, x):
        return self.patch(x).flatten(2).mT

    def logits(self, z):
        return self.head(z.mean(1))

    def loss(self, out, y):
        return F.cross_entropy(out, y)

    def forward(self, x, y=None):
        z = self.embed(x)
        for layer in self.layers:
            z = layer(z)
        out = self.logits(z)
        return out, None if y is None else self.loss(out, y)


def with_loss(loss):
    return type('Network', (Base,), {'loss': lambda self, out, y: loss(out, y), '__module__': __name__})


class NoConfig(Base):
    def __init__(self, c):
        super().__init__(c)
        self.config = replace(c)


class NoTuple(Base):
    def forward(self, x, y=None):
        out, loss = super().forward(x, y)
        return out if y is None else (out, loss)


class PerToken(Base):
    def logits(self, z):
        return self.head(z)


class Probabilities(Base):
    def logits(self, z):
        return super().logits(z).softmax(-1)


class Unused(Base):
    def __init__(self, c):
        super().__init__(c)
        self.cls = nn.Parameter(torch.randn(1, 1, c.n_embd))


class Columns(Base):
    def embed(self, x):
        return self.patch(x).flatten(2)

    def forward(self, x, y=None):
        out = self.logits(self.layers(self.embed(x).mT))
        return out, None if y is None else self.loss(out, y)


class PlainList(Base):
    def __init__(self, c):
        super().__init__(c)
        del self.layers
        self.layers = self.made(c)


class OneLayer(Base):
    def made(self, c):
        return [Mixing(c)] * c.n_layer


class Random(Base):
    def logits(self, z):
        return self.head(F.dropout(z.mean(1), 0.5))


class Neighbours(Base):
    """nn.MultiheadAttention without batch_first: the first axis is taken for the tokens."""

    def made(self, c):
        class Layer(nn.Module):
            def __init__(self):
                super().__init__()
                self.attn = nn.MultiheadAttention(c.n_embd, c.n_head)

            def forward(self, z):
                return z + self.attn(z, z, z)[0]
        return [Layer() for _ in range(c.n_layer)]


class InPlace(Base):
    def embed(self, x):
        if not x.requires_grad:
            x -= x.mean()
        return super().embed(x)


class Gaps(Base):
    def __init__(self, c):
        super().__init__(c)
        h, w = sides(c.patch_size)
        self.patch = nn.Conv2d(c.channels, c.n_embd, (h - 1, w), (h, w))


class WithClassToken(Base):
    """Another right one: a class token, positions, an MLP, dropout and a head that starts at zero."""

    def __init__(self, c):
        super().__init__(c)
        patches = math.prod(sides(c.image_size)) // math.prod(sides(c.patch_size))
        self.cls = nn.Parameter(torch.randn(1, 1, c.n_embd))
        self.pos = nn.Parameter(torch.randn(1, 1 + patches, c.n_embd))
        self.drop = nn.Dropout(0.1)
        nn.init.zeros_(self.head.weight)

    def made(self, c):
        return [nn.TransformerEncoderLayer(c.n_embd, c.n_head, 2 * c.n_embd, batch_first=True)
                for _ in range(c.n_layer)]

    def embed(self, x):
        z = super().embed(x)
        return self.drop(torch.cat((self.cls.expand(len(z), -1, -1), z), 1) + self.pos)

    def logits(self, z):
        return self.head(z[:, 0])


def ours(name):
    """A network of this project as one that keeps the contract with the config of the lesson."""
    def made(c):
        import model_crate
        import model_vit
        Theirs, Settings = {'crate': (model_crate.CRATE, model_crate.CRATEConfig),
                            'vit': (model_vit.ViT, model_vit.ViTConfig)}[name]
        sizes = {k: getattr(c, k) for k in ('n_layer', 'n_head', 'n_embd', 'channels', 'num_classes')}
        model = Theirs(Settings(**sizes, image_size=sides(c.image_size), patch_size=sides(c.patch_size), pool='mean'))
        model.config = c
        return model
    made.__module__ = __name__
    return made


def crate_with_a_class_token_that_is_read(c):
    model = ours('crate')(c)
    model.read.pool = 'cls'
    return model


# ---- counting -------------------------------------------------------------------------------------------------------

def layer_sizes(seed):
    """(network, n_layer, d)"""
    return (('crate', 3, 10), ('vit', 2, 7), ('crate', 5, 3))[seed - 1]


def budgets(seed):
    """(network, n_layer, budget, heads); in the last one two widths are equally near"""
    return (('vit', 2, 10_600, 4), ('crate', 4, 5_300, 3), ('crate', 1, 45, 2))[seed - 1]


def token_sizes(seed):
    """(network, d, N)"""
    return (('crate', 10, 7), ('vit', 6, 11), ('crate', 4, 3))[seed - 1]


def oracle_parameters(network, n_layer, d):
    """Shape by shape."""
    norm = [(d,), (d,)]
    shapes = [*norm, (d, d), (d, d), (d,), *norm, (d, d)] if network == 'crate' else \
        [*norm, (3 * d, d), (3 * d,), (d, d), (d,), *norm, (4 * d, d), (4 * d,), (d, 4 * d), (d,)]
    total = 0
    for _ in range(n_layer):
        for shape in shapes:
            total += math.prod(shape)
    return total


def oracle_width(network, n_layer, budget, heads):
    best, nearest = heads, math.inf
    for k in range(1, 200):
        gap = abs(oracle_parameters(network, n_layer, k * heads) - budget)
        if gap < nearest:
            best, nearest = k * heads, gap
    return best


def oracle_operations(network, d, N):
    """Each map (in, out) has in times out; a score has d over all heads together, and so has its part of the
    average."""
    maps = [(d, d), (d, d), (d, d), (d, d)] if network == 'crate' else [(d, 3 * d), (d, d), (d, 4 * d), (4 * d, d)]
    total = sum(a * b for a, b in maps)
    for _ in range(N):
        total += d + d
    return total


def of_layers(network, n_layer, d):
    """The parameters of our layers, counted."""
    import model_crate
    import model_vit
    layer = model_crate.Layer(model_crate.CRATEConfig(n_embd=d, head_dim=d, n_head=2)) if network == 'crate' else \
        model_vit.Layer(model_vit.ViTConfig(n_embd=d, n_head=1))
    if network == 'crate':  # two heads of half the width, which d need not be a multiple of
        layer.attn.U, layer.attn.W = nn.Linear(d, d, bias=False), nn.Linear(d, d)
    return n_layer * sum(p.numel() for p in layer.parameters())


def counted(network, d, N):
    """What torch counts in our layers: two operations for a multiply-add, and attention as two products."""
    import model_crate
    import model_vit
    from torch.utils.flop_counter import FlopCounterMode
    module = model_crate if network == 'crate' else model_vit
    layer = module.Layer((module.CRATEConfig if network == 'crate' else module.ViTConfig)(n_embd=d, n_head=2))
    before = module.attention
    module.attention = lambda q, k, v, **_: (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v
    try:
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            layer(torch.randn(1, N, d))
    finally:
        module.attention = before
    return counter.get_total_flops() / 2 / N


def P(network, L, d, crate=(3, 5), vit=(12, 13)):
    square, line = crate if network == 'crate' else vit
    return L * (square * d * d + line * d)


def nearest(network, L, budget, heads, key=None, layers=None, step=None, last=False):
    key = key or (lambda n: abs(n - budget))
    widths = range(step or heads, 300, step or heads)
    found = [(key(P(network, layers or L, d)), -d if last else d) for d in widths]
    return abs(min(found)[1])


def below(network, L, budget, heads):
    return max((d for d in range(heads, 300, heads) if P(network, L, d) <= budget), default=heads)


def above(network, L, budget, heads):
    return min(d for d in range(heads, 300, heads) if P(network, L, d) >= budget)


def by_root(network, L, budget, heads):
    a, b = (3, 5) if network == 'crate' else (12, 13)
    d = (math.sqrt(b * b + 4 * a * budget / L) - b) / (2 * a)                           # P(network, L, d) = budget
    low = max(heads, int(d // heads) * heads)
    return low if budget - P(network, L, low) <= P(network, L, low + heads) - budget else low + heads


def ops(network, d, N, crate=4, vit=12, average=2):
    return (crate if network == 'crate' else vit) * d * d + average * N * d


# ---- tuning and the verdict -----------------------------------------------------------------------------------------

def tuned(seed):
    """(losses (n,), tries)"""
    n, tries = ((5, 2), (6, 3), (4, 3))[seed - 1]
    return torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + seed, tries


def oracle_best_of(losses, tries):
    chosen = [min(some) for some in itertools.combinations(losses, tries)]
    return sum(chosen) / len(chosen)


def by_rank(losses, tries):
    """The r-th lowest is the lowest of a choice if all others come from those above it."""
    values, n = losses.sort().values, len(losses)
    return sum(v * math.comb(n - 1 - r, tries - 1) for r, v in enumerate(values)) / math.comb(n, tries)


def with_repeats(losses, tries):
    some = list(itertools.product(losses.tolist(), repeat=tries))
    return sum(map(min, some)) / len(some)


def runs(seed):
    """(ours {seed: loss}, theirs {seed: loss}, least): seeds in other orders, of which some are missing"""
    g = torch.Generator().manual_seed(seed)
    n = (4, 5, 3)[seed - 1]
    base, gain = 2 * torch.randn(n, generator=g, dtype=torch.float64), torch.randn(n, generator=g, dtype=torch.float64)
    gain = (gain - gain.mean()) / gain.std() * math.sqrt(n) / 2 + (1.3, -6.0, 0.8)[seed - 1]  # a standard error of 1/2
    ours = {s: base[s].item() for s in range(n)} | {17: 9.0}
    theirs = {s: (base[s] + gain[s]).item() for s in reversed(range(n))} | {18: -9.0}
    return ours, dict(sorted(theirs.items(), key=lambda item: -item[0])), (0.5, 0.4, 0.2)[seed - 1]


def oracle_verdict(ours, theirs, least):
    gains = [theirs[s] - loss for s, loss in ours.items() if s in theirs]
    n = len(gains)
    mean = sum(gains) / n
    error = math.sqrt(sum((g - mean) ** 2 for g in gains) / (n - 1) / n)
    low, high = mean - 2 * error, mean + 2 * error
    return low, high, 0 if n < 3 else 1 if low > least else -1 if high < -least else 0


def V(ours, theirs, least, gains=None, width=2.0, sign=1, error=None, say=None):
    g = torch.tensor([theirs[s] - ours[s] for s in ours if s in theirs] if gains is None else gains(ours, theirs),
                     dtype=torch.float64) * sign
    n = len(g)
    e = error(g) if error else g.std() / math.sqrt(n) if n > 1 else 0.0
    low, high = g.mean() - width * e, g.mean() + width * e
    say = say or (lambda low, high: 1 if low > least else -1 if high < -least else 0)
    return low, high, 0 if n < 3 else say(low, high)


def with_statistics(ours, theirs, least):
    import statistics
    both = sorted(set(ours) & set(theirs))
    gains = [theirs[s] - ours[s] for s in both]
    error = statistics.stdev(gains) / len(both) ** 0.5 if len(both) > 1 else 0.0
    ends = statistics.mean(gains) - 2 * error, statistics.mean(gains) + 2 * error
    return *ends, (len(both) >= 3) * ((ends[0] > least) - (ends[1] < -least))


def says_1_only_when_it_can(function):
    for n in (1, 2):
        ours, theirs = {s: 1.0 + 0.01 * s for s in range(n)}, {s: 2.0 + 0.02 * s for s in range(n)}
        if function(ours, theirs, 0.1)[2] != 0:
            return f'{n} seed{"s" * (n > 1)} should not be enough for a verdict'
    gains = {0: 1.0, 1: 1.1, 2: 1.2}
    if function({s: 1.0 for s in gains}, {s: 1.0 + gain for s, gain in gains.items()}, 0.5)[2] != 1:
        return 'with gains of 1.0, 1.1 and 1.2 and least 0.5 the verdict should be 1'
    return ''


def unpaired(ours, theirs, least):
    a, b = (torch.tensor([v for s, v in d.items() if s in ours and s in theirs], dtype=torch.float64)
            for d in (ours, theirs))
    return V(ours, theirs, least, error=lambda g: ((a.var() + b.var()) / len(g)).sqrt())


EXERCISES = [
    Exercise(
        'Network', None, None,
        {'a network that does not keep its config': NoConfig,
         'an output without a loss beside it': NoTuple,
         'an output for each token, not for each picture': PerToken,
         'probabilities in place of logits': Probabilities,
         'a loss that is the sum over the batch, not the mean':
             with_loss(lambda out, y: F.cross_entropy(out, y, reduction='sum')),
         'a loss for each picture, not their mean': with_loss(lambda out, y: F.cross_entropy(out, y, reduction='none')),
         'a loss of softmax(out): cross_entropy has its own softmax':
             with_loss(lambda out, y: F.cross_entropy(out.softmax(1), y)),
         'a loss in bits: nats have the natural logarithm':
             with_loss(lambda out, y: F.cross_entropy(out, y) / math.log(2)),
         'a loss that was cut off: .item(), .detach() or no_grad':
             with_loss(lambda out, y: F.cross_entropy(out, y).detach()),
         'parameters that the loss does not reach': Unused,
         'tokens as columns, (B, d, N)': Columns,
         'layers in a plain list, which nobody trains': PlainList,
         'one layer that is used again and again': OneLayer,
         'a network that changes its input': InPlace,
         'dropout that does not ask self.training': Random,
         'pictures of a batch that see each other': Neighbours,
         'patches with gaps between them': Gaps},
        [Base, WithClassToken, ours('vit'), crate_with_a_class_token_that_is_read],
        ('Which four steps lead from a picture to logits? What is the shape after each?',
         'pictures (B, C, H, W) -> patches -> tokens (B, N, d) -> n_layer layers -> mean over the tokens (B, d) '
         '-> logits '
         '(B, num_classes); the loss is F.cross_entropy(logits, y), and None without y.',
         'self.config = config\nself.patch = nn.Conv2d(config.channels, config.n_embd, ..., ...)   # a token '
         'for each patch'
         '\nself.layers = nn.Sequential(*(Layer(config) for _ in range(config.n_layer)))\nself.head = '
         'nn.Linear(...)\n\n'
         'def embed(self, x):\n    return self.patch(x).flatten(2).mT          # (B, N, d)\n\ndef forward(self, '
         'x, y=None):'
         '\n    out = self.head(self.layers(self.embed(x)).mean(...))\n    return out, None if y is None else ...'),
        own=contract),
    Exercise(
        'parameters', layer_sizes, oracle_parameters,
        {'the matrices alone, without biases and norms': lambda n, L, d: P(n, L, d, (3, 0), (12, 0)),
         'without biases': lambda n, L, d: P(n, L, d, (3, 4), (12, 4)),
         'without the norms': lambda n, L, d: P(n, L, d, (3, 1), (12, 9)),
         'one norm for each layer, where there are two': lambda n, L, d: P(n, L, d, (3, 3), (12, 11)),
         'three projections in CRATE, which has one': lambda n, L, d: P(n, L, d, (5, 5)),
         'the dictionary of CRATE twice: it is used twice, and is there once': lambda n, L, d: P(n, L, d, (4, 5)),
         'one projection in ViT, which has three': lambda n, L, d: P(n, L, d, vit=(10, 11)),
         'one layer alone': lambda n, L, d: P(n, 1, d)},
        [P, of_layers],
        ('Which tensors does a layer hold? Write their shapes below each other, biases too.',
         'CRATE: U, W, D of d^2 each, the bias of W, two norms. ViT: 3 d^2 + d^2 + 4 d^2 + 4 d^2, a bias for '
         'each map, two '
         'norms.',
         'norms = 2 * 2 * d\nif network == \'crate\':\n    return n_layer * (... + norms)\nreturn n_layer * '
         '(... + norms)')),
    Exercise(
        'width_for', budgets, oracle_width,
        {'the largest width that is not above the budget: the next one may be nearer': below,
         'the smallest width that is not below the budget': above,
         'a width that the heads do not divide': lambda n, L, b, h: nearest(n, L, b, h, step=1),
         'the larger of two widths that are equally near': lambda n, L, b, h: nearest(n, L, b, h, last=True),
         'the budget for each layer, not for all together': lambda n, L, b, h: nearest(n, L, b, h, layers=1),
         'the same width for both networks': lambda n, L, b, h: nearest('crate', L, b, h)},
        [nearest, by_root],
        ('More width, more parameters. Which widths do you have to try, and when can you stop?',
         'Of d = heads, 2 heads, 3 heads, .. the one with the smallest |parameters(network, n_layer, d) - budget|.',
         'widths = range(heads, ..., heads)\nreturn min(widths, key=lambda d: ...)')),
    Exercise(
        'operations', token_sizes, oracle_operations,
        {'as many as the matrices have parameters': lambda n, d, N: ops(n, d, N, crate=3, average=0),
         'the dictionary once: CRATE multiplies by its dictionary twice': lambda n, d, N: ops(n, d, N, crate=3),
         'without attention, which has no parameters': lambda n, d, N: ops(n, d, N, average=0),
         'the scores without the average': lambda n, d, N: ops(n, d, N, average=1),
         'multiplications and additions apart: twice as many': lambda n, d, N: 2 * ops(n, d, N),
         'those of all N tokens together': lambda n, d, N: N * ops(n, d, N),
         'the three products of the released ISTA': lambda n, d, N: ops(n, d, N, crate=5),
         'three projections in CRATE, which has one': lambda n, d, N: ops(n, d, N, crate=6),
         'an MLP of width d, which is 4 d wide': lambda n, d, N: ops(n, d, N, vit=6)},
        [ops, counted],
        ('A linear map from a to b numbers takes a b multiply-adds for each token. How many does a score of all heads '
         'together take, and how many scores has a token?',
         'CRATE: 4 d^2 (U, W, D twice) + 2 N d. ViT: 12 d^2 (QKV, W, up, down) + 2 N d.',
         'average = ...                             # scores, then the average\nreturn (... if network == '
         '\'crate\' else '
         '...) * d * d + average')),
    Exercise(
        'best_of', tuned, oracle_best_of,
        {'the lowest of all': lambda x, t: x.min(),
         'the mean of all': lambda x, t: x.mean(),
         'the lowest of the first ones': lambda x, t: x[:t].min(),
         'the mean of the lowest ones': lambda x, t: x.sort().values[:t].mean(),
         'settings that may be tried twice': with_repeats,
         'the highest of each choice: losses are better if they are lower': lambda x, t: -torch.as_tensor(
             oracle_best_of((-x).tolist(), t)),
         'one try more': lambda x, t: by_rank(x, t + 1)},
        [by_rank, lambda x, t: torch.combinations(x, t).amin(1).mean()],
        ('There are three settings a < b < c, and two are tried. Which pairs are there, and what does each report?',
         'The mean over all choices of `tries` of the n losses of the lowest one in it.',
         'from itertools import combinations\nlowest = [min(some) for some in combinations(losses.tolist(), '
         '...)]\nreturn '
         '...')),
    Exercise(
        'verdict', runs, oracle_verdict,
        {'pairs by place, not by seed': lambda a, b, m: V(a, b, m, gains=lambda a, b: [
            y - x for x, y in zip(a.values(), b.values())]),
         'the gain with the wrong sign: losses are better if they are lower': lambda a, b, m: V(a, b, m, sign=-1),
         'one standard error on each side': lambda a, b, m: V(a, b, m, width=1.0),
         'the standard deviation, not the standard error': lambda a, b, m: V(a, b, m, error=lambda g: g.std()),
         'a standard error with n, where the spread has n - 1': lambda a, b, m: V(
             a, b, m, error=lambda g: g.std(correction=0) / len(g) ** 0.5),
         'the standard error of unpaired seeds': unpaired,
         'a verdict that only asks for a gain above zero, not above `least`': lambda a, b, m: V(
             a, b, m, say=lambda low, high: 1 if low > 0 else -1 if high < 0 else 0),
         'a verdict that never says -1': lambda a, b, m: V(a, b, m, say=lambda low, high: int(low > m)),
         'a verdict by the mean alone': lambda a, b, m: V(
             a, b, m, say=lambda low, high: 1 if low + high > 2 * m else -1 if low + high < -2 * m else 0)},
        [V, with_statistics],
        ('Which seeds do both have? And from which end of the interval can you say that the gain is larger than '
         '`least`?',
         'gains theirs[s] - ours[s] over common seeds s; mean -+ 2 spread / sqrt(n); 1 if low > least, -1 if high < '
         '-least, else 0; 0 for n < 3.',
         'gains = [... for seed in ours if seed in theirs]\nlow, high = ...\nif len(gains) < 3:\n    return '
         'low, high, 0\n'
         'return low, high, ...'),
        also=says_1_only_when_it_can),
]
