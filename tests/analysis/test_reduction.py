"""reduction.py: the rate reductions of CRATE's longer version and its energy, by eigenvalues
and determinants. tests/test_look_inside.py has its table."""
import pytest
import torch

from analysis import reduction
from analysis.reduction import ReductionConfig


def half_logdet(Z, factor):
    return (1 + factor * torch.linalg.eigvalsh(Z.T @ Z)).log().sum() / 2


def drawn(K=3, n=10, p=2, seed=0):
    """Groups of tokens (K, n, d) in subspaces U (K, d, p) that are not orthogonal."""
    generator = torch.Generator().manual_seed(seed)
    U = reduction.subspaces(ReductionConfig(n_head=K, head_dim=p, cosine=0.6), generator)['(a) close']
    return torch.randn(K, n, p, generator=generator, dtype=U.dtype) @ U.mT, U


def test_reductions_and_energy_by_hand():
    groups, U = drawn()
    Z, eps, lam = groups.flatten(0, 1), 0.4, 0.03
    (N, d), (_, n, _), p = Z.shape, groups.shape, U.size(2)
    R = half_logdet(Z, d / (N * eps ** 2))                                               # eq. (8)
    of_subspaces = sum(half_logdet(Z @ u, p / (N * eps ** 2)) for u in U)                # eqs. (12) and (13)
    of_groups = sum(n / N * half_logdet(group, d / (n * eps ** 2)) for group in groups)  # eq. (9), with its weights
    assert reduction.rate_reduction(Z, U, eps).item() == pytest.approx((R - of_subspaces).item())
    assert reduction.reduction_of_groups(groups, eps).item() == pytest.approx((R - of_groups).item())
    ratio = torch.det(torch.eye(d, dtype=Z.dtype) + d / (N * eps ** 2) * Z.T @ Z)
    for u in U:
        ratio /= torch.det(torch.eye(p, dtype=Z.dtype) + p / (N * eps ** 2) * u.T @ Z.T @ Z @ u)
    density = (-reduction.energy(Z, U, eps, lam)).exp().item()          # eq. (18), with the root
    assert density == pytest.approx((ratio.sqrt() * (-lam * Z.abs().sum()).exp()).item())


@pytest.mark.parametrize('seed', range(2))
def test_eq_9_as_printed_is_never_below_the_whole_rate(seed):
    """So the reduction of eq. (7) would never be positive; with the weights it is never negative."""
    groups, _ = drawn(seed=seed)
    K, n, d = groups.shape
    for eps in (0.01, 0.3, 5.0):
        whole = half_logdet(groups.flatten(0, 1), d / (K * n * eps ** 2))
        assert sum(half_logdet(group, d / (n * eps ** 2)) for group in groups) > whole
        assert reduction.reduction_of_groups(groups, eps) > 0


def test_subspaces_have_the_cosine_that_is_set():
    eye, c = torch.eye(4, dtype=torch.float64), ReductionConfig(n_head=3, head_dim=4, cosine=0.55)
    for U, cosine in zip(reduction.subspaces(c, torch.Generator().manual_seed(1)).values(), (0.55, 0, 0)):
        assert all(torch.allclose(U[k].T @ U[j], eye * (1 if k == j else cosine), atol=1e-12)
                   for k in range(3) for j in range(3))


def test_figure_5(table):
    """Orthogonal subspaces have the largest rate reduction, and along the axes tokens are sparse."""
    rows = table('reduction', '--seed=0')

    for name in ('rate_reduction', 'rate_reduction_of_groups'):
        close, orthogonal, along = (float(row[name]) for row in rows)
        assert along == pytest.approx(orthogonal, rel=1e-12)
        assert close < orthogonal - 1
    assert [float(row['nonzeros']) for row in rows] == [1, 1, 0.25]
    energy = [float(row['energy']) for row in rows]
    assert energy[0] > energy[1] - 1e-3 > energy[2]
