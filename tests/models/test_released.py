"""Every network equals the authors' code through its own weights, layer by layer. A golden file g
has the outputs of their code."""
import json

import pytest
import torch
from helpers import ROOT, agree, golden, golden_pictures, golden_text, golden_weights, noise_of

from model_crate_alpha import CRATEAlpha
from model_tost import TSSA, ToSTConfig
from weights import official

# ---- what layers do


def of_each(layers, z, compute):
    """compute(layer, z) of each layer, for the tokens z before it."""
    results = []
    for layer in layers:
        results.append(compute(layer, z))
        z = layer(z)
    return results


def after_each(layers, z):
    """The tokens after each layer."""
    return of_each(layers, z, lambda layer, z: layer(z))


def attention_output(layer, z):
    return layer.attn(layer.norm1(z))


def after_attention(layer, z):
    return z + attention_output(layer, z)


def noise(shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# ---- text

GPT2 = ['gpt_bias_true', 'gpt_bias_false']
TOST = ['tost_lang', 'tost_lang_bias_false']
WHITE_BOXES = ['crate_gpt', 'crate_lm', *TOST]


@pytest.mark.parametrize('name', GPT2 + WHITE_BOXES)
def test_logits_and_loss_of_text(name):
    model, g, x, y = golden_text(name)
    expected = g['outputs']

    logits, loss = model(x, y)

    agree(logits[:, -1], expected['logits_last_position'])
    agree(loss, expected['loss'])


@pytest.mark.parametrize('name', GPT2 + WHITE_BOXES)
def test_settings_of_text_are_read_off_the_weights(name):
    model, g, _, _ = golden_text(name)

    for setting, value in g['constructor'].items():
        if setting != 'TSSA':
            assert getattr(model.config, setting) == value


@pytest.mark.parametrize('name', GPT2)
def test_tokens_of_gpt2(name):
    model, g, x, _ = golden_text(name)
    expected = g['outputs']['tokens']

    z = model.embed(x)
    after_layer_0, after_layer_1, normed = after_each([*model.layers, model.read.norm], z)

    agree(z, expected['embeddings'])
    agree(after_layer_0, expected['layer0.output'])
    agree(after_layer_1, expected['layer1.output'])
    agree(normed, expected['final_norm'])


@pytest.mark.parametrize('name', GPT2)
def test_targets_of_minus_one_do_not_count(name):
    model, g, x, y = golden_text(name)

    y[:, :3] = -1

    agree(model(x, y)[1], g['outputs']['loss_first_3_targets_of_each_row_ignored'])


@pytest.mark.parametrize('name', WHITE_BOXES)
def test_last_tokens_of_white_boxes(name):
    model, g, x, _ = golden_text(name)

    tokens = after_each(model.layers, model.embed(x))

    last_tokens = [z[0, -1] for z in tokens]
    agree(last_tokens, g['outputs']['last_token_of_first_row_after_each_layer'])


# ---- CRATE-LM


def test_attention_of_crate_lm():
    model, g, x, _ = golden_text('crate_lm')

    results = of_each(model.layers, model.embed(x), attention_output)

    agree(results, g['outputs']['attention_output_of_each_layer'])


def test_gradients_of_crate_lm():
    model, g, x, y = golden_text('crate_lm')
    expected = g['outputs']

    model(x, y)[1].backward()

    D_gradient = model.layers[0].ista.D.grad
    agree(model.embed.tok_emb.weight.grad, expected['token_embedding_grad'])
    agree(D_gradient.T, expected['dictionary_grad_of_layer_0 (atoms, width)'])


def test_one_layer_of_crate_lm():
    """The golden file has its weights alone. They become a file of a network with embeddings and a
    last LayerNorm of ones, which do not matter."""
    g = golden('crate_lm')[1]['layer']
    c = g['constructor']
    sd = {}
    for name, tensor in golden_weights(g['state_dict']).items():
        sd[f'transformer.h.0.{name}'] = tensor
    for name in ('transformer.wte', 'transformer.wpe', 'lm_head'):
        sd[f'{name}.weight'] = torch.ones(5, c['dim'])
    for name in ('weight', 'bias'):
        sd[f'transformer.ln_f.{name}'] = torch.ones(c['dim'])
    layer = CRATEAlpha.from_official(sd, n_head=c['heads']).layers[0]
    z = noise((c['batch'], c['tokens'], c['dim']), seed=70)

    agree(after_attention(layer, z), g['after_attention'])
    agree(layer(z), g['output'])


# ---- the operator of ToST

CASES = json.loads((ROOT / 'tests' / 'golden' / 'tost_operator.json').read_text())['cases']
# {a name of the authors: ours}
TOST_NAMES = {
    'c_attn': 'U',
    'qkv': 'U',
    'c_proj': 'W',
    'to_out.0': 'W',
    'denom_bias': 'b',
}


def agree_on_gradients(attn, expected):
    """Fails unless the weights of TSSA have these gradients, {their name: golden numbers}."""
    for name, gradient in official.rename(expected, TOST_NAMES).items():
        agree(attn.get_parameter(name).grad, gradient)


@pytest.fixture(params=range(len(CASES)))
def tssa(request):
    """(TSSA, golden numbers, its input, its output), after a backward pass."""
    g = CASES[request.param]
    c = g['constructor']
    settings = dict(n_embd=c['dim'], n_head=c['heads'], bias=c['bias'], layer_scale=1.0)
    if g['kind'] == 'causal':
        settings['block_size'] = c['block_size']
    else:
        settings['image_size'] = 16
    attn = TSSA(ToSTConfig(**settings))
    sd = official.rename(golden_weights(g['state_dict']), TOST_NAMES)
    sd['temp'] = sd['temp'].flatten()
    sd['gamma'] = torch.ones(c['dim'])  # the authors have it in the layer
    attn.load_state_dict(sd)

    shape = c['batch'], c['tokens'], c['dim']
    z = 8 * noise(shape, seed=70 + request.param)
    z.requires_grad_()
    out = attn(z)
    (out * noise(shape, seed=90 + request.param)).sum().backward()
    return attn, g, z, out


def test_output_of_tssa(tssa):
    _, g, _, out = tssa

    agree(out, g['output'])


def test_gradients_of_tssa(tssa):
    attn, g, z, _ = tssa

    agree(z.grad, g['input_grad'])
    agree_on_gradients(attn, g['parameter_grads'])


@pytest.mark.parametrize('name', TOST)
def test_gradients_of_tost(name):
    model, g, x, y = golden_text(name)
    expected = g['outputs']

    model(x, y)[1].backward()

    agree(model.embed.tok_emb.weight.grad, expected['token_embedding_grad'])
    agree_on_gradients(model.layers[0].attn, expected['parameter_grads_of_layer_0'])


# ---- classifiers


@pytest.fixture(params=['crate_classifier', 'crate_classifier_mean_pool',
                        'crate_classifier_one_head'])
def crate(request):
    """(CRATE, golden file, pictures)"""
    c = golden(request.param)[1]['constructor']
    return golden_pictures(request.param, pool=c['pool'], eta=c['ista'])


def test_logits_of_crate(crate):
    model, g, x = crate

    agree(model(x)[0], g['outputs']['logits'])


def test_tokens_of_crate(crate):
    model, g, x = crate
    expected = g['outputs']['tokens']

    z = model.embed(x)
    agree(z, expected['tokens_before_layers'])
    for l, layer in enumerate(model.layers):
        agree(after_attention(layer, z), expected[f'layer{l}.after_attention_residual'])
        z = layer(z)
        agree(z, expected[f'layer{l}.after_ista'])


def test_logits_of_crate_alpha():
    model, g, x = golden_pictures('crate_alpha')

    agree(model(x)[0], g['outputs']['logits'])


def test_sparse_coding_of_crate_alpha():
    def coded_class_token(layer, z):
        return layer.ista(layer.norm2(after_attention(layer, z)))[0, 0]
    model, g, x = golden_pictures('crate_alpha')

    results = of_each(model.layers, model.embed(x), coded_class_token)

    name = 'class_token_of_first_picture_out_of_each_sparse_coding_block'
    agree(results, g['outputs'][name])


def golden_vit(pool, **settings):
    """(ViT, outputs of the authors, pictures). The golden file has the names of the pool 'mean'."""
    sd, _ = golden('vit')
    if pool == 'cls':
        sd = {name.replace('fc_norm', 'norm'): tensor for name, tensor in sd.items()}
    model, g, x = golden_pictures('vit', sd, **settings)
    key = {'cls': 'global_pool_false', 'mean': 'global_pool_true'}[pool]
    return model, g['outputs'][key], x


@pytest.mark.parametrize('pool, final_norms, key', [
    ('cls', 1, 'logits'),
    ('mean', 1, 'logits_if_final_norm_applied_once'),
    ('mean', 2, 'logits'),  # timm 1.0.9 applies fc_norm twice
])
def test_logits_of_vit(pool, final_norms, key):
    model, outputs, x = golden_vit(pool, final_norms=final_norms)

    agree(model(x)[0], outputs[key])


@pytest.mark.parametrize('pool', ['cls', 'mean'])
def test_tokens_of_vit(pool):
    model, outputs, x = golden_vit(pool)
    expected = outputs['tokens']

    z = model.embed(x)
    after_layer_0, after_layer_1 = after_each(model.layers, z)

    agree(z, expected['tokens_before_layers'])
    agree(after_layer_0, expected['layer0.output'])
    agree(after_layer_1, expected['layer1.output'])


def test_logits_and_loss_of_tost_on_pictures():
    model, g, x = golden_pictures('tost_vision')

    logits, loss = model(x, torch.tensor(g['input']['classes']))

    agree(logits, g['outputs']['logits'])
    agree(loss, g['outputs']['loss'])


def test_tokens_of_tost_on_pictures():
    model, g, x = golden_pictures('tost_vision')

    tokens = after_each(model.layers, model.embed(x))
    cls = model.read.cls.expand(2, -1, -1)
    with_cls = torch.cat((cls, tokens[-1]), dim=1)
    tokens += after_each(model.read.layers, with_cls)

    agree(model.embed.stem(x).flatten(2).mT, g['outputs']['after_patch_embedding'])
    agree(tokens, g['outputs']['after_each_block'])


# ---- CRATE of the segmentation demo: two linear maps are its classifier, mlp_head, then head


def golden_demo(*unwanted):
    """(CRATE, outputs of the authors, pictures) of the demo's file without names that begin so."""
    sd = {}
    for name, tensor in golden('crate_demo')[0].items():
        if not name.startswith(unwanted):
            sd[name] = tensor
    model, g, x = golden_pictures('crate_demo', {'model': sd})
    return model, g['outputs'], x


def test_the_maps_of_the_demo_become_one_classifier():
    model, outputs, x = golden_demo()

    key = 'head of that (never called by the released forward pass)'
    agree(model(x)[0], outputs[key])


def test_the_first_map_of_the_demo_is_a_classifier():
    model, outputs, x = golden_demo('head.')

    agree(model(x)[0], outputs['mlp_head (what the forward pass returns)'])


def test_without_a_classifier_the_demo_gets_one_of_zeros():
    model, _, x = golden_demo('mlp_head.', 'head.')

    assert torch.equal(model(x)[0], torch.zeros(2, 1000))


def test_tokens_of_the_demo():
    def keys(layer, z):
        return layer.attn.U(layer.norm1(z))
    model, outputs, x = golden_demo()
    z = model.embed(x)

    agree(after_each(model.layers, z), outputs['after_each_layer'])
    agree(of_each(model.layers, z, keys)[-1], outputs['keys_without_interpolation'])


# ---- masked autoencoders


@pytest.fixture(params=['crate_mae', 'vit_mae'])
def autoencoder(request):
    return request.param


@pytest.mark.parametrize('normalized, key', [
    (False, 'loss_norm_pix_false'),
    (True, 'loss_norm_pix_true'),
])
def test_losses_and_predictions_of_masked_autoencoders(autoencoder, normalized, key):
    model, g, x = golden_pictures(autoencoder, norm_pix_loss=normalized)
    expected = g['outputs']['pred']

    pred, loss = model(x, noise_of(g))

    agree(loss, g['outputs'][key])
    assert list(pred.shape) == expected['shape']
    agree(pred[:, 0, :16], expected['first16_per_sample'])
    agree(pred[:, -1, -16:], expected['last16_per_sample'])
    agree(pred.mean(), expected['mean'])
    agree(pred.std(), expected['std'])


def test_fixed_positions_of_masked_autoencoders(autoencoder):
    model, g, _ = golden_pictures(autoencoder)

    for table, expected in g['outputs']['fixed_position_embedding'].items():
        agree(model.to_official()[table], expected)


def test_tokens_of_crate_mae():
    model, g, x = golden_pictures('crate_mae')
    expected = g['outputs']['tokens']

    agree(model.embed.patch(x).flatten(2).mT, expected['patch_embedding'])
    z = model.embed(x, model.hide(noise_of(g)))
    agree(z, expected['tokens_before_encoder'])
    for l, layer in enumerate(model.layers):
        agree(after_attention(layer, z), expected[f'encoder{l}.after_attention_residual'])
        z = layer(z)
        agree(z, expected[f'encoder{l}.output'])

    y = model.norm(z)
    agree(y, expected['encoder_norm'])
    for l, layer in enumerate(model.decoder_layers):
        agree(layer.E(layer.norm1(y)), expected[f'decoder{l}.after_dictionary'])
        y = layer(y)
        agree(y, expected[f'decoder{l}.output'])
    agree(model.decoder_norm(y), expected['decoder_norm'])


def test_crate_mae_on_whole_pictures():
    model, g, x = golden_pictures('crate_mae')
    expected = g['outputs']['unmasked']
    last = model.layers[-1]

    w = last.attn.U(last.norm1(model.layers[:-1](model.embed(x))))

    agree(model.norm(model.layers(model.embed(x))), expected['encoder_norm_output'])
    agree(w, expected['last_encoder_layer_subspace_coordinates'])


def test_features_of_crate_mae_are_its_class_token():
    model, _, x = golden_pictures('crate_mae')

    assert torch.allclose(model.features(x), model.norm(model.layers(model.embed(x)))[:, 0])


def test_tokens_of_vit_mae():
    model, g, x = golden_pictures('vit_mae')
    expected = g['outputs']['tokens']
    decoder_inputs = []

    def note(layer, args):
        decoder_inputs.append(args[0])
    model.decoder_layers[0].register_forward_pre_hook(note)

    agree(model.embed.patch(x).flatten(2).mT, expected['patch_embedding'])
    z = model.embed(x, model.visible(noise_of(g)))
    agree(z, expected['tokens_before_encoder'])
    for l, layer in enumerate(model.layers):
        z = layer(z)
        agree(z, expected[f'encoder{l}.output'])
    agree(model.norm(z), expected['encoder_norm'])

    model(x, noise_of(g))
    y = decoder_inputs[0]
    agree(y, expected['tokens_before_decoder'])
    for l, layer in enumerate(model.decoder_layers):
        y = layer(y)
        agree(y, expected[f'decoder{l}.output'])
    agree(model.decoder_norm(y), expected['decoder_norm'])
