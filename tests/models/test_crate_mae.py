"""CRATE-MAE: equal to the authors' code layer by layer, and what is its own: masking by zeros, the
paper's listing."""
import math

import torch
from helpers import golden_pictures, masked_autoencoder, noise_of, same_tokens

from model_crate_mae import CRATEMAE, CRATEMAEConfig, unpatchify


def test_crate_mae_equals_the_released_code_layer_by_layer():
    model, g, x = golden_pictures('crate_mae')
    want, hidden = g['outputs']['tokens'], model.hide(noise_of(g))
    same_tokens(model.embed.patch(x).flatten(2).mT, want['patch_embedding'])
    z = model.embed(x, hidden)
    same_tokens(z, want['tokens_before_encoder'])
    for l, layer in enumerate(model.layers):
        same_tokens(z + layer.attn(layer.norm1(z)), want[f'encoder{l}.after_attention_residual'])
        z = layer(z)
        same_tokens(z, want[f'encoder{l}.output'])
    y = model.norm(z)
    same_tokens(y, want['encoder_norm'])
    for l, layer in enumerate(model.decoder_layers):
        same_tokens(layer.E(layer.norm1(y)), want[f'decoder{l}.after_dictionary'])
        y = layer(y)
        same_tokens(y, want[f'decoder{l}.output'])
    same_tokens(model.decoder_norm(y), want['decoder_norm'])


def test_features_and_attention_of_whole_pictures_equal_the_released_codes():
    model, g, x = golden_pictures('crate_mae')
    want, last = g['outputs']['unmasked'], model.layers[-1]
    same_tokens(model.encode(x), want['encoder_norm_output'])
    assert torch.allclose(model.features(x), model.encode(x)[:, 0])
    w = last.attn.U(last.norm1(model.layers[:-1](model.embed(x))))
    same_tokens(w, want['last_encoder_layer_subspace_coordinates'])
    heads = w.unflatten(2, (4, 12)).transpose(1, 2)
    same_tokens((heads @ heads.mT / math.sqrt(12)).softmax(-1), want['last_encoder_layer_attention'])


def test_masking_with_zeros_is_zeroing_the_pixels():
    model, x, noise = masked_autoencoder('crate_mae', masking='zero')
    torch.nn.init.normal_(model.embed.patch.bias)
    pixels = unpatchify(model.hide(noise)[..., None].expand(-1, -1, 24), *model.embed.sizes)
    zeroed = model.embed(x.masked_fill(pixels, 0.0))
    assert torch.allclose(model.embed(x, model.hide(noise)), zeroed, atol=1e-6) and model.embed.mask_token is None


def test_the_papers_listing_subtracts_from_the_norm():
    listing, x, noise = masked_autoencoder('crate_mae', decoder_skip='normed')
    y, layer = torch.randn(2, 13, 16), listing.decoder_layers[0]
    h = layer.norm2(layer.E(layer.norm1(y)))
    assert torch.allclose(layer(y), h - layer.attn(h), atol=1e-6)
    released, _, _ = masked_autoencoder('crate_mae')
    released.load_state_dict(listing.state_dict())
    assert not torch.allclose(released(x, noise)[0], listing(x, noise)[0], atol=1e-3)


def test_parameters_counted_both_ways():
    """We count what a forward pass reads. The paper's Table 1 also counts two position tables and
    an unused layer."""
    table = 197
    for n_layer, d, n_head, ours, trainable, paper in ((12, 384, 6, 11_256_192, 11_404_032, 11_555_328),
                                                       (12, 576, 12, 24_846_528, 25_178_880, 25_405_824),
                                                       (12, 768, 12, 43_745_280, 44_335_872, 44_638_464),
                                                       (24, 1024, 16, 152_821_504, 153_871_104, 154_274_560)):
        with torch.device('meta'):
            model = CRATEMAE(CRATEMAEConfig(n_layer=n_layer, n_embd=d, n_head=n_head))
        assert model.num_params() == ours and sum(t.numel() for t in model.to_official().values()) == paper
        assert ours + d * d + d == trainable == paper - 2 * table * d
