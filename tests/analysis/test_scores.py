"""scores.py: Tweedie's formula and Approximation 2 against torch.distributions and automatic
differentiation. tests/test_look_inside.py has its table."""
import math

import pytest
import torch
from torch.distributions import Categorical, MixtureSameFamily, MultivariateNormal

from analysis import scores
from analysis.scores import Mixture


def mixture(K=3, p=2, extra=1, seed=0, equal=False):
    """Subspaces that are not orthogonal to each other, in K p + extra dimensions."""
    generator = torch.Generator().manual_seed(seed)
    U = torch.linalg.qr(torch.randn(K, K * p + extra, p, generator=generator, dtype=torch.float64))[0]
    lam = 0.2 + torch.rand(K, p, generator=generator, dtype=torch.float64)
    pi = torch.rand(K, generator=generator, dtype=torch.float64) + 0.1
    if equal:
        lam, pi = lam[:1].expand(K, -1), torch.ones_like(pi)
    return Mixture(U, lam, pi / pi.sum()), generator


def dense(m, sigma):
    """The density of noisy tokens, by torch.distributions."""
    covariances = torch.stack([u @ torch.diag(v) @ u.T for u, v in zip(m.U, m.lam)])
    noisy = covariances + sigma ** 2 * torch.eye(m.U.size(1), dtype=m.U.dtype)
    return MixtureSameFamily(Categorical(m.pi), MultivariateNormal(torch.zeros(m.U.size(1), dtype=m.U.dtype), noisy))


def noisy_tokens(m, sigma, n, generator):
    z, s = m.draw(n, generator)
    return z + sigma * torch.randn(z.shape, generator=generator, dtype=z.dtype), z, s


@pytest.mark.parametrize('sigma', [0.1, 0.7, 3.0])
def test_the_score_is_that_of_the_mixture(sigma):
    m, generator = mixture()
    x, _, _ = noisy_tokens(m, sigma, 20, generator)
    x.requires_grad_()
    slope, = torch.autograd.grad(dense(m, sigma).log_prob(x).sum(), x)
    assert torch.allclose(scores.score(x, m, sigma), slope, rtol=1e-8, atol=1e-8)
    assert torch.allclose(scores.posterior_mean(x, m, sigma), x + sigma ** 2 * slope, atol=1e-8)  # Tweedie


def test_approximation_2_becomes_right_as_sigma_squared():
    m, generator = mixture(p=3)
    z, s = m.draw(4000, generator)
    w, found = torch.randn(z.shape, generator=generator, dtype=z.dtype), {}
    for sigma in (0.02, 0.01):
        x = z + sigma * w
        exact = x + sigma ** 2 * scores.score(x, m, sigma)
        lines = scores.proof_lines(x, m, sigma)
        found[sigma] = {name: (line - exact).norm(dim=1).median() for name, line in lines.items()}
    order = {name: math.log2(found[0.02][name] / found[0.01][name]) for name in found[0.01] if name != 'eq. (54)'}
    assert order == {'eq. (55)': pytest.approx(1, abs=0.1), 'eq. (58)': pytest.approx(2, abs=0.1)}
    assert found[0.01]['eq. (54)'] < 1e-10                                  # it changes memberships only
    x = z + 1e-4 * w                                                    # the limit: onto the own subspace
    own = torch.einsum('ndp,nep,ne->nd', m.U[s], m.U[s], x)
    assert (scores.approximation(x, m.U, 1e-4) - own).norm(dim=1).median() < 1e-12
    assert (scores.nearest_projection(x, m.U) - own).norm(dim=1).median() < 1e-12


def test_approximation_2_is_exact_for_signals_much_longer_than_the_noise():
    m, generator = mixture(equal=True)
    m.lam = torch.full_like(m.lam, 1e12)
    x = torch.randn(50, 7, generator=generator, dtype=m.U.dtype)        # memberships between 0 and 1
    assert torch.allclose(scores.approximation(x, m.U, 0.8), scores.posterior_mean(x, m, 0.8), atol=1e-9)
    assert (scores.approximation(x, m.U, 0.8) - scores.nearest_projection(x, m.U)).norm(dim=1).median() > 0.05


@pytest.mark.slow
def test_the_way_back_ends_at_the_model():
    m, generator = mixture()
    x, z, _ = noisy_tokens(m, 0.5, 4000, generator)
    ends = scores.reverse(x, m, 0.5, 200, generator)
    assert (ends - scores.nearest_projection(ends, m.U)).norm(dim=1).mean() < 2e-3
    spread = (ends.T @ ends - z.T @ z).abs().max() / 4000
    assert spread < 0.12 * z.square().sum(-1).mean()
    one = scores.reverse(x[:1].expand(4000, -1), m, 0.5, 200, generator)  # from one token: the mean is E[z | x]
    away = (one.mean(0) - scores.posterior_mean(x[:1], m, 0.5)[0]) / (one.std(0) / 4000 ** 0.5)
    assert away.abs().max() < 4.5
