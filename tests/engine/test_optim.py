"""Optimizers against PyTorch's own and against steps by hand; their groups of parameters; rates."""
import pytest
import torch

from engine import muon as muon_module, networks, optim
from engine.lion import Lion
from engine.mistakes import Mistake
from engine.muon import Muon as OurMuon
from train import TrainConfig, learning_rate_factor

TEXT = dict(block_size=8, vocab_size=16, n_layer=2, n_head=2, n_embd=8)
PICTURES = dict(image_size=16, patch_size=8, num_classes=4, n_layer=2, n_head=2, n_embd=8)
FUSED = dict(attn='mhsa', mlp=True, bias=True)  # with query, key and value in one matrix


def fresh(name, settings):
    Network, Config = networks.network_class(name), networks.config_class(name)
    return Network(Config(**settings))


@pytest.mark.parametrize('name', ['adamw', 'adam', 'lion', 'muon'])
@pytest.mark.parametrize('network, settings', [
    ('aot', TEXT | FUSED), ('aot', TEXT | dict(tie_out=True)), ('tost', TEXT | dict(bias=True)),
    ('crate', PICTURES), ('vit', PICTURES)])
def test_every_parameter_is_in_one_group_and_matrices_alone_decay(network, settings, name):
    model = fresh(network, settings)
    optimizers = optim.build(model, name, 1e-3, muon_lr=0.02, weight_decay=0.0)
    kinds = [type(o).__name__.lower() for o in optimizers]
    assert kinds == {'muon': ['adamw', 'muon'], 'adam': ['adamw']}.get(name, [name])  # without decay AdamW is Adam
    for _ in range(2):
        optim.set_rates(optimizers, 0.5, weight_decay=0.3)  # of the peak; decay may start at zero
    place = {id(p): (g['lr'], g['weight_decay']) for o in optimizers for g in o.param_groups for p in g['params']}
    assert sum(len(g['params']) for o in optimizers for g in o.param_groups) == len(place) == len([*model.parameters()])
    for k, p in model.named_parameters():
        inside = name == 'muon' and k.startswith('layers.') and p.dim() == 2
        single = k in ('embed.cls', 'embed.pos') or 'norm' in k or k.endswith(('bias', 'temp', '.b')) or 'gamma' in k
        assert place[id(p)] == (0.01 if inside else 0.0005, 0.0 if single or name == 'adam' else 0.3), k


def test_muon_without_matrices_inside_layers_is_refused():
    with pytest.raises(Mistake, match='optimizer'):
        optim.build(torch.nn.Linear(2, 2), 'muon', 1e-3)


def test_lion_by_hand():
    """Two steps against the average of the gradients, with decay."""
    p = torch.nn.Parameter(torch.tensor([1.0, -2.0, 0.5]))
    lion = Lion([p], lr=0.1, betas=(0.9, 0.99), weight_decay=0.5)
    for g, want in (((1, -1, 2), (0.85, -1.8, 0.375)), ((-0.05, 0.2, -0.3), (0.7075, -1.81, 0.45625)),
                    ((-0.09, 0.06, -0.1), (0.772125, -1.6195, 0.3334375))):
        p.grad = torch.tensor(g, dtype=torch.float32)
        lion.step()
        assert p.tolist() == pytest.approx(want, abs=1e-6)


@pytest.mark.parametrize('dtype, most', [(torch.bfloat16, 1e-3), (torch.float32, 0.03)])  # torch's is in bfloat16
def test_muon_moves_weights_as_torchs_does_one_by_one(dtype, most, monkeypatch):
    """In batches of equal shapes; query, key and value, which are one matrix, apart."""
    monkeypatch.setattr(muon_module, 'choose_dtype', lambda *machine: dtype)
    g = torch.Generator().manual_seed(0)
    shapes = [(16, 16)] * 3 + [(64, 16), (16, 16), (16, 64), (64, 16), (48, 16)]
    start, gradients = ([0.1 * torch.randn(shape, generator=g) for shape in shapes] for _ in range(2))
    gradients[-1] *= torch.tensor([1.0, 10.0, 0.1]).repeat_interleave(16)[:, None]  # together, the large one would win

    def moved(Muon, parts, **more):
        params = [torch.nn.Parameter(p.clone()) for w in start for p in w.chunk(parts if len(w) == 48 else 1)]
        muon = Muon(params, lr=0.1, momentum=0.9, weight_decay=0.2, **{k: {params[-1]: n} for k, n in more.items()})
        for step in range(2):
            for p, g in zip(params, (p for g in gradients for p in g.chunk(parts if len(g) == 48 else 1))):
                p.grad = g * (1 + step) + 0.1 * step
            muon.step()
        after = [*params[:7], torch.cat(params[7:])]
        return [(a - b).detach() for a, b in zip(after, start)]
    for ours, theirs in zip(moved(OurMuon, 1, stacked=3), moved(torch.optim.Muon, 3)):
        assert (ours - theirs).norm() < most * theirs.norm()
    _, muon = optim.build(fresh('aot', TEXT | FUSED), 'muon', 1e-3)
    assert [p.shape for p in muon.stacked] == [(24, 8)] * 2 and set(muon.stacked.values()) == {3}


def test_schedules():
    def at(step, schedule):
        c = TrainConfig(schedule=schedule, warmup_iters=10, lr_decay_iters=110, learning_rate=1.0, min_lr=0.1)
        return learning_rate_factor(c, step)
    for schedule in ('cosine', 'linear', 'constant'):
        assert [at(step, schedule) for step in (0, 4, 9, 10)] == pytest.approx([1 / 11, 5 / 11, 10 / 11, 1])
    for schedule in ('cosine', 'linear'):
        assert at(60, schedule) == pytest.approx(0.55) and at(110, schedule) == at(1000, schedule) == pytest.approx(0.1)
    assert at(1000, 'constant') == 1 and at(35, 'cosine') == pytest.approx(0.868198) and at(35, 'linear') == 0.775


def test_a_cosine_from_the_start_is_held_down_by_the_warm_up_and_is_never_late():
    """As in the script of CRATE's authors: 150 epochs, of which 20 warm up."""
    def rates(schedule, warmup, lowest=0.0):
        c = TrainConfig(schedule=schedule, warmup_iters=warmup, max_iters=150, learning_rate=2.0, min_lr=lowest)
        return [learning_rate_factor(c, step) for step in range(151)]

    warm, without_warmup, later = rates('cosine_from_start', 19), rates('cosine', 0), rates('cosine', 19)
    assert warm[:19] == pytest.approx([epoch / 20 for epoch in range(1, 20)])
    assert warm[20:] == without_warmup[20:] and max(warm) < max(later) == 1
    assert warm[75] == pytest.approx(0.5) and warm[150] == pytest.approx(0, abs=1e-9)
    assert rates('cosine_from_start', 0) == without_warmup
    assert rates('cosine_from_start', 19, lowest=0.5)[150] == 0.25
    too_long = rates('cosine_from_start', 300)
    assert too_long[:20] == rates('constant', 300)[:20] and too_long[-1] == pytest.approx(0, abs=1e-9)
