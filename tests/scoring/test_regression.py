"""Estimators of functions in context against naive ones."""
import numpy as np
import pytest

from scoring import regression
from tasks.regression import Prompts


def draw(n):
    """3 prompts of n examples, vectors x of four numbers and their y."""
    return Prompts('linear', 4, n).draw(np.random.default_rng(0), 3)


def test_least_squares_is_numpys_and_exact_once_it_can_be():
    x, y = draw(9)

    predictions = regression.predictions(regression.least_squares, x, y)

    for b in range(3):
        for i in range(1, 9):
            w = np.linalg.lstsq(x[b, :i].numpy(), y[b, :i].numpy(), rcond=None)[0]
            expected = x[b, i].numpy() @ w  # with the smallest w of the best
            assert predictions[b, i].item() == pytest.approx(expected.item(), abs=1e-4)
    assert (predictions[:, 4:] - y[:, 4:]).abs().max() < 1e-3
    assert (predictions[:, 0] == 0).all()


def test_lasso_minimizes_its_objective():
    """0 is among the subgradients, which of a convex objective is true of its minimum alone."""
    x, y = Prompts('sparse_linear', 20, 30).draw(np.random.default_rng(0), 8)
    for i in (1, 19, 29):
        X = x[:, :i].double()
        Y = y[:, :i].double()

        w = regression.lasso_weights(X, Y, alpha=0.05, steps=3000)

        residual = Y[..., None] - X @ w[..., None]
        gradient = (X.mT @ residual)[..., 0] / i
        assert (gradient[w != 0] - 0.05 * w[w != 0].sign()).abs().max() < 1e-5
        assert gradient[w == 0].abs().max() < 0.05 + 1e-5


def test_the_steps_that_are_taken_suffice():
    x, y = Prompts('sparse_linear', 20, 41).draw(np.random.default_rng(1), 40)

    errors = []
    for settings in ({}, {'steps': 20_000}):
        w = regression.lasso_weights(x[:, :3], y[:, :3], **settings)
        prediction = (x[:, 3] * w).sum(1)
        errors.append((prediction - y[:, 3]).square().mean().item() / 3)

    assert errors[0] == pytest.approx(errors[1], abs=0.02)  # of the curve in Figure 6


def test_nearest_neighbours_by_a_naive_loop():
    x, y = draw(8)

    predictions = regression.predictions(regression.nearest, x, y)

    for b in range(3):
        for i in range(1, 8):
            distances = (x[b, :i] - x[b, i]).norm(dim=1)
            nearest = distances.argsort()[:3]
            expected = y[b, nearest].mean().item()
            assert predictions[b, i].item() == pytest.approx(expected, abs=1e-5)
