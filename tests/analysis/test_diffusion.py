"""projection.py and diffusion.py: CRATE-MAE's Theorem 1 and its structured diffusion, against a fine
numerical integration and convergence orders."""
import math

import pytest
import torch

from analysis import diffusion, projection
from analysis.measures import compressed_rate, random_bases
from analysis.measures import compressed_rate_gradient as gradient
from analysis.projection import noisy_codebook


def codebook(K=4, p=8, N=12, sigma=0.1, seed=0):
    generator = torch.Generator().manual_seed(seed)
    U = random_bases(K, p, K * p, generator)
    return U, *noisy_codebook(U, N, sigma, generator), generator


# ---- the gradient and the nearest subspace


def test_the_noise_has_its_scale():
    _, _, Delta, _, _ = codebook(K=3, p=8, N=6000, sigma=0.3)
    assert Delta.square().sum(1).mean().item() == pytest.approx(0.09, rel=0.03)


def test_relevant_noise_is_what_the_theorem_says_of_the_exact_gradient():
    U, X, Delta, s, _ = codebook(K=3, p=16, N=12)
    tiny, eps = 1e-6 * Delta, 0.05
    beta = 16 / (12 * eps ** 2)
    step = gradient(X + tiny, U, eps) / beta
    change = projection.outside(step, U, s)                             # to first order in the noise it is P_U(Delta)
    expected = projection.relevant_noise(X, tiny, s, U, beta)
    assert (projection.outside(expected, U, s) - expected).abs().max() < 1e-15
    assert ((change - expected).norm() / expected.norm()).item() < 0.05
    free = projection.relevant_noise(X, Delta, s, U, 1e12)              # the limit (A.52): a projection of each token
    again = projection.relevant_noise(X, free, s, U, 1e12)
    assert torch.allclose(again, free, atol=1e-8) and free.norm() < Delta.norm()


def test_the_best_precision_has_the_least_bound():
    K, p, N, sigma = 12, 64, 196, 0.01
    d = K * p
    found = {x: (sigma ** 2 * d / N / x + K ** 2 * N / d * (sigma + (N / d) ** 0.5) * x)  # eq. (A.44), x = eps^2
             for x in torch.logspace(-4, 0, 4001).tolist()}
    assert projection.best_eps(K, p, N, sigma) ** 2 == pytest.approx(min(found, key=found.get), rel=0.003)


def test_a_step_up_the_whole_rate_reduction_shrinks_no_signal():
    """CRATE-MAE's Remark 4 at the sizes of Base; the noise that stays is the same."""
    U = random_bases(12, 64, 768, torch.Generator().manual_seed(0))
    row = projection.theorem(U, 196, 0.01, projection.best_eps(12, 64, 196, 0.01), torch.Generator().manual_seed(0))
    assert row['signal_left'] == pytest.approx(0.986, abs=0.001)
    assert row['signal_left_full'] == pytest.approx(1.0003, abs=0.0004)
    assert (row['noise_left'], row['noise_left_full']) == pytest.approx((0.24, 0.24), abs=0.01)


def test_conditions_are_read_as_the_paper_states_them():
    assert [c[1] for c in projection.conditions(12, 64, 196, 0.07)] == [True, True, False]   # CRATE-MAE-Base
    assert [c[1] for c in projection.conditions(2, 2, 8, 2.0)][:2] == [False, False]
    assert projection.conditions(3, 4000, 3000, 0.07)[2][1]             # N/K is large enough here


# ---- there and back


def test_the_flow_is_the_limit_of_the_differential_equation():
    U, X, Delta, s, _ = codebook()
    Z = start = X + Delta
    assert torch.allclose(diffusion.flow(Z, U, 0.5, 0.0), Z, atol=1e-12)
    for _ in range(50):                                                 # Runge and Kutta, steps of 0.01
        k1 = -gradient(Z, U, 0.5)
        k2 = -gradient(Z + 0.005 * k1, U, 0.5)
        k3 = -gradient(Z + 0.005 * k2, U, 0.5)
        k4 = -gradient(Z + 0.01 * k3, U, 0.5)
        Z = Z + 0.01 * (k1 + 2 * k2 + 2 * k3 + k4) / 6
    there = diffusion.flow(start, U, 0.5, 0.5)
    assert torch.allclose(there, Z, atol=1e-8) and compressed_rate(there @ U) < compressed_rate(start @ U)
    assert torch.allclose(diffusion.flow(there, U, 0.5, -0.5), start, atol=1e-9)


def test_encoder_and_decoder_are_inverse_to_first_order_and_a_layer_to_second():
    U, X, Delta, s, _ = codebook()
    Z, numbers = X + Delta, [32, 64]
    errors = diffusion.round_trips(Z, U, 0.5, 1.0, numbers)
    found = {name: diffusion.order(numbers, of_one) for name, of_one in errors.items()}
    assert {name: round(order) for name, order in found.items()} == {
        'encoder from the flow (2.11)': 1, 'decoder from the flow (2.15)': 1, 'there and back, gradient': 1,
        'there and back, attention': 1, 'one layer and back, gradient': 2}
    assert all(abs(order - round(order)) < 0.1 for order in found.values())
    for name, layers in (('one layer and back, gradient', 1), ('there and back, gradient', 64)):
        back = Z
        for sign in (-1, 1):
            for _ in range(layers):
                back = back + sign * gradient(back, U, 0.5) / 64
        assert errors[name][1] == pytest.approx(((back - Z).norm() / Z.norm()).item())


def test_with_the_score_both_equations_keep_the_law_and_with_the_gradient_they_do_not():
    U, X, _, s, generator = codebook(K=4, p=8, N=16 * 60, sigma=0)
    X, T = X.unflatten(0, (60, 16)), 0.3 ** 2 / 64
    Z = X + (2 * T) ** 0.5 * torch.randn(X.shape, generator=generator, dtype=X.dtype)
    ends = {}
    for name, drift in diffusion.drifts(U, 0.5).items():
        for noisy in (True, False):
            end, left = diffusion.diffuse(Z, drift, T, 0.7, 60, noisy, generator), T * math.exp(-1.4)
            ends[name, noisy] = diffusion.energies(end, U, s, left).values()
    clean = 1 + 8 * 2 * left                                            # |alpha|^2, and noise in the own subspace
    for noisy in (True, False):
        inside, error, outside = ends['score', noisy]
        assert inside == pytest.approx(clean, abs=4 * error) and outside == pytest.approx(1, abs=0.06)
    (sde, error, _), (ode, _, _) = ends['gradient of R^c', True], ends['gradient of R^c', False]
    assert sde < ode - 10 * error < ode < clean - 10 * error
