"""CRATE-alpha: equal to the authors' code through its own weights; its sparse codes are those of the
LASSO."""
import pytest
import torch
from helpers import golden_pictures

from model_crate_alpha import ISTA, CRATEAlpha, CRATEAlphaConfig


def test_crate_alpha_equals_the_released_code():
    model, g, x = golden_pictures('crate_alpha')
    assert (model(x)[0] - torch.tensor(g['outputs']['logits'])).abs().max() < 1e-5
    assert model.num_params() == g['parameter_count']['all']
    z, want = model.embed(x), torch.tensor(g['outputs']['class_token_of_first_picture_out_of_each_sparse_coding_block'])
    for layer, token in zip(model.layers, want, strict=True):
        z = z + layer.attn(layer.norm1(z))
        coded = layer.ista(layer.norm2(z))
        assert (coded[0, 0] - token).abs().max() < 1e-6
        z = z + coded


@pytest.mark.parametrize('settings, count', [
    (dict(), 72_328_936), (dict(n_layer=24, n_embd=1024, n_head=16, patch_size=14), 253_650_920)])
def test_the_papers_sizes(settings, count):
    with torch.device('meta'):
        assert CRATEAlpha(CRATEAlphaConfig(**settings)).num_params() == count


def test_weights_start_as_in_the_authors_training_code():
    """The deviations of their initializers: kaiming_uniform has sqrt(2 / inputs), and ends at sqrt(3) of it."""
    torch.manual_seed(0)
    model = CRATEAlpha(CRATEAlphaConfig(n_layer=2, n_head=4, n_embd=72, image_size=64, patch_size=4, num_classes=300))
    expected = {'ista.D': (0.1667, 0.2887), 'ista.D1': (0.1667, 0.2887), 'patch.weight': (0.2041, 0.3536)}  # of 72, 48
    for name, p in model.named_parameters():
        if 'norm' in name:
            assert p.unique().tolist() == [float(name.endswith('weight'))]
        elif name.endswith('bias'):
            assert not p.any()
        else:
            deviation, most = next((v for end, v in expected.items() if name.endswith(end)), (0.02, 1))
            deviation = 1e-6 if name.endswith('cls') else deviation
            assert p.std().item() == pytest.approx(deviation, rel=0.25 if name.endswith('cls') else 0.05), name
            assert most > p.abs().max() > 0.99 * most or most == 1


def coder(**settings):
    torch.manual_seed(0)
    ista = ISTA(CRATEAlphaConfig(n_embd=12, n_head=3, **settings)).double()
    torch.nn.init.normal_(ista.D, std=0.2)
    if ista.D1 is not None:
        torch.nn.init.normal_(ista.D1)
    return ista, torch.randn(7, 12, dtype=torch.float64)


def test_many_steps_reach_the_minimum_of_the_lasso():
    """Its optimality conditions: the gradient of the smooth part is -lambda where a code is positive, and at least
    that where it is zero."""
    ista, x = coder(eta=0.05, lam=0.3, steps=20_000)
    a = ista.code(x)
    gradient = (a @ ista.D.T - x) @ ista.D
    positive = a > 0
    assert positive.any(1).all() and (~positive).any(1).all()
    assert (gradient[positive] + 0.3).abs().max() < 1e-9 and (gradient[~positive] + 0.3).min() > -1e-9


def test_every_step_lowers_the_objective():
    def objective(steps):
        ista, x = coder(eta=0.05, lam=0.3, steps=steps)
        a = ista.code(x)
        return 0.3 * a.sum() + 0.5 * (x - a @ ista.D.T).square().sum()
    values = [objective(n) for n in (1, 2, 3, 5, 9)]
    assert values == sorted(values, reverse=True) and values[0] < 0.5 * coder()[1].square().sum()


def test_what_is_decoded_and_whether_there_is_a_skip():
    ista, x = coder()
    assert torch.equal(ista(x), ista.code(x) @ ista.D1.T)
    ista, x = coder(decoupled=False)
    assert ista.D1 is None and torch.equal(ista(x), ista.code(x) @ ista.D.T)
    small = dict(n_layer=1, n_head=2, n_embd=8, image_size=8, patch_size=4, num_classes=3)
    torch.manual_seed(0)
    model = CRATEAlpha(CRATEAlphaConfig(**small))
    z = torch.randn(2, 5, 8)
    with_skip = model.layers[0](z)
    model.layers[0].skip = False
    half = z + model.layers[0].attn(model.layers[0].norm1(z))
    assert torch.allclose(with_skip - model.layers[0](z), half, atol=1e-6)
