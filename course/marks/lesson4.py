"""Lesson 4, CRATE: inputs."""
import torch
from grade import Exercise

PICTURES = (2, 3, 6, 12, 2, 3), (1, 2, 4, 8, 4, 2), (1, 4, 8, 4, 1, 2)      # B, C, H, W, h, w
SIZES = (2, 5, 3, 4, 7), (1, 6, 4, 3, 5), (3, 4, 5, 2, 6)                   # B, N, K, p, d; K p is not d
STEPS = (0.2, 1.5), (0.3, 0.7), (0.15, 2.0)                                 # eta, lam: thresholds that cut numbers off


def generator(seed):
    g = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(shape, generator=g, dtype=torch.float64)


def picture_inputs(seed):
    """(x (B, C, H, W), h, w)"""
    *shape, h, w = PICTURES[seed - 1]
    return 1 + 2 * generator(seed)(*shape), h, w


def norm_weights(randn, name, n):
    return {f'{name}.weight': 1 + 0.3 * randn(n), f'{name}.bias': 0.3 * randn(n)}


def token_inputs(seed):
    """(x (B, C, H, W), weights, h, w)"""
    (x, h, w), randn, d = picture_inputs(seed), generator(seed + 50), (7, 5, 3)[seed - 1]
    P, N = h * w * x.shape[1], x[0, 0].numel() // (h * w)
    return x, {**norm_weights(randn, 'patch_norm', P), 'patch.weight': 0.5 * randn(d, P), 'patch.bias': 0.5 * randn(d),
               **norm_weights(randn, 'token_norm', d), 'cls': randn(1, 1, d), 'pos': randn(1, N + 1, d)}, h, w


def layer_weights(randn, K, p, d):
    return {**norm_weights(randn, 'norm1', d), 'attn.U.weight': 0.6 * randn(K * p, d),
            'attn.W.weight': 0.5 * randn(d, K * p), 'attn.W.bias': 0.5 * randn(d),
            **norm_weights(randn, 'norm2', d), 'ista.D': randn(d, d) / d ** 0.5}


def layer_inputs(seed):
    """(Z (B, N, d), weights, heads, eta, lam, causal)"""
    (B, N, K, p, d), randn = SIZES[seed - 1], generator(seed)
    return 1 + 2 * randn(B, N, d), layer_weights(randn, K, p, d), K, *STEPS[seed - 1], seed == 2


def network_inputs(seed):
    """(x (B, C, H, W), weights, layers, heads, h, w, eta, lam)"""
    (x, embed, h, w), randn, (K, p, layers) = token_inputs(seed), generator(seed + 100), \
        ((3, 2, 2), (4, 3, 3), (5, 2, 4))[seed - 1]
    d, weights = embed['cls'].shape[-1], {f'embed.{k}': v for k, v in embed.items()}
    for i in range(layers):
        weights |= {f'layers.{i}.{k}': v for k, v in layer_weights(randn, K, p, d).items()}
    weights |= norm_weights(randn, 'read.norm', d) | {'read.head.weight': randn(4, d), 'read.head.bias': randn(4)}
    return x, weights, layers, K, h, w, *STEPS[seed - 1]


def text_inputs(seed):
    """(x (B, N), weights, layers, heads, eta, lam): the table of positions has more rows than there are tokens"""
    (B, N, K, p, d), randn, layers = SIZES[seed - 1], generator(seed), (2, 3, 2)[seed - 1]
    weights = {'embed.tok_emb.weight': randn(9, d), 'embed.pos_emb.weight': randn(N + 3, d)}
    for i in range(layers):
        weights |= {f'layers.{i}.{k}': v for k, v in layer_weights(randn, K, p, d).items()}
    x = torch.randint(9, (B, N), generator=torch.Generator().manual_seed(seed))
    return x, weights, layers, K, *STEPS[seed - 1]


def squared_error(weights, x, y):
    """The loss of a small network: x (n, 3), y (n,) -> ()."""
    return ((x @ weights['in']).tanh() @ weights['out'] - y).square().mean()


def training(seed):
    """(loss_of, weights, batches, rate)"""
    randn = generator(seed)
    batches = [(randn(4, 3), randn(4)) for _ in range((5, 4, 6)[seed - 1])]
    return squared_error, {'in': randn(3, 5), 'out': randn(5)}, batches, (0.05, 0.1, 0.02)[seed - 1]


EXERCISES = [
    Exercise('patches', picture_inputs),
    Exercise('tokens', token_inputs),
    Exercise('layer', layer_inputs),
    Exercise('classify', network_inputs),
    Exercise('predict', text_inputs),
    Exercise('train', training),
]
