"""Model files stand alone, so some operators stand in several of them. A copy that says "as in
model_x.py" has the same code as the original there. Operators that differ in their settings
compute the same where these agree."""
import ast
import re

import pytest
import torch
from helpers import ROOT

import model_aot
import model_crate
import model_crate_mae
import model_vit

# ---- copies


def definitions(file):
    """{name: its node} of the classes and functions of a file."""
    nodes = {}
    for node in ast.parse((ROOT / file).read_text(encoding='utf-8')).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            nodes[node.name] = node
    return nodes


def code(node):
    """The code of a class or function without docstrings and comments."""
    for inner in ast.walk(node):
        if isinstance(inner, (ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(inner):
            inner.body = inner.body[1:]
    return ast.dump(node)


def all_copies():
    """(file, name, file of the original) of each class or function that says "as in .."."""
    copies = []
    for path in sorted(ROOT.glob('model_*.py')):
        for name, node in definitions(path.name).items():
            docstring = ast.get_docstring(node) or ''
            for original in re.findall(r'as\s+in\s+(model_\w+\.py)', docstring):
                copies.append((path.name, name, original))
    return copies


@pytest.mark.parametrize('file, name, original', all_copies())
def test_a_copy_has_the_code_of_its_original(file, name, original):
    assert code(definitions(file)[name]) == code(definitions(original)[name])


# ---- operators that are copies but for their settings, and of which no golden file has the output

SIZES = dict(n_layer=2, n_head=2, n_embd=32, image_size=(8, 12), patch_size=(4, 2))


def crate(**settings):
    return model_crate.CRATEConfig(**SIZES | settings)


def aot(**settings):
    return model_aot.AoTConfig(bias=True, **SIZES | settings)


def crate_mae(**settings):
    return model_crate_mae.CRATEMAEConfig(lam=0.1, **SIZES | settings)


def same(operator, similar):
    """Whether two operators on tokens compute the same with the same weights, which are large."""
    torch.manual_seed(0)
    for p in operator.parameters():
        torch.nn.init.normal_(p, std=0.3)
    similar.load_state_dict(operator.state_dict(), strict=False)  # AoT's U alone has a bias
    z = torch.randn(2, 13, 32)
    return torch.allclose(operator(z), similar(z), atol=1e-5)


def test_tied_mssa_of_crate_mae_is_that_of_crate():
    similar = model_crate_mae.MSSA(crate_mae(tie_out=True), 2)

    assert same(model_crate.MSSA(crate(tie_out=True)), similar)


def test_tied_mssa_of_aot_is_that_of_crate():
    similar = model_aot.MSSA(aot(tie_out=True))
    torch.nn.init.zeros_(similar.U.bias)

    assert same(model_crate.MSSA(crate(tie_out=True)), similar)


def test_mhsa_of_aot_is_that_of_vit():
    vit = model_vit.ViTConfig(**SIZES)

    assert same(model_vit.MHSA(vit), model_aot.MHSA(aot()))


def test_encoder_layer_of_crate_mae_is_the_layer_of_crate():
    assert same(model_crate.Layer(crate()), model_crate_mae.EncoderLayer(crate_mae()))


@pytest.mark.parametrize('module, inputs', [
    ('embed', [torch.randn(2, 3, 8, 12)]),
    ('read', [torch.randn(2, 7, 32), torch.tensor([0, 2])]),
])
@pytest.mark.parametrize('settings', [{}, dict(label_smoothing=0.1, pool='mean')])
def test_aot_and_crate_read_pictures_alike(module, inputs, settings):
    of_crate = model_crate.CRATE(crate(num_classes=5, **settings)).get_submodule(module)
    of_aot = model_aot.AoT(aot(num_classes=5, **settings)).get_submodule(module)
    of_aot.load_state_dict(of_crate.state_dict())

    torch.testing.assert_close(of_aot(*inputs), of_crate(*inputs), rtol=0, atol=1e-6)
