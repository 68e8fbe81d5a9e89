"""What one sees in the layers of a network. Every model has the same door, `model.inside(x)`, which gives for every layer

    attention, normed, half, z      its attention module; what that is given, LN(Z^l); tokens after it, Z^(l+1/2); Z^(l+1)

with tokens (B, N, d). Nothing here asks which network it is: attention with one projection for query, key and value (MSSA)
gives coordinates (B, K, N, p), attention with three (MHSA) gives (3, B, K, N, p). Layers are counted from 1, as in the papers.
"""
import torch

from analysis import measures

PARTS = 'query', 'key', 'value'
EPS = {'paper': 0.5, 'released': 0.01}


# ---- the parts of a layer --------------------------------------------------------------------------------------------


def attentions(model):
    """The attention module of every layer."""
    return [layer.mssa if hasattr(layer, 'mssa') else layer.attn for layer in model.layers]


def bases(attention, part='value'):
    """What a head projects tokens onto: the columns of U_k, (K, d, p); of MHSA those of its query, key or value map."""
    if hasattr(attention, 'U'):
        return attention.U.weight.unflatten(0, (attention.K, -1)).mT
    return attention.QKV.weight.unflatten(0, (3, attention.K, -1))[PARTS.index(part)].mT


def coordinates(attention, z, part='value'):
    """Tokens z (B, N, d) as the heads see them, (B, K, N, p): U_k^T z; of MHSA their queries, keys or values."""
    w = attention.project(z)
    return w if w.dim() == 4 else w[PARTS.index(part)]


def queries_and_keys(attention, normed):
    """Of tokens normed (B, N, d): both (B, K, N, p), and of MSSA the same."""
    w = attention.project(normed)
    return (w, w) if w.dim() == 4 else w[:2]


def weights(attention, normed):
    """What each token averages: softmax(q k^T / sqrt(p)) of normed (B, N, d), the future hidden where the network hides it
    -> (B, K, N, N), a row for each token."""
    q, k = queries_and_keys(attention, normed)
    s = q @ k.mT * q.size(-1) ** -0.5
    if getattr(attention, 'causal', False):
        s = s.masked_fill(torch.ones_like(s, dtype=torch.bool).triu(1), -torch.inf)
    return s.softmax(-1)


def class_maps(attention, normed):
    """Where the class token looks: the softmax of its scores for the patches, itself left out -> (B, K, N). CRATE-MAE,
    eqs. (B.4) and (B.5), with the scores scaled as the network scales them."""
    q, k = queries_and_keys(attention, normed)
    return (q[:, :, :1] @ k[:, :, 1:].mT * q.size(-1) ** -0.5).softmax(-1)[:, :, 0]


# ---- what a layer does to its tokens -----------------------------------------------------------------------------------


def of_all(batches, measure, model, *settings):
    """measure(model, inputs, *settings), tensors (L, B), of all batches of inputs: tensors (L, n), on the CPU."""
    return [torch.cat(part, 1).cpu() for part in zip(*(measure(model, inputs, *settings) for inputs in batches))]


def why_not_sparse(model):
    """Why sparsity means nothing for a model, or '' if it does."""
    if all(hasattr(layer, 'ista') or hasattr(layer, 'mlp') for layer in model.layers):
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
    for attention, normed, half, z in model.inside(*inputs):
        if measure == 'paper':
            rates.append(measures.compressed_rate(half.unsqueeze(1) @ bases(attention, part), eps or EPS['paper']))
        else:
            rates.append(measures.released_rate(normed.unsqueeze(1) @ bases(attention, part), eps or EPS['released']))
        shares.append(measures.nonzeros(torch.where(z.abs() > threshold, z, 0)))
    return torch.stack(rates), torch.stack(shares)


def telemetry(model, inputs):
    """What train.py logs of a model, {column: number}: R^c of every layer, rate_1 .. rate_L, and where sparsity means something
    its share of non-zeros, nonzeros_1 .., means over a batch."""
    was_training = model.training
    found = layer_measures(model.eval(), inputs)
    model.train(was_training)
    return dict(zip(telemetry_columns(model), torch.cat([part.mean(1).cpu() for part in found]).tolist()))


def telemetry_columns(model):
    kinds = ('rate',) if why_not_sparse(model) else ('rate', 'nonzeros')
    return [f'{kind}_{l}' for kind in kinds for l in range(1, len(model.layers) + 1)]


@torch.no_grad()
def signal_to_noise(model, inputs):
    """AoT's eq. (6) of a trained network: for every layer and sample the SNR of its tokens before its attention step and
    after, two tensors (L, B).

    The cluster of a token is the subspace, made orthonormal, that holds most of it before the step; clusters are taken
    together: the norm of what lies in each token's own subspace, over that of what does not.
    """
    before, after = [], []
    for attention, normed, half, _ in model.inside(*inputs):
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
