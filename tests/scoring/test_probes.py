"""The linear probe and nearest neighbours: they equal naive loops, and the probe never looks at the test set."""
import math

import pytest
import torch
from helpers import margin

from scoring import probes


def blobs(n, seed, d=5, classes=3, noise=1.0):
    """Features around one centre per class, and labels."""
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % classes
    centres = torch.randn(classes, d, generator=torch.Generator().manual_seed(99))
    return centres[y] + noise * torch.randn(n, d, generator=g), y


# ---- the linear probe

@pytest.mark.parametrize('C', [0.01, 1.0, 1000.0])
def test_logistic_regression_finds_the_minimum_of_its_objective(C):
    """The objective of the docstring, term by term; it is convex, so its gradient is zero at the minimum alone."""
    x, y = blobs(40, 0)
    x, W = x.double(), probes.fit_logistic(x.double(), y, 3, C).requires_grad_()
    losses = [-(W[:, :-1] @ x[i] + W[:, -1]).log_softmax(0)[y[i]] for i in range(len(y))]
    (torch.stack(losses).sum() + (W[:, :-1] ** 2).sum() / (2 * C)).backward()
    assert W.grad.abs().max() < 1e-3


def test_the_probe_chooses_on_held_out_pictures_alone(monkeypatch):
    train, test = blobs(100, 0, noise=1.5), blobs(60, 1, noise=1.5)
    fit, sets = probes.fit_logistic, []

    def noted(x, y, classes, C, start=None):
        sets.append((x, y, C))
        return fit(x, y, classes, C, start)
    monkeypatch.setattr(probes, 'fit_logistic', noted)
    accuracy, C = probes.linear_probe(train, test, 3)
    assert [s[2] for s in sets] == [*probes.PROBE_C, C] == [1, 10, 100, 1e3, 1e4, 1e5, C]
    rows = [{tuple(row) for row in x.tolist()} for x, _, _ in sets]
    assert rows[-1] == {tuple(row) for row in train[0].tolist()}
    assert all(len(r) == 80 and r == rows[0] < rows[-1] for r in rows[:-1])  # a fifth is held out

    def accuracy_by_hand(fitted, tested, C):
        W = fit(fitted[0].double(), fitted[1], 3, C)
        scores = tested[0].double() @ W[:, :-1].T + W[:, -1]
        assert margin(scores) > 1e-3  # no tie that rounding or the precision of the fit could decide
        return (scores.argmax(1) == tested[1]).double().mean().item()
    out = torch.tensor([tuple(row) not in rows[0] for row in train[0].tolist()])
    kept, held_out = ((train[0][part], train[1][part]) for part in (~out, out))
    right = [accuracy_by_hand(kept, held_out, c) for c in probes.PROBE_C]
    assert C == probes.PROBE_C[right.index(max(right))]  # of equals the smallest
    assert accuracy == pytest.approx(accuracy_by_hand(train, test, C))
    other = probes.linear_probe(train, (test[0], test[1].flip(0)), 3)  # another test set
    assert other[1] == C and other[0] != accuracy


@pytest.mark.slow
@pytest.mark.parametrize('at_once', [1, 60])
def test_parts_of_any_size_give_the_same(at_once, monkeypatch):
    """So no more scores than asked for are in memory at once, if they are those of a picture or more."""
    (x, y), test = blobs(100, 0, noise=1.5), blobs(60, 1, noise=1.5)
    W, scores = probes.fit_logistic(x.double(), y, 3, 10.0), probes.linear_probe((x, y), test, 3)
    monkeypatch.setattr(probes, 'AT_ONCE', at_once)
    found = list(probes.parts(W, x, y))
    assert all(5 * len(s) <= max(5, at_once) and s.numel() <= max(3, at_once) for _, s in found)
    assert torch.equal(torch.cat([labels for labels, _ in found]), y)
    assert torch.allclose(probes.fit_logistic(x, y, 3, 10.0), W, rtol=1e-9, atol=1e-9)
    assert probes.linear_probe((x, y), test, 3) == scores


# ---- nearest neighbours

@pytest.mark.parametrize('k', [1, 4, 50])
def test_neighbours_vote_as_in_a_naive_loop(k):
    (x, y), (u, v) = blobs(30, 0, noise=2.0), blobs(300, 1, noise=2.0)
    votes, gaps = torch.zeros(300, 3, dtype=torch.float64), []
    for i, feature in enumerate(u.double()):
        s = [(feature @ other / feature.norm() / other.norm()).item() for other in x.double()]
        order = sorted(range(30), key=lambda j: -s[j])
        gaps += [s[a] - s[b] for a, b in zip(order[k - 1:k], order[k:k + 1])]
        for j in order[:k]:
            votes[i, y[j]] += math.exp(s[j] / 0.07)
    assert all(gap > 1e-6 for gap in gaps) and margin(votes / votes.amax(1, keepdim=True)) > 1e-4  # no ties
    right = (votes.argmax(1) == v).sum().item() / 300
    assert 0.4 < right < 1 and probes.nearest_neighbours((x, y), (u, v), 3, k) == right
    assert probes.nearest_neighbours((x, y), (x, y), 3, 1) == 1
