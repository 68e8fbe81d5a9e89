"""Lesson 5, denoising and AoT: oracles, mistakes and hints."""
import math
from unittest import mock

import torch
from common import project, with_weights
from grade import Exercise

SIZES = ((3, 6, 2, 5), (2, 10, 3, 4), (4, 8, 2, 7))     # K, N, p, d; N is a multiple of K


def generator(seed):
    g = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(shape, generator=g, dtype=torch.float64)


# ---- inputs: negative numbers, all sizes different, subspaces that are not orthogonal to each other -----------------

def clusters(seed):
    """(Z (K, n, d), U (K, d, p)): the columns of each U_k are orthonormal, its tokens are near it."""
    randn, (K, n, p, d) = generator(seed), ((3, 5, 2, 8), (2, 4, 3, 7), (4, 3, 2, 9))[seed - 1]
    U = torch.linalg.qr(randn(K, d, p))[0]
    return 1.5 * randn(K, n, p) @ U.mT + 0.4 * randn(K, n, d), U


def mixture(seed):
    """(Z (N, d), U (K, d, p), tau)"""
    randn, (K, N, p, d) = generator(seed), SIZES[seed - 1]
    return randn(N, d), 0.6 * randn(K, d, p), (0.0, 0.3, 0.55)[seed - 1]


def denoise_inputs(seed):
    """(Z (N, d), U (K, d, p), eta, tau)"""
    Z, U, tau = mixture(seed)
    return Z, U, (0.7, 0.2, 1.3)[seed - 1], tau


def weights_that_pass(seed):
    """(phi (K, N, N),): most tokens see themselves in their own subspace, few see anything elsewhere."""
    g = torch.Generator().manual_seed(seed)
    K, N, *_ = SIZES[seed - 1]
    size, chance = torch.rand(2, K, N, N, generator=g, dtype=torch.float64)
    own = torch.block_diag(*[torch.ones(1, N // K)] * K)[..., None] * torch.eye(N)      # (K, N, N)
    return (size * (chance < 0.08 + 0.6 * own),)


def layer_inputs(seed):
    """(Z (B, N, d), weights, heads)"""
    randn, (B, N, K, p, d) = generator(seed), ((2, 5, 3, 4, 7), (1, 6, 2, 3, 4), (3, 4, 5, 2, 6))[seed - 1]
    return 1 + 2 * randn(B, N, d), {'norm1.weight': 1 + 0.3 * randn(d), 'attn.U.weight': 0.6 * randn(K * p, d),
                                    'attn.W.weight': 0.5 * randn(d, K * p)}, K


def loss_inputs(seed):
    """(logits (B, N, V), y (B, N)): the logits of the second seed are near 900."""
    B, N, V = ((2, 5, 7), (3, 4, 6), (2, 6, 9))[seed - 1]
    g = torch.Generator().manual_seed(seed + 20)
    y = torch.randint(V, (B, N), generator=g)
    y[0, 1], y[0, 3], y[-1, N - 1] = -1, -1, -1
    return 3 * generator(seed)(B, N, V) + 900 * (seed == 2), y


# ---- oracles: loops over numbers ------------------------------------------------------------------------------------

def back(w, Uk):
    return [sum(u * v for u, v in zip(row, w)) for row in Uk]


def ratio(Z, U):
    """Eq. (6)."""
    out = []
    for tokens, Uk in zip(Z, U):
        inside = outside = 0.0
        for z in tokens:
            for a, b in zip(z, back(project(z, Uk), Uk)):
                inside, outside = inside + b ** 2, outside + (a - b) ** 2
        out.append(math.sqrt(inside) / math.sqrt(outside))
    return out


def softmax(row):
    e = [math.exp(v - max(row)) for v in row]
    return [v / sum(e) for v in e]


def phi_loop(Z, U, tau):
    """phi((U_k^T Z)^T (U_k^T Z)), with h(x) = tau where x > tau."""
    out = []
    for Uk in U:
        W = [project(z, Uk) for z in Z]
        rows = [softmax([sum(a * b for a, b in zip(w, v)) for v in W]) for w in W]
        out.append([[tau * (x > tau) for x in row] for row in rows] if tau else rows)
    return out


def denoise_loop(Z, U, eta, tau):
    """Eq. (3): z_n + eta sum_k U_k sum_m phi_k[n, m] U_k^T z_m."""
    out, phis = [list(z) for z in Z], phi_loop(Z, U, tau)
    for Uk, phi in zip(U, phis):
        W = [project(z, Uk) for z in Z]
        for n, row in enumerate(phi):
            mixed = [sum(a * w[j] for a, w in zip(row, W)) for j in range(len(Uk[0]))]
            out[n] = [a + eta * b for a, b in zip(out[n], back(mixed, Uk))]
    return out


def passing_loop(phi):
    K, N = len(phi), len(phi[0])
    own = [phi[n // (N // K)][n][n] > 0 for n in range(N)]
    noise = [any(v > 0 for v in phi[k][n]) for n in range(N) for k in range(K) if k != n // (N // K)]
    return [sum(own) / len(own), sum(noise) / len(noise)]


def layer_loop(Z, weights, heads):
    """Eq. (3) with LayerNorm, causal, with a free output map as in eq. (5)."""
    U, out = weights['attn.U.weight'], []
    p = len(U) // heads
    for text in Z:
        normed = []
        for z in text:
            mean = sum(z) / len(z)
            size = math.sqrt(sum((v - mean) ** 2 for v in z) / len(z) + 1e-5)
            normed.append([(v - mean) / size * a for v, a in zip(z, weights['norm1.weight'])])
        side = [[] for _ in text]
        for k in range(heads):
            W = [[sum(u * v for u, v in zip(row, z)) for row in U[k * p:(k + 1) * p]] for z in normed]
            for n in range(len(W)):
                a = softmax([sum(x * y for x, y in zip(W[n], W[m])) / math.sqrt(p) for m in range(n + 1)])
                side[n] += [sum(a[m] * W[m][j] for m in range(n + 1)) for j in range(p)]
        out.append([[v + sum(x * y for x, y in zip(row, s)) for v, row in zip(z, weights['attn.W.weight'])]
                    for z, s in zip(text, side)])
    return out


def loss_loop(logits, y):
    terms = []
    for text, ids in zip(logits, y):
        for row, i in zip(text, ids):
            if i >= 0:
                terms.append(max(row) + math.log(sum(math.exp(v - max(row)) for v in row)) - row[i])
    return sum(terms) / len(terms)


# ---- right ways and mistakes ----------------------------------------------------------------------------------------

def parts(Z, U):
    signal = Z @ U @ U.mT
    return signal, Z - signal


def S(Z, U):
    return torch.linalg.matrix_norm(parts(Z, U)[0]) / torch.linalg.matrix_norm(parts(Z, U)[1])


def by_pythagoras(Z, U):
    inside, whole = (Z @ U).square().sum((1, 2)), Z.square().sum((1, 2))
    return (inside / (whole - inside)).sqrt()


def ours(name):
    """A function of analysis/measures.py."""
    def call(*given):
        from analysis import measures
        return getattr(measures, name)(*given)
    return call


def other_subspaces(Z, U):
    """Noise as Definition 1 has it: the part in all other subspaces."""
    K = len(U)
    noise = torch.stack([sum(Z[k] @ U[j] @ U[j].T for j in range(K) if j != k) for k in range(K)])
    return torch.linalg.matrix_norm(parts(Z, U)[0]) / torch.linalg.matrix_norm(noise)


def phi(Z, U, tau, scale=1.0, over=-1, h=None):
    W = Z @ U
    s = (scale * W @ W.mT).softmax(over)
    return s if not tau else tau * (s > tau).to(s.dtype) if h is None else h(s)


def our_phi(Z, U, tau):
    """The function of analysis/measures.py, which wants clusters (K, n, d)."""
    return ours('denoising_weights')(Z.unflatten(0, (len(U), -1)), U, tau or None)


def D(Z, U, eta, tau, weights=phi, skip=1.0, turned=False, **how):
    A = weights(Z, U, tau, **how)
    return skip * Z + eta * ((A.mT if turned else A) @ (Z @ U) @ U.mT).sum(0)


def our_denoise(Z, U, eta, tau):
    return ours('denoising_step')(Z.unflatten(0, (len(U), -1)), U, eta, tau or None).flatten(0, 1)


def masks(A):
    """Which tokens belong to which subspace, (K, N), and which see themselves, and anything."""
    K, N, _ = A.shape
    own = torch.arange(K)[:, None] == torch.arange(N) // (N // K)
    return own, A.diagonal(dim1=1, dim2=2) > 0, (A > 0).any(-1)


def two(a, b):
    return torch.stack((a.double().mean(), b.double().mean()))


def passed(A):
    own, itself, anything = masks(A)
    return two(itself[own], anything[~own])


def Y(Z, weights, heads, norm=True, scale=None, over=-1, causal=True, before=0, mixed=False, kind='right'):
    def LN(z):
        return torch.nn.functional.layer_norm(z, z.shape[-1:], weights['norm1.weight'])

    def A(z):
        w = z @ weights['attn.U.weight'].T
        w = w.unflatten(-1, (-1, heads)).permute(0, 3, 1, 2) if mixed else w.unflatten(-1, (heads, -1)).transpose(1, 2)
        s = w @ w.mT * (scale or w.shape[-1] ** -0.5)
        if causal:
            s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1 + before), -torch.inf)
        return (s.softmax(over).nan_to_num(0.0) @ w).transpose(1, 2).flatten(2) @ weights['attn.W.weight'].T
    n = LN(Z) if norm else Z
    return {'right': lambda: Z + A(n), 'no skip': lambda: A(n), 'inside': lambda: n + A(n), 'minus': lambda: Z - A(n),
            'after': lambda: LN(Z + A(Z)), 'relu': lambda: (Z + A(n)).relu()}[kind]()


def fused(Z, weights, heads):
    n = torch.nn.functional.layer_norm(Z, Z.shape[-1:], weights['norm1.weight'])
    w = torch.nn.functional.linear(n, weights['attn.U.weight']).unflatten(-1, (heads, -1)).transpose(1, 2)
    h = torch.nn.functional.scaled_dot_product_attention(w, w, w, is_causal=True)
    return torch.nn.functional.linear(h.transpose(1, 2).flatten(2), weights['attn.W.weight']) + Z


def our_layer(Z, weights, heads):
    """The layer of model_aot.py."""
    from model_aot import AoTConfig, Layer
    Kp, d = weights['attn.U.weight'].shape
    return with_weights(Layer(AoTConfig(n_head=heads, n_embd=d, head_dim=Kp // heads)), weights)(Z)


def NLL(logits, y):
    """Minus the log-probability at every position, that of token 0 where y is -1; and which count."""
    return -logits.log_softmax(-1).gather(-1, y.clamp_min(0)[..., None])[..., 0], y >= 0


def loss(logits, y):
    nll, counts = NLL(logits, y)
    return nll[counts].mean()


def by_torch(logits, y):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=-1)


def our_loss(logits, y):
    """The loss of model_aot.py, which computes in float32, here in float64."""
    from model_aot import language_loss
    with mock.patch.object(torch.Tensor, 'float', torch.Tensor.double):
        return language_loss(logits, torch.eye(logits.shape[-1], dtype=logits.dtype), y, 2 ** 20)[1]


EXERCISES = [
    Exercise(
        'snr', clusters, ratio,
        {'the ratio of squares: eq. (6) has lengths': lambda Z, U: S(Z, U) ** 2,
         'noise to signal, upside down': lambda Z, U: 1 / S(Z, U),
         'the signal over the whole token, not over the rest': lambda Z, U: torch.linalg.matrix_norm(
             parts(Z, U)[0]) / torch.linalg.matrix_norm(Z),
         'the mean of the ratios of single tokens: eq. (6) has one norm over all tokens of a cluster': lambda Z, U: (
             parts(Z, U)[0].norm(dim=-1) / parts(Z, U)[1].norm(dim=-1)).mean(-1),
         'one number for all clusters together': lambda Z, U: parts(Z, U)[0].norm() / parts(Z, U)[1].norm(),
         'the part in the other subspaces as noise: in eq. (6) it is all that is outside of U_k': other_subspaces,
         'decibels': lambda Z, U: 20 * S(Z, U).log10(),
         'the first subspace for all clusters': lambda Z, U: S(Z, U[:1].expand_as(U)),
         'spectral norms, not Frobenius norms': lambda Z, U: torch.linalg.matrix_norm(
             parts(Z, U)[0], 2) / torch.linalg.matrix_norm(parts(Z, U)[1], 2)},
        [S, by_pythagoras, ours('snr')],
        ('A token is the sum of a part inside U_k and a part that is orthogonal to it. With orthonormal columns, which '
         'matrix gives the first part?',
         '|Z_k U_k U_k^T|_F / |Z_k - Z_k U_k U_k^T|_F for each k: eq. (6) with tokens as rows.',
         'signal = Z @ U @ ...                      # (K, n, d)\nnoise = ...\n'
         'return torch.linalg.matrix_norm(signal) / ...')),
    Exercise(
        'membership', mixture, phi_loop,
        {'scores that are divided by sqrt(p): eq. (4) does not, the networks do': lambda Z, U, t: phi(
            Z, U, t, U.shape[-1] ** -0.5),
         'the softmax over the queries': lambda Z, U, t: phi(Z, U, t, over=-2),
         'the softmax over the subspaces': lambda Z, U, t: phi(Z, U, t, over=0),
         'no threshold': lambda Z, U, t: phi(Z, U, 0.0),
         'what is above tau is kept as it is: it should become tau': lambda Z, U, t: phi(
             Z, U, t, h=lambda s: s * (s > t)),
         'what is above tau becomes 1: it should become tau': lambda Z, U, t: phi(
             Z, U, t, h=lambda s: (s > t).to(s.dtype)),
         'what is below tau is kept': lambda Z, U, t: phi(Z, U, t, h=lambda s: torch.where(s > t, t, s)),
         'tau is taken away, as in the threshold of ISTA': lambda Z, U, t: phi(Z, U, t, h=lambda s: (s - t).relu()),
         'rows that are divided by their sum after the threshold': lambda Z, U, t: phi(
             Z, U, t, h=lambda s: (s * (s > t) / (s * (s > t)).sum(-1, keepdim=True)).nan_to_num(0.0)),
         'the threshold before the softmax': lambda Z, U, t: (t * (Z @ U @ (Z @ U).mT > t)).softmax(-1) if t
            else phi(Z, U, t),
         'scores of the tokens themselves: U_k is missing': lambda Z, U, t: phi(
             Z, torch.eye(Z.shape[-1], dtype=Z.dtype).expand(len(U), -1, -1), t)},
        [phi, lambda Z, U, t: torch.cat([phi(Z, u[None], t) for u in U]), our_phi],
        ('phi = h(softmax(..)): what can h give back? Only two numbers.',
         'In subspace k, with W = Z U_k (N, p): s = softmax(W W^T) along each row; then tau where s > tau, else 0; '
         's itself for tau = 0.',
         'W = Z @ U                                 # (K, N, p)\ns = (W @ ...).softmax(...)\n'
         'return tau * (...).to(s.dtype) if tau else s')),
    Exercise(
        'denoise', denoise_inputs, denoise_loop,
        {'MSSA alone, without the skip': lambda Z, U, e, t: D(Z, U, e, t, skip=0.0),
         'Z - eta MSSA(Z)': lambda Z, U, e, t: D(Z, U, -e, t),
         'a step of size 1': lambda Z, U, e, t: D(Z, U, 1.0, t),
         'an average of Z and MSSA(Z): (1 - eta) Z': lambda Z, U, e, t: D(Z, U, e, t, skip=1 - e),
         'eta on the skip as well': lambda Z, U, e, t: e * D(Z, U, 1.0, t),
         'weights that are turned: row n belongs to the token that looks': lambda Z, U, e, t: D(
             Z, U, e, t, turned=True),
         'the mean over the subspaces, not the sum': lambda Z, U, e, t: D(Z, U, e / len(U), t),
         'the first subspace alone': lambda Z, U, e, t: D(Z, U[:1], e, t),
         'averages of the tokens, not of their projections': lambda Z, U, e, t: Z + e * (phi(Z, U, t) @ Z).sum(0),
         'no threshold': lambda Z, U, e, t: D(Z, U, e, t, weights=lambda Z, U, t: phi(Z, U, 0.0)),
         'scores that are divided by sqrt(p)': lambda Z, U, e, t: D(Z, U, e, t, scale=U.shape[-1] ** -0.5),
         'what is above tau is kept as it is': lambda Z, U, e, t: D(
             Z, U, e, t, h=lambda s: s * (s > t))},
        [D, lambda Z, U, e, t: Z + e * sum(phi(Z, u[None], t)[0] @ Z @ u @ u.T for u in U), our_denoise],
        ('Say that a token takes tau of itself in its own subspace, and nothing else anywhere. Which part of it grows, '
         'and by which factor?',
         'Z + eta sum_k phi_k Z U_k U_k^T: eqs. (3) and (4) with tokens as rows.',
         'phi = membership(Z, U, tau)               # (K, N, N)\n'
         'added = phi @ (Z @ U) @ ...               # (K, N, d)\nreturn Z + eta * ...')),
    Exercise(
        'passing', weights_that_pass, passing_loop,
        {'the two shares in the other order': lambda A: passed(A).flip(0),
         'tokens that take anything in their own subspace; it should be from themselves': lambda A: two(
             masks(A)[2][masks(A)[0]], masks(A)[2][~masks(A)[0]]),
         'tokens that see themselves in another subspace; it should be anything': lambda A: two(
             masks(A)[1][masks(A)[0]], masks(A)[1][~masks(A)[0]]),
         'the share of all numbers of phi, not of pairs of a token and a subspace': lambda A: two(
             masks(A)[1][masks(A)[0]], (A > 0)[~masks(A)[0]]),
         'the share of tokens, not of pairs of a token and a subspace': lambda A: two(
             masks(A)[1][masks(A)[0]], (masks(A)[2] & ~masks(A)[0]).any(0)),
         'pairs with the own subspace counted too': lambda A: two(masks(A)[1][masks(A)[0]], masks(A)[2]),
         'tokens that see themselves in any subspace, own or not': lambda A: two(
             masks(A)[1], masks(A)[2][~masks(A)[0]]),
         'columns of phi in place of rows: the tokens that are looked at': lambda A: two(
             masks(A)[1][masks(A)[0]], masks(A.mT)[2][~masks(A)[0]]),
         'the sizes of the weights, not how many there are': lambda A: two(
             A.diagonal(dim1=1, dim2=2)[masks(A)[0]], A.amax(-1)[~masks(A)[0]])},
        [passed, lambda A: torch.stack(ours('passing')(A)), lambda A: torch.stack([
            sum((b.diagonal() > 0).double().mean() for k, b in enumerate(blocks(A))) / len(A),
            1 - sum((b.amax(1) == 0).sum() for b in others(A)) / (A.shape[1] * (len(A) - 1))])],
        ('Token n belongs to subspace n // (N / K). For which subspaces may it see itself, and for which should it see '
         'nothing at all?',
         'The share of n with phi[own(n), n, n] > 0; and the share of all (k, n) with k not own(n) that have any '
         'phi[k, n, m] > 0.',
         'own = torch.arange(K)[:, None] == torch.arange(N) // (N // K)      # (K, N)\n'
         'itself = phi.diagonal(dim1=1, dim2=2) > 0                          # (K, N)\n'
         'anything = ...                                                     # (K, N)\n'
         'return torch.stack((itself[own].double().mean(), ...))')),
    Exercise(
        'aot_layer', layer_inputs, layer_loop,
        {'a missing skip': lambda *a: Y(*a, kind='no skip'),
         'the skip inside the norm: normed tokens are added, not the tokens as they are': lambda *a: Y(
             *a, kind='inside'),
         'the norm after attention, not before': lambda *a: Y(*a, kind='after'),
         'no norm': lambda *a: Y(*a, norm=False),
         'Z - MSSA(Z)': lambda *a: Y(*a, kind='minus'),
         'a ReLU at the end: AoT has no ISTA': lambda *a: Y(*a, kind='relu'),
         'no causal mask: a token sees what it should predict': lambda *a: Y(*a, causal=False),
         'a causal mask that is off by one: a token sees the next one': lambda *a: Y(*a, before=1),
         'a causal mask that is off by one: a token should see itself': lambda *a: Y(*a, before=-1),
         'scores that are not divided by sqrt(p)': lambda *a: Y(*a, scale=1.0),
         'scores that are divided by the root of d / heads: p is the rows of U / heads': lambda *a: Y(
             *a, scale=(a[0].shape[-1] // a[2]) ** -0.5),
         'scores that are divided by sqrt(d), not sqrt(p)': lambda *a: Y(*a, scale=a[0].shape[-1] ** -0.5),
         'the softmax over the queries': lambda *a: Y(*a, over=-2),
         'heads that are mixed up: the first p rows of U are head 1': lambda *a: Y(*a, mixed=True)},
        [Y, fused, our_layer],
        ('Compare it with the layer of lesson 4. What is left out, and what comes in because a text has a direction?',
         'Z + W [SSA_1; ..; SSA_K] of LN(Z), where the score of a later token is -inf: eq. (3) with a free map.',
         'n = layer_norm(Z, ..., weights[\'norm1.weight\'])\n'
         'w = linear(n, ...).unflatten(-1, (heads, -1)).transpose(1, 2)      # (B, K, N, p)\n'
         'scores = ...                              # -inf for later tokens\n'
         'h = (scores.softmax(-1) @ w).transpose(1, 2).flatten(2)            # (B, N, K p)\nreturn Z + ...')),
    Exercise(
        'next_token_loss', loss_inputs, loss_loop,
        {'positions with -1 in the divisor': lambda l, y: loss(l, y) * (y >= 0).sum() / y.numel(),
         '-1 as the last token of the vocabulary: it should not count': lambda l, y: by_torch(l, y % l.shape[-1]),
         '-1 as token 0: it should not count': lambda l, y: NLL(l, y)[0].mean(),
         'the sum, not the mean': lambda l, y: NLL(l, y)[0][y >= 0].sum(),
         'the mean over texts of their means: every token counts the same': lambda l, y: (
             (NLL(l, y)[0] * (y >= 0)).sum(1) / (y >= 0).sum(1)).mean(),
         'bits: nats have the natural logarithm': lambda l, y: loss(l, y) / math.log(2),
         'the perplexity, exp of the loss': lambda l, y: loss(l, y).exp(),
         'the sign: a loss is minus the log-probability': lambda l, y: -loss(l, y),
         'minus the probability, without the logarithm': lambda l, y: -(-NLL(l, y)[0]).exp()[y >= 0].mean(),
         'minus the logit: the softmax is missing': lambda l, y: -l.gather(
             -1, y.clamp_min(0)[..., None])[..., 0][y >= 0].mean(),
         'the softmax over the positions, not over the vocabulary': lambda l, y: loss(l.log_softmax(1), y),
         'y moved by one more: it already is the token that follows': lambda l, y: loss(l[:, :-1], y[:, 1:])},
        [loss, by_torch, our_loss],
        ('How many positions count? And what is exp(900) in your computer?',
         'The mean, over positions with y >= 0, of log(sum_v exp(l_v)) - l_y.',
         'counts = y >= 0                           # (B, N)\nlog_p = logits.log_softmax(...)           # (B, N, V)\n'
         'log_p = log_p.gather(-1, y.clamp_min(0)[..., None])[..., 0]\nreturn -log_p[counts]...')),
]


def blocks(A):
    """The rows and columns of the tokens of subspace k in phi_k, for each k."""
    n = A.shape[1] // len(A)
    return [A[k, k * n:(k + 1) * n, k * n:(k + 1) * n] for k in range(len(A))]


def others(A):
    """The rows of all other tokens in phi_k, for each k."""
    n = A.shape[1] // len(A)
    return [torch.cat((A[k, :k * n], A[k, (k + 1) * n:])) for k in range(len(A))]
