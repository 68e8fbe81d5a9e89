"""majorizer.py: the bound of CRATE's appendix A.3 against automatic differentiation and brute force."""
import csv
import math

import pytest
import torch
from torch.autograd.functional import hessian

import analyze
from analysis import majorizer
from analysis.majorizer import PAPER, SHARP, MajorizeConfig


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_singular_values(Z, alpha):
    return (1 + alpha * torch.linalg.svdvals(Z) ** 2).log().sum() / 2


@pytest.mark.parametrize('alpha', [0.3, 1.0, 20.0])
def test_rate_gradient_and_second_derivative_are_those_of_eq_77(alpha):
    for shape in ((2, 5), (4, 3)):                                      # also more tokens than dimensions
        Z, Delta = drawn(*shape).requires_grad_(), drawn(*shape, seed=1)
        R = by_singular_values(Z, alpha)
        slope, = torch.autograd.grad(R, Z)
        assert torch.allclose(majorizer.rate(Z, alpha), R)
        assert torch.allclose(majorizer.rate_gradient(Z, alpha), slope)
        H = hessian(lambda z: majorizer.rate(z, alpha), Z.detach()).flatten(2).flatten(0, 1)
        found = majorizer.second_derivative(Z.detach(), Delta, alpha)
        assert torch.allclose(found.flatten(), H @ Delta.flatten(), atol=1e-10)
        values = torch.linalg.eigvalsh(H) / alpha
        assert majorizer.curvatures(Z.detach(), alpha) == (pytest.approx(values[0].item(), abs=1e-9),
                                                           pytest.approx(values[-1].item(), abs=1e-9))


def test_lemma_6_holds_and_is_not_sharp():
    found = [majorizer.curvatures(scale * drawn(2, 3, seed=seed), 1.0)
             for seed in range(40) for scale in (0.01, 0.3, 1, 2, 10)]
    low, high = min(a for a, _ in found), max(b for _, b in found)
    assert -SHARP <= low < -0.124 and 0.99 < high <= 1 < PAPER
    s = 3 ** 0.5                                                        # one token: alpha (1 - s^2) / (1 + s^2)^2
    assert majorizer.curvatures(torch.tensor([[s]], dtype=torch.float64), 1.0)[0] == pytest.approx(-SHARP)


@pytest.mark.parametrize('curvature', [PAPER, SHARP])
def test_the_bound_lies_above_and_touches(curvature):
    for seed in range(30):
        Z0, Z = drawn(3, 5, seed=seed), drawn(3, 5, seed=seed + 100) * (0.1, 1, 5)[seed % 3]
        assert majorizer.bound(Z, Z0, 0.7, curvature) >= -by_singular_values(Z, 0.7)
        assert majorizer.bound(Z0, Z0, 0.7, curvature).item() == pytest.approx(-by_singular_values(Z0, 0.7).item())
        at = Z0.clone().requires_grad_()
        slopes = [torch.autograd.grad(f, at)[0] for f in (majorizer.bound(at, Z0, 0.7, curvature),
                                                          -by_singular_values(at, 0.7))]
        assert torch.allclose(*slopes, atol=1e-9)
    s0 = torch.tensor([[3 ** 0.5]], dtype=torch.float64)                # a little less curvature is not enough
    assert majorizer.bound(s0 * 1.001, s0, 1.0, 0.99 * SHARP) < -by_singular_values(s0 * 1.001, 1.0)


@pytest.mark.slow
@pytest.mark.parametrize('curvature', [PAPER, SHARP])
def test_the_minimum_is_that_of_a_grid(curvature):
    grid = torch.linspace(0, 12, 601, dtype=torch.float64)
    for seed in range(4):
        Z0 = drawn(2, 2, seed=seed)
        found = majorizer.minimum(Z0, 1.3, 0.2, curvature)
        for i, j in ((0, 0), (0, 1), (1, 0), (1, 1)):                   # along each coordinate, from the minimum
            there = found.repeat(601, 1, 1)
            there[:, i, j] = grid
            values = [majorizer.bound(Z, Z0, 1.3, curvature) + 0.2 * Z.sum() for Z in there]
            assert abs(found[i, j] - grid[torch.stack(values).argmin()]) < 0.0101 and found[i, j] < 11


def test_the_minimum_is_the_shipped_layer_where_tokens_are_orthogonal_and_only_there():
    Q = torch.linalg.qr(drawn(6, 6))[0]
    D = torch.linalg.qr(drawn(6, 6, seed=1))[0]
    for alpha, lam in ((1.0, 0.1), (4.0, 0.5)):
        Z0 = Q[:4]
        assert torch.allclose(majorizer.layer(Z0, alpha, lam), majorizer.minimum(Z0, alpha, lam), atol=1e-12)
        assert torch.allclose(majorizer.layer(Z0, alpha, lam, D), majorizer.minimum(Z0 @ D, alpha, lam), atol=1e-12)
    assert not torch.allclose(majorizer.layer(2 * Z0, 1.0, 0.1), majorizer.minimum(2 * Z0, 1.0, 0.1), atol=1e-3)


def test_steps_go_down_and_longer_ones_faster():
    c = MajorizeConfig(n_embd=8, tokens=4, steps=20)
    Z = majorizer.starts(c, torch.Generator().manual_seed(0))['without negative numbers']
    assert torch.allclose(Z @ Z.T, torch.eye(4, dtype=Z.dtype), atol=1e-12) and (Z >= 0).all()
    paths = {k: majorizer.descend(Z, c, k) for k in (PAPER, SHARP)}
    for path in paths.values():
        assert len(path) == 21 and all(b <= a + 1e-12 for a, b in zip(path, path[1:]))
    assert paths[SHARP][1] < paths[PAPER][1]
    assert majorizer.phi(-Z, 1.0, 0.1) == math.inf
    assert majorizer.phi(Z, 1.0, 0.1).item() == pytest.approx((0.1 * Z.sum() - by_singular_values(Z, 1.0)).item())


def test_equations_79_90_and_91_hold_as_corrected():
    Z, Z0, D = drawn(3, 5), drawn(3, 5, seed=1), torch.linalg.qr(drawn(5, 5, seed=2))[0]
    found = majorizer.printed(Z, Z0, D, 0.8)
    for name in ('(79)', '(90)', '(91)'):
        wrong, right = found[name]
        assert right < 1e-5 and wrong > 1e-3
    assert max(found['(89)']) < 1e-12
    H = hessian(lambda z: by_singular_values(z, 0.8), Z0 @ D).flatten(2).flatten(0, 1)  # eq. (90), tokens as rows
    turned = ((Z - Z0) @ D.T).flatten()
    left = turned @ hessian(lambda z: by_singular_values(z, 0.8), Z0).flatten(2).flatten(0, 1) @ turned
    assert left.item() == pytest.approx(((Z - Z0).flatten() @ H @ (Z - Z0).flatten()).item())


def test_the_table_holds_what_one_computes(tmp_path):
    analyze.main(['majorize', '--n_embd=8', '--tokens=3', '--steps=2', '--seed=3', f'--out={tmp_path}/x.png'])
    rows = list(csv.DictReader((tmp_path / 'x.csv').read_text().splitlines()))
    Z = majorizer.starts(MajorizeConfig(n_embd=8, tokens=3), torch.Generator().manual_seed(3))['random']
    mine = [float(row['value']) for row in rows if row['what'] == 'phi, random, L = 2.25 alpha']
    after = ((1 + 4 / 18) * Z - 0.4 / 9).relu()                         # eq. (88) with alpha = 1, lambda = 0.1
    assert mine[1] == pytest.approx((0.1 * after.sum() - by_singular_values(after, 1.0)).item()) and len(mine) == 3
