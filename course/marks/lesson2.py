"""The inputs for lesson 2, MSSA."""
from grade import Exercise, normal

# B, N, K, p, d, causal for each seed
SIZES = (
    (2, 7, 3, 4, 10, False),
    (1, 5, 4, 2, 6, True),
    (3, 4, 5, 2, 7, True),
)


def inputs(seed):
    """(Z (B, N, d), U (K, d, p), causal)"""
    B, N, K, p, d, causal = SIZES[seed - 1]
    randn = normal(seed)
    Z = randn(B, N, d)
    U = 0.6 * randn(K, d, p)
    return Z, U, causal


def inputs_with_output(seed):
    """(Z (B, N, d), U (K, d, p), W (d, K p), bias (d,), causal)"""
    Z, U, causal = inputs(seed)
    K, d, p = U.shape
    randn = normal(seed + 100)
    W = randn(d, K * p)
    bias = randn(d)
    return Z, U, W, bias, causal


EXERCISES = [
    Exercise('attention_weights', inputs),
    Exercise('mssa', inputs),
    Exercise('mssa_free', inputs_with_output),
    Exercise('half_step', inputs),
]
