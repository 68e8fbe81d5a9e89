"""The inputs for lesson 6, CRATE-MAE."""
import torch
from grade import Exercise, network, normal, of_size, seeded

# B, N, ratio for each seed: N (1 - ratio) is 2.8, 2 and 4.5
NOISE = (
    (2, 7, 0.6),
    (3, 8, 0.75),
    (2, 9, 0.5),
)
# B, N, P, d for each seed
PATCHES = (
    (2, 4, 18, 8),
    (3, 10, 4, 8),
    (2, 6, 6, 12),
)
# B, N, K, p, d for each seed; K p is not d
SIZES = (
    (2, 5, 3, 4, 8),
    (1, 6, 4, 2, 12),
    (3, 4, 5, 2, 16),
)


def noise_inputs(seed):
    """(noise (B, N), ratio)"""
    B, N, ratio = of_size(NOISE, seed)
    return torch.rand(B, N, generator=seeded(seed), dtype=torch.float64), ratio


def embed_inputs(seed):
    """(patches (B, N, P), hidden (B, N), weights). All pictures hide equally many patches."""
    B, N, P, d = of_size(PATCHES, seed)
    randn = normal(seed)
    ranks = randn(B, N).argsort(1).argsort(1)
    patches = randn(B, N, P)
    weights = {
        'patch.weight': randn(d, P),
        'patch.bias': randn(d),
        'mask_token': randn(1, 1, d),
        'cls': randn(1, 1, d),
        'pos': randn(1, N + 1, d),
    }
    return patches, ranks >= of_size((3, 4, 2), seed), weights


def layer_inputs(seed):
    """(Y (B, N, d), weights, heads)"""
    B, N, K, p, d = of_size(SIZES, seed)
    model = network(seed, 'crate_mae', n_layer=1, n_head=K, head_dim=p, n_embd=d, image_size=32)
    return 1 + 2 * normal(seed)(B, N, d), model.decoder_layers[0].state_dict(), K


def target_inputs(seed):
    """(patches (B, N, P),): patches of low contrast, of which the first is flat."""
    B, N, P, d = of_size(PATCHES, seed)
    randn = normal(seed)
    brightness = randn(B, N, 1)
    contrast = 0.01 * randn(B, N, 1).exp()
    patches = brightness + contrast * randn(B, N, P)
    patches[0, 0] = 0.5
    return (patches,)


def loss_inputs(seed):
    """(pred (B, N, P), target (B, N, P), hidden (B, N)). Pictures do not hide equally many
    patches."""
    B, N, P, d = of_size(PATCHES, seed)
    randn = normal(seed + 10)
    hidden = randn(B, N) > 0
    hidden[0] = False
    hidden[0, 1] = True
    hidden[-1, :2] = True
    return randn(B, N, P), randn(B, N, P), hidden


def round_trips(seed):
    """(Z (B, N, d), U (K, d, p), steps)"""
    B, N, K, p, d = of_size(SIZES, seed)
    randn = normal(seed)
    return randn(B, N, d), randn(K, d, p) / d ** 0.5, of_size((3, 2, 5), seed)


EXERCISES = [
    Exercise('visible', noise_inputs),
    Exercise('embed', embed_inputs, gradient=(2,)),
    Exercise('decoder_layer', layer_inputs, gradient=(0, 1)),
    Exercise('targets', target_inputs),
    Exercise('masked_loss', loss_inputs, gradient=(0,)),
    Exercise('there_and_back', round_trips),
]
