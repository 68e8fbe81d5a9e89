"""CRATE and ViT: equal to the authors' code through its own weights, by the recipe of the golden files."""
import functools
import math

import pytest
import torch
from conftest import golden, memorize

import model_aot
import model_crate
import model_vit
from model_aot import AoT, AoTConfig
from model_crate import CRATE, ISTA, MSSA, CRATEConfig, patchify
from model_vit import ViT, ViTConfig

CLASSIFIERS = ['crate_classifier', 'crate_classifier_mean_pool', 'crate_classifier_one_head']


def pictures(g):
    return torch.randn(g['input']['shape'], generator=torch.Generator().manual_seed(7))


def load(Model, name, sd=None, **kw):
    weights, g = golden(name)
    c = g['constructor']
    return Model.from_official(sd or weights, n_head=c['heads'], image_size=c['image_size'], patch_size=c['patch_size'], **kw).eval(), g, pictures(g)


def same_tokens(z, want):
    assert list(z.shape) == want['shape']
    assert (z.flatten()[:8] - torch.tensor(want['first8'])).abs().max() < 1e-5
    assert (z.flatten()[-8:] - torch.tensor(want['last8'])).abs().max() < 1e-5
    assert z.mean().item() == pytest.approx(want['mean'], abs=1e-5) and z.std().item() == pytest.approx(want['std'], abs=1e-5)


@pytest.mark.parametrize('name', CLASSIFIERS)
def test_crate_equals_the_released_code_layer_by_layer(name):
    _, g = golden(name)
    model, g, x = load(CRATE, name, pool=g['constructor']['pool'], eta=g['constructor']['ista'])
    assert (model(x)[0] - torch.tensor(g['outputs']['logits'])).abs().max() < 1e-5
    assert model.num_params() == g['parameter_count']['all']
    z = model.embed(x)
    same_tokens(z, g['outputs']['tokens']['tokens_before_layers'])
    for l, layer in enumerate(model.layers):
        half = z + layer.mssa(layer.norm1(z))
        same_tokens(half, g['outputs']['tokens'][f'layer{l}.after_attention_residual'])
        z = layer(z)
        same_tokens(z, g['outputs']['tokens'][f'layer{l}.after_ista'])
        zeros = (z == 0).float().mean((1, 2))
        want = g['outputs']['layerwise_measures'][l]['zero_fraction_mean']
        assert zeros.mean().item() == pytest.approx(want, abs=1 / z[0].numel())


@pytest.mark.parametrize('pool', ['cls', 'mean'])
def test_vit_equals_the_released_code_layer_by_layer(pool):
    weights, _ = golden('vit')
    if pool == 'cls':
        weights = {k.replace('fc_norm', 'norm'): v for k, v in weights.items()}
    model, g, x = load(ViT, 'vit', weights)
    want = g['outputs']['global_pool_true' if pool == 'mean' else 'global_pool_false']
    assert model.config.pool == pool
    logits = want['logits_if_final_norm_applied_once'] if pool == 'mean' else want['logits']  # timm 1.0.9 applies fc_norm twice
    assert (model(x)[0] - torch.tensor(logits)).abs().max() < 1e-5
    assert model.num_params() == g['parameter_count']['all']
    z = model.embed(x)
    same_tokens(z, want['tokens']['tokens_before_layers'])
    for l, layer in enumerate(model.layers):
        z = layer(z)
        same_tokens(z, want['tokens'][f'layer{l}.output'])


@pytest.mark.parametrize('Model, name', [(CRATE, name) for name in CLASSIFIERS] + [(ViT, 'vit')])
def test_official_weights_go_both_ways(Model, name):
    sd, g = golden(name)
    model, _, x = load(Model, name)
    back = model.to_official()
    assert list(back) == [row[0] for row in g['state_dict']] and all(torch.equal(back[k], sd[k]) for k in sd)
    for variant in ({'state_dict': {'module.' + k: v for k, v in sd.items()}, 'epoch': 3}, {'model': sd}):
        assert torch.equal(load(Model, name, variant)[0](x)[0], model(x)[0])


@pytest.mark.parametrize('Model, name, gone, odd', [(CRATE, 'crate_classifier', 'transformer.layers.1.1.fn.weight', 'cls_token'),
                                                    (ViT, 'vit', 'blocks.1.mlp.fc2.bias', 'cls_token')])
def test_official_loaders_name_what_does_not_fit(Model, name, gone, odd):
    sd, _ = golden(name)
    for change, word in (({gone: None}, gone), ({'surprise': torch.ones(1)}, 'surprise'), ({odd: torch.ones(1, 1, 3)}, odd)):
        changed = {k: v for k, v in (sd | change).items() if v is not None}
        with pytest.raises(ValueError, match=word):
            load(Model, name, changed)
    with pytest.raises(ValueError, match='not a'):
        load(Model, name, {'weights': torch.ones(1)})


def meta(Model, Config, **kw):
    with torch.device('meta'):
        return Model(Config(**kw)).num_params()


def test_the_papers_sizes():
    for (n_layer, n_embd, n_head), count in {(12, 384, 6): 6_090_856, (12, 576, 12): 13_116_328, (12, 768, 12): 22_796_008,
                                             (24, 1024, 16): 77_641_192}.items():
        assert meta(CRATE, CRATEConfig, n_layer=n_layer, n_embd=n_embd, n_head=n_head) == count
    for (n_layer, n_embd, n_head), count in {(12, 192, 3): 5_717_416, (12, 384, 6): 22_050_664, (12, 768, 12): 86_567_656,
                                             (24, 1024, 16): 304_326_632}.items():
        assert meta(ViT, ViTConfig, n_layer=n_layer, n_embd=n_embd, n_head=n_head) == count


def test_patches_are_rows_of_rows_columns_channels():
    x = torch.arange(2 * 3 * 4 * 6).view(2, 3, 4, 6).float()
    patches = patchify(x, (2, 3))
    assert patches.shape == (2, 4, 18)
    assert torch.equal(patches[1, 2].view(2, 3, 3), x[1, :, 2:4, 0:3].permute(1, 2, 0))  # third patch: lower left


def test_ista_equals_the_naive_step_in_every_variant():
    torch.manual_seed(0)
    z = torch.randn(2, 5, 8)
    for kind in ('relu', 'soft', 'mm'):
        ista = ISTA(CRATEConfig(n_embd=8, n_head=2, eta=0.2, lam=0.3, ista=kind, alpha=0.7))
        torch.nn.init.normal_(ista.D, std=0.3)
        expected = torch.zeros_like(z)
        for b in range(2):
            for n in range(5):
                v, D = z[b, n], ista.D
                if kind == 'mm':
                    expected[b, n] = ((1 + 4 / (9 * 1.7)) * D.T @ v - 4 * 0.3 / (9 * 0.7)).clamp(min=0)
                    continue
                step = v + 0.2 * D.T @ (v - D @ v)
                expected[b, n] = (step - 0.06).clamp(min=0) if kind == 'relu' else step.sign() * (step.abs() - 0.06).clamp(min=0)
        assert torch.allclose(ista(z), expected, atol=1e-6)


def test_one_ista_step_lowers_the_lasso_of_an_incoherent_dictionary():
    torch.manual_seed(0)
    ista = ISTA(CRATEConfig(n_embd=16, n_head=2))
    torch.nn.init.orthogonal_(ista.D)
    target = torch.randn(1, 50, 16).abs()

    def lasso(z):
        return (0.5 * (target - z @ ista.D.T) ** 2).sum() + 0.1 * z.sum()
    assert lasso(ista(target)) < lasso(target)


def test_tied_mssa_equals_eq_12_by_a_naive_loop():
    torch.manual_seed(0)
    mssa, Z = MSSA(CRATEConfig(n_embd=12, n_head=3, tie_out=True)), torch.randn(5, 12)
    expected = torch.zeros(5, 12)
    for k in range(3):
        U_k = mssa.U.weight[4 * k:4 * k + 4].T
        w = [U_k.T @ z for z in Z]
        for i in range(5):
            a = torch.tensor([math.exp((w[i] @ w[j]).item() / 2) for j in range(5)])
            expected[i] += U_k @ sum(a_j / a.sum() * w_j for a_j, w_j in zip(a, w))
    assert torch.allclose(mssa(Z[None])[0], expected, atol=1e-5)


@pytest.mark.parametrize('tie_out', [False, True])
def test_the_copies_of_mssa_agree(tie_out):
    """On pictures they are the same operator; on text AoT's sees the past only, for the last token the same."""
    torch.manual_seed(0)
    crate = MSSA(CRATEConfig(n_embd=12, n_head=3, tie_out=tie_out))
    if not tie_out:
        torch.nn.init.zeros_(crate.W.bias)
    z = torch.randn(2, 5, 12)
    for image_size, tokens in ((16, slice(None)), (0, slice(-1, None))):
        aot = model_aot.MSSA(AoTConfig(n_embd=12, n_head=3, tie_out=tie_out, image_size=image_size))
        aot.load_state_dict({k: v for k, v in crate.state_dict().items() if k != 'W.bias'})
        assert torch.allclose(crate(z)[:, tokens], aot(z)[:, tokens], atol=1e-6)


def test_the_copies_of_crates_preprocessing_agree():
    sizes = dict(image_size=(16, 24), patch_size=(8, 4), num_classes=3, n_layer=1, n_head=2, n_embd=8)
    crate, aot, x = CRATE(CRATEConfig(**sizes)), AoT(AoTConfig(**sizes)), torch.randn(2, 3, 16, 24)
    shared = {k: v for k, v in crate.state_dict().items() if k.startswith(('patch', 'token_norm', 'cls', 'pos'))}
    assert len(shared) == 8 and not aot.load_state_dict(shared, strict=False).unexpected_keys
    assert torch.equal(crate.embed(x), aot.embed_pictures(x))


@pytest.mark.parametrize('attend', [model_crate.attend, model_vit.attend, functools.partial(model_aot.attend, causal=False)])
def test_attention_is_the_same_in_bfloat16(attend):
    q = torch.randn(2, 3, 7, 8, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(attend(q.bfloat16(), q.bfloat16(), q.bfloat16()).float(), attend(q, q, q), atol=3e-2)


MODELS = [(CRATE, CRATEConfig, {}), (CRATE, CRATEConfig, dict(pool='mean', tie_out=True, ista='soft')), (CRATE, CRATEConfig, dict(ista='mm', head_dim=12)),
          (ViT, ViTConfig, {}), (ViT, ViTConfig, dict(pool='cls'))]


@pytest.mark.parametrize('Model, Config, kw', MODELS)
def test_a_fresh_model_knows_little_and_can_memorize(Model, Config, kw):
    torch.manual_seed(0)
    model = Model(Config(image_size=(8, 12), patch_size=4, num_classes=5, n_layer=2, n_head=2, n_embd=32, **kw)).train()
    x, y = torch.randn(6, 3, 8, 12), torch.tensor([0, 1, 2, 3, 4, 0])
    first = model(x, y)[1].item()
    assert 1.2 < first < 2.3  # log 5 = 1.61
    memorize(model, x, y, 0.1, lr=3e-3)
    assert torch.allclose(torch.compile(model, backend='eager', fullgraph=True)(x, y)[1], model(x, y)[1])


def test_label_smoothing_acts_in_training_only():
    model = CRATE(CRATEConfig(image_size=8, patch_size=4, num_classes=5, n_layer=1, n_head=2, n_embd=16, label_smoothing=0.5))
    x, y = torch.randn(3, 3, 8, 8), torch.tensor([0, 1, 2])
    logits, loss = model(x, y)
    assert loss.item() == pytest.approx(torch.nn.functional.cross_entropy(logits, y, label_smoothing=0.5).item())
    assert model.eval()(x, y)[1].item() == pytest.approx(torch.nn.functional.cross_entropy(logits, y).item())


@pytest.mark.parametrize('Config, kw, word', [
    (CRATEConfig, dict(image_size=30), 'divisible by patch_size'), (CRATEConfig, dict(pool='max'), 'cls or mean'), (CRATEConfig, dict(ista='hard'), 'relu'),
    (CRATEConfig, dict(n_embd=10, n_head=4), 'n_head'), (ViTConfig, dict(patch_size=(16, 15)), 'divisible by patch_size'),
    (ViTConfig, dict(pool='max'), 'cls or mean'), (ViTConfig, dict(n_embd=10, n_head=4), 'n_head')])
def test_impossible_configs_say_why(Config, kw, word):
    with pytest.raises(ValueError, match=word):
        Config(**kw)


def test_pictures_of_another_size_are_refused():
    for Model, Config in ((CRATE, CRATEConfig), (ViT, ViTConfig)):
        with pytest.raises(ValueError, match='resize'):
            Model(Config(image_size=8, patch_size=4, n_layer=1, n_head=2, n_embd=16))(torch.randn(1, 3, 8, 12))
