"""bench.py: pictures per second, at toy size. The tests of the README race its configs."""
import copy
import re

import pytest
import torch
from helpers import fails

import bench
from model_crate import CRATE, CRATEConfig

TOY = ['pictures', '--image_size=32', '--batch_size=1', '--rounds=1', '--seconds=0', '--device=cpu']


@pytest.mark.parametrize('shape', [{}, {'head_dim': 12, 'eta': 0.2, 'lam': 0.3, 'pool': 'mean'}])
def test_naive_equals_ours_in_value_and_gradient(shape):
    torch.manual_seed(0)
    ours = CRATE(CRATEConfig(image_size=32, patch_size=8, num_classes=10, n_layer=3, n_head=4, n_embd=32, **shape))
    theirs = bench.naive(ours)
    assert not any(a is b for a, b in zip(ours.parameters(), theirs.parameters()))  # a copy
    x, y = torch.randn(5, 3, 32, 32), torch.randint(10, (5,))
    results = []
    for model in (ours, theirs):
        logits, loss = model(x, y)
        loss.backward()
        results.append([logits, loss, *(p.grad for p in model.parameters())])
    for a, b in zip(*results):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_naive_does_what_the_released_code_does():
    """Three matmuls with D a layer and no fused attention; ours has two and fuses."""
    crate = CRATE(CRATEConfig(image_size=32, patch_size=8, n_layer=1, n_head=4, n_embd=32))
    calls = {}
    for name, model in (('ours', crate), ('naive', bench.naive(crate))):
        with torch.profiler.profile() as trace, torch.no_grad():
            model.layers[0](torch.randn(2, 17, 32))
        count = {e.key: e.count for e in trace.key_averages()}
        calls[name] = count['aten::linear'], count.get('aten::scaled_dot_product_attention', 0)
    assert calls == {'ours': (4, 1), 'naive': (5, 0)}  # U, W and D


@pytest.mark.parametrize('size, millions', [('tiny', 6.09), ('small', 13.12), ('base', 22.80), ('large', 77.64)])
def test_the_vit_has_as_many_parameters(size, millions):
    with torch.device('meta'):
        models = bench.contestants(size, 224, 16)
    crate, naive, vit = (models[name].num_params() for name in ('CRATE', 'CRATE, naive', 'ViT'))
    assert round(crate / 1e6, 2) == millions and naive == crate
    assert abs(vit / crate - 1) < 0.05
    ours, theirs = models['CRATE'].config, models['ViT'].config
    assert ours.n_embd // ours.n_head == theirs.n_embd // theirs.n_head  # heads as wide
    assert theirs.n_layer == ours.n_layer + (size == 'tiny')            # and as deep


@pytest.mark.parametrize('words, says', [
    (['--optimizer=lion', '--dtype=float32'], 'float32, not compiled; training with lion'),
    (['--train=false'], 'forward only')])
def test_pictures_prints_speeds_and_ratios(words, says, capsys):
    bench.main([*TOY, *words])
    first, *rest = capsys.readouterr().out.splitlines()
    assert says in first and '1 pictures of 32x32 in patches of 16x16, 1 rounds' in first
    assert [line.split('  ')[0] for line in rest[:6]] == 2 * ['CRATE', 'CRATE, naive', 'ViT']
    assert all('parameters' in line for line in rest[:3])
    ours, *others = (float(re.search(r'median (\S+) pictures/s \(', line)[1]) for line in rest[3:6])
    ratios = [float(re.search(r'median (\S+) of the pictures/s \(', line)[1]) for line in rest[6:]]
    assert [line.split(':')[0] for line in rest[6:]] == ['CRATE / CRATE, naive', 'CRATE / ViT']
    for other, ratio in zip(others, ratios):  # up to the digits that are printed
        assert (ours - 0.06) / (other + 0.06) - 0.006 <= ratio <= (ours + 0.06) / max(0.01, other - 0.06) + 0.006


def test_measuring_changes_no_weights():
    """So the hundredth step computes what the first did."""
    c = bench.PicturesConfig()
    model = CRATE(CRATEConfig(image_size=32, patch_size=8, num_classes=10, n_layer=1, n_head=4, n_embd=32))
    before = copy.deepcopy(model.state_dict())
    x, y = torch.randn(2, 3, 32, 32), torch.randint(10, (2,))
    for c.optimizer in ('adamw', 'lion', 'muon'):
        step = bench.stepper(model, c, False, torch.autocast('cpu', enabled=False), x, y)
        step(), step()
    assert all(torch.equal(t, before[k]) for k, t in model.state_dict().items())


def test_a_measurement_lasts_as_long_as_asked(monkeypatch):
    clock = [0.0]

    def step():
        clock[0] += 0.01
    monkeypatch.setattr(bench.time, 'perf_counter', lambda: clock[0])
    assert bench.steps_a_second(step, 1.0, torch.device('cpu')) == pytest.approx(100)
    assert 1.0 <= clock[0] < 1.03


def test_a_race_trains_each_config_once_a_round(monkeypatch, capsys):
    runs, times = [], iter((10.0, 20.0, 12.0, 30.0))

    def race(config, target, seed, extra):
        runs.append((config, target, seed, extra))
        return {'step': '5', 'loss': '1.9' if config == 'b.py' else '1.5', 'seconds': str(next(times))}, 99.0
    monkeypatch.setattr(bench, 'race', race)
    bench.main(['a.py', 'b.py', '--target_loss', '1.8', '--rounds=2', '--n_layer=3'])
    assert runs == [(config, 1.8, seed, ['--n_layer=3']) for seed in (0, 1) for config in ('a.py', 'b.py')]
    *_, a, b, ratio = capsys.readouterr().out.splitlines()
    assert 'median 11.0 s of training (10.0 to 12.0)' in a and 'missed' not in a
    assert 'median 25.0 s' in b and 'the target was missed' in b
    assert ratio == 'a / b: median 0.45 of the time (0.40 to 0.50), at most'


def test_mistakes_are_one_line(capsys):
    line = fails(capsys, bench.main, 'pikturs')
    assert "'pikturs' is unknown" in line and 'configs to race' in line and 'say pictures' in line
    assert 'say pictures' in fails(capsys, bench.main)
    assert 'tiny, small, base, large' in fails(capsys, bench.main, 'pictures', '--size=huge')
    assert 'not divisible by patch_size' in fails(capsys, bench.main, 'pictures', '--image_size=33')
    assert 'rounds=0 must be at least 1' in fails(capsys, bench.main, 'pictures', '--rounds=0')
    assert 'did you mean batch_size' in fails(capsys, bench.main, 'pictures', '--batchsize=2')
