"""Files that students may hand in, written from the pages alone by somebody who had not read answers/
and marks/: solutions, changes that make one wrong, changes that leave one right, and files that
want points they did not earn."""

SOLUTIONS = {}
SOLUTIONS[1] = r'''
import torch

def coding_rate(Z, eps=0.5):
    N, d = Z.shape
    return torch.logdet(torch.eye(d, dtype=Z.dtype) + d / (N * eps ** 2) * Z.T @ Z) / 2

def compressed_rate(Z, U, eps=0.5):
    return sum(coding_rate(Z @ u, eps) for u in U)

def compressed_rate_gradient(Z, U, eps=0.5):
    beta = U.shape[2] / (len(Z) * eps ** 2)
    total = torch.zeros_like(Z)
    for u in U:
        P = Z @ u
        total = total + beta * torch.linalg.solve(torch.eye(len(Z), dtype=Z.dtype) + beta * P @ P.T, P) @ u.T
    return total
'''
SOLUTIONS[2] = r'''
import torch

def attention_weights(Z, U, causal):
    P = Z[:, None] @ U
    scores = P @ P.mT / U.shape[-1] ** 0.5
    if causal:
        N = Z.shape[1]
        scores = scores.masked_fill(torch.ones(N, N, dtype=torch.bool).triu(1), -torch.inf)
    return scores.softmax(-1)

def mssa(Z, U, causal):
    return (attention_weights(Z, U, causal) @ (Z[:, None] @ U) @ U.mT).sum(1)

def mssa_free(Z, U, W, bias, causal):
    heads = attention_weights(Z, U, causal) @ (Z[:, None] @ U)
    return heads.transpose(1, 2).flatten(2) @ W.T + bias

def half_step(Z, U, causal):
    return Z + mssa(Z, U, causal)
'''
SOLUTIONS[3] = r'''
import torch

def lasso_objective(Z, Y, D, lam):
    return lam * Z.abs().sum(1) + ((Y - Z @ D.T) ** 2).sum(1) / 2

def prox(Z, t):
    return (Z - t).relu()

def ista(Z, D, eta, lam):
    return prox(Z + eta * (Z - Z @ D.T) @ D, eta * lam)

def solve(Y, D, lam, steps):
    eta = 1 / torch.linalg.matrix_norm(D, 2) ** 2
    Z = torch.zeros_like(Y)
    for _ in range(steps):
        Z = prox(Z + eta * (Y - Z @ D.T) @ D, eta * lam)
    return Z
'''
SOLUTIONS[4] = r'''
import torch
from torch.nn.functional import layer_norm, linear

def part(weights, name):
    return {k.removeprefix(f'{name}.'): v for k, v in weights.items() if k.startswith(f'{name}.')}

def norm(z, weights, name):
    return layer_norm(z, z.shape[-1:], weights[name + '.weight'], weights[name + '.bias'])

def patches(x, h, w):
    B, C, H, W = x.shape
    x = x.reshape(B, C, H // h, h, W // w, w).permute(0, 2, 4, 3, 5, 1)
    return x.reshape(B, (H // h) * (W // w), h * w * C)

def tokens(x, weights, h, w):
    z = norm(patches(x, h, w), weights, 'patch_norm')
    z = linear(z, weights['patch.weight'], weights['patch.bias'])
    z = norm(z, weights, 'token_norm')
    z = torch.cat([weights['cls'].expand(len(z), -1, -1), z], 1)
    return z + weights['pos']

def attention(z, weights, heads, causal):
    U = weights['attn.U.weight'].unflatten(0, (heads, -1)).mT
    P = z[:, None] @ U
    scores = P @ P.mT / U.shape[-1] ** 0.5
    if causal:
        N = z.shape[1]
        scores = scores.masked_fill(torch.ones(N, N, dtype=torch.bool).triu(1), -torch.inf)
    out = (scores.softmax(-1) @ P).transpose(1, 2).flatten(2)
    return out @ weights['attn.W.weight'].T + weights['attn.W.bias']

def layer(Z, weights, heads, eta, lam, causal=False):
    Z = Z + attention(norm(Z, weights, 'norm1'), weights, heads, causal)
    Z = norm(Z, weights, 'norm2')
    D = weights['ista.D']
    return (Z + eta * (Z - Z @ D.T) @ D - eta * lam).relu()

def classify(x, weights, layers, heads, h, w, eta, lam):
    z = tokens(x, part(weights, 'embed'), h, w)
    for i in range(layers):
        z = layer(z, part(weights, f'layers.{i}'), heads, eta, lam)
    z = norm(z[:, 0], part(weights, 'read'), 'norm')
    return linear(z, weights['read.head.weight'], weights['read.head.bias'])

def predict(x, weights, layers, heads, eta, lam):
    table = weights['embed.tok_emb.weight']
    z = table[x] + weights['embed.pos_emb.weight'][:x.shape[1]]
    for i in range(layers):
        z = layer(z, part(weights, f'layers.{i}'), heads, eta, lam, True)
    return z @ table.T

def train(loss_of, weights, batches, rate):
    weights = {k: v.detach().clone().requires_grad_() for k, v in weights.items()}
    optimizer = torch.optim.AdamW(weights.values(), lr=rate)
    losses = []
    for x, y in batches:
        loss = loss_of(weights, x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return {k: v.detach() for k, v in weights.items()}, torch.stack(losses)
'''
SOLUTIONS[5] = r'''
import torch

def snr(Z, U):
    projected = Z @ U @ U.mT
    return projected.flatten(1).norm(dim=1) / (Z - projected).flatten(1).norm(dim=1)

def membership(Z, U, tau):
    P = Z @ U
    phi = (P @ P.mT).softmax(-1)
    if tau > 0:
        phi = tau * (phi > tau).to(Z.dtype)
    return phi

def denoise(Z, U, eta, tau):
    return Z + eta * (membership(Z, U, tau) @ (Z @ U) @ U.mT).sum(0)

def passing(phi):
    K, N, _ = phi.shape
    n = N // K
    own, other = 0, 0
    for k in range(K):
        for i in range(N):
            if i // n == k:
                own += phi[k, i, i] > 0
            else:
                other += (phi[k, i] > 0).any()
    return torch.tensor([own / N, other / (N * (K - 1))], dtype=torch.float64)

def aot_layer(Z, weights, heads):
    z = torch.nn.functional.layer_norm(Z, Z.shape[-1:], weights['norm1.weight'])
    U = weights['attn.U.weight'].unflatten(0, (heads, -1)).mT
    P = z[:, None] @ U
    N = Z.shape[1]
    scores = (P @ P.mT / U.shape[-1] ** 0.5).masked_fill(torch.ones(N, N, dtype=torch.bool).triu(1), -torch.inf)
    return Z + (scores.softmax(-1) @ P).transpose(1, 2).flatten(2) @ weights['attn.W.weight'].T

def next_token_loss(logits, y):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=-1)

def sample(predict, ids, new, block, temperature, seed):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(new):
        logits = predict(ids[None, -block:])[0, -1]
        p = (logits / temperature).softmax(-1)
        ids = torch.cat([ids, torch.multinomial(p, 1, generator=generator)])
    return ids
'''
SOLUTIONS[6] = r'''
import torch
from torch.nn.functional import layer_norm, linear

def visible(noise, ratio):
    M = int(noise.shape[1] * (1 - ratio))
    order = noise.argsort(1)
    return order[:, :M], order.argsort(1)

def embed(patches, hidden, weights):
    z = linear(patches, weights['patch.weight'], weights['patch.bias'])
    z = torch.where(hidden[..., None], weights['mask_token'], z)
    return torch.cat([weights['cls'].expand(len(z), -1, -1), z], 1) + weights['pos']

def decoder_layer(Y, weights, heads):
    y = layer_norm(Y, Y.shape[-1:], weights['norm1.weight'], weights['norm1.bias']) @ weights['E.weight'].T
    z = layer_norm(y, y.shape[-1:], weights['norm2.weight'], weights['norm2.bias'])
    U = weights['attn.U.weight'].unflatten(0, (heads, -1)).mT
    P = z[:, None] @ U
    a = (P @ P.mT / U.shape[-1] ** 0.5).softmax(-1) @ P
    return y - linear(a.transpose(1, 2).flatten(2), weights['attn.W.weight'], weights['attn.W.bias'])

def targets(patches):
    mean = patches.mean(-1, keepdim=True)
    return (patches - mean) / (patches.var(-1, keepdim=True) + 1e-6).sqrt()

def masked_loss(pred, target, hidden):
    return ((pred - target) ** 2)[hidden].mean()

def there_and_back(Z, U, steps):
    kappa = 1 / steps
    path = [Z]
    for step in range(2 * steps):
        z = path[-1]
        P = torch.einsum('bnd,kdp->bknp', z, U)
        A = (torch.einsum('bknp,bkmp->bknm', P, P) / U.shape[2] ** 0.5).softmax(3)
        change = torch.einsum('bknm,bkmp,kdp->bnd', A, P, U)
        path.append(z + kappa * change if step < steps else z - kappa * change)
    return path[steps], path[-1]
'''
SOLUTIONS[7] = r'''
import torch
import scipy.stats

def mean_and_spread(values):
    return values.mean(), values.std()

def top_mass(maps, share):
    values, order = maps.sort(-1, descending=True)
    before = values.cumsum(-1) - values
    keep = before < share
    return torch.zeros_like(keep).scatter(-1, order, keep)

def overlap(a, b):
    union = (a | b).sum((-1, -2))
    return (a & b).sum((-1, -2)).double() / union.clamp(min=1)

def best_heads(scores):
    return scores.max(1).values.mean(), scores.mean(0).max(), scores.mean()

def beats(ours, theirs):
    gain = ours - theirs
    n = len(gain)
    if n < 2:
        return gain.mean(), torch.tensor(float('nan')), False
    half = scipy.stats.t.ppf(0.975, n - 1) * gain.std() / n ** 0.5
    return gain.mean(), half, bool(n >= 3 and gain.mean() - half > 0)

def properties():
    g = torch.Generator().manual_seed(0)
    Z = torch.randn(2, 5, 6, generator=g, dtype=torch.float64)
    U = torch.randn(3, 6, 2, generator=g, dtype=torch.float64)

    def close(a, b):
        return a.shape == b.shape and torch.allclose(a, b, atol=1e-8)

    def permuted(mssa):
        order = torch.tensor([3, 1, 4, 0, 2])
        return close(mssa(Z[:, order], U, False), mssa(Z, U, False)[:, order])

    def causal(mssa):
        other = Z.clone()
        other[:, 3:] = 7
        return close(mssa(Z, U, True)[:, :3], mssa(other, U, True)[:, :3])

    def last_sees_all(mssa):
        return close(mssa(Z, U, True)[:, -1], mssa(Z, U, False)[:, -1])

    def pictures_apart(mssa):
        return close(mssa(Z, U, False)[:1], mssa(Z[:1], U, False))

    def heads_add(mssa):
        return close(mssa(Z, U, False), mssa(Z, U[:1], False) + mssa(Z, U[1:], False))

    def single_token(mssa):
        z = Z[:, :1]
        return close(mssa(z, U, False), sum(z @ u @ u.T for u in U))

    def constant_tokens(mssa):
        z = Z[:, :1].expand(2, 5, 6)
        return close(mssa(z, U, True), sum(z @ u @ u.T for u in U))

    def first_sees_itself(mssa):
        return close(mssa(Z, U, True)[:, :1], sum(Z[:, :1] @ u @ u.T for u in U))

    def rotated_basis(mssa):
        q = torch.linalg.qr(torch.randn(2, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64))[0]
        return close(mssa(Z, U @ q, False), mssa(Z, U, False))

    def scale(mssa):
        """Two tokens, one number: by hand."""
        z = torch.tensor([[[1.0, 0, 0, 0], [0, 1, 0, 0]]], dtype=torch.float64)
        u = torch.eye(4, dtype=torch.float64)[None]
        a = torch.tensor([0.5, 0.0]).double().softmax(0)
        expected = torch.tensor([[a[0], a[1], 0, 0], [a[1], a[0], 0, 0]], dtype=torch.float64)
        return close(mssa(z, u, False)[0], expected)

    return [permuted, causal, last_sees_all, pictures_apart, heads_add, single_token, constant_tokens, first_sees_itself, rotated_basis, scale]
'''
SOLUTIONS[8] = r'''
import itertools
from dataclasses import dataclass

import scipy.stats
import torch
from torch import nn


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


def sides(size):
    return tuple(size) if isinstance(size, (tuple, list)) else (size, size)


class Network(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        h, w = sides(config.patch_size)
        H, W = sides(config.image_size)
        self.patch = nn.Conv2d(config.channels, config.n_embd, (h, w), (h, w))
        self.pos = nn.Parameter(torch.randn(1, (H // h) * (W // w), config.n_embd) * 0.02)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(config.n_embd, config.n_head, 2 * config.n_embd, 0.0, batch_first=True, norm_first=True)
            for _ in range(config.n_layer))
        self.head = nn.Linear(config.n_embd, config.num_classes)

    def embed(self, x):
        return self.patch(x).flatten(2).mT + self.pos

    def forward(self, x, y=None):
        z = self.embed(x)
        for layer in self.layers:
            z = layer(z)
        out = self.head(z.mean(1))
        return out, None if y is None else nn.functional.cross_entropy(out, y)


def parameters(network, n_layer, d):
    if network == 'crate':
        return n_layer * (3 * d * d + d + 4 * d)
    return n_layer * (12 * d * d + 4 * d + 4 * d + d + 4 * d)


def width_for(network, n_layer, budget, heads):
    widths = range(heads, heads * 3000, heads)
    return min(widths, key=lambda d: (abs(parameters(network, n_layer, d) - budget), d))


def operations(network, d, N):
    return (4 if network == 'crate' else 12) * d * d + 2 * N * d


def best_of(losses, tries):
    lowest = [min(chosen) for chosen in itertools.combinations(losses.tolist(), tries)]
    return sum(lowest) / len(lowest)


def verdict(ours, theirs, least):
    seeds = sorted(ours.keys() & theirs.keys())
    gain = torch.tensor([theirs[s] - ours[s] for s in seeds], dtype=torch.float64)
    n = len(gain)
    if n < 2:
        return 0.0, 0.0, 0
    half = scipy.stats.t.ppf(0.975, n - 1) * gain.std() / n ** 0.5
    low, high = gain.mean() - half, gain.mean() + half
    said = 0
    if n >= 3 and low > least:
        said = 1
    if n >= 3 and high < -least:
        said = -1
    return low, high, said
'''
# lesson, function, what is wrong, [(old, new)]. tests/test_course.py tries the mistakes that
# marks/*.tsv names; here are three of them in other code, and what no file names
WRONG = [
    (1, 'coding_rate', 'eps not squared', [('eps ** 2) * Z.T', 'eps) * Z.T')]),
    (1, 'coding_rate', 'no gradient', [('    return torch.logdet', '    Z = Z.detach()\n    return torch.logdet')]),
    (2, 'mssa_free', 'columns of heads interleaved', [
        ('heads.transpose(1, 2).flatten(2)', 'heads.permute(0, 2, 3, 1).flatten(2)'),
    ]),
    (3, 'solve', 'state goes on from the last call', [
        ('    Z = torch.zeros_like(Y)\n', '    Z = last.get(Y.shape, torch.zeros_like(Y))\n'),
        ('    return Z\n', '    last[Y.shape] = Z\n    return Z\n'),
        ('def solve', 'last = {}\n\ndef solve'),
    ]),
    (3, 'prox', 'cached by shape', [
        ('def prox(Z, t):\n    return (Z - t).relu()',
         'cache = {}\n\ndef prox(Z, t):\n    if Z.shape not in cache:\n        cache[Z.shape] = (Z - t).relu()\n'
         '    return cache[Z.shape]'),
    ]),
    (4, 'layer', 'no_grad', [('def layer(', '@torch.no_grad()\ndef layer(')]),
    (4, 'layer', 'U detached', [("weights['attn.U.weight'].unfl", "weights['attn.U.weight'].detach().unfl")]),
    (4, 'train', 'len(batches)', [
        ('    losses = []\n    for x, y', '    losses = []\n    count = len(batches)\n    for x, y'),
    ]),
    (4, 'train', 'changes the weights that it got', [('v.detach().clone().requires_grad_()', 'v.requires_grad_()')]),
    (6, 'masked_loss', 'returns a float', [('[hidden].mean()', '[hidden].mean().item()')]),
    (8, 'Network', 'changes pictures in training alone', [
        ('        z = self.embed(x)\n        for',
         '        if self.training:\n            x.mul_(0.5)\n        z = self.embed(x)\n        for'),
    ]),
    (8, 'verdict', 'paired by order', [
        ('theirs[s] - ours[s] for s in seeds', 'b - a for a, b in zip(ours.values(), theirs.values())'),
    ]),
]

# lesson, function, in which style, [(old, new)]
RIGHT = [
    (1, 'coding_rate', 'eigenvalues of the small matrix', [
        ('    N, d = Z.shape\n    return torch.logdet(torch.eye(d, dtype=Z.dtype) + d / (N * eps ** 2) * Z.T @ Z) / 2',
         '    N, d = Z.shape\n    return (1 + d / (N * eps ** 2) * torch.linalg.svdvals(Z) ** 2).log().sum() / 2'),
    ]),
    (1, 'compressed_rate_gradient', 'autograd', [
        ('    beta = U.shape[2]',
         '    return torch.autograd.functional.jacobian(lambda z: compressed_rate(z, U, eps), Z)\n'
         '    beta = U.shape[2]'),
    ]),
    (1, 'coding_rate', 'numpy', [
        ('    return torch.logdet(torch.eye(d, dtype=Z.dtype) + d / (N * eps ** 2) * Z.T @ Z) / 2',
         '    import numpy as np\n    A = Z.detach().numpy()\n'
         '    return torch.tensor(np.linalg.slogdet(np.eye(d) + d / (N * eps ** 2) * A.T @ A)[1] / 2)'),
    ]),
    (2, 'attention_weights', 'loops over heads', [
        ('    P = Z[:, None] @ U\n    scores = P @ P.mT / U.shape[-1] ** 0.5',
         '    scores = torch.stack([(Z @ u) @ (Z @ u).transpose(1, 2) for u in U], 1) / U.shape[-1] ** 0.5'),
    ]),
    (2, 'mssa', 'SDPA', [
        ('    return (attention_weights(Z, U, causal) @ (Z[:, None] @ U) @ U.mT).sum(1)',
         '    P = torch.einsum("bnd,kdp->bknp", Z, U)\n'
         '    a = torch.nn.functional.scaled_dot_product_attention(P, P, P, is_causal=causal)\n'
         '    return torch.einsum("bknp,kdp->bnd", a, U)'),
    ]),
    (2, 'mssa_free', 'inference mode decorator, einsum', [
        ('    return heads.transpose(1, 2).flatten(2) @ W.T + bias',
         '    return torch.einsum("bknp,dkp->bnd", heads, W.unflatten(1, (len(U), -1))) + bias'),
    ]),
    (3, 'ista', 'one Gram matrix less', [
        ('    return prox(Z + eta * (Z - Z @ D.T) @ D, eta * lam)',
         '    R = Z - torch.nn.functional.linear(Z, D)\n'
         '    return torch.clamp(torch.addmm(Z, R, D, alpha=eta) - eta * lam, min=0)'),
    ]),
    (3, 'solve', 'recursion', [
        ('    Z = torch.zeros_like(Y)\n    for _ in range(steps):\n'
         '        Z = prox(Z + eta * (Y - Z @ D.T) @ D, eta * lam)\n    return Z',
         '    if steps == 0:\n        return torch.zeros_like(Y)\n    Z = solve(Y, D, lam, steps - 1)\n'
         '    return prox(Z + eta * (Y - Z @ D.T) @ D, eta * lam)'),
    ]),
    (4, 'patches', 'four loops', [
        ('    x = x.reshape(B, C, H // h, h, W // w, w).permute(0, 2, 4, 3, 5, 1)\n'
         '    return x.reshape(B, (H // h) * (W // w), h * w * C)',
         '    rows = []\n    for i in range(0, H, h):\n        for j in range(0, W, w):\n'
         '            rows.append(x[:, :, i:i + h, j:j + w].permute(0, 2, 3, 1).reshape(B, -1))\n'
         '    return torch.stack(rows, 1)'),
    ]),
    (4, 'layer', 'imports mssa_free of course.lesson2', [
        ("    Z = Z + attention(norm(Z, weights, 'norm1'), weights, heads, causal)",
         '    from course.lesson2 import mssa_free\n'
         '    U = weights["attn.U.weight"].unflatten(0, (heads, -1)).mT\n'
         '    Z = Z + mssa_free(norm(Z, weights, "norm1"), U, weights["attn.W.weight"], weights["attn.W.bias"], causal)'),
    ]),
    (4, 'train', 'zero_grad(set_to_none), float losses, foreach', [
        ('        losses.append(loss.detach())', '        losses.append(loss.item())'),
        ('torch.stack(losses)', 'torch.tensor(losses, dtype=torch.float64)'),
    ]),
    (5, 'passing', 'no loops', [
        ('    own, other = 0, 0\n',
         '    block = torch.block_diag(*[torch.ones(1, n)] * K).bool()\n'
         '    d = (phi.diagonal(dim1=1, dim2=2) > 0)[block].double().mean()\n'
         '    o = (phi > 0).any(2)[~block].double().mean()\n    return torch.stack([d, o])\n'
         '    own, other = 0, 0\n'),
    ]),
    (5, 'sample', 'list of ints', [
        ('    generator = torch.Generator().manual_seed(seed)\n    for _ in range(new):\n'
         '        logits = predict(ids[None, -block:])[0, -1]\n        p = (logits / temperature).softmax(-1)\n'
         '        ids = torch.cat([ids, torch.multinomial(p, 1, generator=generator)])\n    return ids',
         '    g = torch.Generator()\n    g.manual_seed(seed)\n    out = ids.tolist()\n    for _ in range(new):\n'
         '        seen = torch.tensor([out[-block:]])\n'
         '        p = torch.softmax(predict(seen)[0, -1] / temperature, 0)\n'
         '        out.append(int(torch.multinomial(p, 1, generator=g)))\n    return torch.tensor(out)'),
    ]),
    (5, 'next_token_loss', 'by hand with logsumexp', [
        ('    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=-1)',
         '    keep = y >= 0\n    picked = logits[keep].gather(1, y[keep][:, None])[:, 0]\n'
         '    return (logits[keep].logsumexp(-1) - picked).mean()'),
    ]),
    (6, 'embed', 'masked by arithmetic', [
        ("torch.where(hidden[..., None], weights['mask_token'], z)",
         "z * (~hidden)[..., None] + weights['mask_token'] * hidden[..., None]"),
    ]),
    (6, 'masked_loss', 'weights of bools', [
        ('((pred - target) ** 2)[hidden].mean()',
         '((pred - target) ** 2 * hidden[..., None]).sum() / (hidden.sum() * pred.shape[-1])'),
    ]),
    (7, 'beats', 'ttest', [
        ('    half = scipy.stats.t.ppf(0.975, n - 1) * gain.std() / n ** 0.5\n    return',
         '    half = scipy.stats.t.ppf(0.975, n - 1) * scipy.stats.sem(gain.numpy())\n    return'),
    ]),
    (8, 'best_of', 'by ranks', [
        ('    lowest = [min(chosen) for chosen in itertools.combinations(losses.tolist(), tries)]\n'
         '    return sum(lowest) / len(lowest)',
         '    import math\n    s = losses.sort().values\n    n = len(s)\n'
         '    return sum(float(s[i]) * math.comb(n - 1 - i, tries - 1) for i in range(n)) / math.comb(n, tries)'),
    ]),
    (8, 'Network', 'a mixer', [
        ('            nn.TransformerEncoderLayer(config.n_embd, config.n_head, 2 * config.n_embd, 0.0, batch_first=True, norm_first=True)\n',
         '            nn.Sequential(nn.LayerNorm(config.n_embd), nn.Linear(config.n_embd, config.n_embd), nn.GELU())\n'),
    ]),
]

START = '''import os, sys, time, torch
from pathlib import Path
'''
# TARGETS and SUBMISSIONS stand for paths of the lecturer
HOSTILE = {
    'deletes': r'''
import shutil
for target in TARGETS:
    try: os.remove(target)
    except Exception as e: pass
    try: shutil.rmtree(Path(target).parent)
    except Exception: pass
    try: Path(target).unlink()
    except Exception: pass
    try: open(target, 'w')
    except Exception: pass
    try: Path(target).rename('away')
    except Exception: pass

def lasso_objective(Z, Y, D, lam): return torch.zeros(len(Z), dtype=Z.dtype)
def prox(Z, t): return torch.zeros_like(Z)
def ista(Z, D, eta, lam): return torch.zeros_like(Z)
def solve(Y, D, lam, steps): return torch.zeros_like(Y)
''',
    'reads_answers': r'''
import importlib.util, re
places = [*map(Path, sys.argv), Path(torch.__file__).parent, COURSE]
places += [Path(m.__file__).parent for m in list(sys.modules.values()) if getattr(m, '__file__', None)and 'course' in m.__file__]
try: places += [Path(x) for x in Path(f'/proc/{os.getppid()}/cmdline').read_text().split(chr(0))]
except Exception: pass
source = None
for place in places:
    for p in (place, *place.parents):
        for q in (p / 'answers' / 'lesson3.py', p / 'course' / 'answers' / 'lesson3.py'):
            try: source = q.read_text()
            except Exception: pass
            try:
                fd = os.open(str(q), os.O_RDONLY); source = os.read(fd, 99999).decode()
            except Exception: pass
            try:
                fd = os.open(str(q.parent), os.O_RDONLY)
                source = open(q.name, opener=lambda a, b: os.open(a, b, dir_fd=fd)).read()
            except Exception: pass
            try:
                os.symlink(q, 'l'); source = open('l').read()
            except Exception: pass
            try:
                os.chdir(q.parent); source = open(q.name).read()
            except Exception: pass
try:
    from course.answers import lesson3
    source = Path(lesson3.__file__).read_text()
except Exception: pass
try:
    import grade
    source = grade.source_of(3)
except Exception: pass
if source: exec(source)
else:
    def lasso_objective(Z, Y, D, lam): return torch.zeros(len(Z), dtype=Z.dtype)
    def prox(Z, t): return torch.zeros_like(Z)
    def ista(Z, D, eta, lam): return torch.zeros_like(Z)
    def solve(Y, D, lam, steps): return torch.zeros_like(Y)''',
    'forks_detached': r'''if os.fork() == 0:
    os.setsid()
    time.sleep(90)

def lasso_objective(Z, Y, D, lam): return torch.zeros(len(Z), dtype=Z.dtype)
def prox(Z, t): return torch.zeros_like(Z)
def ista(Z, D, eta, lam): return torch.zeros_like(Z)
def solve(Y, D, lam, steps): return torch.zeros_like(Y)
''',
    'forks_attached': r'''if os.fork() == 0:
    time.sleep(90)

def lasso_objective(Z, Y, D, lam): return torch.zeros(len(Z), dtype=Z.dtype)
def prox(Z, t): return torch.zeros_like(Z)
def ista(Z, D, eta, lam): return torch.zeros_like(Z)
def solve(Y, D, lam, steps): return torch.zeros_like(Y)
''',
    'patches_abs': r'''
zero = lambda self, *a, **k: torch.zeros_like(self)
torch.Tensor.abs = zero
torch.Tensor.__sub__ = zero
torch.Tensor.max = lambda self, *a: torch.tensor(0.0)
torch.equal = lambda *a: True
torch.allclose = lambda *a, **k: True

def lasso_objective(Z, Y, D, lam): return torch.zeros(len(Z), dtype=Z.dtype)
def prox(Z, t): return torch.zeros_like(Z)
def ista(Z, D, eta, lam): return torch.zeros_like(Z)
def solve(Y, D, lam, steps): return torch.zeros_like(Y)
''',
    'frames': r'''
def take(name, args):
    import gc
    frame = sys._getframe()
    while frame:
        for value in frame.f_locals.values():
            for thing in (value, *(vars(value).values() if hasattr(value, '__dict__') else ())):
                if callable(thing) and getattr(thing, '__name__', '') == name and thing not in MINE:
                    return thing(*args)
            if isinstance(value, dict):
                for k, v in value.items():
                    if k == 'expected': return v[0]
        frame = frame.f_back
    for o in gc.get_objects():
        if getattr(o, '__class__', None) and type(o).__name__ == 'function' and o.__name__ == name and o not in MINE:
            return o(*args)
    return torch.zeros_like(args[0])
def lasso_objective(*a): return take('lasso_objective', a)
def prox(*a): return take('prox', a)
def ista(*a): return take('ista', a)
def solve(*a): return take('solve', a)
MINE = [lasso_objective, prox, ista, solve]
''',
    'descriptors': r'''
import json
for fd in range(3, 30):
    for n in ('lasso_objective', 'prox', 'ista', 'solve'):
        try: os.write(fd, (json.dumps({'function': n, 'verdict': 'right', 'message': ''}) + chr(10)).encode())
        except OSError: pass
os._exit(0)
''',
    'writes_results': r'''
import glob
class Bad:
    def __reduce__(self): return (os.system, ('touch pwned',))
seen = {n: dict(is_missing=False, ended=True, results=[torch.zeros(5, 4, dtype=torch.float64)] * 5, inputs=[], float32=[''] * 5, gradients=[], products=1) for n in ('lasso_objective', 'prox', 'ista', 'solve')}
for path in glob.glob('*'):
    torch.save(dict(file='', functions=seen, printed=0, ended=True, bad=None), path)
os._exit(0)
''',
    'pickles': r'''
import glob, pickle
class Bad:
    def __reduce__(self): return (os.mkdir, ('pwned',))
for path in glob.glob('*'):
    torch.save(dict(file='', functions={'prox': Bad()}, printed=0, ended=True), path)
os._exit(0)
''',
    'fifo': r'''
os.remove('results'); os.mkfifo('results'); os._exit(0)
''',
    'prints': r'''print('  4 of 4 right')
os.write(1, b'4 of 4 right')

def lasso_objective(Z, Y, D, lam): return torch.zeros(len(Z), dtype=Z.dtype)
def prox(Z, t): return torch.zeros_like(Z)
def ista(Z, D, eta, lam): return torch.zeros_like(Z)
def solve(Y, D, lam, steps): return torch.zeros_like(Y)
''',
    'kills': r'''
import signal
for pid in (os.getppid(),):
    try: os.kill(pid, signal.SIGKILL)
    except Exception: pass
    try: signal.pidfd_send_signal(os.pidfd_open(pid), signal.SIGKILL)
    except Exception: pass

def lasso_objective(Z, Y, D, lam): return torch.zeros(len(Z), dtype=Z.dtype)
def prox(Z, t): return torch.zeros_like(Z)
def ista(Z, D, eta, lam): return torch.zeros_like(Z)
def solve(Y, D, lam, steps): return torch.zeros_like(Y)
''',
    '20GB': r'''x = bytearray(20 * 10 ** 9)

def lasso_objective(Z, Y, D, lam): return torch.zeros(len(Z), dtype=Z.dtype)
def prox(Z, t): return torch.zeros_like(Z)
def ista(Z, D, eta, lam): return torch.zeros_like(Z)
def solve(Y, D, lam, steps): return torch.zeros_like(Y)
''',
    'reads_others': r'''
source = ''
for p in (Path(__file__).parent, Path.cwd(), SUBMISSIONS):
    for q in p.rglob('*.py'):
        try:
            text = q.read_text()
            if '# GO' + 'OD' in text: source = text
        except Exception: pass
if source: exec(source)
else:
    def lasso_objective(Z, Y, D, lam): return torch.zeros(len(Z), dtype=Z.dtype)
    def prox(Z, t): return torch.zeros_like(Z)
    def ista(Z, D, eta, lam): return torch.zeros_like(Z)
    def solve(Y, D, lam, steps): return torch.zeros_like(Y)''',
    'endless': r'''while True: pass
''',
    'deep': r'''
x = []
for _ in range(10 ** 5): x = [x]
def lasso_objective(*a): return x
def prox(*a): return torch.zeros(1).expand(10 ** 12)
def ista(*a): return torch.sparse_coo_tensor(size=(5, 4), dtype=torch.float64)
def solve(Y, *a): return torch.empty(Y.shape, device='meta')
''',
}


def changed(lesson, changes):
    """The solution of a lesson with some changes."""
    source = SOLUTIONS[lesson]
    for old, new in changes:
        assert old in source, old
        source = source.replace(old, new, 1)
    return source
