"""When one network counts as better than another: the one rule of the project.

Two networks are trained with the same seeds. The runs of a seed are a pair, which sees the same
batches. The differences of the pairs have a mean, and around it lies its 95% interval: for two
networks that are equal, it holds 0 in 95% of all comparisons (Student's t-test of pairs; Student,
"The Probable Error of a Mean", Biometrika 1908). If it does not hold 0, that is a verdict. Else
these seeds do not tell.
"""
from math import sqrt
from statistics import fmean, stdev

LEAST_PAIRS = 3  # with two the interval reaches 12.7 standard errors to each side


def interval(differences):
    """(low, high), the 95% interval of the mean of at least two differences."""
    return interval_of_mean(fmean(differences), stdev(differences), len(differences))


def interval_of_mean(mean, spread, n):
    """(low, high), the same where only the mean of n differences and their standard deviation are
    left."""
    from scipy.stats import t  # here and below: training needs no scipy
    # few differences misjudge their own spread too: t is 4.3 for three of them, 2.8 for five
    half = t.ppf(0.975, n - 1) * spread / sqrt(n)
    return mean - half, mean + half


def interval_of_means(mean_a, spread_a, n_a, mean_b, spread_b, n_b):
    """(low, high), the 95% interval of a - b, where only the means, standard deviations and numbers
    of runs are left, and no pairs (Welch's t-test)."""
    from scipy.stats import t
    variance_a = spread_a ** 2 / n_a
    variance_b = spread_b ** 2 / n_b
    variance = variance_a + variance_b
    freedom = variance ** 2 / (variance_a ** 2 / (n_a - 1) + variance_b ** 2 / (n_b - 1))
    half = t.ppf(0.975, freedom) * sqrt(variance)
    return mean_a - mean_b - half, mean_a - mean_b + half


def verdict(first, second, differences):
    """What some pairs say, in a line: the mean difference, its interval, and which of the two
    networks, `first` and `second`, is better. differences: error of the first - error of the
    second, one for each seed. If all are equal, nobody knows how chance moves them."""
    line = f'{first} - {second}: {fmean(differences):+.4f}'
    if len(differences) < LEAST_PAIRS:
        return f'{line}; no verdict, which takes {LEAST_PAIRS} seeds or more'
    low, high = interval(differences)
    line += f', 95% interval {low:+.4f} to {high:+.4f} of {len(differences)} pairs'
    if low < high < 0:
        return f'{line}: {first} is better than {second}'
    if 0 < low < high:
        return f'{line}: {first} is worse than {second}'
    return f'{line}: these seeds do not tell'
