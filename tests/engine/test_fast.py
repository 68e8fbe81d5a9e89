"""The fast forms of engine/fast.py equal the plain ones, gradients included."""
import pytest
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck

import model_aot
import model_crate
import model_tost
from engine import fast
from engine.networks import network
from model_aot import AoT, AoTConfig
from model_crate import CRATE, CRATEConfig
from model_dino import DINO, DINOConfig


@pytest.fixture(autouse=True)
def plain_again():
    yield
    model_aot.attention = model_crate.attention = model_tost.attention = F.scaled_dot_product_attention


def tensors(n, *shape, dtype=torch.float64):
    g = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=g, dtype=dtype).requires_grad_() for _ in range(n)]


@pytest.mark.parametrize('causal', [True, False])
@pytest.mark.parametrize('same', [True, False])
def test_the_backward_pass_by_hand_is_the_derivative_of_the_forward_pass(same, causal):
    if same:
        assert gradcheck(lambda q: fast.Products.apply(q, None, None, causal), tensors(1, 2, 5, 3))
    else:
        assert gradcheck(lambda q, k, v: fast.Products.apply(q, k, v, causal), tensors(3, 2, 5, 3))


@pytest.mark.parametrize('causal', [True, False])
@pytest.mark.parametrize('same', [True, False])
def test_products_in_bfloat16_equal_pytorchs_attention_in_float32(same, causal):
    plain = tensors(1 if same else 3, 2, 4, 33, 16, dtype=torch.float32)
    quick = [t.detach().bfloat16().requires_grad_() for t in plain]
    weight, results = torch.randn(2, 4, 33, 16), []
    for attend, inputs in ((F.scaled_dot_product_attention, plain), (fast.attention, quick)):
        out = attend(*(inputs * 3 if same else inputs), is_causal=causal)
        (out * weight).sum().backward()
        results.append([out.detach().float(), *(t.grad.float() for t in inputs)])
    for a, b in zip(*results):
        assert (a - b).norm() < 0.01 * a.norm()  # bfloat16 has 8 bits: 0.4% an operation


def test_which_form_computes(monkeypatch):
    """Products compute in training in bfloat16 on a CPU, if there is no dropout and no long text."""
    used = []
    monkeypatch.setattr(fast.Products, 'apply', lambda q, *rest: used.append(1) or q)
    monkeypatch.setattr(fast.F, 'scaled_dot_product_attention', lambda q, *rest, **settings: q)

    def products(q, k=None, **settings):
        used.clear()
        fast.attention(q, *([q if k is None else k] * 2), **settings)
        return bool(used)
    q, = tensors(1, 1, 2, 8, 4, dtype=torch.bfloat16)
    assert products(q) and products(q, is_causal=True)
    assert not products(q.float()) and not products(q.detach()) and not products(q, dropout_p=0.1)
    assert not products(torch.zeros(1, 1, fast.LONGEST + 1, 4, dtype=torch.bfloat16, requires_grad=True))


def loss_and_gradients(model, x, y):
    model.zero_grad()
    with torch.autocast('cpu', torch.bfloat16):
        loss = model(x, y)[1]
    loss.backward()
    return loss.item(), torch.cat([p.grad.flatten() for p in model.parameters()])


@pytest.mark.parametrize('kind', ['mssa', 'mhsa', 'crate', 'tost'])
def test_a_network_computes_the_same_loss_and_gradients_in_both_forms(kind):
    torch.manual_seed(0)
    if kind in ('crate', 'tost'):
        Network, Config = network(kind)
        model = Network(Config(image_size=16, patch_size=4, num_classes=5, n_layer=3, n_head=2, n_embd=32))
        x, y = torch.randn(4, 3, 16, 16), torch.randint(5, (4,))
    else:
        sizes = dict(block_size=24, vocab_size=50, n_layer=3, n_head=2, n_embd=32)
        model = AoT(AoTConfig(**sizes, attn=kind, mlp=kind == 'mhsa'))
        x, y = torch.randint(50, (2, 4, 24))
    exact = [p.detach().clone() for p in model.parameters()]
    want, gradient = loss_and_gradients(model, x, y)
    entered = []
    model.layers[0].register_forward_pre_hook(lambda layer, args: entered.append(args[0].dtype))
    got, quick = loss_and_gradients(fast.speed_up(model), x, y)
    file = {'crate': model_crate, 'tost': model_tost}.get(kind, model_aot)
    assert entered == [torch.bfloat16] and file.attention is fast.attention
    assert abs(got - want) < 5e-3 * want
    assert torch.cosine_similarity(quick, gradient, dim=0) > 0.995
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), exact))


def test_networks_inside_are_fast_too():
    small = dict(n_layer=1, n_head=2, n_embd=16, image_size=8, patch_size=4, n_out=8, hidden=8, bottleneck=4)
    model = fast.speed_up(DINO(DINOConfig(backbone='crate', **small)))
    assert model_crate.attention is fast.attention
    entered = []
    for half in (model.student, model.teacher):
        half.net.layers[0].register_forward_pre_hook(lambda layer, args: entered.append(args[0].dtype))
    with torch.autocast('cpu', torch.bfloat16):
        model((torch.randn(2, 3, 3, 8, 8), torch.empty(0)))
    assert entered == [torch.bfloat16] * 2


def test_without_autocast_nothing_is_rounded():
    torch.manual_seed(0)
    model = CRATE(CRATEConfig(image_size=16, patch_size=4, num_classes=5, n_layer=3, n_head=2, n_embd=32))
    x = torch.randn(4, 3, 16, 16)
    want = model(x)[0]
    assert torch.equal(fast.speed_up(model)(x)[0], want)
