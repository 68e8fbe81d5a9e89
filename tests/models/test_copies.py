"""Model files stand alone, so some operators and helpers stand in several files. Here the copies
are held equal."""
import inspect
import re
from functools import partial

import pytest
import torch
from helpers import tokens

import model_aot
import model_crate
import model_crate_alpha
import model_crate_mae
import model_tost
import model_vit
import model_vit_mae
from model_aot import AoT, AoTConfig
from model_crate import CRATE, CRATEConfig
from model_crate_alpha import CRATEAlpha, CRATEAlphaConfig
from model_crate_mae import CRATEMAEConfig
from model_tost import ToST, ToSTConfig
from model_vit import ViTConfig
from model_vit_mae import ViTMAEConfig

TEXTS = model_aot, model_crate
CRATES = model_crate, model_crate_alpha
AUTOENCODERS = model_crate_mae, model_vit_mae


def source(thing):
    """The source text of a function or class, without docstrings and comments."""
    text = re.sub(r'""".*?"""', '', inspect.getsource(thing), flags=re.S)
    return re.sub(r' *# .*', '', text)


@pytest.mark.parametrize('name, files', [
    ('patchify', TEXTS), ('language_loss', TEXTS), ('language_loss', CRATES), ('language_loss', (model_aot, model_tost)),
    ('Average', CRATES), ('TokenEmbedding', CRATES), ('Classifier', CRATES), ('patchify', AUTOENCODERS),
    ('unpatchify', AUTOENCODERS),
    ('statistics', AUTOENCODERS), ('sines_and_cosines', AUTOENCODERS), ('average', AUTOENCODERS),
    ('n_visible', AUTOENCODERS), ('check_pictures', AUTOENCODERS)])
def test_copies_have_the_same_text(name, files):
    ours, theirs = (source(getattr(file, name)) for file in files)
    assert ours == theirs


@pytest.mark.parametrize('name', ['target', 'loss', 'encode', 'reconstruct', 'num_params'])
def test_methods_of_the_masked_autoencoders_have_the_same_text(name):
    ours, theirs = (source(getattr(file.Network, name)) for file in AUTOENCODERS)
    assert ours == theirs


def test_the_text_of_attention_differs_in_who_is_causal_alone():
    ours, theirs = (source(file.Average) for file in TEXTS)
    assert ours != theirs and ours.replace("c.task != 'image'", "c.task == 'text'") == theirs


def test_what_both_autoencoders_and_others_cut_is_the_same():
    x, sizes = torch.randn(2, 3, 16, 24), (3, 16, 24, 8, 4)
    ours, *others = (file.patchify(x, *sizes) for file in (*TEXTS, *AUTOENCODERS))
    assert all(torch.equal(ours, theirs) for theirs in others)


@pytest.mark.parametrize('causal', [True, False])
@pytest.mark.parametrize('N', [1, 5, 16])
def test_attention_is_the_same_in_all_files(N, causal):
    q, k, v = torch.randn(3, 2, N, 32, generator=torch.Generator().manual_seed(N))
    c = dict(n_embd=32, n_head=4, image_size=0 if causal else 32)
    averages = [file.Average(Config(**c)) for file, Config in zip(TEXTS, (AoTConfig, CRATEConfig))]
    if not causal:
        averages += [partial(model_vit.average, K=4, dropout=0.0), *(partial(f.average, K=4) for f in AUTOENCODERS)]
    whole = averages[0](q, k, v)
    for average in averages:
        assert torch.allclose(average(q, k, v), whole, atol=1e-6)
        assert torch.allclose(average(q.bfloat16(), k.bfloat16(), v.bfloat16()).float(), whole, atol=3e-2)


@pytest.mark.parametrize('tie_out', [False, True])
def test_mssa_is_the_same_in_all_files(tie_out):
    """The same on pictures. On text AoT's is causal, so there only the last token is compared."""
    torch.manual_seed(0)
    crate, z = model_crate.MSSA(CRATEConfig(n_embd=12, n_head=3, tie_out=tie_out)), torch.randn(2, 5, 12)
    mae = model_crate_mae.MSSA(CRATEMAEConfig(n_embd=12, n_head=3, tie_out=tie_out), 3)
    mae.load_state_dict(crate.state_dict())
    assert torch.equal(mae(z), crate(z))
    if not tie_out:
        torch.nn.init.zeros_(crate.W.bias)  # AoT has none
    for image_size, part in ((16, slice(None)), (0, slice(-1, None))):
        aot = model_aot.MSSA(AoTConfig(n_embd=12, n_head=3, tie_out=tie_out, image_size=image_size))
        aot.load_state_dict({k: v for k, v in crate.state_dict().items() if k != 'W.bias'})
        assert torch.allclose(crate(z)[:, part], aot(z)[:, part], atol=1e-6)


def test_ista_is_the_same_in_both_files():
    crate = model_crate.ISTA(CRATEConfig(n_embd=12, n_head=3, eta=0.3, lam=0.4))
    mae, z = model_crate_mae.ISTA(CRATEMAEConfig(n_embd=12, n_head=3, eta=0.3, lam=0.4)), torch.randn(2, 5, 12)
    torch.nn.init.normal_(crate.D)
    mae.load_state_dict(crate.state_dict())
    assert torch.equal(mae(z), crate(z))


def test_blocks_of_vit_and_vit_mae_are_the_same():
    vit, mae = model_vit.Layer(ViTConfig(n_embd=12, n_head=3)), model_vit_mae.Layer(12, 3)
    mae.load_state_dict(vit.state_dict())
    z = torch.randn(2, 5, 12)
    assert torch.equal(mae(z), vit(z)) and mae.norm1.eps == vit.norm1.eps == 1e-6


PICTURES = dict(image_size=(16, 24), patch_size=(8, 4), num_classes=3, n_layer=1, n_head=2, n_embd=8)


def test_embedding_of_pictures_is_the_same_in_aot_and_crate():
    crate, aot, x = CRATE(CRATEConfig(**PICTURES)), AoT(AoTConfig(**PICTURES)), torch.randn(2, 3, 16, 24)
    aot.embed.load_state_dict(crate.embed.state_dict())
    assert len(crate.embed.state_dict()) == 8 and torch.equal(crate.embed(x), aot.embed(x))


@pytest.mark.parametrize('pool', ['cls', 'mean'])
def test_classifiers_are_the_same_in_aot_and_crate(pool):
    c = PICTURES | dict(pool=pool, label_smoothing=0.1)
    crate, aot = CRATE(CRATEConfig(**c)).read, AoT(AoTConfig(**c, bias=True)).read
    aot.load_state_dict(crate.state_dict())
    z, y = torch.randn(2, 25, 8), torch.tensor([0, 2])
    assert all(torch.equal(a, b) for a, b in zip(crate(z, y), aot(z, y)))
    assert torch.equal(crate.features(z), aot.features(z))


def test_embedding_and_head_of_text_are_the_same_in_aot_and_crate():
    """With the LayerNorm before the output map, which AoT always has."""
    c = dict(image_size=0, block_size=16, vocab_size=11, n_layer=1, n_head=2, n_embd=8)
    crate, aot, x = CRATE(CRATEConfig(**c, final_norm=True)), AoT(AoTConfig(**c, bias=True)), tokens(2, 7)
    aot.embed.load_state_dict(crate.embed.state_dict())
    aot.read.norm.load_state_dict(crate.read.norm.state_dict())
    z = crate.embed(x, first=3)
    assert torch.equal(z, aot.embed(x, first=3)) and crate.read.LOGITS_AT_ONCE == aot.read.LOGITS_AT_ONCE
    assert all(torch.equal(a, b) for a, b in zip(crate.read(z, x), aot.read(z, x)))


def test_crate_alpha_reads_text_and_attends_as_crate_does():
    """With the LayerNorm before the output map, which CRATE-LM always has."""
    c = dict(image_size=0, block_size=16, vocab_size=11, n_layer=1, n_head=2, n_embd=8)
    crate = CRATE(CRATEConfig(**c, final_norm=True))
    alpha, x = CRATEAlpha(CRATEAlphaConfig(**c)), tokens(2, 7)
    for part in ('embed', 'read', 'layers.0.norm1', 'layers.0.attn', 'layers.0.norm2'):
        alpha.get_submodule(part).load_state_dict(crate.get_submodule(part).state_dict())
    z, layers = crate.embed(x), [model.layers[0] for model in (crate, alpha)]
    halves = [layer.norm2(z + layer.attn(layer.norm1(z))) for layer in layers]
    assert torch.equal(*halves) and crate.read.LOGITS_AT_ONCE == alpha.read.LOGITS_AT_ONCE
    assert all(torch.equal(a, b) for a, b in zip(crate.read(z, x), alpha.read(z, x)))


@pytest.mark.parametrize('bias', [True, False])
def test_embedding_head_and_mlp_of_text_are_the_same_in_aot_and_tost(bias):
    c = dict(block_size=16, vocab_size=11, n_layer=1, n_head=2, n_embd=8, bias=bias)
    aot, tost, x = AoT(AoTConfig(**c, mlp=True)), ToST(ToSTConfig(**c, layer_scale=1.0)), tokens(2, 7)
    for ours, theirs in ((aot.embed, tost.embed), (aot.read.norm, tost.read.norm),
                         (aot.layers[0].mlp, tost.layers[0].mlp)):
        theirs.load_state_dict(ours.state_dict(), strict=False)  # ToST's MLP has a scale besides
    z = aot.embed(x, first=3)
    assert torch.equal(z, tost.embed(x, first=3)) and aot.read.LOGITS_AT_ONCE == tost.read.LOGITS_AT_ONCE
    assert all(torch.equal(a, b) for a, b in zip(aot.read(z, x), tost.read(z, x)))
    assert torch.equal(aot.layers[0].mlp(z), tost.layers[0].mlp(z))


def test_positions_of_the_masked_autoencoders_are_the_same():
    c = dict(image_size=(16, 24), patch_size=(8, 4), n_embd=8, n_head=2)
    crate, vit = model_crate_mae.CRATEMAE(CRATEMAEConfig(**c)), model_vit_mae.ViTMAE(ViTMAEConfig(**c))
    assert torch.equal(crate.embed.pos, vit.embed.pos)
