"""The linear probe and nearest neighbours: they equal naive loops, and the probe never looks at the
test set."""
import math

import pytest
import torch
from helpers import generator, margin

from scoring import probes


def blobs(n, seed, noise=1.0):
    """Features of width 5 around one centre for each of 3 classes, and labels."""
    y = torch.arange(n) % 3
    centres = torch.randn(3, 5, generator=generator(99))
    return centres[y] + noise * torch.randn(n, 5, generator=generator(seed)), y


# ---- the linear probe

@pytest.mark.parametrize('C', [0.01, 1000.0])
def test_logistic_regression_finds_the_minimum_of_its_objective(C):
    """The objective of the docstring, term by term. It is convex, so its gradient is zero at the
    minimum alone."""
    x, y = blobs(40, 0)
    x = x.double()
    W = probes.fit_logistic(x, y, 3, C).requires_grad_()

    objective = (W[:, :-1] ** 2).sum() / (2 * C)
    for features, label in zip(x, y):
        scores = W[:, :-1] @ features + W[:, -1]
        objective = objective - scores.log_softmax(0)[label]
    objective.backward()

    assert W.grad.abs().max() < 1e-3


def accuracy_by_hand(x, y, tested_x, tested_y, C):
    W = probes.fit_logistic(x.double(), y, 3, C)
    scores = tested_x.double() @ W[:, :-1].T + W[:, -1]
    assert margin(scores) > 1e-3  # no tie that rounding or the precision of the fit could decide
    return (scores.argmax(1) == tested_y).double().mean().item()


def test_the_probe_chooses_on_held_out_pictures_alone(monkeypatch):
    x, y = blobs(100, 22)
    test_x, test_y = blobs(60, 23)  # of which another C is the best
    fit = probes.fit_logistic
    fits = []

    def noted(x, y, classes, C, start=None):
        fits.append((x, C))
        return fit(x, y, classes, C, start)

    with monkeypatch.context() as patch:
        patch.setattr(probes, 'fit_logistic', noted)
        accuracy, best_C = probes.linear_probe((x, y), (test_x, test_y), 3)
    assert [C for _, C in fits] == [1, 10, 100, 1e3, 1e4, 1e5, best_C]
    assert torch.equal(fits[-1][0], x)
    fitted = fits[0][0]
    assert len(fitted) == 80  # a fifth is held out
    for other_fitted, _ in fits[1:-1]:
        assert torch.equal(other_fitted, fitted)

    is_fitted = (x[:, None] == fitted).all(2).any(1)
    accuracies = []
    for C in probes.PROBE_C:
        accuracies.append(
            accuracy_by_hand(x[is_fitted], y[is_fitted], x[~is_fitted], y[~is_fitted], C))
    assert best_C == probes.PROBE_C[accuracies.index(max(accuracies))]  # of equals the smallest
    assert accuracy == pytest.approx(accuracy_by_hand(x, y, test_x, test_y, best_C))


@pytest.mark.parametrize('at_once, n_rows', [(1, 1), (60, 12)])
def test_parts_of_any_size_give_the_same(at_once, n_rows, monkeypatch):
    """So no more numbers than asked for are in memory at once, if they are those of a picture or
    more. A picture has 5 features."""
    x, y = blobs(30, 0)
    W = probes.fit_logistic(x, y, 3, 10.0)
    accuracy = probes.accuracy_of(W, x, y)
    monkeypatch.setattr(probes, 'AT_ONCE', at_once)

    parts = list(probes.parts(W, x, y))

    assert max(len(labels) for labels, _ in parts) == n_rows
    assert torch.equal(torch.cat([labels for labels, _ in parts]), y)
    assert torch.allclose(probes.fit_logistic(x, y, 3, 10.0), W, rtol=1e-9, atol=1e-9)
    assert probes.accuracy_of(W, x, y) == accuracy


# ---- nearest neighbours

@pytest.mark.parametrize('k', [4, 50])
def test_neighbours_vote_as_in_a_naive_loop(k):
    x, y = blobs(30, 0, noise=2.0)
    test_x, test_y = blobs(300, 1, noise=2.0)
    votes = torch.zeros(300, 3, dtype=torch.float64)
    for i, feature in enumerate(test_x.double()):
        similarities = []
        for j, other in enumerate(x.double()):
            cosine = feature @ other / feature.norm() / other.norm()
            similarities.append((cosine.item(), y[j]))
        similarities.sort(reverse=True)
        if k < 30:
            assert similarities[k - 1][0] - similarities[k][0] > 1e-6  # no tie
        for similarity, label in similarities[:k]:
            votes[i, label] += math.exp(similarity / 0.07)
    assert margin(votes / votes.amax(1, keepdim=True)) > 1e-4  # no tie
    expected = (votes.argmax(1) == test_y).sum().item() / 300

    assert 0.4 < expected < 1
    assert probes.nearest_neighbours((x, y), (test_x, test_y), 3, k) == expected
    assert probes.nearest_neighbours((x, y), (x, y), 3, 1) == 1
