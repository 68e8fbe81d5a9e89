"""Classifiers of pictures, all alike: memorizing a batch, label smoothing, dropout."""
import pytest
import torch
import torch.nn.functional as F
from helpers import memorize

from engine import networks

CLASSIFIERS = [
    ('aot', {}),
    ('aot', dict(attn='mhsa', pool='mean')),
    ('crate', {}),
    ('crate', dict(pool='mean', tie_out=True, ista='soft')),
    ('crate', dict(ista='mm', head_dim=12)),
    ('crate_alpha', {}),
    ('crate_alpha', dict(pool='mean', atoms=1, decoupled=False, skip=False)),
    ('vit', {}),
    ('vit', dict(pool='cls')),
    ('tost', {}),
    ('tost', dict(patch_size=2, channels=1, bias=True)),
]


def fresh(name, **settings):
    """A network of pictures of 2 x 3 patches, (B, 3, 8, 12), in 5 classes."""
    Network, Config = networks.network_class(name), networks.config_class(name)
    sizes = dict(image_size=(8, 12), patch_size=4, num_classes=5, n_layer=2, n_head=2, n_embd=32)
    if name == 'tost':
        sizes['layer_scale'] = 1.0
    torch.manual_seed(0)
    return Network(Config(**sizes | settings))


# ---- a batch


@pytest.fixture(params=CLASSIFIERS, ids=str)
def batch(request):
    """(a network, pictures x, classes y)"""
    name, settings = request.param
    model = fresh(name, **settings)
    x = torch.randn(6, model.config.channels, 8, 12)
    return model, x, torch.tensor([0, 1, 2, 3, 4, 0])


def test_a_fresh_network_knows_little(batch):
    model, x, y = batch

    assert 1.2 < model(x, y)[1].item() < 2.3  # log 5 = 1.61


def test_features_have_the_width_of_a_token(batch):
    model, x, _ = batch

    assert model.features(x).shape == (6, 32)


@pytest.mark.slow
def test_a_network_can_memorize(batch):
    memorize(*batch, 0.1, lr=3e-3)


# ---- each network once

@pytest.fixture(params=['aot', 'crate', 'crate_alpha', 'vit', 'tost'])
def name(request):
    return request.param


@pytest.mark.slow
def test_a_network_compiles_as_one_graph(name):
    model = fresh(name, n_layer=1)
    x = torch.randn(2, 3, 8, 12)
    y = torch.tensor([0, 1])

    compiled = torch.compile(model, backend='eager', fullgraph=True)

    assert torch.allclose(compiled(x, y)[1], model(x, y)[1])


def test_label_smoothing_spreads_a_share_of_the_target_in_training_alone(name):
    model = fresh(name, label_smoothing=0.5)
    x = torch.randn(3, 3, 8, 12)
    y = torch.tensor([0, 1, 2])

    logits, loss = model(x, y)
    logits_of_evaluation, loss_of_evaluation = model.eval()(x, y)

    losses = []
    for k in range(5):  # as if k were the class of all pictures
        losses.append(F.cross_entropy(logits, torch.full((3,), k)))
    expected = 0.5 * F.cross_entropy(logits, y) + 0.5 * torch.stack(losses).mean()
    assert loss.item() == pytest.approx(expected.item())
    without_smoothing = F.cross_entropy(logits_of_evaluation, y)
    assert loss_of_evaluation.item() == pytest.approx(without_smoothing.item())


# ---- dropout

@pytest.mark.parametrize('name, n_modules', [
    ('crate', 3),  # after the embedding, and in each of the two layers
    ('crate_alpha', 3),
    ('vit', 5),
    ('aot', 3),
    ('tost', 7),
])
def test_each_module_drops_out_in_training_alone(name, n_modules):
    model = fresh(name, dropout=0.5)
    x = torch.randn(4, 3, 8, 12)
    dropped = []

    def note(module, args, out):
        dropped.append(bool((out == 0).any()))
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.register_forward_hook(note)

    model.train()(x)
    assert len(dropped) == n_modules
    assert all(dropped)
    dropped.clear()
    model.eval()(x)
    assert len(dropped) == n_modules
    assert not any(dropped)


def test_attention_drops_out_in_training_alone(name, monkeypatch):
    model = fresh(name, dropout=0.5)
    in_training = 0.0 if name == 'tost' else 0.5  # in ToST only the class token attends
    x = torch.randn(4, 3, 8, 12)
    shares = []

    def attention(q, k, v, dropout_p=0.0, **settings):
        shares.append(dropout_p)
        return F.scaled_dot_product_attention(q, k, v)
    monkeypatch.setattr(f'model_{name}.attention', attention)

    model.train()(x)
    model.eval()(x)

    # of two layers in training, then in evaluation
    assert shares == [in_training, in_training, 0.0, 0.0]
