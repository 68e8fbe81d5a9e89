"""Lesson 5, denoising and AoT: inputs."""
import torch
from grade import Exercise

SIZES = (3, 6, 2, 5), (5, 10, 3, 4), (4, 8, 2, 7)               # K, N, p, d; N is a multiple of K
CLUSTERS = (3, 5, 2, 8), (5, 4, 3, 7), (4, 3, 2, 9)             # K, n, p, d
LAYERS = (2, 5, 3, 4, 7), (1, 6, 4, 3, 5), (3, 4, 5, 2, 6)      # B, N, K, p, d


def generator(seed):
    g = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(shape, generator=g, dtype=torch.float64)


def clusters(seed):
    """(Z (K, n, d), U (K, d, p)): the columns of each U_k are orthonormal, its tokens are near it."""
    randn, (K, n, p, d) = generator(seed), CLUSTERS[seed - 1]
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
    K, N, *_ = SIZES[seed - 1]
    size, chance = torch.rand(2, K, N, N, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    own = torch.block_diag(*[torch.ones(1, N // K)] * K)[..., None] * torch.eye(N)      # (K, N, N)
    return (size * (chance < 0.08 + 0.6 * own),)


def layer_inputs(seed):
    """(Z (B, N, d), weights, heads)"""
    randn, (B, N, K, p, d) = generator(seed), LAYERS[seed - 1]
    return 1 + 2 * randn(B, N, d), {'norm1.weight': 1 + 0.3 * randn(d), 'attn.U.weight': 0.6 * randn(K * p, d),
                                    'attn.W.weight': 0.5 * randn(d, K * p)}, K


def loss_inputs(seed):
    """(logits (B, N, V), y (B, N)): logits near 900 with the second seed, one near -900 with the third."""
    (B, N, V), g = ((2, 5, 7), (3, 4, 6), (2, 6, 9))[seed - 1], torch.Generator().manual_seed(seed + 20)
    y = torch.randint(V, (B, N), generator=g)
    y[0, 1], y[0, 3], y[-1, N - 1] = -1, -1, -1
    logits = 3 * generator(seed)(B, N, V) + 900 * (seed == 2)
    logits[0, 0, y[0, 0]] -= 900 * (seed == 3)
    return logits, y


def chain(table, block):
    """A network whose logits depend on the last token, and on the tokens that it sees: at most `block`."""
    def predict(x):
        if x.dim() != 2 or x.shape[1] > block:
            raise ValueError(f'predict takes (1, n) with n at most {block}, and got {tuple(x.shape)}')
        place = torch.arange(x.shape[1], dtype=table.dtype)[:, None]
        return table[x] + table[x].cumsum(1) / (1 + place) + (place * table[0]).sin()
    return predict


def sampling(seed):
    """(predict, ids (N,), new, block, temperature, seed)"""
    V, N, new, block, temperature = ((7, 3, 9, 5, 0.7), (5, 1, 12, 4, 1.0), (9, 6, 8, 5, 1.6))[seed - 1]
    seed = (7, 10, 3)[seed - 1]  # that do not repeat one token
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(V, (N,), generator=g)
    return chain(2 * generator(seed)(V, V), block), ids, new, block, temperature, seed + 3


EXERCISES = [
    Exercise('snr', clusters),
    Exercise('membership', mixture),
    Exercise('denoise', denoise_inputs),
    Exercise('passing', weights_that_pass),
    Exercise('aot_layer', layer_inputs),
    Exercise('next_token_loss', loss_inputs),
    Exercise('sample', sampling),
]
