"""Estimators of functions in context against naive ones, the errors of Figure 6, and its files."""
import contextlib
import csv

import numpy as np
import pytest
import torch
from helpers import loud

from model_aot import AoT, AoTConfig
from scoring import regression
from tasks.regression import Prompts


def draw(B=3, n=6, d=4, seed=0):
    return Prompts('linear', d, n).draw(np.random.default_rng(seed), B)


def network(**settings):
    torch.manual_seed(0)
    return loud(AoT(AoTConfig(**dict(block_size=12, n_dims=4, n_layer=2, n_head=2, n_embd=16) | settings)))


# ---- estimators

def test_least_squares_is_numpys_and_exact_once_it_can_be():
    x, y = draw(n=9)
    guess = regression.predictions(regression.least_squares, x, y)
    for b in range(3):
        for i in range(1, 9):
            w = np.linalg.lstsq(x[b, :i].numpy(), y[b, :i].numpy(), rcond=None)[0]  # the smallest of the best
            assert guess[b, i].item() == pytest.approx((x[b, i].numpy() @ w).item(), abs=1e-4)
    assert (guess[:, 4:] - y[:, 4:]).abs().max() < 1e-3 and (guess[:, 0] == 0).all()


def test_lasso_minimizes_its_objective():
    x, y = Prompts('sparse_linear', 20, 30).draw(np.random.default_rng(0), 8)
    for i in (1, 7, 19, 29):
        X, Y = x[:, :i].double(), y[:, :i].double()
        w = regression.lasso_weights(X, Y, alpha=0.05, steps=3000)
        g = (X.mT @ (Y - (X @ w[..., None])[..., 0])[..., None])[..., 0] / i        # 0 is among the subgradients:
        assert (g[w != 0] - 0.05 * w[w != 0].sign()).abs().max() < 1e-5 and g[w == 0].abs().max() < 0.05 + 1e-5
        for b in range(2):  # and coordinate descent finds the same fit
            v = np.zeros(20)
            A, t = X[b].numpy(), Y[b].numpy()
            for _ in range(3000):
                for j in range(20):
                    rho = A[:, j] @ (t - A @ v + A[:, j] * v[j]) / i
                    v[j] = np.sign(rho) * max(abs(rho) - 0.05, 0) / (A[:, j] @ A[:, j] / i)
                if np.abs(A @ v - A @ w[b].numpy()).max() < 1e-5:
                    break
            assert np.abs(A @ v - A @ w[b].numpy()).max() < 1e-3


def test_the_steps_that_are_taken_suffice():
    x, y = Prompts('sparse_linear', 20, 41).draw(np.random.default_rng(1), 100)
    for i in (3, 12, 20, 40):
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


@pytest.mark.parametrize('estimate', regression.ESTIMATORS.values(), ids=str)
def test_estimators_see_the_past_alone(estimate):
    x, y = draw(n=8)
    changed = x.clone(), y.clone()
    changed[0][:, 5:] += 1
    changed[1][:, 4:] += 1  # what is predicted at 4 is not seen there
    before, after = regression.predictions(estimate, x, y), regression.predictions(estimate, *changed)
    assert torch.equal(before[:, :5], after[:, :5])


# ---- Figure 6

def test_errors_are_those_computed_by_hand():
    models, prompts = {'mssa': network(), 'gpt2': network(attn='mhsa', mlp=True)}, Prompts('sparse_linear', 4, 6, 2)
    x, y = next(prompts.fixed(50, 1, stream=9))
    for batch_size in (64, 7):
        found = regression.curves(models, prompts, contextlib.nullcontext(), 50, batch_size)
        assert list(found) == ['mssa', 'gpt2', 'least squares', 'Lasso', '3 nearest neighbours', 'zero']
        for name, predict in {**models, 'zero': lambda x, y: (0 * y, None), 'least squares': lambda x, y: (
                regression.predictions(regression.least_squares, x, y), None)}.items():
            with torch.no_grad():
                error = (predict(x, y)[0] - y).square() / 2
            mean, deviation = found[name]
            assert mean == pytest.approx(error.mean(0).tolist(), rel=1e-4, abs=1e-6)
            assert deviation == pytest.approx((error.std(0) / 50 ** 0.5).tolist(), rel=1e-4, abs=1e-6)


def test_the_legend_names_no_folders(tmp_path, monkeypatch):
    figures, curve = [], np.array([[1.0, 0.5], [0.1, 0.1]])
    monkeypatch.setattr(regression.plots, 'save', lambda path, figure, *more: figures.append(figure))
    nets = ['out/a/best.safetensors', 'out/b', 'else/b']
    regression.draw(dict.fromkeys([*nets, 'zero'], curve), dict.fromkeys(nets), 'functions', tmp_path / 'x.csv')
    legend = figures[0].axes[0].get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ['a', 'out/b', 'else/b', 'zero']


def test_the_figure_stands_beside_its_table(tmp_path, capsys):
    found = {'net': np.array([[1.0, 0.5, 0.25], [0.1, 0.1, 0.05]]), 'zero': np.array([[1.0] * 3, [0.0] * 3])}
    regression.draw(found, {'net': None}, 'linear functions', tmp_path / 'x.csv')
    with open(tmp_path / 'x.csv', newline='') as f:
        rows = list(csv.reader(f))
    assert rows[0] == ['estimator', 'examples', 'error', 'standard_error']
    assert rows[1:4] == [['net', '0', '1.0', '0.1'], ['net', '1', '0.5', '0.1'], ['net', '2', '0.25', '0.05']]
    assert len(rows) == 7 and (tmp_path / 'x.png').stat().st_size > 5000 and 'x.csv' in capsys.readouterr().out
