"""majorizer.py: the bound of CRATE's appendix A.3 against automatic differentiation and brute force."""

import pytest
import torch
from torch.autograd.functional import hessian

from analysis import majorizer
from analysis.majorizer import PAPER, SHARP, MajorizeConfig


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_singular_values(Z, alpha):
    return (1 + alpha * torch.linalg.svdvals(Z) ** 2).log().sum() / 2


@pytest.mark.parametrize('alpha', [0.3, 1.0, 20.0])
def test_rate_gradient_and_curvatures_are_those_of_eq_77(alpha):
    for shape in ((2, 5), (4, 3)):                                      # also more tokens than dimensions
        Z = drawn(*shape).requires_grad_()
        R = by_singular_values(Z, alpha)
        slope, = torch.autograd.grad(R, Z)
        assert torch.allclose(majorizer.rate(Z, alpha), R)
        assert torch.allclose(majorizer.rate_gradient(Z, alpha), slope)
        H = hessian(lambda z: by_singular_values(z, alpha), Z.detach()).flatten(2).flatten(0, 1)
        values = torch.linalg.eigvalsh(H)[[0, -1]] / alpha
        assert majorizer.curvatures(Z.detach(), alpha) == pytest.approx(tuple(values.tolist()), abs=1e-9)


def test_lemma_6_holds_and_is_not_sharp():
    found = [majorizer.curvatures(scale * drawn(2, 3, seed=seed), 1.0)
             for seed in range(40) for scale in (0.01, 0.3, 1, 2, 10)]
    low, high = min(a for a, _ in found), max(b for _, b in found)
    assert -SHARP <= low < -0.124 and 0.99 < high <= 1 < PAPER == 9 / 4
    s = 3 ** 0.5                                                        # one token: alpha (1 - s^2) / (1 + s^2)^2
    assert majorizer.curvatures(torch.tensor([[s]], dtype=torch.float64), 1.0)[0] == pytest.approx(-SHARP)


@pytest.mark.parametrize('curvature', [PAPER, SHARP])
def test_the_bound_lies_above_and_touches_and_its_minimum_is_the_least(curvature):
    for seed in range(30):
        Z0, Z = drawn(3, 5, seed=seed), drawn(3, 5, seed=seed + 100) * (0.1, 1, 5)[seed % 3]
        assert majorizer.bound(Z, Z0, 0.7, curvature) >= -by_singular_values(Z, 0.7)
        assert majorizer.bound(Z0, Z0, 0.7, curvature).item() == pytest.approx(-by_singular_values(Z0, 0.7).item())
        at = Z0.clone().requires_grad_()
        slopes = [torch.autograd.grad(f, at)[0] for f in (majorizer.bound(at, Z0, 0.7, curvature),
                                                          -by_singular_values(at, 0.7))]
        assert torch.allclose(*slopes, atol=1e-9)
        least = majorizer.minimum(Z0, 0.7, 0.2, curvature)              # of a convex function: no way goes down
        for step in 0.01 * drawn(20, 3, 5, seed=seed):
            values = [majorizer.bound(z, Z0, 0.7, curvature) + 0.2 * z.sum() for z in (least, (least + step).relu())]
            assert values[0] <= values[1]
    s0 = torch.tensor([[3 ** 0.5]], dtype=torch.float64)                # a little less curvature is not enough
    assert majorizer.bound(s0 * 1.001, s0, 1.0, 0.99 * SHARP) < -by_singular_values(s0 * 1.001, 1.0)


def test_the_minimum_is_the_shipped_layer_where_tokens_are_orthogonal_and_only_there():
    Z0, D = torch.linalg.qr(drawn(6, 6))[0][:4], torch.linalg.qr(drawn(6, 6, seed=1))[0]
    for alpha, lam in ((1.0, 0.1), (4.0, 0.5)):
        assert torch.allclose(majorizer.layer(Z0, alpha, lam), majorizer.minimum(Z0, alpha, lam), atol=1e-12)
        assert torch.allclose(majorizer.layer(Z0, alpha, lam, D), majorizer.minimum(Z0 @ D, alpha, lam), atol=1e-12)
    assert not torch.allclose(majorizer.layer(2 * Z0, 1.0, 0.1), majorizer.minimum(2 * Z0, 1.0, 0.1), atol=1e-3)


def test_equations_79_90_and_91_hold_as_corrected():
    """With tokens as rows, and not as printed: Z_t runs from Z0 to Z, and D of the curvature or of the step is turned
    back. By the Hessian and the midpoint rule."""
    Z, Z0, D = drawn(3, 5), drawn(3, 5, seed=1), torch.linalg.qr(drawn(5, 5, seed=2))[0]
    slope, step = majorizer.rate_gradient(Z0, 0.8), Z - Z0
    def turned_slope(at, Delta):
        """The Hessian of R at tokens, applied to Delta."""
        def gradient(Z):
            return majorizer.rate_gradient(Z, 0.8)
        return torch.func.jvp(gradient, (at,), (Delta.expand_as(at),))[1]

    t = (torch.arange(1000, dtype=Z.dtype)[:, None, None] + 0.5) / 1000
    for path, holds in ((Z0 + t * step, True), (Z - t * step, False)):  # eq. (79)
        curved = ((1 - t) * step * turned_slope(path, step)).sum() / 1000
        off = abs(majorizer.rate(Z0, 0.8) + (slope * step).sum() + curved - majorizer.rate(Z, 0.8))
        assert off < 1e-5 if holds else off > 1e-3

    def curvature(at, Delta):
        return (Delta * turned_slope(at, Delta)).sum()
    turned = curvature(Z0, step @ D.T)                                  # eq. (90)
    assert torch.isclose(turned, curvature(Z0 @ D, step)) and abs(turned - curvature(Z0 @ D.T, step)) > 1e-3
    back = majorizer.rate_gradient(Z0 @ D, 0.8)                         # eq. (91)
    assert torch.isclose((slope * step).sum(), (back * (step @ D)).sum())
    assert abs((slope * step).sum() - (back * step).sum()) > 1e-3


def test_steps_go_down(table):
    rows = table('majorize', '--n_embd=8', '--tokens=3', '--steps=20', '--seed=3')
    paths = {}
    for row in rows:
        paths.setdefault(row['phi'], []).append(float(row['value']))
    starts = majorizer.starts(MajorizeConfig(n_embd=8, tokens=3), torch.Generator().manual_seed(3))
    Z = starts['without negative numbers']
    assert torch.allclose(Z @ Z.T, torch.eye(3, dtype=Z.dtype), atol=1e-12) and (Z >= 0).all()
    for L in ('2.25', '0.125'):
        path = paths[f'without negative numbers, L = {L} alpha']
        assert path[0] == pytest.approx((0.1 * Z.sum() - by_singular_values(Z, 1.0)).item())
        assert len(path) == 21 and all(b <= a + 1e-12 for a, b in zip(path, path[1:]))
