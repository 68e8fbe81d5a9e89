"""Weights in the names of others: the checkpoints of MAE, DINO and timm with all that stands in them beside the
weights, encoders without a classifier, and GPT-2 and AoT back into the names of nanoGPT and Hugging Face."""
import argparse
import collections
import os
import pathlib

import numpy as np
import pytest
import torch
from helpers import equal, fails, golden, golden_text, masked_autoencoder, text_network
from safetensors.torch import load_file, save_file

from engine.mistakes import Mistake
from engine.networks import config_class, network_class
from prepare import gpt2_weights, official_weights
from lib import published
from weights.runs import open_run
from weights.surgery import load_model

PICTURES = dict(image_size=12, patch_size=4, n_layer=2, n_head=3, n_embd=24)  # 3 x 3 patches
SMALL_WORDS = '--model=vit', '--n_head=3', '--patch_size=4'


# ---- what stands beside the weights


class Strange:
    """A class that no other program has."""

    def __init__(self):
        self.rate = 0.1


class Runs:
    """Pickled, it becomes a call."""

    def __init__(self, function, *words):
        self.call = function, words

    def __reduce__(self):
        return self.call


BESIDE = {
    'args': argparse.Namespace(lr=0.1, output_dir=pathlib.Path('out')), 'scores': np.ones(3),
    'seen': collections.defaultdict(int, {'cat': 3}), 'network': torch.nn.Linear(2, 2)}


@pytest.mark.parametrize('name', BESIDE)
def test_what_training_code_puts_beside_the_weights_is_left_out(name, tmp_path):
    weights = {'w': torch.arange(3.0), 'b': torch.ones(2, 2)}
    torch.save({name: BESIDE[name], 'model': weights, 'optimizer': {'state': {}}}, tmp_path / 'w.pth')
    assert equal(published.read(tmp_path / 'w.pth'), weights)


def test_a_file_from_before_pytorch_1_6_may_hold_its_command_line(tmp_path):
    held = {'model': {'w': torch.ones(2)}, 'args': argparse.Namespace(lr=0.1)}
    torch.save(held, tmp_path / 'w.pth', _use_new_zipfile_serialization=False)
    assert equal(published.read(tmp_path / 'w.pth'), held['model'])


@pytest.mark.parametrize('zipped', [True, False])
@pytest.mark.parametrize('function, word', [(os.system, 'posix.system'), (eval, 'eval')])
def test_no_code_in_a_file_runs_and_the_reason_of_a_refusal_is_told(function, word, zipped,
                                                                    tmp_path):
    code = f'mkdir {tmp_path}/ran'
    if function is eval:
        code = f'open({str(tmp_path / "ran")!r}, "w")'
    held = {'model': {'w': torch.ones(2)}, 'args': Runs(function, code)}
    torch.save(held, tmp_path / 'w.pth', _use_new_zipfile_serialization=zipped)
    try:
        assert equal(published.read(tmp_path / 'w.pth'), held['model'])
        assert function is eval and zipped  # nothing took its place
    except Mistake as e:
        assert word in str(e)
    assert not (tmp_path / 'ran').exists()


@pytest.mark.parametrize('held', [Strange(), {'teacher': [torch.ones(2)]}], ids=str)
def test_a_network_that_was_saved_as_an_object_is_refused_with_what_to_save(held, tmp_path):
    torch.save(held, tmp_path / 'w.pth')
    with pytest.raises(Mistake, match=r'stands where the weights.*torch\.save\(model\.state_dict\(\)'):
        published.read(tmp_path / 'w.pth')


# ---- encoders


@pytest.fixture
def read(tmp_path):
    """read(held, words) -> the network of a run that official_weights.py makes of a checkpoint."""
    def read(held, *words):
        torch.save(held, tmp_path / 'w.pth')
        official_weights.main([f'{tmp_path}/w.pth', *words, f'--out_dir={tmp_path}/out'])
        return load_model(open_run(tmp_path / 'out'))
    return read


@torch.no_grad()
@pytest.mark.parametrize('decoder', [True, False])
def test_the_encoder_of_mae_becomes_a_vit_with_a_head_of_zeros(decoder, read, capsys):
    model = masked_autoencoder('vit_mae', image_size=12, patch_size=4)[0].eval()
    parts = {k: t for k, t in model.to_official().items() if decoder or not k.startswith(('decoder', 'mask_token'))}
    vit = read({'model': parts, 'args': argparse.Namespace(mask_ratio=0.75)}, '--model=vit', '--n_head=2',
               '--patch_size=4')
    x = torch.randn(2, 3, 12, 12)
    assert type(vit).__name__ == 'ViT' and not vit(x)[0].any()
    assert torch.allclose(vit.features(x), model.features(x), atol=1e-5)
    said = capsys.readouterr().out
    assert '--new_head=true' in said and ('mask_token' in said) == decoder


def vit(seed, **settings):
    Network, Config = network_class('vit'), config_class('vit')
    torch.manual_seed(seed)
    return Network(Config(**PICTURES | settings, pool='cls', num_classes=7)).eval()


def backbone(model, prefix=''):
    return {f'{prefix}{k}': t for k, t in model.to_official().items() if not k.startswith('head.')}


HEAD = {'mlp.0.weight': torch.ones(5, 24), 'last_layer.weight_g': torch.ones(9, 1)}
OF_DINO = {
    'released': backbone(vit(1)),
    'teacher': {'student': backbone(vit(2), 'module.backbone.'), 'epoch': 3,
                'teacher': backbone(vit(1), 'backbone.') | {f'head.{k}': t for k, t in HEAD.items()}},
    'student': {'student': backbone(vit(1), 'module.backbone.') | {f'module.head.{k}': t for k, t in HEAD.items()}},
    'encoder': {'model': backbone(vit(1), 'encoder.') | {'encoder.mask_token': torch.ones(1, 1, 24)}}}


@torch.no_grad()
@pytest.mark.parametrize('name', OF_DINO)
def test_a_backbone_of_dino_becomes_a_vit(name, read, capsys):
    """It is the teacher's, where there are both."""
    found = read(OF_DINO[name], *SMALL_WORDS)
    x = torch.randn(2, 3, 12, 12)
    assert torch.equal(found.features(x), vit(1).features(x)) and not found(x)[0].any()
    said = capsys.readouterr().out
    parts = {'teacher': 'head', 'student': 'head', 'encoder': 'mask_token'}
    assert '--new_head=true' in said and ('left out' in said) == (name != 'released')
    assert name == 'released' or f': {parts[name]}\n' in said


# ---- several weights in a file, other names, pictures that are not square


def zeros(sd):
    return {name: torch.zeros_like(t) for name, t in sd.items()}


TWO = {
    'of timm': ('state_dict', 'state_dict_ema'),
    'of others': ('generator', 'classifier'),
}


@pytest.mark.parametrize('kind', TWO)
def test_of_several_weights_in_a_file_the_named_ones_are_taken(kind, read, tmp_path, capsys):
    raw, average = TWO[kind]
    weights = vit(1).to_official()
    held = {average: weights, raw: zeros(weights), 'optimizer': {'state': {0: {'step': torch.ones(1)}}}, 'rng': torch.ones(2)}
    assert equal(read(held, *SMALL_WORDS, f'--weights={average}').state_dict(), vit(1).state_dict())

    capsys.readouterr()
    words = [f'{tmp_path}/w.pth', *SMALL_WORDS, f'--out_dir={tmp_path}/out2']
    if kind == 'of others':     # nobody knows which are meant
        said = fails(capsys, official_weights.main, *words)
        assert not (tmp_path / 'out2').exists()
    else:
        official_weights.main(words)
        said = capsys.readouterr().out
        assert not any(t.any() for t in load_model(open_run(tmp_path / 'out2')).parameters())
    assert raw in said and average in said and '--weights' in said

    said = fails(capsys, official_weights.main, *words, '--overwrite', '--weights=optimizer')
    assert raw in said and average in said


@pytest.mark.parametrize('prefix', ['net.', 'module.model._orig_mod.'])
def test_names_of_training_frameworks_are_read(prefix, read):
    weights = {prefix + name: t for name, t in vit(1).to_official().items()}
    assert equal(read({'state_dict': weights}, *SMALL_WORDS).state_dict(), vit(1).state_dict())


@pytest.mark.parametrize('model', ['crate', 'vit'])
def test_names_that_are_missing_and_those_of_the_file_are_shown(model, tmp_path, capsys):
    torch.manual_seed(0)
    weights = network_class(model)(config_class(model)(**PICTURES, num_classes=7)).to_official()
    held = {f'trunk.{name}': t for name, t in weights.items() if not name.startswith('head')}
    torch.save(held, tmp_path / 'w.pth')
    words = [f'{tmp_path}/w.pth', f'--model={model}', *SMALL_WORDS[1:], f'--out_dir={tmp_path}/out']
    said = fails(capsys, official_weights.main, *words)
    assert f'{list(held)[-1]}: ' in said and 'cls_token: ' in said

    renamed = {name.removeprefix('trunk.'): t for name, t in held.items()}
    torch.save(renamed, tmp_path / 'w.pth')
    official_weights.main(words)


@torch.no_grad()
@pytest.mark.parametrize('size', [(8, 32), (12, 20)])
def test_pictures_that_are_not_square(size, read):
    """2 x 8 patches are as many as those of a square, 3 x 5 are not."""
    model = vit(0, image_size=size)
    found = read(model.to_official(), *SMALL_WORDS, f'--image_size={size[0]},{size[1]}')
    x = torch.randn(2, 3, *size)
    assert found.config.image_size == size and torch.equal(found(x)[0], model(x)[0])


@pytest.mark.parametrize('size', ['1,2,3', '13,16'])
def test_a_size_that_is_none_is_refused(size, tmp_path, capsys):
    torch.save(vit(1).to_official(), tmp_path / 'w.pth')
    fails(capsys, official_weights.main, f'{tmp_path}/w.pth', *SMALL_WORDS, f'--image_size={size}',
          f'--out_dir={tmp_path}/out')
    assert not (tmp_path / 'out').exists()


# ---- GPT-2 and AoT out again

OF_GPT2 = dict(attn='mhsa', mlp=True)


def written(model, path, *words):
    """What gpt2_weights.py reads of a network in nanoGPT's names, or, if the path is of safetensors, in Hugging
    Face's."""
    if path.suffix == '.safetensors':
        save_file(model.to_hugging_face(), path, {'format': 'pt'})
    else:
        torch.save({'model': model.to_official(), 'iter_num': 3}, path)
    gpt2_weights.main(['--from', str(path), '--n_head=2', f'--out_dir={path}.run', *words])
    return load_model(open_run(f'{path}.run'))


@torch.no_grad()
@pytest.mark.parametrize('file, rows', [('ckpt.pt', 50304), ('model.safetensors', 50257)])
@pytest.mark.parametrize('settings', [OF_GPT2, OF_GPT2 | dict(bias=True, gelu='tanh')], ids=str)
def test_gpt2_goes_out_and_comes_back(settings, file, rows, tmp_path, capsys):
    model, x = text_network('aot', vocab_size=50304, **settings), torch.arange(16)[None]
    found = written(model, tmp_path / file, f'--gelu={settings.get("gelu", "none")}')
    assert torch.equal(found(x)[0], model(x)[0][..., :rows]) and found.config.vocab_size == rows
    assert ('left out: the last 47 rows' in capsys.readouterr().out) == (rows == 50257)


@torch.no_grad()
@pytest.mark.parametrize('settings', [{}, dict(mlp=True, bias=True)], ids=str)
def test_aot_goes_out_under_nanogpts_names_and_comes_back(settings, tmp_path):
    model, x = text_network('aot', vocab_size=50304, **settings), torch.arange(16)[None]
    names = model.to_official().keys()
    assert all(name.startswith('transformer.') or name == 'lm_head.weight' for name in names)
    assert torch.equal(written(model, tmp_path / 'ckpt.pt')(x)[0], model(x)[0])


def test_a_checkpoint_of_nanogpt_computes_gelu_exactly_and_openais_does_not(tmp_path):
    model = text_network('aot', vocab_size=50257, **OF_GPT2)
    assert written(model, tmp_path / 'ckpt.pt').config.gelu == 'none'
    assert written(model, tmp_path / 'model.safetensors').config.gelu == 'tanh'


def test_the_names_are_those_of_nanogpt_and_the_shapes_those_of_openai(tmp_path):
    """The golden file is of nanoGPT's code. OpenAI's maps are (inputs, outputs)."""
    model, (sd, g) = golden_text('gpt_bias_true')[0], golden('gpt_bias_true')
    assert equal(model.to_official(), {name: sd[name] for name in model.to_official()})
    assert not {name for name, *_ in g['state_dict'] if not name.endswith('.attn.bias')} - model.to_official().keys()
    save_file(model.to_hugging_face(), tmp_path / 'model.safetensors')
    theirs = load_file(tmp_path / 'model.safetensors')
    shapes = {name.split('h.0.')[-1]: tuple(t.shape) for name, t in theirs.items()}
    d = model.config.n_embd
    assert shapes['attn.c_attn.weight'] == (d, 3 * d) and shapes['attn.c_attn.bias'] == (3 * d,)
    assert shapes['mlp.c_fc.weight'] == (d, 4 * d) and shapes['mlp.c_proj.weight'] == (4 * d, d)
    assert 'lm_head.weight' not in theirs and equal(theirs['transformer.wpe.weight'], sd['transformer.wpe.weight'])


def test_what_others_have_no_names_for_is_refused():
    for settings in ({}, dict(attn='mhsa'), OF_GPT2 | dict(head_dim=12)):
        with pytest.raises(Mistake, match='to_official'):
            text_network('aot', **settings).to_hugging_face()
    for settings in (dict(image_size=8, patch_size=4), dict(n_dims=4)):
        with pytest.raises(Mistake, match='state_dict'):
            text_network('aot', **settings).to_official()
