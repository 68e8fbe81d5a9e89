"""What happens inside the layers of any network, in numbers. Layers are counted from 1, as in the
papers.

A network needs `embed` and `layers`. Of attention the numbers are taken from the network's own call
of `attention`, so they are right for a fork that turns, scales or masks what it compares. Subspaces
are those of `attn.U` (one projection for query, key and value, as MSSA has) or `attn.QKV` (three,
stacked), of `attn.K` heads. docs/extend.md says more.
"""
import sys
from contextlib import contextmanager
from typing import Callable, NamedTuple

import torch
import torch.nn.functional as F

from analysis import measures
from engine import fast
from engine.settings import Mistake

PARTS = 'query', 'key', 'value'


# ---- the parts of a network -----------------------------------------------------------------------------------------

def needed(module, *names):
    """The first of these attributes that a part of a network has. Raises Mistake if it has none
    of them."""
    for name in names:
        if getattr(module, name, None) is not None:
            return getattr(module, name)
    kind = f'{type(module).__module__}.{type(module).__name__}'
    raise Mistake(f'{kind} has no {" or ".join(names)}; take another network, or see docs/extend.md')


class Step(NamedTuple):
    """What one layer does to tokens, each (B, N, d). Where a layer has no `attn`, the fields about it
    are None."""
    layer: torch.nn.Module
    attention: torch.nn.Module
    z: torch.Tensor                 # Z^l, the tokens before the layer
    normed: torch.Tensor            # what attention gets, LN(Z^l)
    update: torch.Tensor            # what attention adds
    half: torch.Tensor              # Z^(l+1/2), the tokens after attention
    after: torch.Tensor             # Z^(l+1), the tokens after the layer

    @property
    @torch.no_grad()
    def maps(self):
        """The attention weights (B, K, N, N), a row for each token."""
        return weights(self.attention, self.normed)


def inside(model, *inputs):
    """Yields a Step for each layer. inputs: what model.embed takes. Masked autoencoders hide nothing."""
    z = needed(model, 'embed')(*inputs)
    for layer in needed(model, 'layers'):
        attention = getattr(layer, 'attn', None)
        if attention is None:
            after = layer(z)
            yield Step(layer, None, z, None, None, None, after)
        else:
            calls = []
            hook = attention.register_forward_hook(lambda module, args, out: calls.append((args[0], out)))
            after = layer(z)
            hook.remove()
            (normed, update), = calls                                   # a layer calls its attention once
            yield Step(layer, attention, z, normed, update, z + update, after)
        z = after


def at_layer(model, l, *inputs):
    """The attention module of layer l, and its input."""
    step = next(step for i, step in enumerate(inside(model, *inputs), 1) if i == l)     # later layers do not run
    return step.attention, step.normed


def attentions(model):
    """The attention module of every layer."""
    return [needed(layer, 'attn') for layer in needed(model, 'layers')]


def bases(attention, part=''):
    """The matrices that heads project tokens with, (K, d, p): the columns are those of U_k, or of one of three parts.
    Raises Mistake if heads have no subspaces U_k and no part is named, or if heads share keys and values."""
    K = needed(attention, 'K')
    if part and not hasattr(attention, 'U'):
        stacked = needed(attention, 'U', 'QKV').weight                  # (3 K p, d)
        W = getattr(attention, 'W', None)
        if W is not None and len(stacked) != 3 * W.in_features:
            raise Mistake(f'{type(attention).__name__}.QKV has no three parts of one size, so a head has no subspace of '
                          'its own')
        return stacked.unflatten(0, (3, K, -1))[PARTS.index(part)].mT
    return needed(attention, 'U').weight.unflatten(0, (K, -1)).mT


# ---- how it attends -------------------------------------------------------------------------------------------------

class Call(NamedTuple):
    """A call of `attention` that a layer makes."""
    function: Callable
    q: torch.Tensor                 # (B, K, N, p), as k and v
    k: torch.Tensor
    v: torch.Tensor
    more: tuple                     # further arguments
    settings: dict                  # further keywords, such as is_causal


def call_of(attention, normed):
    """The Call that an attention module makes for normed tokens (B, N, d). Raises Mistake if it makes
    none, or several."""
    calls = []
    with recorded(attention, calls):
        attention(normed)
    # a function `attention` may call PyTorch's, which is recorded too
    own = [call for call in calls if call.function is not F.scaled_dot_product_attention] or calls
    if len(own) != 1:
        raise Mistake(f'{type(attention).__name__} calls `attention` {len(own)} times, and its weights are seen where '
                      'it does so once; see docs/extend.md')
    return own[0]


@contextmanager
def recorded(attention, calls):
    """In this block the list `calls` gets a Call for each call of a function `attention` in the files of an attention
    module, or of PyTorch's."""
    classes = {cls for module in attention.modules() for cls in type(module).__mro__}
    files = {sys.modules[cls.__module__] for cls in classes}
    places = [(file, 'attention') for file in files if hasattr(file, 'attention')]
    places.append((F, 'scaled_dot_product_attention'))
    originals = [getattr(*place) for place in places]

    def recorder(function):
        def call(q, k, v, *more, **settings):
            calls.append(Call(function, q, k, v, more, settings))
            return function(q, k, v, *more, **settings)
        return call

    try:
        for place, function in zip(places, originals):
            setattr(*place, recorder(function))
        yield
    finally:
        for place, function in zip(places, originals):
            setattr(*place, function)


def weights(attention, normed):
    """The attention weights of normed tokens (B, N, d) -> (B, K, N, N), a row for each token: what `attention` gives
    for values that are the columns of an identity. Raises Mistake where attention is no weighted sum of values."""
    call = call_of(attention, normed)
    B, K, N, _ = call.q.shape
    function = call.function
    if function is fast.attention:
        function = fast.causal_attention                                # the same, for values of any width
    identity = torch.eye(N, dtype=call.v.dtype, device=call.v.device).expand(B, K, N, N)
    maps = function(call.q, call.k, identity, *call.more, **call.settings)
    result = call.function(call.q, call.k, call.v, *call.more, **call.settings)
    if maps.shape != identity.shape or not torch.allclose(maps @ call.v, result, rtol=1e-3, atol=1e-4):
        raise Mistake(f'`attention` of {type(attention).__name__} is no weighted sum of its values, so there are no '
                      'weights to show')
    return maps


def class_maps(attention, normed):
    """Where the class token looks: its weights of the patches, without its own, so that they sum to 1 -> (B, K, N).
    CRATE-MAE, eq. (B.4), but of the normalized tokens that attention gets, and with the scores scaled as in the
    network."""
    of_patches = weights(attention, normed)[:, :, 0, 1:]
    return of_patches / of_patches.sum(-1, keepdim=True)


def coordinates(attention, normed, part):
    """Queries, keys or values of normed tokens (B, N, d), the heads side by side: (B, N, K p)."""
    call = call_of(attention, normed)
    of_heads = (call.q, call.k, call.v)[PARTS.index(part)]              # (B, K, N, p)
    return of_heads.transpose(1, 2).flatten(2)


# ---- what a layer does to its tokens --------------------------------------------------------------------------------

@torch.no_grad()
def measure_layers(model, batches, measure):
    """What measure(Step) -> {name: numbers (B,)} finds in every layer, of all batches of inputs: {name: (L, n)}, on the
    CPU."""
    # of each batch {name: (L, B)}
    found = [torch.utils.data.default_collate([measure(step) for step in inside(model, *inputs)]) for inputs in batches]
    return {name: torch.cat([part[name] for part in found], 1).cpu() for name in found[0]}


def is_dense(layer):
    """Whether sparsity means nothing for a layer: it has neither ISTA nor an MLP, which could set numbers to zero."""
    return not (getattr(layer, 'ista', None) or getattr(layer, 'mlp', None))


def lowers_lasso(layer):
    """Whether the ISTA of a layer lowers the non-negative LASSO of CRATE's eq. (16): it has a dictionary D and lam, and
    no codes below zero."""
    ista = getattr(layer, 'ista', None)
    return hasattr(ista, 'D') and hasattr(ista, 'lam') and not getattr(ista, 'is_two_sided', False)


def decodes(layer):
    """Whether a layer decodes its sparse codes again, as CRATE-alpha's does, so that its output is no
    code."""
    return hasattr(getattr(layer, 'ista', None), 'code')


def codes(step):
    """What ISTA makes sparse in a layer: its output, or its codes if it decodes them."""
    return step.layer.ista.code(needed(step.layer, 'norm2')(step.half)) if decodes(step.layer) else step.after


def layer_measures(step, measure='paper', part='value', threshold=0.0):
    """R^c in nats, the share of non-zeros and the objective of one layer, for each sample (B,).

    measure='paper': R^c of Z^(l+1/2) in the subspaces U of the layer, CRATE eq. (8), Figure 3.
    'released': as the authors' code measures it, on LN(Z^l), with projected tokens of unit norm and
    without the square of eps. Sparsity is that of Z^(l+1), or of the codes
    of a layer that decodes them; a dense layer has none; numbers of at most `threshold` count as zeros. The objective
    is that of Z^(l+1), eq. (1), in the same subspaces, with the lambda of the layer's ISTA, or CRATE's 0.1 where it has
    none.
    """
    if step.attention is None:
        return measures_without_attention(step, threshold)
    U, lam = bases(step.attention, part), getattr(getattr(step.layer, 'ista', None), 'lam', 0.1)
    rate, tokens = {'paper': (measures.compressed_rate, step.half),
                    'released': (measures.released_rate, step.normed)}[measure]
    sparse, z = (torch.where(t.abs() > threshold, t, 0) for t in (codes(step), step.after))
    sparsity = {} if is_dense(step.layer) else {'sparsity': measures.nonzeros(sparse)}
    return {'rate': rate(tokens[:, None] @ U), **sparsity, 'objective': measures.objective(z, z[:, None] @ U, lam)}


def measures_without_attention(step, threshold):
    """What can be said of a layer that has no `attn`, and so no subspaces, for each sample (B,): the coding rate R of
    its tokens, nats per token, the share of their non-zeros, and the mean of their norms."""
    z = step.after
    sparse = torch.where(z.abs() > threshold, z, 0)
    return {'coding_rate': measures.coding_rate(z), 'sparsity': measures.nonzeros(sparse), 'norm': z.norm(dim=-1).mean(-1)}


def telemetry(model, task):
    """{column of the log: mean over one fixed batch of the validation split}: R^c and the objective of each layer,
    rate_1 .. rate_L and objective_1 .. objective_L, and where sparsity means something the share of non-zeros,
    nonzeros_1 .."""
    x, y = task.take(next(task.valid.fixed(min(task.c.batch_size, 16), 1, **task.valid_options)))
    inputs = (x, y) if task.unit == 'prompts' else (x,)
    was_training = model.training
    with task.device.uncompiled():  # compiled layers call no hooks
        found = measure_layers(model.eval(), [inputs], layer_measures)
    model.train(was_training)
    numbers = {}
    for name, values in found.items():
        column = 'nonzeros' if name == 'sparsity' else name
        for l, mean in enumerate(values.mean(1).tolist(), 1):
            numbers[f'{column}_{l}'] = mean
    return numbers


# ---- maps of patches ------------------------------------------------------------------------------------------------

def top_mass(maps, share):
    """The fewest patches of each map (.., N), which sums to 1, that hold `share` of it: bool (.., N)."""
    values, order = maps.sort(-1, descending=True)
    return torch.zeros_like(maps, dtype=torch.bool).scatter(-1, order, values.cumsum(-1) - values < share)


def principal(Z, count):
    """The first right singular vectors of Z (n, d), not centred: (d, count), each with the sign for
    which the sum of its products with Z is not negative."""
    V = torch.linalg.eigh(Z.mT @ Z).eigenvectors[:, -count:].flip(1)
    return V * torch.where((Z @ V).sum(0) < 0, -1, 1)


def two_stage_pca(Z, grid, keep):
    """CRATE-MAE, appendix B.3.1, for tokens Z (J, N, D) of J pictures, heads side by side, in a
    grid (down, across).

    Returns the projections on the first component u_0 (J, down, across); which patches are kept as
    foreground, bool, of the same shape: those with projections above the share `keep` of their range;
    and the coordinates of the kept ones along their own first three components, eq. (B.3), (J, down,
    across, 3), zero elsewhere.
    The paper leaves the threshold open. The sign of u_0 is arbitrary: here the border of the
    pictures gets smaller projections than their middle.
    """
    flat = Z.flatten(0, 1)
    first = (flat @ principal(flat, 1)[:, 0]).unflatten(0, (len(Z), *grid))
    if first.mean() > first[:, 1:-1, 1:-1].mean():                      # never where there is no middle
        first = -first
    kept = first >= first.min() + keep * (first.max() - first.min())
    foreground, colours = flat[kept.flatten()], Z.new_zeros(*kept.shape, 3)
    along = foreground @ principal(foreground, 3)
    colours[kept, :along.size(1)] = along                               # a token may have fewer than three numbers
    return first, kept, colours
