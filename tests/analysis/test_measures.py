"""Coding rates, the LASSO and the denoising theorem against textbook formulas, naive loops,
autograd and the released code."""
import json
import math

import pytest
import torch
from helpers import ROOT

from analysis.measures import (coding_rate, coherence, compressed_rate, compressed_rate_gradient, denoising_step,
                               denoising_weights, ista_step, lasso_minimizer, lasso_objective, noisy_mixture, nonzeros,
                               passing, released_rate, snr)


def tokens(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize('N, d', [(5, 12), (12, 5), (7, 7), (1, 3)])
def test_the_smaller_gram_matrix_gives_the_textbook_rate(N, d):
    Z, eps = tokens(3, N, d), 0.3
    for b in range(3):
        for gram in (Z[b] @ Z[b].T, Z[b].T @ Z[b]):  # eq. (7), both ways
            textbook = 0.5 * torch.logdet(torch.eye(len(gram)) + d / (N * eps ** 2) * gram)
            assert coding_rate(Z, eps)[b].item() == pytest.approx(textbook.item(), rel=1e-9)
        eigenvalues = torch.linalg.svdvals(Z[b]) ** 2
        brute = 0.5 * sum(math.log(1 + d / (N * eps ** 2) * v) for v in eigenvalues.tolist())
        assert coding_rate(Z, eps)[b].item() == pytest.approx(brute, rel=1e-9)


def test_the_compressed_rate_is_the_sum_over_subspaces():
    Z, U = tokens(9, 12), tokens(3, 12, 4, seed=1)
    W = torch.stack([Z @ U[k] for k in range(3)])
    assert compressed_rate(W, 0.2).item() == pytest.approx(sum(coding_rate(W[k], 0.2).item() for k in range(3)))
    orthonormal = torch.linalg.qr(tokens(12, 4))[0]
    inside = tokens(9, 4) @ orthonormal.T  # tokens of one subspace have in it all their rate, up to p / N for d / N
    whole = coding_rate(inside, 0.2 * math.sqrt(12 / 4)).item()
    assert compressed_rate((inside @ orthonormal)[None], 0.2).item() == pytest.approx(whole)


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


def test_coherence_of_subspaces_that_one_knows():
    Q = torch.linalg.qr(tokens(12, 12))[0]
    apart = torch.stack([Q[:, :4], Q[:, 4:8], Q[:, 8:]])
    G, number = coherence(apart)
    assert torch.allclose(G, torch.eye(12, dtype=torch.float64), atol=1e-9) and number == pytest.approx(0, abs=1e-9)
    assert coherence(torch.stack([Q[:, :4], 3 * Q[:, :4]]))[1] == pytest.approx(1)  # the same one twice, at any scale


def test_nonzeros_are_counted():
    assert nonzeros(torch.tensor([[[0., 1.], [0., 0.]], [[2., -1.], [0., 3.]]])).tolist() == [0.25, 0.75]


# ---- the non-negative LASSO


@pytest.mark.parametrize('d, lam', [(10, 0.1), (10, 1.5), (25, 0.3)])
def test_the_lassos_minimizer_is_optimal_and_where_a_long_ista_ends(d, lam):
    D, Y = torch.nn.functional.normalize(tokens(d, d), dim=0), tokens(6, d, seed=1)
    Z = lasso_minimizer(Y, D, lam)
    slope = (Z @ D.T - Y) @ D + lam                                                 # of the objective for Z >= 0
    assert Z.min() >= 0 and slope.min() > -1e-7 and slope[Z > 0].abs().max() < 1e-7  # the KKT conditions
    assert 0.02 < nonzeros(Z) < 0.98
    long, eta = torch.zeros_like(Y), 1 / torch.linalg.svdvals(D)[0] ** 2
    for _ in range(20_000):
        long = ista_step(long, Y, D, eta, lam)
    least, end = lasso_objective(Z, Y, D, lam), lasso_objective(long, Y, D, lam)
    assert torch.allclose(least, end, atol=1e-6) and (least <= end + 1e-9).all()
    assert least[0].item() == pytest.approx(lam * Z[0].sum().item() + 0.5 * (Y[0] - D @ Z[0]).norm().item() ** 2)
    with pytest.raises(ValueError, match='after 3 steps'):
        lasso_minimizer(Y, D, lam, steps=3)


# ---- the denoising theorem


def ratios(eta, tau, delta, layers=10, K=8, p=16, n=128):
    """The factor on the signal-to-noise ratio by each layer, for all clusters: (layers, K)."""
    Z, U = noisy_mixture(K, p, n, K * p, delta, torch.Generator().manual_seed(0))
    found = [snr(Z, U)]
    for _ in range(layers):
        Z = denoising_step(Z, U, eta, tau)
        found.append(snr(Z, U))
    return torch.stack(found[1:]) / torch.stack(found[:-1])


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
    with pytest.raises(ValueError, match='do not fit'):
        noisy_mixture(4, 6, 3, 20, 0.1)


@pytest.mark.parametrize('tau', [None, 0.6])
def test_a_step_is_eq_4_by_a_naive_loop(tau):
    Z, U = noisy_mixture(3, 2, 4, 9, 0.3, torch.Generator().manual_seed(2))
    tokens_, expected = Z.flatten(0, 1).T, Z.flatten(0, 1).T.clone()            # columns, as the paper
    for k in range(3):
        scores = tokens_.T @ U[k] @ U[k].T @ tokens_
        for i in range(12):
            weights = scores[:, i].softmax(0)
            weights = weights if tau is None else tau * (weights > tau).double()
            expected[:, i] += 0.2 * U[k] @ U[k].T @ tokens_ @ weights
    assert torch.allclose(denoising_step(Z, U, 0.2, tau).flatten(0, 1).T, expected)


def test_what_passes_the_threshold_by_a_loop_over_tokens():
    Z, U = noisy_mixture(3, 2, 4, 6, 0.6, torch.Generator().manual_seed(3))
    Z, own, others = 2 * Z, [], []
    for i, token in enumerate(Z.flatten(0, 1)):
        for k in range(3):
            weights = (Z.flatten(0, 1) @ U[k] @ U[k].T @ token).softmax(0)
            if i // 4 == k:
                own.append(weights[i].item() > 0.6)
            else:
                others.append(weights.max().item() > 0.6)
    assert 0 < sum(own) < 12 == len(own) and 0 < sum(others) < 24 == len(others)
    found = passing(denoising_weights(Z, U, 0.6))
    assert [part.item() for part in found] == pytest.approx([sum(own) / 12, sum(others) / 24])


def test_small_subspaces_denoise_by_about_the_theorems_factor():
    found = ratios(eta=0.1, tau=0.6, delta=0.2)
    assert found.min() > 1.06 * 0.99 and found.max() < 1.06 * 1.01


@pytest.mark.slow
def test_with_a_larger_step_or_more_noise_the_factor_is_lost():
    large_step, much_noise = ratios(eta=0.5, tau=0.6, delta=0.2), ratios(eta=0.1, tau=0.6, delta=0.5)
    assert (large_step[:3] / 1.3 - 1).abs().max() < 0.03
    assert large_step[4:].max() < 0.9  # tokens grow, until noise passes the threshold too
    assert (much_noise[:3] / 1.06 - 1).abs().max() < 0.02 and much_noise[-1].max() < 1.02


def test_one_long_token_does_not_hide_the_others():
    Z = tokens(64, 32)
    Z[0] *= 1e5
    assert coding_rate(Z.float()).item() == pytest.approx(coding_rate(Z).item(), rel=1e-5)
