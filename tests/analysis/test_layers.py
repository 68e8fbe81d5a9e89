"""inside.py: every network opens its layers in one way, and what is measured there is what a naive loop over them finds."""
import pytest
import torch
from conftest import golden, loud

from analysis import layers as inside
from analysis import derivation as steps
from analysis.measures import compressed_rate, released_rate
from model_aot import AoT, AoTConfig
from model_crate import CRATE, CRATEConfig
from model_crate_mae import CRATEMAE, CRATEMAEConfig
from model_vit import ViT, ViTConfig, ViTMAE, ViTMAEConfig

PICTURES = dict(image_size=(16, 24), patch_size=(4, 8), n_layer=3, n_head=2, n_embd=16)
TEXT = dict(block_size=12, vocab_size=20, n_layer=3, n_head=2, n_embd=16)


def pictures():
    return torch.randn(3, 3, 16, 24, generator=torch.Generator().manual_seed(1)),


def text():
    return torch.randint(20, (3, 12), generator=torch.Generator().manual_seed(1)),


def examples():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(3, 6, 5, generator=generator), torch.randn(3, 6, generator=generator)


NETWORKS = {
    'crate': (CRATE, CRATEConfig(**PICTURES), pictures), 'crate-mean': (CRATE, CRATEConfig(**PICTURES, pool='mean', head_dim=5), pictures),
    'crate-tied': (CRATE, CRATEConfig(**PICTURES, tie_out=True), pictures), 'vit': (ViT, ViTConfig(**PICTURES), pictures),
    'crate-gpt': (CRATE, CRATEConfig(image_size=0, **TEXT), text), 'crate-bert': (CRATE, CRATEConfig(image_size=0, causal=False, **TEXT), text),
    'aot': (AoT, AoTConfig(**TEXT), text), 'aot-mhsa': (AoT, AoTConfig(**TEXT, attn='mhsa'), text),
    'gpt2': (AoT, AoTConfig(**TEXT, attn='mhsa', mlp=True, bias=True), text), 'aot-pictures': (AoT, AoTConfig(**PICTURES), pictures),
    'aot-functions': (AoT, AoTConfig(**TEXT, n_dims=5), examples), 'crate-mae': (CRATEMAE, CRATEMAEConfig(**PICTURES), pictures),
    'vit-mae': (ViTMAE, ViTMAEConfig(**PICTURES, decoder_n_layer=1, decoder_n_head=2, decoder_n_embd=16), pictures)}
SUBSPACES = [name for name, (_, c, _) in NETWORKS.items() if 'vit' not in name and getattr(c, 'attn', 'mssa') == 'mssa']


def network(name):
    """Loud weights, so that attention is far from uniform, and inputs for `inside`."""
    Model, config, inputs = NETWORKS[name]
    torch.manual_seed(0)
    return loud(Model(config)), inputs()


@torch.no_grad()
@pytest.mark.parametrize('name', NETWORKS)
def test_inside_is_the_forward_pass(name):
    model, inputs = network(name)
    if name == 'aot-functions':
        z, want = model.embed_examples(*inputs), model(*inputs)[0]
    else:
        z = model.embed_pictures(*inputs) if name == 'aot-pictures' else model.embed(*inputs)
        want = model.encode(*inputs) if 'mae' in name else model(*inputs)[0]
    for attention, normed, half, after in model.inside(*inputs):
        assert torch.allclose(half, z + attention(normed), atol=1e-6) and normed.shape == half.shape == after.shape == z.shape
        z = after
    last = model.norm(z)
    if name == 'aot-functions':
        last = model.read_out(last[:, ::2]).squeeze(-1)
    elif 'mae' not in name and inputs[0].dim() == 4:
        pooled = z[:, 0] if model.config.pool == 'cls' else z[:, 1:].mean(1) if name == 'vit' else z.mean(1)
        last = getattr(model, 'classifier', getattr(model, 'head', None))(model.norm(pooled))
    elif 'mae' not in name:
        last = model.head(last)
    assert torch.allclose(last, want, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize('name', NETWORKS)
def test_attention_weights_are_those_that_the_layer_uses(name):
    model, inputs = network(name)
    for attention, normed, *_ in model.inside(*inputs):
        A, V = inside.weights(attention, normed), inside.coordinates(attention, normed)
        assert A.shape == (3, 2, normed.size(1), normed.size(1)) and torch.allclose(A.sum(-1), torch.ones(1))
        assert A.amax(-1).mean() > 3 / normed.size(1)  # something to see
        heads = (A @ V).transpose(1, 2).flatten(2)
        out = heads @ attention.U.weight * getattr(attention, 'eta', 1) if getattr(attention, 'W', None) is None else attention.W(heads)
        assert torch.allclose(out, attention(normed), atol=1e-4)
        if 'mae' in name or inputs[0].dim() == 4:
            maps = inside.class_maps(attention, normed)
            q, k = (inside.coordinates(attention, normed, part) for part in ('query', 'key'))
            scores = torch.stack([(q[:, :, 0] * k[:, :, i]).sum(-1) for i in range(1, normed.size(1))], -1) / q.size(-1) ** 0.5
            assert torch.allclose(maps, scores.exp() / scores.exp().sum(-1, keepdim=True), atol=1e-5)  # eqs. (B.4), (B.5)


@torch.no_grad()
@pytest.mark.parametrize('name', NETWORKS)
def test_bases_project_tokens_to_coordinates(name):
    model, inputs = network(name)
    for (attention, normed, *_), same in zip(model.inside(*inputs), inside.attentions(model), strict=True):
        assert attention is same
        for part in inside.PARTS:
            U = inside.bases(attention, part)
            W = normed.unsqueeze(1) @ U
            bias = 0 if hasattr(attention, 'U') else inside.coordinates(attention, torch.zeros_like(normed), part)
            assert U.shape[:2] == (2, 16) and torch.allclose(W + bias, inside.coordinates(attention, normed, part), atol=1e-4)


@pytest.mark.parametrize('name', ['crate', 'vit', 'aot', 'aot-functions'])
def test_layer_measures_by_hand(name):
    model, inputs = network(name)
    for attention in inside.attentions(model):
        if hasattr(attention, 'QKV') and attention.QKV.bias is not None:
            torch.nn.init.normal_(attention.QKV.bias)  # which is no part of a projection onto a subspace
    rates, shares = inside.layer_measures(model, inputs)
    released, few = inside.layer_measures(model, inputs, 'released', threshold=0.5)
    fine, _ = inside.layer_measures(model, inputs, eps=0.1)
    with torch.no_grad():
        for l, (attention, normed, half, z) in enumerate(model.inside(*inputs)):
            U = inside.bases(attention)
            W = torch.stack([half @ u for u in U], 1)
            assert torch.allclose(rates[l], compressed_rate(W, 0.5)) and torch.allclose(fine[l], compressed_rate(W, 0.1))
            assert torch.allclose(released[l], released_rate(torch.stack([normed @ u for u in U], 1), 0.01))
            for b in range(3):
                assert shares[l, b].item() == pytest.approx(sum(v != 0 for v in z[b].flatten().tolist()) / z[b].numel())
                assert few[l, b].item() == pytest.approx(sum(abs(v) > 0.5 for v in z[b].flatten().tolist()) / z[b].numel())
    assert (shares < 0.9).all() == (name == 'crate') and not rates.requires_grad


@pytest.mark.parametrize('name', ['crate_classifier', 'crate_classifier_mean_pool', 'crate_classifier_one_head'])
def test_the_released_codes_measures(name):
    sd, g = golden(name)
    c = g['constructor']
    model = CRATE.from_official(sd, n_head=c['heads'], image_size=c['image_size'], patch_size=c['patch_size'], pool=c['pool'], eta=c['ista'])
    x = torch.randn(g['input']['shape'], generator=torch.Generator().manual_seed(g['input']['generator_seed']))
    rates, shares = inside.layer_measures(model.eval(), (x,), 'released')
    for rate, share, want in zip(rates, shares, g['outputs']['layerwise_measures'], strict=True):
        assert (rate.mean().item(), rate.std().item()) == pytest.approx((want['coding_rate_mean'], want['coding_rate_std']), rel=1e-3)
        assert 1 - share.mean().item() == pytest.approx(want['zero_fraction_mean'], abs=2e-4)
        assert share.std(correction=0).item() == pytest.approx(want['zero_fraction_std'], abs=2e-4)


@pytest.mark.parametrize('name', NETWORKS)
def test_telemetry_is_the_means_and_leaves_no_trace(name):
    model, inputs = network(name)
    rates, shares = inside.layer_measures(model, inputs)
    state = torch.random.get_rng_state()
    columns = inside.telemetry(model.train(), inputs)
    assert model.training and torch.equal(state, torch.random.get_rng_state()) and all(p.grad is None for p in model.parameters())
    assert [columns[f'rate_{l}'] for l in (1, 2, 3)] == pytest.approx(rates.mean(1).tolist())
    attention_only = name in ('aot', 'aot-mhsa', 'aot-pictures', 'aot-functions')
    assert bool(inside.why_not_sparse(model)) == attention_only and len(columns) == (3 if attention_only else 6)
    if not attention_only:
        assert columns['nonzeros_2'] == pytest.approx(shares[1].mean().item())


@torch.no_grad()
@pytest.mark.parametrize('name', SUBSPACES)
def test_signal_to_noise_by_a_loop_over_tokens(name):
    model, inputs = network(name)
    before, after = inside.signal_to_noise(model, inputs)
    for l, (attention, normed, half, _) in enumerate(model.inside(*inputs)):
        P = []
        for U in inside.bases(attention):
            left = torch.linalg.svd(U)[0][:, :U.size(1)]
            P.append(left @ left.T)  # onto what the columns span
        for b in range(3):
            sums = torch.zeros(2, 2)
            for old, new in zip((half - attention(normed))[b], half[b]):
                own = max(P, key=lambda p: (p @ old).norm().item())
                sums += torch.stack([torch.stack(((own @ z).square().sum(), (z - own @ z).square().sum())) for z in (old, new)])
            assert torch.stack((before[l, b], after[l, b])).tolist() == pytest.approx((sums[:, 0] / sums[:, 1]).sqrt().tolist(), rel=1e-3)


def test_a_class_token_that_sees_only_itself_still_has_a_map():
    model, inputs = network('crate')
    with torch.no_grad():
        model.layers[0].mssa.U.weight.mul_(1000)
        attention, normed, *_ = next(model.inside(*inputs))
        assert inside.weights(attention, normed)[:, :, 0, 1:].sum(-1).min() < 1e-30
        assert torch.allclose(inside.class_maps(attention, normed).sum(-1), torch.ones(1))


def test_a_tied_step_denoises_tokens_around_its_subspaces():
    """Theorem 1's setting in the shipped layer: orthonormal bases, W = [U_1 .. U_K], clusters around the subspaces."""
    from analysis.measures import noisy_mixture
    Z, U = noisy_mixture(2, 8, 32, 16, 0.3, torch.Generator().manual_seed(0))
    model = CRATE(CRATEConfig(image_size=0, causal=False, block_size=64, vocab_size=64, n_layer=1, n_head=2, n_embd=16, tie_out=True)).eval()
    with torch.no_grad():
        model.tok_emb.weight.copy_(Z.flatten(0, 1))
        model.pos_emb.weight.zero_()
        model.layers[0].mssa.U.weight.copy_(U.mT.flatten(0, 1))
    before, after = inside.signal_to_noise(model, (torch.arange(64)[None],))
    assert after.item() > 1.1 * before.item() > 2


# ---- maps of patches


def test_top_mass_keeps_the_fewest_patches_that_hold_the_share():
    maps = torch.tensor([[0.1, 0.5, 0.2, 0.2], [0.25, 0.25, 0.25, 0.25]])
    assert inside.top_mass(maps, 0.5).tolist()[0] == [False, True, False, False]
    assert inside.top_mass(maps, 0.6)[0].sum() == 2 and inside.top_mass(maps, 0.6)[1].sum() == 3 and inside.top_mass(maps, 1.0).all()
    random = torch.rand(5, 3, 30, generator=torch.Generator().manual_seed(0)).softmax(-1)
    kept = inside.top_mass(random, 0.6)
    for m, k in zip(random.flatten(0, 1), kept.flatten(0, 1)):
        assert m[k].sum() >= 0.6 > m[k].sum() - m[k].min() and m[k].min() >= m[~k].max()


def test_overlap_and_enlarging():
    a, b = torch.zeros(2, 4, 6, dtype=torch.bool), torch.zeros(2, 4, 6, dtype=torch.bool)
    a[0, :2], b[0, 1:3, :3] = True, True
    assert inside.overlap(a, b).tolist() == pytest.approx([3 / 15, 0])
    maps = torch.arange(6.0)[None]
    big = inside.enlarged(maps, (2, 3), (4, 9))
    assert big.shape == (1, 4, 9) and all(big[0, i, j] == maps[0, i // 2 * 3 + j // 3] for i in range(4) for j in range(9))


@pytest.mark.parametrize('turn', [1, -1])
def test_two_stage_pca_finds_what_stands_in_the_middle(turn):
    generator = torch.Generator().manual_seed(0)
    front = torch.zeros(4, 6, dtype=torch.bool)
    front[1:3, 2:5] = True
    things, ground = torch.randn(2, 10, generator=generator, dtype=torch.float64)
    Z = torch.where(front.flatten()[:, None], 3 * turn * things, 0.3 * ground).expand(5, -1, -1)
    Z = Z + 0.1 * torch.randn(5, 24, 10, generator=generator, dtype=torch.float64)
    first, kept, colours = inside.two_stage_pca(Z, (4, 6), 0.5)
    assert torch.equal(kept, front.flatten().expand(5, -1)) and (colours[~kept] == 0).all()
    u0, V = torch.linalg.svd(Z.flatten(0, 1))[2][0], torch.linalg.svd(Z[kept])[2][:3]
    assert torch.allclose(first.abs(), (Z @ u0).abs()) and torch.allclose(colours[kept].abs(), (Z[kept] @ V.T).abs())
    assert (colours[kept].sum(0) >= 0).all()


# ---- the steps of trained layers, which analyze.py shows with --ckpt


@torch.no_grad()
@pytest.mark.parametrize('name', SUBSPACES)
def test_compression_by_hand(name):
    model, inputs = network(name)
    before, after, cosine = steps.compression(model, inputs)
    for l, (attention, normed, half, _) in enumerate(model.inside(*inputs)):
        U = inside.bases(attention)
        for b in range(3):
            z, h = (t[b] / t[b].norm(dim=1, keepdim=True) * 4 for t in (half - attention(normed), half))  # 4: sqrt(d)
            with torch.enable_grad():
                tokens = z.clone().requires_grad_()
                compressed_rate(torch.stack([tokens @ u for u in U])).backward()
            turned = [torch.stack([m - (m @ t) / (t @ t) * t for m, t in zip(move, z)]).flatten() for move in (h - z, -tokens.grad)]
            want = (compressed_rate(torch.stack([t @ u for u in U])).item() for t in (z, h))
            assert (before[l, b].item(), after[l, b].item()) == pytest.approx(tuple(want), rel=1e-4)
            assert cosine[l, b].item() == pytest.approx(torch.cosine_similarity(*turned, dim=0).item(), abs=1e-3)


@torch.no_grad()
@pytest.mark.parametrize('name', ['crate', 'crate-mae', 'crate-bert'])
def test_sparsification_by_hand(name):
    model, inputs = network(name)
    start, end, least, empty = steps.sparsification(model, inputs)
    assert (least <= end).all() and (least <= start).all() and (least <= empty).all()
    for l, (layer, (_, _, half, z)) in enumerate(zip(model.layers, model.inside(*inputs))):
        Y, D, lam = layer.norm2(half), layer.ista.D, model.config.lam
        for Z, found in ((Y.clamp_min(0), start), (z, end), (0 * Y, empty)):
            by_token = [lam * Z[1, i].sum() + (Y[1, i] - D @ Z[1, i]).square().sum() / 2 for i in range(Z.size(1))]
            assert found[l, 1].item() == pytest.approx((sum(by_token) / len(by_token)).item(), rel=1e-4)
        assert torch.allclose(z, (Y + 0.1 * (Y - Y @ D.T) @ D - 0.1 * lam).relu(), atol=1e-5)  # the step that this is about
