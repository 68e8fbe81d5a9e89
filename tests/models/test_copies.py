"""Model files stand alone, so some operators and helpers stand in several files. Here the copies compute the same."""
import importlib

import pytest
import torch
from helpers import tokens

from engine import networks

PICTURES = dict(image_size=(16, 24), patch_size=(8, 4), num_classes=3, n_layer=1, n_head=3, n_embd=12)
TEXT = dict(image_size=0, block_size=16, vocab_size=11, n_layer=1, n_head=3, n_embd=12)
TIED, SMOOTH, BIAS = dict(tie_out=True), dict(label_smoothing=0.1, pool='mean'), dict(bias=True)

# two networks, their settings, and the parts that are copies
COPIES = [
    ('crate', 'aot', PICTURES | BIAS, ['embed', 'read', 'layers.0.attn', 'layers.0.attn.average']),
    ('crate', 'aot', PICTURES | BIAS | TIED | SMOOTH, ['read', 'layers.0.attn']),
    ('crate', 'aot', TEXT | BIAS | dict(final_norm=True), ['embed', 'read', 'layers.0.attn.average']),
    ('crate', 'crate_alpha', PICTURES | SMOOTH, ['read', 'layers.0.attn.average']),
    ('crate', 'crate_alpha', TEXT | dict(final_norm=True), ['embed', 'read', 'layers.0.norm1', 'layers.0.attn']),
    ('aot', 'tost', TEXT | dict(mlp=True, layer_scale=1.0), ['embed', 'read', 'layers.0.norm1', 'layers.0.mlp']),
    ('aot', 'tost', TEXT | BIAS | dict(mlp=True, layer_scale=1.0), ['embed', 'read', 'layers.0.mlp']),
    ('crate', 'crate_mae', PICTURES | dict(eta=0.3, lam=0.4), ['layers.0.attn', 'layers.0.ista', 'layers.0']),
    ('crate', 'crate_mae', PICTURES | TIED, ['layers.0.attn']),
    ('vit', 'vit_mae', PICTURES | dict(decoder_n_head=2, decoder_n_embd=8), ['layers.0'])]


def pairs(ours, theirs):
    return zip(ours, theirs, strict=True) if isinstance(ours, tuple) else [(ours, theirs)]


@pytest.mark.parametrize('one, other, settings, parts', COPIES)
def test_parts_of_two_networks_compute_the_same(one, other, settings, parts):
    torch.manual_seed(0)
    models = []
    for Network, Config in map(networks.network, (one, other)):
        models.append(Network(Config(**{k: v for k, v in settings.items() if hasattr(Config, k)})))
    for p in models[0].parameters():
        torch.nn.init.normal_(p)
    z, text = torch.randn(2, 7, 12), not settings['image_size']
    y = tokens(2, 7) if text else torch.tensor([0, 2])
    for part in parts:
        ours, theirs = (model.get_submodule(part) for model in models)
        theirs.load_state_dict(ours.state_dict(), strict=False)     # biases of AoT's U and a scale in ToST's MLP stay
        inputs = {'embed': (tokens(2, 7) if text else torch.randn(2, 3, 16, 24),), 'read': (z, y),
                  'layers.0.attn.average': (z, z + 1, z - 1)}.get(part, (z,))
        more = dict(first=3) if part == 'embed' and text else {}
        for a, b in pairs(ours(*inputs, **more), theirs(*inputs, **more)):
            assert torch.allclose(a, b, atol=1e-5)
        if part == 'read':
            assert text or torch.equal(ours.features(z), theirs.features(z))
            assert getattr(ours, 'LOGITS_AT_ONCE', 0) == getattr(theirs, 'LOGITS_AT_ONCE', 0)


SIZES, AUTOENCODERS, TEXTS = (3, 16, 24, 8, 4), ['crate_mae', 'vit_mae'], ['aot', 'crate', 'crate_alpha', 'tost']
Z = torch.randn(3, 2, 12, 96, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize('name, files, args', [
    ('patchify', ['aot', 'crate', *AUTOENCODERS], (torch.randn(2, 3, 16, 24), *SIZES)),
    ('unpatchify', AUTOENCODERS, (Z[0], *SIZES)), ('statistics', AUTOENCODERS, (Z[0],)),
    ('sines_and_cosines', AUTOENCODERS, ((4, 6), 8)), ('average', AUTOENCODERS, (*Z, 4)),
    ('average', AUTOENCODERS, (Z[0], Z[0], Z[0], 4)),
    *(('language_loss', TEXTS, (Z[0], torch.eye(11, 96), tokens(2, 12), most)) for most in (10, 22, 10 ** 6))])
def test_functions_of_several_files_compute_the_same(name, files, args):
    ours, *others = (getattr(importlib.import_module(f'model_{file}'), name)(*args) for file in files)
    for theirs in others:
        assert all(a is b is None or torch.equal(a, b) for a, b in pairs(ours, theirs))


def test_vit_attends_as_its_masked_autoencoder():
    import model_vit
    import model_vit_mae
    assert torch.equal(model_vit.average(*Z, 4, 0.0), model_vit_mae.average(*Z, 4))
