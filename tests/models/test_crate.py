"""CRATE: equal to the authors' code through its own weights, and to the papers' equations by naive
loops."""
import math

import pytest
import torch
from helpers import golden, golden_pictures, same_tokens, text_network, tokens

from model_crate import CRATE, ISTA, MSSA, CRATEConfig, patchify


@pytest.mark.parametrize('name', ['crate_classifier', 'crate_classifier_mean_pool', 'crate_classifier_one_head'])
def test_crate_equals_the_released_code_layer_by_layer(name):
    c = golden(name)[1]['constructor']
    model, g, x = golden_pictures(name, pool=c['pool'], eta=c['ista'])
    assert (model(x)[0] - torch.tensor(g['outputs']['logits'])).abs().max() < 1e-5
    assert model.num_params() == g['parameter_count']['all']
    z, want = model.embed(x), g['outputs']['tokens']
    same_tokens(z, want['tokens_before_layers'])
    for l, layer in enumerate(model.layers):
        same_tokens(z + layer.attn(layer.norm1(z)), want[f'layer{l}.after_attention_residual'])
        z = layer(z)
        same_tokens(z, want[f'layer{l}.after_ista'])
        zeros = (z == 0).float().mean((1, 2))
        share = g['outputs']['layerwise_measures'][l]['zero_fraction_mean']
        assert zeros.mean().item() == pytest.approx(share, abs=1 / z[0].numel())


@pytest.mark.parametrize('causal', [True, False])
def test_the_logits_of_text_equal_the_paper_by_a_naive_loop(causal):
    """Eqs. (11), (115), (17) and (18), one token, head and number at a time; then CRATE-BERT's LayerNorm."""
    model, x = text_network('crate', causal=causal), tokens(1, 6)
    for p in model.parameters():
        p.data += 0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel()))
    table, positions = model.embed.tok_emb.weight, model.embed.pos_emb.weight
    Z = [table[t] + positions[i] for i, t in enumerate(x[0])]
    for layer in model.layers:
        normed, half = [layer.norm1(z) for z in Z], []
        for i, z in enumerate(Z):
            heads = []
            for k in range(2):
                U_k = layer.attn.U.weight[8 * k:8 * k + 8].T
                w = [U_k.T @ n for n in normed[:i + 1 if causal else None]]
                weights = torch.stack([w_j @ (U_k.T @ normed[i]) / math.sqrt(8) for w_j in w]).softmax(0)
                heads.append(sum(a * w_j for a, w_j in zip(weights, w)))
            half.append(z + layer.attn.W.weight @ torch.cat(heads) + layer.attn.W.bias)
        D, Z = layer.ista.D, []
        for h in map(layer.norm2, half):
            Z.append(torch.clamp(h + 0.1 * D.T @ (h - D @ h) - 0.1 * 0.1, min=0))
    expected = torch.stack([table @ (z if causal else model.read.norm(z)) for z in Z])
    assert torch.allclose(model(x)[0][0], expected, atol=1e-4)


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


def test_ista_equals_the_naive_step():
    """That of eq. (92) is held to its majorizer in analysis/test_majorizer.py."""
    torch.manual_seed(0)
    z = torch.randn(2, 5, 8)
    for kind in ('relu', 'soft'):
        ista = ISTA(CRATEConfig(n_embd=8, n_head=2, eta=0.2, lam=0.3, ista=kind))
        torch.nn.init.normal_(ista.D, std=0.3)
        expected = torch.zeros_like(z)
        for b in range(2):
            for n in range(5):
                v, D = z[b, n], ista.D
                step = v + 0.2 * D.T @ (v - D @ v)
                relu, soft = (step - 0.06).clamp(min=0), step.sign() * (step.abs() - 0.06).clamp(min=0)
                expected[b, n] = relu if kind == 'relu' else soft
        assert torch.allclose(ista(z), expected, atol=1e-6)


def test_one_ista_step_lowers_the_lasso_of_an_incoherent_dictionary():
    torch.manual_seed(0)
    ista = ISTA(CRATEConfig(n_embd=16, n_head=2))
    torch.nn.init.orthogonal_(ista.D)
    target = torch.randn(1, 50, 16).abs()

    def lasso(z):
        return (0.5 * (target - z @ ista.D.T) ** 2).sum() + 0.1 * z.sum()
    assert lasso(ista(target)) < lasso(target)


def test_patches_are_rows_of_rows_columns_channels():
    x = torch.arange(2 * 3 * 4 * 6).view(2, 3, 4, 6).float()
    patches = patchify(x, 3, 4, 6, 2, 3)
    assert patches.shape == (2, 4, 18)
    assert torch.equal(patches[1, 2].view(2, 3, 3), x[1, :, 2:4, 0:3].permute(1, 2, 0))  # third patch: lower left


def test_the_papers_sizes():
    for (n_layer, n_embd, n_head), count in {(12, 384, 6): 6_090_856, (12, 576, 12): 13_116_328,
                                             (12, 768, 12): 22_796_008, (24, 1024, 16): 77_641_192}.items():
        with torch.device('meta'):
            assert CRATE(CRATEConfig(n_layer=n_layer, n_embd=n_embd, n_head=n_head)).num_params() == count


@pytest.mark.parametrize('shape, vocab_size, block_size, causal', [
    ((12, 768, 12), 50257, 1024, True), ((12, 768, 12), 50258, 512, False), ((8, 512, 8), 50258, 512, False)])
def test_parameters_of_text_by_hand(shape, vocab_size, block_size, causal):
    n, d, K = shape
    with torch.device('meta'):
        model = CRATE(CRATEConfig(n, K, d, image_size=0, vocab_size=vocab_size, block_size=block_size, causal=causal))
    layer = 3 * d * d + d + 2 * 2 * d  # U, W with a bias, D; two LayerNorms
    assert model.num_params() == (vocab_size + block_size) * d + n * layer + 2 * d * (not causal)
    if causal:
        assert round(model.num_params() / 1e6) == 61  # "about 60M"
