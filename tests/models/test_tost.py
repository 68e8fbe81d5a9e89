"""ToST equals the authors' code, operator and networks; the operator is a gradient step on R_var, and no cost of it
grows faster than the number of tokens."""
import json
import math

import pytest
import torch
from helpers import (HARD, ROOT, SHORT, column, config_of, equal, fails, go, golden, golden_pictures, golden_weights,
                     losses, memorize, read_last, same_tokens, text_network, tokens, weights, wild)

import analyze
import eval as scores
from analysis import layers
from engine import official, optim
from engine.generate import Past
from model_tost import TSSA, ToST, ToSTConfig
from scoring.watch import train_flops
from tasks.text import TextSplit


def same_gradient(p, want):
    """Fails unless the gradient of p is the one that a golden file describes. Their temp is (K, 1), ours (K,)."""
    assert p.grad.numel() == math.prod(want['shape'])
    assert p.grad.flatten()[:4].tolist() == pytest.approx(want['first4'], rel=1e-5, abs=1e-6)
    assert p.grad.abs().sum().item() == pytest.approx(want['sum_abs'], rel=1e-5, abs=1e-5)


# ---- the operator

CASES = json.loads((ROOT / 'tests' / 'golden' / 'tost_operator.json').read_text())['cases']
SCALED = dict(layer_scale=1.0)
NAMES = {'c_attn': 'U', 'c_proj': 'W', 'qkv': 'U', 'to_out.0': 'W', 'denom_bias': 'b'}


@pytest.mark.parametrize('i', range(len(CASES)))
def test_the_operator_and_its_gradients_equal_the_released_ones(i):
    g, c = CASES[i], CASES[i]['constructor']
    kind = {'block_size': c['block_size']} if g['kind'] == 'causal' else {'image_size': 16}
    attn = TSSA(ToSTConfig(n_embd=c['dim'], n_head=c['heads'], bias=c['bias'], **SCALED, **kind))
    sd, shape = golden_weights(g['state_dict']), (c['batch'], c['tokens'], c['dim'])
    attn.load_state_dict(official.rename(sd, NAMES) | {'temp': sd['temp'].flatten(), 'gamma': torch.ones(c['dim'])})
    z, factor = (torch.randn(shape, generator=torch.Generator().manual_seed(seed + i)) for seed in (70, 90))
    z = (8 * z).requires_grad_()
    out = attn(z)
    same_tokens(out, g['output'])
    (out * factor).sum().backward()
    same_gradient(z, g['input_grad'])
    for name, want in official.rename(g['parameter_grads'], NAMES).items():
        same_gradient(attn.get_parameter(name), want)


@pytest.mark.parametrize('causal', [True, False])
def test_with_memberships_held_fixed_the_operator_is_a_gradient_step_on_r_var(causal, monkeypatch):
    """-N times the gradient in the coordinates w, with f(x) = log(1 + x). In a text, token t takes -t times that of
    the beginning 1 .. t."""
    torch.manual_seed(0)
    N, K, p = 7, 3, 4
    kind = dict(block_size=N) if causal else dict(image_size=16)
    attn = TSSA(ToSTConfig(n_embd=12, n_head=K, bias=True, **SCALED, **kind))
    Pi, z = torch.rand(1, N, K, 1).softmax(2), 3 * torch.randn(1, N, 12)
    monkeypatch.setattr(attn, 'memberships', lambda e: Pi)
    w = attn.U(z).view(N, K, p).detach().requires_grad_()
    step = torch.empty(N, K, p)
    for t in range(N):
        n = t + 1 if causal else N
        members = Pi[0, :n].sum(0)                                      # (K, 1)
        moments = (Pi[0, :n] * w[:n].square()).sum(0) / members         # (K, p)
        r_var = (members / n * moments.log1p()).sum() / 2
        step[t] = -n * torch.autograd.grad(r_var, w)[0][t]
    assert torch.allclose(attn(z)[0], attn.W(step.flatten(1)), atol=1e-5)


def test_a_token_belongs_to_the_subspace_that_holds_most_of_its_energy():
    attn = TSSA(ToSTConfig(n_embd=12, n_head=3, image_size=16))
    e = torch.ones(1, 6, 3, 4)
    for j in range(6):
        e[0, j, j % 3] = 9
    Pi = attn.memberships(e)[0, :, :, 0]
    assert torch.allclose(Pi.sum(1), torch.ones(6)) and Pi.argmax(1).tolist() == [0, 1, 2, 0, 1, 2]


def saved_for_backward(N):
    """Numbers that a training step of TSSA on N tokens keeps for its backward pass."""
    attn, kept = TSSA(ToSTConfig(n_embd=8, n_head=2, block_size=N)), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        attn(torch.randn(2, N, 8))
    return sum(kept)


def test_memory_and_operations_are_linear_in_the_number_of_tokens():
    a, b, c = map(saved_for_backward, (100, 200, 400))
    assert c - b == 2 * (b - a) > 0
    one, two = (train_flops(ToST(ToSTConfig(n_layer=2, n_head=2, n_embd=16, vocab_size=11, block_size=N)))
                for N in (64, 128))
    assert two == 2 * one > 0


def test_long_sums_keep_their_precision_in_bfloat16():
    """Also if they grow by one token at a time: a sum that is itself in bfloat16 stops growing at some hundred tokens
    of equal size."""
    torch.manual_seed(0)
    attn, one_by_one = TSSA(ToSTConfig(n_embd=16, n_head=2, block_size=1500, **SCALED)), []
    z = torch.randn(1, 1500, 16)
    torch.nn.init.constant_(attn.temp, 200.0)  # so that the small shares of late tokens count
    whole = attn(z)
    with torch.autocast('cpu', torch.bfloat16), torch.no_grad():
        half, attn.past = attn(z), Past(1500)
        for attn.past.first in range(1500):
            one_by_one.append(attn(z[:, attn.past.first:attn.past.first + 1]))
    for found in (half, torch.cat(one_by_one, 1)):
        assert ((found.float() - whole).norm(dim=2) / whole.norm(dim=2))[:, -300:].mean() < 0.006


# ---- text


def golden_text(name, sd=None, **settings):
    """(network, golden file, token ids, targets), by the golden file's recipe."""
    made, g = golden(name)
    model = ToST.from_official(made if sd is None else sd, n_head=g['constructor']['n_head'], **settings)
    return model.eval(), g, *(torch.tensor(g['input'][k]) for k in ('tokens', 'targets'))


@pytest.mark.parametrize('name', ['tost_lang', 'tost_lang_bias_false'])
def test_text_equals_the_released_code(name):
    model, g, x, y = golden_text(name)
    out = g['outputs']
    logits, loss = model(x, y)
    for place, key in ((0, 'logits_first_position'), (-1, 'logits_last_position')):
        assert (logits[:, place] - torch.tensor(out[key])).abs().max() < 1e-5
    assert loss.item() == pytest.approx(out['loss'], abs=1e-5)
    loss.backward()
    same_gradient(model.embed.tok_emb.weight, out['token_embedding_grad'])
    for name, want in official.rename(out['parameter_grads_of_layer_0'], NAMES).items():
        same_gradient(model.layers[0].attn.get_parameter(name), want)
    z = model.embed(x)
    for layer, want in zip(model.layers, out['last_token_of_first_row_after_each_layer'], strict=True):
        z = layer(z)
        assert (z[0, -1] - torch.tensor(want)).abs().max() < 1e-5
    assert model.num_params() == g['parameter_count']['all']
    assert all(getattr(model.config, k) == v for k, v in g['constructor'].items() if k != 'TSSA')


@pytest.mark.parametrize('name', ['tost_lang', 'tost_lang_bias_false'])
def test_weights_of_text_go_both_ways(name):
    (sd, g), (model, *_) = golden(name), golden_text(name)
    back = model.to_official()
    assert {k: list(v.shape) for k, v in back.items()} == {row[0]: row[1] for row in g['state_dict']}
    assert equal(back, sd)
    nested = {'model': {f'_orig_mod.{k}': v for k, v in sd.items()}, 'iter_num': 3}
    assert equal(golden_text(name, nested)[0].state_dict(), model.state_dict())


@pytest.mark.parametrize('change, word', [
    ({'transformer.h.1.attn.temp': None}, 'h.1.attn.temp: missing'), ({'surprise': torch.ones(1)}, 'surprise'),
    ({'transformer.h.0.attn.denom_bias': torch.ones(3, 5, 1)}, r'denom_bias: \(3, 5, 1\), expected \(3, 12, 1\)'),
    ({'transformer.wte.weight': torch.ones(23, 24)}, 'lm_head.weight differs')])
def test_what_does_not_fit_is_named(change, word):
    sd = golden('tost_lang')[0] | change
    with pytest.raises(ValueError, match=word):
        golden_text('tost_lang', {k: v for k, v in sd.items() if v is not None})


@pytest.mark.parametrize('shape, count, without_positions', [
    ((12, 768, 12), 110_384_016, 109_597_584), ((24, 1024, 16), 304_711_040, 303_662_464),
    ((36, 1280, 20), 656_447_440, 655_136_720)])
def test_the_released_sizes_of_text(shape, count, without_positions):
    n_layer, n_embd, n_head = shape
    with torch.device('meta'):
        model = ToST(ToSTConfig(n_layer=n_layer, n_embd=n_embd, n_head=n_head, vocab_size=50304))
    assert model.num_params() == count
    assert model.num_params() - model.embed.pos_emb.weight.numel() == without_positions


def test_it_starts_as_gpt2_and_as_the_identity():
    torch.manual_seed(0)
    model = ToST(ToSTConfig(n_layer=8, n_head=4, n_embd=192, vocab_size=512, block_size=64, bias=True))
    for name, p in model.named_parameters():
        if p.dim() == 2:
            small = name.endswith(('W.weight', 'down.weight'))
            assert p.std().item() == pytest.approx(0.005 if small else 0.02, rel=0.05), name  # 0.02 / sqrt(2 x 8)
        else:
            first = 1e-5 if 'gamma' in name else float(name.endswith(('temp', 'norm.weight', '1.weight', '2.weight')))
            assert torch.equal(p, torch.full_like(p, first)), name


def test_what_decays_and_what_muon_takes():
    """Matrices, as in the authors' code; neither temp, nor the biases of positions, nor scales."""
    model = text_network('tost', bias=True)
    matrices = {p for p in model.parameters() if p.dim() == 2}
    assert not any(k.endswith(('temp', '.b')) or 'gamma' in k for k, p in model.named_parameters() if p in matrices)
    for name in ('adamw', 'muon'):
        groups = [group for optimizer in optim.build(model, name, lr=1e-3) for group in optimizer.param_groups]
        assert {p for group in groups if group['weight_decay'] for p in group['params']} == matrices


@pytest.mark.parametrize('stop', [1, 4])
def test_a_run_that_is_stopped_goes_on_bit_for_bit(stop, tiny, tmp_path, monkeypatch):
    words = [*tiny, *HARD, '--model=tost', '--layer_scale=0.1']
    go(*words, f'--out_dir={tmp_path}/whole')
    batches = TextSplit.batches

    def cut(self, n, seed, share, first, last):
        yield from batches(self, n, seed, share, first, stop)
        raise KeyboardInterrupt
    monkeypatch.setattr(TextSplit, 'batches', cut)
    with pytest.raises(KeyboardInterrupt):
        go(*words, f'--out_dir={tmp_path}/a', '--checkpoint_minutes=1e-9')
    monkeypatch.undo()
    assert read_last(tmp_path / 'a')['step'] == stop
    go('--init_from=resume', f'--out_dir={tmp_path}/a')
    assert losses(tmp_path / 'a') == losses(tmp_path / 'whole')
    assert equal(weights(tmp_path / 'a'), weights(tmp_path / 'whole'))


def test_what_is_seen_inside_a_layer_is_what_the_layer_computes():
    model = wild(text_network('tost', **SCALED))
    for layer, _, _, normed, _, half, after in layers.inside(model, tokens(2, 16)):
        assert torch.allclose(half + layer.mlp(layer.norm2(half)), after, atol=1e-6)


def test_it_is_looked_into_but_has_no_attention_to_draw(tiny, tmp_path, capsys):
    go(*tiny, '--model=tost', '--max_iters=0', f'--out_dir={tmp_path}/a')
    words = f'--ckpt={tmp_path}/a', tiny[0]
    analyze.main(['layers', *words, '--num_samples=2', f'--out={tmp_path}/layers.png'])
    assert (tmp_path / 'layers.png').exists()
    said = fails(capsys, analyze.main, 'attention', *words, '--start=of tokens', f'--out={tmp_path}/attention.png')
    assert 'TSSA compares no tokens' in said and not (tmp_path / 'attention.png').exists()


# ---- pictures

PICTURES = dict(image_size=(16, 24), patch_size=4, num_classes=5, n_layer=2, n_head=2, n_embd=16, layer_scale=1.0)


def tost_of_pictures(**settings):
    torch.manual_seed(0)
    return ToST(ToSTConfig(**PICTURES | settings)).eval()


def test_pictures_equal_the_released_code_layer_by_layer():
    model, g, x = golden_pictures('tost_vision')
    out, y = g['outputs'], torch.tensor(g['input']['classes'])
    logits, loss = model(x, y)
    assert (logits - torch.tensor(out['logits'])).abs().max() < 1e-5
    assert loss.item() == pytest.approx(out['loss'], abs=1e-5)
    same_tokens(model.embed.stem(x).flatten(2).mT, out['after_patch_embedding'])
    z, blocks = model.embed(x), out['after_each_block']
    for layer, want in zip(model.layers, blocks):
        z = layer(z)
        same_tokens(z, want)
    z = torch.cat((model.read.cls.expand(2, -1, -1), z), 1)
    for layer, want in zip(model.read.layers, blocks[2:], strict=True):
        z = layer(z)
        same_tokens(z, want)
    assert model.num_params() == g['parameter_count']['all']


@pytest.mark.parametrize('gone', [
    'cls_attn_blocks.1.attn.qkv.bias', 'blocks.0.attn.temp', 'patch_embed.proj.2.1.running_var'])
def test_what_is_missing_of_pictures_is_named(gone):
    with pytest.raises(ValueError, match=f'{gone}: missing'):
        golden_pictures('tost_vision', {k: v for k, v in golden('tost_vision')[0].items() if k != gone})


@pytest.mark.parametrize('settings, count', [
    (dict(n_embd=192, n_head=4), 5_769_328), (dict(n_embd=384, n_head=8), 22_589_944),
    (dict(n_layer=24, n_embd=512, n_head=8), 71_481_064), (dict(n_embd=192, n_head=4, patch_size=8), 5_759_560)])
def test_the_released_sizes_of_pictures(settings, count):
    with torch.device('meta'):
        assert ToST(ToSTConfig(image_size=224, bias=True, **settings)).num_params() == count


def test_no_patch_is_before_another():
    """What TSSA makes of tokens in another order is the same tokens in that order."""
    attn, z = tost_of_pictures().layers[0].attn, torch.randn(2, 24, 16)
    order = torch.randperm(24, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(attn(z[:, order]), attn(z)[:, order], atol=1e-6)


def test_pictures_of_any_shape_that_patches_fill_can_be_memorized():
    for settings in (dict(), dict(patch_size=2, image_size=(8, 6), channels=1), dict(patch_size=8, bias=True)):
        model = tost_of_pictures(**settings).train()
        c = model.config
        x, y = torch.randn(4, c.channels, *c.image_size), torch.tensor([0, 1, 2, 3])
        assert model.features(x).shape == (4, 16) and model(x)[0].shape == (4, 5)
        memorize(model, x, y, 0.1)


def test_pictures_are_learned_and_scored_on_the_command_line(pictures_data, tmp_path, capsys):
    words = [f'--data_dir={pictures_data}', '--dataset=grey', '--model=tost', '--patch_size=2', '--layer_scale=1']
    go(*words, *SHORT, '--max_iters=80', '--eval_interval=80', '--learning_rate=1e-2', '--flip=false',
       f'--out_dir={tmp_path}/a')
    first, last = column(tmp_path / 'a', 'val')
    assert last < first - 0.3 and config_of(tmp_path / 'a')['channels'] == 1
    capsys.readouterr()
    scores.main([f'--ckpt={tmp_path}/a', f'--data_dir={pictures_data}', '--split=val', '--dtype=float32'])
    assert f'loss {last:.4f}' in capsys.readouterr().out


@pytest.mark.parametrize('kw, word', [
    (dict(n_embd=10, n_head=4), 'n_head'), (dict(n_layer=0), 'n_layer'),
    (dict(image_size=12, patch_size=6), 'patch_size'), (dict(image_size=16, patch_size=(4, 8)), 'patch_size'),
    (dict(image_size=20, patch_size=8), 'divisible by patch_size')])
def test_impossible_configs_say_why(kw, word):
    with pytest.raises(ValueError, match=word):
        ToSTConfig(**kw)
