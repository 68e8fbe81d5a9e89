"""layers.py, and the measures of each half of a layer: every network opens its layers in one way, and what is
measured there is what a naive loop finds."""
import pytest
import torch
from helpers import golden
from insides import (NETWORKS, SUBSPACES, config_of, fresh, heads_of, kind_of, loud_network, projections,
                     random_inputs, softmax_of, walk)
from torch import nn

from analysis import compression, denoising, layers, measures, sparsification
from model_crate import CRATE, CRATEConfig

NAMES = [*NETWORKS, 'mean', 'tied', 'mhsa', 'grey', 'four']


def network(name):
    return loud_network(name), random_inputs(name)


# ---- the parts of a network


@torch.no_grad()
@pytest.mark.parametrize('name', NAMES)
def test_inside_is_the_forward_pass(name):
    model, x = network(name)
    for found, by_modules in zip(layers.inside(model, *x), walk(model, *x), strict=True):
        assert found.attention is by_modules[0] and found.layer.attn is found.attention
        for z, want in zip((found.normed, found.z, found.half, found.after), by_modules[1:], strict=True):
            assert z.shape == want.shape and torch.allclose(z, want, atol=1e-6)
        assert torch.allclose(found.z + found.update, found.half, atol=1e-6)
    after = found.after
    if 'mae' in name:
        assert torch.allclose(model.norm(after), model.encode(*x), atol=1e-5)
    else:
        y = x[1] if name == 'functions' else None
        assert torch.allclose(model.read(after, y)[0], model(*x)[0], atol=1e-5)
    assert not any(attention._forward_hooks for attention in layers.attentions(model))


@torch.no_grad()
@pytest.mark.parametrize('name', NAMES)
def test_attention_weights_are_those_of_the_layer(name):
    model, x = network(name)
    for attention, normed in ((step.attention, step.normed) for step in layers.inside(model, *x)):
        A, V = layers.weights(attention, normed, layers.causal(model)), layers.coordinates(attention, normed)
        assert A.shape == (3, 2, normed.size(1), normed.size(1)) and torch.allclose(A.sum(-1), torch.ones(1))
        assert A.amax(-1).mean() > 3 / normed.size(1)  # something to see
        heads = (A @ V).transpose(1, 2).flatten(2)
        out = heads @ attention.U.weight if attention.W is None else attention.W(heads)
        assert torch.allclose(out, attention(normed), atol=1e-4)
        if kind_of(name) == 'images':
            maps = layers.class_maps(attention, normed)                 # eqs. (B.4), (B.5)
            want = softmax_of(attention, normed[1], 1, 0, range(1, normed.size(1)))
            assert maps[1, 1].tolist() == pytest.approx(want, rel=1e-3, abs=1e-5)


@torch.no_grad()
@pytest.mark.parametrize('name', NAMES)
def test_bases_project_tokens_to_coordinates(name):
    model, x = network(name)
    for attention, normed in ((step.attention, step.normed) for step in layers.inside(model, *x)):
        for i, part in enumerate(layers.PARTS):
            U, W = layers.bases(attention, part), layers.coordinates(attention, normed, part)
            assert all(torch.equal(u, want) for u, (want, _) in zip(U, projections(attention, i), strict=True))
            assert torch.allclose(W, heads_of(attention, normed, i), atol=1e-4)


class OwnAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.K, self.U = 2, nn.Linear(8, 8)

    def forward(self, z):
        return self.U(z)


class OwnLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(8), OwnAttention()

    def forward(self, z):
        return z + self.attn(self.norm1(z))


class Own(nn.Module):
    """A network with what analyze.py needs, and nothing else."""

    def __init__(self):
        super().__init__()
        self.embed, self.layers = nn.Linear(4, 8), nn.ModuleList([OwnLayer(), OwnLayer()])


@torch.no_grad()
def test_a_network_needs_embed_layers_and_attention_alone():
    model, x = Own(), torch.randn(3, 5, 4)
    rates, shares, _ = layers.layer_measures(model, (x,))
    z = model.embed(x)
    for layer, rate in zip(model.layers, rates):
        z = layer(z)
        W = torch.stack([z @ U for U in layer.attn.U.weight.view(2, 4, 8).mT], 1)
        assert torch.allclose(rate, measures.compressed_rate(W))
    assert shares.shape == (2, 3) and 'neither ISTA nor an MLP' in layers.why_not_sparse(model)


@pytest.mark.parametrize('part, message', [
    ('embed', 'Own has no embed'), ('layers', 'Own has no layers'), ('layers.1.attn', 'OwnLayer has no attn'),
    ('layers.1.attn.U', 'OwnAttention has no U or QKV'), ('layers.1.attn.K', 'OwnAttention has no K')])
def test_what_is_missing_is_named(part, message):
    model = Own()
    owner, _, name = part.rpartition('.')
    delattr(model.get_submodule(owner), name)
    with pytest.raises(ValueError, match=f'{message}, .*docs/extend.md'):
        if part.endswith('.attn') or part.endswith('U'):  # otherwise the forward pass would fail first
            layers.bases(layers.attentions(model)[1])
        layers.layer_measures(model, (torch.randn(3, 5, 4),))


def test_attention_is_called_once_with_tokens_in_and_out():
    model = Own()
    for forward in (lambda z: z, lambda z: z + model.layers[1].attn(model.layers[1].attn(z))):
        model.layers[1].forward = forward
        with pytest.raises(ValueError, match='OwnLayer must call its attn once'):
            layers.layer_measures(model, (torch.randn(3, 5, 4),))


# ---- measures


@pytest.mark.parametrize('name', ['crate', 'vit', 'aot_text', 'functions'])
def test_layer_measures_by_hand(name):
    model, x = network(name)
    for attention in layers.attentions(model):
        if hasattr(attention, 'QKV') and attention.QKV.bias is not None:
            nn.init.normal_(attention.QKV.bias)  # which is no part of a projection onto a subspace
    rates, shares, objectives = layers.layer_measures(model, x)
    released, few, _ = layers.layer_measures(model, x, 'released', threshold=0.5)
    fine, _, _ = layers.layer_measures(model, x, eps=0.1)
    with torch.no_grad():
        for l, (attention, normed, _, half, z) in enumerate(walk(model, *x)):
            U = [U for U, _ in projections(attention, 2)]
            W = torch.stack([half @ u for u in U], 1)
            assert torch.allclose(rates[l], measures.compressed_rate(W, 0.5), rtol=1e-4)
            assert torch.allclose(fine[l], measures.compressed_rate(W, 0.1), rtol=1e-4)
            W = torch.stack([normed @ u for u in U], 1)
            assert torch.allclose(released[l], measures.released_rate(W, 0.01), rtol=1e-4)
            for b in range(3):
                rate = measures.coding_rate(z[b]).item() - sum(measures.coding_rate(z[b] @ u).item() for u in U)
                spent = 0.1 * sum(v != 0 for v in z[b].flatten().tolist())  # lambda 0.1, or none
                assert objectives[l, b].item() == pytest.approx(rate - spent, rel=1e-4)
                numbers = z[b].flatten().tolist()
                assert shares[l, b].item() == pytest.approx(sum(v != 0 for v in numbers) / len(numbers))
                assert few[l, b].item() == pytest.approx(sum(abs(v) > 0.5 for v in numbers) / len(numbers))
    assert (shares < 0.9).all() == (name == 'crate') and not rates.requires_grad


@pytest.mark.parametrize('name', ['crate_classifier', 'crate_classifier_mean_pool', 'crate_classifier_one_head'])
def test_the_measures_of_the_released_code(name):
    sd, g = golden(name)
    c = g['constructor']
    model = CRATE.from_official(sd, n_head=c['heads'], image_size=c['image_size'], patch_size=c['patch_size'],
                                pool=c['pool'], eta=c['ista'])
    x = torch.randn(g['input']['shape'], generator=torch.Generator().manual_seed(g['input']['generator_seed']))
    rates, shares, _ = layers.layer_measures(model.eval(), (x,), 'released')
    for rate, share, want in zip(rates, shares, g['outputs']['layerwise_measures'], strict=True):
        found = rate.mean().item(), rate.std().item()
        assert found == pytest.approx((want['coding_rate_mean'], want['coding_rate_std']), rel=1e-3)
        found = 1 - share.mean().item(), share.std(correction=0).item()
        assert found == pytest.approx((want['zero_fraction_mean'], want['zero_fraction_std']), abs=2e-4)


@pytest.mark.parametrize('name', NAMES)
def test_sparsity_means_something_where_a_layer_has_a_second_half(name):
    attention_only = name in ('aot_text', 'aot_pictures', 'functions', 'mhsa')
    assert bool(layers.why_not_sparse(fresh(name))) == attention_only


@torch.no_grad()
@pytest.mark.parametrize('name', [name for name in NAMES if name in SUBSPACES])
def test_signal_to_noise_by_a_loop_over_tokens(name):
    model, x = network(name)
    before, after = denoising.signal_to_noise(model, x)
    for l, (attention, _, z, half, _) in enumerate(walk(model, *x)):
        P = []
        for U, _ in projections(attention, 2):
            left = torch.linalg.svd(U)[0][:, :U.size(1)]
            P.append(left @ left.T)  # onto what the columns span
        for b in range(3):
            sums = torch.zeros(2, 2)
            for old, new in zip(z[b], half[b]):
                own = max(P, key=lambda p: (p @ old).norm().item())
                sums += torch.tensor([[(own @ t).square().sum(), (t - own @ t).square().sum()] for t in (old, new)])
            found = before[l, b].item(), after[l, b].item()
            assert found == pytest.approx(tuple((sums[:, 0] / sums[:, 1]).sqrt().tolist()), rel=1e-3)


def test_a_class_token_that_sees_only_itself_still_has_a_map():
    model, x = network('crate')
    with torch.no_grad():
        model.layers[0].attn.U.weight.mul_(1000)
        attention, normed = layers.at_layer(model, 1, *x)
        assert layers.weights(attention, normed)[:, :, 0, 1:].sum(-1).min() < 1e-30
        assert torch.allclose(layers.class_maps(attention, normed).sum(-1), torch.ones(1))


def test_a_tied_step_denoises_tokens_around_its_subspaces():
    """The setting of Theorem 1 in the shipped layer: orthonormal bases, W = [U_1 .. U_K], clusters
    around the subspaces."""
    Z, U = measures.noisy_mixture(2, 8, 32, 16, 0.3, torch.Generator().manual_seed(0))
    model = CRATE(CRATEConfig(image_size=0, causal=False, block_size=64, vocab_size=64, n_layer=1, n_head=2, n_embd=16,
                              tie_out=True)).eval()
    with torch.no_grad():
        model.embed.tok_emb.weight.copy_(Z.flatten(0, 1))
        model.embed.pos_emb.weight.zero_()
        model.layers[0].attn.U.weight.copy_(U.mT.flatten(0, 1))
    before, after = denoising.signal_to_noise(model, (torch.arange(64)[None],))
    assert after.item() > 1.1 * before.item() > 2


@torch.no_grad()
@pytest.mark.parametrize('name', [name for name in NAMES if name in SUBSPACES])
def test_rates_around_steps_by_a_loop_and_autograd(name):
    """R^c of Z^l, Z^(l+1/2) and Z^(l+1) themselves, and behind the layer's norm with projections of length 1."""
    model, x = network(name)
    *found, cosine = compression.rates_around_steps(model, x)
    for l, (layer, (attention, normed, *tokens)) in enumerate(zip(model.layers, walk(model, *x))):
        U = [U.double() for U, _ in projections(attention, 2)]
        for b in range(3):
            rates = []
            for released in (False, True):
                for z in (t[b] for t in tokens):                        # eq. (8), eigenvalue by eigenvalue
                    W = [(layer.norm1(z) if released else z).double() @ u for u in U]
                    W = [w / w.norm(dim=1, keepdim=True) for w in W] if released else W
                    squared = 0.01 if released else 0.25                # eps^2, or eps without its square
                    spectra = [torch.linalg.svdvals(w).square() for w in W]
                    rates.append(sum((1 + w.size(1) / (len(z) * squared) * s).log().sum().item() / 2
                                     for w, s in zip(W, spectra)))
            assert [part[l, b].item() for part in found] == pytest.approx(rates, rel=1e-3)
            z = normed[b].double().clone()
            with torch.enable_grad():
                z.requires_grad_()
                measures.compressed_rate(torch.stack([z @ u for u in U])).backward()
            turns = [torch.stack([s - (s @ t) / (t @ t) * t for s, t in zip(step, normed[b].double())])
                     for step in ((tokens[1] - tokens[0])[b].double(), -z.grad)]
            turns = [(s - s.mean(0)).flatten() for s in turns]
            assert cosine[l, b].item() == pytest.approx(torch.cosine_similarity(*turns, dim=0).item(), abs=1e-3)


def test_a_step_that_only_lengthens_tokens_raises_their_rate_and_not_the_released_one():
    """A layer whose attention doubles every token and whose second half gives it back."""
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.K, self.U = 2, nn.Linear(8, 6, bias=False)

        def forward(self, z):
            return z

    class OneLayer(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn, self.norm1 = Twice(), nn.LayerNorm(8)

        def forward(self, z):
            return (z + self.attn(z)) / 2

    model = nn.Module()
    model.embed, model.layers = nn.Identity(), nn.ModuleList([OneLayer()])
    z, half, after, *same, _ = (part.item() for part in compression.rates_around_steps(model, (torch.randn(1, 5, 8),)))
    assert half > 1.1 * z and after == pytest.approx(z) and same == pytest.approx([same[0]] * 3)


@torch.no_grad()
@pytest.mark.parametrize('name', ['crate', 'crate_mae', 'crate_bert'])
def test_lasso_values_by_hand_and_many_small_steps(name):
    model, x = network(name)
    values, lam = sparsification.lasso_values(model, x), config_of(name).lam
    for l, (layer, (_, _, _, half, z)) in enumerate(zip(model.layers, walk(model, *x))):
        Y, D = layer.norm2(half).double(), layer.ista.D.double()
        norm2, least = torch.linalg.svdvals(D)[0] ** 2, Y.relu()
        for _ in range(2000):
            least = (least + (Y - least @ D.T) @ D / norm2 - lam / norm2).relu()
        for Z, found in zip((Y.relu(), z.double(), least, 0 * Y), values, strict=True):
            by_token = [lam * v.sum() + (y - D @ v).square().sum() / 2 for y, v in zip(Y[1], Z[1])]
            assert found[l, 1].item() == pytest.approx((sum(by_token) / len(by_token)).item(), rel=1e-2)
        assert torch.allclose(z.double(), (Y + 0.1 * (Y - Y @ D.T) @ D - 0.1 * lam).relu(), atol=1e-5)  # this step


# ---- maps of patches


def test_top_mass_keeps_the_fewest_patches_that_hold_the_share():
    maps = torch.tensor([[0.1, 0.5, 0.2, 0.2], [0.25, 0.25, 0.25, 0.25]])
    assert layers.top_mass(maps, 0.5).tolist()[0] == [False, True, False, False]
    assert layers.top_mass(maps, 0.6).sum(1).tolist() == [2, 3] and layers.top_mass(maps, 1.0).all()
    random = torch.rand(5, 3, 30, generator=torch.Generator().manual_seed(0)).softmax(-1)
    kept = layers.top_mass(random, 0.6)
    for m, k in zip(random.flatten(0, 1), kept.flatten(0, 1)):
        assert m[k].sum() >= 0.6 > m[k].sum() - m[k].min() and m[k].min() >= m[~k].max()


def test_enlarging():
    maps = torch.arange(6.0)[None]
    big = layers.enlarged(maps, (2, 3), (4, 9))
    assert big.shape == (1, 4, 9)
    assert all(big[0, i, j] == maps[0, i // 2 * 3 + j // 3] for i in range(4) for j in range(9))


@pytest.mark.parametrize('turn', [1, -1])
def test_two_stage_pca_finds_what_is_in_the_middle(turn):
    generator = torch.Generator().manual_seed(0)
    front = torch.zeros(4, 6, dtype=torch.bool)
    front[1:3, 2:5] = True
    things, ground = torch.randn(2, 10, generator=generator, dtype=torch.float64)
    Z = torch.where(front.flatten()[:, None], 3 * turn * things, 0.3 * ground).expand(5, -1, -1)
    Z = Z + 0.1 * torch.randn(5, 24, 10, generator=generator, dtype=torch.float64)
    first, kept, colours = layers.two_stage_pca(Z, (4, 6), 0.5)
    assert torch.equal(kept, front.flatten().expand(5, -1)) and (colours[~kept] == 0).all()
    u0, V = torch.linalg.svd(Z.flatten(0, 1))[2][0], torch.linalg.svd(Z[kept])[2][:3]
    assert torch.allclose(first.abs(), (Z @ u0).abs()) and torch.allclose(colours[kept].abs(), (Z[kept] @ V.T).abs())
    assert (colours[kept].sum(0) >= 0).all()
