"""The authors' and OpenAI's weights in our networks and back: every name, every way to nest them,
every mistake."""
import math

import pytest
import torch
from helpers import golden, golden_pictures

from engine import checkpoints
from model_aot import AoT
from model_crate import CRATE, CRATEConfig
from model_vit import ViT, ViTConfig

CLASSIFIERS = ['crate_classifier', 'crate_classifier_mean_pool', 'crate_classifier_one_head', 'vit', 'crate_alpha']
AUTOENCODERS = ['crate_mae', 'vit_mae']
DEAD = {'crate_mae': {'decoder_embed.weight', 'decoder_embed.bias'}}  # the authors' code never reads them

# ---- GPT-2


def test_gpt2_takes_openai_names():
    sd, g = golden('gpt_bias_true')
    ours = AoT.from_gpt2(sd, n_head=4).state_dict()
    transposed = ('c_attn.weight', 'c_proj.weight', 'c_fc.weight')
    theirs = {k.removeprefix('transformer.'): v.T.contiguous() if k.endswith(transposed) else v
              for k, v in sd.items() if k != 'lm_head.weight'}
    theirs['h.0.attn.bias'] = torch.ones(1, 1, 16, 16).tril()  # a mask, not a weight
    for variant in (theirs, {'transformer.' + k: v for k, v in theirs.items()},
                    {'model': {'_orig_mod.' + k: v for k, v in sd.items()}}):
        loaded = AoT.from_gpt2(variant, n_head=4).state_dict()
        assert all(torch.equal(loaded[k], ours[k]) for k in ours)


@pytest.mark.parametrize('change, word', [
    (lambda sd: sd.pop('transformer.h.1.mlp.c_fc.bias'), 'h.1.mlp.c_fc.bias'),
    (lambda sd: sd.update({'transformer.h.0.extra': torch.ones(1)}), 'h.0.extra'),
    (lambda sd: sd.update({'transformer.h.1.ln_1.weight': torch.ones(3)}), 'h.1.ln_1.weight'),
    (lambda sd: sd.pop('transformer.wpe.weight'), 'wpe'),
    (lambda sd: sd.update({'lm_head.weight': sd['lm_head.weight'] + 1}), 'lm_head.weight differs')])
def test_gpt2_loader_names_what_does_not_fit(change, word):
    sd, _ = golden('gpt_bias_true')
    change(sd)
    with pytest.raises(ValueError, match=word):
        AoT.from_gpt2(sd, n_head=4)


# ---- the authors' state dicts


@pytest.mark.parametrize('name', CLASSIFIERS)
def test_weights_of_classifiers_go_both_ways(name):
    sd, g = golden(name)
    model, _, x = golden_pictures(name)
    back = model.to_official()
    assert list(back) == [row[0] for row in g['state_dict']] and all(torch.equal(back[k], sd[k]) for k in sd)
    for variant in ({'state_dict': {'module.' + k: v for k, v in sd.items()}, 'epoch': 3}, {'model': sd}):
        assert torch.equal(golden_pictures(name, variant)[0](x)[0], model(x)[0])


@pytest.mark.parametrize('name', AUTOENCODERS)
def test_weights_of_autoencoders_go_both_ways(name):
    sd, g = golden(name)
    model, _, x = golden_pictures(name)
    noise, back, dead = torch.rand(2, 16), model.to_official(), DEAD.get(name, set())
    assert {k: list(v.shape) for k, v in back.items()} == {row[0]: row[1] for row in g['state_dict']}
    assert all(torch.equal(back[k], sd[k]) for k in sd.keys() - dead) and not any(back[k].any() for k in dead)
    without = {k: v for k, v in sd.items() if k not in dead}
    for variant in (sd, back, {'model': back, 'epoch': 3}, {'state_dict': {'module.' + k: v for k, v in sd.items()}},
                    without):  # with positions and without, with dead weight and without
        assert torch.equal(golden_pictures(name, variant)[0](x, noise)[0], model(x, noise)[0])


def refused(name, sd, change, word):
    with pytest.raises(ValueError, match=word):
        golden_pictures(name, {k: v for k, v in (sd | change).items() if v is not None})


@pytest.mark.parametrize('name, gone', [('crate_classifier', 'transformer.layers.1.1.fn.weight'),
                                        ('vit', 'blocks.1.mlp.fc2.bias')])
def test_loaders_of_classifiers_name_what_does_not_fit(name, gone):
    sd, _ = golden(name)
    for change, word in (({gone: None}, gone), ({'surprise': torch.ones(1)}, 'surprise'),
                         ({'cls_token': torch.ones(1, 1, 3)}, 'cls_token')):
        refused(name, sd, change, word)
    refused(name, {}, {'weights': torch.ones(1)}, 'not a')


@pytest.mark.parametrize('name', AUTOENCODERS)
def test_loaders_of_autoencoders_name_what_does_not_fit(name):
    back = golden_pictures(name)[0].to_official()
    decoder_pos = back['decoder_pos_embed']
    for change, word in (({'cls_token': None}, 'cls_token'), ({'surprise': torch.ones(1)}, 'surprise'),
                         ({'mask_token': torch.ones(1, 1, 3)}, 'mask_token'),
                         ({'norm.bias': None, 'norm.weight': None}, 'norm.bias'),
                         ({'pos_embed': back['pos_embed'] + 2e-5}, 'pos_embed holds other positions'),
                         ({'decoder_pos_embed': decoder_pos * math.nan}, 'decoder_pos_embed holds other positions'),
                         ({'decoder_pos_embed': decoder_pos[:, 1:]}, 'decoder_pos_embed has shape'),
                         ({k: None for k in back if k.startswith('decoder')}, 'has no decoder'),
                         ({k: None for k in back if k.startswith('blocks.0')}, 'not a ')):
        refused(name, back, change, word)


# ---- the authors' files

AUTHORS = {'crate': (CRATE, CRATEConfig, 'transformer.layers.1.1.fn.weight'),
           'vit': (ViT, ViTConfig, 'blocks.1.mlp.fc2.bias')}


def official_file(name, path, wrap=lambda sd: sd, **settings):
    """A file as the authors release theirs, and the model that it holds: 7 classes at 16 x 16
    unless said otherwise."""
    Model, Config, _ = AUTHORS[name]
    torch.manual_seed(1)
    small = dict(image_size=16, patch_size=4, num_classes=7, n_layer=2, n_head=3, n_embd=24)
    model = Model(Config(**small | settings)).eval()
    torch.save(wrap(model.to_official()), path)
    return model


def load(path, name, **settings):
    return checkpoints.load_weights(f'official:{path}', name, **dict(n_head=3, patch_size=4) | settings)


@pytest.fixture
def path(tmp_path):
    return tmp_path / 'w.pth'


@pytest.mark.parametrize('wrap', [lambda sd: sd, lambda sd: {'model': sd},
                                  lambda sd: {'epoch': 3, 'state_dict': {'module.' + k: v for k, v in sd.items()}}])
@pytest.mark.parametrize('name', AUTHORS)
def test_files_are_read_however_they_nest(name, wrap, path):
    model, x = official_file(name, path, wrap), torch.randn(2, 3, 16, 16)
    for size in (16, 24):  # a size that is asked for does not change what the file holds
        ours = checkpoints.load_model(load(path, name, image_size=size))
        assert ours.config.image_size == (16, 16) and torch.equal(ours(x)[0], model(x)[0])


def test_files_need_not_be_square(path):
    sizes = dict(image_size=(8, 12), patch_size=(4, 2))
    model, x = official_file('vit', path, **sizes), torch.randn(2, 3, 8, 12)
    assert torch.equal(checkpoints.load_model(load(path, 'vit', **sizes))(x)[0], model(x)[0])


@pytest.mark.parametrize('name', AUTHORS)
def test_files_may_be_of_grey_pictures(name, path):
    model, x = official_file(name, path, channels=1), torch.randn(2, 1, 16, 16)
    assert torch.equal(checkpoints.load_model(load(path, name, image_size=16))(x)[0], model(x)[0])


@pytest.mark.parametrize('content, message', [
    (None, 'no file .*w.pth'), (b'', 'damaged'), (b'\x80\x02garbage', 'damaged'), ([1, 2], 'no state dict'),
    (torch.ones(3), 'no state dict'), ({1: torch.ones(3)}, 'no state dict'), ({'state_dict': None}, 'no state dict'),
    ({}, 'not a CRATE state dict'), ({'weights': torch.ones(3)}, 'not a CRATE state dict'), (b'hello', 'damaged'),
    ({'pos_embedding': 3}, 'w.pth'), ({'pos_embedding': torch.ones(3)}, 'w.pth')])
def test_what_is_no_official_file_is_refused_by_name(content, message, path):
    if content is not None:
        path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)
    with pytest.raises(ValueError, match=message):
        checkpoints.load_weights(f'official:{path}', 'crate', n_head=3)


@pytest.mark.parametrize('name', AUTHORS)
def test_files_that_do_not_fit_name_the_tensor(name, path):
    key = AUTHORS[name][2]

    def refused(word, wrap=lambda sd: sd, holds=name):
        official_file(holds, path, wrap)
        with pytest.raises(ValueError, match=word):
            load(path, name)
    refused('surprise', lambda sd: sd | {'surprise': torch.ones(1)})
    refused(key, lambda sd: {k: v for k, v in sd.items() if k != key})
    refused(key, lambda sd: sd | {key: sd[key][1:]})
    refused('not a', holds='vit' if name == 'crate' else 'crate')
    official_file(name, path)
    whole = path.read_bytes()
    path.write_bytes(whole[:len(whole) // 2])
    with pytest.raises(ValueError, match='w.pth is damaged'):
        load(path, name)


def test_heads_need_only_divide_the_width_in_the_file(path):
    official_file('crate', path, n_head=5, n_embd=20)
    assert load(path, 'crate', n_head=5, image_size=16)['model_config']['n_embd'] == 20


@pytest.mark.parametrize('name', AUTOENCODERS)
def test_a_pretrained_file_starts_a_classifier(name, path):
    """With nothing but the name of the classifier that is to have the encoder."""
    model, g, x = golden_pictures(name)
    torch.save({'model': model.to_official()}, path)
    kind = {'crate_mae': CRATE, 'vit_mae': ViT}[name]
    sizes = dict(n_head=4, image_size=32, patch_size=8)
    same = checkpoints.load_model(load(path, name, **sizes, decoder_n_head=g['constructor']['decoder_heads']))
    assert same(x, torch.rand(2, 16))[0].shape == (2, 16, 192) and torch.equal(same.features(x), model.features(x))
    checkpoint = load(path, name.removesuffix('_mae'), **sizes, num_classes=5)
    made = checkpoints.load_model(checkpoint, new_head=True, num_classes=5)
    assert type(made) is kind
    assert torch.allclose(made.features(x), model.features(x), atol=1e-4)  # LayerNorm's eps: CRATE 1e-5, CRATE-MAE 1e-6
    assert all(p.requires_grad for p in made.parameters()) and made.embed.pos.requires_grad


@pytest.mark.parametrize('name', AUTOENCODERS)
def test_an_encoder_alone_starts_a_classifier_as_well(name, path):
    back = golden_pictures(name)[0].to_official()
    torch.save(back, path)
    torch.save({k: v for k, v in back.items() if 'decoder' not in k and k != 'mask_token'}, path.with_name('part.pth'))
    settings = dict(n_head=4, image_size=32, patch_size=8, num_classes=4)
    whole, part = (load(p, name.removesuffix('_mae'), **settings) for p in (path, path.with_name('part.pth')))
    assert whole['model_config'] == part['model_config'] and whole['weights'].keys() == part['weights'].keys()
    assert all(torch.equal(v, part['weights'][k]) for k, v in whole['weights'].items())


@pytest.mark.parametrize('name', AUTOENCODERS)
def test_files_of_autoencoders_tell_what_to_give(name, path):
    model, g, x = golden_pictures(name)
    back, own, sizes = model.to_official(), name.removesuffix('_mae'), dict(n_head=4, image_size=32, patch_size=8)
    heads = g['constructor']['decoder_heads']
    torch.save(back, path)
    with pytest.raises(ValueError, match=f'give --model={name}'):  # it has no classifier yet
        checkpoints.load_model(load(path, own, **sizes))
    if name == 'vit_mae':
        with pytest.raises(ValueError, match='--decoder_n_head'):
            load(path, name, **sizes)
    with pytest.raises(ValueError, match='n_head=4, not 2|decoder_n_head=2, not 4'):
        checkpoints.load_model(load(path, name, **sizes, decoder_n_head=heads), **{
            'crate_mae': {'n_head': 2}, 'vit_mae': {'decoder_n_head': 4}}[name])
    encoder = {k: v for k, v in back.items() if 'decoder' not in k and k != 'mask_token'}
    torch.save(encoder, path)
    with pytest.raises(ValueError, match='w.pth: .*has no decoder'):
        load(path, name, **sizes, decoder_n_head=heads)
    torch.save({k: v for k, v in encoder.items() if k != 'cls_token'}, path)
    with pytest.raises(ValueError, match='w.pth: '):
        load(path, own, **sizes)


@pytest.mark.parametrize('name', AUTOENCODERS)
def test_files_may_hold_half_precision(name, path):
    model, g, x = golden_pictures(name)
    torch.save({k: v.half() for k, v in model.to_official().items()}, path)
    sizes = dict(n_head=4, image_size=32, patch_size=8, decoder_n_head=g['constructor']['decoder_heads'])
    half, noise = checkpoints.load_model(load(path, name, **sizes)), torch.rand(2, 16)
    assert half(x, noise)[1].item() == pytest.approx(model(x, noise)[1].item(), abs=2e-3)
