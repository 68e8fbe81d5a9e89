"""The authors' and OpenAI's weights in our networks and back: every name, every way to nest them,
every mistake."""
import pytest
import torch
from helpers import golden, golden_pictures, same_tokens

from engine import official
from model_aot import AoT
from model_crate import CRATE, CRATEConfig

CLASSIFIERS = ['crate_classifier', 'crate_classifier_mean_pool', 'crate_classifier_one_head', 'vit', 'crate_alpha',
               'tost_vision']
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
    assert sorted(back) == sorted(row[0] for row in g['state_dict']) and all(torch.equal(back[k], sd[k]) for k in sd)
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


def test_the_segmentation_demos_file_is_crate_with_one_classifier():
    """Its two maps as one, or the first alone, or none: then a classifier of zeros."""
    sd, g = golden('crate_demo')
    want = g['outputs']
    rest = {k: v for k, v in sd.items() if not k.startswith(('head.', 'mlp_head.'))}
    first = rest | {k: v for k, v in sd.items() if k.startswith('mlp_head.')}
    for held, logits in ((first, want['mlp_head (what the forward pass returns)']), (rest, [[0.0] * 1000] * 2),
                         (sd, want['head of that (never called by the released forward pass)'])):
        model, _, x = golden_pictures('crate_demo', {'model': held})
        out = model(x)[0]
        assert out.shape == torch.tensor(logits).shape and (out - torch.tensor(logits)).abs().max() < 1e-5
        z = model.embed(x)
        for layer, tokens in zip(model.layers, want['after_each_layer'], strict=True):
            keys, z = layer.attn.U(layer.norm1(z)), layer(z)
            same_tokens(z, tokens)
        same_tokens(keys, want['keys_without_interpolation'])


def test_the_segmentation_demos_network_has_its_names_and_shapes():
    g = golden('crate_demo')[1]['full_size']
    theirs = dict(g['names_and_shapes_that_the_loader_offers'])
    with torch.device('meta'):
        model = CRATE(CRATEConfig(n_layer=12, n_head=6, n_embd=768, image_size=224, patch_size=8, num_classes=21842))
    classifier = sum(p.numel() for p in model.read.parameters())
    assert model.num_params() - classifier == g['parameter_count']['without mlp_head and head']
    theirs |= {'mlp_head.1.weight': theirs.pop('head.weight'), 'mlp_head.1.bias': theirs.pop('head.bias')}
    assert {k: list(v.shape) for k, v in model.to_official().items()} == theirs


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
    refused(name, {}, {'weights': torch.ones(1)}, 'cls_token: missing')


@pytest.mark.parametrize('name', AUTOENCODERS)
def test_loaders_of_autoencoders_name_what_does_not_fit(name):
    back = golden_pictures(name)[0].to_official()
    decoder_pos = back['decoder_pos_embed']
    for change, word in (({'cls_token': None}, 'cls_token'), ({'surprise': torch.ones(1)}, 'surprise'),
                         ({'mask_token': torch.ones(1, 1, 3)}, 'mask_token'),
                         ({'norm.bias': None, 'norm.weight': None}, 'norm.bias'),
                         ({'decoder_pos_embed': decoder_pos[:, 1:]}, 'decoder_pos_embed: '),
                         ({k: None for k in back if k.startswith('decoder_pred')}, 'decoder_pred.weight: missing'),
                         ({k: None for k in back if k.startswith('blocks.0')}, 'blocks.0.*: missing')):
        refused(name, back, change, word)


# ---- the authors' files

def refused_file(path, content, message):
    path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)
    with pytest.raises(ValueError, match=message):
        CRATE.from_official(official.read(path), n_head=3, image_size=16, patch_size=4)


@pytest.mark.parametrize('content, message', [
    (b'', 'damaged'), (b'\x80\x02garbage', 'damaged'), ([1, 2], 'no state dict'), ({1: torch.ones(3)}, 'no state dict'),
    ({'state_dict': None}, 'no state dict'), ({}, 'cls_token: missing'),
    ({'weights': torch.ones(3)}, 'cls_token: missing')])
def test_what_is_no_official_file_is_refused_by_name(content, message, tmp_path):
    refused_file(tmp_path / 'w.pth', content, message)


def test_a_file_that_is_cut_off_is_refused(tmp_path):
    torch.save(golden_pictures('crate_classifier')[0].to_official(), tmp_path / 'w.pth')
    whole = (tmp_path / 'w.pth').read_bytes()
    refused_file(tmp_path / 'w.pth', whole[:len(whole) // 2], 'w.pth is damaged')


@pytest.mark.parametrize('name', AUTOENCODERS)
def test_files_may_hold_half_precision(name, tmp_path):
    model, g, x = golden_pictures(name)
    torch.save({k: v.half() for k, v in model.to_official().items()}, tmp_path / 'w.pth')
    half, noise = golden_pictures(name, official.read(tmp_path / 'w.pth'))[0], torch.rand(2, 16)
    assert half(x, noise)[1].item() == pytest.approx(model(x, noise)[1].item(), abs=2e-3)
