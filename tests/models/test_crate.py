"""CRATE equals the papers' equations by naive loops; its steps do what they are for. So do those of CRATE-alpha."""
import math

import pytest
import torch
from helpers import text_network, tokens

from model_crate import ISTA, CRATEConfig
from model_crate_alpha import ISTA as Coder
from model_crate_alpha import CRATEAlphaConfig


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


@pytest.mark.parametrize('kind', ['relu', 'soft'])
def test_a_step_of_ista_is_proximal(kind):
    """Its result a has the optimality conditions of |a - (z - eta gradient)|^2 / 2 + eta lambda |a|_1, with a >= 0 for
    'relu'. That of eq. (92) is held to its majorizer in analysis/test_majorizer.py."""
    torch.manual_seed(0)
    z, ista = torch.randn(50, 8), ISTA(CRATEConfig(n_embd=8, n_head=2, eta=0.2, lam=0.3, ista=kind))
    torch.nn.init.normal_(ista.D, std=0.3)
    a, at = ista(z), z.clone().requires_grad_()
    (0.5 * (z - at @ ista.D.T) ** 2).sum().backward()
    pull = z - 0.2 * at.grad - a
    assert torch.allclose(pull[a != 0], 0.06 * a[a != 0].sign(), atol=1e-6) and (a == 0).any()
    assert pull[a == 0].max() <= 0.06 and ((a >= 0).all() if kind == 'relu' else pull[a == 0].min() >= -0.06)


def test_many_steps_of_crate_alpha_reach_the_minimum_of_the_lasso():
    """Its optimality conditions: the gradient of the smooth part is -lambda where a code is positive, and at least
    that where it is zero."""
    torch.manual_seed(2)
    ista = Coder(CRATEAlphaConfig(n_embd=12, n_head=3, eta=0.05, lam=0.3, steps=20_000)).double()
    torch.nn.init.normal_(ista.D, std=0.2)
    x = torch.randn(7, 12, dtype=torch.float64)
    a = ista.code(x)
    gradient = (a @ ista.D.T - x) @ ista.D
    positive = a > 0
    assert positive.any(1).all() and (~positive).any(1).all()
    assert (gradient[positive] + 0.3).abs().max() < 1e-9 and (gradient[~positive] + 0.3).min() > -1e-9
