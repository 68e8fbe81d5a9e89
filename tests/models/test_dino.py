"""DINO: equal to the released code; nothing of the student's gradient reaches the teacher; small
crops are read with interpolated positions."""
import json

import numpy as np
import pytest
import torch
from helpers import ROOT
from torch._dynamo.testing import CompileCounter

from model_crate import CRATE, CRATEConfig
from engine.fast import speed_up
from engine.trained import resize_positions
from model_dino import DINO, DINOConfig, DINOHead, cosine, distillation_loss, next_centre
from model_vit import ViT, ViTConfig

GOLDEN = json.loads((ROOT / 'tests' / 'golden' / 'dino.json').read_text())
SMALL = dict(n_layer=2, n_head=2, n_embd=16, image_size=16, patch_size=4, n_out=32, hidden=24, bottleneck=8)


def noise(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


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


@pytest.mark.parametrize('teacher_temperature', [0.01, 0.04])
@pytest.mark.parametrize('alike', [0.05, 0.2, 0.3, 0.5])
def test_small_differences_grow_if_two_crops_share_enough_of_them(alike, teacher_temperature):
    """As docs/pictures.md says: if their correlation is above tau_t / tau_s. Outputs are a little off the
    centre, in one direction, and a student of any gain could say the same."""
    a, other = noise(2, 20_000, 1, seed=1)
    crops = torch.stack([a, alike * a + (1 - alike ** 2) ** 0.5 * other]) * noise(16, seed=2)
    gain = torch.tensor(1e-3, requires_grad=True)
    distillation_loss(gain * crops, 1e-3 * crops, torch.zeros(16), teacher_temperature, 0.1).backward()
    assert (gain.grad < 0) == (alike > teacher_temperature / 0.1)


def test_the_head_equals_the_released_code():
    g = GOLDEN['head']
    head = DINOHead(g['in'], g['out'], g['hidden'], g['bottleneck'], g['layers'])
    assert [[k, list(v.shape)] for k, v in head.state_dict().items()] == g['state_dict']
    head.load_state_dict({k: torch.ones(shape) if k.endswith('weight_g') else 0.05 * noise(*shape, seed=1000 + i)
                          for i, (k, shape) in enumerate(g['state_dict'])})
    assert (head(noise(4, g['in'], seed=7)) - torch.tensor(g['output'])).abs().max() < 1e-5


def test_schedules_equal_the_released_code():
    for name, values in GOLDEN['schedules'].items():
        ends = {'momentum 0.996 to 1': (0.996, 1.0), 'weight decay 0.04 to 0.4': (0.04, 0.4)}.get(name)
        if ends:
            assert [cosine(*ends, i / len(values)) for i in range(len(values))] == pytest.approx(values, abs=1e-6)
    from engine.optim import decay, lr_factor
    from train import TrainConfig
    rates = GOLDEN['schedules']['learning rate 5e-4 to 1e-6']
    warmup = rates.index(max(rates)) + 1            # they begin with zero; docs/papers.md says what ours do
    assert [5e-4 * lr_factor(i, 'cosine', warmup, 35, 2e-3) for i in range(warmup, 35)] == pytest.approx(rates[warmup:],
                                                                                                   abs=1e-9)
    c = TrainConfig(weight_decay=0.04, weight_decay_end=0.4, max_iters=35)
    values = GOLDEN['schedules']['weight decay 0.04 to 0.4']
    assert [decay(c, i) for i in range(35)] == pytest.approx(values, abs=1e-6)
    assert decay(TrainConfig(), 3) is None


def test_a_new_network_starts_as_the_released_code():
    """The teacher is the student, directions have length 1, and maps a standard deviation of 0.02."""
    model = DINO(DINOConfig(**SMALL | dict(hidden=512, bottleneck=256)))
    student, teacher = model.student.state_dict(), model.teacher.state_dict()
    assert student.keys() == teacher.keys() and all(torch.equal(v, teacher[k]) for k, v in student.items())
    assert (student['head.last_layer.weight_g'] == 1).all()
    assert student['head.mlp.2.weight'].std().item() == pytest.approx(0.02, rel=0.02)
    assert student['head.mlp.2.bias'].abs().sum() == 0


def crops_of(n=3, small=2):
    return noise(2, n, 3, 16, 16, seed=1), noise(small, n, 3, 8, 8, seed=2)


@pytest.mark.parametrize('backbone', ['crate', 'vit', 'aot', 'crate_alpha'])
def test_gradients_reach_the_student_alone(backbone):
    torch.manual_seed(0)
    model = DINO(DINOConfig(backbone=backbone, **SMALL)).train()
    model.after_step(0.5, lambda t: t + 1e-9)  # the last layer moves from the start
    said, loss = model(crops_of())
    loss.backward()
    assert said.shape == (2, 3, 32) and torch.allclose(said.sum(-1), torch.ones(2, 3))
    assert all(p.grad is None for p in model.teacher.parameters())
    assert all(p.grad.abs().sum() > 0 for name, p in model.student.named_parameters() if 'weight_g' not in name)


def test_the_last_layer_is_frozen_at_first():
    model = DINO(DINOConfig(**SMALL, freeze_share=0.1)).train()
    for share, still in ((0.0, True), (0.05, True), (0.1, False)):
        if share:
            model.after_step(share, lambda t: t)
        model.zero_grad()
        model(crops_of())[1].backward()
        model.before_step(share)
        assert (model.student.head.last_layer.weight_v.grad is None) == still
        assert model.student.head.mlp[0].weight.grad.abs().sum() > 0


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
    torch.manual_seed(0)
    model = DINO(DINOConfig(**SMALL, teacher_momentum_end=end)).train()
    for p in model.student.parameters():
        p.data += 0.1
    old, new = ({k: v.clone() for k, v in half.state_dict().items()} for half in (model.teacher, model.student))
    said = [model.teacher(crops_of()[0]).detach() for _ in range(2)]
    for _ in range(2):  # passes of one step
        model(crops_of())
    model.after_step(0.5, lambda t: t)
    for k, v in model.teacher.state_dict().items():
        assert torch.allclose(v, l * old[k] + (1 - l) * new[k], atol=1e-6)
    assert torch.allclose(model.centre, 0.1 * torch.stack(said).mean((0, 1, 2)), atol=1e-6)


@pytest.mark.parametrize('Network, Config, name', [(CRATE, CRATEConfig, 'crate'), (ViT, ViTConfig, 'vit')])
def test_small_crops_are_read_with_interpolated_positions(Network, Config, name):
    """As a network of that size, with positions as fine-tuning interpolates them, reads them."""
    torch.manual_seed(0)
    model = DINO(DINOConfig(backbone=name, **SMALL))
    small = Network(Config(n_layer=2, n_head=2, n_embd=16, image_size=(8, 12), patch_size=4, num_classes=1, pool='cls'))
    weights = {k: v for k, v in model.student.net.state_dict().items()}
    weights['embed.pos'] = resize_positions(weights['embed.pos'], (4, 4), (2, 3))
    small.load_state_dict(weights, strict=False)
    x = noise(3, 3, 8, 12, seed=3)
    assert torch.allclose(model.student.features(x), small.features(x), atol=1e-6)


@pytest.mark.parametrize('settings, message', [
    (dict(backbone='crate_mae'), "backbone='crate_mae'"), (dict(backbone='what'), 'choose crate, vit'),
    (dict(patch_size=5), 'divisible'), (dict(n_out=0), 'n_out=0'),
    (dict(teacher_temperature=0.0), 'teacher_temperature'), (dict(teacher_momentum_end=1.5), 'momentum_end=1.5')])
def test_impossible_settings_say_why(settings, message):
    with pytest.raises(ValueError, match=message):
        DINOConfig(**SMALL | settings)


def test_the_loss_of_a_network_is_the_objective_with_its_centre_and_temperature():
    torch.manual_seed(0)
    model = DINO(DINOConfig(**SMALL, first_temperature=0.04, teacher_temperature=0.08, temperature_share=0.3)).train()
    model.centre.normal_(std=0.1)
    for p in model.student.parameters():
        p.data += 0.1 * torch.randn_like(p)
    large, small = crops_of()
    student = torch.cat([model.student(large), model.student(small)])
    for share, temperature in ((0.0, 0.04), (0.15, 0.06), (0.3, 0.08), (0.9, 0.08)):
        model.share.fill_(share)
        want = distillation_loss(student, model.teacher(large), model.centre, temperature)
        assert model((large, small))[1].item() == pytest.approx(want.item(), rel=1e-5)


def test_small_crops_are_computed_in_the_precision_of_large_ones():
    """Tokens between the layers, under autocast, in a network as train.py makes it."""
    model = speed_up(DINO(DINOConfig(n_layer=2, n_head=2, n_embd=16, image_size=16, patch_size=4, n_out=32, hidden=24)))
    seen = {}
    for side in (16, 8):
        with torch.autocast('cpu', torch.bfloat16):
            model.student.features(torch.randn(2, 3, side, side))
            net = model.student.net if side == 16 else model.student.others[8, 8]
            net.layers[0].register_forward_hook(lambda m, args, out, side=side: seen.update({side: args[0].dtype}))
            model.student.features(torch.randn(2, 3, side, side))
    assert seen == {16: torch.bfloat16, 8: torch.bfloat16}
