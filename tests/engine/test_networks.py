"""Networks by name and for a dataset; trained networks with other settings, another resolution, another head."""
import dataclasses

import pytest
import torch
from helpers import equal, masked_autoencoder, text_network

from engine import networks
from engine.mistakes import Mistake
from request.build import config_for
from weights.runs import Run, as_classifier
from weights.surgery import load_model, resize_positions

TEXT = {'kind': 'text', 'vocab_size': 256, 'tokenizer': {'name': 'bytes'}}
GREY = {'kind': 'images', 'channels': 1, 'classes': list('abc'), 'splits': {'train': {'height': 12, 'width': 8}}}
PACK = GREY | {'channels': 3, 'splits': {'train': {'bytes': 9}}}

# ---- networks by name, and for a dataset

@pytest.mark.parametrize('name, given, meta, want', [
    ('crate', dict(causal=False), TEXT, dict(vocab_size=257)),  # and [MASK]
    ('vit', dict(patch_size=4), GREY, dict(image_size=(12, 8), channels=1, num_classes=3)),
    ('vit', {}, PACK, dict(image_size=(224, 224), channels=3)),
    ('aot', {}, {'kind': 'functions'}, dict(task='icl', n_dims=20, block_size=82))])
def test_a_dataset_fills_in_what_a_network_has(name, given, meta, want):
    config = config_for(name, given, meta)
    assert {k: getattr(config, k) for k in want} == want


# ---- trained networks


def held_of(name, model):
    """A network as open_run gives it."""
    return Run(name, settings={}, network=dataclasses.asdict(model.config), data={}, weights=model.state_dict())


def test_positions_for_another_grid():
    """A ramp stays a ramp, away from its ends; the class token's position stays what it is. Also in
    float16, in which runs are shipped."""
    down, across = torch.meshgrid(torch.arange(8.0), torch.arange(12.0), indexing='ij')
    ramp = torch.stack((down, across, torch.full_like(down, 9.0)), -1).flatten(0, 1)
    pos = torch.cat((torch.full((1, 3), 7.0), ramp))[None].half()
    own, fine = resize_positions(pos, (8, 12), (16, 24)).split([1, 16 * 24], 1)
    fine = fine.view(16, 24, 3)
    assert (own == 7).all() and torch.allclose(fine[..., 2], torch.tensor(9.0))
    assert torch.allclose(fine[6:10, 6:18, 0], (torch.arange(6.0, 10) / 2 - 0.25)[:, None].expand(4, 12), atol=0.05)
    assert torch.allclose(fine[6:10, 6:18, 1], (torch.arange(6.0, 18) / 2 - 0.25).expand(4, 12), atol=0.05)
    assert resize_positions(pos, (8, 12), (3, 5)).shape == (1, 16, 3)


@pytest.mark.parametrize('name', ['crate', 'crate_mae', 'vit_mae'])
def test_another_resolution_changes_positions_alone(name):
    model = masked_autoencoder(name)[0]
    held = held_of(name, model)
    assert equal(load_model(held, image_size=(8, 12)).state_dict(), held.weights)
    larger = load_model(held, image_size=(16, 8))
    larger(torch.zeros(1, 3, 16, 8))
    tables = {k: resize_positions(t, (4, 3), (8, 2)) for k, t in held.weights.items() if k.endswith('pos')}
    assert len(tables) == 1 + (name == 'vit_mae') and equal(larger.state_dict(), held.weights | tables)
    with pytest.raises(Mistake, match='patch_size'):
        load_model(held, patch_size=2)


@pytest.mark.parametrize('name, setting', [
    ('aot', dict(n_head=4)), ('aot', dict(n_embd=32)), ('crate', dict(causal=False)),
    ('aot', dict(of_another_version=1))])
def test_weights_stay_the_function_that_they_were_trained_as(name, setting):
    with pytest.raises(Mistake, match=min(setting)):
        load_model(held_of(name, text_network(name)), **setting)


def test_a_network_of_pictures_is_none_of_text():
    with pytest.raises(Mistake, match='image_size=0, but the weights have image_size=8,8'):
        load_model(held_of('crate', text_network('crate', image_size=(8, 8), patch_size=(4, 4))), image_size=0)


@pytest.mark.parametrize('name, pool', [('crate_mae', 'cls'), ('vit_mae', 'mean')])
def test_the_classifier_with_the_encoder_has_its_features(name, pool):
    own = {'lam': 0.2, 'eta': 0.3, 'tie_out': True} if name == 'crate_mae' else {}
    model, x, _ = masked_autoencoder(name, pool=pool, **own)
    encoder = as_classifier(held_of(name, model))
    made = load_model(encoder, new_head=True, num_classes=7)
    assert type(made) is networks.network_class(name.removesuffix('_mae')) and made(x)[0].shape == (3, 7)
    assert torch.allclose(made.features(x), model.eval().features(x), atol=2e-4)
    wide = load_model(encoder, new_head=True, num_classes=7, image_size=(16, 12))
    assert wide.embed.pos.shape == (1, 25, 16) and torch.equal(wide.embed.pos[:, :1], made.embed.pos[:, :1])
    with pytest.raises(Mistake, match=name):  # it has no classifier yet
        load_model(encoder)
