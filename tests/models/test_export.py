"""torch.export takes a network of each kind, for batches of any size and texts of any length. The
exported program computes what the network computes."""
import pytest
import torch
from helpers import generator, masked_autoencoder, picture_network, text_network, tokens
from torch.export import Dim, export

ANY_BATCH = Dim('batch')
ANY_LENGTH = Dim('length', max=16)


def exported(model, inputs, sizes):
    """The program that torch.export makes of the network. sizes: for each input, which of its
    dimensions may differ from call to call."""
    return export(model, inputs, dynamic_shapes=sizes).module()


def assert_same(program, model, *inputs):
    """Fails unless both have the same outputs."""
    for actual, expected in zip(program(*inputs), model(*inputs), strict=True):
        if expected is None:  # there is no loss
            assert actual is None
        else:
            assert torch.allclose(actual, expected, atol=1e-6)


@pytest.mark.parametrize('name, settings', [
    ('crate', {}),
    ('aot', dict(attn='mhsa', mlp=True, bias=True)),
    ('tost', dict(layer_scale=1.0)),
])
def test_a_network_of_text_takes_any_batch_and_any_length(name, settings):
    model = text_network(name, n_layer=1, **settings)
    if name == 'tost':
        torch.nn.init.normal_(model.layers[0].attn.b)  # at the start they are zero

    program = exported(model, (tokens(3, 10),), [{0: ANY_BATCH, 1: ANY_LENGTH}])

    for sizes in ((2, 4), (5, 16), (1, 1)):
        assert_same(program, model, tokens(*sizes))


@pytest.mark.parametrize('name, settings', [
    ('crate', {}),
    ('tost', dict(layer_scale=1.0)),
])
def test_a_network_of_pictures_takes_any_batch(name, settings):
    model = picture_network(name, **settings)

    program = exported(model, (torch.randn(3, 3, 8, 8),), [{0: ANY_BATCH}])

    for B in (1, 5):
        assert_same(program, model, torch.randn(B, 3, 8, 8, generator=generator(2)))


@pytest.mark.parametrize('name', ['crate_mae', 'vit_mae'])
def test_a_masked_autoencoder_takes_any_batch(name):
    model, x, noise = masked_autoencoder(name, n_layer=1)

    program = exported(model, (x, noise), [{0: ANY_BATCH}, {0: ANY_BATCH}])

    for B in (1, 5):
        other_x = torch.randn(B, *x.shape[1:], generator=generator(2))
        other_noise = torch.rand(B, noise.size(1), generator=generator(3))
        assert_same(program, model, other_x, other_noise)
