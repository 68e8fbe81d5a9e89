"""Estimators of functions in context against naive ones."""
import numpy as np
import pytest

from scoring import regression
from tasks.regression import Prompts


def draw(B=3, n=6, d=4, seed=0):
    return Prompts('linear', d, n).draw(np.random.default_rng(seed), B)


def test_least_squares_is_numpys_and_exact_once_it_can_be():
    x, y = draw(n=9)
    guess = regression.predictions(regression.least_squares, x, y)
    for b in range(3):
        for i in range(1, 9):
            w = np.linalg.lstsq(x[b, :i].numpy(), y[b, :i].numpy(), rcond=None)[0]  # the smallest of the best
            assert guess[b, i].item() == pytest.approx((x[b, i].numpy() @ w).item(), abs=1e-4)
    assert (guess[:, 4:] - y[:, 4:]).abs().max() < 1e-3 and (guess[:, 0] == 0).all()


def test_lasso_minimizes_its_objective():
    """0 is among the subgradients, which of a convex objective is true of its minimum alone."""
    x, y = Prompts('sparse_linear', 20, 30).draw(np.random.default_rng(0), 8)
    for i in (1, 7, 19, 29):
        X, Y = x[:, :i].double(), y[:, :i].double()
        w = regression.lasso_weights(X, Y, alpha=0.05, steps=3000)
        g = (X.mT @ (Y - (X @ w[..., None])[..., 0])[..., None])[..., 0] / i
        assert (g[w != 0] - 0.05 * w[w != 0].sign()).abs().max() < 1e-5 and g[w == 0].abs().max() < 0.05 + 1e-5


def test_the_steps_that_are_taken_suffice():
    x, y = Prompts('sparse_linear', 20, 41).draw(np.random.default_rng(1), 40)
    for i in (3, 20, 40):
        found = [regression.lasso_weights(x[:, :i], y[:, :i], **kw) for kw in ({}, {'steps': 20_000})]
        a, b = (((x[:, i] * w).sum(1) - y[:, i]).square().mean().item() / 3 for w in found)
        assert a == pytest.approx(b, abs=0.02)  # of the curve in Figure 6


def test_nearest_neighbours_by_a_naive_loop():
    x, y = draw(n=8)
    guess = regression.predictions(regression.nearest, x, y)
    for b in range(3):
        for i in range(1, 8):
            far = sorted(((x[b, i] - x[b, j]).norm().item(), j) for j in range(i))
            assert all(far[3][0] - far[2][0] > 1e-4 for _ in far[3:4])  # no tie for the third place
            want = sum(y[b, j].item() for _, j in far[:3]) / len(far[:3])
            assert guess[b, i].item() == pytest.approx(want, abs=1e-5)
