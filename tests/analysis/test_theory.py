"""The theory without a network: it holds where it is said to hold, and not elsewhere.
tests/test_look_inside.py has numbers of all its tables."""
import numpy as np
import pytest
import torch
from insides import floats
from torch.nn.functional import normalize

from analysis import denoising, measures, sparsification
from analysis.compression import CompressConfig, walks
from analysis.denoising import DenoiseConfig
from analysis.measures import noisy_mixture
from analysis.theory import shipped_attention


def mixture(K=3, p=4, n=20, delta=0.2, seed=0):
    Z, U = noisy_mixture(K, p, n, K * p, delta, torch.Generator().manual_seed(seed))
    return normalize(Z.flatten(0, 1), dim=-1), U


def attend(U, Z, length=1.0):
    return shipped_attention(U)((length * Z)[None])[0] / length


# ---- denoising


@pytest.mark.parametrize('settings, limits, met', [                     # limits by hand, in the order of the list
    (dict(n_head=8, head_dim=16, tokens=128, delta=0.2),                # the default; no tau is allowed
     (0.5, 0.0808041, 0.0822740, 535668.6, 211.1522, 65536, 844.6086), '1000000'),
    (denoising.NEAR | dict(delta=0.0107), (0.5, 1, 0.0106215, 17141.40, 180.0771, 256, 720.3083), '1100111'),
    (dict(n_head=4, head_dim=216, tokens=128, delta=0.02, tau=0.5),     # tau must be above 1/2
     (0.5, 1, 0.0212431, 97625.61, 195.7384, 4096, 782.9537), '0110100')])
def test_the_conditions_of_the_theorem_by_hand(settings, limits, met):
    rows = denoising.conditions(DenoiseConfig(**settings))
    assert [float(words.split()[-1]) for words, _ in rows] == pytest.approx(limits, rel=1e-3)
    assert [holds for _, holds in rows] == [bit == '1' for bit in met]


@pytest.mark.slow
@pytest.mark.parametrize('regime, factor, layers', [('as it is', 1.06, 10),
                                                    ('five times the step', 1.3, 7)])
def test_near_the_theorem_each_layer_multiplies_by_its_factor(regime, factor, layers, table):
    """Eq. (30), until noise passes."""
    rows = [row for row in table('denoise', '--tokens=48')
            if (row['setting'], row['regime']) == ('near the theorem', regime)]

    for cluster in '12':
        path = floats([row for row in rows if row['cluster'] == cluster], 'snr')
        ratios = np.divide(path[1:], path[:-1])[:, 0]
        assert ratios[:layers] == pytest.approx([factor] * layers, rel=1e-9)
        assert (ratios[layers:] < 0.5).all()


# ---- compression


def test_shipped_attention_is_eqs_11_and_12_up_to_a_scale():
    Z, U = mixture()
    expected = sum(u @ (u.T @ Z.T) @ (Z @ u @ u.T @ Z.T).softmax(0) for u in U).T       # with tokens as columns
    assert torch.allclose(attend(U, Z, 4 ** 0.25), expected, atol=1e-12)  # its softmax has 1/sqrt(p)
    assert not torch.allclose(attend(U, Z), expected, atol=1e-3)


def snr_along(**settings):
    """Signal to noise before each step and after the last, of the gradient and of attention as
    shipped, and the cosine of the first step of the latter."""
    gradient, _, shipped, _ = walks(CompressConfig(seed=1, **settings))
    of_gradient = [row['snr'] for row in gradient]
    of_shipped = [row['snr'] for row in shipped]
    return of_gradient, of_shipped, shipped[0]['cosine_turning']


@pytest.mark.slow
def test_in_the_regime_of_the_theory_the_gradient_denoises_and_attention_goes_too_far():
    """Numbers of an independent computation. The second setting has the heads of the Base networks,
    the last one more tokens than dimensions, where it is the other way round."""
    gradient, shipped, cosine = snr_along()
    assert (gradient[0], gradient[6], cosine) == pytest.approx((1.85, 3.03, 0.62), abs=0.005)
    assert max(shipped) == shipped[1]
    assert shipped[6] < 0.5 * shipped[0]

    gradient, shipped, cosine = snr_along(n_head=12, head_dim=64, tokens=192, delta=0.1)
    assert (gradient[0], gradient[6]) == pytest.approx((2.96, 6.54), abs=0.005)
    assert [shipped[i] for i in (0, 1, 6)] == pytest.approx([2.96, 4.34, 0.42], abs=0.005)
    assert 0.6 < cosine < 0.72

    gradient, shipped, cosine = snr_along(tokens=1024)
    assert max(gradient) < 1.05 * gradient[0]
    assert max(shipped) > 1.8 * shipped[0]
    assert cosine < 0.3


# ---- sparsification


def test_the_steps_are_those_of_eq_17():
    generator = torch.Generator().manual_seed(3)
    D = measures.dictionaries(16, generator)['coherent']
    Y = torch.randn(30, 16, generator=generator, dtype=torch.float64)
    before, *path = sparsification.unrolled(Y, D, eta=0.1, lam=0.2, steps=4)
    assert torch.equal(before, Y.relu())
    Z = Y
    for codes in path:
        Z = (Z + 0.1 * (Y - Z @ D.T) @ D - 0.02).relu()
        assert torch.allclose(codes, Z)
    assert len(path) == 4
