"""CRATE-MAE and ViT-MAE alike: what is hidden, what hidden patches may reach, reconstructions; what CRATE-MAE's own
settings do."""
import pytest
import torch
from helpers import masked_autoencoder

from model_crate_mae import patchify, unpatchify

BOTH = ['crate_mae', 'vit_mae']
PICTURE, PATCH = (8, 12), (2, 4)  # height, width: as in helpers


def pixels_of(hidden):
    """Where patches are hidden, bool (B, N), as pixels, bool (B, C, H, W)."""
    return unpatchify(hidden[..., None].expand(-1, -1, 24), PICTURE, PATCH)


# ---- masking


@pytest.mark.parametrize('name', BOTH)
@pytest.mark.parametrize('ratio, kept', [(0.75, 3), (0.5, 6), (0.9, 1), (0.3, 8), (1 / 12, 11)])
def test_the_least_noise_stays_visible(name, ratio, kept):
    model, x, noise = masked_autoencoder(name, mask_ratio=ratio)
    hidden = model.hide(noise)
    assert (hidden.sum(1) == 12 - kept).all()
    for row, n in zip(hidden, noise):
        assert n[~row].max() < n[row].min()
    same = torch.zeros(2, 12)  # of equal noise the first ones
    assert model.hide(same).tolist() == [[False] * kept + [True] * (12 - kept)] * 2
    assert ratio != 0.9 or model.hide(torch.rand(3, 10)).sum() == 27  # 10 (1 - 0.9) is 0.9999999999999998 in floats


@pytest.mark.parametrize('name, settings', [('crate_mae', {}), ('crate_mae', {'masking': 'zero'}),
                                            ('crate_mae', {'decoder_skip': 'normed'}), ('vit_mae', {})])
def test_hidden_patches_reach_nothing_but_the_loss(name, settings):
    """Pixels of hidden patches change no token of the encoder and no prediction. Those of visible ones change all."""
    model, x, noise = masked_autoencoder(name, **settings)
    pixels = pixels_of(model.hide(noise))

    def seen(x):
        tokens = []
        for layer in model.layers:
            layer.register_forward_hook(lambda layer, args, out: tokens.append(out))
        pred, loss = model(x, noise)
        return [*tokens, pred], loss
    (a, loss), (b, other) = seen(x), seen(torch.where(pixels, torch.randn_like(x) * 9, x))
    assert all(torch.equal(*pair) for pair in zip(a, b)) and loss != other
    c, _ = seen(torch.where(pixels, x, x + 0.1))
    assert all((s != t).any(2).all() for s, t in zip(a, c))  # every token of every layer looks at the visible ones


@pytest.mark.parametrize('name', BOTH)
def test_without_noise_masks_are_random_and_follow_the_seed(name):
    model, x, _ = masked_autoencoder(name)
    torch.manual_seed(1)
    a, b = model(x)[0], model(x)[0]
    torch.manual_seed(1)
    assert torch.equal(model(x)[0], a) and not torch.equal(a, b)
    assert model.reconstruct(x).shape == x.shape and model.encode(x).shape == (3, 13, 16)


def test_masking_with_zeros_is_zeroing_the_pixels():
    model, x, noise = masked_autoencoder('crate_mae', masking='zero')
    torch.nn.init.normal_(model.embed.patch.bias)
    hidden = model.hide(noise)
    zeroed = model.embed(x.masked_fill(pixels_of(hidden), 0.0))
    assert torch.allclose(model.embed(x, hidden), zeroed, atol=1e-6) and model.embed.mask_token is None


def test_the_papers_listing_subtracts_from_the_norm():
    listing, x, noise = masked_autoencoder('crate_mae', decoder_skip='normed')
    y, layer = torch.randn(2, 13, 16), listing.decoder_layers[0]
    h = layer.norm2(layer.E(layer.norm1(y)))
    assert torch.allclose(layer(y), h - layer.attn(h), atol=1e-6)
    released = masked_autoencoder('crate_mae')[0]
    released.load_state_dict(listing.state_dict())
    assert not torch.allclose(released(x, noise)[0], listing(x, noise)[0], atol=1e-3)


@pytest.mark.parametrize('name', BOTH)
def test_what_was_learned_of_normalized_patches_gets_their_mean_and_deviation_back(name):
    model, x, noise = masked_autoencoder(name, norm_pix_loss=True)
    patches, learned = patchify(x, PATCH), model(x, noise)[0]
    pixels = learned * patches.std(-1, keepdim=True) + patches.mean(-1, keepdim=True)
    assert torch.allclose(model.reconstruct(x, noise), unpatchify(pixels, PICTURE, PATCH), atol=1e-4)
