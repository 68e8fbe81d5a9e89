"""SimDINO: equal to the released code; its coding rate in every precision; a collapse on both sides of the threshold."""
import json
import math

import pytest
import torch
import torch.nn.functional as F
from fake_mps import FakeMPS
from helpers import ROOT

from model_dino import DINO, DINOConfig, DINOHead, simdino_loss, simdino_terms
from scoring.watch import train_flops

GOLDEN = json.loads((ROOT / 'tests' / 'golden' / 'simdino.json').read_text())
SMALL = dict(objective='simdino', n_layer=2, n_head=2, n_embd=16, image_size=16, patch_size=4, hidden=24, bottleneck=8)


def noise(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def features(*shape, seed=1):
    return F.normalize(noise(*shape, seed=seed), dim=-1)


def crops_of(n=3, small=2):
    return noise(2, n, 3, 16, 16, seed=1), noise(small, n, 3, 8, 8, seed=2)


@pytest.mark.parametrize('t', range(len(GOLDEN['cases'])))
def test_the_loss_equals_the_released_code(t):
    """Of several processes it has the pictures of one, so its eps acts as eps times processes, and its gamma is
    another one."""
    g = GOLDEN['cases'][t]
    m, p, crops, w, pair = g['rows'], g['width'], g['crops'], g['processes'], bool(g['expa_type'])
    raw = noise(crops * m, p, seed=100 + t).requires_grad_()
    teacher = features(2 * m, p, seed=200 + t).view(2, m, p)
    student = F.normalize(raw, dim=-1).view(crops, m, p)
    expansion = -simdino_loss(student, teacher, w * g['eps'], 0.0, pair).item() * g['gamma'] / ((p + m) / (p * m))
    assert expansion == pytest.approx(g['expansion'], abs=1e-5)
    assert simdino_terms(student, teacher, g['eps'], pair)[0].item() == pytest.approx(g['compression'], abs=1e-6)
    if w == 1:
        loss = simdino_loss(student, teacher, g['eps'], g['coeff'], pair)
        assert loss.item() == pytest.approx(g['loss_in_float64'], abs=1e-6)
        loss.backward()
        assert raw.grad.abs().sum().item() == pytest.approx(g['raw_student_grad']['sum_abs'], rel=1e-5)
        assert raw.grad.flatten()[:4].tolist() == pytest.approx(g['raw_student_grad']['first4'], abs=1e-6)


def test_the_head_equals_the_released_code():
    g = GOLDEN['head']
    head = DINOHead(g['in'], 0, g['hidden'], g['bottleneck'], g['layers'])
    assert [[k, list(v.shape)] for k, v in head.state_dict().items()] == [entry[:2] for entry in g['state_dict']]
    head.load_state_dict({k: 0.05 * noise(*shape, seed=1000 + i) for i, (k, shape, *_) in enumerate(g['state_dict'])})
    assert (head(20 * noise(g['rows'], g['in'], seed=7)) - torch.tensor(g['output'])).abs().max() < 1e-5
    with torch.autocast('cpu', torch.bfloat16):
        assert (head(noise(g['rows'], g['in'], seed=7)).norm(dim=-1) - 1).abs().max() < 1e-6


def test_the_largest_expansion_is_that_of_orthogonal_features():
    """The numbers of the published recipe, in one process of 64 pictures and in one of 512."""
    g, p = GOLDEN['published_recipe'], GOLDEN['published_recipe']['width']
    c = DINOConfig(objective='simdino', bottleneck=p, eps=g['eps'])
    for N, name in ((64, 'of_64_rows'), (512, 'of_512_rows_or_reduce_cov')):
        want = g[f'largest_possible_with_one_process_{name}']
        Z = torch.eye(p).repeat(2, 1)[:N].expand(2, N, p)
        found = -simdino_loss(Z, Z, g['eps'], 0.0).item()
        assert (found, c.expansion_of(min(p, N), N)) == pytest.approx((want, want), rel=1e-6)
        other = -simdino_loss(features(2, N, p), features(2, N, p), g['eps'], 0.0, pair=False).item()
        assert other < want
        alike = -simdino_loss(Z[:, :1].expand(2, N, p), Z[:, :1].expand(2, N, p), g['eps'], 0.0).item()
        assert alike == pytest.approx(c.expansion_of(1, N), rel=1e-6) and alike < 0.1 * other


def correlated(N, rho):
    """Two columns of N numbers, of mean 0, variance 1 and correlation rho."""
    basis = torch.linalg.qr(torch.cat([torch.ones(N, 1), noise(N, 2, seed=3)], 1).double())[0][:, 1:] * N ** 0.5
    return basis[:, 0], rho * basis[:, 0] + (1 - rho ** 2) ** 0.5 * basis[:, 1]


@pytest.mark.parametrize('case', GOLDEN['collapse']['cases'])
def test_after_a_collapse_differences_grow_if_two_crops_correlate_above_the_threshold(case):
    """Features are a little off one vector, in one direction; the slope is that of the loss in the student's gain."""
    N, p, pair = case['N'], case['p'], bool(case['expa_type'])
    gain, axes = torch.ones((), dtype=torch.float64, requires_grad=True), torch.eye(p, dtype=torch.float64)

    def crops(gain):
        d = 1e-4 * gain * torch.stack(correlated(N, case['rho']))[..., None]
        return (1 - d ** 2).sqrt() * axes[0] + d * axes[1]
    simdino_loss(crops(gain), crops(1.0), case['eps'], case['c'], pair).backward()
    least = DINOConfig(bottleneck=p, eps=case['eps'], c=case['c'], pair=pair).least_correlation(N)
    assert least == pytest.approx(case['threshold'])
    assert gain.grad.item() / 1e-8 == pytest.approx(case['measured_slope'], rel=1e-3)
    assert (gain.grad < 0) == (case['rho'] > least)


def test_the_collapses_above_are_on_both_sides():
    assert {case['measured_slope'] < 0 for case in GOLDEN['collapse']['cases']} == {True, False}


def test_the_loss_is_float64_whatever_autocast_is():
    student, teacher = features(4, 6, 16), features(2, 6, 16, seed=2)
    want = simdino_loss(student, teacher)
    with torch.autocast('cpu', torch.bfloat16):
        found = simdino_loss(student, teacher)
    assert found.dtype == torch.float64 and torch.equal(found, want)
    assert simdino_loss(student.bfloat16(), teacher.bfloat16()).item() == pytest.approx(want.item(), abs=0.01)


def test_a_device_without_float64():
    want = simdino_loss(features(4, 6, 16), features(2, 6, 16, seed=2)).item()
    model = DINO(DINOConfig(**SMALL))
    loss = model(crops_of())[1].item()
    with FakeMPS():
        assert simdino_loss(features(4, 6, 16).to('mps'), features(2, 6, 16, seed=2).to('mps')).item() == want
        found = model.to('mps')(tuple(x.to('mps') for x in crops_of()))[1]
        assert found.device.type == 'mps' and found.item() == pytest.approx(loss, rel=1e-5)


def test_without_a_cholesky_factor_the_loss_is_no_number():
    huge = 1e12 * noise(2, 4, 16, seed=1)                               # in float64 nothing is left of the identity
    alignment, expansion = simdino_terms(huge, huge, 0.05, False)
    assert alignment.isfinite() and expansion.isnan()


@pytest.mark.parametrize('change, message', [
    (dict(student=features(1, 6, 16)), '1 crops of the student'), (dict(teacher=features(1, 6, 16)), 'two large'),
    (dict(eps=0.0), 'eps=0.0'), (dict(c=-1.0), 'c=-1.0'), (dict(student=2 * features(4, 6, 16)), 'not of length 1'),
    (dict(teacher=0 * features(2, 6, 16)), 'of length 1'), (dict(student=math.nan * features(4, 6, 16)), 'length 1')])
def test_bad_input_says_why(change, message):
    with pytest.raises(ValueError, match=message):
        simdino_loss(**dict(student=features(4, 6, 16), teacher=features(2, 6, 16)) | change)


@pytest.mark.parametrize('settings, message', [
    (dict(objective='what'), 'choose dino or simdino'), (dict(eps=0.0), 'eps=0.0'), (dict(c=-1.0), 'c=-1.0')])
def test_impossible_settings_say_why(settings, message):
    with pytest.raises(ValueError, match=message):
        DINOConfig(**SMALL | settings)


@pytest.mark.parametrize('backbone', ['crate', 'vit', 'aot'])
def test_gradients_reach_the_student_alone(backbone):
    torch.manual_seed(0)
    model = DINO(DINOConfig(backbone=backbone, **SMALL)).train()
    model.after_step(0.0, None)
    said, loss, _ = model(crops_of())
    loss.backward()
    model.before_step(0.0)
    assert said.shape == (2, 3, 8) and torch.allclose(said.norm(dim=-1), torch.ones(2, 3))
    assert all(p.grad is None for p in model.teacher.parameters())
    assert all(p.grad.abs().sum() > 0 for p in model.student.parameters())
    assert model.state_dict().keys() == {f'{half}.{k}' for half in ('student', 'teacher')
                                         for k in model.student.state_dict()} | {'share'}


@pytest.mark.parametrize('small', [0, 2])
def test_the_loss_of_a_network_is_the_objective(small):
    torch.manual_seed(0)
    model = DINO(DINOConfig(**SMALL, eps=0.3, c=2.0, pair=False)).train()
    for p in model.student.parameters():
        p.data += 0.1 * torch.randn_like(p)
    large, few = crops_of(small=small)
    student = torch.cat([model.student(crops) for crops in (large, few) if len(crops)])
    _, loss, more = model((large, few))
    want = simdino_loss(student, model.teacher(large), 0.3, 2.0, False)
    assert loss.item() == pytest.approx(want.item(), rel=1e-5)
    assert loss.item() == pytest.approx(-2.0 * more['alignment'].item() - more['expansion'].item(), rel=1e-6)


def test_features_of_another_length_are_noticed_in_validation():
    model = DINO(DINOConfig(**SMALL)).eval()
    model(crops_of())
    model.teacher.head.mlp[-1].weight.data.zero_(), model.teacher.head.mlp[-1].bias.data.zero_()
    with pytest.warns(UserWarning, match='not of length 1'):
        model(crops_of())


def test_its_work_is_counted():
    model = DINO(DINOConfig(**SMALL | dict(image_size=(16, 16))))
    assert train_flops(model) > 0
