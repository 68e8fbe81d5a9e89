"""Lesson 6, solved."""
import torch
from torch.nn.functional import layer_norm


def visible(noise, ratio):
    order, M = noise.argsort(1), int(noise.shape[1] * (1 - ratio))
    # order[i]: which patch is at place i, the least noise first. Its argsort is the way back: at
    # which place a patch is
    return order[:, :M], order.argsort(1)                       # (B, M), (B, N)


def embed(patches, hidden, weights):
    z = patches @ weights['patch.weight'].T + weights['patch.bias']  # (B, N, d)
    z = torch.where(hidden[..., None], weights['mask_token'], z)
    cls, pos = weights['cls'].expand(len(z), -1, -1), weights['pos']
    # positions come after the mask token: else a hidden patch would not know where it is
    return torch.cat((cls, z), 1) + pos                         # (B, N + 1, d)


def norm(z, weights, name):
    return layer_norm(z, z.shape[-1:], weights[f'{name}.weight'], weights[f'{name}.bias'])


def attention(z, weights, heads):
    w = (z @ weights['attn.U.weight'].T).unflatten(-1, (heads, -1)).transpose(1, 2)
    # w is (B, K, N, p)
    h = (w @ w.mT / w.shape[-1] ** 0.5).softmax(-1) @ w
    return h.transpose(1, 2).flatten(2) @ weights['attn.W.weight'].T + weights['attn.W.bias']


def decoder_layer(Y, weights, heads):
    y = norm(Y, weights, 'norm1') @ weights['E.weight'].T
    # minus: the step of eq. (2.16), against that of the encoder
    return y - attention(norm(y, weights, 'norm2'), weights, heads)


def targets(patches):
    # torch divides the variance by P - 1 if it is not told otherwise, as is asked for here
    variance, mean = torch.var_mean(patches, -1, keepdim=True)  # (B, N, 1)
    return (patches - mean) / (variance + 1e-6).sqrt()


def masked_loss(pred, target, hidden):
    # a mask as an index leaves a list of the hidden patches of all pictures: each counts alike
    return (pred - target)[hidden].square().mean()


def mssa(Z, U):
    P = Z[:, None] @ U                                          # (B, K, N, p)
    heads = torch.nn.functional.scaled_dot_product_attention(P, P, P)   # divides by sqrt(p)
    return (heads @ U.mT).sum(1)


def there_and_back(Z, U, steps):
    for _ in range(steps):
        Z = Z + mssa(Z, U) / steps
    Y = Z
    # the same steps with a minus. They are no exact inverse: each looks from where it stands
    for _ in range(steps):
        Y = Y - mssa(Y, U) / steps
    return Z, Y
