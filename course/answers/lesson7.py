"""Lesson 7, solved."""
import math

import torch
from scipy.stats import t


def mean_and_spread(values):
    return values.mean(), values.std(correction=1)              # divided by n - 1


def top_mass(maps, share):
    values, order = maps.sort(dim=-1, descending=True)
    # what larger patches hold together. As long as it is below the share, one more is needed
    before = values.cumsum(-1) - values
    # scatter puts each answer back to the place of its patch
    return torch.zeros_like(maps, dtype=torch.bool).scatter(-1, order, before < share)


def overlap(a, b):
    both, either = (a & b).sum((-2, -1)), (a | b).sum((-2, -1))
    return both.double() / either.clamp_min(1)                  # 0 / 1 for two empty masks


def best_heads(scores):
    return scores.amax(1).mean(), scores.mean(0).amax(), scores.mean()


def beats(ours, theirs):
    differences = ours - theirs
    n = len(differences)
    mean = differences.mean()
    half = t.ppf(0.975, n - 1) * differences.std() / math.sqrt(n)
    return mean, half, n >= 3 and mean > half


def properties():
    return [a_token_alone_is_projected, the_future_does_not_matter, the_first_token_sees_itself,
            order_does_not_matter, others_in_the_batch_do_not_matter, zeros_around_do_not_matter,
            heads_add_up, twice_the_head_is_a_larger_basis, other_tokens_matter]


def drawn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def a_token_alone_is_projected(mssa):
    Z, U = drawn(2, 1, 5), drawn(3, 5, 2)
    return torch.allclose(mssa(Z, U, False), sum(Z @ U_k @ U_k.T for U_k in U))


def the_future_does_not_matter(mssa):
    Z, U = drawn(2, 4, 5), drawn(3, 5, 2)
    changed = torch.cat((Z[:, :2], drawn(2, 2, 5)), 1)
    return torch.allclose(mssa(Z, U, True)[:, :2], mssa(changed, U, True)[:, :2])


def the_first_token_sees_itself(mssa):
    Z, U = drawn(2, 4, 5), drawn(3, 5, 2)
    return torch.allclose(mssa(Z, U, True)[:, :1], mssa(Z[:, :1], U, False))


def order_does_not_matter(mssa):
    Z, U, order = drawn(2, 4, 5), drawn(3, 5, 2), [2, 0, 3, 1]
    return torch.allclose(mssa(Z[:, order], U, False), mssa(Z, U, False)[:, order])


def others_in_the_batch_do_not_matter(mssa):
    Z, U = drawn(3, 4, 5), drawn(3, 5, 2)
    return torch.allclose(mssa(Z, U, False)[:1], mssa(Z[:1], U, False))


def zeros_around_do_not_matter(mssa):
    """d is larger, and nothing else changes: only sqrt(p) may count."""
    Z, U = drawn(2, 4, 5), drawn(3, 5, 2)
    wider_Z = torch.nn.functional.pad(Z, (0, 4))
    wider_U = torch.nn.functional.pad(U, (0, 0, 0, 4))
    wider = mssa(wider_Z, wider_U, False)
    return torch.allclose(wider[..., :5], mssa(Z, U, False))


def heads_add_up(mssa):
    Z, U = drawn(2, 4, 5), drawn(3, 5, 2)
    return torch.allclose(mssa(Z, U, False), sum(mssa(Z, U[k:k + 1], False) for k in range(3)))


def twice_the_head_is_a_larger_basis(mssa):
    """[U_k, U_k] doubles inner products and p, so scores grow by 2 / sqrt(2), as with
    2^(1/4) U_k."""
    Z, U = drawn(2, 4, 5), 0.5 * drawn(3, 5, 2)
    doubled = mssa(Z, torch.cat((U, U), 2), False)
    return torch.allclose(doubled, 2 ** 0.5 * mssa(Z, 2 ** 0.25 * U, False))


def other_tokens_matter(mssa):
    Z, U = drawn(2, 4, 5), drawn(3, 5, 2)
    changed = torch.cat((Z[:, :3], drawn(2, 1, 5)), 1)
    return not torch.allclose(mssa(Z, U, False)[:, 0], mssa(changed, U, False)[:, 0])
