"""Coding rates, the LASSO and the denoising theorem against textbook formulas, naive loops,
autograd and the released code."""
import json
import math

import pytest
import torch
from helpers import ROOT

from analysis.measures import (coding_rate, compressed_rate, compressed_rate_gradient, denoise,
                               denoising_weights, lasso_minimizer, lasso_objective, noisy_mixture, nonzeros,
                               objective, passing, released_rate, snr)


def tokens(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# ---- coding rates


@pytest.mark.parametrize('N, d', [(5, 12), (12, 5), (7, 7), (1, 3)])
def test_the_rate_by_eigenvalues(N, d):
    """Eq. (7), whichever Gram matrix is smaller; one long token does not hide the others in float32."""
    Z, eps = tokens(3, N, d), 0.3
    Z[2, 0] *= 1e5
    for z, single, found in zip(Z, Z.float(), coding_rate(Z, eps)):
        brute = 0.5 * sum(math.log(1 + d / (N * eps ** 2) * s * s) for s in torch.linalg.svdvals(z).tolist())
        assert found.item() == pytest.approx(brute, rel=1e-6)
        assert coding_rate(single, eps).item() == pytest.approx(brute, rel=1e-5)


def test_the_compressed_rate_is_the_sum_over_subspaces():
    W = tokens(3, 9, 4)
    assert compressed_rate(W, 0.2).item() == pytest.approx(sum(coding_rate(w, 0.2).item() for w in W))


def test_the_objective_by_hand():
    """Two orthogonal subspaces of two dimensions, each with two tokens; eps 1, lambda 0.1."""
    Z = torch.tensor([[2.0, 0, 0, 0], [0, 2, 0, 0], [0, 0, 2, 0], [0, 0, 0, 2]])
    W = torch.stack([Z[:, :2], Z[:, 2:]])
    whole, each = 4 * math.log(1 + 4), 2 * math.log(1 + 2)              # d / N = 1 and p / N = 1/2, times 2^2
    assert objective(Z, W, 0.1, eps=1.0).item() == pytest.approx((whole - 2 * each) / 2 - 0.4)
    of_channels, of_tokens = torch.tensor([0.1, 0.2, 0.3, 1.0]), torch.tensor([[0.1], [0.2], [0.3], [0.4]])
    assert objective(Z, W, of_channels, eps=1.0).item() == pytest.approx((whole - 2 * each) / 2 - 1.6)
    assert objective(Z, W, of_tokens, eps=1.0).item() == pytest.approx((whole - 2 * each) / 2 - 1.0)
    Y = torch.zeros(4, 4)
    assert lasso_objective(Z, Y, torch.eye(4), of_channels).tolist() == pytest.approx([2.2, 2.4, 2.6, 4.0])


@pytest.mark.parametrize('N', [3, 4, 20])
def test_the_gradient_is_autograds(N):
    Z, U = tokens(2, N, 12).requires_grad_(), tokens(3, 12, 4, seed=1)
    compressed_rate(Z.unsqueeze(-3) @ U, 0.4).sum().backward()
    assert torch.allclose(compressed_rate_gradient(Z.detach(), U, 0.4), Z.grad, atol=1e-10)


def test_the_released_codes_rate():
    g = json.loads((ROOT / 'tests' / 'golden' / 'coding_rate.json').read_text())
    W = torch.randn(g['input']['shape'], generator=torch.Generator().manual_seed(g['input']['generator_seed']))
    assert W.sum().item() == pytest.approx(g['input']['sum'], rel=1e-5)
    rates, out = released_rate(W), g['outputs']
    assert rates.tolist() == pytest.approx(out['per_sample'], rel=1e-6)
    assert (rates.mean().item(), rates.std().item()) == pytest.approx((out['mean'], out['std']), rel=1e-4)
    assert released_rate(W.double()).mean().item() == pytest.approx(out['mean_float64'], rel=1e-6)
    assert released_rate(W, 0.5).mean().item() == pytest.approx(out['mean_with_eps_0.5'], rel=1e-6)


# ---- the non-negative LASSO


@pytest.mark.parametrize('d, lam', [(10, 1.5), (25, 0.3)])
def test_the_lassos_minimizer_is_optimal(d, lam):
    D, Y = torch.nn.functional.normalize(tokens(d, d), dim=0), tokens(6, d, seed=1)
    Z = lasso_minimizer(Y, D, lam)
    slope = (Z @ D.T - Y) @ D + lam                                                 # of the objective for Z >= 0
    assert Z.min() >= 0 and slope.min() > -1e-7 and slope[Z > 0].abs().max() < 1e-7  # the KKT conditions
    assert 0.02 < nonzeros(Z) < 0.98


# ---- the denoising theorem


def test_the_mixture_is_that_of_definition_1():
    Z, U = noisy_mixture(4, 6, 200, 40, 0.3, torch.Generator().manual_seed(1))
    bases = U.permute(1, 0, 2).flatten(1)
    assert torch.allclose(bases.T @ bases, torch.eye(24, dtype=torch.float64), atol=1e-9)
    for k in range(4):
        inside, outside = (Z[k] @ U[k]).var().item(), [(Z[k] @ U[j]).var().item() for j in range(4) if j != k]
        assert inside == pytest.approx(1, abs=0.15) and outside == pytest.approx([0.09] * 3, rel=0.2)
        assert torch.allclose(Z[k] @ bases @ bases.T, Z[k])  # nothing outside all of them
        expected = (Z[k] @ U[k]).norm() / torch.cat([Z[k] @ U[j] for j in range(4) if j != k], 1).norm()
        assert snr(Z, U)[k].item() == pytest.approx(expected.item())


@pytest.mark.parametrize('tau', [0, 0.6])
def test_a_step_is_eq_4_by_a_naive_loop(tau):
    Z, U = noisy_mixture(3, 2, 4, 6, 0.6, torch.Generator().manual_seed(3))
    Z = 2 * Z
    columns = Z.flatten(0, 1).T                                         # as the paper has them
    expected = columns.clone()
    for k in range(3):
        scores = columns.T @ U[k] @ U[k].T @ columns
        for i in range(12):
            weights = scores[:, i].softmax(0)
            weights = weights if tau == 0 else tau * (weights > tau).double()
            expected[:, i] += 0.2 * U[k] @ U[k].T @ columns @ weights
    phi = denoising_weights(Z, U, tau)
    assert torch.allclose(denoise(Z, U, 0.2, phi).flatten(0, 1).T, expected)


def test_the_shares_of_signal_and_noise_that_pass():
    """Two clusters of two tokens each, as columns; a token's own weight is signal."""
    first = torch.tensor([[0.5, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0.5, 0]])
    second = torch.tensor([[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0.5, 0], [0, 0, 0, 0.5]])
    signal, noise = passing(torch.stack([first, second]))
    assert (signal, noise) == (0.75, 0.25)
