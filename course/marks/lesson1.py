"""The inputs for lesson 1, the coding rate."""
from grade import Exercise, normal, of_size

# N, d, K, p, eps for each seed. Bases are not orthonormal.
SIZES = (
    (7, 4, 3, 2, 0.4),
    (9, 6, 4, 3, 0.3),
    (8, 5, 6, 2, 0.8),
)


def tokens_and_bases(seed):
    """(Z (N, d), U (K, d, p), eps)"""
    N, d, K, p, eps = of_size(SIZES, seed)
    return normal(seed)(N, d), normal(seed + 100)(K, d, p), eps


def tokens(seed):
    """(Z (N, d), eps)"""
    Z, U, eps = tokens_and_bases(seed)
    return Z, eps


EXERCISES = [
    Exercise('coding_rate', tokens, gradient=(0,)),
    Exercise('compressed_rate', tokens_and_bases, gradient=(0,)),
    Exercise('compressed_rate_gradient', tokens_and_bases),
]
