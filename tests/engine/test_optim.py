import pytest
import torch

from engine import optim
from model_aot import AoT, AoTConfig
from model_crate import CRATE, CRATEConfig
from model_vit import ViT, ViTConfig
from train import TrainConfig


def models():
    for kw in (dict(), dict(attn='mhsa', mlp=True, bias=True), dict(tie_out=True)):
        torch.manual_seed(0)
        yield AoT(AoTConfig(block_size=8, vocab_size=16, n_layer=2, n_head=2, n_embd=8, **kw))


@pytest.mark.parametrize('name', ['adamw', 'adam', 'lion', 'muon'])
def test_every_parameter_is_in_exactly_one_group(name):
    for model in models():
        groups = [g for o in optim.build(model, name, 1e-3) for g in o.param_groups]
        seen = [id(p) for g in groups for p in g['params']]
        assert sorted(seen) == sorted(id(p) for p in model.parameters())
        for g in groups:
            for p in g['params']:
                assert (g['weight_decay'] > 0) == (p.dim() >= 2 and name != 'adam')


def test_of_pictures_tokens_and_positions_do_not_decay():
    sizes = dict(image_size=16, patch_size=8, num_classes=4, n_layer=2, n_head=2, n_embd=8)
    for Model, Config in ((CRATE, CRATEConfig), (ViT, ViTConfig), (AoT, AoTConfig)):
        model = Model(Config(**sizes))
        groups = [g for o in optim.build(model, 'lion', 1e-3) for g in o.param_groups]
        decays = {id(p) for g in groups for p in g['params'] if g['weight_decay']}
        kept = {k for k, p in model.named_parameters() if id(p) not in decays}
        assert kept == {k for k in model.state_dict()
                        if k in ('embed.cls', 'embed.pos') or 'norm' in k or k.endswith('bias')}


def test_muon_takes_the_matrices_inside_layers_only():
    for model in models():
        adamw, muon = optim.build(model, 'muon', 1e-3, muon_lr=0.05)
        assert isinstance(muon, torch.optim.Muon) and muon.param_groups[0]['lr'] == 0.05
        names = {id(p): k for k, p in model.named_parameters()}
        assert {names[id(p)] for g in muon.param_groups for p in g['params']} == \
            {k for k, p in model.named_parameters() if k.startswith('layers.') and p.dim() == 2}


def test_muon_without_matrices_inside_layers_is_refused():
    with pytest.raises(ValueError, match='Linear has none there; say --optimizer=adamw'):
        optim.build(torch.nn.Linear(2, 2), 'muon', 1e-3)


def test_lion_by_hand():
    """Two steps against the average of the gradients, with decay."""
    p = torch.nn.Parameter(torch.tensor([1.0, -2.0, 0.5]))
    lion = optim.Lion([p], lr=0.1, betas=(0.9, 0.99), weight_decay=0.5)
    for g, want in (((1, -1, 2), (0.85, -1.8, 0.375)), ((-0.05, 0.2, -0.3), (0.7075, -1.81, 0.45625)),
                    ((-0.09, 0.06, -0.1), (0.772125, -1.6195, 0.3334375))):
        p.grad = torch.tensor(g, dtype=torch.float32)
        lion.step()
        assert p.tolist() == pytest.approx(want, abs=1e-6)


def test_muon_steps_are_nearly_orthogonal():
    w = torch.nn.Parameter(torch.randn(16, 16, generator=torch.Generator().manual_seed(0)))
    model = torch.nn.Module()
    model.layers = torch.nn.ParameterList([w])
    (muon,) = optim.build(model, 'muon', 1e-3, muon_lr=1.0, weight_decay=0.0)
    before = w.detach().clone()
    w.grad = torch.randn(16, 16, generator=torch.Generator().manual_seed(1))
    muon.step()
    sizes = torch.linalg.svdvals(before - w.detach())
    assert 0.5 < sizes.min() and sizes.max() < 1.5


def matrices(*shapes):
    g = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(0.1 * torch.randn(shape, generator=g)) for shape in shapes]


def two_steps(optimizer, params, gradients):
    for step in range(2):
        for p, g in zip(params, gradients):
            p.grad = g * (1 + step) + 0.1 * step
        optimizer.step()


def distance(a, b):
    return max(((x - y).norm() / y.norm()).item() for x, y in zip(a, b))


def test_muon_in_batches_moves_weights_as_torchs_one_by_one(monkeypatch):
    monkeypatch.setattr(optim, 'choose_dtype', lambda *machine: torch.bfloat16)  # as torch's does everywhere
    shapes = [(16, 16)] * 3 + [(64, 16), (16, 16), (16, 64), (64, 16)]
    ours, theirs, start, gradients = (matrices(*shapes) for _ in range(4))
    two_steps(optim.Muon(ours, 0.1, 0.9, 0.2), ours, [g.detach() for g in gradients])
    two_steps(torch.optim.Muon(theirs, 0.1, momentum=0.9, weight_decay=0.2), theirs, [g.detach() for g in gradients])
    with torch.no_grad():
        assert distance([a - s for a, s in zip(ours, start)], [b - s for b, s in zip(theirs, start)]) < 1e-3


@pytest.mark.parametrize('dtype, most', [(torch.bfloat16, 1e-3), (torch.float32, 0.03)])  # torch's is in bfloat16
def test_muon_takes_query_key_and_value_apart(dtype, most, monkeypatch):
    monkeypatch.setattr(optim, 'choose_dtype', lambda *machine: dtype)
    (fused,), apart, gradients = matrices((48, 16)), matrices((48, 16))[0].detach().chunk(3), matrices((48, 16))[0]
    apart = [torch.nn.Parameter(a.clone()) for a in apart]
    scales = torch.tensor([1.0, 10.0, 0.1]).repeat_interleave(16)[:, None]  # together, the large one would win
    gradients = (gradients * scales).detach()
    two_steps(optim.Muon([fused], 0.1, stacked={fused: 3}), [fused], [gradients])
    two_steps(torch.optim.Muon(apart, 0.1), apart, gradients.chunk(3))
    assert distance([fused], [torch.cat(apart)]) < most
    _, muon = optim.build(list(models())[1], 'muon', 1e-3)
    assert [p.shape for p in muon.stacked] == [(24, 8)] * 2 and set(muon.stacked.values()) == {3}


@pytest.mark.parametrize('name', ['adamw', 'adam', 'lion', 'muon'])
def test_every_optimizer_learns(name):
    model = next(models())
    x = torch.arange(8).repeat(4, 1)
    optimizers = optim.build(model, name, {'lion': 5e-3}.get(name, 1e-2))
    first = model(x, (x + 1) % 8)[1].item()
    for _ in range(60):
        loss = model(x, (x + 1) % 8)[1]
        loss.backward()
        for o in optimizers:
            o.step()
            o.zero_grad()
    assert loss.item() < 0.3 * first


def test_schedules():
    def at(step, schedule):
        return optim.lr_factor(step, schedule, warmup_iters=10, lr_decay_iters=110, min_factor=0.1)
    for schedule in ('cosine', 'linear', 'constant'):
        warm = [at(s, schedule) for s in range(10)]
        assert warm == sorted(warm) and 0 < warm[0] and warm[-1] < 1 and at(10, schedule) == 1
    for schedule in ('cosine', 'linear'):
        assert at(60, schedule) == pytest.approx(0.55) and at(110, schedule) == at(1000, schedule) == pytest.approx(0.1)
    assert at(1000, 'constant') == 1 and at(35, 'cosine') > at(35, 'linear')


def test_set_rates_scales_each_group_from_its_own_peak():
    adamw, muon = optim.build(next(models()), 'muon', 1e-3, muon_lr=0.02)
    for _ in range(2):
        optim.set_rates([adamw, muon], 0.5)
    assert {g['lr'] for g in adamw.param_groups} == {0.0005} and muon.param_groups[0]['lr'] == 0.01


@pytest.mark.parametrize('name', ['adamw', 'lion', 'muon'])
def test_decay_may_start_at_zero(name):
    optimizers = optim.build(next(models()), name, 1e-3, weight_decay=0.0)
    decaying = [g for o in optimizers for g in o.param_groups if g['decays']]
    optim.set_rates(optimizers, 1.0, 0.3)
    assert decaying and all(g['weight_decay'] == 0.3 and {p.dim() for p in g['params']} <= {2, 4} for g in decaying)
    assert sum(len(g['params']) for g in decaying) == sum(p.dim() in (2, 4) for p in next(models()).parameters())


@pytest.mark.parametrize('changes, message', [
    (dict(learning_rate=1e-5), 'min_lr'), (dict(schedule='cosin'), "schedule='cosin'"),
    (dict(optimizer='sgd'), "optimizer='sgd'")])
def test_what_a_run_cannot_have_is_refused_before_any_work(changes, message):
    with pytest.raises(ValueError, match=message):
        optim.check(TrainConfig(**changes))
    optim.check(TrainConfig(schedule='constant', learning_rate=1e-5))  # which never comes to min_lr
