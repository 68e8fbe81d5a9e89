"""Lesson 6, solved."""
import torch
from torch.nn.functional import layer_norm


def visible(noise, ratio):
    order, M = noise.argsort(1), int(noise.shape[1] * (1 - ratio))                      # the least noise first
    return order[:, :M], order.argsort(1)                                               # (B, M), (B, N)


def embed(patches, hidden, weights):
    z = patches @ weights['patch.weight'].T + weights['patch.bias']                     # (B, N, d)
    z = torch.where(hidden[..., None], weights['mask_token'], z)
    cls, pos = weights['cls'].expand(len(z), -1, -1), weights['pos']
    return torch.cat((cls, z), 1) + pos                                                 # (B, N + 1, d)


def norm(z, weights, name):
    return layer_norm(z, z.shape[-1:], weights[f'{name}.weight'], weights[f'{name}.bias'])


def attention(z, weights, heads):
    w = (z @ weights['attn.U.weight'].T).unflatten(-1, (heads, -1)).transpose(1, 2)     # (B, K, N, p)
    h = (w @ w.mT / w.shape[-1] ** 0.5).softmax(-1) @ w
    return h.transpose(1, 2).flatten(2) @ weights['attn.W.weight'].T + weights['attn.W.bias']


def decoder_layer(Y, weights, heads):
    y = norm(Y, weights, 'norm1') @ weights['E.weight'].T
    return y - attention(norm(y, weights, 'norm2'), weights, heads)


def targets(patches):
    variance, mean = torch.var_mean(patches, -1, keepdim=True)                          # (B, N, 1)
    return (patches - mean) / (variance + 1e-6).sqrt()


def masked_loss(pred, target, hidden):
    return (pred - target)[hidden].square().mean()
