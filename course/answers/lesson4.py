"""Lesson 4, solved."""
import torch
from torch.nn.functional import linear


def part(weights, name):
    return {k.removeprefix(f'{name}.'): v for k, v in weights.items() if k.startswith(f'{name}.')}


def norm(z, weights, name):
    """LayerNorm, which PyTorch has as torch.nn.functional.layer_norm."""
    # over the d numbers of each token alone; LayerNorm divides the variance by d, not by d - 1
    variance, mean = torch.var_mean(z, -1, correction=0, keepdim=True)
    normed = (z - mean) / (variance + 1e-5).sqrt()
    return normed * weights[f'{name}.weight'] + weights[f'{name}.bias']


def patches(x, h, w):
    B, C, H, W = x.shape
    # cut both axes in two; then the axes of the grid come first, and those inside a patch last
    x = x.reshape(B, C, H // h, h, W // w, w)
    return x.permute(0, 2, 4, 3, 5, 1).reshape(B, H // h * (W // w), h * w * C) # (B, N, h w C)


def tokens(x, weights, h, w):
    z = norm(patches(x, h, w), weights, 'patch_norm')           # (B, N, h w C)
    z = norm(linear(z, weights['patch.weight'], weights['patch.bias']), weights, 'token_norm')
    # the class token is one parameter: each picture gets a copy of it
    cls, pos = weights['cls'].expand(len(z), -1, -1), weights['pos']
    # positions are added last: the class token has one too
    return torch.cat((cls, z), 1) + pos                         # (B, N + 1, d)


def attention(z, weights, heads, causal):
    # the rows of U are K times p, head by head: cut the result (B, N, K p) into heads, heads first
    w = linear(z, weights['attn.U.weight']).unflatten(-1, (heads, -1)).transpose(1, 2)
    # w is (B, K, N, p). Its last axis says what p is, which need not be d / K
    scores = w @ w.mT / w.shape[-1] ** 0.5                      # (B, K, N, N)
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    h = scores.softmax(-1) @ w
    return linear(h.transpose(1, 2).flatten(2), weights['attn.W.weight'], weights['attn.W.bias'])


def ista(z, D, eta, lam):
    return (z + eta * (z - z @ D.T) @ D - eta * lam).relu()


def layer(Z, weights, heads, eta, lam, causal=False):
    # the skip carries the tokens as they are, around the norm
    half = Z + attention(norm(Z, weights, 'norm1'), weights, heads, causal)
    # no skip: ISTA starts at its input
    return ista(norm(half, weights, 'norm2'), weights['ista.D'], eta, lam)


def classify(x, weights, layers, heads, h, w, eta, lam):
    z = tokens(x, part(weights, 'embed'), h, w)
    for i in range(layers):
        z = layer(z, part(weights, f'layers.{i}'), heads, eta, lam)
    z = norm(z[:, 0], weights, 'read.norm')                     # the class token: (B, d)
    return linear(z, weights['read.head.weight'], weights['read.head.bias'])


def predict(x, weights, layers, heads, eta, lam):
    table = weights['embed.tok_emb.weight']                     # (V, d)
    z = table[x] + weights['embed.pos_emb.weight'][:x.shape[1]] # (B, N, d)
    for i in range(layers):
        z = layer(z, part(weights, f'layers.{i}'), heads, eta, lam, causal=True)
    # the same table reads the tokens: one inner product for each of V tokens
    return z @ table.T


def train(loss_of, weights, batches, rate):
    # clone: the steps must not change the weights that were given. detach: AdamW takes only leaves,
    # not results of a recorded computation
    weights = {k: v.detach().clone().requires_grad_() for k, v in weights.items()}
    optimizer, losses = torch.optim.AdamW(weights.values(), lr=rate), []
    for x, y in batches:
        loss = loss_of(weights, x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        # item: a number, which does not keep the computation of its step in memory
        losses.append(loss.item())
    return weights, torch.tensor(losses, dtype=torch.float64)
