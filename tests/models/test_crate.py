"""CRATE equals the papers' equations by naive loops, and its steps do what they are for. So do
those of CRATE-alpha."""
import math

import pytest
import torch
from helpers import text_network, tokens

from model_crate import ISTA, CRATEConfig
from model_crate_alpha import ISTA as SparseCoding
from model_crate_alpha import CRATEAlphaConfig

# ---- the network of text


def naive_mssa(mssa, Z, causal):
    """What attention adds to each token of a list Z, eqs. (11) and (115), with K = 2 and p = 8."""
    results = []
    for i in range(len(Z)):
        n_seen = i + 1 if causal else len(Z)
        heads = []
        for k in range(2):
            U_k = mssa.U.weight[8 * k:8 * k + 8].T                  # (d, p)
            query = U_k.T @ Z[i]
            projections = [U_k.T @ z for z in Z[:n_seen]]
            scores = [w @ query / math.sqrt(8) for w in projections]
            weights = torch.stack(scores).softmax(0)
            heads.append(sum(weight * w for weight, w in zip(weights, projections)))
        results.append(mssa.W.weight @ torch.cat(heads) + mssa.W.bias)
    return results


def naive_ista(ista, z):
    """Eq. (17) for one token, with eta = lambda = 0.1."""
    D = ista.D
    downhill = D.T @ (z - D @ z)
    return torch.clamp(z + 0.1 * downhill - 0.1 * 0.1, min=0)


@pytest.mark.parametrize('causal', [True, False])
def test_the_logits_of_text_equal_the_paper_by_a_naive_loop(causal):
    """Eq. (18) in each layer. CRATE-BERT, which is not causal, has a LayerNorm after the last."""
    model = text_network('crate', causal=causal)
    for p in model.parameters():  # no LayerNorm and no bias stays as it starts
        generator = torch.Generator().manual_seed(p.numel())
        p.data += 0.1 * torch.randn(p.shape, generator=generator)
    x = tokens(1, 6)
    token_table = model.embed.tok_emb.weight

    Z = []
    for position, token in enumerate(x[0]):
        Z.append(token_table[token] + model.embed.pos_emb.weight[position])
    for layer in model.layers:
        normed = [layer.norm1(z) for z in Z]
        steps = naive_mssa(layer.attn, normed, causal)
        compressed = [z + step for z, step in zip(Z, steps)]
        Z = [naive_ista(layer.ista, layer.norm2(z)) for z in compressed]
    if not causal:
        Z = [model.read.norm(z) for z in Z]
    expected = torch.stack([token_table @ z for z in Z])

    assert torch.allclose(model(x)[0][0], expected, atol=1e-4)


# ---- sparse coding


def ista_step(kind):
    """(a, pull) of a step of ISTA with eta=0.2 and lambda=0.3 from random tokens z. a is the
    result. pull is z - eta gradient - a, the negative gradient of |a - (z - eta gradient)|^2 / 2 in
    a."""
    torch.manual_seed(0)
    z = torch.randn(50, 8)
    ista = ISTA(CRATEConfig(n_embd=8, n_head=2, eta=0.2, lam=0.3, ista=kind))
    torch.nn.init.normal_(ista.D, std=0.3)
    a = ista(z)

    start = z.clone().requires_grad_()
    objective = 0.5 * (z - start @ ista.D.T) ** 2
    objective.sum().backward()
    return a, z - 0.2 * start.grad - a


# The next two tests have the optimality conditions of |a - (z - eta gradient)|^2 / 2
# + eta lambda |a|_1, where eta lambda = 0.06. tests/analysis/test_majorizer.py compares the step of
# eq. (92) with its majorizer.


def test_a_step_of_ista_is_proximal_over_codes_that_are_not_negative():
    a, pull = ista_step('relu')

    assert (a >= 0).all()
    assert (a == 0).any()
    assert torch.allclose(pull[a > 0], torch.tensor(0.06), atol=1e-6)
    assert pull[a == 0].max() <= 0.06


def test_a_step_of_soft_ista_is_proximal_over_codes_of_both_signs():
    a, pull = ista_step('soft')

    assert (a == 0).any()
    assert torch.allclose(pull[a != 0], 0.06 * a[a != 0].sign(), atol=1e-6)
    assert pull[a == 0].abs().max() <= 0.06


def test_many_steps_of_crate_alpha_reach_the_minimum_of_the_lasso():
    """Its optimality conditions: the gradient of the smooth part is -lambda where a code is
    positive, and at least -lambda where it is zero."""
    torch.manual_seed(2)
    config = CRATEAlphaConfig(n_embd=12, n_head=3, eta=0.3, lam=0.3, steps=3000)
    coding = SparseCoding(config).double()
    torch.nn.init.normal_(coding.D, std=0.2)
    x = torch.randn(7, 12, dtype=torch.float64)

    a = coding.code(x)
    gradient = (a @ coding.D.T - x) @ coding.D

    positive = a > 0
    assert positive.any(1).all()
    assert (~positive).any(1).all()
    assert (gradient[positive] + 0.3).abs().max() < 1e-9
    assert (gradient[~positive] + 0.3).min() > -1e-9
