"""DINO and SimDINO: equal to the released code; nothing of the student's gradient reaches the teacher; small crops are
read with interpolated positions; a collapse on both sides of the threshold."""
import json
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers import ROOT
from torch._dynamo.testing import CompileCounter

from engine import networks
from engine.fast import speed_up
from engine.trained import resize_positions
from model_dino import (DINO, DINOConfig, DINOHead, cosine, distillation_loss, next_centre, simdino_loss,
                        simdino_terms)
from scoring.flops import train_flops
from train import TrainConfig, learning_rate_factor, weight_decay_at

GOLDEN, SIM = (json.loads((ROOT / 'tests' / 'golden' / f'{name}.json').read_text()) for name in ('dino', 'simdino'))
SMALL = dict(n_layer=2, n_head=2, n_embd=16, image_size=16, patch_size=4, n_out=32, hidden=24, bottleneck=8)


def noise(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def features(*shape, seed=1):
    return F.normalize(noise(*shape, seed=seed), dim=-1)


def crops_of(n=3, small=2):
    return noise(2, n, 3, 16, 16, seed=1), noise(small, n, 3, 8, 8, seed=2)


def moved(**settings):
    """A network in training whose student has left the teacher."""
    torch.manual_seed(0)
    model = DINO(DINOConfig(**SMALL | settings)).train()
    for p in model.student.parameters():
        p.data += 0.1 * torch.randn_like(p)
    return model


# ---- the objective of DINO


def test_the_objective_equals_the_released_code():
    g = GOLDEN['loss']
    crops, rows, K = g['crops'], g['rows'], g['classes']
    temperatures = [*np.linspace(0.04, 0.07, 4), *[0.07] * 6]  # by epoch, as the golden file says
    centre = torch.zeros(K)
    for t, want in enumerate(g['steps']):
        student = noise(crops * rows, K, seed=100 + t).view(crops, rows, K).requires_grad_()
        teacher = noise(2 * rows, K, seed=200 + t).view(2, rows, K)
        loss = distillation_loss(student, teacher, centre, temperatures[want['epoch']], g['student_temperature'])
        assert loss.item() == pytest.approx(want['loss'], rel=1e-6)
        loss.backward()
        grad = student.grad.flatten()
        assert grad.abs().sum().item() == pytest.approx(want['student_grad_sum_abs'], rel=1e-5)
        assert grad[:4].tolist() == pytest.approx(want['student_grad_first4'], abs=1e-6)
        centre = next_centre(centre, teacher, g['center_momentum'])
        assert (centre - torch.tensor(want['center_after'])).abs().max() < 1e-6


def test_the_heads_equal_the_released_code():
    for g, n_out, x in ((GOLDEN['head'], GOLDEN['head']['out'], noise(4, GOLDEN['head']['in'], seed=7)),
                        (SIM['head'], 0, 20 * noise(SIM['head']['rows'], SIM['head']['in'], seed=7))):
        head = DINOHead(g['in'], n_out, g['hidden'], g['bottleneck'], g['layers'])
        assert [[k, list(v.shape)] for k, v in head.state_dict().items()] == [row[:2] for row in g['state_dict']]
        head.load_state_dict({k: torch.ones(shape) if k.endswith('weight_g') else 0.05 * noise(*shape, seed=1000 + i)
                              for i, (k, shape, *_) in enumerate(g['state_dict'])})
        assert (head(x) - torch.tensor(g['output'])).abs().max() < 1e-5
    with torch.autocast('cpu', torch.bfloat16):
        assert (head(x).norm(dim=-1) - 1).abs().max() < 1e-6


def test_schedules_equal_the_released_code():
    momentum, decays, rates = (GOLDEN['schedules'][name] for name in (
        'momentum 0.996 to 1', 'weight decay 0.04 to 0.4', 'learning rate 5e-4 to 1e-6'))
    assert [cosine(0.996, 1.0, i / len(momentum)) for i in range(len(momentum))] == pytest.approx(momentum, abs=1e-6)
    c = TrainConfig(weight_decay=0.04, weight_decay_end=0.4, max_iters=len(decays))
    assert [weight_decay_at(c, i) for i in range(len(decays))] == pytest.approx(decays, abs=1e-6)
    assert weight_decay_at(TrainConfig(weight_decay=0.3), 3) == 0.3
    warmup = rates.index(max(rates)) + 1            # they begin with zero; docs/papers.md says what ours do
    c = TrainConfig(warmup_iters=warmup, lr_decay_iters=35, learning_rate=5e-4, min_lr=1e-6)
    found = [5e-4 * learning_rate_factor(c, i) for i in range(warmup, 35)]
    assert found == pytest.approx(rates[warmup:], abs=1e-9)


# ---- the objective of SimDINO


@pytest.mark.parametrize('t', range(len(SIM['cases'])))
def test_the_loss_of_simdino_equals_the_released_code(t):
    """Of several processes it has the pictures of one, so its eps acts as eps times processes, and its gamma is
    another one."""
    g = SIM['cases'][t]
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


def test_the_largest_expansion_is_that_of_orthogonal_features():
    """The numbers of the published recipe, in one process of 64 pictures and in one of 512."""
    g, p = SIM['published_recipe'], SIM['published_recipe']['width']
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


@pytest.mark.parametrize('case', SIM['collapse']['cases'])
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
    assert {case['measured_slope'] < 0 for case in SIM['collapse']['cases']} == {True, False}


def test_the_loss_of_simdino_is_float64():
    student, teacher = features(4, 6, 16), features(2, 6, 16, seed=2)
    want = simdino_loss(student, teacher)
    assert want.dtype == torch.float64
    assert simdino_loss(student.bfloat16(), teacher.bfloat16()).item() == pytest.approx(want.item(), abs=0.01)


def test_without_a_cholesky_factor_the_loss_is_no_number():
    huge = 1e12 * noise(2, 4, 16, seed=1)                               # in float64 nothing is left of the identity
    alignment, expansion = simdino_terms(huge, huge, 0.05, False)
    assert alignment.isfinite() and expansion.isnan()


@pytest.mark.parametrize('change', [
    dict(student=features(1, 6, 16)), dict(teacher=features(1, 6, 16)), dict(eps=0.0), dict(c=-1.0),
    dict(student=2 * features(4, 6, 16)), dict(teacher=0 * features(2, 6, 16)),
    dict(student=math.nan * features(4, 6, 16))], ids=str)
def test_vectors_and_settings_that_simdino_does_not_know_are_refused(change):
    with pytest.raises(ValueError):
        simdino_loss(**dict(student=features(4, 6, 16), teacher=features(2, 6, 16)) | change)


# ---- the networks


@pytest.mark.parametrize('objective', ['dino', 'simdino'])
@pytest.mark.parametrize('backbone', ['crate', 'vit', 'aot', 'crate_alpha'])
def test_gradients_reach_the_student_alone(backbone, objective):
    torch.manual_seed(0)
    model = DINO(DINOConfig(backbone=backbone, objective=objective, **SMALL)).train()
    model.after_step(0.5, lambda t: t + 1e-9)  # the last layer moves from the start
    said, loss, *_ = model(crops_of())
    loss.backward()
    model.before_step(0.5)
    long = said.sum(-1) if objective == 'dino' else said.norm(dim=-1)
    assert said.shape == (2, 3, 32 if objective == 'dino' else 8) and torch.allclose(long, torch.ones(2, 3))
    assert all(p.grad is None for p in model.teacher.parameters())
    assert all(p.grad.abs().sum() > 0 for name, p in model.student.named_parameters() if 'weight_g' not in name)
    own = {k.split('.')[0] for k in model.state_dict()} - {'student', 'teacher'}
    assert own == ({'share', 'centre'} if objective == 'dino' else {'share'}) and train_flops(model) > 0


@pytest.mark.slow
def test_steps_compile_nothing_anew():
    """The share of the run, which changes with each step, is not a constant of the compiled network."""
    torch._dynamo.reset()
    model, counter = DINO(DINOConfig(**SMALL, first_temperature=0.03)).train(), CompileCounter()
    compiled, crops = torch.compile(model, backend=counter, dynamic=False), crops_of()
    found = []
    for step in range(4):
        compiled(crops)[1].backward()
        model.after_step((step + 1) / 10, lambda t: t)
        found.append(counter.frame_count)
    assert found[0] > 0 and found[1:] == [found[1]] * 3
    torch._dynamo.reset()


@pytest.mark.parametrize('end, l', [(1.0, 0.998), (0.9, 0.948)])
def test_the_teacher_and_the_centre_follow(end, l):
    """In the middle of a run l is the mean of 0.996 and its end."""
    model = moved(teacher_momentum_end=end)
    old, new = ({k: v.clone() for k, v in half.state_dict().items()} for half in (model.teacher, model.student))
    said = model.teacher(crops_of()[0]).detach()
    for _ in range(2):  # passes of one step
        model(crops_of())
    model.after_step(0.5, lambda t: t)
    for k, v in model.teacher.state_dict().items():
        assert torch.allclose(v, l * old[k] + (1 - l) * new[k], atol=1e-6)
    assert torch.allclose(model.centre, 0.1 * said.mean((0, 1)), atol=1e-6)


@pytest.mark.parametrize('name', ['crate', 'vit'])
def test_small_crops_are_read_with_interpolated_positions(name):
    """As a network of that size, with positions as fine-tuning interpolates them, reads them."""
    torch.manual_seed(0)
    model, (Network, Config) = DINO(DINOConfig(backbone=name, **SMALL)), networks.network(name)
    small = Network(Config(n_layer=2, n_head=2, n_embd=16, image_size=(8, 12), patch_size=4, num_classes=1, pool='cls'))
    weights = dict(model.student.net.state_dict())
    weights['embed.pos'] = resize_positions(weights['embed.pos'], (4, 4), (2, 3))
    small.load_state_dict(weights, strict=False)
    x = noise(3, 3, 8, 12, seed=3)
    assert torch.allclose(model.student.features(x), small.features(x), atol=1e-6)


def test_the_loss_of_a_network_is_the_objective_with_its_centre_and_temperature():
    model = moved(first_temperature=0.04, teacher_temperature=0.08, temperature_share=0.3)
    model.centre.normal_(std=0.1)
    large, small = crops_of()
    student = torch.cat([model.student(large), model.student(small)])
    for share, temperature in ((0.0, 0.04), (0.15, 0.06), (0.3, 0.08), (0.9, 0.08)):
        model.share.fill_(share)
        want = distillation_loss(student, model.teacher(large), model.centre, temperature)
        assert model((large, small))[1].item() == pytest.approx(want.item(), rel=1e-5)


@pytest.mark.parametrize('small', [0, 2])
def test_the_loss_of_a_simdino_network_is_its_objective(small):
    model = moved(objective='simdino', eps=0.3, c=2.0, pair=False)
    large, few = crops_of(small=small)
    student = torch.cat([model.student(crops) for crops in (large, few) if len(crops)])
    _, loss, more = model((large, few))
    want = simdino_loss(student, model.teacher(large), 0.3, 2.0, False)
    assert loss.item() == pytest.approx(want.item(), rel=1e-5)
    assert loss.item() == pytest.approx(-2.0 * more['alignment'].item() - more['expansion'].item(), rel=1e-6)


def test_features_of_another_length_are_noticed_in_validation():
    model = DINO(DINOConfig(objective='simdino', **SMALL)).eval()
    model(crops_of())
    model.teacher.head.mlp[-1].weight.data.zero_(), model.teacher.head.mlp[-1].bias.data.zero_()
    with pytest.warns(UserWarning):
        model(crops_of())


def test_small_crops_are_computed_in_the_precision_of_large_ones():
    """Tokens between the layers, under autocast, in a network as train.py makes it."""
    model, seen = speed_up(DINO(DINOConfig(**SMALL))), {}
    for side in (16, 8):
        with torch.autocast('cpu', torch.bfloat16):
            model.student.features(torch.randn(2, 3, side, side))
            net = model.student.net if side == 16 else model.student.resized[8, 8]
            net.layers[0].register_forward_hook(lambda m, args, out, side=side: seen.update({side: args[0].dtype}))
            model.student.features(torch.randn(2, 3, side, side))
    assert seen == {16: torch.bfloat16, 8: torch.bfloat16}
