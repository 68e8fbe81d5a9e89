"""CRATE-MAE and ViT-MAE alike: the authors' masks and losses, what hidden patches may reach,
memorizing a batch."""
import dataclasses
import math

import pytest
import torch
from helpers import golden_pictures, masked_autoencoder, memorize, noise_of, same_tokens

from engine import networks, trained
from model_crate_mae import CRATEMAE, CRATEMAEConfig, patchify, sines_and_cosines, statistics, unpatchify
from model_vit_mae import ViTMAE, ViTMAEConfig

BOTH = ['crate_mae', 'vit_mae']
SIZES = 3, 8, 12, 2, 4  # channels, height, width of a picture; height, width of a patch: as in helpers


def pixels_of(hidden):
    """Where patches are hidden, bool (B, N), as pixels, bool (B, C, H, W)."""
    return unpatchify(hidden[..., None].expand(-1, -1, 24), *SIZES)


# ---- the authors' numbers


@pytest.mark.parametrize('name', BOTH)
def test_masks_predictions_and_losses_equal_the_released_codes(name):
    for normalized in (False, True):
        model, g, x = golden_pictures(name, norm_pix_loss=normalized)
        out, noise = g['outputs'], noise_of(g)
        pred, loss = model(x, noise)
        assert loss.item() == pytest.approx(out[f'loss_norm_pix_{str(normalized).lower()}'], abs=1e-5)
        assert model.hide(noise).long().tolist() == out['mask']
        assert list(pred.shape) == out['pred']['shape']
        assert (pred[:, 0, :16] - torch.tensor(out['pred']['first16_per_sample'])).abs().max() < 1e-5
        assert (pred[:, -1, -16:] - torch.tensor(out['pred']['last16_per_sample'])).abs().max() < 1e-5
        assert pred.mean().item() == pytest.approx(out['pred']['mean'], abs=1e-5)
        assert pred.std().item() == pytest.approx(out['pred']['std'], abs=1e-5)
    same_tokens(patchify(x, *model.embed.sizes), out['patchified_target'])


@pytest.mark.parametrize('name', BOTH)
def test_fixed_positions_equal_the_released_codes(name):
    model, g, _ = golden_pictures(name)
    back = model.to_official()
    for table, want in g['outputs']['fixed_position_embedding'].items():
        same_tokens(back[table], want)


def test_positions_by_a_naive_loop():
    pos = sines_and_cosines((2, 3), 8)[0]
    assert pos.shape == (7, 8) and not pos[0].any()
    for down in range(2):
        for across in range(3):
            angles = [[place / 10000 ** (j / 2) for j in (0, 1)] for place in (across, down)]
            want = [f(angle) for both in angles for f in (math.sin, math.cos) for angle in both]
            assert torch.allclose(pos[1 + 3 * down + across], torch.tensor(want), atol=1e-6)


def test_patches_go_both_ways():
    x = torch.randn(2, 3, 8, 12)
    patches = patchify(x, *SIZES)
    assert torch.equal(unpatchify(patches, *SIZES), x)
    mean, deviation = statistics(patches)
    assert torch.allclose(deviation[..., 0], (patches.std(-1) ** 2 + 1e-6).sqrt()) and mean.shape == (2, 12, 1)
    assert torch.allclose(mean[..., 0], patches.mean(-1), atol=1e-6)


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


@pytest.mark.parametrize('name', BOTH)
def test_one_of_ten_patches_stays_visible(name):
    """10 (1 - 0.9) is 0.9999999999999998 in floats."""
    Network, Config = networks.network(name)
    c = Config(n_layer=1, n_head=2, n_embd=8, image_size=(4, 10), patch_size=2, mask_ratio=0.9)
    assert (Network(c).hide(torch.rand(3, 10)).sum(1) == 9).all()


@pytest.mark.parametrize('name, settings', [('crate_mae', {}), ('crate_mae', {'masking': 'zero'}),
                                            ('crate_mae', {'decoder_skip': 'normed'}), ('vit_mae', {})])
def test_hidden_patches_reach_nothing_but_the_loss(name, settings):
    """Pixels of hidden patches change no token of the encoder and no prediction. Those of visible
    patches change all."""
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
def test_a_hidden_patch_is_known_by_its_position(name):
    """Hidden patches enter as the same mask token, so their predictions differ by position
    alone."""
    model, x, noise = masked_autoencoder(name)
    pred = model(x, noise)[0][model.hide(noise)]
    assert (pred[1:] - pred[:-1]).abs().max(1).values.min() > 1e-4
    for table in model.buffers():  # of positions
        table.zero_()
    pred = model(x, noise)[0]
    for row, where in zip(pred, model.hide(noise)):
        assert torch.allclose(row[where], row[where][:1].expand_as(row[where]), atol=1e-5)


@pytest.mark.parametrize('name', BOTH)
def test_without_noise_masks_are_random_and_follow_the_seed(name):
    model, x, _ = masked_autoencoder(name)
    torch.manual_seed(1)
    a, b = model(x)[0], model(x)[0]
    torch.manual_seed(1)
    assert torch.equal(model(x)[0], a) and not torch.equal(a, b)
    assert model.reconstruct(x).shape == x.shape and model.encode(x).shape == (3, 13, 16)


@pytest.mark.parametrize('name', BOTH)
def test_the_loss_is_that_of_hidden_patches_by_a_naive_loop(name):
    for normalized in (False, True):
        model, x, noise = masked_autoencoder(name, norm_pix_loss=normalized)
        pred, loss = model(x, noise)
        errors = []
        for b in range(3):
            for n in noise[b].argsort()[3:].tolist():
                top, left = n // 3 * 2, n % 3 * 4
                patch = x[b, :, top:top + 2, left:left + 4].permute(1, 2, 0).flatten()
                if normalized:
                    patch = (patch - patch.mean()) / (patch.var() + 1e-6).sqrt()
                errors.append((pred[b, n] - patch).square().mean().item())
        assert loss.item() == pytest.approx(sum(errors) / len(errors), rel=1e-5)


# ---- learning


@pytest.mark.slow
@pytest.mark.parametrize('name, settings', [
    ('crate_mae', {}), ('crate_mae', dict(masking='zero')), ('crate_mae', dict(decoder_skip='normed')),
    ('crate_mae', dict(tie_out=True)),
    ('crate_mae', dict(norm_pix_loss=True, head_dim=12, decoder_n_head=4, decoder_n_layer=1)),
    ('vit_mae', {}), ('vit_mae', dict(norm_pix_loss=True))])
def test_a_batch_can_be_memorized(name, settings):
    model, _, noise = masked_autoencoder(name, n_embd=64, **settings)
    x = 0.5 * torch.randn(3, 3, 8, 12)
    memorize(model, x, noise, 0.05 * model.target(x).var(), steps=1500, lr=3e-3)
    hidden = pixels_of(model.hide(noise))
    error = (model.reconstruct(x, noise) - x)[hidden].square().mean()
    assert error < 0.1 * x[hidden].var()  # in pixels, also where normalized ones were learned
    compiled = torch.compile(model, backend='eager', fullgraph=True)
    assert torch.allclose(compiled(x, noise)[1], model(x, noise)[1], atol=1e-6)


def test_weights_begin_as_the_released_codes():
    """Xavier for linear maps, D and E within sqrt(6/d), tokens of deviation 0.02."""
    torch.manual_seed(0)
    vit = ViTMAEConfig(image_size=32, n_layer=2, n_embd=96, n_head=4, decoder_n_layer=2, decoder_n_embd=64,
                       decoder_n_head=4)
    for Model, c in ((CRATEMAE, CRATEMAEConfig(image_size=32, n_layer=2, n_embd=96)), (ViTMAE, vit)):
        for name, p in Model(c).named_parameters():
            p = p.detach()
            if name.endswith(('ista.D', '.E.weight')):
                bound = math.sqrt(6 / 96)
            elif p.dim() in (2, 4):
                bound = math.sqrt(6 / (p.shape[0] + p[0].numel()))
            elif name == 'embed.patch.bias':
                bound = 1 / math.sqrt(16 * 16 * 3)
            elif name in ('embed.cls', 'embed.mask_token', 'mask_token'):
                assert 0.014 < p.std() < 0.026 and abs(p.mean()) < 0.01, name
                continue
            else:
                assert (p == ('norm' in name and name.endswith('weight'))).all(), name
                continue
            assert 0.9 * bound < p.abs().max() <= bound, name
            assert p.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.2), name


# ---- the classifier with the encoder, other resolutions


def run_of(model, name):
    """What open_run gives for a run of this network."""
    return {'weights': model.state_dict(), 'model': name, 'network': dataclasses.asdict(model.config)}


@pytest.mark.parametrize('name', BOTH)
@pytest.mark.parametrize('pool', ['cls', 'mean'])
def test_the_classifier_with_the_encoder_has_its_features(name, pool):
    own = {'lam': 0.2, 'eta': 0.3, 'tie_out': True} if name == 'crate_mae' else {}
    model, x, _ = masked_autoencoder(name, pool=pool, **own)
    encoder = trained.as_classifier(run_of(model, name))
    made = trained.load_model(encoder, new_head=True, num_classes=7)
    assert torch.allclose(made.features(x), model.eval().features(x), atol=2e-4) and made(x)[0].shape == (3, 7)
    wide = trained.load_model(encoder, new_head=True, num_classes=7, image_size=(16, 12))
    assert wide.embed.pos.shape == (1, 25, 16) and torch.equal(wide.embed.pos[:, :1], made.embed.pos[:, :1])


@pytest.mark.parametrize('name', BOTH)
def test_another_resolution_interpolates_all_positions(name):
    model, _, _ = masked_autoencoder(name)
    larger = trained.load_model(run_of(model, name), image_size=(16, 12))
    assert larger(torch.randn(2, 3, 16, 12), torch.rand(2, 24))[0].shape == (2, 24, 24)
    tables = dict(model.named_buffers())
    assert len(tables) == (2 if name == 'vit_mae' else 1)
    for table, fixed in tables.items():
        assert torch.equal(larger.get_buffer(table), trained.resize_positions(fixed, (4, 3), (8, 3)))


# ---- mistakes

BETWEEN = [(dict(mask_ratio=ratio), 'between 0 and 1') for ratio in (0.0, 1.0, -0.1, 1.5, math.nan)]


@pytest.mark.parametrize('Config, settings, word', [
    (Config, settings, word) for Config in (CRATEMAEConfig, ViTMAEConfig) for settings, word in (
        *BETWEEN, (dict(image_size=8, patch_size=4, mask_ratio=0.9), 'leave some of the 4 patches'),
        (dict(image_size=16), 'leave some of the 1 patches'), (dict(image_size=30), 'divisible by patch_size'),
        (dict(n_embd=30, n_head=5), '4'), (dict(n_embd=12, n_head=5), 'n_head'), (dict(pool='max'), 'cls or mean'),
        (dict(n_layer=0), 'n_layer'))] + [
    (CRATEMAEConfig, dict(masking='none'), 'token or zero'),
    (CRATEMAEConfig, dict(decoder_skip='paper'), 'raw or normed'),
    (CRATEMAEConfig, dict(decoder_n_head=5), 'decoder_n_head'),
    (ViTMAEConfig, dict(decoder_n_layer=0), 'decoder_n_layer'),
    (ViTMAEConfig, dict(decoder_n_embd=30), 'decoder_n_embd')])
def test_impossible_configs_say_why(Config, settings, word):
    with pytest.raises(ValueError, match=word):
        Config(**settings)


@pytest.mark.parametrize('name', BOTH)
def test_pictures_of_another_size_are_refused(name):
    with pytest.raises(ValueError, match='resize'):
        masked_autoencoder(name)[0](torch.randn(1, 3, 8, 8))
