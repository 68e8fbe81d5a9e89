"""Model files stand alone, so some operators stand in several of them. A copy that says "as in model_x.py" has the same
code as the one there; operators that differ in their settings compute the same where these agree."""
import ast
import re

import pytest
import torch
from helpers import ROOT

import model_aot
import model_crate
import model_crate_alpha
import model_crate_mae
import model_vit
import model_vit_mae


def definitions(file):
    """{name: its node} of the classes and functions of a file."""
    body = ast.parse((ROOT / file).read_text(encoding='utf-8')).body
    return {node.name: node for node in body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}


def code(node):
    """The code of a class or function without docstrings and comments."""
    for part in ast.walk(node):
        if isinstance(part, (ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(part) is not None:
            part.body = part.body[1:]
    return ast.dump(node)


COPIES = [(file.name, name, original) for file in sorted(ROOT.glob('model_*.py'))
          for name, node in definitions(file.name).items()
          for original in re.findall(r'as\s+in\s+(model_\w+\.py)', ast.get_docstring(node) or '')]


def test_there_are_copies():
    assert len(COPIES) > 15


@pytest.mark.parametrize('file, name, original', COPIES, ids=lambda word: word.removesuffix('.py'))
def test_a_copy_has_the_code_of_its_original(file, name, original):
    assert code(definitions(file)[name]) == code(definitions(original)[name])


# ---- operators that are copies but for their settings

SIZES = dict(n_layer=2, n_head=2, n_embd=32, image_size=(8, 12), patch_size=(4, 2))
CRATE = model_crate.CRATEConfig(**SIZES)


def same(ours, theirs, *inputs):
    """Whether two modules compute the same with the same weights, which are large."""
    torch.manual_seed(0)
    for p in ours.parameters():
        torch.nn.init.normal_(p, std=0.3)
    theirs.load_state_dict(ours.state_dict(), strict=False)         # a bias of AoT's U stays 0
    return torch.allclose(ours(*inputs), theirs(*inputs), atol=1e-5)


@pytest.mark.parametrize('tie_out', [False, True])
def test_mssa_is_one_operator(tie_out):
    z, sizes = torch.randn(2, 13, 32), SIZES | dict(tie_out=tie_out)
    crate = model_crate.MSSA(model_crate.CRATEConfig(**sizes))
    assert same(crate, model_crate_mae.MSSA(model_crate_mae.CRATEMAEConfig(**sizes), 2), z)
    aot = model_aot.MSSA(model_aot.AoTConfig(bias=True, **sizes))
    torch.nn.init.zeros_(aot.U.bias)
    assert same(crate, aot, z)
    if not tie_out:
        text = dict(n_layer=2, n_head=2, n_embd=32, image_size=0, block_size=13)
        gpt = model_crate.MSSA(model_crate.CRATEConfig(**text))
        assert same(gpt, model_crate_alpha.MSSA(model_crate_alpha.CRATEAlphaConfig(**text)), z)
        assert not torch.allclose(gpt(z), crate(z), atol=1e-3)      # a text has a direction, a picture none


def test_mhsa_mlp_and_layer_of_vit_are_one():
    z = torch.randn(2, 13, 32)
    vit = model_vit.ViTConfig(**SIZES)
    assert same(model_vit.Layer(vit), model_vit_mae.Layer(32, 2), z)
    assert same(model_vit.MHSA(vit), model_aot.MHSA(model_aot.AoTConfig(bias=True, **SIZES)), z)
    assert same(model_vit.MLP(vit), model_aot.MLP(model_aot.AoTConfig(bias=True, **SIZES)), z)


def test_layer_of_crate_is_the_encoder_of_crate_mae():
    z, mae = torch.randn(2, 13, 32), model_crate_mae.CRATEMAEConfig(lam=0.1, **SIZES)
    assert same(model_crate.Layer(CRATE), model_crate_mae.EncoderLayer(mae), z)


@pytest.mark.parametrize('part, inputs', [
    ('embed', (torch.randn(2, 3, 8, 12),)), ('read', (torch.randn(2, 7, 32), torch.tensor([0, 2])))])
@pytest.mark.parametrize('settings', [{}, dict(label_smoothing=0.1, pool='mean')])
def test_aot_and_crate_read_pictures_alike(part, inputs, settings):
    settings = SIZES | dict(num_classes=5) | settings
    crate = getattr(model_crate.CRATE(model_crate.CRATEConfig(**settings)), part)
    aot = getattr(model_aot.AoT(model_aot.AoTConfig(bias=True, **settings)), part)
    aot.load_state_dict(crate.state_dict())
    torch.testing.assert_close(aot(*inputs), crate(*inputs), rtol=0, atol=1e-6)
