"""The inputs for lesson 5, denoising and AoT."""
import torch
from grade import Exercise, normal

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
# B, N, V for each seed
LOGITS = (
    (2, 5, 7),
    (3, 4, 6),
    (2, 6, 9),
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
    K, n, p, d = CLUSTERS[seed - 1]
    randn = normal(seed)
    U = torch.linalg.qr(randn(K, d, p))[0]
    signal = 1.5 * randn(K, n, p) @ U.mT
    return signal + 0.4 * randn(K, n, d), U


def mixture(seed):
    """(Z (N, d), U (K, d, p), tau)"""
    K, N, p, d = SIZES[seed - 1]
    tau = (0.0, 0.3, 0.55)[seed - 1]
    randn = normal(seed)
    Z = randn(N, d)
    return Z, 0.6 * randn(K, d, p), tau


def denoise_inputs(seed):
    """(Z (N, d), U (K, d, p), eta, tau)"""
    Z, U, tau = mixture(seed)
    eta = (0.7, 0.2, 1.3)[seed - 1]
    return Z, U, eta, tau


def passing_inputs(seed):
    """(phi (K, N, N),): most tokens see themselves in their own subspace, few see anything
    elsewhere."""
    K, N, p, d = SIZES[seed - 1]
    generator = torch.Generator().manual_seed(seed)
    sizes, draws = torch.rand(2, K, N, N, generator=generator, dtype=torch.float64)
    own_subspace = torch.eye(K).repeat_interleave(N // K, dim=1)        # (K, N)
    sees_itself = own_subspace[..., None] * torch.eye(N)                # (K, N, N)
    return (sizes * (draws < 0.08 + 0.6 * sees_itself),)


def layer_inputs(seed):
    """(Z (B, N, d), weights, heads)"""
    B, N, K, p, d = LAYERS[seed - 1]
    randn = normal(seed)
    Z = 1 + 2 * randn(B, N, d)
    weights = {
        'norm1.weight': 1 + 0.3 * randn(d),
        'attn.U.weight': 0.6 * randn(K * p, d),
        'attn.W.weight': 0.5 * randn(d, K * p),
    }
    return Z, weights, K


def loss_inputs(seed):
    """(logits (B, N, V), y (B, N)). With the second seed all logits are near 900, with the third
    seed one is near -900."""
    B, N, V = LOGITS[seed - 1]
    y = torch.randint(V, (B, N), generator=torch.Generator().manual_seed(seed + 20))
    y[0, 1] = -1
    y[0, 3] = -1
    y[-1, N - 1] = -1
    logits = 3 * normal(seed)(B, N, V)
    if seed == 2:
        logits += 900
    if seed == 3:
        logits[0, 0, y[0, 0]] -= 900
    return logits, y


def network_for_text(table, block):
    """A network whose logits depend on the last token, on all tokens that it sees, and on how many
    they are. It raises ValueError if these are more than `block`."""
    def predict(x):
        if x.dim() != 2 or x.shape[1] > block:
            shape = tuple(x.shape)
            raise ValueError(f'predict takes (1, n) with n at most {block}, and got {shape}')
        position = torch.arange(x.shape[1], dtype=table.dtype)[:, None]
        means = table[x].cumsum(1) / (1 + position)
        return table[x] + means + (position * table[0]).sin()

    return predict


def sampling_inputs(seed):
    """(predict, ids (N,), new, block, temperature, seed)"""
    V, N, new, block, temperature, draw_seed = SAMPLES[seed - 1]
    ids = torch.randint(V, (N,), generator=torch.Generator().manual_seed(draw_seed))
    predict = network_for_text(2 * normal(draw_seed)(V, V), block)
    return predict, ids, new, block, temperature, draw_seed + 3


EXERCISES = [
    Exercise('snr', clusters),
    Exercise('membership', mixture),
    Exercise('denoise', denoise_inputs),
    Exercise('passing', passing_inputs),
    Exercise('aot_layer', layer_inputs),
    Exercise('next_token_loss', loss_inputs),
    Exercise('sample', sampling_inputs),
]
