"""The inputs for lesson 5, denoising and AoT."""
import torch
from grade import Exercise, network, normal, of_size, seeded, variant
from student import made

# K, N, p, d for each seed; N is a multiple of K
SIZES = (
    (3, 6, 2, 5),
    (5, 10, 3, 4),
    (4, 8, 2, 7),
)
# K, n, p, d for each seed
CLUSTERS = (
    (3, 5, 2, 8),
    (5, 4, 3, 7),
    (4, 3, 2, 9),
)
# B, N, K, p, d for each seed
LAYERS = (
    (2, 5, 3, 4, 7),
    (1, 6, 4, 3, 5),
    (3, 4, 5, 2, 6),
)
# B, N, V, what is added to all logits, and to a single one, for each seed
LOGITS = (
    (2, 5, 7, 0, 0),
    (3, 4, 6, 900, 0),
    (2, 6, 9, 0, -900),
)
# V, N, new, block, temperature, and a seed with which the draws do not repeat one token
SAMPLES = (
    (7, 3, 9, 5, 0.7, 7),
    (5, 1, 12, 4, 1.0, 10),
    (9, 6, 8, 5, 1.6, 3),
)


def clusters(seed):
    """(Z (K, n, d), U (K, d, p)). The columns of each U_k are orthonormal, its tokens are near
    it."""
    K, n, p, d = of_size(CLUSTERS, seed)
    randn = normal(seed)
    U = torch.linalg.qr(randn(K, d, p))[0]
    signal = 1.5 * randn(K, n, p) @ U.mT
    return signal + 0.4 * randn(K, n, d), U


def mixture(seed):
    """(Z (N, d), U (K, d, p), tau)"""
    K, N, p, d = of_size(SIZES, seed)
    randn = normal(seed)
    return randn(N, d), 0.6 * randn(K, d, p), of_size((0.0, 0.3, 0.55), seed)


def denoise_inputs(seed):
    """(Z (N, d), U (K, d, p), eta, tau)"""
    Z, U, tau = mixture(seed)
    return Z, U, of_size((0.7, 0.2, 1.3), seed), tau


def passing_inputs(seed):
    """(phi (K, N, N),): most tokens see themselves in their own subspace, few see anything
    elsewhere."""
    K, N, p, d = of_size(SIZES, seed)
    sizes, draws = torch.rand(2, K, N, N, generator=seeded(seed), dtype=torch.float64)
    own_subspace = torch.eye(K).repeat_interleave(N // K, dim=1)        # (K, N)
    sees_itself = own_subspace[..., None] * torch.eye(N)                # (K, N, N)
    return (sizes * (draws < 0.08 + 0.6 * sees_itself),)


def layer_inputs(seed):
    """(Z (B, N, d), weights, heads)"""
    B, N, K, p, d = of_size(LAYERS, seed)
    model = network(seed, 'aot', vocab_size=9, n_layer=1, n_head=K, head_dim=p, n_embd=d)
    return 1 + 2 * normal(seed)(B, N, d), model.layers[0].state_dict(), K


def loss_inputs(seed):
    """(logits (B, N, V), y (B, N)), also with large logits"""
    B, N, V, of_all, of_one = of_size(LOGITS, seed)
    y = torch.randint(V, (B, N), generator=seeded(seed + 20))
    y[0, [1, 3]] = -1
    y[-1, -1] = -1
    logits = 3 * normal(seed)(B, N, V) + of_all
    logits[0, 0, y[0, 0]] += of_one
    return logits, y


def sampling_inputs(seed):
    """(predict, ids (N,), new, block, temperature, seed)"""
    V, N, new, block, temperature, draw_seed = of_size(SAMPLES, seed)
    draw_seed += variant(seed)
    ids = torch.randint(V, (N,), generator=seeded(draw_seed))
    predict = made('text_network', 2 * normal(draw_seed)(V, V), block)
    return predict, ids, new, block, temperature, draw_seed + 3


EXERCISES = [
    Exercise('snr', clusters),
    Exercise('membership', mixture),
    Exercise('denoise', denoise_inputs),
    Exercise('passing', passing_inputs),
    Exercise('aot_layer', layer_inputs, gradient=(0, 1)),
    Exercise('next_token_loss', loss_inputs, gradient=(0,)),
    Exercise('sample', sampling_inputs),
]
