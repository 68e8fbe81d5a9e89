"""Lesson 4, solved."""
import torch
from torch.nn.functional import layer_norm, linear


def part(weights, name):
    return {k.removeprefix(f'{name}.'): v for k, v in weights.items() if k.startswith(f'{name}.')}


def norm(z, weights, name):
    return layer_norm(z, z.shape[-1:], weights[f'{name}.weight'], weights[f'{name}.bias'])


def patches(x, h, w):
    B, C, H, W = x.shape
    x = x.reshape(B, C, H // h, h, W // w, w)
    return x.permute(0, 2, 4, 3, 5, 1).reshape(B, H // h * (W // w), h * w * C)         # (B, N, h w C)


def tokens(x, weights, h, w):
    z = linear(norm(patches(x, h, w), weights, 'patch_norm'), weights['patch.weight'], weights['patch.bias'])
    z = norm(z, weights, 'token_norm')                                                  # (B, N, d)
    return torch.cat((weights['cls'].expand(len(z), -1, -1), z), 1) + weights['pos']    # (B, N + 1, d)


def layer(Z, weights, heads, eta, lam):
    n = norm(Z, weights, 'norm1')
    w = linear(n, weights['attn.U.weight']).unflatten(-1, (heads, -1)).transpose(1, 2)  # (B, K, N, p)
    h = (w @ w.mT / w.shape[-1] ** 0.5).softmax(-1) @ w
    Z = Z + linear(h.transpose(1, 2).flatten(2), weights['attn.W.weight'], weights['attn.W.bias'])
    n, D = norm(Z, weights, 'norm2'), weights['ista.D']
    return (n + eta * (n - n @ D.T) @ D - eta * lam).relu()


def classify(x, weights, layers, heads, h, w, eta, lam):
    z = tokens(x, part(weights, 'embed'), h, w)
    for i in range(layers):
        z = layer(z, part(weights, f'layers.{i}'), heads, eta, lam)
    return linear(norm(z[:, 0], weights, 'read.norm'), weights['read.head.weight'], weights['read.head.bias'])
