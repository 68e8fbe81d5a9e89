"""The inputs for lesson 2, MSSA."""
import torch
from grade import Exercise, normal, of_size

# B, N, K, p, d, causal for each seed
SIZES = (
    (2, 7, 3, 4, 10, False),
    (1, 5, 4, 2, 6, True),
    (3, 4, 5, 2, 7, True),
)


def inputs(seed):
    """(Z (B, N, d), U (K, d, p), causal)"""
    B, N, K, p, d, causal = of_size(SIZES, seed)
    randn = normal(seed)
    return randn(B, N, d), 0.6 * randn(K, d, p), causal


def inputs_with_output(seed):
    """(Z (B, N, d), U (K, d, p), W (d, K p), bias (d,), causal)"""
    Z, U, causal = inputs(seed)
    K, d, p = U.shape
    randn = normal(seed + 100)
    return Z, U, randn(d, K * p), randn(d), causal


# the scores reach from -240 to 900: exp(900) is no number
LARGE_SCORES = (
    torch.tensor([[[20.0, 0.0], [0.0, 20.0], [40.0, -20.0]]], dtype=torch.float64),     # Z
    torch.tensor([[[1.0], [0.5]], [[0.2], [1.0]]], dtype=torch.float64),                # U
    False,
)

EXERCISES = [
    Exercise('attention_weights', inputs, gradient=(0, 1), more=[LARGE_SCORES]),
    Exercise('mssa', inputs, gradient=(0, 1)),
    Exercise('mssa_free', inputs_with_output, gradient=(0, 1, 2, 3)),
    Exercise('half_step', inputs, gradient=(0, 1)),
]
