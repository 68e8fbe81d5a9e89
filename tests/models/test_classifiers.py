"""Classifiers of pictures, CRATE, CRATE-alpha and ViT alike: memorizing a batch, label smoothing,
settings that do not fit."""
import importlib

import pytest
import torch
import torch.nn.functional as F
from helpers import memorize

from model_crate import CRATE, CRATEConfig
from model_crate_alpha import CRATEAlpha, CRATEAlphaConfig
from model_vit import ViT, ViTConfig

ALL = [(CRATE, CRATEConfig), (CRATEAlpha, CRATEAlphaConfig), (ViT, ViTConfig)]


@pytest.mark.parametrize('Model, Config, settings', [
    (CRATE, CRATEConfig, {}), (CRATE, CRATEConfig, dict(pool='mean', tie_out=True, ista='soft')),
    (CRATE, CRATEConfig, dict(ista='mm', head_dim=12)), (CRATEAlpha, CRATEAlphaConfig, {}),
    (CRATEAlpha, CRATEAlphaConfig, dict(pool='mean', atoms=1, decoupled=False, skip=False)), (ViT, ViTConfig, {}),
    (ViT, ViTConfig, dict(pool='cls'))])
def test_a_fresh_network_knows_little_and_can_memorize(Model, Config, settings):
    torch.manual_seed(0)
    small = dict(image_size=(8, 12), patch_size=4, num_classes=5, n_layer=2, n_head=2, n_embd=32)
    model = Model(Config(**small | settings)).train()
    x, y = torch.randn(6, 3, 8, 12), torch.tensor([0, 1, 2, 3, 4, 0])
    first = model(x, y)[1].item()
    assert 1.2 < first < 2.3  # log 5 = 1.61
    memorize(model, x, y, 0.1, lr=3e-3)
    assert torch.allclose(torch.compile(model, backend='eager', fullgraph=True)(x, y)[1], model(x, y)[1])


@pytest.mark.parametrize('Model, Config', ALL)
def test_label_smoothing_acts_in_training_only(Model, Config):
    model = Model(Config(1, 2, 16, image_size=8, patch_size=4, num_classes=5, label_smoothing=0.5))
    x, y = torch.randn(3, 3, 8, 8), torch.tensor([0, 1, 2])
    logits, loss = model(x, y)
    each = torch.stack([F.cross_entropy(logits, torch.full((3,), k)) for k in range(5)])  # were k the class of all
    assert loss.item() == pytest.approx((0.5 * F.cross_entropy(logits, y) + 0.5 * each.mean()).item())
    assert model.eval()(x, y)[1].item() == pytest.approx(F.cross_entropy(logits, y).item())


@pytest.mark.parametrize('Config, settings, word', [
    (CRATEConfig, dict(image_size=30), 'divisible by patch_size'), (CRATEConfig, dict(pool='max'), 'cls or mean'),
    (CRATEConfig, dict(ista='hard'), 'relu'), (CRATEConfig, dict(n_embd=10, n_head=4), 'n_head'),
    (ViTConfig, dict(patch_size=(16, 15)), 'divisible by patch_size'), (ViTConfig, dict(pool='max'), 'cls or mean'),
    (ViTConfig, dict(n_embd=10, n_head=4), 'n_head'), (CRATEConfig, dict(n_head=0), 'n_head'),
    (ViTConfig, dict(n_head=0), 'n_head'), (CRATEConfig, dict(n_embd=0), 'n_embd'),
    (CRATEConfig, dict(n_layer=-1), 'n_layer'), (ViTConfig, dict(n_layer=-1), 'n_layer'),
    (CRATEAlphaConfig, dict(atoms=0), 'atoms'),
    (CRATEAlphaConfig, dict(steps=0), 'steps'), (CRATEAlphaConfig, dict(n_embd=10, n_head=4), 'n_head'),
    (CRATEAlphaConfig, dict(pool='max'), 'cls or mean'),
    (CRATEAlphaConfig, dict(image_size=30), 'divisible by patch_size'),
    (CRATEConfig, dict(num_classes=-1), 'num_classes')])
def test_impossible_configs_say_why(Config, settings, word):
    with pytest.raises(ValueError, match=word):
        Config(**settings)


@pytest.mark.parametrize('Model, Config', ALL)
def test_pictures_of_another_size_are_refused(Model, Config):
    with pytest.raises(ValueError, match='resize'):
        Model(Config(1, 2, 16, image_size=8, patch_size=4))(torch.randn(1, 3, 8, 12))


@pytest.mark.parametrize('name, modules', [('crate', 3), ('crate_alpha', 3), ('vit', 5), ('aot', 3)])
def test_dropout_acts_wherever_it_should_and_in_training_alone(name, modules, monkeypatch):
    file = importlib.import_module(f'model_{name}')
    model = file.Network(file.Config(n_layer=2, n_head=2, n_embd=16, image_size=8, patch_size=4, num_classes=3,
                                     dropout=0.5))
    shares, dropped = [], []
    monkeypatch.setattr(file, 'attention', lambda q, k, v, dropout_p=0.0, **more: shares.append(dropout_p) or v)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.register_forward_hook(lambda module, args, out: dropped.append(bool((out == 0).any())))
    for training in (True, False):
        shares.clear(), dropped.clear()
        model.train(training)(torch.randn(4, 3, 8, 8))
        assert shares == [0.5 * training] * 2 and dropped == [training] * modules


@pytest.mark.parametrize('name', ['vit', 'crate'])
def test_pictures_start_as_in_the_released_code(name):
    file = importlib.import_module(f'model_{name}')
    torch.manual_seed(0)
    model = file.Network(file.Config(n_layer=2, n_head=4, n_embd=96, image_size=32, patch_size=8, num_classes=10))
    for layer in model.layers:
        if name == 'crate':
            assert 0.99 * 0.25 < layer.ista.D.abs().max() <= 0.25 and layer.ista.D.std().item() == pytest.approx(
                0.1443, rel=0.03)                       # sqrt(6 / 96), and that over sqrt(3)
        else:
            for p in (layer.attn.QKV, layer.attn.W, layer.mlp.up, layer.mlp.down):
                assert p.weight.std().item() == pytest.approx(0.02, rel=0.05) and not p.bias.any()
