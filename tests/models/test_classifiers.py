"""Classifiers of pictures, all alike: memorizing a batch, label smoothing, dropout."""
import importlib

import pytest
import torch
import torch.nn.functional as F
from helpers import memorize

from engine import networks

CLASSIFIERS = [
    ('aot', {}), ('aot', dict(attn='mhsa', pool='mean')), ('crate', {}),
    ('crate', dict(pool='mean', tie_out=True, ista='soft')), ('crate', dict(ista='mm', head_dim=12)),
    ('crate_alpha', {}), ('crate_alpha', dict(pool='mean', atoms=1, decoupled=False, skip=False)),
    ('vit', {}), ('vit', dict(pool='cls')), ('tost', {}), ('tost', dict(patch_size=2, channels=1, bias=True))]
NAMES = list(dict(CLASSIFIERS))


def fresh(name, **settings):
    """A network of pictures of 2 x 3 patches, (B, 3, 8, 12), in 5 classes."""
    Network, Config = networks.network(name)
    torch.manual_seed(0)
    small = dict(image_size=(8, 12), patch_size=4, num_classes=5, n_layer=2, n_head=2, n_embd=32)
    small |= dict(layer_scale=1.0) if name == 'tost' else {}
    return Network(Config(**small | settings))


@pytest.mark.parametrize('name, settings', CLASSIFIERS)
def test_a_fresh_network_knows_little_and_can_memorize(name, settings):
    model = fresh(name, **settings).train()
    x, y = torch.randn(6, model.config.channels, 8, 12), torch.tensor([0, 1, 2, 3, 4, 0])
    assert 1.2 < model(x, y)[1].item() < 2.3 and model.features(x).shape == (6, 32)     # log 5 = 1.61
    memorize(model, x, y, 0.1, lr=3e-3)
    assert torch.allclose(torch.compile(model, backend='eager', fullgraph=True)(x, y)[1], model(x, y)[1])


@pytest.mark.parametrize('name', NAMES)
def test_label_smoothing_acts_in_training_only(name):
    model, x, y = fresh(name, label_smoothing=0.5), torch.randn(3, 3, 8, 12), torch.tensor([0, 1, 2])
    logits, loss = model(x, y)
    each = torch.stack([F.cross_entropy(logits, torch.full((3,), k)) for k in range(5)])  # were k the class of all
    assert loss.item() == pytest.approx((0.5 * F.cross_entropy(logits, y) + 0.5 * each.mean()).item())
    logits, loss = model.eval()(x, y)
    assert loss.item() == pytest.approx(F.cross_entropy(logits, y).item())


@pytest.mark.parametrize('name, modules, attentions', [
    ('crate', 3, 2), ('crate_alpha', 3, 2), ('vit', 5, 2), ('aot', 3, 2), ('tost', 7, 0)])
def test_dropout_acts_wherever_it_should_and_in_training_alone(name, modules, attentions, monkeypatch):
    model, shares, dropped = fresh(name, dropout=0.5), [], []
    plain = F.scaled_dot_product_attention
    monkeypatch.setattr(importlib.import_module(f'model_{name}'), 'attention', lambda q, k, v, dropout_p=0.0, **more: (
        shares.append(dropout_p) or plain(q, k, v)))
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.register_forward_hook(lambda module, args, out: dropped.append(bool((out == 0).any())))
    x = torch.randn(4, 3, 8, 12)
    for training in (True, False):
        shares.clear(), dropped.clear()
        a, b = model.train(training)(x)[0], model(x)[0]
        assert torch.equal(a, b) != training
        assert [p for p in shares if p or attentions] == [0.5 * training] * 2 * attentions
        assert dropped == [training] * 2 * modules
