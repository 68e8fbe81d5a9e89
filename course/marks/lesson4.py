"""Lesson 4, CRATE: oracles, mistakes and hints."""
import math

import torch
from common import attend, normed, times, with_weights
from grade import Exercise
from torch.nn.functional import layer_norm, linear

PICTURES = ((2, 3, 6, 12, 2, 3), (1, 2, 4, 8, 4, 2), (1, 4, 8, 4, 1, 2))    # B, C, H, W, h, w
SIZES = ((2, 5, 3, 4, 7), (1, 6, 2, 3, 4), (3, 4, 5, 2, 6))                 # B, N, K, p, d
STEPS = ((0.2, 1.5), (0.3, 0.7), (0.15, 2.0))                               # eta, lam: thresholds that cut numbers off
WB = 'weight', 'bias'


def draw(g):
    return lambda *shape: torch.randn(shape, generator=g, dtype=torch.float64)


def generator(seed):
    return draw(torch.Generator().manual_seed(seed))


# ---- inputs: negative numbers, all sizes different, K p is not d ----------------------------------------------------

def picture_inputs(seed):
    """(x (B, C, H, W), h, w)"""
    *shape, h, w = PICTURES[seed - 1]
    return 1 + 2 * generator(seed)(*shape), h, w


def norm_weights(randn, name, n):
    return {f'{name}.weight': 1 + 0.3 * randn(n), f'{name}.bias': 0.3 * randn(n)}


def token_weights(randn, N, P, d):
    return {**norm_weights(randn, 'patch_norm', P), 'patch.weight': 0.5 * randn(d, P), 'patch.bias': 0.5 * randn(d),
            **norm_weights(randn, 'token_norm', d), 'cls': randn(1, 1, d), 'pos': randn(1, N + 1, d)}


def layer_weights(randn, K, p, d):
    return {**norm_weights(randn, 'norm1', d), 'attn.U.weight': 0.6 * randn(K * p, d),
            'attn.W.weight': 0.5 * randn(d, K * p), 'attn.W.bias': 0.5 * randn(d),
            **norm_weights(randn, 'norm2', d), 'ista.D': randn(d, d) / math.sqrt(d)}


def token_inputs(seed):
    """(x (B, C, H, W), weights, h, w)"""
    x, h, w = picture_inputs(seed)
    _, C, H, W = x.shape
    return x, token_weights(generator(seed + 50), H * W // (h * w), h * w * C, (7, 5, 3)[seed - 1]), h, w


def layer_inputs(seed):
    """(Z (B, N, d), weights, heads, eta, lam)"""
    B, N, K, p, d = SIZES[seed - 1]
    randn = generator(seed)
    return 1 + 2 * randn(B, N, d), layer_weights(randn, K, p, d), K, *STEPS[seed - 1]


def network_inputs(seed):
    """(x (B, C, H, W), weights, layers, heads, h, w, eta, lam)"""
    x, embed, h, w = token_inputs(seed)
    randn, d, K, p, layers = generator(seed + 100), embed['cls'].shape[-1], *((3, 2, 2), (2, 3, 3), (5, 2, 1))[seed - 1]
    weights = {f'embed.{k}': v for k, v in embed.items()}
    for i in range(layers):
        weights |= {f'layers.{i}.{k}': v for k, v in layer_weights(randn, K, p, d).items()}
    weights |= norm_weights(randn, 'read.norm', d) | {'read.head.weight': randn(4, d), 'read.head.bias': randn(4)}
    return x, weights, layers, K, h, w, *STEPS[seed - 1]


# ---- oracles: loops over numbers ------------------------------------------------------------------------------------

def cut(x, h, w):
    """Patches row by row; in a patch row, column, channel."""
    return [[[picture[c][top + r][left + s] for r in range(h) for s in range(w) for c in range(len(picture))]
             for top in range(0, len(picture[0]), h) for left in range(0, len(picture[0][0]), w)] for picture in x]


def token_loop(x, weights, h, w):
    out = []
    for picture in cut(x, h, w):
        z = [times(weights['patch.weight'], normed(q, weights, 'patch_norm'), weights['patch.bias']) for q in picture]
        z = weights['cls'][0] + [normed(t, weights, 'token_norm') for t in z]
        out.append([[a + b for a, b in zip(t, p)] for t, p in zip(z, weights['pos'][0])])
    return out


def sparsify(z, D, eta, lam):
    """Eq. (17) for one token."""
    r = [a - b for a, b in zip(z, times(D, z))]
    return [max(0.0, z[i] + eta * sum(D[j][i] * r[j] for j in range(len(r))) - eta * lam) for i in range(len(z))]


def layer_loop(Z, weights, heads, eta, lam):
    """Eq. (18) with a LayerNorm before each half."""
    out = []
    for picture in Z:
        added = attend([normed(z, weights, 'norm1') for z in picture], weights, heads)
        half = [[a + b for a, b in zip(z, m)] for z, m in zip(picture, added)]
        out.append([sparsify(normed(z, weights, 'norm2'), weights['ista.D'], eta, lam) for z in half])
    return out


def part(weights, name):
    return {k.removeprefix(f'{name}.'): v for k, v in weights.items() if k.startswith(f'{name}.')}


def network_loop(x, weights, layers, heads, h, w, eta, lam):
    Z = token_loop(x, part(weights, 'embed'), h, w)
    for i in range(layers):
        Z = layer_loop(Z, part(weights, f'layers.{i}'), heads, eta, lam)
    return [times(weights['read.head.weight'], normed(z[0], weights, 'read.norm'), weights['read.head.bias'])
            for z in Z]


# ---- right ways and mistakes ----------------------------------------------------------------------------------------

ROWS = 'b c (i h) (j w) -> b (i j) (h w c)'


def P(x, h, w, pattern=ROWS):
    """Patches in any order, with the words of einops."""
    left, right = pattern.split('->')
    names = left.replace('(', '').replace(')', '').split()                              # b c i h j w, in some order
    B, C, H, W = x.shape
    sizes = {'b': B, 'c': C, 'h': h, 'w': w, 'i': H // h, 'j': W // w}
    x = x.reshape([sizes[n] for n in names])
    order = right.replace('(', '').replace(')', '').split()
    shape = [math.prod(sizes[n] for n in group.split()) for group in
             right.replace('(', ')').split(')') if group.strip()]
    return x.permute([names.index(n) for n in order]).reshape(shape)


def by_slices(x, h, w):
    """One patch after the other."""
    return torch.stack([x[:, :, i:i + h, j:j + w].permute(0, 2, 3, 1).flatten(1)
                        for i in range(0, x.shape[2], h) for j in range(0, x.shape[3], w)], 1)


def by_unfold(x, h, w):
    columns = torch.nn.functional.unfold(x, (h, w), stride=(h, w))                      # (B, C h w, N)
    return columns.unflatten(1, (x.shape[1], h * w)).transpose(1, 2).flatten(1, 2).mT


def of_ours(x, h, w):
    """The function of model_crate.py."""
    from model_crate import patchify
    return patchify(x, *x.shape[1:], h, w)


def LN(z, weights, name, over=-1, unbiased=False, plain=False, eps=1e-5):
    variance, mean = torch.var_mean(z, over, correction=int(unbiased), keepdim=True)
    z = (z - mean) / (variance + eps).sqrt()
    return z if plain else z * weights[f'{name}.weight'] + weights[f'{name}.bias']


def T(x, weights, h, w, cut=P, first=True, last=True, place='front', **how):
    q = cut(x, h, w)
    z = linear(LN(q, weights, 'patch_norm', **how) if first else q, weights['patch.weight'], weights['patch.bias'])
    z = LN(z, weights, 'token_norm', **how) if last else z
    cls, pos = weights['cls'].expand(len(z), -1, -1), weights['pos']
    return {'front': lambda: torch.cat((cls, z), 1) + pos, 'end': lambda: torch.cat((z, cls), 1) + pos,
            'early': lambda: torch.cat((cls, z + pos[:, :-1]), 1), 'bare': lambda: torch.cat((cls, z), 1),
            'not class': lambda: torch.cat((cls, z + pos[:, 1:]), 1),
            'added': lambda: torch.cat((cls, z + cls), 1) + pos}[place]()


def our_tokens(x, weights, h, w):
    """The embedding of model_crate.py."""
    from model_crate import CRATEConfig, PatchEmbedding
    c = CRATEConfig(n_head=1, n_embd=weights['cls'].shape[-1], image_size=tuple(x.shape[2:]), patch_size=(h, w),
                    channels=x.shape[1])
    return with_weights(PatchEmbedding(c), weights)(x)


def att(z, weights, heads, scale=None, over=-1, mixed=False, causal=False, bias=True):
    w = linear(z, weights['attn.U.weight'])
    w = w.unflatten(-1, (-1, heads)).permute(0, 3, 1, 2) if mixed else w.unflatten(-1, (heads, -1)).transpose(1, 2)
    s = w @ w.mT * (scale or w.shape[-1] ** -0.5)
    if causal:
        s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    return linear((s.softmax(over) @ w).transpose(1, 2).flatten(2), weights['attn.W.weight'],
                  weights['attn.W.bias'] if bias else None)


def ista(z, D, eta, lam, turned=False, threshold=None):
    D = D.T if turned else D
    return (z + eta * (z - z @ D.T) @ D - (eta * lam if threshold is None else threshold)).relu()


def L(Z, weights, heads, eta, lam, kind='right', turned=False, threshold=None, norm=LN, **how):
    n1, n2 = (lambda z: norm(z, weights, 'norm1')), (lambda z: norm(z, weights, 'norm2'))

    def A(z):
        return att(z, weights, heads, **how)

    def I(z):
        return ista(z, weights['ista.D'], eta, lam, turned, threshold)
    half = Z + A(n1(Z))
    return {'right': lambda: I(n2(half)), 'no skip': lambda: I(n2(A(n1(Z)))), 'two skips': lambda: half + I(n2(half)),
            'after': lambda: n2(I(n1(Z + A(Z)))),
            'no norm1': lambda: I(n2(Z + A(Z))), 'no norm2': lambda: I(half), 'one norm': lambda: I(n1(half)),
            'skip of n2': lambda: n2(half) + I(n2(half)), 'minus': lambda: I(n2(Z - A(n1(Z)))),
            'ista first': lambda: (lambda s: s + A(n1(s)))(I(n2(Z))), 'inside': lambda: I(n2(A(n1(Z)) + n1(Z)))
            }[kind]()


def our_layer(Z, weights, heads, eta, lam):
    """The layer of model_crate.py."""
    from model_crate import CRATEConfig, Layer
    Kp, d = weights['attn.U.weight'].shape
    c = CRATEConfig(n_head=heads, n_embd=d, head_dim=Kp // heads, image_size=32, eta=eta, lam=lam)
    return with_weights(Layer(c), weights)(Z)


def by_torch(Z, weights, heads, eta, lam):
    """With PyTorch's own LayerNorm and attention."""
    def norm(z, name):
        return layer_norm(z, z.shape[-1:], weights[f'{name}.weight'], weights[f'{name}.bias'])
    w = linear(norm(Z, 'norm1'), weights['attn.U.weight']).unflatten(-1, (heads, -1)).transpose(1, 2)
    h = torch.nn.functional.scaled_dot_product_attention(w, w, w).transpose(1, 2).flatten(2)
    half = norm(Z + h @ weights['attn.W.weight'].T + weights['attn.W.bias'], 'norm2')
    eye = torch.eye(half.shape[-1], dtype=half.dtype)
    return (half @ (eye + eta * (eye - weights['ista.D'].T) @ weights['ista.D']) - eta * lam).relu()


def N(x, weights, layers, heads, h, w, eta, lam, embed=T, one=L, order=None, pool=lambda z: z[:, 0], normed=True,
      bias=True, all_normed=False, cut=P):
    z = embed(x, part(weights, 'embed'), h, w, cut=cut)
    for i in range(layers) if order is None else order(layers):
        z = one(z, part(weights, f'layers.{i}'), heads, eta, lam)
    z = pool(LN(z, weights, 'read.norm')) if all_normed else pool(z)
    z = LN(z, weights, 'read.norm') if normed and not all_normed else z
    return linear(z, weights['read.head.weight'], weights['read.head.bias'] if bias else None)


def our_network(x, weights, layers, heads, h, w, eta, lam):
    """The network of model_crate.py."""
    from model_crate import CRATE, CRATEConfig
    Kp, d = weights['layers.0.attn.U.weight'].shape
    c = CRATEConfig(n_layer=layers, n_head=heads, n_embd=d, head_dim=Kp // heads, eta=eta, lam=lam, channels=x.shape[1],
                    image_size=tuple(x.shape[2:]), patch_size=(h, w), num_classes=len(weights['read.head.weight']))
    return with_weights(CRATE(c), weights)(x)[0]


def with_layer(kind, **how):
    return lambda *a: N(*a, one=lambda *b: L(*b, kind=kind, **how))


# ---- the authors' released code, from tests/golden/crate_classifier.json: its weights and its logits ----------------

RELEASED = 3, 4, 8, 8, 0.1, 0.1         # layers, heads, h, w, eta, lam
LOGITS = ((0.18622452, -0.59709007, -0.48497647, 0.53921598, -0.29434016, -0.25867406, -0.60673296, -0.20981574,
           0.45419699, 0.20233113),
          (0.37433749, -0.43279272, -0.28918082, 0.35935503, -0.53964466, -0.29155657, -0.55867648, -0.18328954,
           0.34970498, 0.26162985))


def released():
    """(pictures, weights) of the golden file: tensor i of the authors' file is drawn with the seed 1000 + i."""
    d, P = 48, 192
    shapes = {'embed.pos': (1, 17, d), 'embed.cls': (1, 1, d), 'embed.patch_norm.weight': (P,),
              'embed.patch_norm.bias': (P,), 'embed.patch.weight': (d, P), 'embed.patch.bias': (d,),
              'embed.token_norm.weight': (d,), 'embed.token_norm.bias': (d,)}
    for i in range(RELEASED[0]):
        shapes |= {f'layers.{i}.{k}': s for k, s in {
            'norm1.weight': (d,), 'norm1.bias': (d,), 'attn.U.weight': (d, d), 'attn.W.weight': (d, d),
            'attn.W.bias': (d,), 'norm2.weight': (d,), 'norm2.bias': (d,), 'ista.D': (d, d)}.items()}
    shapes |= {'read.norm.weight': (d,), 'read.norm.bias': (d,), 'read.head.weight': (10, d), 'read.head.bias': (10,)}

    def drawn(seed, shape):
        return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).double()
    weights = {k: 0.05 * drawn(1000 + i, s) + ('norm' in k and k.endswith('weight'))
               for i, (k, s) in enumerate(shapes.items())}
    return drawn(7, (2, 3, 32, 32)), weights


def as_released(function):
    x, weights = released()
    if abs(x.sum().item() - 109.37672) > 1e-3:      # a PyTorch that draws other numbers: nothing to compare with
        return ''
    gap = (function(x, weights, *RELEASED) - torch.tensor(LOGITS, dtype=torch.float64)).abs().max().item()
    return '' if gap < 1e-5 else f'right for small networks, but {gap:.2g} away from the logits of the released code'


EXERCISES = [
    Exercise(
        'patches', picture_inputs, cut,
        {'channel, row, column in a patch, the order of a convolution; it should be row, column, channel':
            lambda x, h, w: P(x, h, w, 'b c i h j w -> b (i j) (c h w)'),
         'column, row, channel in a patch': lambda x, h, w: P(x, h, w, 'b c i h j w -> b (i j) (w h c)'),
         'patches column by column': lambda x, h, w: P(x, h, w, 'b c i h j w -> b (j i) (h w c)'),
         'h and w exchanged': lambda x, h, w: P(x, w, h),
         'a reshape alone: it cuts the list of numbers, not the picture': lambda x, h, w: x.reshape(
             len(x), -1, h * w * x.shape[1]),
         'pixels that lie apart, one of each part of the picture': lambda x, h, w: P(
             x, h, w, 'b c h i w j -> b (i j) (h w c)'),
         'the numbers of a patch as the patches, and the patches as their numbers': lambda x, h, w: P(x, h, w).mT},
        [P, by_slices, by_unfold, of_ours],
        ('A patch is a small picture. Which two axes of the large one do you have to cut in two before you can move '
         'anything?',
         'x[b, c, i h + r, j w + s] becomes number (r w + s) C + c of patch i (W / w) + j.',
         'B, C, H, W = x.shape\nx = x.reshape(B, C, H // h, h, W // w, w)\n'
         'return x.permute(0, ...).reshape(B, -1, h * w * C)')),
    Exercise(
        'tokens', token_inputs, token_loop,
        {'the class token last': lambda *a: T(*a, place='end'),
         'positions before the class token: it has a position too, the first one': lambda *a: T(*a, place='early'),
         'no position for the class token': lambda *a: T(*a, place='not class'),
         'no positions': lambda *a: T(*a, place='bare'),
         'the class token added to every patch': lambda *a: T(*a, place='added'),
         'patches with channel, row, column inside': lambda *a: T(
             *a, cut=lambda *b: P(*b, 'b c i h j w -> b (i j) (c h w)')),
         'patches column by column': lambda *a: T(*a, cut=lambda *b: P(*b, 'b c i h j w -> b (j i) (h w c)')),
         'no norm before the map': lambda *a: T(*a, first=False),
         'no norm after the map': lambda *a: T(*a, last=False),
         'norms without weight and bias': lambda *a: T(*a, plain=True),
         'norms with the divisor n - 1 in the variance: LayerNorm has n': lambda *a: T(*a, unbiased=True),
         'norms over the patches: a patch is normalized by its own numbers': lambda *a: T(*a, over=1)},
        [T, lambda *a: T(*a, cut=by_slices), our_tokens],
        ('The table of positions has N + 1 rows. Which token gets the first row?',
         '[cls, LN(E LN(patch) + b)] + pos: the class token in front, then all N + 1 positions at once.',
         'z = patches(x, h, w)                      # (B, N, P)\nz = layer_norm(z, z.shape[-1:], ...)\n'
         'z = linear(z, ...)                        # (B, N, d)\nz = layer_norm(z, ...)\n'
         'return torch.cat((weights[\'cls\'].expand(len(z), -1, -1), z), 1) + ...')),
    Exercise(
        'layer', layer_inputs, layer_loop,
        {'a missing skip around attention': lambda *a: L(*a, kind='no skip'),
         'a skip around ISTA as well: eq. (18) has none': lambda *a: L(*a, kind='two skips'),
         'a skip around ISTA, of the normed tokens': lambda *a: L(*a, kind='skip of n2'),
         'norms after attention and ISTA, not before': lambda *a: L(*a, kind='after'),
         'the skip inside the norm: normed tokens are added, not the tokens as they are': lambda *a: L(
             *a, kind='inside'),
         'no norm before attention': lambda *a: L(*a, kind='no norm1'),
         'no norm before ISTA': lambda *a: L(*a, kind='no norm2'),
         'the first norm for both halves': lambda *a: L(*a, kind='one norm'),
         'ISTA first, then attention': lambda *a: L(*a, kind='ista first'),
         'Z - MSSA(Z): that is the decoder of lesson 6': lambda *a: L(*a, kind='minus'),
         'D^T in place of D': lambda *a: L(*a, turned=True),
         'the threshold lambda, not eta lambda': lambda *a: L(*a, threshold=a[4]),
         'no threshold': lambda *a: L(*a, threshold=0.0),
         'heads that are mixed up: the first p rows of U are head 1': lambda *a: L(*a, mixed=True),
         'scores that are divided by the root of d / heads: p is the rows of U / heads': lambda *a: L(
             *a, scale=(a[0].shape[-1] // a[2]) ** -0.5),
         'scores that are divided by sqrt(d), not sqrt(p)': lambda *a: L(*a, scale=a[0].shape[-1] ** -0.5),
         'scores that are divided by the root of K p, the width of all heads': lambda *a: L(
             *a, scale=len(a[1]['attn.U.weight']) ** -0.5),
         'the softmax over the queries': lambda *a: L(*a, over=-2),
         'a causal mask: patches may see each other': lambda *a: L(*a, causal=True),
         'attention without the bias of W': lambda *a: L(*a, bias=False),
         'norms without weight and bias': lambda *a: L(*a, norm=lambda *b: LN(*b, plain=True)),
         'norms with the divisor n - 1 in the variance: LayerNorm has n': lambda *a: L(
             *a, norm=lambda *b: LN(*b, unbiased=True)),
         'norms without the 1e-5 in the root': lambda *a: L(*a, norm=lambda *b: LN(*b, eps=0.0))},
        [L, by_torch, our_layer],
        ('Attention adds something to Z. After that, does ISTA add to something, or does it replace it?',
         'Z^(l+1/2) = Z + MSSA(LN1(Z)), with scores over sqrt(p) and W [SSA_1; ..; SSA_K] + bias. Then Z^(l+1) = '
         'ISTA(n) with n = LN2(Z^(l+1/2)): relu(n + eta D^* (n - D n) - eta lambda).',
         'n = layer_norm(Z, ...)\n'
         'w = linear(n, weights[\'attn.U.weight\']).unflatten(-1, (heads, -1)).transpose(1, 2)\n'
         'h = ...                                   # (B, K, N, p)\n'
         'Z = Z + linear(h.transpose(1, 2).flatten(2), ...)\n'
         'n, D = layer_norm(Z, ...), weights[\'ista.D\']\nreturn ...')),
    Exercise(
        'classify', network_inputs, network_loop,
        {'the mean of all tokens classified, not the class token': lambda *a: N(*a, pool=lambda z: z.mean(1)),
         'the mean of all normed tokens classified': lambda *a: N(*a, pool=lambda z: z.mean(1), all_normed=True),
         'the mean of the patches classified': lambda *a: N(*a, pool=lambda z: z[:, 1:].mean(1)),
         'the last token classified: the class token is the first': lambda *a: N(*a, pool=lambda z: z[:, -1]),
         'no norm before the classifier': lambda *a: N(*a, normed=False),
         'a classifier without its bias': lambda *a: N(*a, bias=False),
         'probabilities: the softmax of the logits': lambda *a: N(*a).softmax(-1),
         'layers in the reverse order': lambda *a: N(*a, order=lambda n: reversed(range(n))),
         'the first layer again and again': lambda *a: N(*a, order=lambda n: [0] * n),
         'one layer too few': lambda *a: N(*a, order=lambda n: range(n - 1)),
         'patches with channel, row, column inside': lambda *a: N(
             *a, cut=lambda *b: P(*b, 'b c i h j w -> b (i j) (c h w)')),
         'the class token last, and the first patch classified': lambda *a: N(
             *a, embed=lambda *b, cut: T(*b, place='end')),
         'a missing skip around attention': with_layer('no skip'),
         'a skip around ISTA as well': with_layer('two skips'),
         'norms after attention and ISTA, not before': with_layer('after'),
         'the skip inside the norm': with_layer('inside'),
         'D^T in place of D': with_layer('right', turned=True)},
        [N, lambda *a: N(*a, one=by_torch), our_network],
        ('Attention lets every token see every patch. Which token alone does the classifier have to look at?',
         'logits = H LN(z_cls) + b, where z_cls is the first token after the last layer.',
         'z = tokens(x, part(weights, \'embed\'), h, w)\nfor i in range(layers):\n    z = layer(z, part(weights, '
         'f\'layers.{i}\'), ...)\nz = layer_norm(z[...], ...)                # (B, d)\nreturn linear(z, ...)'),
        also=as_released, says='for 3 seeds, and equal to the released code'),
]
