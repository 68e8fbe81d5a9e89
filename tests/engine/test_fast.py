"""The fast forms of engine/fast.py equal the plain ones, gradients included."""
import inspect
import sys

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck

from helpers import TEXT_NETWORKS, loud, text_network, tokens

import model_aot
import model_crate
import model_crate_alpha
import model_crate_mae
import model_tost
import model_vit
import model_vit_mae
from engine import fast
from engine.networks import network


NETWORKS = model_aot, model_crate, model_crate_alpha, model_crate_mae, model_tost, model_vit, model_vit_mae
PLAIN = [file.attention for file in NETWORKS]


@pytest.fixture(autouse=True)
def plain_again():
    for file, plain in zip(NETWORKS, PLAIN):
        file.attention = plain
    yield
    for file, plain in zip(NETWORKS, PLAIN):
        file.attention = plain


def tensors(n, *shape, dtype=torch.float64):
    g = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=g, dtype=dtype).requires_grad_() for _ in range(n)]


# ---- the plain form of a model file, and what stands in its place

@pytest.mark.parametrize('file', NETWORKS, ids=lambda file: file.__name__)
def test_attention_as_written_out_is_pytorchs(file):
    q, k, v = tensors(3, 2, 4, 9, 5)
    takes = inspect.signature(file.attention).parameters
    for settings in [{}] + [{'is_causal': True}] * ('is_causal' in takes):
        wanted = F.scaled_dot_product_attention(q, k, v, **settings)
        assert torch.allclose(file.attention(q, k, v, **settings), wanted, atol=1e-12)
    if 'dropout_p' in takes:  # of 9 equal weights some are 0, and those that are not are 1 / (9 - 9 / 4)
        out = file.attention(torch.zeros(1, 1, 9, 9), torch.zeros(1, 1, 9, 9), torch.eye(9)[None, None], dropout_p=0.25)
        assert (out == 0).any() and torch.allclose(out[out > 0], torch.tensor(1 / (9 * 0.75)))


@pytest.mark.parametrize('file', NETWORKS, ids=lambda file: file.__name__)
def test_the_fast_form_takes_the_place_of_a_plain_one(file):
    sizes = dict(image_size=8, patch_size=4, n_layer=1, n_head=2, n_embd=8)
    sizes |= dict(decoder_n_embd=8, decoder_n_head=2) if file is model_vit_mae else {}
    fast.speed_up(file.Network(file.Config(**sizes)))
    assert file.attention is fast.attention


IMPORTS = 'import math\nimport torch\nimport torch.nn.functional as F\n'
EDITS = [('dim=-1', 'dim=-2'), ('diagonal=1', 'diagonal=2'), ('F.dropout', 'F.alpha_dropout'), ('-math.inf', '-math.e'),
         ('math.sqrt(q.size(-1))', 'q.size(-1)'), ('weights @ v', 'weights @ v + v'),
         ('dropout_p=0.0', 'dropout_p=0.1'), ('if is_causal:', 'if not is_causal:')]


@pytest.mark.parametrize('old, new', EDITS)
def test_an_attention_that_somebody_edited_is_computed_as_it_stands(old, new):
    source, names = IMPORTS + inspect.getsource(PLAIN[1]), {}
    for text in (source.replace(old, new), source.replace('scores = q', '# a comment\n    scores = q')):
        assert text != source
        exec(text, names)
        model_crate.attention = names['attention']
        fast.speed_up(model_crate.CRATE(model_crate.CRATEConfig(**PICTURES)))
        assert (model_crate.attention is fast.attention) == ('a comment' in text)


# ---- attention as matrix products

@pytest.mark.parametrize('causal', [True, False])
@pytest.mark.parametrize('n', [1, 3])
def test_the_backward_pass_by_hand_is_the_derivative_of_the_forward_pass(n, causal):
    """Of one tensor that is query, key and value, and of three."""
    assert gradcheck(lambda *qkv: fast.Products.apply(*qkv, *[None] * (3 - n), causal), tensors(n, 2, 5, 3))


@pytest.mark.parametrize('causal', [True, False])
@pytest.mark.parametrize('n', [1, 3])
def test_products_in_bfloat16_equal_pytorchs_attention_in_float32(n, causal):
    plain = tensors(n, 2, 4, 33, 16, dtype=torch.float32)
    quick = [t.detach().bfloat16().requires_grad_() for t in plain]
    weight, results = torch.randn(2, 4, 33, 16), []
    for attend, inputs in ((F.scaled_dot_product_attention, plain), (fast.attention, quick)):
        out = attend(*(inputs * (3 // n)), is_causal=causal)
        (out * weight).sum().backward()
        results.append([out.detach().float(), *(t.grad.float() for t in inputs)])
    for a, b in zip(*results):
        assert (a - b).norm() < 0.01 * a.norm()  # bfloat16 has 8 bits: 0.4% an operation


def test_products_compute_in_training_in_bfloat16_without_dropout_on_short_texts():
    def products(q, **settings):
        return 'Products' in str(getattr(fast.attention(q, q, q, **settings).grad_fn, 'next_functions', ''))
    q, = tensors(1, 1, 2, 8, 4, dtype=torch.bfloat16)
    assert products(q) and products(q, is_causal=True)
    assert not products(q.float()) and not products(q.detach()) and not products(q, dropout_p=0.1)
    assert not products(torch.zeros(1, 1, fast.LONGEST + 1, 4, dtype=torch.bfloat16, requires_grad=True))


@pytest.mark.parametrize('name, settings', TEXT_NETWORKS)
def test_loss_in_chunks_is_the_same(name, settings, monkeypatch):
    """And so is its gradient. Then no logits are returned. Without y, and in evaluation, they are."""
    x, y, found = tokens(3, 16), tokens(3, 16, seed=2), []
    y[0] = -1  # of the first two chunks nothing counts
    monkeypatch.setattr(fast, 'LOGITS_AT_ONCE', 7 * 11)
    for spare in (False, True):
        model = loud(text_network(name, **settings)).train()
        if spare:
            fast.spare_logits(model)
        logits, loss = model(x, y)
        loss.backward()
        found.append([loss, *(p.grad for p in model.parameters())])
        assert logits is None if spare else logits.shape == (3, 16, 11)
        assert model(x)[0].shape == model.eval()(x, y)[0].shape == (3, 16, 11)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(*found, strict=True))


SMALL = dict(n_layer=3, n_head=2, n_embd=32)
TEXT, PICTURES = SMALL | dict(block_size=24, vocab_size=50), SMALL | dict(image_size=16, patch_size=4)


@pytest.mark.parametrize('name, settings', [('aot', TEXT), ('aot', TEXT | dict(attn='mhsa', mlp=True)),
                                            ('crate', PICTURES), ('tost', PICTURES)])
def test_a_network_computes_the_same_loss_and_gradients_in_both_forms(name, settings):
    Network, Config = network(name)
    torch.manual_seed(0)
    model = Network(Config(**settings))
    x, y = torch.randint(50, (2, 4, 24)) if name == 'aot' else (torch.randn(4, 3, 16, 16), torch.randint(5, (4,)))
    found, entered, exact = [], [], [p.detach().clone() for p in model.parameters()]
    model.layers[0].register_forward_pre_hook(lambda layer, args: entered.append(args[0].dtype))
    for form in (lambda model: model, fast.speed_up):
        form(model).zero_grad()
        found.append(model(x)[0])
        with torch.autocast('cpu', torch.bfloat16):
            loss = model(x, y)[1]
        loss.backward()
        found += [loss.item(), torch.cat([p.grad.flatten() for p in model.parameters()])]
    plain, want, gradient, same, got, quick = found
    assert torch.allclose(same, plain, atol=1e-5)  # without autocast nothing is rounded
    assert entered[-1] == torch.bfloat16 and sys.modules[Network.__module__].attention is fast.attention
    assert abs(got - want) < 5e-3 * want and torch.cosine_similarity(quick, gradient, dim=0) > 0.995
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), exact))
