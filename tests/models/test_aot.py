"""AoT: GPT-2 equals nanoGPT's, the operators equal the paper's equations by naive loops, pictures
and functions."""
import math

import numpy as np
import pytest
import torch
from helpers import golden, memorize, text_network, tokens

from model_aot import MHSA, MSSA, AoT, AoTConfig, Average, patchify
from tasks.regression import Prompts

# ---- GPT-2


@pytest.mark.parametrize('name', ['gpt_bias_true', 'gpt_bias_false'])
def test_gpt2_equals_nanogpt(name):
    sd, g = golden(name)
    model = AoT.from_gpt2(sd, n_head=g['constructor']['n_head']).eval()
    x, y = torch.tensor(g['input']['tokens']), torch.tensor(g['input']['targets'])
    logits, loss = model(x, y)
    assert (logits[:, -1] - torch.tensor(g['outputs']['logits_last_position'])).abs().max() < 1e-5
    assert loss.item() == pytest.approx(g['outputs']['loss'], abs=1e-5)
    y[:, :3] = -1
    some_ignored = g['outputs']['loss_first_3_targets_of_each_row_ignored']
    assert model(x, y)[1].item() == pytest.approx(some_ignored, abs=1e-5)
    assert model.num_params() == g['parameter_count']['all']
    positions = model.embed.pos_emb.weight.numel()
    assert model.num_params() - positions == g['parameter_count']['without_position_embedding']
    z = model.embed(x)
    for block, layer in (('embeddings', None), ('layer0.output', model.layers[0]), ('layer1.output', model.layers[1]),
                         ('final_norm', model.read.norm)):
        z, want = layer(z) if layer else z, g['outputs']['tokens'][block]
        assert (z.flatten()[:8] - torch.tensor(want['first8'])).abs().max() < 1e-5
        assert (z.flatten()[-8:] - torch.tensor(want['last8'])).abs().max() < 1e-5
        assert z.std().item() == pytest.approx(want['std'], abs=1e-5)


def test_gelu_may_be_openais_approximation():
    sd, g = golden('gpt_bias_true')
    exact, theirs = (AoT.from_gpt2(sd, n_head=4, gelu=gelu).eval() for gelu in ('none', 'tanh'))
    z = torch.linspace(-4, 4, 3 * 64).view(3, 64)[:, :exact.config.n_embd]
    mlp = theirs.layers[0].mlp
    u = mlp.up(z)
    by_hand = 0.5 * u * (1 + torch.tanh(math.sqrt(2 / math.pi) * (u + 0.044715 * u ** 3)))
    assert torch.allclose(mlp(z), mlp.down(by_hand), atol=1e-6)
    assert not torch.equal(mlp(z), exact.layers[0].mlp(z))


# ---- the operators


def naive_heads(q, k, v):
    """softmax(q_i . k_j / sqrt(p)) over j <= i, one number at a time; q, k, v (N, p)."""
    out = torch.zeros_like(v)
    for i in range(len(q)):
        scores = [sum(q[i, a] * k[j, a] for a in range(q.size(1))).item() / math.sqrt(q.size(1)) for j in range(i + 1)]
        total = sum(math.exp(s) for s in scores)
        for j, s in enumerate(scores):
            out[i] += math.exp(s) / total * v[j]
    return out


@pytest.mark.parametrize('tie_out', [False, True])
def test_mssa_equals_eq_4_by_a_naive_loop(tie_out):
    c = AoTConfig(n_embd=12, n_head=3, tie_out=tie_out, eta=0.7)
    torch.manual_seed(0)
    mssa, Z = MSSA(c), torch.randn(5, 12)  # rows are tokens
    mssa.U.weight.data.normal_()
    expected = torch.zeros(5, 12)
    for k in range(3):
        U_k = mssa.U.weight[4 * k:4 * k + 4].T                               # (d, p)
        head = naive_heads(Z @ U_k, Z @ U_k, Z @ U_k)                        # U_k^T Z phi(Z^T U_k U_k^T Z)
        out = 0.7 * U_k if tie_out else mssa.W.weight[:, 4 * k:4 * k + 4]    # eta U_k, or the free W
        expected += head @ out.T
    assert torch.allclose(mssa(Z[None])[0], expected, atol=1e-5)
    assert (mssa.W is None) == tie_out


def test_tied_scale_is_eq_4_of_rescaled_bases():
    """The header's claim: 1/sqrt(p) in the softmax is eq. (4) without it, for U p^(-1/4) and step
    eta sqrt(p)."""
    c = AoTConfig(n_embd=8, n_head=2, tie_out=True, eta=0.3)
    torch.manual_seed(0)
    mssa, Z, p = MSSA(c), torch.randn(6, 8), 4
    future, expected = torch.ones(6, 6).triu(1).bool(), torch.zeros(6, 8)
    for k in range(2):
        U = mssa.U.weight[p * k:p * k + p].T * p ** -0.25
        w = Z @ U
        expected += 0.3 * p ** 0.5 * (w @ w.T).masked_fill(future, -torch.inf).softmax(-1) @ w @ U.T
    assert torch.allclose(mssa(Z[None])[0], expected, atol=1e-6)


def test_mhsa_equals_eq_5_by_a_naive_loop():
    torch.manual_seed(0)
    mhsa, Z = MHSA(AoTConfig(n_embd=12, n_head=3, attn='mhsa')), torch.randn(5, 12)
    mhsa.QKV.weight.data.normal_()
    q, k, v = (Z @ mhsa.QKV.weight.T).split(12, dim=1)
    heads = torch.cat([naive_heads(q[:, s:s + 4], k[:, s:s + 4], v[:, s:s + 4]) for s in (0, 4, 8)], 1)
    assert torch.allclose(mhsa(Z[None])[0], heads @ mhsa.W.weight.T, atol=1e-5)


@pytest.mark.parametrize('N', [1, 5, 16])
def test_attention_is_the_same_in_every_form(N):
    """In bfloat16 a CPU takes another way; the last token alone, as in generation, sees all before
    it."""
    average = Average(AoTConfig(n_embd=32, n_head=4))
    q, k, v = torch.randn(3, 2, N, 32, generator=torch.Generator().manual_seed(0))
    whole = average(q, k, v)
    assert torch.allclose(average(q.bfloat16(), k.bfloat16(), v.bfloat16()).float(), whole, atol=3e-2)
    average.past = lambda k, v: (k, v)  # of the last token alone, as generation sets it
    assert torch.allclose(average(q[:, -1:], k, v), whole[:, -1:], atol=1e-6)
    last = average(q[:, -1:].bfloat16(), k.bfloat16(), v.bfloat16())
    assert torch.allclose(last.float(), whole[:, -1:], atol=3e-2)


# ---- the network


@pytest.mark.parametrize('init, std', [('gpt2', 0.02), ('fan_in', 128 ** -0.5)])
def test_initialization_shrinks_with_depth(init, std):
    for kind, additions in ((dict(attn='mssa'), 9), (dict(attn='mhsa', mlp=True), 18)):
        model = AoT(AoTConfig(block_size=8, vocab_size=999, n_layer=9, n_head=2, n_embd=128, init=init, **kind))
        layer = model.layers[4]
        assert layer.attn.W.weight.std().item() == pytest.approx(std / math.sqrt(additions), rel=0.05)
        into = layer.attn.U if kind['attn'] == 'mssa' else layer.attn.QKV
        assert into.weight.std().item() == pytest.approx(std, rel=0.05)
        assert model.embed.tok_emb.weight.std().item() == pytest.approx(std, rel=0.05)


def test_fan_in_keeps_the_variance_of_tokens():
    """From inputs of variance 1 a map makes outputs of variance 1, divided by the number of additions if it writes to
    the residual stream."""
    config = AoTConfig(block_size=8, vocab_size=8, n_layer=1, n_head=2, n_embd=64, init='fan_in', mlp=True)
    layer = AoT(config).layers[0]
    for linear, additions in ((layer.attn.U, 1), (layer.attn.W, 2), (layer.mlp.up, 1), (layer.mlp.down, 2)):
        out = linear(torch.randn(4096, linear.in_features))
        assert out.var().item() * additions == pytest.approx(1, rel=0.1)


def test_dropout_acts_in_training_only():
    model, x = text_network('aot', dropout=0.5), tokens(2, 8)
    assert torch.equal(model(x)[0], model(x)[0])
    model.train()
    assert not torch.equal(model(x)[0], model(x)[0])


@pytest.mark.parametrize('kw, word', [
    (dict(n_embd=10, n_head=4), 'n_head'), (dict(attn='mha'), 'mssa'), (dict(gelu='relu'), 'tanh'),
    (dict(n_layer=0), 'n_layer'), (dict(attn='mhsa', tie_out=True), 'mssa'),
    (dict(num_classes=0, image_size=224), 'num_classes'),
    (dict(image_size=10, patch_size=4), 'divisible by patch_size'), (dict(image_size=8, pool='max'), 'cls or mean')])
def test_impossible_configs_say_why(kw, word):
    with pytest.raises(ValueError, match=word):
        AoTConfig(**kw)


# ---- pictures

PICTURES = dict(image_size=(8, 12), patch_size=(4, 2), num_classes=5, n_layer=2, n_head=2, n_embd=16)  # 2 x 6 patches


def aot_of_pictures(**settings):
    torch.manual_seed(0)
    return AoT(AoTConfig(**PICTURES | settings)).eval()


def shuffled(x, order, patch_size):
    """Pictures with their patches in another order."""
    B, C, H, W = x.shape
    h, w = patch_size
    patches = x.view(B, C, H // h, h, W // w, w).permute(0, 2, 4, 1, 3, 5).flatten(1, 2)[:, order]
    return patches.unflatten(1, (H // h, W // w)).permute(0, 3, 1, 4, 2, 5).reshape(B, C, H, W)


@pytest.mark.parametrize('pool', ['cls', 'mean'])
@pytest.mark.parametrize('attn', ['mssa', 'mhsa'])
def test_no_patch_is_before_another(attn, pool):
    model = aot_of_pictures(attn=attn, pool=pool)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(1))
    for layer in model.layers:
        for p in layer.attn.parameters():
            torch.nn.init.normal_(p, std=0.5)  # so that attention matters
    x, sizes = torch.randn(3, 3, 8, 12), (3, 8, 12, 4, 2)
    logits = model(x)[0]
    mixed = shuffled(x, order, (4, 2))
    assert torch.equal(patchify(mixed, *sizes), patchify(x, *sizes)[:, order])
    assert not torch.allclose(model(mixed)[0], logits, atol=1e-3)  # positions do matter
    with torch.no_grad():
        model.embed.pos[:, 1:] = model.embed.pos[:, 1:][:, order]
    assert torch.allclose(model(mixed)[0], logits, atol=1e-5)


def test_mssa_on_pictures_equals_eq_4_without_a_mask_by_a_naive_loop():
    torch.manual_seed(0)
    mssa, Z = MSSA(AoTConfig(**PICTURES | dict(n_embd=12, n_head=3))), torch.randn(5, 12)
    heads = torch.zeros(5, 12)
    for k in range(3):
        U_k = mssa.U.weight[4 * k:4 * k + 4].T
        w = [U_k.T @ z for z in Z]
        for i in range(5):
            a = torch.tensor([math.exp((w[i] @ w[j]).item() / 2) for j in range(5)])
            heads[i, 4 * k:4 * k + 4] = sum(a_j / a.sum() * w_j for a_j, w_j in zip(a, w))
    assert torch.allclose(mssa(Z[None])[0], heads @ mssa.W.weight.T, atol=1e-5)


@pytest.mark.parametrize('attn', ['mssa', 'mhsa'])
def test_a_fresh_aot_knows_nothing_of_pictures_and_can_memorize(attn):
    model = aot_of_pictures(attn=attn).train()
    x, y = torch.randn(6, 3, 8, 12), torch.tensor([0, 1, 2, 3, 4, 0])
    assert abs(model(x, y)[1].item() - math.log(5)) < 0.2
    memorize(model, x, y, 0.1)


def test_the_papers_sizes_on_imagenet():
    for kw, count in ((dict(attn='mhsa', n_layer=24, n_embd=384, n_head=6), 14_924_008),
                      (dict(attn='mssa', n_layer=32, n_embd=576, n_head=12), 22_389_352)):
        with torch.device('meta'):
            assert AoT(AoTConfig(image_size=224, patch_size=16, num_classes=1000, **kw)).num_params() == count


def test_bfloat16_on_a_cpu_sees_all_patches_too():
    average = Average(AoTConfig(image_size=224, n_embd=24, n_head=3))
    q, k, v = torch.randn(3, 2, 7, 24, generator=torch.Generator().manual_seed(0)).unbind()
    assert torch.allclose(average(q.bfloat16(), k.bfloat16(), v.bfloat16()).float(), average(q, k, v), atol=3e-2)
    model, x = aot_of_pictures(), torch.randn(4, 3, 8, 12, generator=torch.Generator().manual_seed(0))
    with torch.autocast('cpu', torch.bfloat16):
        half = model(x)[0]
    assert torch.allclose(half.float(), model(x)[0], atol=3e-2)


def test_pictures_of_another_size_are_refused():
    for shape in ((1, 3, 12, 8), (1, 3, 8, 8), (1, 1, 8, 12)):
        with pytest.raises(ValueError, match='resize them'):
            aot_of_pictures()(torch.zeros(shape))


# ---- functions in context


def aot_of_functions(**settings):
    torch.manual_seed(0)
    return AoT(AoTConfig(**dict(block_size=12, n_dims=4, n_layer=3, n_head=2, n_embd=16) | settings)).eval()


def prompts(n=6):
    return Prompts('linear', 4, n).draw(np.random.default_rng(0), 3)


@pytest.mark.parametrize('kind', [dict(), dict(attn='mhsa'), dict(attn='mhsa', mlp=True, bias=True)])
def test_a_prediction_sees_the_examples_before_it_and_its_x(kind):
    model, (x, y) = aot_of_functions(**kind), prompts()
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(std=0.3)
    guess, loss = model(x, y)
    assert guess.shape == (3, 6) and loss.item() == pytest.approx((guess - y).square().mean().item())
    changed = x.clone(), y.clone()
    changed[0][:, 4:] += 1
    changed[1][:, 3:] += 1
    assert torch.equal(model(*changed)[0][:, :4], guess[:, :4])             # not y_3, nor what comes later
    for which, i in ((0, 3), (0, 2), (1, 2), (1, 0)):
        changed = x.clone(), y.clone()
        changed[which][:, i] += 1
        assert ((model(*changed)[0] - guess)[:, 3].abs() > 1e-6).all()      # but x_3 and all before


def test_examples_become_tokens_in_turn():
    model, (x, y) = aot_of_functions(), prompts()
    z, into, positions = model.embed(x, y), model.embed.examples, model.embed.pos_emb.weight
    assert z.shape == (3, 12, 16)
    for i in range(6):
        as_vector = torch.cat((y[:, i:i + 1], torch.zeros(3, 3)), 1)
        assert torch.allclose(z[:, 2 * i], into(x[:, i]) + positions[2 * i], atol=1e-6)
        assert torch.allclose(z[:, 2 * i + 1], into(as_vector) + positions[2 * i + 1], atol=1e-6)
    a, b = model(x[:, :4], y[:, :4])[0], model(x, y)[0][:, :4]              # a shorter prompt begins a longer one
    assert torch.allclose(a, b, atol=1e-6)


@pytest.mark.parametrize('kind', [dict(), dict(attn='mhsa', mlp=True)])
def test_one_batch_of_functions_can_be_memorized(kind):
    model, (x, y) = aot_of_functions(n_embd=32, **kind).train(), prompts()
    memorize(model, x, y, 0.1 * y.square().mean(), steps=1000, lr=5e-3)


def test_functions_compile_as_one_graph():
    model, (x, y) = aot_of_functions(), prompts()
    assert torch.allclose(torch.compile(model, backend='eager', fullgraph=True)(x, y)[1], model(x, y)[1])


def test_prompts_that_are_too_long_are_refused():
    x, y = prompts(n=7)
    with pytest.raises(ValueError, match='block_size=12'):
        aot_of_functions()(x, y)
