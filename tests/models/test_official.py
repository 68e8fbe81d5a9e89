"""The authors' and OpenAI's weights in our networks and back: every name, every way to nest them, every tensor that
does not fit."""
import re

import pytest
import torch
from helpers import equal, golden, golden_pictures, golden_text

from engine import official
from engine.settings import Mistake
from model_aot import AoT
from model_crate import CRATE, CRATEConfig
from model_crate_alpha import CRATEAlpha

TEXTS = ['gpt_bias_true', 'gpt_bias_false', 'crate_gpt', 'crate_lm', 'tost_lang', 'tost_lang_bias_false']
FILES = [*TEXTS, 'crate_classifier', 'crate_classifier_mean_pool', 'crate_classifier_one_head', 'vit', 'crate_alpha',
         'tost_vision', 'crate_mae', 'vit_mae']
DEAD = ['decoder_embed.weight', 'decoder_embed.bias']  # the authors' CRATE-MAE never reads them
MASKS = ['transformer.h.0.attn.bias', 'transformer.h.1.attn.bias']
# what a file may lack: fixed positions, masks, counters, the output map that is the embedding; what is not read
MAY_LACK = {'gpt_bias_true': ['lm_head.weight'], 'gpt_bias_false': ['lm_head.weight'], 'crate_gpt': MASKS[:1],
            'crate_mae': ['pos_embed', 'decoder_pos_embed', *DEAD], 'vit_mae': ['pos_embed', 'decoder_pos_embed'],
            'tost_vision': [f'patch_embed.proj.{i}.1.num_batches_tracked' for i in (0, 2, 4)]}
ANY_SHAPE = {'crate_gpt': MASKS[:1], 'crate_mae': ['pos_embed', *DEAD]}
# without it a file is one of another kind or width, so another name is told
TELLS = ('transformer.ln_f.bias', 'transformer.ln_f.weight', 'fc_norm.weight', 'blocks.0.attn.qkv.bias',
         'transformer.layers.0.0.fn.qkv.weight')


def load(name, sd=None, **settings):
    return (golden_text if name in TEXTS else golden_pictures)(name, sd, **settings)[0]


def whole(name):
    """(network, its state dict with the authors' names)."""
    model = load(name)
    return model, model.to_official() if hasattr(model, 'to_official') else golden(name)[0]


@pytest.mark.parametrize('name', FILES)
def test_weights_go_both_ways_however_they_are_nested(name):
    (sd, g), (model, back) = golden(name), whole(name)
    assert {k: list(v.shape) for k, v in back.items()} == {row[0]: row[1] for row in g['state_dict']
                                                           if row[0] in back or not name.startswith('gpt')}
    dead = DEAD if name == 'crate_mae' else []
    assert all(torch.equal(back[k], sd[k]) for k in sd.keys() - dead) and not any(back[k].any() for k in dead)
    for k in MASKS if name == 'crate_gpt' else []:
        assert all(int(row.sum()) == i + 1 == row[:i + 1].sum() for i, row in enumerate(back[k][0, 0]))
    for variant in (back, {'model': {f'_orig_mod.{k}': v for k, v in sd.items()}, 'iter_num': 3},
                    {'state_dict': {f'module.{k}': v for k, v in sd.items()}, 'epoch': 3},
                    {f'module._orig_mod.{k}': v for k, v in back.items()}):
        assert equal(load(name, variant).state_dict(), model.state_dict())


def test_gpt2_takes_openais_names():
    sd, _ = golden('gpt_bias_true')
    transposed = 'c_attn.weight', 'c_proj.weight', 'c_fc.weight'
    theirs = {k.removeprefix('transformer.'): v.T.contiguous() if k.endswith(transposed) else v
              for k, v in sd.items() if k != 'lm_head.weight'}
    theirs['h.0.attn.bias'] = torch.ones(1, 1, 16, 16).tril()  # a mask, not a weight
    for variant in (theirs, {f'transformer.{k}': v for k, v in theirs.items()}):
        assert equal(AoT.from_gpt2(variant, n_head=4).state_dict(), AoT.from_gpt2(sd, n_head=4).state_dict())


@pytest.mark.parametrize('name', FILES)
def test_each_tensor_that_is_missing_or_has_another_shape_is_named(name):
    model, back = whole(name)
    names = [k for k in back if not re.search(r'(layers|h|blocks)\.[12]\.', k)]  # other layers have the same tensors

    def refused(sd, word):
        try:
            return not equal(load(name, sd).state_dict(), model.state_dict())
        except Mistake as e:
            assert word.removeprefix('transformer.') in str(e) or word in TELLS
            return True
    fit = {k for k in names if not refused({other: t for other, t in back.items() if other != k}, k)}
    assert fit == set(MAY_LACK.get(name, []))
    other = {k: back[k][..., :-1] if back[k].dim() > 1 else back[k][..., None] for k in names}
    fit = {k for k in names if not refused(back | {k: other[k]}, k)}
    assert fit == set(ANY_SHAPE.get(name, []))
    assert refused(back | {'surprise': torch.ones(1)}, 'surprise')
    if name in TEXTS:
        assert refused(back | {'lm_head.weight': back['lm_head.weight'] + 1}, 'lm_head.weight')


def test_settings_that_no_tensor_tells_reach_the_network():
    x = golden_text('crate_lm')[2]
    for name, settings in (('crate_gpt', dict(lam=0.5)), ('crate_lm', dict(lam=0.5)), ('crate_lm', dict(skip=True)),
                           ('crate_lm', dict(steps=3))):
        assert not torch.equal(load(name, **settings)(x)[0], load(name)(x)[0])


GPT = dict(image_size=0, patch_size=0)


@pytest.mark.parametrize('Network, name, settings, word', [
    (CRATE, 'crate_gpt', dict(image_size=16, patch_size=4), 'image_size=0'),
    (CRATEAlpha, 'crate_lm', dict(image_size=16, patch_size=4), 'image_size=0'),
    (CRATEAlpha, 'crate_gpt', {}, 'model=crate'), (CRATE, 'crate_lm', GPT, 'ln_f.bias'),
    (CRATE, 'crate_gpt', GPT | dict(n_head=5), 'n_head=5'),
    (CRATE, 'crate_gpt', GPT | dict(final_norm=True), 'read.norm'),
    (CRATEAlpha, 'crate_alpha', dict(n_layer=1, n_embd=24), 'transformer.wte.weight')])
def test_files_of_another_network_and_settings_that_do_not_fit_are_named(Network, name, settings, word):
    with pytest.raises(Mistake, match=word):
        Network.from_official(golden(name)[0], **dict(n_head=3) | settings)


def test_the_segmentation_demos_network_has_its_names_and_shapes():
    theirs = dict(golden('crate_demo')[1]['full_size']['names_and_shapes_that_the_loader_offers'])
    with torch.device('meta'):
        model = CRATE(CRATEConfig(n_layer=12, n_head=6, n_embd=768, image_size=224, patch_size=8, num_classes=21842))
    theirs |= {'mlp_head.1.weight': theirs.pop('head.weight'), 'mlp_head.1.bias': theirs.pop('head.bias')}
    assert {k: list(v.shape) for k, v in model.to_official().items()} == theirs


# ---- files


@pytest.mark.parametrize('content', [b'', b'\x80\x02garbage', 'cut', [1, 2], {1: torch.ones(3)}, {'state_dict': None}],
                         ids=str)
def test_what_is_no_official_file_is_refused_by_name(content, tmp_path):
    path = tmp_path / 'w.pth'
    torch.save(golden('crate_classifier')[0] if content == 'cut' else content, path)
    if content == 'cut' or isinstance(content, bytes):
        path.write_bytes(path.read_bytes()[:-900] if content == 'cut' else content)
    with pytest.raises(Mistake, match=re.escape(str(path))):
        official.read(path)
