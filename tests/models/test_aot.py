import math

import pytest
import torch
from conftest import golden, memorize, same_in_chunks

from engine.generate import new_cache, step
from model_aot import MHSA, MSSA, AoT, AoTConfig, attend

KINDS = [dict(attn='mssa'), dict(attn='mssa', tie_out=True, eta=0.5), dict(attn='mhsa'), dict(attn='mhsa', mlp=True, bias=True),
         dict(attn='mssa', mlp=True, head_dim=12)]


def small(seed=0, **kw):
    torch.manual_seed(seed)
    return AoT(AoTConfig(**dict(block_size=16, vocab_size=11, n_layer=3, n_head=2, n_embd=16) | kw)).eval()


def loud(model):
    """Weights large enough that attention is far from uniform."""
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 2:
                p.normal_(std=0.4)
    return model


def tokens(*shape, vocab_size=11, seed=1):
    return torch.randint(vocab_size, shape, generator=torch.Generator().manual_seed(seed))


# ---- values

@pytest.mark.parametrize('name', ['gpt_bias_true', 'gpt_bias_false'])
def test_gpt2_equals_nanogpt(name):
    sd, g = golden(name)
    model = AoT.from_gpt2(sd, n_head=g['constructor']['n_head']).eval()
    x, y = torch.tensor(g['input']['tokens']), torch.tensor(g['input']['targets'])
    logits, loss = model(x, y)
    assert (logits[:, -1] - torch.tensor(g['outputs']['logits_last_position'])).abs().max() < 1e-5
    assert loss.item() == pytest.approx(g['outputs']['loss'], abs=1e-5)
    y[:, :3] = -1
    assert model(x, y)[1].item() == pytest.approx(g['outputs']['loss_first_3_targets_of_each_row_ignored'], abs=1e-5)
    assert model.num_params() == g['parameter_count']['all']
    assert model.num_params(positions=False) == g['parameter_count']['without_position_embedding']
    z = model.embed(x)
    for block, layer in [('embeddings', None), ('layer0.output', model.layers[0]), ('layer1.output', model.layers[1]), ('final_norm', model.norm)]:
        z, want = layer(z) if layer else z, g['outputs']['tokens'][block]
        assert (z.flatten()[:8] - torch.tensor(want['first8'])).abs().max() < 1e-5
        assert (z.flatten()[-8:] - torch.tensor(want['last8'])).abs().max() < 1e-5
        assert z.std().item() == pytest.approx(want['std'], abs=1e-5)


def test_gpt2_takes_openai_names():
    sd, g = golden('gpt_bias_true')
    ours = AoT.from_gpt2(sd, n_head=4).state_dict()
    transposed = ('c_attn.weight', 'c_proj.weight', 'c_fc.weight')
    theirs = {k.removeprefix('transformer.'): v.T.contiguous() if k.endswith(transposed) else v for k, v in sd.items() if k != 'lm_head.weight'}
    theirs['h.0.attn.bias'] = torch.ones(1, 1, 16, 16).tril()  # a mask, not a weight
    for variant in (theirs, {'transformer.' + k: v for k, v in theirs.items()}, {'model': {'_orig_mod.' + k: v for k, v in sd.items()}}):
        loaded = AoT.from_gpt2(variant, n_head=4).state_dict()
        assert all(torch.equal(loaded[k], ours[k]) for k in ours)


def test_gelu_may_be_openais_approximation():
    sd, g = golden('gpt_bias_true')
    exact, theirs = (AoT.from_gpt2(sd, n_head=4, gelu=gelu).eval() for gelu in ('none', 'tanh'))
    z = torch.linspace(-4, 4, 3 * 64).view(3, 64)[:, :exact.config.n_embd]
    mlp = theirs.layers[0].mlp
    u = mlp.up(z)
    by_hand = 0.5 * u * (1 + torch.tanh(math.sqrt(2 / math.pi) * (u + 0.044715 * u ** 3)))
    assert torch.allclose(mlp(z), mlp.down(by_hand), atol=1e-6) and not torch.equal(mlp(z), exact.layers[0].mlp(z))


@pytest.mark.parametrize('change, word', [
    (lambda sd: sd.pop('transformer.h.1.mlp.c_fc.bias'), 'h.1.mlp.c_fc.bias'),
    (lambda sd: sd.update({'transformer.h.0.extra': torch.ones(1)}), 'h.0.extra'),
    (lambda sd: sd.update({'transformer.h.1.ln_1.weight': torch.ones(3)}), 'h.1.ln_1.weight'),
    (lambda sd: sd.pop('transformer.wpe.weight'), 'wpe')])
def test_gpt2_loader_names_what_does_not_fit(change, word):
    sd, _ = golden('gpt_bias_true')
    change(sd)
    with pytest.raises(ValueError, match=word):
        AoT.from_gpt2(sd, n_head=4)


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
    """The header's claim: 1/sqrt(p) in the softmax is eq. (4) without it, for U p^(-1/4) and step eta sqrt(p)."""
    c = AoTConfig(n_embd=8, n_head=2, tie_out=True, eta=0.3)
    torch.manual_seed(0)
    mssa, Z, p = MSSA(c), torch.randn(6, 8), 4
    expected = torch.zeros(6, 8)
    for k in range(2):
        U = mssa.U.weight[p * k:p * k + p].T * p ** -0.25
        w = Z @ U
        expected += 0.3 * p ** 0.5 * (w @ w.T).masked_fill(torch.ones(6, 6).triu(1).bool(), -torch.inf).softmax(-1) @ w @ U.T
    assert torch.allclose(mssa(Z[None])[0], expected, atol=1e-6)


def test_mhsa_equals_eq_5_by_a_naive_loop():
    torch.manual_seed(0)
    mhsa, Z = MHSA(AoTConfig(n_embd=12, n_head=3, attn='mhsa')), torch.randn(5, 12)
    mhsa.QKV.weight.data.normal_()
    q, k, v = (Z @ mhsa.QKV.weight.T).split(12, dim=1)
    heads = torch.cat([naive_heads(q[:, s:s + 4], k[:, s:s + 4], v[:, s:s + 4]) for s in (0, 4, 8)], 1)
    assert torch.allclose(mhsa(Z[None])[0], heads @ mhsa.W.weight.T, atol=1e-5)


@pytest.mark.parametrize('N', [1, 5, 16])
def test_attend_is_the_same_in_every_form(N):
    """bfloat16 on CPU takes its own way; a query block shorter than the keys sees up to its own place."""
    q, k, v = torch.randn(3, 2, 4, 16, 8, generator=torch.Generator().manual_seed(0))
    whole = attend(q, k, v)
    assert torch.allclose(attend(q[:, :, -N:], k, v), whole[:, :, -N:], atol=1e-6)
    low = attend(q[:, :, -N:].bfloat16(), k.bfloat16(), v.bfloat16())
    assert torch.allclose(low.float(), whole[:, :, -N:], atol=3e-2)


@pytest.mark.parametrize('kind', KINDS)
def test_the_future_cannot_change_the_past(kind):
    model = loud(small(**kind))
    x = tokens(2, 16)
    changed = x.clone()
    changed[:, 9:] = (changed[:, 9:] + 1) % 11
    a, b = model(x)[0], model(changed)[0]
    assert torch.equal(a[:, :9], b[:, :9])
    assert (a[:, 9:] - b[:, 9:]).abs().min(-1).values.max() > 1e-4
    with torch.autocast('cpu', torch.bfloat16):
        assert torch.equal(model(x)[0][:, :9], model(changed)[0][:, :9])


@pytest.mark.parametrize('kind', KINDS)
def test_a_fresh_model_knows_nothing_and_can_memorize(kind):
    model = small(**kind, seed=3).train()
    x, y = tokens(4, 16), tokens(4, 16, seed=2)
    assert model(x, y)[1].item() == pytest.approx(math.log(11), abs=0.05)
    memorize(model, x, y, 0.3)


def test_loss_in_chunks_is_the_same(monkeypatch):
    x, y = tokens(3, 16), tokens(3, 16, seed=2)
    y[0, :5] = -1
    same_in_chunks(loud(small()), x, y, monkeypatch)


def test_initialization_shrinks_with_depth():
    for kind, additions in ((dict(attn='mssa'), 9), (dict(attn='mhsa', mlp=True), 18)):
        model = AoT(AoTConfig(block_size=8, vocab_size=8, n_layer=9, n_head=2, n_embd=128, **kind))
        assert model.layers[4].attn.W.weight.std().item() == pytest.approx(0.02 / math.sqrt(additions), rel=0.05)
        assert model.layers[4].attn.state_dict()['U.weight' if kind['attn'] == 'mssa' else 'QKV.weight'].std().item() == pytest.approx(0.02, rel=0.05)


def test_dropout_acts_in_training_only():
    model = small(dropout=0.5)
    x = tokens(2, 8)
    assert torch.equal(model(x)[0], model(x)[0])
    model.train()
    assert not torch.equal(model(x)[0], model(x)[0])


@pytest.mark.parametrize('kind', KINDS)
def test_compiles_as_one_graph(kind):
    model = small(**kind)
    x, y = tokens(2, 16), tokens(2, 16, seed=2)
    compiled = torch.compile(model, backend='eager', fullgraph=True)
    assert torch.allclose(compiled(x, y)[1], model(x, y)[1])


# ---- generation

@pytest.mark.parametrize('kind', KINDS)
def test_cache_changes_nothing(kind):
    model = loud(small(**kind))
    x = tokens(3, 13)
    full = model(x)[0]
    cache = new_cache(model, 3)
    with torch.no_grad():
        assert torch.allclose(model.head(step(model, x[:, :6], cache)), full[:, 5], atol=1e-5)
        assert torch.allclose(model.head(step(model, x[:, 6:9], cache, 6)), full[:, 8], atol=1e-5)  # several at once
        for i in range(9, 13):
            assert torch.allclose(model.head(step(model, x[:, i:i + 1], cache, i)), full[:, i], atol=1e-5)
    for temperature in (0, 1.0):
        torch.manual_seed(5)
        a = model.generate(x, 20, temperature)  # 33 tokens: far beyond the block of 16
        torch.manual_seed(5)
        assert torch.equal(a, model.generate(x, 20, temperature, use_cache=False))
        assert a.shape == (3, 33) and torch.equal(a[:, :13], x)


def test_greedy_generation_is_argmax_of_the_forward_pass():
    model = loud(small())
    x = y = tokens(2, 4)
    for _ in range(20):
        y = torch.cat((y, model(y[:, -16:])[0][:, -1].argmax(-1, keepdim=True)), 1)
    assert torch.equal(model.generate(x, 20, temperature=0), y)


def test_mssa_cache_holds_half_the_bytes_of_mhsa():
    mssa, mhsa = new_cache(small(attn='mssa'), 4), new_cache(small(attn='mhsa'), 4)
    assert 2 * mssa.nbytes == mhsa.nbytes == 3 * 2 * 4 * 16 * 16 * 4  # layers, k and v, batch, block, width, float32


def test_long_prompts_are_cropped_with_a_warning():
    model, x = loud(small()), tokens(1, 40)
    with pytest.warns(UserWarning, match='last 16'):
        a = model.generate(x, 3, temperature=0)
    assert torch.equal(a[:, :40], x) and torch.equal(a[:, 40:], model.generate(x[:, -16:], 3, temperature=0)[:, 16:])


def test_top_k_top_p_and_stop():
    model, x = loud(small()), tokens(64, 4)
    logits = model(x)[0][:, -1] / 2
    assert torch.equal(model.generate(x, 1, 1.0, top_k=1), model.generate(x, 1, 0))
    assert torch.equal(model.generate(x, 1, 1.0, top_p=1e-9), model.generate(x, 1, 0))
    drawn = model.generate(x, 1, 2.0, top_k=3)[:, -1:]
    assert (drawn == logits.topk(3).indices).any(1).all() and len(set(drawn.flatten().tolist())) > 1
    probs, order = logits.softmax(-1).sort(descending=True)
    nucleus = [set(o[:int((p.cumsum(0) < 0.5).sum()) + 1].tolist()) for p, o in zip(probs, order)]
    for _ in range(5):
        assert all(t.item() in n for t, n in zip(model.generate(x, 1, 2.0, top_p=0.5)[:, -1], nucleus))
    out = model.generate(x, 30, stop_token=3)[:, 4:]
    for row in out.tolist():
        assert 3 not in row or set(row[row.index(3):]) == {3}
    assert small().generate(x[:1], 50, temperature=0, stop_token=small().generate(x[:1], 1, temperature=0)[0, -1].item()).shape == (1, 5)


def test_generate_restores_training_mode_and_refuses_nonsense():
    model = small(dropout=0.5).train()
    model.generate(tokens(1, 3), 2)
    assert model.training
    for bad in (dict(temperature=-1), dict(top_k=0), dict(top_p=0.0), dict(top_p=1.5)):
        with pytest.raises(ValueError):
            model.generate(tokens(1, 3), 2, **bad)
    with pytest.raises(ValueError, match='at least one token'):
        model.generate(torch.zeros(1, 0, dtype=torch.long), 2)


# ---- configs

@pytest.mark.parametrize('kw, word', [(dict(n_embd=10, n_head=4), 'n_head=5'), (dict(attn='mha'), 'mssa'), (dict(gelu='relu'), 'tanh'), (dict(n_layer=0), 'n_layer'),
                                      (dict(attn='mhsa', tie_out=True), 'mssa'), (dict(dropout=1.0), 'dropout')])
def test_impossible_configs_say_why(kw, word):
    with pytest.raises(ValueError, match=word):
        AoTConfig(**kw)


def test_too_many_tokens_are_refused():
    with pytest.raises(ValueError, match='block_size=16'):
        small()(tokens(1, 17))
