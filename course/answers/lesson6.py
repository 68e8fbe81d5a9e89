"""Lesson 6, solved."""
import torch
from torch.nn.functional import layer_norm


def visible(noise, ratio):
    order = noise.argsort(1)                                                            # (B, N), the least first
    return order[:, :int(noise.shape[1] * (1 - ratio))], order.argsort(1)


def embed(patches, hidden, weights):
    z = patches @ weights['patch.weight'].T + weights['patch.bias']                     # (B, N, d)
    z = torch.where(hidden[..., None], weights['mask_token'], z)
    return torch.cat((weights['cls'].expand(len(z), -1, -1), z), 1) + weights['pos']    # (B, N + 1, d)


def decoder_layer(Y, weights, heads):
    Y = layer_norm(Y, Y.shape[-1:], weights['norm1.weight'], weights['norm1.bias']) @ weights['E.weight'].T
    n = layer_norm(Y, Y.shape[-1:], weights['norm2.weight'], weights['norm2.bias'])
    w = (n @ weights['attn.U.weight'].T).unflatten(-1, (heads, -1)).transpose(1, 2)     # (B, K, N, p)
    h = (w @ w.mT / w.shape[-1] ** 0.5).softmax(-1) @ w
    return Y - (h.transpose(1, 2).flatten(2) @ weights['attn.W.weight'].T + weights['attn.W.bias'])


def targets(patches):
    variance, mean = torch.var_mean(patches, -1, keepdim=True)                          # (B, N, 1)
    return (patches - mean) / (variance + 1e-6).sqrt()


def masked_loss(pred, target, hidden):
    return (pred - target)[hidden].square().mean()
