"""layers.py: every network opens its layers in one way; what a network of one's own must have; the released code's
measures; and the theorem in a shipped layer. tests/analysis/test_drawings.py compares the measures with loops."""
import pytest
import torch
from helpers import golden
from insides import NETWORKS, fresh, loud_network, random_inputs, walk

from analysis import denoising, layers, measures
from model_crate import CRATE, CRATEConfig


@torch.no_grad()
@pytest.mark.parametrize('name', [*NETWORKS, 'mean', 'tied', 'mhsa', 'grey', 'four'])
def test_inside_is_the_forward_pass(name):
    model, x = loud_network(name), random_inputs(name)
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


@pytest.mark.parametrize('part, named', [
    ('embed', 'CRATE .*embed'), ('layers', 'CRATE .*layers'), ('layers.1.attn', 'Layer .*attn'),
    ('layers.1.attn.U', 'MSSA .*U or QKV'), ('layers.1.attn.K', 'MSSA .*K')])
def test_what_a_network_lacks_is_named(part, named):
    model, x = fresh('crate'), random_inputs('crate')
    owner, _, name = part.rpartition('.')
    delattr(model.get_submodule(owner), name)
    with pytest.raises(ValueError, match=named):
        if 'attn.' in part:  # otherwise the forward pass would fail first
            layers.bases(layers.attentions(model)[1])
        layers.layer_measures(model, x)


def test_attention_is_called_once_with_tokens_in_and_out():
    model, x = fresh('crate'), random_inputs('crate')
    attend = model.layers[1].attn
    for forward in (lambda z: z, lambda z: z + attend(attend(z)), lambda z: z + attend(z[:, :1])):
        model.layers[1].forward = forward
        with pytest.raises(ValueError, match='Layer .*attn'):
            layers.layer_measures(model, x)


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


def test_enlarging():
    big = layers.enlarged(torch.arange(6.0)[None], (2, 3), (4, 9))
    assert torch.equal(big[0], torch.arange(6.0).view(2, 3).repeat_interleave(2, 0).repeat_interleave(3, 1))
