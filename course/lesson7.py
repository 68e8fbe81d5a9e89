"""Lesson 7: look inside with a sceptic's eye. Fill in the gaps; lesson7.md says what they are about.

    python course/check.py 7
"""
import torch


def mean_and_spread(values: torch.Tensor) -> tuple:
    """The mean of one number for each seed, and their sample standard deviation: values (n,), with n at
    least 2. Returns two numbers."""
    raise NotImplementedError


def top_mass(maps: torch.Tensor, share: float) -> torch.Tensor:
    """The fewest patches that hold at least `share` of each map together. maps (.., N): attention over N
    patches, which sums to 1. Returns bool (.., N), True for the patches that are kept."""
    raise NotImplementedError


def overlap(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Intersection over union of masks, bool (.., H, W) -> (..): the pixels that are in both, divided by
    those that are in at least one. 0 where both masks are empty."""
    raise NotImplementedError


def best_heads(scores: torch.Tensor) -> tuple:
    """Three ways to report one table: scores (n, K) of K heads in n pictures, of which higher is better.
    Returns three numbers: the mean over pictures of the best head of each picture; the mean of the one
    head that is best over all pictures; the mean of all heads."""
    raise NotImplementedError


def beats(ours: torch.Tensor, theirs: torch.Tensor) -> tuple:
    """Are we better, or was it the seeds? ours, theirs (n,): scores with the same n seeds in the same
    order, of which higher is better. Returns the mean of the differences ours - theirs; its standard
    error, which is their sample standard deviation over sqrt(n); and whether the mean is above two
    standard errors. One seed alone never beats anything (its standard error does not matter)."""
    raise NotImplementedError


def properties() -> list:
    """Functions that find mistakes in an implementation of MSSA, without knowing the right result. Each
    takes an implementation mssa(Z, U, causal), as in lesson 2: Z (B, N, d), U (K, d, p), a bool -> (B,
    N, d), and returns True if the property holds. It must hold for every right implementation, which may
    round in another way, and should not hold for wrong ones."""
    raise NotImplementedError
