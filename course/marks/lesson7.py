"""The inputs for lesson 7, look inside, and the wrong implementations of MSSA that `properties` is
to find."""
import math
import warnings

import torch
from grade import Exercise, exercises, in_words, normal

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
# N, share, the fewest of N equal patches that hold the share
EQUAL_PATCHES = (
    (4, 0.5, 2),
    (8, 0.375, 3),
    (8, 0.4, 4),
    (2, 1.0, 2),
)


# ---- inputs -------------------------------------------------------------------------------------

def values(seed):
    """(values (n,),), also negative ones"""
    n = (3, 5, 4)[seed - 1]
    mean = (2, -7, 0)[seed - 1]
    return (3 * normal(seed)(n) + mean,)


def maps(seed):
    """(maps (J, K, N), share): uneven maps that sum to 1, with two patches of zero."""
    J, K, N, share = MAPS[seed - 1]
    A = (2 * normal(seed)(J, K, N)).softmax(-1)
    A[..., 1:3] = 0.0
    return A / A.sum(-1, keepdim=True), share


def keeps_the_fewest(top_mass):
    """'' if top_mass keeps no more patches than are needed, else what it does. Of equal patches it
    may keep any. `at least` a share includes exactly this share."""
    for N, share, count in EQUAL_PATCHES:
        equal = torch.full((N,), 1 / N, dtype=torch.float64)
        mask = torch.as_tensor(top_mass(equal, share))
        if mask.dtype != torch.bool:
            return f'returns {mask.dtype}, and should return torch.bool'
        if mask.sum() != count:
            return (f'of {N} equal patches it keeps {mask.sum()} for share {share}; '
                    f'{count} are enough, and no fewer')
    return ''


def masks(seed):
    """(a, b), bool (.., H, W): overlapping, apart, one inside of the other, and empty ones"""
    shape, threshold_a, threshold_b = MASKS[seed - 1]
    a = normal(seed)(*shape) > threshold_a
    b = normal(seed + 10)(*shape) > threshold_b
    a[0] = False
    if seed == 1:
        b[0] = False
        b[-1] = ~a[-1]
    elif seed == 2:
        a[-1] |= b[-1]
    else:
        b[0] = False
        b[-1] |= a[-1]
    return a, b


def scores(seed):
    """(scores (n, K),). The best head for all is neither that of the largest score nor the best of
    the first picture."""
    n, K = ((5, 3), (4, 6), (7, 4))[seed - 1]
    S = normal(seed)(n, K)
    S[1:, 1] += 1.0
    S[0, 1] = 0.5
    S[0, -1] = 3.0
    S[1, 0] = 4.0
    S[-1, 0] = -2.0
    return (S,)


def pairs(seed):
    """(ours (n,), theirs (n,)): seeds are good or bad for both. With the first seed the gain is 2.5
    standard errors, and Student's t is 3.2. With the second there is no gain, with the third a
    loss."""
    n = (4, 3, 5)[seed - 1]
    theirs = 5 * normal(seed)(n)
    if seed == 2:
        return theirs.clone(), theirs
    noise = normal(seed + 30)(n)
    noise = (noise - noise.mean()) / noise.std()        # its standard error is 1 / sqrt(n)
    standard_errors = 2.5 if seed == 1 else -4
    return theirs + 0.3 * (noise + standard_errors / math.sqrt(n)), theirs


def wins_when_it_is_so(beats):
    """'' if the third result of beats is right in four more cases, else what it does."""
    gains = torch.tensor([0.99, 1.0, 1.2], dtype=torch.float64)     # mean 1.06 +- 0.29
    if not beats(gains, 0 * gains)[2]:
        return 'with gains of 0.99, 1.0 and 1.2 in three seeds it does not say that we are better'
    uneven_gains = torch.tensor([0.4, 1.0, 1.6], dtype=torch.float64)  # mean 1.0 +- 1.5
    if beats(uneven_gains, 0 * gains)[2]:
        return ('with gains of 0.4, 1.0 and 1.6, whose 95% interval holds 0, '
                'it says that we are better')
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # PyTorch warns of the spread of one number
        for n in (1, 2):
            if beats(gains[:n], 0 * gains[:n])[2]:
                return (f'with gains of {gains[:n].tolist()} alone it says that we are better; '
                        'a verdict takes three seeds')
    return ''


# ---- implementations of MSSA --------------------------------------------------------------------

MSSA = next(exercise for exercise in exercises(2) if exercise.name == 'mssa')
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


def fused(Z, U, causal):
    """MSSA by the fast attention of PyTorch."""
    P = torch.einsum('bnd,kdp->bknp', Z, U)
    heads = torch.nn.functional.scaled_dot_product_attention(P, P, P, is_causal=causal)
    return torch.einsum('bknp,kdp->bnd', heads, U)


def in_loops(Z, U, causal, distance_penalty=0.0):
    """MSSA of one sample, one head and one token at a time. The penalty, which is wrong above 0, is
    taken from the score of two tokens as often as they are places apart."""
    results = []
    for z in Z:
        result = torch.zeros_like(z)
        for U_k in U:
            w = z @ U_k
            for n in range(len(w)):
                seen = w[:n + 1] if causal else w
                distances = (torch.arange(len(seen)) - n).abs()
                score = seen @ w[n] / U.shape[-1] ** 0.5 - distance_penalty * distances
                result[n] += score.softmax(0) @ seen @ U_k.T
        results.append(result)
    return torch.stack(results)


def prefers_near_tokens(Z, U, causal):
    return in_loops(Z, U, causal, distance_penalty=1.0)


def mixes_samples(Z, U, causal):
    tokens_of_all = Z.flatten(0, 1)[None]
    return MSSA.answer(tokens_of_all, U, causal).view_as(Z)


RIGHT = {
    'with einsum': MSSA.answer,
    'with scaled_dot_product_attention': fused,
    'in loops': in_loops,
}
MISTAKES = {}
for name, mistake in MSSA.mistakes_elsewhere + MSSA.mistakes:
    if name.startswith(WRONG):
        MISTAKES[name] = mistake
MISTAKES['scores that fall with the distance of two tokens'] = prefers_near_tokens
MISTAKES['samples of a batch that see each other'] = mixes_samples
NEEDED = math.ceil(0.7 * len(MISTAKES))


# ---- properties ---------------------------------------------------------------------------------

def holds(has_property, mssa):
    """What a property says about an implementation: True, False, or an exception that it raised."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)  # the rounding of float32 is no mistake
    try:
        answer = has_property(mssa)
        if answer is None:
            raise TypeError('returns None, not True or False')
        return bool(answer)
    except Exception as e:
        return e
    finally:
        torch.set_default_dtype(torch.float32)


def property_name(has_property, i):
    name = getattr(has_property, '__name__', '<')
    if '<' in name:  # a lambda has no name
        return f'property {i}'
    return name


def wrong(message, diagnosis=''):
    return {'verdict': 'wrong', 'message': message, 'diagnosis': diagnosis}


def not_a_list_of_functions(listed):
    """The verdict of what `properties` returned; None if it is a list of functions."""
    if listed is None or listed is Ellipsis:
        return {'verdict': 'empty', 'message': 'returns None: fill in the gap'}
    if not isinstance(listed, (list, tuple)):
        return wrong(f'returns a {type(listed).__name__}, and should return a list of functions')
    for x in listed:
        if not callable(x):
            return wrong(f'returns a list with a {type(x).__name__}, and should return a list of '
                         'functions', 'properties that were called already: the list is of '
                         'functions, without ()')
    if not listed:
        return wrong('the list is empty', 'a list without properties')
    return None


def judge_properties(properties):
    """The verdict of a student's `properties`: how many mistakes they find together. One that
    raises an exception for a right implementation does not count."""
    listed = properties()
    verdict = not_a_list_of_functions(listed)
    if verdict:
        return verdict

    findings = []       # (name of a property, the mistakes that it finds)
    exceptions = []     # (name of a property, the exception that it raised)
    for i, has_property in enumerate(listed, 1):
        name = property_name(has_property, i)
        answers = [holds(has_property, mssa) for mssa in RIGHT.values()]
        if not any(answers):
            return wrong(f'{name} does not hold for right implementations',
                         'a property that does not hold for MSSA')
        if False in answers:
            way = list(RIGHT)[answers.index(False)]
            return wrong(f'{name} refuses a right implementation, {way}, which rounds in another '
                         'way: use torch.allclose', 'a property that compares to the last digit')
        raised = [answer for answer in answers if isinstance(answer, Exception)]
        if raised:
            exceptions.append((name, raised[0]))
            continue

        mistakes = []
        for mistake_name, mssa in MISTAKES.items():
            if holds(has_property, mssa) is False:
                mistakes.append(mistake_name)
        findings.append((name, mistakes))
    return verdict_of_hunt(findings, exceptions)


def verdict_of_hunt(findings, exceptions):
    """The verdict of properties of which none refused a right implementation."""
    found_together = set()
    for _, mistakes in findings:
        found_together.update(mistakes)
    count = len(found_together)

    message = f'{count} of {len(MISTAKES)} mistakes found'
    if exceptions:
        names = ', '.join(name for name, _ in exceptions)
        message = f'not counted: {names} ({in_words(exceptions[-1][1])}); {message}'
    if count < NEEDED:
        message += f', {NEEDED} are needed'
    not_found = [name for name in MISTAKES if name not in found_together]
    if not_found:
        message += f'; not found: {" | ".join(not_found)}'
    useless = [name for name, mistakes in findings if not mistakes]
    if useless:
        message += f'; no mistake is found by {", ".join(useless)}'
    # lesson7.md forbids writing MSSA again: the lecturer sees which property to look at
    copies = [name for name, mistakes in findings if len(mistakes) == len(MISTAKES)]
    if copies:
        message += (f'; one property finds all {len(MISTAKES)} alone: is it MSSA again? '
                    f'({", ".join(copies)})')

    if count >= NEEDED:
        return {'verdict': 'right', 'message': message}
    if not findings:
        return wrong(message, 'properties that raise exceptions')
    if count == 0:
        return wrong(message, 'properties that hold for every implementation, right or wrong')
    return wrong(message, 'too few properties: each finds its own kind of mistake')


EXERCISES = [
    Exercise('mean_and_spread', values),
    Exercise('top_mass', maps, extra_check=keeps_the_fewest),
    Exercise('overlap', masks),
    Exercise('best_heads', scores),
    Exercise('beats', pairs, extra_check=wins_when_it_is_so),
    Exercise('properties', None, judge=judge_properties),
]
