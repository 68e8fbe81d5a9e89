"""Lesson 7, look inside: inputs."""
import math
import warnings

import torch
from grade import Exercise, exercises, in_words


def drawn(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# ---- inputs ---------------------------------------------------------------------------------------------------------

def values(seed):
    """(values (n,)), also negative ones"""
    return 3 * drawn(seed, (3, 5, 4)[seed - 1]) + (2, -7, 0)[seed - 1],


def maps(seed):
    """(maps (J, K, N), share): uneven maps that sum to 1, with two patches of zero."""
    A = (2 * drawn(seed, *((2, 3, 7), (1, 4, 12), (3, 2, 6))[seed - 1])).softmax(-1)
    A[..., 1:3] = 0.0
    return A / A.sum(-1, keepdim=True), (0.6, 0.35, 0.9)[seed - 1]


def fewest(function):
    """Of equal patches any may be kept, but no more than are needed; `at least` includes exactly."""
    for N, share, count in ((4, 0.5, 2), (8, 0.375, 3), (8, 0.4, 4), (2, 1.0, 2)):
        kept = torch.as_tensor(function(torch.full((N,), 1 / N, dtype=torch.float64), share))
        if kept.dtype != torch.bool:
            return f'returns {kept.dtype}, and should return torch.bool'
        if kept.sum() != count:
            return f'of {N} equal patches it keeps {kept.sum()} for share {share}; {count} are enough, and no fewer'
    return ''


def masks(seed):
    """(a, b), bool (.., H, W): overlapping, apart, one inside of the other, and empty ones"""
    shape = ((5, 4, 6), (2, 3, 5, 3), (4, 7, 2))[seed - 1]
    rare, often = (0.2, -0.3)[::1 if seed != 2 else -1]
    a, b = drawn(seed, *shape) > rare, drawn(seed + 10, *shape) > often
    a[0] = False
    b[0] &= seed == 2
    if seed == 2:
        a[-1] |= b[-1]
    else:
        b[-1] = ~a[-1] if seed == 1 else a[-1] | b[-1]
    return a, b


def scores(seed):
    """(scores (n, K)): neither the head of the largest score nor that of the first picture is best in all"""
    S = drawn(seed, *((5, 3), (4, 6), (7, 4))[seed - 1])
    S[1:, 1] += 1.0
    S[0, 1], S[0, -1], S[1, 0], S[-1, 0] = 0.5, 3.0, 4.0, -2.0
    return S,


def pairs(seed):
    """(ours (n,), theirs (n,)): seeds that do well for both; a gain between one and two standard errors; no difference;
    a loss"""
    n = (4, 3, 5)[seed - 1]
    theirs, spread = 5 * drawn(seed, n), drawn(seed + 30, n)
    spread = (spread - spread.mean()) / spread.std()                                    # the standard error 1 / sqrt(n)
    ours = theirs + 0.3 * (spread + (1.5, 0, -4)[seed - 1] / math.sqrt(n))
    return (theirs.clone() if seed == 2 else ours), theirs


def says_so_when_it_is_so(function):
    gains = torch.tensor([0.4, 1.0, 1.6], dtype=torch.float64)                          # two standard errors are 0.69
    if not function(gains, 0 * gains)[2]:
        return 'with gains of 0.4, 1.0 and 1.6 in three seeds it does not say that we are better'
    if function(torch.tensor([0.1, 0.1, 4.0], dtype=torch.float64), 0 * gains)[2]:
        return 'with gains of 0.1, 0.1 and 4.0, whose mean is below two standard errors, it says that we are better'
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # the spread of one number
        return 'one seed is enough for it to say that we are better' if function(gains[:1], 0 * gains[:1])[2] else ''


# ---- properties of MSSA ---------------------------------------------------------------------------------------------

MSSA = next(e for e in exercises(2) if e.name == 'mssa')
WRONG = ('the softmax over the queries', 'scores that are divided by sqrt(d)', 'scores that are not divided',
         'a causal mask that is off by one', 'no causal mask', 'the mean over the heads, not', 'the first head alone',
         'projections without attention: each token alone,', 'averages of the tokens', 'Z + MSSA')


def fused(Z, U, causal):
    W = torch.einsum('bnd,kdp->bknp', Z, U)
    h = torch.nn.functional.scaled_dot_product_attention(W, W, W, is_causal=causal)
    return torch.einsum('bknp,kdp->bnd', h, U)


def in_loops(Z, U, causal, far=0.0):
    """MSSA of one sample, one head and one token at a time; `far` takes from the scores of distant tokens."""
    out = []
    for z in Z:
        out.append(torch.zeros_like(z))
        for Uk in U:
            w = z @ Uk
            for n in range(len(w)):
                seen = w[:n + 1] if causal else w
                score = seen @ w[n] / U.shape[-1] ** 0.5 - far * (torch.arange(len(seen)) - n).abs()
                out[-1][n] += score.softmax(0) @ seen @ Uk.T
    return torch.stack(out)


RIGHT = {'with einsum': MSSA.answer, 'with scaled_dot_product_attention': fused, 'in loops': in_loops}
MISTAKES = {name: wrong for found in MSSA.mistakes[::-1] for name, wrong in found if name.startswith(WRONG)} | {
    'scores that fall with the distance of two tokens': lambda Z, U, causal: in_loops(Z, U, causal, 1.0),
    'samples of a batch that see each other':
        lambda Z, U, causal: MSSA.answer(Z.flatten(0, 1)[None], U, causal).view_as(Z)}
NEEDED = math.ceil(0.7 * len(MISTAKES))


def holds(prop, mssa):
    """What a property says of an implementation: True, False, or the exception that it raised."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)  # rounding of float32 is no mistake
    try:
        said = prop(mssa)
        if said is None:
            raise TypeError('returns None, not True or False')
        return bool(said)
    except Exception as e:
        return e
    finally:
        torch.set_default_dtype(torch.float32)


def name_of(prop, i):
    name = getattr(prop, '__name__', '<')
    return name if '<' not in name else f'property {i}'


def hunt(function):
    """How many mistakes a student's properties find. One that raises for a right implementation counts
    for nothing."""
    def wrong(message, diagnosis=''):
        return {'verdict': 'wrong', 'message': message, 'diagnosis': diagnosis}
    listed = function()
    if listed is None or listed is Ellipsis:
        return {'verdict': 'empty', 'message': 'returns None: fill in the gap'}
    if not isinstance(listed, (list, tuple)):
        return wrong(f'returns a {type(listed).__name__}, and should return a list of functions')
    other = next((f for f in listed if not callable(f)), None)
    if other is not None:
        return wrong(f'returns a list with a {type(other).__name__}, and should return a list of functions',
                     'properties that were called already: the list is of functions, without ()')
    if not listed:
        return wrong('the list is empty', 'a list without properties')
    kills, useless, raised, last = set(), [], [], ''
    for i, prop in enumerate(listed, 1):
        name = name_of(prop, i)
        said = {way: holds(prop, mssa) for way, mssa in RIGHT.items()}
        refused = [way for way, what in said.items() if what is False]
        failed = next((what for what in said.values() if isinstance(what, Exception)), None)
        if len(refused) == len(said):
            return wrong(f'{name} does not hold for right implementations', 'a property that does not hold for MSSA')
        if refused:
            return wrong(f'{name} refuses a right implementation, {refused[0]}, which rounds in another way: use '
                         'torch.allclose', 'a property that compares to the last digit')
        if failed is not None:
            raised.append(name)
            last = in_words(failed)
            continue
        found = {mistake for mistake, mssa in MISTAKES.items() if holds(prop, mssa) is False}
        useless += [name] * (not found)
        kills |= found
    alive = [mistake for mistake in MISTAKES if mistake not in kills]
    text = (f'not counted: {", ".join(raised)} ({last}); ' if raised else '') \
        + f'{len(kills)} of {len(MISTAKES)} mistakes found' \
        + (f', {NEEDED} are needed' if len(kills) < NEEDED else '') \
        + (f'; not found: {" | ".join(alive)}' if alive else '') \
        + (f'; no mistake is found by {", ".join(useless)}' if useless else '')
    if len(kills) >= NEEDED:
        return {'verdict': 'right', 'message': text}
    return wrong(text, 'properties that raise exceptions' if len(raised) == len(listed) else
                 'properties that hold for every implementation, right or wrong' if not kills else
                 'too few properties: each finds its own kind of mistake')


EXERCISES = [
    Exercise('mean_and_spread', values),
    Exercise('top_mass', maps, also=fewest),
    Exercise('overlap', masks),
    Exercise('best_heads', scores),
    Exercise('beats', pairs, also=says_so_when_it_is_so),
    Exercise('properties', None, own=hunt),
]
