"""Masked autoencoders: equal to the authors' code, what hidden patches may reach, training, and what is made of them."""
import dataclasses
import inspect
import math
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from conftest import ROOT, fails, golden, losses, memorize
from PIL import Image
from test_images import column, config_of, equal, folder, go, quick, weights  # noqa: F401 (fixtures)
from test_model_images import same_tokens

from tasks import files as data
import eval as scores
import model_crate
import model_crate_mae
import model_vit
from engine import checkpoints as models
from engine import run as rundir
import sample
import train
from model_crate import CRATE, CRATEConfig
from model_crate_mae import CRATEMAE, ISTA, MSSA, CRATEMAEConfig, patchify, sines_and_cosines, statistics, unpatchify
from model_vit import ViT, ViTMAE, ViTMAEConfig

BOTH = {'crate_mae': (CRATEMAE, CRATEMAEConfig, {}), 'vit_mae': (ViTMAE, ViTMAEConfig, {'decoder_n_layer': 1, 'decoder_n_head': 2, 'decoder_n_embd': 24})}


def load(name, sd=None, **kw):
    """(model, golden file, pictures, noise) by the golden file's recipe."""
    made, g = golden(name)
    c = g['constructor']
    model = BOTH[name][0].from_official(sd or made, n_head=c['heads'], image_size=c['image_size'], patch_size=c['patch_size'],
                                        decoder_n_head=c['decoder_heads'], **kw).eval()
    x = torch.randn(g['input']['shape'], generator=torch.Generator().manual_seed(g['input']['generator_seed']))
    noise = torch.rand(g['masking_noise']['shape'], generator=torch.Generator().manual_seed(g['masking_noise']['generator_seed']))
    assert noise.sum().item() == pytest.approx(g['masking_noise']['sum'], rel=1e-6)
    return model, g, x, noise


def small(name, **kw):
    """A model that has just been made, and pictures and noise for it; nothing is square."""
    torch.manual_seed(0)
    Model, Config, own = BOTH[name]
    model = Model(Config(**dict(image_size=(8, 12), patch_size=(2, 4), n_layer=2, n_head=2, n_embd=16) | own | kw))
    return model, torch.randn(3, 3, 8, 12), torch.rand(3, 12)


# ---- the authors' numbers


@pytest.mark.parametrize('name', BOTH)
def test_masks_predictions_and_losses_equal_the_released_codes(name):
    for normalized in (False, True):
        model, g, x, noise = load(name, norm_pix_loss=normalized)
        out = g['outputs']
        pred, loss = model(x, noise)
        assert loss.item() == pytest.approx(out[f'loss_norm_pix_{str(normalized).lower()}'], abs=1e-5)
        assert model.hide(noise).long().tolist() == out['mask']
        assert list(pred.shape) == out['pred']['shape']
        assert (pred[:, 0, :16] - torch.tensor(out['pred']['first16_per_sample'])).abs().max() < 1e-5
        assert (pred[:, -1, -16:] - torch.tensor(out['pred']['last16_per_sample'])).abs().max() < 1e-5
        assert pred.mean().item() == pytest.approx(out['pred']['mean'], abs=1e-5)
        assert pred.std().item() == pytest.approx(out['pred']['std'], abs=1e-5)
    same_tokens(patchify(x, model.config.patch_size), out['patchified_target'])


def test_crate_mae_equals_the_released_code_layer_by_layer():
    model, g, x, noise = load('crate_mae')
    tokens, hidden = g['outputs']['tokens'], model.hide(noise)
    same_tokens(model.patch(x).flatten(2).mT, tokens['patch_embedding'])
    z = model.embed(x, hidden)
    same_tokens(z, tokens['tokens_before_encoder'])
    for l, layer in enumerate(model.layers):
        same_tokens(z + layer.mssa(layer.norm1(z)), tokens[f'encoder{l}.after_attention_residual'])
        z = layer(z)
        same_tokens(z, tokens[f'encoder{l}.output'])
    y = model.norm(z)
    same_tokens(y, tokens['encoder_norm'])
    for l, layer in enumerate(model.decoder_layers):
        same_tokens(layer.E(layer.norm1(y)), tokens[f'decoder{l}.after_dictionary'])
        y = layer(y)
        same_tokens(y, tokens[f'decoder{l}.output'])
    same_tokens(model.decoder_norm(y), tokens['decoder_norm'])


def test_vit_mae_equals_the_original_layer_by_layer():
    model, g, x, noise = load('vit_mae')
    tokens, visible = g['outputs']['tokens'], model.visible(noise)
    same_tokens(model.patch(x).flatten(2).mT, tokens['patch_embedding'])
    z = model.embed(x, visible)
    same_tokens(z, tokens['tokens_before_encoder'])
    for l, layer in enumerate(model.layers):
        z = layer(z)
        same_tokens(z, tokens[f'encoder{l}.output'])
    z = model.norm(z)
    same_tokens(z, tokens['encoder_norm'])
    seen = []
    model.decoder_layers[0].register_forward_pre_hook(lambda layer, args: seen.append(args[0]))
    for l, layer in enumerate(model.decoder_layers):
        layer.register_forward_hook(lambda layer, args, out, l=l: same_tokens(out, tokens[f'decoder{l}.output']))
    model.decode(z, visible)
    same_tokens(seen[0], tokens['tokens_before_decoder'])
    same_tokens(model.decoder_norm(model.decoder_layers(seen[0])), tokens['decoder_norm'])


def test_features_and_attention_of_whole_pictures_equal_the_released_codes():
    model, g, x, _ = load('crate_mae')
    want, last = g['outputs']['unmasked'], model.layers[-1]
    same_tokens(model.encode(x), want['encoder_norm_output'])
    assert torch.allclose(model.features(x), model.encode(x)[:, 0])
    w = last.mssa.U(last.norm1(model.layers[:-1](model.embed(x))))
    same_tokens(w, want['last_encoder_layer_subspace_coordinates'])
    heads = w.unflatten(2, (4, 12)).transpose(1, 2)
    same_tokens((heads @ heads.mT / math.sqrt(12)).softmax(-1), want['last_encoder_layer_attention'])


@pytest.mark.parametrize('name', BOTH)
def test_fixed_positions_equal_the_released_codes(name):
    model, g, _, _ = load(name)
    back = model.to_official()
    for table, want in g['outputs']['fixed_position_embedding'].items():
        same_tokens(back[table], want)


# ---- weights in and out


@pytest.mark.parametrize('name', BOTH)
def test_official_weights_go_both_ways(name):
    sd, g = golden(name)
    model, g, x, noise = load(name)
    back, dead = model.to_official(), {'decoder_embed.weight', 'decoder_embed.bias'} if name == 'crate_mae' else set()
    assert {k: list(v.shape) for k, v in back.items()} == {row[0]: row[1] for row in g['state_dict']}
    assert all(torch.equal(back[k], sd[k]) for k in sd.keys() - dead) and not any(back[k].any() for k in dead)
    for variant in (sd, back, {'model': back, 'epoch': 3}, {'state_dict': {'module.' + k: v for k, v in sd.items()}},
                    {k: v for k, v in sd.items() if k not in dead}):  # with positions and without, with dead weight and without
        assert torch.equal(load(name, variant)[0](x, noise)[0], model(x, noise)[0])


@pytest.mark.parametrize('name', BOTH)
def test_official_loaders_name_what_does_not_fit(name):
    back = load(name)[0].to_official()
    for change, word in (({'cls_token': None}, 'cls_token'), ({'surprise': torch.ones(1)}, 'surprise'),
                         ({'mask_token': torch.ones(1, 1, 3)}, 'mask_token'), ({'norm.bias': None, 'norm.weight': None}, 'norm.bias'),
                         ({'pos_embed': back['pos_embed'] + 2e-5}, 'pos_embed holds other positions'),
                         ({'decoder_pos_embed': back['decoder_pos_embed'] * math.nan}, 'decoder_pos_embed holds other positions'),
                         ({'decoder_pos_embed': back['decoder_pos_embed'][:, 1:]}, 'decoder_pos_embed has shape'),
                         ({k: None for k in back if k.startswith('decoder')}, 'has no decoder'),
                         ({k: None for k in back if k.startswith('blocks.0')}, 'not a ')):
        with pytest.raises(ValueError, match=word):
            load(name, {k: v for k, v in (back | change).items() if v is not None})


def test_parameters_counted_both_ways():
    """Ours are those that a forward pass reads; the paper's Table 1 has two position tables, and a dead layer, too."""
    def count(Model, Config, **kw):
        with torch.device('meta'):
            model = Model(Config(**kw))
            return model.num_params(), sum(t.numel() for t in model.to_official().values())
    table = 197
    for n_layer, d, n_head, ours, trainable, paper in ((12, 384, 6, 11_256_192, 11_404_032, 11_555_328),
                                                       (12, 576, 12, 24_846_528, 25_178_880, 25_405_824),
                                                       (12, 768, 12, 43_745_280, 44_335_872, 44_638_464),
                                                       (24, 1024, 16, 152_821_504, 153_871_104, 154_274_560)):
        assert count(CRATEMAE, CRATEMAEConfig, n_layer=n_layer, n_embd=d, n_head=n_head) == (ours, paper)
        assert ours + d * d + d == trainable == paper - 2 * table * d
    for d, n_head, width, ours in ((384, 6, 512, 47_401_728), (768, 12, 768, 143_533_824), (768, 12, 512, 111_655_680)):
        assert count(ViTMAE, ViTMAEConfig, n_embd=d, n_head=n_head, decoder_n_embd=width) == (ours, ours + table * (d + width))
    assert round((47_401_728 + table * 896) / 1e5) == 476 and round((143_533_824 + table * 1536) / 1e5) == 1438  # DESIGN's sizes


@pytest.mark.parametrize('name', BOTH)
def test_the_authors_pretrained_file_starts_a_classifier(name, tmp_path):
    """With nothing but the name of the classifier that is to have the encoder."""
    model, g, x, _ = load(name)
    torch.save({'model': model.to_official()}, tmp_path / 'w.pth')
    kind = models.CLASSIFIERS[name]
    settings = dict(n_head=4, image_size=32, patch_size=8, decoder_n_head=g['constructor']['decoder_heads'])
    checkpoint = models.load_weights(f'official:{tmp_path}/w.pth', name, **settings)
    same = models.load_model(checkpoint)
    assert same(x, torch.rand(2, 16))[0].shape == (2, 16, 192) and torch.equal(same.features(x), model.features(x))
    checkpoint = models.load_weights(f'official:{tmp_path}/w.pth', kind, n_head=4, image_size=32, patch_size=8, num_classes=5)
    made = models.load_model(checkpoint, new_head=True, num_classes=5)
    assert type(made) is {'crate': CRATE, 'vit': ViT}[kind]
    assert torch.allclose(made.features(x), model.features(x), atol=1e-4)  # LayerNorm's eps is 1e-5 in CRATE, 1e-6 in CRATE-MAE
    assert made.pos.requires_grad and all(p.requires_grad for p in made.parameters())


# ---- masking


@pytest.mark.parametrize('name', BOTH)
@pytest.mark.parametrize('ratio, kept', [(0.75, 3), (0.5, 6), (0.9, 1), (0.3, 8), (1 / 12, 11)])
def test_the_least_noise_stays_visible(name, ratio, kept):
    model, x, noise = small(name, mask_ratio=ratio)
    hidden = model.hide(noise)
    assert (hidden.sum(1) == 12 - kept).all()
    for row, n in zip(hidden, noise):
        assert n[~row].max() < n[row].min()
    same = torch.zeros(2, 12)  # of equal noise the first ones
    assert model.hide(same).tolist() == [[False] * kept + [True] * (12 - kept)] * 2


@pytest.mark.parametrize('name, options', [('crate_mae', {}), ('crate_mae', {'masking': 'zero'}), ('crate_mae', {'decoder_skip': 'normed'}), ('vit_mae', {})])
def test_hidden_patches_reach_nothing_but_the_loss(name, options):
    """What stands in hidden patches changes no token of the encoder and no prediction; what stands in visible ones does."""
    model, x, noise = small(name, **options)
    hidden = model.hide(noise)
    pixels = unpatchify(hidden[..., None].expand(-1, -1, 24), (8, 12), (2, 4))

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
    """Its prediction is the mask token's at its place: two hidden patches differ by their positions alone."""
    model, x, noise = small(name)
    pred = model(x, noise)[0][model.hide(noise)]
    assert (pred[1:] - pred[:-1]).abs().max(1).values.min() > 1e-4
    for table in ('pos', 'decoder_pos'):
        if hasattr(model, table):
            getattr(model, table).zero_()
    pred = model(x, noise)[0]
    for row, where in zip(pred, model.hide(noise)):
        assert torch.allclose(row[where], row[where][:1].expand_as(row[where]), atol=1e-5)


def test_masking_with_zeros_is_zeroing_the_pixels():
    model, x, noise = small('crate_mae', masking='zero')
    torch.nn.init.normal_(model.patch.bias)
    pixels = unpatchify(model.hide(noise)[..., None].expand(-1, -1, 24), (8, 12), (2, 4))
    assert torch.allclose(model.embed(x, model.hide(noise)), model.embed(x.masked_fill(pixels, 0.0)), atol=1e-6)
    assert model.mask_token is None


def test_the_papers_listing_subtracts_from_the_norm():
    listing, x, noise = small('crate_mae', decoder_skip='normed')
    y, layer = torch.randn(2, 13, 16), listing.decoder_layers[0]
    h = layer.norm2(layer.E(layer.norm1(y)))
    assert torch.allclose(layer(y), h - layer.mssa(h), atol=1e-6)
    released, _, _ = small('crate_mae')
    released.load_state_dict(listing.state_dict())
    assert not torch.allclose(released(x, noise)[0], listing(x, noise)[0], atol=1e-3)


def test_the_copies_of_mssa_and_ista_agree():
    torch.manual_seed(0)
    for tie_out in (False, True):
        c = CRATEConfig(n_embd=12, n_head=3, tie_out=tie_out, eta=0.3, lam=0.4)
        crate, ours = model_crate.MSSA(c), MSSA(CRATEMAEConfig(n_embd=12, n_head=3, tie_out=tie_out), 3)
        ours.load_state_dict(crate.state_dict())
        assert torch.equal(ours(z := torch.randn(2, 5, 12)), crate(z))
    crate, ours = model_crate.ISTA(c), ISTA(CRATEMAEConfig(n_embd=12, n_head=3, eta=0.3, lam=0.4))
    torch.nn.init.normal_(crate.D)
    ours.load_state_dict(crate.state_dict())
    assert torch.equal(ours(z), crate(z))


@pytest.mark.parametrize('name', ['patchify', 'unpatchify', 'statistics', 'sines_and_cosines'])
def test_the_copies_of_helpers_are_copies(name):
    files = [file for file in (model_crate, model_crate_mae, model_vit) if hasattr(file, name)]
    assert len(files) > 1 and len({inspect.getsource(getattr(file, name)) for file in files}) == 1


def test_positions_by_a_naive_loop():
    pos = sines_and_cosines((2, 3), 8)[0]
    assert pos.shape == (7, 8) and not pos[0].any()
    for down in range(2):
        for across in range(3):
            want = [f(place / 10000 ** (j / 2)) for place in (across, down) for f in (math.sin, math.cos) for j in range(2)]
            assert torch.allclose(pos[1 + 3 * down + across], torch.tensor(want), atol=1e-6)


def test_patches_go_both_ways():
    x = torch.randn(2, 3, 8, 12)
    assert torch.equal(unpatchify(patchify(x, (2, 4)), (8, 12), (2, 4)), x)
    mean, deviation = statistics(patchify(x, (2, 4)))
    assert torch.allclose(deviation[..., 0], (patchify(x, (2, 4)).std(-1) ** 2 + 1e-6).sqrt()) and mean.shape == (2, 12, 1)


# ---- learning, and pictures back


@pytest.mark.parametrize('name, options', [
    ('crate_mae', {}), ('crate_mae', dict(masking='zero')), ('crate_mae', dict(decoder_skip='normed')), ('crate_mae', dict(tie_out=True)),
    ('crate_mae', dict(norm_pix_loss=True, head_dim=12, decoder_n_head=4, decoder_n_layer=1)), ('vit_mae', {}), ('vit_mae', dict(norm_pix_loss=True))])
def test_a_batch_can_be_memorized(name, options):
    model, _, noise = small(name, n_embd=64, **options)
    x = 0.5 * torch.randn(3, 3, 8, 12)
    memorize(model, x, noise, 0.05 * model.target(x).var(), steps=1500, lr=3e-3)
    hidden = unpatchify(model.hide(noise)[..., None].expand(-1, -1, 24), (8, 12), (2, 4))
    error = (model.reconstruct(x, noise) - x)[hidden].square().mean()
    assert error < 0.1 * x[hidden].var()  # in pixels, also where normalized ones were learned
    assert torch.allclose(torch.compile(model, backend='eager', fullgraph=True)(x, noise)[1], model(x, noise)[1], atol=1e-6)


def test_weights_begin_as_the_released_codes():
    """Section 4 of the facts about it: Xavier for linear maps, D and E within sqrt(6/d), tokens of deviation 0.02."""
    torch.manual_seed(0)
    for Model, c in ((CRATEMAE, CRATEMAEConfig(image_size=32, n_layer=2, n_embd=96)), (ViTMAE, ViTMAEConfig(
            image_size=32, n_layer=2, n_embd=96, n_head=4, decoder_n_layer=2, decoder_n_embd=64, decoder_n_head=4))):
        model = Model(c)
        for name, p in ((name, p.detach()) for name, p in model.named_parameters()):
            if name.endswith(('ista.D', '.E.weight')):
                bound = math.sqrt(6 / 96)
            elif p.dim() in (2, 4):
                bound = math.sqrt(6 / (p.shape[0] + p[0].numel()))
            elif name == 'patch.bias':
                bound = 1 / math.sqrt(16 * 16 * 3)
            elif name in ('cls', 'mask_token'):
                assert 0.014 < p.std() < 0.026 and abs(p.mean()) < 0.01, name
                continue
            else:
                assert (p == ('norm' in name and name.endswith('weight'))).all(), name
                continue
            assert 0.9 * bound < p.abs().max() <= bound and p.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.2), name


@pytest.mark.parametrize('name', BOTH)
def test_without_noise_masks_are_random_and_follow_the_seed(name):
    model, x, _ = small(name)
    torch.manual_seed(1)
    a, b = model(x)[0], model(x)[0]
    torch.manual_seed(1)
    assert torch.equal(model(x)[0], a) and not torch.equal(a, b)
    assert model.reconstruct(x).shape == x.shape and model.encode(x).shape == (3, 13, 16)


@pytest.mark.parametrize('name', BOTH)
def test_the_loss_is_that_of_hidden_patches_by_a_naive_loop(name):
    for normalized in (False, True):
        model, x, noise = small(name, norm_pix_loss=normalized)
        pred, loss = model(x, noise)
        errors = []
        for b in range(3):
            for n in noise[b].argsort()[3:].tolist():
                patch = x[b, :, n // 3 * 2:n // 3 * 2 + 2, n % 3 * 4:n % 3 * 4 + 4].permute(1, 2, 0).flatten()
                if normalized:
                    patch = (patch - patch.mean()) / (patch.var() + 1e-6).sqrt()
                errors.append((pred[b, n] - patch).square().mean().item())
        assert loss.item() == pytest.approx(sum(errors) / len(errors), rel=1e-5)


@pytest.mark.parametrize('name', BOTH)
def test_the_classifier_with_the_encoder_has_its_features(name):
    for pool in ('cls', 'mean'):
        model, x, _ = small(name, pool=pool, **({'lam': 0.2, 'eta': 0.3, 'tie_out': True} if name == 'crate_mae' else {}))
        checkpoint = {'weights': model.state_dict(), 'ema': None, 'model_config': dataclasses.asdict(model.config),
                      'config': {'model': name}, 'data': {'kind': 'images', 'classes': None}}
        made = models.load_model(models.as_classifier(checkpoint), new_head=True, num_classes=7)
        assert torch.allclose(made.features(x), model.eval().features(x), atol=2e-4) and made(x)[0].shape == (3, 7)
        wide = models.load_model(models.as_classifier(checkpoint), new_head=True, num_classes=7, image_size=(16, 12))
        assert wide.pos.shape == (1, 25, 16)
        assert torch.equal(wide.pos[:, :1], made.pos[:, :1])


@pytest.mark.parametrize('Config, kw, word', [
    (Config, kw, word) for Config in (CRATEMAEConfig, ViTMAEConfig) for kw, word in (
        (dict(mask_ratio=0.0), 'between 0 and 1'), (dict(mask_ratio=1.0), 'between 0 and 1'), (dict(mask_ratio=-0.1), 'between 0 and 1'),
        (dict(mask_ratio=1.5), 'between 0 and 1'), (dict(mask_ratio=math.nan), 'between 0 and 1'),
        (dict(image_size=8, patch_size=4, mask_ratio=0.9), 'leave some of the 4 patches'), (dict(image_size=16), 'leave some of the 1 patches'),
        (dict(image_size=30), 'divisible by patch_size'), (dict(n_embd=30, n_head=5), '4'), (dict(n_embd=12, n_head=5), 'n_head'),
        (dict(pool='max'), 'cls or mean'), (dict(n_layer=0), 'n_layer'))] + [
    (CRATEMAEConfig, dict(masking='none'), 'token or zero'), (CRATEMAEConfig, dict(decoder_skip='paper'), 'raw or normed'),
    (CRATEMAEConfig, dict(decoder_n_head=5), 'decoder_n_head'), (CRATEMAEConfig, dict(decoder_n_layer=-1), 'decoder_n_layer'),
    (ViTMAEConfig, dict(decoder_n_layer=0), 'decoder_n_layer'), (ViTMAEConfig, dict(decoder_n_embd=30), 'decoder_n_embd')])
def test_impossible_configs_say_why(Config, kw, word):
    with pytest.raises(ValueError, match=word):
        Config(**kw)


@pytest.mark.parametrize('name', BOTH)
def test_pictures_of_another_size_are_refused(name):
    with pytest.raises(ValueError, match='resize'):
        small(name)[0](torch.randn(1, 3, 8, 8))


# ---- training

WORDS = ['--n_layer=1', '--n_head=2', '--n_embd=16', '--patch_size=2', '--batch_size=8', '--max_iters=6', '--eval_interval=3',
         '--log_interval=1', '--warmup_iters=2', '--optimizer=adamw', '--dtype=float32', '--min_lr=0', '--learning_rate=1e-2']
OWN = {'crate_mae': ['--model=crate_mae'], 'vit_mae': ['--model=vit_mae', '--decoder_n_layer=1', '--decoder_n_head=2', '--decoder_n_embd=16']}


@pytest.fixture
def words(folder, quick):  # noqa: F811
    """Command-line words for a pre-training of a tenth of a second."""
    return [f'--data_dir={folder}', '--dataset=quads', *WORDS, *OWN['crate_mae']]


@pytest.fixture(scope='module')
def pretrained(folder, tmp_path_factory):  # noqa: F811
    """Runs of both masked autoencoders on `quads`."""
    out = tmp_path_factory.mktemp('pretrained')
    for name, own in OWN.items():
        go(f'--data_dir={folder}', '--dataset=quads', *WORDS, *own, f'--out_dir={out}/{name}')
    return out


@pytest.mark.parametrize('name', BOTH)
def test_a_masked_autoencoder_learns_what_pictures_look_like(name, words, tmp_path, capsys):
    go(*words, *OWN[name], '--max_iters=150', '--eval_interval=50', f'--out_dir={tmp_path}/a')
    loss = column(tmp_path / 'a', 'val', 2)
    scores.main([f'--ckpt={tmp_path}/a', f'--data_dir={words[0].split("=")[1]}', '--dtype=float32'])
    flat = float(capsys.readouterr().out.split('visible patches: ')[1])
    assert loss[-1] < 0.97 * flat and flat < loss[0]
    assert rundir.load_checkpoint(tmp_path / 'a' / 'best.pt')['best'] == min(loss)  # the best is that of the least loss


def test_what_is_masked_in_validation_never_changes(words, tmp_path, pretrained, folder, capsys):  # noqa: F811
    """Whatever the seed and the size of a batch; and eval.py sees the same masks."""
    start = [*words, f'--init_from={pretrained}/crate_mae/last.pt', '--eval_only=true']
    capsys.readouterr()
    said = []
    for more in ([], ['--seed=5'], ['--batch_size=3'], ['--eval_iters=50']):
        go(*start, *more)
        said.append(capsys.readouterr().out.splitlines()[-1])
    assert len(set(said)) == 1 and 'validation loss' in said[0]
    scores.main([f'--ckpt={pretrained}/crate_mae/last.pt', f'--data_dir={folder}', '--split=val', '--dtype=float32'])
    assert said[0].split()[-1] in capsys.readouterr().out


def test_masks_of_a_step_depend_on_seed_and_step_alone(folder):  # noqa: F811
    images = data.Images(folder / 'quads', 'train')
    whole = [batch[3] for batch in images.batches(8, 7, [slice(0, 8)], 0, 5, draws=9)]
    parts = [batch[3] for batch in images.batches(8, 7, [slice(0, 4), slice(4, 8)], 2, 5, draws=9)]
    assert torch.equal(torch.cat(parts), torch.cat(whole[2:]))
    assert not torch.equal(whole[0], whole[1])


@pytest.mark.parametrize('name', BOTH)
def test_stopped_a_pretraining_goes_on_bit_for_bit(name, words, tmp_path, pretrained, monkeypatch):
    batches = data.Images.batches

    def stop_at(*args, **kw):
        for i, batch in enumerate(batches(*args, **kw)):
            if i == 4:
                os.kill(os.getpid(), signal.SIGINT)
            yield batch
    monkeypatch.setattr(data.Images, 'batches', stop_at)
    with pytest.raises(SystemExit):
        go(*words, *OWN[name], f'--out_dir={tmp_path}/a')
    monkeypatch.setattr(data.Images, 'batches', batches)
    go('--init_from=resume', f'--out_dir={tmp_path}/a')
    assert losses(tmp_path / 'a') == losses(pretrained / name)
    assert equal(weights(tmp_path / 'a'), weights(pretrained / name))


def test_accumulation_masks_the_same(words, tmp_path):
    go(*words, f'--out_dir={tmp_path}/a')
    go(*words, '--batch_size=4', '--gradient_accumulation_steps=2', f'--out_dir={tmp_path}/b')
    assert column(tmp_path / 'a', 'train', 2) == pytest.approx(column(tmp_path / 'b', 'train', 2), rel=1e-4)


@pytest.mark.parametrize('share, counts', [(0.5, [5] * 4), (0.25, [2] * 4), (0.001, [1] * 4), (1.0, [10] * 4)])
def test_a_share_is_of_every_class_and_the_seeds(share, counts, folder):  # noqa: F811
    whole = data.Images(folder / 'quads', 'train')
    a, b, c = (data.Images(folder / 'quads', 'train', 0, share, seed) for seed in (1, 1, 2))
    assert len(a) == sum(counts) and np.bincount(a.labels[a.chosen]).tolist() == counts
    assert np.array_equal(a.chosen, b.chosen) and (share == 1 or not np.array_equal(a.chosen, c.chosen))
    pictures, _, labels, _ = a[np.arange(len(a)), np.zeros((len(a), 0))]
    want = whole[a.chosen, np.zeros((len(a), 0))]
    assert np.array_equal(pictures, want[0]) and np.array_equal(labels, want[2])
    seen = [label for batch in a.batches(1, 0, [slice(0, 1)], 0, len(a)) for label in batch[2].tolist()]
    assert np.bincount(seen).tolist() == counts  # an epoch is one of the share


@pytest.mark.parametrize('name', BOTH)
def test_fine_tuning_starts_from_the_encoder(name, words, pretrained, tmp_path, capsys):
    kind = models.CLASSIFIERS[name]
    go(*words, f'--init_from={pretrained}/{name}', f'--model={kind}', '--max_iters=3', '--train_share=0.5', f'--out_dir={tmp_path}/a')
    config = config_of(tmp_path / 'a')
    assert (config['model'], config['num_classes'], config['pool'], config['train_share']) == (kind, 4, 'cls', 0.5)
    assert 'mask_ratio' not in config and config.get('lam', 0.5) == 0.5
    old, new = weights(pretrained / name, 'best.pt'), weights(tmp_path / 'a')
    assert not any(k.startswith(('decoder', 'mask', 'pixels')) for k in new) and new['head.weight'].shape == (4, 16)
    moved = [k for k in new.keys() & old.keys() if new[k].shape == old[k].shape and not torch.equal(new[k], old[k])]
    assert {'pos', 'cls', 'norm.weight'} <= set(moved) and sum(k.startswith('layers') for k in moved) >= 8  # all are trained
    go('--init_from=resume', f'--out_dir={tmp_path}/a', '--max_iters=4')
    go(*words, f'--init_from={tmp_path}/a', f'--model={kind}', f'--out_dir={tmp_path}/b')  # a classifier like any other
    sample_words = [f'--ckpt={tmp_path}/a', f'--image={words[0].split("=")[1]}/quads']
    sample.main(sample_words)
    assert 'val' in capsys.readouterr().out


def test_before_a_step_the_classifier_is_the_encoder_with_a_new_head(words, pretrained, tmp_path):
    go(*words, f'--init_from={pretrained}/crate_mae/last.pt', '--model=crate', '--max_iters=0', f'--out_dir={tmp_path}/a')
    old, new = (models.load_model(rundir.load_checkpoint(path / 'last.pt')) for path in (pretrained / 'crate_mae', tmp_path / 'a'))
    x = torch.randn(2, 3, 8, 8)
    assert torch.allclose(old.features(x), new.features(x), atol=1e-4)


def test_a_pretraining_can_go_on_elsewhere(words, pretrained, tmp_path):
    words.remove('--model=crate_mae')  # the checkpoint says so
    go(*words, '--dataset=colours', f'--init_from={pretrained}/crate_mae', f'--out_dir={tmp_path}/a')  # of other classes: no matter
    assert config_of(tmp_path / 'a')['model'] == 'crate_mae'


def test_masks_are_drawn_apart_from_the_augmentation(words, tmp_path, monkeypatch):
    """What a step masks are the last of its numbers, so that it has nothing to do with crops, flips and operations."""
    seen, forward = [], CRATEMAE.forward
    monkeypatch.setattr(CRATEMAE, 'forward', lambda self, x, noise=None: (seen.append(noise), forward(self, x, noise))[1])
    go(*words, '--randaugment_n=2', '--max_iters=2', '--seed=3', '--batch_size=4', '--gradient_accumulation_steps=2', f'--out_dir={tmp_path}/a')
    trained = [noise for noise in seen if noise is not None and len(noise) == 4 and noise.device.type == 'cpu']
    for step in range(2):
        numbers = torch.from_numpy(np.random.default_rng((3, step, 1)).random((8, 9 + 16))[:, -16:]).float()
        for part in numbers.split(4):
            assert sum(torch.equal(part, noise) for noise in trained) == 1


def test_the_average_becomes_the_classifier(words, tmp_path):
    go(*words, '--ema=0.5', f'--out_dir={tmp_path}/a')
    checkpoint = rundir.load_checkpoint(tmp_path / 'a' / 'last.pt')
    averaged, last = models.load_model(checkpoint), models.load_model(checkpoint, averaged=False)
    made, x = models.load_model(models.as_classifier(checkpoint), new_head=True, num_classes=4), torch.randn(2, 3, 8, 8)
    assert torch.allclose(made.features(x), averaged.features(x), atol=1e-4)
    assert not torch.allclose(made.features(x), last.features(x), atol=1e-3)


def test_the_seed_says_which_pictures_are_shared_in_training_and_probing(words, pretrained, folder, tmp_path, monkeypatch):  # noqa: F811
    asked, init = [], data.Images.__init__

    def note(self, folder, split, *args):
        init(self, folder, split, *args)
        if split == 'train':
            asked.append(self.chosen.tolist())
    monkeypatch.setattr(data.Images, '__init__', note)
    few = f'--init_from={pretrained}/crate_mae', '--model=crate', '--train_share=0.3', '--max_iters=1'
    for seed in (5, 6):
        go(*words, *few, f'--seed={seed}', f'--out_dir={tmp_path}/{seed}')
        scores.main([f'--ckpt={tmp_path}/{seed}', f'--data_dir={folder}', '--knn=1', '--train_share=0.3'])
    scores.main([f'--ckpt={tmp_path}/5', f'--data_dir={folder}', '--knn=1', '--train_share=0.3', '--seed=6'])
    assert asked[0] == asked[1] != asked[2] and asked[2] == asked[3] == asked[4] and len(asked[0]) == 12
    with pytest.raises(ValueError, match='train_share'):
        go('--init_from=resume', f'--out_dir={tmp_path}/5', '--train_share=0.5', '--max_iters=2')


def test_two_processes_pretrain_as_one(words, pretrained, tmp_path):
    done = subprocess.run([sys.executable, '-m', 'torch.distributed.run', '--standalone', '--nproc_per_node=2', str(ROOT / 'train.py'), *words,
                           f'--out_dir={tmp_path}/a'], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    for split in ('train', 'val'):
        assert column(tmp_path / 'a', split, 2) == pytest.approx(column(pretrained / 'crate_mae', split, 2), rel=1e-4)


@pytest.mark.parametrize('name', BOTH)
def test_pretraining_on_jpegs_of_all_sizes_with_readers_in_bfloat16(name, words, folder, tmp_path):  # noqa: F811
    go(*words, *OWN[name], '--dataset=pack', '--image_size=8,12', '--patch_size=4', '--dtype=bfloat16', '--workers=2', f'--out_dir={tmp_path}/a')
    go(*words, *OWN[name], '--dataset=pack', '--image_size=8,12', '--patch_size=4', '--dtype=bfloat16', '--workers=0', f'--out_dir={tmp_path}/b')
    assert losses(tmp_path / 'a') == losses(tmp_path / 'b') and column(tmp_path / 'a', 'val', 2)[-1] < 5
    scores.main([f'--ckpt={tmp_path}/a', f'--data_dir={folder}', '--dtype=bfloat16', '--split=val'])


# ---- what is made of them


def test_reconstruction_loss_and_its_baseline_by_hand(folder, pretrained, capsys):  # noqa: F811
    for name in BOTH:
        scores.main([f'--ckpt={pretrained}/{name}/last.pt', f'--data_dir={folder}', '--dtype=float32', '--batch_size=7', '--device=cpu'])
        line = capsys.readouterr().out.splitlines()[-1]
        model = models.load_model(rundir.load_checkpoint(pretrained / name / 'last.pt'))
        images = data.Images(folder / 'quads', 'val')
        errors, flat = [], []
        for i in range(20):
            x = torch.from_numpy(images.pixels[i] / 255.0)
            x = ((x - torch.tensor([0.485, 0.456, 0.406])) / torch.tensor([0.229, 0.224, 0.225])).permute(2, 0, 1).float()
            noise = torch.from_numpy(np.random.default_rng((i, 4)).random(16)).float()
            patches = [x[:, r:r + 2, c:c + 2] for r in range(0, 8, 2) for c in range(0, 8, 2)]
            shown, gone = noise.argsort()[:4].tolist(), noise.argsort()[4:].tolist()
            colour = torch.stack([patches[n] for n in shown]).mean((0, 2, 3))[:, None, None]
            flat.append(sum((patches[n] - colour).square().mean().item() for n in gone) / 12)
            with torch.no_grad():
                errors.append(model(x[None], noise[None])[1].item())
        assert f'20 pictures, 75% of their patches masked, loss {np.mean(errors):.4f}' in line
        assert f'predicting the mean colour of the visible patches: {np.mean(flat):.4f}' in line


def test_normalized_patches_are_compared_with_their_own_mean(words, tmp_path, folder, capsys):  # noqa: F811
    go(*words, '--norm_pix_loss=true', f'--out_dir={tmp_path}/a')
    scores.main([f'--ckpt={tmp_path}/a', f'--data_dir={folder}', '--dtype=float32'])
    assert float(capsys.readouterr().out.split("each patch's own mean: ")[1]) == pytest.approx(11 / 12, abs=1e-3)  # 12 numbers


def test_frozen_features_are_probed_with_few_labels(folder, pretrained, capsys):  # noqa: F811
    for name in BOTH:
        for pool in ('cls', 'mean'):
            scores.main([f'--ckpt={pretrained}/{name}', f'--data_dir={folder}', '--probe=true', '--knn=3', '--train_share=0.5', f'--pool={pool}'])
            out = capsys.readouterr().out
            assert 'linear probe of 16 features, 20 training pictures' in out and '3 nearest neighbours' in out and 'loss' not in out


@pytest.mark.parametrize('name', BOTH)
@pytest.mark.parametrize('normalized', [False, True])
def test_the_grid_of_reconstructions(name, normalized, words, folder, pretrained, tmp_path, monkeypatch, capsys):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    go(*words, *OWN[name], f'--norm_pix_loss={normalized}'.lower(), '--out_dir=run')
    capsys.readouterr()
    sample.main(['--ckpt=run', f'--image={folder}/quads', '--num_samples=2', '--out=a.png', '--seed=7'])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and lines[0].startswith('val ') and ('true patch statistics' in lines[-1]) == normalized
    grid = np.asarray(Image.open('a.png'))
    zoom = 14
    assert grid.shape == (18 + 2 * 116 + 18 * normalized, 4 * 116 - 4, 3)
    if normalized:
        assert grid[-18:].min() < 128  # words below
    cells = [[grid[18 + 116 * i:18 + 116 * i + 112, 116 * j:116 * j + 112][::zoom, ::zoom].astype(int) for j in range(4)] for i in range(2)]
    model = models.load_model(rundir.load_checkpoint(tmp_path / 'run' / 'best.pt'))
    numbers = torch.Generator().manual_seed(7)
    images = data.Images(folder / 'quads', 'val')
    for i, (row, place) in enumerate(zip(cells, np.random.default_rng(7).permutation(20))):
        hidden = model.hide(torch.rand(1, 16, generator=numbers)).view(4, 4).numpy().repeat(2, 0).repeat(2, 1)
        original, masked, rebuilt, pasted = row
        assert np.array_equal(original, images.pixels[place])
        assert np.array_equal(masked[~hidden], original[~hidden]) and (masked[hidden] == masked[hidden][0]).all()
        assert np.array_equal(pasted[~hidden], original[~hidden]) and np.array_equal(pasted[hidden], rebuilt[hidden])
        assert not np.array_equal(rebuilt[~hidden], original[~hidden])
    assert 'exists' in fails(capsys, sample.main, '--ckpt=run', f'--image={folder}/quads', '--out=a.png')
    sample.main(['--ckpt=run', f'--image={folder}/quads', '--out=a.png', '--overwrite=true', '--mask_ratio=0.5'])
    assert 'original, 50% masked, reconstruction, pasted' in capsys.readouterr().out


def test_ones_own_pictures_are_reconstructed(pretrained, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (30, 50, 4), np.uint8)).save('mine.png')
    sample.main([f'--ckpt={pretrained}/crate_mae', '--image', 'mine.png'])
    assert 'reconstruction.png: original' in capsys.readouterr().out and Image.open('reconstruction.png').size == (460, 134)


@pytest.mark.parametrize('name', BOTH)
def test_another_resolution_interpolates_all_positions(name):
    model, _, _ = small(name)
    checkpoint = {'weights': model.state_dict(), 'ema': None, 'model_config': dataclasses.asdict(model.config), 'config': {'model': name}}
    larger = models.load_model(checkpoint, image_size=(16, 12))
    assert larger(torch.randn(2, 3, 16, 12), torch.rand(2, 24))[0].shape == (2, 24, 24)
    for table, fixed in model.named_buffers():
        assert torch.equal(larger.get_buffer(table), models.resize_positions(fixed, (4, 3), (8, 3)))


# ---- mistakes


@pytest.mark.parametrize('more, message', [
    (['--mask_ratio=1'], 'must lie between 0 and 1'), (['--mask_ratio=0'], 'must lie between 0 and 1'), (['--mask_ratio=0.99'], 'leave some of the 16 patches'),
    (['--mask_ratio=abc'], 'mask_ratio'), (['--num_classes=4'], 'num_classes'), (['--train_share=0'], 'train_share'), (['--train_share=1.5'], 'train_share'),
    (['--new_head=true'], 'needs a model'), (['--dataset=text'], 'model=crate_mae does not read that')])
def test_mistakes_in_pretraining_get_one_line(more, message, words, tmp_path, capsys):
    assert message in fails(capsys, train.main, *words, *more, f'--out_dir={tmp_path}/a')
    assert not (tmp_path / 'a').exists()


def test_mistakes_with_pretrained_ones_get_one_line(words, folder, pretrained, tmp_path, capsys):  # noqa: F811
    at = f'--init_from={pretrained}/crate_mae'
    for more, message in (([at, '--new_head=true'], '--model=crate'), ([at, '--model=vit'], 'give --model=crate'),
                          ([at, '--model=vit_mae'], 'holds model=crate_mae'), ([at, '--model=crate', '--n_head=4'], 'n_head'),
                          ([f'--init_from={pretrained}/vit_mae', '--model=crate'], 'holds model=vit_mae'),
                          ([at, '--model=crate', '--patch_norm=true'], 'patch_norm')):
        assert message in fails(capsys, train.main, *words, *more, f'--out_dir={tmp_path}/a')
    go(*words, at, '--model=crate', f'--out_dir={tmp_path}/b')
    capsys.readouterr()
    told = fails(capsys, sample.main, f'--ckpt={tmp_path}/b', f'--image={folder}/quads', f'--out={tmp_path}/x.png')
    assert 'has no decoder' in told and 'train_crate_mae_shapes.py' in told and not (tmp_path / 'x.png').exists()
    assert 'mask_ratio' in fails(capsys, sample.main, f'--ckpt={tmp_path}/b', f'--image={folder}/quads', '--mask_ratio=0.5')
    assert '--image=PATH' in fails(capsys, sample.main, f'--ckpt={pretrained}/crate_mae')
    assert 'cannot be written' in fails(capsys, sample.main, f'--ckpt={pretrained}/crate_mae', f'--image={folder}/quads', f'--out={tmp_path}/no/x.png')
    assert 'cannot be written' in fails(capsys, sample.main, f'--ckpt={pretrained}/crate_mae', f'--image={folder}/quads', f'--out={tmp_path}/x.what')
    assert 'masked autoencoder' in fails(capsys, scores.main, f'--ckpt={pretrained}/crate_mae', f'--data_dir={folder}', '--real=x.json')
    assert 'train_share' in fails(capsys, scores.main, f'--ckpt={pretrained}/crate_mae', f'--data_dir={folder}', '--train_share=0')
    assert '--probe=true' in fails(capsys, scores.main, f'--ckpt={pretrained}/crate_mae', f'--data_dir={folder}', '--train_share=0.5')
    for name in BOTH:
        assert 'decoder_n_head' in fails(capsys, scores.main, f'--ckpt={pretrained}/{name}', f'--data_dir={folder}', '--decoder_n_head=4')
    assert 'leave norm_pix_loss out' in fails(capsys, sample.main, f'--ckpt={pretrained}/crate_mae', f'--image={folder}/quads', '--norm_pix_loss=true')
    assert 'leave model out' in fails(capsys, scores.main, f'--ckpt={pretrained}/crate_mae', f'--data_dir={folder}', '--model=crate')


def test_a_share_of_text_is_refused(folder, tmp_path, capsys):  # noqa: F811
    told = fails(capsys, train.main, f'--data_dir={folder}', '--dataset=text', '--train_share=0.5', '--block_size=8', f'--out_dir={tmp_path}/a')
    assert 'train_share' in told


@pytest.mark.parametrize('name', BOTH)
def test_mistakes_with_the_authors_files_get_one_line(name, words, folder, tmp_path, capsys):  # noqa: F811
    model, _, _, _ = load(name)
    back, kind = model.to_official(), models.CLASSIFIERS[name]
    torch.save(back, tmp_path / 'w.pth')
    torch.save({k: v for k, v in back.items() if 'decoder' not in k and k != 'mask_token'}, tmp_path / 'encoder.pth')
    torch.save({k: v.half() for k, v in back.items()}, tmp_path / 'half.pth')
    at = f'--ckpt=official:{tmp_path}/w.pth', '--n_head=4', '--image_size=32', '--patch_size=8', '--dataset=quads', f'--data_dir={folder}'
    heads = f'--decoder_n_head={getattr(model.config, "decoder_n_head")}'
    assert f'give --model={name}' in fails(capsys, scores.main, *at, f'--model={kind}')
    scores.main([*at, f'--model={name}', heads])
    scores.main([at[0].replace('w.pth', 'half.pth'), *at[1:], f'--model={name}', heads])
    first, second = (line for line in capsys.readouterr().out.splitlines() if 'masked' in line)
    assert [float(line.split('loss ')[1].split(';')[0]) for line in (first, second)] == pytest.approx([float(first.split('loss ')[1].split(';')[0])] * 2, abs=2e-3)
    if name == 'vit_mae':
        assert '--decoder_n_head' in fails(capsys, scores.main, *at, f'--model={name}')
    start = f'--data_dir={folder}', '--dataset=quads', '--n_head=4', '--image_size=32', '--patch_size=8', '--max_iters=1', f'--out_dir={tmp_path}/a'
    told = fails(capsys, scores.main, at[0].replace('w.pth', 'encoder.pth'), *at[1:], f'--model={name}', heads)
    assert 'has no decoder' in told
    settings = dict(n_head=4, image_size=32, patch_size=8, num_classes=4)
    whole, encoder = (models.load_weights(f'official:{tmp_path}/{file}.pth', kind, **settings) for file in ('w', 'encoder'))
    assert equal(whole['weights'], encoder['weights']) and whole['model_config'] == encoder['model_config']  # it is all that is needed
    torch.save({k: v for k, v in torch.load(tmp_path / 'encoder.pth').items() if k != 'cls_token'}, tmp_path / 'cut.pth')
    assert 'cut.pth' in fails(capsys, train.main, *start, f'--init_from=official:{tmp_path}/cut.pth', f'--model={kind}')
    go(*start, f'--init_from=official:{tmp_path}/w.pth', f'--model={kind}', '--batch_size=4', '--gradient_accumulation_steps=1', '--warmup_epochs=0', '--workers=0')
    assert config_of(tmp_path / 'a')['model'] == kind
