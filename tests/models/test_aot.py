"""AoT: the operators equal the paper's equations by naive loops; functions in context."""
import math

import numpy as np
import pytest
import torch
from helpers import golden_text, text_network

from model_aot import MSSA, AoTConfig
from tasks.regression import Prompts

# ---- the operators


def naive_head(w, causal):
    """softmax(w_i . w_j / sqrt(p)) over j, one number at a time; w (N, p)."""
    out = torch.zeros_like(w)
    for i in range(len(w)):
        seen, p = range(i + 1 if causal else len(w)), w.size(1)
        scores = [math.exp(sum(w[i, a] * w[j, a] for a in range(p)).item() / math.sqrt(p)) for j in seen]
        for j, s in zip(seen, scores):
            out[i] += s / sum(scores) * w[j]
    return out


@pytest.mark.parametrize('image_size', [0, 16])
@pytest.mark.parametrize('tie_out', [False, True])
def test_mssa_equals_eq_4_by_a_naive_loop(tie_out, image_size):
    """Without a mask on pictures."""
    torch.manual_seed(0)
    mssa = MSSA(AoTConfig(n_embd=12, n_head=3, tie_out=tie_out, eta=0.7, image_size=image_size))
    mssa.U.weight.data.normal_()
    Z, expected = torch.randn(5, 12), torch.zeros(5, 12)                     # rows are tokens
    for k in range(3):
        U_k = mssa.U.weight[4 * k:4 * k + 4].T                               # (d, p)
        head = naive_head(Z @ U_k, not image_size)                           # U_k^T Z phi(Z^T U_k U_k^T Z)
        out = 0.7 * U_k if tie_out else mssa.W.weight[:, 4 * k:4 * k + 4]    # eta U_k, or the free W
        expected += head @ out.T
    assert torch.allclose(mssa(Z[None])[0], expected, atol=1e-5) and (mssa.W is None) == tie_out


def test_gelu_may_be_openais_approximation():
    exact, theirs = (golden_text('gpt_bias_true', gelu=gelu)[0].layers[0].mlp for gelu in ('none', 'tanh'))
    z = torch.linspace(-4, 4, 96).view(3, 32)
    u = theirs.up(z)
    by_hand = 0.5 * u * (1 + torch.tanh(math.sqrt(2 / math.pi) * (u + 0.044715 * u ** 3)))
    assert torch.allclose(theirs(z), theirs.down(by_hand), atol=1e-6) and not torch.equal(theirs(z), exact(z))


# ---- functions in context


def aot_of_functions(**settings):
    x, y = Prompts('linear', 4, 6).draw(np.random.default_rng(0), 3)
    return text_network('aot', block_size=12, n_dims=4, **settings), x, y


@pytest.mark.parametrize('kind', [dict(), dict(attn='mhsa'), dict(attn='mhsa', mlp=True, bias=True)])
def test_a_prediction_sees_the_examples_before_it_and_its_x(kind):
    model, x, y = aot_of_functions(**kind)
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(std=0.3)
    guess, loss = model(x, y)
    assert guess.shape == (3, 6) and loss.item() == pytest.approx((guess - y).square().mean().item())
    assert torch.allclose(model(x[:, :4], y[:, :4])[0], guess[:, :4], atol=1e-6)    # of a shorter prompt
    changed = x.clone(), y.clone()
    changed[0][:, 4:] += 1
    changed[1][:, 3:] += 1
    assert torch.equal(model(*changed)[0][:, :4], guess[:, :4])             # not y_3, nor what comes later
    for which, i in ((0, 3), (0, 2), (1, 2), (1, 0)):
        changed = x.clone(), y.clone()
        changed[which][:, i] += 1
        assert ((model(*changed)[0] - guess)[:, 3].abs() > 1e-6).all()      # but x_3 and all before


def test_examples_become_tokens_in_turn():
    model, x, y = aot_of_functions()
    z, into, positions = model.embed(x, y), model.embed.examples, model.embed.pos_emb.weight
    assert z.shape == (3, 12, 16)
    for i in range(6):
        as_vector = torch.cat((y[:, i:i + 1], torch.zeros(3, 3)), 1)
        assert torch.allclose(z[:, 2 * i], into(x[:, i]) + positions[2 * i], atol=1e-6)
        assert torch.allclose(z[:, 2 * i + 1], into(as_vector) + positions[2 * i + 1], atol=1e-6)
