"""What happens inside the layers of any network, in numbers. Layers are counted from 1, as in the
papers.

A network needs `embed` and `layers`. What attention does is taken from the functions of PyTorch
that the network itself calls. So the maps stay right for a fork that changes queries and keys
first, such as one with rotary positions, and for a fork that masks tokens. The network must be in
evaluation mode.
The subspaces of a layer are those of `attn.U` (one projection for query, key and value, as MSSA
has) or of `attn.QKV` (three projections, stacked), for `attn.K` heads. docs/extend.md says more.
"""
import contextlib
import itertools
import threading
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from analysis import measures
from engine.mistakes import Mistake

PARTS = ('query', 'key', 'value')
SOFTMAX = (torch.softmax, torch.Tensor.softmax, F.softmax)


# ---- the modules of a network -------------------------------------------------------------------

def needed(module, *names):
    """The first of these attributes that a module of a network has and that is not None. Raises
    Mistake if there is none."""
    for name in names:
        value = getattr(module, name, None)
        if value is not None:
            return value
    kind = f'{type(module).__module__}.{type(module).__name__}'
    raise Mistake(f'{kind} has no {" or ".join(names)}; take another network, '
                  'or see docs/extend.md')


class Step(NamedTuple):
    """What one layer does to tokens, which are (B, N, d). If a layer has no `attn`, the fields
    attention, normed, update and half are None."""
    layer: torch.nn.Module
    attention: torch.nn.Module
    z: torch.Tensor                 # Z^l, the tokens before the layer
    normed: torch.Tensor            # what attention gets, LN(Z^l)
    update: torch.Tensor            # what attention adds
    half: torch.Tensor              # Z^(l+1/2), what the second half gets; without one, `after`
    after: torch.Tensor             # Z^(l+1), the tokens after the layer

    @property
    def sparsifier(self):
        """See the function `sparsifier`."""
        return sparsifier(self.layer)

    @property
    @torch.no_grad()
    def maps(self):
        """The attention weights (B, K, N, N), a row for each token."""
        return weights(self.attention, self.normed)


def inside(model, *inputs):
    """Yields a Step for each layer. inputs: what model.embed takes. A masked autoencoder sees all
    patches here, because only its `embed` and `layers` are called. Raises Mistake if `forward` of
    the network sends other tokens to a layer than the layer before returns."""
    embed = needed(model, 'embed')
    all_layers = needed(model, 'layers')
    z = embed(*inputs)
    sent = tokens_of_forward(model, inputs)
    # a masked autoencoder embeds otherwise in forward, so its tokens cannot be compared
    is_comparable = len(sent) > 0 and same(sent[0], z[:1])
    for l, layer in enumerate(all_layers):
        if is_comparable and (l >= len(sent) or not same(sent[l], z[:1])):
            raise Mistake(f'forward of {type(model).__name__} does more between its layers than '
                          f'z = layer(z), before layer {l + 1}, so its layers cannot be looked at '
                          'one by one; see docs/extend.md')
        attention = getattr(layer, 'attn', None)
        if attention is None:
            step = Step(layer, None, z, normed=None, update=None, half=None, after=layer(z))
        else:
            step = Step(layer, attention, z, *watch(layer, z))
        yield step
        z = step.after


@torch.no_grad()
def tokens_of_forward(model, inputs):
    """The tokens (1, N, d) that each layer gets in model(*inputs), for the first sample alone."""
    with calls_of(*model.layers) as calls, torch.random.fork_rng(devices=[]):
        model(*[part[:1] for part in inputs])
    return [tokens for tokens, _ in calls]


@contextlib.contextmanager
def calls_of(*modules):
    """In this block, a list of the calls of modules by this thread: (first argument, result)
    each."""
    calls = []
    thread = threading.get_ident()

    def record(module, arguments, result):
        if threading.get_ident() == thread:  # another thread may call this network meanwhile
            calls.append((arguments[0], result))

    with contextlib.ExitStack() as hooks:  # they are removed when the block ends
        for module in modules:
            hooks.enter_context(module.register_forward_hook(record))
        yield calls


def same(a, b):
    """Whether tokens are the same up to rounding, which is that of bfloat16."""
    return a.shape == b.shape and bool((a - b).norm() <= 0.05 * b.norm())


def watch(layer, z):
    """Send tokens z (B, N, d) through a layer. Returns what its attention gets and returns, what
    its second half gets (the input of `norm2`), and the tokens after the layer. Raises Mistake if
    the layer does not call each of them once."""
    # a layer without a second half is seen as one whose second half gets what the layer returns
    second_half = getattr(layer, 'norm2', None) or layer
    with calls_of(layer.attn) as of_attention, calls_of(second_half) as of_half:
        after = layer(z)
    if len(of_attention) != 1 or len(of_half) != 1:
        raise Mistake(f'{type(layer).__name__} calls its `attn` {len(of_attention)} times and its '
                      f'`norm2` {len(of_half)} times, and must call each once to be measured; see '
                      'docs/extend.md')
    normed, update = of_attention[0]
    half = after if second_half is layer else of_half[0][0]
    return normed, update, half, after


def sparsifier(layer):
    """The step size 'eta' and the weight of sparsity 'lam' of a layer's `ista`, as they are now:
    {name: a number, or a tensor if the layer learns it}. What `ista` lacks is left out."""
    ista = getattr(layer, 'ista', None)
    return {name: getattr(ista, name) for name in ('eta', 'lam') if hasattr(ista, name)}


def step_at(model, l, *inputs):
    """The Step of layer l. The layers after l are not computed."""
    return next(itertools.islice(inside(model, *inputs), l - 1, None))


def at_layer(model, l, *inputs):
    """The attention module of layer l, and its input. The layers after l are not computed."""
    step = step_at(model, l, *inputs)
    return step.attention, step.normed


def attentions(model):
    """The attention module of every layer."""
    return [needed(layer, 'attn') for layer in needed(model, 'layers')]


def bases(attention, part=''):
    """The matrices with which heads project tokens, (K, d, p). If the module has U, they are the
    bases U_k of its subspaces, whatever `part` is. If it has QKV, `part` says which of the three
    projections they are: 'query', 'key' or 'value'.

    Raises Mistake if the module has no U and no part is named, or if heads share keys and values,
    so that QKV has no three parts of one size.
    """
    K = needed(attention, 'K')
    if hasattr(attention, 'U') or not part:
        # without U and without a part this raises Mistake
        U = needed(attention, 'U').weight                               # (K p, d)
        return U.unflatten(0, (K, -1)).mT

    # there is no U here; it is named so that the message names both
    QKV = needed(attention, 'U', 'QKV').weight                          # (3 K p, d)
    W = getattr(attention, 'W', None)
    # the output map W gets the results of all heads side by side: K p numbers
    if W is not None and len(QKV) != 3 * W.in_features:
        raise Mistake(f'{type(attention).__name__}.QKV has no three parts of one size, so a head '
                      'has no subspace of its own')
    parts = QKV.unflatten(0, (3, K, -1))                                # (3, K, p, d)
    return parts[PARTS.index(part)].mT


# ---- how a layer attends ------------------------------------------------------------------------

class AttentionCalls(TorchFunctionMode):
    """In a block `with AttentionCalls() as calls:`, PyTorch tells of the functions that this thread
    calls. `kernel` are the calls of its fused attention, (arguments, keywords) each. `softmax` are
    the results of softmax that have four dimensions, as attention weights have."""

    def __init__(self):
        super().__init__()
        self.kernel = []
        self.softmax = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        keywords = kwargs or {}
        result = function(*args, **keywords)
        if function is F.scaled_dot_product_attention:
            self.kernel.append((args, keywords))
        elif function in SOFTMAX and result.dim() == 4:
            self.softmax.append(result)
        return result


def weights(attention, normed):
    """The attention weights of normed tokens (B, N, d) -> (B, K, N, N), a row for each token.

    A network that spells attention out computes them by a softmax: they are its result. PyTorch's
    fused kernel returns the weights times v, so with the identity as v it returns the weights.
    Raises Mistake unless the module calls the kernel once, or no kernel and one softmax.
    """
    with AttentionCalls() as calls:
        attention(normed)
    if len(calls.kernel) == 1:
        (q, k, v, *more), keywords = calls.kernel[0]        # (B, K, N, p)
        B, K, N, p = v.shape
        # the kernel wants values of width p, so it gets p columns of the identity at a time
        identity = torch.eye(N, N + p, dtype=v.dtype, device=v.device).expand(B, K, N, N + p)
        columns = []
        for first in range(0, N, p):
            values = identity[..., first:first + p]
            columns.append(F.scaled_dot_product_attention(q, k, values, *more, **keywords))
        return torch.cat(columns, dim=3)[..., :N]
    if len(calls.kernel) == 0 and len(calls.softmax) == 1:
        return calls.softmax[0]
    raise Mistake(f'{type(attention).__name__} computes attention {len(calls.kernel)} times by '
                  f"PyTorch's kernel and {len(calls.softmax)} times by a softmax, and must do so "
                  'once for its weights to be seen; see docs/extend.md')


def class_maps(attention, normed):
    """Where the class token looks: its weights of the patches, without the weight of itself, and
    scaled so that they sum to 1 -> (B, K, N) for N patches.

    This is CRATE-MAE, eq. (B.4), with two differences: the tokens are the normalized ones that
    attention gets, and the scores are scaled as in the network.
    """
    to_patches = weights(attention, normed)[:, :, 0, 1:]
    return to_patches / to_patches.sum(-1, keepdim=True)


def coordinates(attention, normed, part):
    """Queries, keys or values of normed tokens (B, N, d), as `part` says, the heads side by side:
    (B, N, K p). Those of MSSA are all the same."""
    if getattr(attention, 'U', None) is not None:
        return attention.U(normed)
    bases(attention, part)                                  # raises Mistake without three parts
    parts = attention.QKV(normed).chunk(3, dim=2)           # query, key, value: (B, N, K p) each
    return parts[PARTS.index(part)]


# ---- what a layer does to its tokens ------------------------------------------------------------

@torch.no_grad()
def measure_layers(model, batches, measure):
    """Call measure(Step), which returns {name: numbers (B, ..)}, for every layer and every batch. A
    batch is a list of what model.embed takes. Returns {name: numbers (L, n, ..)} on the CPU, for L
    layers and the n samples of all batches. The names are those of the first layer. Raises Mistake
    if a layer lacks one of them."""
    batches_of_name = {}            # {name: [(L, B, ..) of the first batch, of the second, ..]}
    for inputs in batches:
        numbers_of_layers = [measure(step) for step in inside(model, *inputs)]
        for name in numbers_of_layers[0]:
            for l, numbers in enumerate(numbers_of_layers, 1):
                if name not in numbers:
                    raise Mistake(f'layer 1 has {name} to measure, and layer {l} has not; only a '
                                  'network whose layers are all of one kind can be measured')
            stacked = torch.stack([numbers[name] for numbers in numbers_of_layers])
            batches_of_name.setdefault(name, []).append(stacked)

    # (L, n, ..) each
    return {name: torch.cat(numbers, 1).cpu() for name, numbers in batches_of_name.items()}


def operator_of(layer):
    """The second half of a layer, which sparsifies: its `ista` or `mlp`, or None."""
    return getattr(layer, 'ista', None) or getattr(layer, 'mlp', None)


def is_dense(layer):
    """Whether a layer has neither ISTA nor an MLP. Nothing in it sets numbers to zero then, so its
    sparsity means nothing."""
    return operator_of(layer) is None


def lowers_lasso(layer):
    """Whether the ISTA of a layer lowers the non-negative LASSO of CRATE's eq. (16): it has a
    dictionary D and lam, and its codes are never below zero."""
    ista = getattr(layer, 'ista', None)
    is_two_sided = getattr(ista, 'is_two_sided', False)
    return hasattr(ista, 'D') and hasattr(ista, 'lam') and not is_two_sided


def decodes(layer):
    """Whether a layer computes sparse codes and maps them back to tokens, as a layer of CRATE-alpha
    does, so that its output is not sparse itself."""
    ista = getattr(layer, 'ista', None)
    return hasattr(ista, 'code')


def codes(step):
    """What ISTA makes sparse in a layer: the codes of a layer that decodes them, or else the output
    of the layer."""
    if decodes(step.layer):
        norm = needed(step.layer, 'norm2')
        return step.layer.ista.code(norm(step.half))
    return step.after


def layer_measures(step, measure='paper', part='value', threshold=0.0):
    """R^c in nats, the share of non-zeros and the objective of one layer: {'rate', 'sparsity',
    'objective'}, each (B,), a number for each sample.

    The rate with measure='paper' is R^c of Z^(l+1/2) in the subspaces U of the layer, CRATE eq.
    (8), Figure 3. With 'released' it is measured as the authors' code does: of LN(Z^l), with
    projected tokens of unit norm and without the square of eps.

    The sparsity is that of Z^(l+1), or of the codes of a layer that decodes them. A dense layer has
    none. Numbers of at most `threshold` in size count as zeros.

    The objective is that of Z^(l+1), eq. (1), in the same subspaces, with the lambda of the layer's
    ISTA, or with CRATE's 0.1 if it has none.

    A layer without `attn` has no subspaces. Instead of rate and objective it has 'coding_rate', the
    coding rate R of its tokens in nats per token, and 'norm', the mean of their norms.
    """
    z = F.hardshrink(step.after, threshold)
    if step.attention is None:
        return {
            'coding_rate': measures.coding_rate(step.after),
            'sparsity': measures.nonzeros(z),
            'norm': step.after.norm(dim=-1).mean(-1),
        }
    U = bases(step.attention, part)                                     # (K, d, p)
    numbers = {}

    if measure == 'paper':
        numbers['rate'] = measures.compressed_rate(step.half[:, None] @ U)
    else:
        numbers['rate'] = measures.released_rate(step.normed[:, None] @ U)

    if not is_dense(step.layer):
        numbers['sparsity'] = measures.nonzeros(F.hardshrink(codes(step), threshold))

    lam = step.sparsifier.get('lam', 0.1)
    numbers['objective'] = measures.objective(z, z[:, None] @ U, lam)
    return numbers


def telemetry(model, task):
    """{column of the log: mean over one fixed batch of the validation split}. The columns rate_1 to
    rate_L are R^c of the layers, and objective_1 to objective_L their objective. Layers without
    attention have coding_rate_1 to coding_rate_L and norm_1 to norm_L instead. Networks whose
    sparsity means something have nonzeros_1 to nonzeros_L too, the share of non-zeros. Step sizes
    and weights of sparsity that layers learn are eta_1 to eta_L and lam_1 to lam_L."""
    count = min(task.c.batch_size, 16)
    batches = task.valid.fixed(count, 1, **task.valid_options)
    x, y = task.take(next(batches))
    inputs = (x,)
    if task.unit == 'prompts':
        inputs = (x, y)

    was_training = model.training
    model.eval()
    with task.device.uncompiled():  # compiled layers call no hooks
        numbers = measure_layers(model, [inputs], layer_measures)
    model.train(was_training)

    means = {}
    for name, numbers_of_layers in numbers.items():
        column = 'nonzeros' if name == 'sparsity' else name
        for l, mean in enumerate(numbers_of_layers.mean(1).tolist(), 1):
            means[f'{column}_{l}'] = mean
    for l, layer in enumerate(model.layers, 1):
        for name, number in sparsifier(layer).items():
            if isinstance(number, torch.Tensor):  # the layer learns it
                means[f'{name}_{l}'] = number.float().mean().item()
    return means


# ---- maps of patches ----------------------------------------------------------------------------

def top_mass(maps, share):
    """The fewest patches of a map that hold `share` of it, for maps (.., N) that sum to 1: bool
    (.., N)."""
    values, order = maps.sort(-1, descending=True)
    mass_before = values.cumsum(-1) - values                # of the patches with larger values
    is_chosen = mass_before < share
    nowhere = torch.zeros_like(maps, dtype=torch.bool)
    return nowhere.scatter(-1, order, is_chosen)            # back to the order of the patches


def principal(Z, count):
    """The first `count` right singular vectors of Z (n, d), not centred: (d, count). Each has the
    sign for which the sum of its products with the rows of Z is not negative."""
    _, eigenvectors = torch.linalg.eigh(Z.mT @ Z)           # the largest eigenvalue is the last one
    V = eigenvectors[:, -count:].flip(1)
    signs = torch.where((Z @ V).sum(0) < 0, -1, 1)
    return V * signs


def two_stage_pca(Z, grid, keep):
    """CRATE-MAE, appendix B.3.1, for tokens Z (J, N, D) of J pictures, the heads side by side, in a
    grid (down, across).

    Returns three tensors:
      * the projections of the tokens on the first component u_0, (J, down, across);
      * which patches are foreground, bool (J, down, across): those whose projection lies above the
        share `keep` of the range of all projections;
      * the coordinates of the foreground along the first three components of the foreground alone,
        eq. (B.3), (J, down, across, 3). They are zero for other patches.

    The paper leaves the threshold open. The sign of u_0 is arbitrary: here the border of the
    pictures gets smaller projections than their middle.
    """
    tokens = Z.flatten(0, 1)                                # (J N, D)
    u_0 = principal(tokens, 1)[:, 0]                        # (D,)
    first = (tokens @ u_0).unflatten(0, (len(Z), *grid))    # (J, down, across)
    # The mean of all is above that of the middle exactly if that of the border is. A grid without a
    # middle has nan for its mean, and stays as it is.
    if first.mean() > first[:, 1:-1, 1:-1].mean():
        first = -first

    lowest, highest = first.aminmax()
    # rounding may put the sum above the highest projection, and then nothing would be foreground
    threshold = torch.minimum(lowest + keep * (highest - lowest), highest)
    is_foreground = first >= threshold

    foreground = tokens[is_foreground.flatten()]            # (n, D)
    projections = foreground @ principal(foreground, 3)     # eq. (B.3)
    width = projections.size(1)                             # 3, or D if that is less
    colours = Z.new_zeros(*is_foreground.shape, 3)
    colours[is_foreground, :width] = projections
    return first, is_foreground, colours
