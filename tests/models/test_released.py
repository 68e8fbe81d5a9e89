"""Every network equals the authors' code through its own weights, layer by layer: golden numbers of their outputs."""
import json
import math

import pytest
import torch
from helpers import ROOT, agree, golden, golden_pictures, golden_text, golden_weights, noise_of

from engine import official
from model_crate_alpha import CRATEAlpha
from model_crate_mae import patchify
from model_tost import TSSA, ToSTConfig


def through(layers, z):
    """Tokens after each layer."""
    return [z := layer(z) for layer in layers]


def halves(layers, z, half):
    """half(layer, z) of each layer, for the tokens z before it."""
    return [half(layer, z) for layer, z in zip(layers, [z, *through(layers, z)])]


def attended(layer, z):
    return z + layer.attn(layer.norm1(z))


def zeros(tokens):
    return [(z == 0).float().mean() for z in tokens]


NAMES = {'c_attn': 'U', 'c_proj': 'W', 'qkv': 'U', 'to_out.0': 'W', 'denom_bias': 'b'}  # in ToST


def same_gradients(attn, wanted):
    for name, want in official.rename(wanted, NAMES).items():
        agree(attn.get_parameter(name).grad, want)


# ---- text


@pytest.mark.parametrize('name', ['gpt_bias_true', 'gpt_bias_false', 'crate_gpt', 'crate_lm', 'tost_lang',
                                  'tost_lang_bias_false'])
def test_logits_and_loss_of_text(name):
    model, g, x, y = golden_text(name)
    (logits, loss), want = model(x, y), g['outputs']
    agree([logits[:, -1], loss], [want['logits_last_position'], want['loss']])
    if name.startswith('gpt'):
        z = model.embed(x)
        after = through([*model.layers, model.read.norm], z)
        agree([z, *after], [want['tokens'][k] for k in ('embeddings', 'layer0.output', 'layer1.output', 'final_norm')])
        y[:, :3] = -1
        agree(model(x, y)[1], want['loss_first_3_targets_of_each_row_ignored'])
    else:
        after = through(model.layers, model.embed(x))
        agree([z[0, -1] for z in after], want['last_token_of_first_row_after_each_layer'])
    if name in ('crate_lm', 'tost_lang', 'tost_lang_bias_false'):
        agree(logits[:, 0], want['logits_first_position'])
        loss.backward()
        agree(model.embed.tok_emb.weight.grad, want['token_embedding_grad'])
        same_gradients(model.layers[0].attn, want.get('parameter_grads_of_layer_0', {}))
    assert all(getattr(model.config, k) == v for k, v in g['constructor'].items() if k != 'TSSA')


def test_sparsity_of_crate_on_text():
    model, g, x, _ = golden_text('crate_gpt')
    agree(zeros(through(model.layers, model.embed(x))), g['outputs']['zero_fraction_after_each_layer'])
    model, g, x, y = golden_text('crate_lm')
    want, z = g['outputs'], model.embed(x)
    agree(halves(model.layers, z, lambda layer, z: layer.attn(layer.norm1(z))), want['attention_output_of_each_layer'])
    codes = halves(model.layers, z, lambda layer, z: layer.ista.code(layer.norm2(attended(layer, z))))
    agree(zeros(codes), want['zero_fraction_of_the_codes_of_each_layer'])
    model(x, y)[1].backward()
    agree(model.layers[0].ista.D.grad.T, want['dictionary_grad_of_layer_0 (atoms, width)'])


def test_one_layer_of_crate_lm():
    """With embeddings and a last LayerNorm that it does not have, so that it is a file."""
    layer = golden('crate_lm')[1]['layer']
    c, sd = layer['constructor'], golden_weights(layer['state_dict'])
    sd = {f'transformer.h.0.{name}': t for name, t in sd.items()}
    sd |= {f'transformer.ln_f.{name}': torch.ones(c['dim']) for name in ('weight', 'bias')}
    sd |= {f'{name}.weight': torch.ones(5, c['dim']) for name in ('transformer.wte', 'transformer.wpe', 'lm_head')}
    model = CRATEAlpha.from_official(sd, n_head=c['heads'])
    z = torch.randn(c['batch'], c['tokens'], c['dim'], generator=torch.Generator().manual_seed(70))
    agree([attended(model.layers[0], z), model.layers[0](z)], [layer['after_attention'], layer['output']])


# ---- the operator of ToST

CASES = json.loads((ROOT / 'tests' / 'golden' / 'tost_operator.json').read_text())['cases']


@pytest.mark.parametrize('i', range(len(CASES)))
def test_tssa_and_its_gradients(i):
    g, c = CASES[i], CASES[i]['constructor']
    kind = {'block_size': c['block_size']} if g['kind'] == 'causal' else {'image_size': 16}
    attn = TSSA(ToSTConfig(n_embd=c['dim'], n_head=c['heads'], bias=c['bias'], layer_scale=1.0, **kind))
    sd, shape = golden_weights(g['state_dict']), (c['batch'], c['tokens'], c['dim'])
    attn.load_state_dict(official.rename(sd, NAMES) | {'temp': sd['temp'].flatten(), 'gamma': torch.ones(c['dim'])})
    z, factor = (torch.randn(shape, generator=torch.Generator().manual_seed(seed + i)) for seed in (70, 90))
    z = (8 * z).requires_grad_()
    out = attn(z)
    (out * factor).sum().backward()
    agree([out, z.grad], [g['output'], g['input_grad']])
    same_gradients(attn, g['parameter_grads'])


# ---- classifiers


@pytest.mark.parametrize('name', ['crate_classifier', 'crate_classifier_mean_pool', 'crate_classifier_one_head'])
def test_crate(name):
    c = golden(name)[1]['constructor']
    model, g, x = golden_pictures(name, pool=c['pool'], eta=c['ista'])
    want, z = g['outputs']['tokens'], model.embed(x)
    agree([model(x)[0], z], [g['outputs']['logits'], want['tokens_before_layers']])
    depth, after = range(len(model.layers)), through(model.layers, z)
    agree(halves(model.layers, z, attended), [want[f'layer{l}.after_attention_residual'] for l in depth])
    agree(after, [want[f'layer{l}.after_ista'] for l in depth])
    agree(zeros(after), [row['zero_fraction_mean'] for row in g['outputs']['layerwise_measures']])


def test_crate_alpha():
    model, g, x = golden_pictures('crate_alpha')
    agree(model(x)[0], g['outputs']['logits'])
    coded = halves(model.layers, model.embed(x), lambda layer, z: layer.ista(layer.norm2(attended(layer, z)))[0, 0])
    agree(coded, g['outputs']['class_token_of_first_picture_out_of_each_sparse_coding_block'])


@pytest.mark.parametrize('pool', ['cls', 'mean'])
def test_vit(pool):
    sd, _ = golden('vit')
    if pool == 'cls':
        sd = {k.replace('fc_norm', 'norm'): v for k, v in sd.items()}
    model, g, x = golden_pictures('vit', sd)
    want = g['outputs'][f'global_pool_{pool == "mean"}'.lower()]
    agree(model(x)[0], want['logits_if_final_norm_applied_once' if pool == 'mean' else 'logits'])
    if pool == 'mean':  # timm 1.0.9 applies fc_norm twice
        agree(golden_pictures('vit', sd, final_norms=2)[0](x)[0], want['logits'])
    z, names = model.embed(x), ('tokens_before_layers', 'layer0.output', 'layer1.output')
    agree([z, *through(model.layers, z)], [want['tokens'][name] for name in names])


def test_tost_on_pictures():
    model, g, x = golden_pictures('tost_vision')
    want = g['outputs']
    agree([*model(x, torch.tensor(g['input']['classes'])), model.embed.stem(x).flatten(2).mT],
          [want['logits'], want['loss'], want['after_patch_embedding']])
    blocks = through(model.layers, model.embed(x))
    blocks += through(model.read.layers, torch.cat((model.read.cls.expand(2, -1, -1), blocks[-1]), 1))
    agree(blocks, want['after_each_block'])


def test_the_segmentation_demos_file_is_crate_with_one_classifier():
    """Its two maps as one, or the first alone, or none: then a classifier of zeros."""
    sd, g = golden('crate_demo')
    want = g['outputs']
    rest = {k: v for k, v in sd.items() if not k.startswith(('head.', 'mlp_head.'))}
    first = rest | {k: v for k, v in sd.items() if k.startswith('mlp_head.')}
    for held, logits in ((first, want['mlp_head (what the forward pass returns)']), (rest, [[0.0] * 1000] * 2),
                         (sd, want['head of that (never called by the released forward pass)'])):
        model, _, x = golden_pictures('crate_demo', {'model': held})
        agree(model(x)[0], logits)
    z = model.embed(x)
    keys = halves(model.layers, z, lambda layer, z: layer.attn.U(layer.norm1(z)))
    agree([*through(model.layers, z), keys[-1]], [*want['after_each_layer'], want['keys_without_interpolation']])


# ---- masked autoencoders


@pytest.mark.parametrize('name', ['crate_mae', 'vit_mae'])
def test_masks_predictions_losses_and_positions(name):
    for normalized in (False, True):
        model, g, x = golden_pictures(name, norm_pix_loss=normalized)
        out, noise = g['outputs'], noise_of(g)
        pred, loss = model(x, noise)
        agree([loss, pred[:, 0, :16], pred[:, -1, -16:], pred.mean(), pred.std()], [
            out[f'loss_norm_pix_{normalized}'.lower()], *(out['pred'][k] for k in (
                'first16_per_sample', 'last16_per_sample', 'mean', 'std'))])
        assert model.hide(noise).long().tolist() == out['mask'] and list(pred.shape) == out['pred']['shape']
    agree(patchify(x, model.config.patch_size), out['patchified_target'])
    for table, want in out['fixed_position_embedding'].items():
        agree(model.to_official()[table], want)


def test_crate_mae_layer_by_layer():
    model, g, x = golden_pictures('crate_mae')
    want, depth, z = g['outputs']['tokens'], range(len(model.layers)), model.embed(x, model.hide(noise_of(g)))
    agree([model.embed.patch(x).flatten(2).mT, z], [want['patch_embedding'], want['tokens_before_encoder']])
    encoded = through(model.layers, z)
    agree(halves(model.layers, z, attended), [want[f'encoder{l}.after_attention_residual'] for l in depth])
    agree(encoded, [want[f'encoder{l}.output'] for l in depth])
    y = model.norm(encoded[-1])
    decoded = through(model.decoder_layers, y)
    agree(halves(model.decoder_layers, y, lambda layer, y: layer.E(layer.norm1(y))),
          [want[f'decoder{l}.after_dictionary'] for l in depth])
    agree([y, *decoded, model.decoder_norm(decoded[-1])],
          [want['encoder_norm'], *(want[f'decoder{l}.output'] for l in depth), want['decoder_norm']])


def test_features_and_attention_of_whole_pictures():
    model, g, x = golden_pictures('crate_mae')
    want, last = g['outputs']['unmasked'], model.layers[-1]
    w = last.attn.U(last.norm1(model.layers[:-1](model.embed(x))))
    heads = w.unflatten(2, (4, 12)).transpose(1, 2)
    agree([model.encode(x), w, (heads @ heads.mT / math.sqrt(12)).softmax(-1)], [want[k] for k in (
        'encoder_norm_output', 'last_encoder_layer_subspace_coordinates', 'last_encoder_layer_attention')])
    assert torch.allclose(model.features(x), model.encode(x)[:, 0])


def test_vit_mae_layer_by_layer():
    model, g, x = golden_pictures('vit_mae')
    want, visible, seen = g['outputs']['tokens'], model.visible(noise_of(g)), []
    z = model.embed(x, visible)
    encoded = through(model.layers, z)
    agree([model.embed.patch(x).flatten(2).mT, z, model.norm(encoded[-1])],
          [want[k] for k in ('patch_embedding', 'tokens_before_encoder', 'encoder_norm')])
    model.decoder_layers[0].register_forward_pre_hook(lambda layer, args: seen.append(args[0]))
    model.decode(model.norm(encoded[-1]), visible)
    decoded = through(model.decoder_layers, seen[0])
    agree([seen[0], model.decoder_norm(decoded[-1])], [want['tokens_before_decoder'], want['decoder_norm']])
    agree([*encoded, *decoded], [want[f'{part}{l}.output'] for part, layers in (
        ('encoder', encoded), ('decoder', decoded)) for l in range(len(layers))])
