"""CRATE-LM, which is CRATE-alpha on text: equal to the authors' code through its own weights, gradients included; its
files both ways; how it starts; a run that was stopped."""
import pytest
import torch
from helpers import config_of, equal, go, golden, losses, same_tokens, weights

from model_crate import CRATE
from model_crate_alpha import CRATEAlpha, CRATEAlphaConfig

LM = dict(image_size=0, decoupled=False, skip=False)


def golden_text(sd=None, **settings):
    """(network, golden file, token ids, targets), by the golden file's recipe."""
    made, g = golden('crate_lm')
    model = CRATEAlpha.from_official(made if sd is None else sd, **dict(n_head=3) | settings)
    return model.eval(), g, *(torch.tensor(g['input'][k]) for k in ('tokens', 'targets'))


# ---- the authors' code


def test_crate_lm_equals_the_released_code_layer_by_layer():
    model, g, x, y = golden_text()
    (logits, loss), want = model(x, y), g['outputs']
    assert (logits[:, -1] - torch.tensor(want['logits_last_position'])).abs().max() < 1e-5
    assert (logits[:, 0] - torch.tensor(want['logits_first_position'])).abs().max() < 1e-5
    assert loss.item() == pytest.approx(want['loss'], abs=1e-5)
    z = model.embed(x)
    for l, layer in enumerate(model.layers):
        attended = layer.attn(layer.norm1(z))
        same_tokens(attended, want['attention_output_of_each_layer'][l])
        codes, z = layer.ista.code(layer.norm2(z + attended)), layer(z)
        token = torch.tensor(want['last_token_of_first_row_after_each_layer'][l])
        assert (z[0, -1] - token).abs().max() < 1e-5
        share = want['zero_fraction_of_the_codes_of_each_layer'][l]
        assert (codes == 0).float().mean().item() == pytest.approx(share, abs=1.5 / codes.numel())
    assert model.num_params() == g['parameter_count']['all']
    assert model.num_params() - model.embed.pos_emb.weight.numel() == g['parameter_count']['without positions']
    assert all(getattr(model.config, k) == g['constructor'][k] for k in g['constructor'])


def test_gradients_equal_the_released_codes():
    model, g, x, y = golden_text()
    model(x, y)[1].backward()
    for grad, name in ((model.embed.tok_emb.weight.grad, 'token_embedding_grad'),
                       (model.layers[0].ista.D.grad.T, 'dictionary_grad_of_layer_0 (atoms, width)')):
        want = g['outputs'][name]
        assert list(grad.shape) == want['shape']
        assert (grad.flatten()[:4] - torch.tensor(want['first4'])).abs().max() < 1e-5
        assert grad.abs().sum().item() == pytest.approx(want['sum_abs'], rel=1e-5)


def test_one_layer_equals_the_released_codes():
    """With embeddings and a last LayerNorm that it does not have, so that it is a file."""
    layer = golden('crate_lm')[1]['layer']
    c, random = layer['constructor'], torch.Generator()
    sd = {f'transformer.h.0.{name}': 0.05 * torch.randn(shape, generator=random.manual_seed(1000 + i))
          + (fill == 'normal+1') for i, (name, shape, fill, first) in enumerate(layer['state_dict'])}
    sd |= {f'transformer.ln_f.{name}': torch.ones(c['dim']) for name in ('weight', 'bias')}
    sd |= {f'{name}.weight': torch.ones(5, c['dim']) for name in ('transformer.wte', 'transformer.wpe', 'lm_head')}
    model = CRATEAlpha.from_official(sd, n_head=c['heads'])
    z = torch.randn(c['batch'], c['tokens'], c['dim'], generator=random.manual_seed(70))
    same_tokens(z + model.layers[0].attn(model.layers[0].norm1(z)), layer['after_attention'])
    same_tokens(model.layers[0](z), layer['output'])


@pytest.mark.parametrize('layers, heads, width, count, without_positions', [
    (1, 4, 128, 6_669_184, 6_538_112), (2, 4, 128, 6_768_128, 6_637_056), (3, 4, 128, 6_867_072, 6_736_000),
    (6, 12, 768, 60_678_144, 59_891_712), (12, 12, 768, 81_934_848, 81_148_416)])
def test_the_released_sizes(layers, heads, width, count, without_positions):
    with torch.device('meta'):
        model = CRATEAlpha(CRATEAlphaConfig(n_layer=layers, n_head=heads, n_embd=width, vocab_size=50304, **LM))
    assert model.num_params() == count
    assert model.num_params() - model.embed.pos_emb.weight.numel() == without_positions


# ---- the authors' files


def test_weights_go_both_ways():
    sd, g = golden('crate_lm')
    model, _, x, y = golden_text()
    back = model.to_official()
    assert back.keys() == sd.keys() and all(torch.equal(back[k], sd[k]) for k in sd)
    masks = {f'transformer.h.{l}.attn.bias': torch.ones(1, 1, 12, 12).tril() for l in range(2)}  # of their notebook
    for variant in ({'model': {f'_orig_mod.{k}': v for k, v in sd.items()}, 'iter_num': 3, 'model_args': {'n_head': 3}},
                    sd | masks, {f'module._orig_mod.{k}': v for k, v in sd.items()}):
        assert equal(golden_text(variant)[0].state_dict(), model.state_dict())
    for other in (dict(lam=0.5), dict(skip=True), dict(steps=3)):  # settings that no tensor tells reach the network
        assert not torch.equal(golden_text(**other)[0](x)[0], model(x)[0])


@pytest.mark.parametrize('change, message', [
    ({'transformer.h.1.ista.weight': None}, 'h.1.ista.weight: missing'), ({'surprise': torch.ones(1)}, 'surprise'),
    ({'transformer.h.1.ista.weight': torch.ones(24, 24)}, r'h.1.ista.weight: \(24, 24\)'),
    ({'transformer.h.1.attn.c_proj.bias': None}, 'h.1.attn.c_proj.bias: missing'),
    ({'transformer.wpe.weight': None}, 'transformer.wpe.weight: missing'),
    ({'transformer.wte.weight': torch.ones(23, 24)}, 'lm_head.weight differs')])
def test_what_does_not_fit_is_named(change, message):
    sd = golden('crate_lm')[0] | change
    with pytest.raises(ValueError, match=message):
        golden_text({k: v for k, v in sd.items() if v is not None})


def test_files_of_another_network_say_what_to_type():
    with pytest.raises(ValueError, match='of a CRATE-GPT, with square dictionaries: give --model=crate'):
        golden_text(golden('crate_gpt')[0])
    with pytest.raises(ValueError, match='vocab_size=5: transformer.wte.weight: missing'):
        golden_text(golden('crate_alpha')[0], n_layer=1, n_embd=24, vocab_size=5)
    with pytest.raises(ValueError, match='of a CRATE-LM, which reads text: give --image_size=0'):
        golden_text(image_size=16, patch_size=4)
    with pytest.raises(ValueError, match='ln_f.bias: .*expected none'):
        CRATE.from_official(golden('crate_lm')[0], n_head=3, image_size=0, patch_size=0)


# ---- how it starts, and a run of it


def test_it_starts_as_the_released_code_does():
    """By deviation and bounds; a uniform variable has its bound over sqrt(3)."""
    torch.manual_seed(0)
    model = CRATEAlpha(CRATEAlphaConfig(n_layer=8, n_head=4, n_embd=192, vocab_size=512, block_size=256, **LM))
    bound = (6 / 192) ** 0.5
    for name, p in model.named_parameters():
        if p.dim() == 1:
            assert torch.equal(p, torch.full_like(p, float('norm' in name and name.endswith('weight')))), name
        elif name.endswith('ista.D'):
            assert 0.999 * bound < p.abs().max() <= bound and p.std().item() == pytest.approx(bound / 3 ** 0.5, rel=0.01)
        else:
            std = 0.005 if name.endswith('W.weight') else 0.02  # 0.02 / sqrt(2 x 8)
            assert p.std().item() == pytest.approx(std, rel=0.03), name
            assert (p.abs() < std).float().mean().item() == pytest.approx(0.683, abs=0.015)


def test_one_head_has_an_output_map_on_text_alone():
    for image_size in (0, 16):
        model = CRATEAlpha(CRATEAlphaConfig(n_layer=1, n_head=1, n_embd=16, image_size=image_size))
        assert (model.layers[0].attn.W is None) == bool(image_size)


@pytest.mark.parametrize('more', [[], ['--decoupled=false', '--skip=false']])
def test_a_run_that_was_stopped_is_the_run_that_was_not(more, tiny, tmp_path, quick):
    words = [*tiny, '--model=crate_alpha', '--dropout=0.2', '--optimizer=muon', *more]
    go(*words, f'--out_dir={tmp_path}/whole')
    go(*words, '--max_iters=3', '--lr_decay_iters=6', f'--out_dir={tmp_path}/a')
    go('--init_from=resume', '--max_iters=6', f'--out_dir={tmp_path}/a')
    assert config_of(tmp_path / 'a')['image_size'] == 0 and config_of(tmp_path / 'a')['vocab_size'] == 256
    assert equal(weights(tmp_path / 'a'), weights(tmp_path / 'whole'))
    assert losses(tmp_path / 'a') == losses(tmp_path / 'whole')
