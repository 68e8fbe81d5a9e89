"""The inputs for lesson 4, CRATE."""
import torch
from grade import Exercise, normal, of_size
from student import made

# B, C, H, W, h, w for each seed
PICTURES = (
    (2, 3, 6, 12, 2, 3),
    (1, 2, 4, 8, 4, 2),
    (1, 4, 8, 4, 1, 2),
)
# B, N, K, p, d for each seed; K p is not d
SIZES = (
    (2, 5, 3, 4, 7),
    (1, 6, 4, 3, 5),
    (3, 4, 5, 2, 6),
)
# d, K, p, layers of the network for pictures, for each seed
NETWORKS = (
    (7, 3, 2, 2),
    (5, 4, 3, 3),
    (3, 5, 2, 4),
)
# eta, lam for each seed: thresholds that cut numbers off
STEPS = (
    (0.2, 1.5),
    (0.3, 0.7),
    (0.15, 2.0),
)


def picture_inputs(seed):
    """(x (B, C, H, W), h, w)"""
    B, C, H, W, h, w = of_size(PICTURES, seed)
    return 1 + 2 * normal(seed)(B, C, H, W), h, w


# ---- weights ------------------------------------------------------------------------------------

def norm_weights(randn, name, n):
    return {f'{name}.weight': 1 + 0.3 * randn(n), f'{name}.bias': 0.3 * randn(n)}


def embedding_weights(randn, P, N, d):
    return {
        **norm_weights(randn, 'patch_norm', P),
        'patch.weight': 0.5 * randn(d, P),
        'patch.bias': 0.5 * randn(d),
        **norm_weights(randn, 'token_norm', d),
        'cls': randn(1, 1, d),
        'pos': randn(1, N + 1, d),
    }


def layer_weights(randn, K, p, d):
    return {
        **norm_weights(randn, 'norm1', d),
        'attn.U.weight': 0.6 * randn(K * p, d),
        'attn.W.weight': 0.5 * randn(d, K * p),
        'attn.W.bias': 0.5 * randn(d),
        **norm_weights(randn, 'norm2', d),
        'ista.D': randn(d, d) / d ** 0.5,
    }


def with_prefix(prefix, weights):
    return {f'{prefix}.{name}': tensor for name, tensor in weights.items()}


# ---- inputs -------------------------------------------------------------------------------------

def token_inputs(seed):
    """(x (B, C, H, W), weights, h, w)"""
    x, h, w = picture_inputs(seed)
    B, C, H, W = x.shape
    d = of_size(NETWORKS, seed)[0]
    N = (H // h) * (W // w)
    return x, embedding_weights(normal(seed + 50), h * w * C, N, d), h, w


def layer_inputs(seed):
    """(Z (B, N, d), weights, heads, eta, lam, causal)"""
    B, N, K, p, d = of_size(SIZES, seed)
    eta, lam = of_size(STEPS, seed)
    randn = normal(seed)
    Z = 1 + 2 * randn(B, N, d)
    return Z, layer_weights(randn, K, p, d), K, eta, lam, of_size((False, True, False), seed)


def network_inputs(seed):
    """(x (B, C, H, W), weights, layers, heads, h, w, eta, lam)"""
    x, embedding, h, w = token_inputs(seed)
    d, K, p, layers = of_size(NETWORKS, seed)
    eta, lam = of_size(STEPS, seed)
    randn = normal(seed + 100)
    weights = with_prefix('embed', embedding)
    for i in range(layers):
        weights.update(with_prefix(f'layers.{i}', layer_weights(randn, K, p, d)))
    weights.update(norm_weights(randn, 'read.norm', d))
    weights['read.head.weight'] = randn(4, d)
    weights['read.head.bias'] = randn(4)
    return x, weights, layers, K, h, w, eta, lam


def text_inputs(seed):
    """(x (B, N), weights, layers, heads, eta, lam). The table of positions has more rows than there
    are tokens."""
    B, N, K, p, d = of_size(SIZES, seed)
    eta, lam = of_size(STEPS, seed)
    layers = of_size((2, 3, 2), seed)
    randn = normal(seed)
    weights = {
        'embed.tok_emb.weight': randn(9, d),
        'embed.pos_emb.weight': randn(N + 3, d),
    }
    for i in range(layers):
        weights.update(with_prefix(f'layers.{i}', layer_weights(randn, K, p, d)))
    x = torch.randint(9, (B, N), generator=torch.Generator().manual_seed(seed))
    return x, weights, layers, K, eta, lam


def training_inputs(seed):
    """(loss_of, weights, batches, rate)"""
    randn = normal(seed)
    batches = []
    for _ in range(of_size((5, 4, 6), seed)):
        x = randn(4, 3)
        y = randn(4)
        batches.append((x, y))
    weights = {'in': randn(3, 5), 'out': randn(5)}
    rate = of_size((0.05, 0.1, 0.02), seed)
    return made('small_loss'), weights, made('one_by_one', batches), rate


EXERCISES = [
    Exercise('patches', picture_inputs),
    Exercise('tokens', token_inputs, gradient=(1,)),
    Exercise('layer', layer_inputs, gradient=(0, 1)),
    Exercise('classify', network_inputs, gradient=(1,)),
    Exercise('predict', text_inputs, gradient=(1,)),
    Exercise('train', training_inputs),
]
