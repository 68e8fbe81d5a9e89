"""What happens inside the layers of a network, whichever it is, in numbers. Layers are counted from 1, as in the papers.

Attention with one projection for query, key and value (MSSA) has it in `U`; attention with three has them in `QKV`.
"""
import time

import torch

from analysis import measures

PARTS = 'query', 'key', 'value'
EPS = {'paper': 0.5, 'released': 0.01}


# ---- the parts of a layer --------------------------------------------------------------------------------------------


def inside(model, *inputs):
    """Yields per layer: the attention module, its input, tokens after attention, tokens after the layer; tokens are
    (B, N, d). inputs: what model.embed takes. Masked autoencoders hide nothing."""
    z = model.embed(*inputs)
    for layer in model.layers:
        seen = []
        hook = layer.attn.register_forward_hook(lambda module, args, out: seen.append((args[0], out)))
        try:
            after = layer(z)
        finally:
            hook.remove()
        (normed, update), = seen
        yield layer.attn, normed, z + update, after
        z = after


def attentions(model):
    """The attention module of every layer."""
    return [layer.attn for layer in model.layers]


def bases(attention, part='value'):
    """What heads project tokens onto, (K, d, p): the columns of U_k; of three projections those of one part."""
    if hasattr(attention, 'U'):
        return attention.U.weight.unflatten(0, (attention.K, -1)).mT
    return attention.QKV.weight.unflatten(0, (3, attention.K, -1))[PARTS.index(part)].mT


def projections(attention, z):
    """Queries, keys and values of tokens z (B, N, d), each (B, K, N, p); of MSSA three times the same."""
    w = (attention.U(z),) * 3 if hasattr(attention, 'U') else attention.QKV(z).chunk(3, -1)
    return [t.unflatten(2, (attention.K, -1)).transpose(1, 2) for t in w]


def coordinates(attention, z, part='value'):
    """Tokens z (B, N, d) as the heads see them, (B, K, N, p): U_k^T z; of three projections the queries, keys or values."""
    return projections(attention, z)[PARTS.index(part)]


def weights(attention, normed):
    """What each token averages: softmax(q k^T / sqrt(p)) of normed (B, N, d), the future hidden where the network hides it
    -> (B, K, N, N), a row for each token."""
    q, k, _ = projections(attention, normed)
    s = q @ k.mT * q.size(-1) ** -0.5
    if getattr(getattr(attention, 'average', None), 'causal', False):
        s = s.masked_fill(torch.ones_like(s, dtype=torch.bool).triu(1), -torch.inf)
    return s.softmax(-1)


def class_maps(attention, normed):
    """Where the class token looks: the softmax of its scores for the patches, itself left out -> (B, K, N). CRATE-MAE,
    eqs. (B.4) and (B.5), with the scores scaled as the network scales them."""
    q, k, _ = projections(attention, normed)
    return (q[:, :, :1] @ k[:, :, 1:].mT * q.size(-1) ** -0.5).softmax(-1)[:, :, 0]


# ---- what a layer does to its tokens -----------------------------------------------------------------------------------


def of_all(batches, measure, model, *settings):
    """measure(model, inputs, *settings), tensors (L, B), of all batches of inputs: tensors (L, n), on the CPU."""
    return [torch.cat(part, 1).cpu() for part in zip(*(measure(model, inputs, *settings) for inputs in batches))]


def why_not_sparse(model):
    """Why sparsity means nothing for a model, or '' if it does."""
    if all(getattr(layer, 'norm2', None) for layer in model.layers):
        return ''
    return 'a layer of AoT is attention and a skip: it has no ISTA (and no MLP) that could set numbers to zero'


@torch.no_grad()
def layer_measures(model, inputs, measure='paper', eps=0.0, part='value', threshold=0.0):
    """R^c in nats and the share of non-zeros for every layer and sample: two tensors (L, B). inputs: what `inside` takes.

    measure='paper': R^c of Z^(l+1/2) by that layer's U, CRATE eq. (8), Figure 3. 'released': as the authors' code, of LN(Z^l),
    each projected token made one long, eps not squared. eps=0 takes 0.5 and 0.01. Sparsity is of Z^(l+1); numbers of at
    most `threshold` count as zeros.
    """
    rates, shares = [], []
    for attention, normed, half, z in inside(model, *inputs):
        if measure == 'paper':
            rates.append(measures.compressed_rate(half.unsqueeze(1) @ bases(attention, part), eps or EPS['paper']))
        else:
            rates.append(measures.released_rate(normed.unsqueeze(1) @ bases(attention, part), eps or EPS['released']))
        shares.append(measures.nonzeros(torch.where(z.abs() > threshold, z, 0)))
    return torch.stack(rates), torch.stack(shares)


class Telemetry:
    """Coding rate and sparsity of every layer, on a batch of the validation split that is always the same."""

    def __init__(self, task):
        batch = next(task.valid.fixed(min(task.c.batch_size, 16), 1, **task.valid_draws))
        x, y = task.take(batch)
        self.inputs, self.seconds = (x, y) if task.unit == 'prompts' else (x,), 0.0

    def __call__(self, model):
        """{column of the log: number}: R^c of each layer, rate_1 .. rate_L; its share of non-zeros, nonzeros_1 .., where
        sparsity means something. Means over the batch."""
        began, was_training = time.perf_counter(), model.training
        rates, shares = layer_measures(model.eval(), self.inputs)
        model.train(was_training)
        found = {'rate': rates} if why_not_sparse(model) else {'rate': rates, 'nonzeros': shares}
        numbers = {f'{k}_{l}': v for k, values in found.items() for l, v in enumerate(values.mean(1).tolist(), 1)}
        self.seconds += time.perf_counter() - began
        return numbers

    def cost(self, trained):
        return f'telemetry took {self.seconds:.2f} s beside {trained:.0f} s of training, ' \
               f'{self.seconds / max(trained, 1e-9):.2%}'


@torch.no_grad()
def signal_to_noise(model, inputs):
    """AoT's eq. (6) of a trained network: for every layer and sample the SNR of its tokens before its attention step and
    after, two tensors (L, B).

    The cluster of a token is the subspace, made orthonormal, that holds most of it before the step; clusters are taken
    together: the norm of what lies in each token's own subspace, over that of what does not.
    """
    before, after = [], []
    for attention, normed, half, _ in inside(model, *inputs):
        Q = torch.linalg.qr(bases(attention).float()).Q                              # (K, d, p)
        z = (half - attention(normed)).float()                                       # Z^l
        own = (z.unsqueeze(1) @ Q).square().sum(-1).argmax(1, keepdim=True)          # (B, 1, N)
        for tokens, found in ((z, before), (half.float(), after)):
            signal = (tokens.unsqueeze(1) @ Q).square().sum(-1).gather(1, own).sum((1, 2))  # its norm squared
            found.append((signal / (tokens.square().sum((1, 2)) - signal)).sqrt())
    return torch.stack(before), torch.stack(after)


# ---- maps of patches ------------------------------------------------------------------------------------------------------


def top_mass(maps, share):
    """The patches that hold the most of each map (.., N), which sums to 1, as few as have `share` of it: bool (.., N)."""
    values, order = maps.sort(-1, descending=True)
    return torch.zeros_like(maps, dtype=torch.bool).scatter(-1, order, values.cumsum(-1) - values < share)


def enlarged(maps, grid, image_size):
    """Maps (.., N) of patches, `grid` of them (down, across), to pixels (.., H, W)."""
    down, across = (size // n for size, n in zip(image_size, grid))
    return maps.unflatten(-1, grid).repeat_interleave(down, -2).repeat_interleave(across, -1)


def overlap(a, b):
    """Intersection over union of masks, bool (.., H, W) -> (..); 0 of two empty ones."""
    return (a & b).sum((-2, -1)) / (a | b).sum((-2, -1)).clamp_min(1)


def principal(Z, count):
    """The first right singular vectors of Z (n, d), not centred: (d, count), each turned so that the sum of Z times it is not
    negative."""
    V = torch.linalg.eigh(Z.mT @ Z).eigenvectors[:, -count:].flip(1)
    return V * torch.where((Z @ V).sum(0) < 0, -1, 1)


def two_stage_pca(Z, grid, keep):
    """CRATE-MAE, appendix B.3.1, of tokens Z (J, N, D), heads side by side, of J pictures in a grid (down, across) of patches:

    their projections on the first component u_0 (J, N); which of them are kept as foreground, bool (J, N): those above the
    share `keep` of the projections' range; and the kept ones' coordinates along their own first three components, eq. (B.3),
    (J, N, 3), zero elsewhere. The paper leaves the threshold open, and the sign of u_0 is nobody's: here it is the one with
    which the pictures' border is darker than what it surrounds.
    """
    flat = Z.flatten(0, 1)
    first = flat @ principal(flat, 1)[:, 0]
    edge = torch.ones(grid, dtype=torch.bool, device=Z.device)
    edge[1:-1, 1:-1] = False
    border = edge.flatten().repeat(len(Z))
    if not border.all() and first[border].mean() > first[~border].mean():
        first = -first
    kept = first >= first.min() + keep * (first.max() - first.min())
    colours = torch.zeros(len(flat), 3, dtype=Z.dtype, device=Z.device)
    along = flat[kept] @ principal(flat[kept], 3)
    colours[kept, :along.size(1)] = along                                            # tokens may have fewer than three numbers
    return tuple(t.unflatten(0, Z.shape[:2]) for t in (first, kept, colours))
