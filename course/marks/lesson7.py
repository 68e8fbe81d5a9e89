"""Lesson 7, look inside: oracles, mistakes and hints."""
import itertools
import math
import warnings

import torch
from grade import HERE, Exercise, in_words, loaded



def drawn(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# ---- inputs ---------------------------------------------------------------------------------------------------------

def values(seed):
    """(values (n,)), also negative ones"""
    return 3 * drawn(seed, (3, 5, 2)[seed - 1]) + (2, -7, 0)[seed - 1],


def maps(seed):
    """(maps (J, K, N), share): uneven maps that sum to 1, with some equal patches and some of zero."""
    shape = ((2, 3, 7), (1, 4, 12), (3, 2, 5))[seed - 1]
    A = (2 * drawn(seed, *shape)).softmax(-1)
    A[..., 1] = 0.0
    A[..., 3] = A[..., 2]
    A = A / A.sum(-1, keepdim=True)
    share = (0.6, 0.35, 0.9)[seed - 1]
    for row in A.flatten(0, -2):  # which patches are kept is never left to chance
        kept = oracle_top_mass([row.tolist()], share)[0]
        if kept[2] != kept[3]:
            row[2] += 0.5 * row[3]
            row[3] *= 0.5
    return A, share


def masks(seed):
    """(a, b), bool (.., H, W): overlapping, apart, one inside of the other, and empty ones"""
    shape = ((5, 4, 6), (2, 3, 5, 3), (4, 7, 2))[seed - 1]
    rare, often = (0.2, -0.3)[::1 if seed != 2 else -1]
    a, b = drawn(seed, *shape) > rare, drawn(seed + 10, *shape) > often
    a[0] = False
    if seed != 2:
        b[0] = False
    if seed == 1:
        b[-1] = ~a[-1]
    elif seed == 2:
        a[-1] = a[-1] | b[-1]
    else:
        b[-1] = a[-1] | b[-1]
    return a, b


def scores(seed):
    """(scores (n, K)): neither the head of the largest score nor that of the first picture is best in all"""
    n, K = ((5, 3), (4, 6), (7, 2))[seed - 1]
    S = drawn(seed, n, K)
    S[1:, 1] += 1.0
    S[0, 1], S[0, -1], S[1, 0], S[-1, 0] = 0.5, 3.0, 4.0, -2.0
    return S,


def pairs(seed):
    """(ours (n,), theirs (n,)): seeds that do well for both; a gain between one and two standard errors;
    no difference; a loss"""
    n = (4, 3, 5)[seed - 1]
    theirs = 5 * drawn(seed, n)
    spread = drawn(seed + 30, n)
    spread = (spread - spread.mean()) / spread.std()                                    # the standard error 1 / sqrt(n)
    ours = theirs + 0.3 * (spread + (1.5, 0, -4)[seed - 1] / math.sqrt(n))
    return (theirs.clone() if seed == 2 else ours), theirs


# ---- oracles: loops over numbers ------------------------------------------------------------------------------------

def oracle_mean_and_spread(v):
    mean = sum(v) / len(v)
    return mean, math.sqrt(sum((x - mean) ** 2 for x in v) / (len(v) - 1))


def oracle_top_mass(A, share):
    if isinstance(A[0], list):
        return [oracle_top_mass(a, share) for a in A]
    order, kept, mass = sorted(range(len(A)), key=lambda i: -A[i]), [False] * len(A), 0.0
    for i in order:
        if mass >= share:
            break
        kept[i], mass = True, mass + A[i]
    return kept


def oracle_overlap(a, b):
    if isinstance(a[0][0], list):
        return [oracle_overlap(x, y) for x, y in zip(a, b)]
    both = either = 0
    for x, y in zip(itertools.chain(*a), itertools.chain(*b)):
        both, either = both + (x and y), either + (x or y)
    return both / either if either else 0.0


def oracle_best_heads(S):
    n, K = len(S), len(S[0])
    means = [sum(row[k] for row in S) / n for k in range(K)]
    return sum(max(row) for row in S) / n, max(means), sum(means) / K


def oracle_beats(ours, theirs):
    mean, spread = oracle_mean_and_spread([a - b for a, b in zip(ours, theirs)])
    error = spread / math.sqrt(len(ours))
    return mean, error, mean > 2 * error


# ---- right ways and mistakes ----------------------------------------------------------------------------------------

def by_statistics(v):
    import statistics
    return statistics.mean(v.tolist()), statistics.stdev(v.tolist())


def top(A, share):
    values, order = A.sort(dim=-1, descending=True, stable=True)
    return order, values, values.cumsum(-1)


def keep(A, order, which):
    return torch.zeros_like(A, dtype=torch.bool).scatter(-1, order, which)


def T(A, share, rule=lambda values, sums, share: sums - values < share):
    order, values, sums = top(A, share)
    return keep(A, order, rule(values, sums, share))


def by_counting(A, share):
    values = A.sort(-1, descending=True).values
    count = (values.cumsum(-1) < share).sum(-1, keepdim=True) + 1
    return A.argsort(-1, descending=True).argsort(-1) < count


def one_by_one(A, share):
    kept = torch.zeros_like(A, dtype=torch.bool)
    for row, k in zip(A.reshape(-1, A.shape[-1]), kept.view(-1, A.shape[-1])):
        while row[k].sum() < share:
            k[row.where(~k, -1).argmax()] = True
    return kept


def of_layers(name):
    """A function of analysis/layers.py."""
    def ours(*given):
        from analysis import layers
        return getattr(layers, name)(*given)
    return ours


def joined(A, share):
    flat = A.flatten(-2)
    return T(flat, share * A.shape[-2]).view_as(A)


def fewest(function):
    """Of equal patches any may be kept, but no more than are needed; `at least` includes exactly."""
    for N, share, count in ((4, 0.5, 2), (8, 0.375, 3), (8, 0.4, 4), (2, 1.0, 2)):
        kept = torch.as_tensor(function(torch.full((N,), 1 / N, dtype=torch.float64), share)).bool()
        if kept.sum() != count:
            return f'of {N} equal patches it keeps {kept.sum()} for share {share}; {count} are enough, and no fewer'
    return ''


def inter(a, b):
    return (a & b).double().sum((-2, -1))


def area(a):
    return a.double().sum((-2, -1))


def iou(a, b):
    return torch.nan_to_num(inter(a, b) / (a | b).double().sum((-2, -1)))


def by_areas(a, b):
    return inter(a, b) / (area(a) + area(b) - inter(a, b)).clamp_min(1)


def B(ours, theirs, error=None, rule=lambda mean, error: mean > 2 * error):
    d = ours - theirs
    if len(d) < 2:
        return d.mean(), 0.0, False
    error = d.std() / math.sqrt(len(d)) if error is None else error(d)
    return d.mean(), error, rule(d.mean(), error)


def with_statistics(ours, theirs):
    import statistics
    d = [a - b for a, b in zip(ours.tolist(), theirs.tolist())]
    error = statistics.stdev(d) / len(d) ** 0.5 if len(d) > 1 else math.inf
    return statistics.mean(d), error, statistics.mean(d) - 2 * error > 0


def says_so_when_it_is_so(function):
    """A clear gain, and one seed."""
    d = torch.tensor([0.9, 1.1, 1.0], dtype=torch.float64)
    if not function(d, torch.zeros_like(d))[2]:
        return 'with gains of 0.9, 1.1 and 1.0 in three seeds it does not say that we are better'
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # the spread of one number
        alone = function(d[:1], torch.zeros_like(d[:1]))[2]
    if alone:
        return 'one seed is enough for it to say that we are better'
    return ''


# ---- properties of MSSA ---------------------------------------------------------------------------------------------

LESSON2 = loaded(HERE / 'marks' / 'lesson2.py', 'marks2')


def near_is_more(Z, U, causal):
    """Scores that fall with the distance of two tokens."""
    W = torch.einsum('bnd,kdp->bknp', Z, U)
    n = torch.arange(Z.shape[1])
    s = W @ W.mT / U.shape[-1] ** 0.5 - (n[:, None] - n).abs()
    if causal:
        s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    return torch.einsum('bknp,kdp->bnd', s.softmax(-1) @ W, U)


def one_long_sequence(Z, U, causal):
    """All samples of the batch, one after the other."""
    return LESSON2.M(Z.flatten(0, 1)[None], U, causal).view_as(Z)


def in_loops(Z, U, causal):
    """MSSA of one sample, one head and one token at a time."""
    out = []
    for z in Z:
        total = torch.zeros_like(z)
        for Uk in U:
            w = z @ Uk
            for n in range(len(w)):
                seen = w[:n + 1] if causal else w
                total[n] = total[n] + (seen @ w[n] / U.shape[-1] ** 0.5).softmax(0) @ seen @ Uk.T
        out.append(total)
    return torch.stack(out)


RIGHT = {'with einsum': LESSON2.M, 'with scaled_dot_product_attention': LESSON2.fused, 'in loops': in_loops}
MISTAKES = next(e for e in LESSON2.EXERCISES if e.name == 'mssa').mutants | {
    'scores that fall with the distance of two tokens': near_is_more,
    'samples of a batch that see each other': one_long_sequence}
NEEDED = math.ceil(0.7 * len(MISTAKES))


def holds(prop, mssa):
    """What a property says of an implementation: True, False, or the exception that it raised."""
    torch.manual_seed(0)
    try:
        said = prop(mssa)
        if said is None:
            raise TypeError('returns None, not True or False')
        return bool(said)
    except Exception as e:
        return e


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
    if not isinstance(listed, (list, tuple)) or not all(map(callable, listed)):
        return wrong(f'returns {in_short(listed)}, and should return a list of functions',
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
    text = f'{len(kills)} of {len(MISTAKES)} mistakes found' \
        + (f', {NEEDED} are needed' if len(kills) < NEEDED else '') \
        + (f'; not found: {" | ".join(alive)}' if alive else '') \
        + (f'; no mistake is found by {", ".join(useless)}' if useless else '') \
        + (f'; not counted, because it raises an exception: {", ".join(raised)} ({last})' if raised else '')
    if len(kills) >= NEEDED:
        return {'verdict': 'right', 'message': text}
    return wrong(text, 'properties that raise exceptions' if len(raised) == len(listed) else
                 'properties that hold for every implementation, right or wrong' if not kills else
                 'too few properties: each finds its own kind of mistake')


def in_short(x):
    return f'a list with a {type(next(f for f in x if not callable(f))).__name__}' if isinstance(x, (list, tuple)) \
        else f'a {type(x).__name__}'


def alone(mssa):
    Z, U = drawn(1, 2, 1, 5), drawn(2, 3, 5, 2)
    return torch.allclose(mssa(Z, U, False), torch.einsum('bnd,kdp,kep->bne', Z, U, U))


def causal(mssa):
    Z, U = drawn(1, 2, 4, 5), drawn(2, 3, 5, 2)
    return all(torch.allclose(mssa(Z[:, :n], U, True), mssa(Z, U, True)[:, :n]) for n in (1, 2, 3))


def first(mssa):
    Z, U = drawn(1, 2, 4, 5), drawn(2, 3, 5, 2)
    return torch.allclose(mssa(Z, U, True)[:, 0], mssa(Z[:, :1], U, False)[:, 0])


def shuffled(mssa):
    Z, U = drawn(1, 2, 4, 5), drawn(2, 3, 5, 2)
    order = [2, 0, 3, 1]
    return torch.allclose(mssa(Z[:, order], U, False), mssa(Z, U, False)[:, order], rtol=1e-4)


def by_hand(mssa):
    """Two tokens and one head of four dimensions that keeps them as they are: scores 1 / 2 and 0."""
    Z, U = torch.eye(5)[None, :2], torch.eye(5)[None, :, :4]
    a = math.exp(0.5) / (math.exp(0.5) + 1)
    return bool((mssa(Z, U, False)[0, :, :2] - torch.tensor([[a, 1 - a], [1 - a, a]])).abs().max() < 1e-5)


def in_float32(mssa):
    """MSSA again, which is allowed too."""
    Z, U = drawn(1, 2, 4, 5).float(), drawn(2, 3, 5, 2).float()
    return torch.allclose(mssa(Z, U, True).double(), LESSON2.M(Z.double(), U.double(), True), atol=1e-5)


def exact(mssa):
    Z, U = drawn(1, 2, 7, 10), drawn(2, 3, 10, 4)
    return torch.equal(mssa(Z, U, False), LESSON2.M(Z, U, False))


EXERCISES = [
    Exercise(
        'mean_and_spread', values, oracle_mean_and_spread,
        {'the spread divided by n: of a sample it is n - 1': lambda v: (v.mean(), v.std(correction=0)),
         'the variance, without the root': lambda v: (v.mean(), v.var()),
         'the standard error, not the standard deviation': lambda v: (v.mean(), v.std() / len(v) ** 0.5),
         'half of the range': lambda v: (v.mean(), (v.max() - v.min()) / 2),
         'the mean distance from the mean': lambda v: (v.mean(), (v - v.mean()).abs().mean()),
         'the median in place of the mean': lambda v: (v.median(), v.std()),
         'the spread around zero, not around the mean': lambda v: (v.mean(), (v.square().sum() / (len(v) - 1)).sqrt())},
        [lambda v: (v.mean(), v.std()), by_statistics, lambda v: [v.mean(), v.var(correction=1).sqrt()]],
        ('Two numbers are drawn. Their own mean lies in the middle of them, the true mean may lie anywhere. Are '
         'squared distances from their own mean too small, or too large?',
         'mean = sum v / n; spread = sqrt(sum (v - mean)^2 / (n - 1)).',
         'mean = values.sum() / len(values)\nspread = ((values - mean).square().sum() / ...).sqrt()\n'
         'return mean, spread')),
    Exercise(
        'top_mass', maps, oracle_top_mass,
        {'one patch too few: together they hold less than the share':
            lambda A, share: T(A, share, lambda v, s, share: s < share),
         'one patch too many': lambda A, share: T(A, share, lambda v, s, share: s - v - v.roll(1, -1) < share),
         'patches that hold more than the mean': lambda A, share: A > A.mean(-1, keepdim=True),
         'patches above `share` of the largest one': lambda A, share: A >= share * A.amax(-1, keepdim=True),
         'a share of the patches, not of the attention':
            lambda A, share: A.argsort(-1, descending=True).argsort(-1) < round(share * A.shape[-1]),
         'the patches with the least attention': lambda A, share: least(A, share),
         'the first patches that hold the share, not the largest':
            lambda A, share: A.cumsum(-1) - A < share,
         'all maps together, not each by itself': joined,
         'order of size mixed up with place': lambda A, share: T(A, share).gather(
             -1, A.argsort(dim=-1, descending=True, stable=True))},
        [T, by_counting, one_by_one, of_layers('top_mass')],
        ('The patches are sorted, the largest first. When is the next one still needed: if those before it hold how '
         'much?',
         'Sort. A patch is kept if the sum of all larger ones is below `share`. Then back to where the patches were.',
         'values, order = maps.sort(dim=-1, descending=True)\nbefore = values.cumsum(-1) - ...\nkept = '
         'torch.zeros_like(maps, '
         'dtype=torch.bool)\nreturn kept.scatter(-1, ..., before < share)'),
        also=fewest),
    Exercise(
        'overlap', masks, oracle_overlap,
        {'the Dice score: twice the intersection over the sum of both':
            lambda a, b: torch.nan_to_num(2 * inter(a, b) / (area(a) + area(b))),
         'the intersection over the first mask: precision': lambda a, b: torch.nan_to_num(inter(a, b) / area(a)),
         'the intersection over the second mask: recall': lambda a, b: torch.nan_to_num(inter(a, b) / area(b)),
         'the intersection over the smaller mask':
            lambda a, b: torch.nan_to_num(inter(a, b) / torch.minimum(area(a), area(b))),
         'the share of pixels on which both agree': lambda a, b: (a == b).double().mean((-2, -1)),
         'the intersection over all pixels': lambda a, b: (a & b).double().mean((-2, -1)),
         'the intersection over the sum of both, in which it counts twice':
            lambda a, b: torch.nan_to_num(inter(a, b) / (area(a) + area(b))),
         '1 for two empty masks': lambda a, b: torch.where((a | b).any(-1).any(-1), iou(a, b), 1.0),
         'one number for all masks together': lambda a, b: (a & b).sum() / (a | b).sum()},
        [iou, by_areas],
        ('What is 0 / 0 in torch, and what should it be here?',
         '|a and b| / |a or b|, over the last two axes; 0 where the union is empty.',
         'both = (a & b).sum((-2, -1))\neither = ...\nreturn both / either.clamp_min(...)')),
    Exercise(
        'best_heads', scores, oracle_best_heads,
        {'the first two exchanged': lambda S: (S.mean(0).amax(), S.amax(1).mean(), S.mean()),
         'the best head of the best picture': lambda S: (S.max(), S.mean(0).amax(), S.mean()),
         'the best score of each head, not of each picture':
            lambda S: (S.amax(0).mean(), S.mean(0).amax(), S.mean()),
         'the best picture in place of the best head': lambda S: (S.amax(1).mean(), S.mean(1).amax(), S.mean()),
         'the head that is best in the first picture':
            lambda S: (S.amax(1).mean(), S[:, S[0].argmax()].mean(), S.mean()),
         'the head that has the largest score of all':
            lambda S: (S.amax(1).mean(), S[:, S.amax(0).argmax()].mean(), S.mean()),
         'the median of all heads, not the mean': lambda S: (S.amax(1).mean(), S.mean(0).amax(), S.median())},
        [lambda S: (S.amax(1).mean(), S.mean(0).amax(), S.mean()),
         lambda S: (S.max(1).values.mean(), S[:, S.sum(0).argmax()].mean(), S.mean(1).mean())],
        ('In which of the two does the choice of the head come first, and in which the mean over pictures?',
         'mean over n of (max over K of S); max over K of (mean over n of S); mean of S.',
         'return scores.amax(...).mean(), scores.mean(...).amax(), scores.mean()')),
    Exercise(
        'beats', pairs, oracle_beats,
        {'the standard error of unpaired seeds': lambda a, b: B(
            a, b, lambda d: ((a.var() + b.var()) / len(a)).sqrt()),
         'the standard deviation, not the standard error': lambda a, b: B(a, b, lambda d: d.std()),
         'a standard error with n, where the spread has n - 1': lambda a, b: B(
             a, b, lambda d: d.std(correction=0) / len(d) ** 0.5),
         'the spread over n, not over its root': lambda a, b: B(a, b, lambda d: d.std() / len(d)),
         'one standard error is enough': lambda a, b: B(a, b, rule=lambda m, e: m > e),
         'a clear loss counts too: the size of the difference, without its sign': lambda a, b: B(
             a, b, rule=lambda m, e: m.abs() > 2 * e),
         'theirs - ours': lambda a, b: B(b, a),
         'no difference at all is enough: >= in place of >': lambda a, b: B(a, b, rule=lambda m, e: m >= 2 * e)},
        [B, with_statistics],
        ('The same seed is easy or hard for both networks. What is left of that in the difference?',
         'd = ours - theirs; mean d; its standard error sqrt(sum (d - mean d)^2 / (n - 1)) / sqrt(n); mean > 2 errors.',
         'd = ours - theirs\nmean, error = d.mean(), d.std() / ...\nreturn mean, error, len(d) > 1 and mean > ...'),
        also=says_so_when_it_is_so),
    Exercise(
        'properties', None, None,
        {'a list without properties': lambda: [],
         'properties that hold for every implementation, right or wrong': lambda: [lambda mssa: True],
         'properties that raise exceptions': lambda: [lambda mssa: mssa(torch.zeros(3), None, False)],
         'a property that does not hold for MSSA': lambda: [alone, causal, first, lambda mssa: bool((mssa(
             drawn(1, 1, 3, 4), drawn(2, 2, 4, 2), False).sum(-1) == 1).all())],
         'a property that compares to the last digit': lambda: [alone, causal, first, exact],
         'too few properties: each finds its own kind of mistake': lambda: [causal, shuffled],
         'properties that were called already: the list is of functions, without ()': lambda: [
             alone(LESSON2.M), causal(LESSON2.M)]},
        [lambda: [alone, causal, first, shuffled], lambda: (alone, causal, by_hand, lambda mssa: 1 / 0),
         lambda: [in_float32, alone, shuffled]],
        ('You do not know the right numbers. But which two calls must give the same: with the tokens in another order, '
         'with another last token, with one token alone?',
         'For example: a token alone gives sum_k U_k U_k^T z; the future does not change the past; the first '
         'token sees '
         'itself alone; tokens in another order give the same results in that order; heads add up; zeros around '
         'Z and U '
         'change nothing; two tokens computed by hand show the sqrt(p).',
         'def alone(mssa):\n    Z, U = torch.randn(2, 1, 5), torch.randn(3, 5, 2)\n    return '
         'torch.allclose(mssa(Z, U, '
         'False), ..., atol=1e-5)\n\ndef causal(mssa):\n    ...\n\nreturn [alone, causal]'),
        own=hunt),
]


def least(A, share):
    """Patches from the smallest on, until they hold the share."""
    values, order = A.sort(dim=-1, stable=True)
    return keep(A, order, values.cumsum(-1) - values < share)
