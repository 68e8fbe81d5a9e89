"""The inputs for lesson 7, look inside, and the implementations of MSSA for `properties`."""
import math

import torch
from grade import Exercise, changed, mistakes_of, normal, of_size, source_of, text_of

# J, K, N, share for each seed
MAPS = (
    (2, 3, 7, 0.6),
    (1, 4, 12, 0.35),
    (3, 2, 6, 0.9),
)
# the shape of the masks, and the thresholds that make the first and the second, for each seed
MASKS = (
    ((5, 4, 6), 0.2, -0.3),
    ((2, 3, 5, 3), -0.3, 0.2),
    ((4, 7, 2), 0.2, -0.3),
)


# ---- inputs -------------------------------------------------------------------------------------

def values(seed):
    """(values (n,),), also negative ones"""
    n = of_size((3, 5, 4), seed)
    mean = of_size((2, -7, 0), seed)
    return (3 * normal(seed)(n) + mean,)


def maps(seed):
    """(maps (J, K, N), share): uneven maps that sum to 1, with two patches of zero."""
    J, K, N, share = of_size(MAPS, seed)
    A = (2 * normal(seed)(J, K, N)).softmax(-1)
    A[..., 1:3] = 0.0
    return A / A.sum(-1, keepdim=True), share


# some patches hold exactly the share: `at least` includes it
UNEVEN_MAP = torch.tensor([[[3, 7, 1, 5]]], dtype=torch.float64) / 16
EXACT_SHARES = [(UNEVEN_MAP, share) for share in (7 / 16, 12 / 16, 1.0)]


def masks(seed):
    """(a, b), bool (.., H, W): overlapping, apart, one inside of the other, and empty ones"""
    shape, threshold_a, threshold_b = of_size(MASKS, seed)
    a = normal(seed)(*shape) > threshold_a
    b = normal(seed + 10)(*shape) > threshold_b
    is_second = of_size((False, True, False), seed)
    a[0] = False
    b[0] &= is_second
    a_last = a[-1].clone()
    a[-1] |= b[-1] & is_second
    b[-1] = of_size((~a_last, b[-1], a_last | b[-1]), seed)
    return a, b


def scores(seed):
    """(scores (n, K),). The best head for all is neither that of the largest score nor the best of
    the first picture."""
    n, K = of_size(((5, 3), (4, 6), (7, 4)), seed)
    S = normal(seed)(n, K)
    S[1:, 1] += 1.0
    S[0, 1] = 0.5
    S[0, -1] = 3.0
    S[1, 0] = 4.0
    S[-1, 0] = -2.0
    return (S,)


def pairs(seed):
    """(ours (n,), theirs (n,)): seeds are good or bad for both. The gain is 2.5 standard errors,
    where Student's t is 3.2, or there is none, or a loss."""
    n = of_size((4, 3, 5), seed)
    theirs = 5 * normal(seed)(n)
    noise = normal(seed + 30)(n)
    noise = (noise - noise.mean()) / noise.std()        # its standard error is 1 / sqrt(n)
    gain = 0.3 * (noise + of_size((2.5, 0, -4), seed) / math.sqrt(n))
    return theirs + of_size((1, 0, 1), seed) * gain, theirs


# a clear gain in three seeds, a gain of which the 95% interval holds 0, and the clear gain in two
# seeds
CLEAR = torch.tensor([0.99, 1.0, 1.2], dtype=torch.float64)         # mean 1.06 +- 0.29
UNEVEN = torch.tensor([0.4, 1.0, 1.6], dtype=torch.float64)         # mean 1.0 +- 1.5
FEW_SEEDS = [(gains, 0 * gains) for gains in (CLEAR, UNEVEN, CLEAR[:2])]


# ---- implementations of MSSA --------------------------------------------------------------------

# the mistakes of lesson 2 that `properties` is to find, by the first words of their names
WRONG = (
    'projections without attention: each token alone,',
    'averages of the tokens',
    'the softmax over the queries',
    'scores that are divided by sqrt(d)',
    'scores that are not divided',
    'a causal mask that is off by one',
    'no causal mask',
    'the mean over the heads, not',
    'the first head alone',
    'Z + MSSA',
)


def implementations():
    """[(the name of the mistake, the source)]. The name of a right one begins with 'right, '."""
    right = source_of(2)
    others = f'{right}\n{text_of("marks/mssa.py")}\nmssa = '
    sources = {
        'right, with einsum': right,
        'right, with scaled_dot_product_attention': f'{others}fused',
        'right, in loops': f'{others}in_loops',
        'scores that fall with the distance of two tokens': f'{others}prefers_near_tokens',
        'samples of a batch that see each other': f'{others}mixes_samples',
    }
    for function, old, new, name in mistakes_of(2):
        if function in ('attention_weights', 'mssa') and name.startswith(WRONG):
            # one that can be made in several ways counts once, in the first way
            sources.setdefault(name, f'import math\n{changed(right, function, old, new)}')
    return list(sources.items())


EXERCISES = [
    Exercise('mean_and_spread', values),
    Exercise('top_mass', maps, more=EXACT_SHARES),
    Exercise('overlap', masks),
    Exercise('best_heads', scores),
    Exercise('beats', pairs, more=FEW_SEEDS),
    Exercise('properties', implementations, kind='properties'),
]
