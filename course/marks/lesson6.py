"""Lesson 6, CRATE-MAE: oracles, mistakes and hints."""
import math
from types import SimpleNamespace
from unittest import mock

import torch
from common import attend, normed, times, with_weights
from grade import Exercise
from torch.nn.functional import layer_norm, linear

SIZES = ((2, 5, 3, 2, 8), (1, 6, 2, 3, 4), (3, 4, 5, 2, 12))                # B, N, K, p, d; ours wants d / 4
PICTURES = ((2, 3, 4, 6, 2, 3), (3, 2, 2, 10, 1, 2), (2, 1, 9, 4, 3, 2))    # B, C, H, W, h, w


def generator(seed):
    g = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(shape, generator=g, dtype=torch.float64)


# ---- inputs: negative numbers, all sizes different, K p is not d ----------------------------------------------------

def noise_inputs(seed):
    """(noise (B, N), ratio): N (1 - ratio) is 2.8, 2 and 4.5."""
    B, N, ratio = ((2, 7, 0.6), (3, 8, 0.75), (2, 9, 0.5))[seed - 1]
    return torch.rand(B, N, generator=torch.Generator().manual_seed(seed), dtype=torch.float64), ratio


def grid(seed):
    """B, N and P of patches."""
    B, C, H, W, h, w = PICTURES[seed - 1]
    return B, H * W // (h * w), h * w * C


def embed_inputs(seed):
    """(patches (B, N, P), hidden (B, N), weights)"""
    randn, (B, N, P), d = generator(seed), grid(seed), (8, 4, 12)[seed - 1]
    hidden = randn(B, N).argsort(1).argsort(1) >= (3, 4, 2)[seed - 1]
    return randn(B, N, P), hidden, {'patch.weight': randn(d, P), 'patch.bias': randn(d), 'mask_token': randn(1, 1, d),
                                    'cls': randn(1, 1, d), 'pos': randn(1, N + 1, d)}


def layer_inputs(seed):
    """(Y (B, N, d), weights, heads)"""
    randn, (B, N, K, p, d) = generator(seed), SIZES[seed - 1]
    norms = {f'norm{i}.{k}': (k == 'weight') + 0.3 * randn(d) for i in (1, 2) for k in ('weight', 'bias')}
    return 1 + 2 * randn(B, N, d), {**norms, 'E.weight': randn(d, d) / 2, 'attn.U.weight': 0.6 * randn(K * p, d),
                                    'attn.W.weight': 0.5 * randn(d, K * p), 'attn.W.bias': 0.5 * randn(d)}, K


def patch_inputs(seed):
    """(patches (B, N, P),): of low contrast, the first one flat."""
    randn, (B, N, P) = generator(seed), grid(seed)
    patches = randn(B, N, 1) + 0.01 * randn(B, N, 1).exp() * randn(B, N, P)
    patches[0, 0] = 0.5
    return (patches,)


def loss_inputs(seed):
    """(pred (B, N, P), target (B, N, P), hidden (B, N)): pictures do not hide equally many."""
    randn, (B, N, P) = generator(seed + 10), grid(seed)
    hidden = randn(B, N) > 0
    hidden[0], hidden[0, 1], hidden[-1, 0], hidden[-1, 1] = False, True, True, True
    return randn(B, N, P), randn(B, N, P), hidden


# ---- oracles: loops over numbers ------------------------------------------------------------------------------------

def visible_loop(noise, ratio):
    keep, back = [], []
    for row in noise:
        order = sorted(range(len(row)), key=lambda n: row[n])
        keep.append(order[:int(len(row) * (1 - ratio))])
        back.append([order.index(n) for n in range(len(row))])
    return keep, back


def embed_loop(patches, hidden, weights):
    out = []
    for picture, gone in zip(patches, hidden):
        z = [weights['mask_token'][0][0] if g else times(weights['patch.weight'], q, weights['patch.bias'])
             for q, g in zip(picture, gone)]
        out.append([[a + b for a, b in zip(t, pos)] for t, pos in zip(weights['cls'][0] + z, weights['pos'][0])])
    return out


def layer_loop(Y, weights, heads):
    """Eq. (2.17) with norms."""
    out = []
    for picture in Y:
        half = [times(weights['E.weight'], normed(y, weights, 'norm1')) for y in picture]
        added = attend([normed(y, weights, 'norm2') for y in half], weights, heads)
        out.append([[a - b for a, b in zip(y, m)] for y, m in zip(half, added)])
    return out


def target_loop(patches):
    out = []
    for picture in patches:
        out.append([])
        for q in picture:
            mean = sum(q) / len(q)
            size = math.sqrt(sum((v - mean) ** 2 for v in q) / (len(q) - 1) + 1e-6)
            out[-1].append([(v - mean) / size for v in q])
    return out


def masked_loss_loop(pred, target, hidden):
    errors = [(a - b) ** 2 for one, two, gone in zip(pred, target, hidden) for p, t, g in zip(one, two, gone) if g
              for a, b in zip(p, t)]
    return sum(errors) / len(errors)


# ---- right ways and mistakes ----------------------------------------------------------------------------------------

def V(noise, ratio, order=None, count=None, back=None, keep=None):
    order = noise.argsort(1) if order is None else order
    count = int(noise.shape[1] * (1 - ratio)) if count is None else count
    return order[:, :count] if keep is None else keep(order, count), order.argsort(1) if back is None else back(order)


def by_topk(noise, ratio):
    N = noise.shape[1]
    keep = noise.topk(int(N * (1 - ratio)), largest=False).indices
    return keep, (noise[:, :, None] > noise[:, None]).sum(-1)


def our_visible(noise, ratio):
    """With the methods of model_vit_mae.py and model_crate_mae.py."""
    from model_crate_mae import CRATEMAE
    from model_vit_mae import ViTMAE

    def with_ratio(method, ratio):
        return method(SimpleNamespace(config=SimpleNamespace(mask_ratio=ratio)), noise)
    keep, back = with_ratio(ViTMAE.visible, ratio), with_ratio(ViTMAE.visible, 0.0).argsort(1)
    assert torch.equal(with_ratio(CRATEMAE.hide, ratio), back >= keep.shape[1])
    return keep, back


def E(patches, hidden, weights, kind='right'):
    z, mask = linear(patches, weights['patch.weight'], weights['patch.bias']), weights['mask_token']
    cls, pos, h = weights['cls'].expand(len(z), -1, -1), weights['pos'], hidden[..., None]
    put = torch.where(h, mask, z)
    front = torch.nn.functional.pad(hidden, (1, 0))[..., None]
    return {
        'right': lambda: torch.cat((cls, put), 1) + pos,
        'inverted': lambda: torch.cat((cls, torch.where(h, z, mask)), 1) + pos,
        'added': lambda: torch.cat((cls, z + h * mask), 1) + pos,
        'late': lambda: torch.where(front, mask, torch.cat((cls, z), 1) + pos),
        'zero': lambda: torch.cat((cls, torch.where(h, weights['patch.bias'], z)), 1) + pos,
        'nothing': lambda: torch.cat((cls, torch.where(h, 0.0, z)), 1) + pos,
        'kept': lambda: torch.cat((cls, z), 1) + pos,
        'removed': lambda: (torch.cat((cls, z), 1) + pos)[~front[..., 0]].unflatten(0, (len(z), -1)),
        'end': lambda: torch.cat((put, cls), 1) + pos,
        'early': lambda: torch.cat((cls, put + pos[:, :-1]), 1),
        'not class': lambda: torch.cat((cls, put + pos[:, 1:]), 1),
        'bare': lambda: torch.cat((cls, put), 1),
        'shifted': lambda: torch.where(torch.nn.functional.pad(hidden, (0, 1))[..., None], mask,
                                       torch.cat((cls, z), 1)) + pos}[kind]()


def by_products(patches, hidden, weights):
    h = hidden[..., None].to(patches.dtype)
    z = h * weights['mask_token'] + (1 - h) * (patches @ weights['patch.weight'].T + weights['patch.bias'])
    return torch.nn.functional.pad(z, (0, 0, 1, 0)) + weights['pos'] + torch.nn.functional.pad(
        weights['cls'], (0, 0, 0, patches.shape[1]))


def our_embedding(patches, hidden, weights):
    """The embedding of model_crate_mae.py, which is a convolution of pictures."""
    from model_crate_mae import CRATEMAEConfig, PatchEmbedding, unpatchify
    B, N, P = patches.shape
    C, H, W, h, w = next(shape for _, *shape in PICTURES if shape[1] * shape[2] == N * shape[3] * shape[4]
                         and shape[0] * shape[3] * shape[4] == P)
    d = len(weights['patch.bias'])
    ours = PatchEmbedding(CRATEMAEConfig(n_embd=d, n_head=1, image_size=(H, W), patch_size=(h, w), channels=C,
                                         mask_ratio=0.5))
    kernel = weights['patch.weight'].view(d, h, w, C).permute(0, 3, 1, 2)
    return with_weights(ours, weights | {'patch.weight': kernel})(unpatchify(patches, C, H, W, h, w), hidden)


def att(z, weights, heads, scale=None, over=-1, bias=True, mixed=False):
    w = linear(z, weights['attn.U.weight'])
    w = w.unflatten(-1, (-1, heads)).permute(0, 3, 1, 2) if mixed else w.unflatten(-1, (heads, -1)).transpose(1, 2)
    h = (w @ w.mT * (scale or w.shape[-1] ** -0.5)).softmax(over) @ w
    return linear(h.transpose(1, 2).flatten(2), weights['attn.W.weight'], weights['attn.W.bias'] if bias else None)


def D(Y, weights, heads, kind='right', **how):
    def n1(z):
        return layer_norm(z, z.shape[-1:], weights['norm1.weight'], weights['norm1.bias'])

    def n2(z):
        return layer_norm(z, z.shape[-1:], weights['norm2.weight'], weights['norm2.bias'])

    def A(z):
        return att(z, weights, heads, **how)
    M = weights['E.weight']
    y = n1(Y) @ M.T
    return {'right': lambda: y - A(n2(y)), 'plus': lambda: y + A(n2(y)), 'listing': lambda: n2(y) - A(n2(y)),
            'no skip': lambda: -A(n2(y)), 'skip of E': lambda: (lambda s: s - A(n2(s)))(Y + y),
            'far skip': lambda: Y - A(n2(y)), 'turned': lambda: (lambda s: s - A(n2(s)))(n1(Y) @ M),
            'no norm1': lambda: (lambda s: s - A(n2(s)))(Y @ M.T), 'no norm2': lambda: y - A(y),
            'one norm': lambda: y - A(n1(y)), 'relu': lambda: (lambda s: s - A(n2(s)))(y.relu()),
            'attention first': lambda: n2(Y - A(n1(Y))) @ M.T, 'after': lambda: n2((lambda s: s - A(s))(n1(Y @ M.T))),
            'other E': lambda: (lambda s: s - A(n2(s)))(n1(Y) @ torch.linalg.inv(M).T)}[kind]()


def fused(Y, weights, heads):
    def norm(z, name):
        z = z - z.mean(-1, keepdim=True)
        z = z / (z.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return z * weights[f'{name}.weight'] + weights[f'{name}.bias']
    y = linear(norm(Y, 'norm1'), weights['E.weight'])
    w = linear(norm(y, 'norm2'), weights['attn.U.weight']).unflatten(-1, (heads, -1)).transpose(1, 2)
    h = torch.nn.functional.scaled_dot_product_attention(w, w, w).transpose(1, 2).flatten(2)
    return y - h @ weights['attn.W.weight'].T - weights['attn.W.bias']


def our_layer(Y, weights, heads):
    """The layer of model_crate_mae.py."""
    from model_crate_mae import CRATEMAEConfig, DecoderLayer
    Kp, d = weights['attn.U.weight'].shape
    return with_weights(DecoderLayer(CRATEMAEConfig(n_head=heads, n_embd=d, head_dim=Kp // heads)), weights)(Y)


def T(patches, over=-1, divisor=1, inside=1e-6, outside=0.0, centred=True, root=True):
    variance, mean = torch.var_mean(patches, over, correction=divisor, keepdim=True)
    size = (variance + inside).sqrt() if root else variance + inside
    return (patches - mean * centred) / (size + outside)


def by_sums(patches):
    P = patches.shape[-1]
    centred = patches @ (torch.eye(P, dtype=patches.dtype) - 1 / P)
    return centred * (centred.square().sum(-1, keepdim=True) / (P - 1) + 1e-6).rsqrt()


def our_targets(patches):
    """With the statistics of model_crate_mae.py."""
    from model_crate_mae import statistics
    mean, deviation = statistics(patches)
    return (patches - mean) / deviation


def error(pred, target):
    return (pred - target).square().mean(-1)                                            # (B, N)


def our_loss(pred, target, hidden):
    """The loss of model_crate_mae.py, which computes in float32, here in float64."""
    from model_crate_mae import CRATEMAE
    with mock.patch.object(torch.Tensor, 'float', torch.Tensor.double):
        return CRATEMAE.loss(SimpleNamespace(target=lambda x: x), target, pred, hidden)


EXERCISES = [
    Exercise(
        'visible', noise_inputs, visible_loop,
        {'the most noise stays': lambda n, r: V(n, r, order=n.argsort(1, descending=True)),
         'the patches that are hidden, not those that stay': lambda n, r: V(
             n, r, keep=lambda order, count: order[:, count:]),
         'the share that is hidden stays': lambda n, r: V(n, r, count=int(n.shape[1] * r)),
         'the number of hidden patches rounded down, not that of visible ones': lambda n, r: V(
             n, r, count=n.shape[1] - int(n.shape[1] * r)),
         'patches that stay in the order of the picture, not of the noise': lambda n, r: V(
             n, r, keep=lambda order, count: order[:, :count].sort(1).values),
         'back is the order itself, not its inverse: it needs a second argsort': lambda n, r: V(
             n, r, back=lambda order: order),
         'keep from the inverse of the order': lambda n, r: V(n, r, keep=lambda order, count: order.argsort(
             1)[:, :count]),
         'the first patches stay, whatever their noise': lambda n, r: V(
             n, r, order=torch.arange(n.shape[1]).expand_as(n).contiguous()),
         'the patches of the first picture for all': lambda n, r: V(n, r, order=n[:1].argsort(1).expand_as(
             n).contiguous()),
         'the noise sorted, not the numbers of its patches': lambda n, r: V(
             n, r, keep=lambda order, count: n.sort(1).values[:, :count])},
        [V, by_topk, our_visible],
        ('argsort gives the numbers of the patches, the least noise first. What does the argsort of that give?',
         'order = argsort(noise) along each row; keep = its first int(N (1 - ratio)); back[order[r]] = r.',
         'order = noise.argsort(...)                # (B, N)\nM = int(...)\nreturn order[:, :M], ...')),
    Exercise(
        'embed', embed_inputs, embed_loop,
        {'the patches that are not hidden become mask tokens': lambda *a: E(*a, kind='inverted'),
         'the mask token added, not put in place': lambda *a: E(*a, kind='added'),
         'mask tokens after the positions: hidden tokens would not know where they are': lambda *a: E(*a, kind='late'),
         'pixels of zero, as in Appendix B.1: the released code has a mask token': lambda *a: E(*a, kind='zero'),
         'zeros in place of the mask token': lambda *a: E(*a, kind='nothing'),
         'nothing is hidden': lambda *a: E(*a, kind='kept'),
         'hidden patches left out, as in ViT-MAE: this encoder keeps all N': lambda *a: E(*a, kind='removed'),
         'the class token last': lambda *a: E(*a, kind='end'),
         'positions before the class token': lambda *a: E(*a, kind='early'),
         'no position for the class token': lambda *a: E(*a, kind='not class'),
         'no positions': lambda *a: E(*a, kind='bare'),
         'the class token counted as patch 0 when patches are hidden': lambda *a: E(*a, kind='shifted')},
        [E, by_products, our_embedding],
        ('What does the network know of a hidden patch, if all mask tokens are the same?',
         '[cls, t_1, .., t_N] + pos, with t_n the mask token where hidden, else W^pre x_n + bias: eq. (B.1).',
         'z = patches @ ... + ...                   # (B, N, d)\nz = torch.where(hidden[..., None], ..., z)\n'
         'return torch.cat((weights[\'cls\'].expand(len(z), -1, -1), z), 1) + ...')),
    Exercise(
        'decoder_layer', layer_inputs, layer_loop,
        {'Y + MSSA(Y): the decoder goes up the gradient': lambda *a: D(*a, kind='plus'),
         'the normed tokens less MSSA, as in listing 3 of the paper: the released code takes E y itself':
            lambda *a: D(*a, kind='listing'),
         'a missing skip around attention': lambda *a: D(*a, kind='no skip'),
         'a skip around E as well: eq. (2.17) has none': lambda *a: D(*a, kind='skip of E'),
         'the skip from before E': lambda *a: D(*a, kind='far skip'),
         'E^T in place of E': lambda *a: D(*a, kind='turned'),
         'the inverse of E: E is learned, and takes the place of an inverse': lambda *a: D(*a, kind='other E'),
         'no norm before E': lambda *a: D(*a, kind='no norm1'),
         'no norm before attention': lambda *a: D(*a, kind='no norm2'),
         'the first norm for both halves': lambda *a: D(*a, kind='one norm'),
         'a ReLU after E: the code is left behind here': lambda *a: D(*a, kind='relu'),
         'attention first, then E, the order of the encoder': lambda *a: D(*a, kind='attention first'),
         'norms after E and attention, not before': lambda *a: D(*a, kind='after'),
         'scores that are divided by the root of d / heads: p is the rows of U / heads': lambda *a: D(
             *a, scale=(a[0].shape[-1] // a[2]) ** -0.5),
         'scores that are divided by sqrt(d), not sqrt(p)': lambda *a: D(*a, scale=a[0].shape[-1] ** -0.5),
         'the softmax over the queries': lambda *a: D(*a, over=-2),
         'heads that are mixed up: the first p rows of U are head 1': lambda *a: D(*a, mixed=True),
         'attention without the bias of W': lambda *a: D(*a, bias=False)},
        [D, fused, our_layer],
        ('A layer of the encoder compresses, then sparsifies. In which order are these undone, and what becomes of the '
         'sign?',
         'Y^(l+1/2) = E LN1(Y), then Y^(l+1) = Y^(l+1/2) - MSSA(LN2(Y^(l+1/2))): eq. (2.17).',
         'Y = layer_norm(Y, ...) @ ...              # E y as a row\nn = layer_norm(Y, ...)\n'
         'w = (n @ ...).unflatten(-1, (heads, -1)).transpose(1, 2)           # (B, K, N, p)\n'
         'h = ...                                   # (B, K, N, p)\nreturn Y - ...')),
    Exercise(
        'targets', patch_inputs, target_loop,
        {'the divisor P in the variance: here it is P - 1': lambda q: T(q, divisor=0),
         'the 1e-6 outside of the root': lambda q: T(q, inside=0.0, outside=1e-6),
         'the 1e-5 of LayerNorm': lambda q: T(q, inside=1e-5),
         'the mean is not taken away': lambda q: T(q, centred=False),
         'the mean alone: the contrast still counts': lambda q: q - q.mean(-1, keepdim=True),
         'the variance, not its root': lambda q: T(q, root=False),
         'mean and variance of the whole picture': lambda q: T(q, over=(1, 2)),
         'mean and variance over the patches, number by number': lambda q: T(q, over=1),
         'the patches as they are': lambda q: q.clone()},
        [T, by_sums, our_targets],
        ('A patch of one flat colour has variance 0. What should its target be?',
         '(x - mean(x)) / sqrt(var(x) + 1e-6) for each patch x, with var = sum (x - mean)^2 / (P - 1).',
         'variance, mean = torch.var_mean(patches, ..., keepdim=True)        # (B, N, 1)\nreturn ...')),
    Exercise(
        'masked_loss', loss_inputs, masked_loss_loop,
        {'the loss on the visible patches': lambda p, t, h: error(p, t)[~h].mean(),
         'the loss on all patches': lambda p, t, h: error(p, t).mean(),
         'visible patches in the divisor': lambda p, t, h: (error(p, t) * h).mean(),
         'the sum over the numbers of a patch, not their mean': lambda p, t, h: error(p, t)[h].mean() * p.shape[-1],
         'the sum over patches, not their mean': lambda p, t, h: error(p, t)[h].sum(),
         'the mean over pictures of their means: every hidden patch counts the same': lambda p, t, h: (
             (error(p, t) * h).sum(1) / h.sum(1)).mean(),
         'sizes of errors, not squares': lambda p, t, h: (p - t).abs()[h].mean(),
         'the root of the mean square': lambda p, t, h: error(p, t)[h].mean().sqrt(),
         'half of the mean square': lambda p, t, h: error(p, t)[h].mean() / 2},
        [lambda p, t, h: error(p, t)[h].mean(), lambda p, t, h: (error(p, t) * h).sum() / h.sum(), our_loss],
        ('Why would a network that copies its input have no loss on visible patches?',
         'The mean of (pred - target)^2 over all numbers of all hidden patches: eq. (2.22), Appendix B.1.',
         'error = (pred - target).square()          # (B, N, P)\nreturn error[...].mean()')),
]
