"""CRATE-MAE and ViT-MAE alike: what is hidden, what hidden patches may reach, reconstructions.
What CRATE-MAE's own settings do."""
import pytest
import torch
from helpers import equal, masked_autoencoder

from model_crate_mae import patchify, unpatchify

PICTURE = (8, 12)  # height, width, as in helpers: 12 patches
PATCH = (2, 4)


def pixels_of(hidden):
    """Where patches are hidden, bool (B, N), as pixels, bool (B, C, H, W)."""
    return unpatchify(hidden[..., None].expand(-1, -1, 24), PICTURE, PATCH)


@pytest.fixture(params=['crate_mae', 'vit_mae'])
def name(request):
    return request.param


# ---- what is hidden


@pytest.fixture(params=[(0.75, 3), (0.9, 1), (1 / 12, 11)], ids=str)
def masking(request, name):
    """(a network, noise, how many of 12 patches stay visible)"""
    mask_ratio, n_visible = request.param
    model, _, noise = masked_autoencoder(name, mask_ratio=mask_ratio)
    return model, noise, n_visible


def test_the_ratio_says_how_many_patches_are_hidden(masking):
    model, noise, n_visible = masking

    assert (model.hide(noise).sum(1) == 12 - n_visible).all()


def test_the_least_noise_stays_visible(masking):
    model, noise, _ = masking

    for numbers, hidden in zip(noise, model.hide(noise)):
        assert numbers[~hidden].max() < numbers[hidden].min()


def test_of_equal_noise_the_first_patches_stay_visible(masking):
    model, _, n_visible = masking

    hidden = model.hide(torch.zeros(2, 12))

    assert not hidden[:, :n_visible].any()
    assert hidden[:, n_visible:].all()


def test_nine_tenths_of_ten_patches_are_nine(name):
    """10 (1 - 0.9) is 0.9999999999999998 in floats."""
    model = masked_autoencoder(name, mask_ratio=0.9)[0]

    assert model.hide(torch.rand(3, 10)).sum() == 27


def test_without_noise_masks_follow_the_seed(name):
    model, x, _ = masked_autoencoder(name)

    torch.manual_seed(1)
    first = model(x)[0]
    second = model(x)[0]
    torch.manual_seed(1)

    assert torch.equal(model(x)[0], first)
    assert not torch.equal(second, first)


# ---- what patches reach


@pytest.fixture(params=[
    ('crate_mae', {}),
    ('crate_mae', {'masking': 'zero'}),
    ('crate_mae', {'decoder_skip': 'normed'}),
    ('vit_mae', {}),
], ids=str)
def passes(request):
    """(outputs, loss) of pictures, of pictures with other hidden patches, and of pictures with
    other visible patches. The outputs are the tokens after each layer of the encoder, and the
    prediction."""
    name, settings = request.param
    model, x, noise = masked_autoencoder(name, **settings)
    outputs = []
    for layer in model.layers:
        layer.register_forward_hook(lambda layer, args, out: outputs.append(out))
    is_hidden = pixels_of(model.hide(noise))
    other_hidden = torch.where(is_hidden, torch.randn_like(x) * 9, x)
    other_visible = torch.where(is_hidden, x, x + 0.1)

    results = []
    for pictures in (x, other_hidden, other_visible):
        outputs.clear()
        pred, loss = model(pictures, noise)
        results.append(([*outputs, pred], loss))
    return results


def test_hidden_patches_reach_no_token_and_no_prediction(passes):
    (outputs, _), (changed, _), _ = passes

    assert equal(outputs, changed)


def test_hidden_patches_reach_the_loss(passes):
    (_, loss), (_, changed), _ = passes

    assert loss != changed


def test_visible_patches_reach_every_token_of_every_layer(passes):
    (outputs, _), _, (changed, _) = passes

    for before, after in zip(outputs, changed, strict=True):
        assert (before != after).any(2).all()


# ---- what comes out


def test_what_was_learned_of_normalized_patches_gets_their_mean_and_deviation_back(name):
    model, x, noise = masked_autoencoder(name, norm_pix_loss=True)
    patches = patchify(x, PATCH)

    pred = model(x, noise)[0]
    pixels = pred * patches.std(-1, keepdim=True) + patches.mean(-1, keepdim=True)

    reconstruction = model.reconstruct(x, noise)
    assert reconstruction.shape == x.shape
    assert torch.allclose(reconstruction, unpatchify(pixels, PICTURE, PATCH), atol=1e-4)


# ---- settings of CRATE-MAE


def test_masking_with_zeros_is_zeroing_the_pixels():
    model, x, noise = masked_autoencoder('crate_mae', masking='zero')
    torch.nn.init.normal_(model.embed.patch.bias)
    hidden = model.hide(noise)

    zeroed = x.masked_fill(pixels_of(hidden), 0.0)

    assert torch.allclose(model.embed(x, hidden), model.embed(zeroed), atol=1e-6)


def test_the_papers_listing_subtracts_from_the_norm():
    layer = masked_autoencoder('crate_mae', decoder_skip='normed')[0].decoder_layers[0]
    y = torch.randn(2, 13, 16)

    normed = layer.norm2(layer.E(layer.norm1(y)))

    assert torch.allclose(layer(y), normed - layer.attn(normed), atol=1e-6)
