"""The authors' and OpenAI's weights in our networks and back: every name, every way to nest them,
every tensor that does not fit."""
import re

import pytest
import torch
from helpers import equal, golden, golden_pictures, golden_text, text_network
from safetensors.torch import load_file, save_file

from engine.mistakes import Mistake
from model_aot import AoT
from model_crate import CRATE, CRATEConfig
from model_crate_alpha import CRATEAlpha, CRATEAlphaConfig
from lib import published

TEXTS = ['gpt_bias_true', 'gpt_bias_false', 'crate_gpt', 'crate_lm', 'tost_lang',
         'tost_lang_bias_false']
PICTURES = ['crate_classifier', 'crate_classifier_mean_pool', 'crate_classifier_one_head', 'vit',
            'crate_alpha', 'tost_vision', 'crate_mae', 'vit_mae']
# the authors' CRATE-MAE never reads these
UNREAD = ['decoder_embed.weight', 'decoder_embed.bias']


def load(name, sd=None, **settings):
    """The network of a golden file, with its weights or with others."""
    if name in TEXTS:
        return golden_text(name, sd, **settings)[0]
    return golden_pictures(name, sd, **settings)[0]


@pytest.fixture(params=TEXTS + PICTURES)
def name(request):
    return request.param


# ---- there and back


def test_a_network_gives_back_the_names_shapes_and_weights_that_it_got(name):
    sd, g = golden(name)

    weights = load(name).to_official()

    shapes = {tensor_name: list(tensor.shape) for tensor_name, tensor in weights.items()}
    assert shapes == {row[0]: row[1] for row in g['state_dict']}
    for tensor_name, tensor in sd.items():
        if tensor_name not in UNREAD:
            assert torch.equal(weights[tensor_name], tensor)


def test_what_the_authors_crate_mae_never_reads_is_zero():
    weights = load('crate_mae').to_official()

    for tensor_name in UNREAD:
        assert not weights[tensor_name].any()


def test_the_masks_of_crate_gpt_are_causal():
    weights = load('crate_gpt').to_official()

    for layer in (0, 1):
        mask = weights[f'transformer.h.{layer}.attn.bias'][0, 0]
        assert torch.equal(mask, torch.ones_like(mask).tril())


def test_safetensors_saves_the_authors_names(name, tmp_path):
    """It refuses tensors that share memory, and such as are not contiguous."""
    model = load(name)

    save_file(model.to_official(), tmp_path / 'weights.safetensors')

    weights = load_file(tmp_path / 'weights.safetensors')
    assert equal(weights, model.to_official())
    assert equal(load(name, weights).state_dict(), model.state_dict())


@pytest.mark.parametrize('settings', [{}, dict(tie_out=True)])
def test_safetensors_saves_aot(settings, tmp_path):
    model = text_network('aot', **settings)

    save_file(model.to_official(), tmp_path / 'weights.safetensors')

    weights = load_file(tmp_path / 'weights.safetensors')
    assert equal(weights, model.to_official())
    same_model = AoT.from_gpt2(weights, n_head=2, **settings)
    assert equal(same_model.state_dict(), model.state_dict())


def test_safetensors_saves_gpt2_for_hugging_face(tmp_path):
    weights = text_network('aot', attn='mhsa', mlp=True).to_hugging_face()

    save_file(weights, tmp_path / 'weights.safetensors')  # which refuses what it cannot save


def with_prefix(prefix, sd):
    return {prefix + tensor_name: tensor for tensor_name, tensor in sd.items()}


def test_weights_fit_however_they_are_nested(name):
    model = load(name)
    weights = model.to_official()
    sd, _ = golden(name)

    for checkpoint in (
            {'model': with_prefix('_orig_mod.', sd), 'iter_num': 3},
            {'state_dict': with_prefix('module.', sd), 'epoch': 3},
            with_prefix('module._orig_mod.', weights)):
        assert equal(load(name, checkpoint).state_dict(), model.state_dict())


def test_gpt2_takes_openais_names():
    sd, _ = golden('gpt_bias_true')
    openais = {}
    for tensor_name, tensor in sd.items():
        if tensor_name.endswith(('c_attn.weight', 'c_proj.weight', 'c_fc.weight')):
            tensor = tensor.T.contiguous()
        if tensor_name != 'lm_head.weight':
            openais[tensor_name.removeprefix('transformer.')] = tensor
    openais['h.0.attn.bias'] = torch.ones(1, 1, 16, 16).tril()  # a mask, not a weight

    expected = AoT.from_gpt2(sd, n_head=4).state_dict()
    for weights in (openais, with_prefix('transformer.', openais)):
        assert equal(AoT.from_gpt2(weights, n_head=4).state_dict(), expected)


# ---- tensors that do not fit

MASK = 'transformer.h.0.attn.bias'
# what a file may lack: fixed positions, masks, counters, the output map that is the embedding; what
# is not read
MAY_LACK = {
    'gpt_bias_true': ['lm_head.weight'],
    'gpt_bias_false': ['lm_head.weight'],
    'crate_gpt': [MASK],
    'crate_mae': ['pos_embed', 'decoder_pos_embed', *UNREAD],
    'vit_mae': ['pos_embed', 'decoder_pos_embed'],
    'tost_vision': ['patch_embed.proj.0.1.num_batches_tracked'],
}
ANY_SHAPE = {
    'crate_gpt': [MASK],
    'crate_mae': ['pos_embed', *UNREAD],
}
# without one of these a file is of another kind or width, so the message has another name
DECISIVE = [
    'transformer.ln_f.bias',
    'transformer.ln_f.weight',
    'fc_norm.weight',
    'blocks.0.attn.qkv.bias',
    'transformer.layers.0.0.fn.qkv.weight',
]


def names_in(weights):
    """The names of all tensors but those of later layers, which are as those of the first one."""
    return [name for name in weights if not re.search(r'(layers|h|blocks|proj)\.[1-4]\.', name)]


def makes(model, name, sd, tensor_name):
    """Whether weights make a network like this one. Fails if they are refused, but the message does
    not have the name of the tensor."""
    try:
        return equal(load(name, sd).state_dict(), model.state_dict())
    except Mistake as e:
        if tensor_name not in DECISIVE:
            assert tensor_name.removeprefix('transformer.') in str(e)
        return False


@pytest.mark.slow
@pytest.mark.parametrize('name', ['gpt_bias_true', 'crate_gpt', 'crate_lm', 'tost_lang',
                                  'crate_classifier', 'vit', 'crate_alpha', 'tost_vision',
                                  'crate_mae', 'vit_mae'])
def test_each_tensor_that_is_missing_or_has_another_shape_is_named(name):
    model = load(name)
    weights = model.to_official()

    not_missed = []
    of_any_shape = []
    for tensor_name in names_in(weights):
        incomplete = dict(weights)
        tensor = incomplete.pop(tensor_name)
        if makes(model, name, incomplete, tensor_name):
            not_missed.append(tensor_name)
        if tensor.dim() > 1:
            reshaped = tensor[..., :-1]
        else:
            reshaped = tensor[..., None]
        if makes(model, name, weights | {tensor_name: reshaped}, tensor_name):
            of_any_shape.append(tensor_name)

    assert set(not_missed) == set(MAY_LACK.get(name, []))
    assert set(of_any_shape) == set(ANY_SHAPE.get(name, []))


def test_a_tensor_too_many_is_named(name):
    model = load(name)
    weights = model.to_official() | {'surprise': torch.ones(1)}

    assert not makes(model, name, weights, 'surprise')


@pytest.mark.parametrize('name', TEXTS)
def test_an_output_map_that_is_not_the_embedding_does_not_fit(name):
    model = load(name)
    weights = model.to_official()
    weights['lm_head.weight'] = weights['lm_head.weight'] + 1

    assert not makes(model, name, weights, 'lm_head.weight')


# ---- settings


@pytest.mark.parametrize('name, settings', [
    ('crate_gpt', dict(lam=0.5)),
    ('crate_lm', dict(lam=0.5)),
    ('crate_lm', dict(skip=True)),
    ('crate_lm', dict(steps=3)),
])
def test_settings_that_no_tensor_tells_reach_the_network(name, settings):
    x = golden_text('crate_lm')[2]

    assert not torch.equal(load(name, **settings)(x)[0], load(name)(x)[0])


GPT = dict(image_size=0, patch_size=0)
OF_16 = dict(image_size=16, patch_size=4)


@pytest.mark.parametrize('Network, name, settings, word', [
    (CRATE, 'crate_gpt', OF_16, 'image_size=0'),
    (CRATEAlpha, 'crate_lm', OF_16, 'image_size=0'),
    (CRATEAlpha, 'crate_gpt', {}, 'model=crate'),
    (CRATE, 'crate_lm', GPT, 'ln_f.bias'),
    (CRATE, 'crate_gpt', GPT | dict(n_head=5), 'n_head=5'),
    (CRATE, 'crate_gpt', GPT | dict(final_norm=True), 'read.norm'),
    (CRATEAlpha, 'crate_alpha', dict(n_layer=1, n_embd=24), 'transformer.wte.weight'),
])
def test_files_of_another_network_and_settings_that_do_not_fit_are_named(
        Network, name, settings, word):
    with pytest.raises(Mistake, match=word):
        Network.from_official(golden(name)[0], **dict(n_head=3) | settings)


def test_the_segmentation_demos_network_has_its_names_and_shapes():
    full_size = golden('crate_demo')[1]['full_size']
    expected = dict(full_size['names_and_shapes_that_the_loader_offers'])
    for word in ('weight', 'bias'):  # of the second of its two classifiers, which here are one
        expected[f'mlp_head.1.{word}'] = expected.pop(f'head.{word}')

    with torch.device('meta'):
        model = CRATE(CRATEConfig(n_layer=12, n_head=6, n_embd=768, image_size=224, patch_size=8,
                                  num_classes=21842))

    shapes = {name: list(tensor.shape) for name, tensor in model.to_official().items()}
    assert shapes == expected


# ---- files


@pytest.mark.parametrize('sizes', [
    dict(image_size=0, block_size=8, vocab_size=20, decoupled=False, skip=False, atoms=2),
    dict(image_size=8, patch_size=4, num_classes=3, atoms=3),
], ids=str)
def test_how_many_atoms_a_dictionary_has_is_read_off_its_tensors(sizes):
    model = CRATEAlpha(CRATEAlphaConfig(n_layer=1, n_head=2, n_embd=8, **sizes))
    read = CRATEAlpha.from_official(model.to_official(), n_head=2, image_size=sizes['image_size'],
                                    patch_size=4)

    assert read.config.atoms == sizes['atoms']
    assert equal(read.state_dict(), model.state_dict())


@pytest.fixture
def path(tmp_path):
    return tmp_path / 'w.pth'


def assert_refused(path):
    with pytest.raises(Mistake, match=re.escape(str(path))):
        published.read(path)


def test_a_file_of_something_else_is_refused_by_name(path):
    path.write_bytes(b'\x80\x02garbage')

    assert_refused(path)


def test_a_file_that_was_cut_is_refused_by_name(path):
    torch.save(golden('crate_classifier')[0], path)
    path.write_bytes(path.read_bytes()[:-900])

    assert_refused(path)


@pytest.mark.parametrize('content', [[1, 2], {1: torch.ones(3)}], ids=str)
def test_a_file_without_a_state_dict_is_refused_by_name(content, path):
    torch.save(content, path)

    assert_refused(path)
