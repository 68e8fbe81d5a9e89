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
    N, p = w.shape
    result = torch.zeros(N, p)
    for i in range(N):
        n_seen = i + 1 if causal else N
        exponentials = []
        for j in range(n_seen):
            product = sum(w[i, a] * w[j, a] for a in range(p)).item()
            exponentials.append(math.exp(product / math.sqrt(p)))
        for j in range(n_seen):
            result[i] += exponentials[j] / sum(exponentials) * w[j]
    return result


@pytest.mark.parametrize('image_size', [0, 16])
@pytest.mark.parametrize('tie_out', [False, True])
def test_mssa_equals_eq_4_by_a_naive_loop(tie_out, image_size):
    """A token of a text takes nothing from later ones; pictures have no mask."""
    torch.manual_seed(0)
    mssa = MSSA(AoTConfig(n_embd=12, n_head=3, tie_out=tie_out, eta=0.7, image_size=image_size))
    mssa.U.weight.data.normal_()
    Z = torch.randn(5, 12)                                      # rows are tokens

    expected = torch.zeros(5, 12)
    for k in range(3):
        U_k = mssa.U.weight[4 * k:4 * k + 4].T                  # (d, p)
        head = naive_head(Z @ U_k, causal=image_size == 0)      # U_k^T Z phi(Z^T U_k U_k^T Z)
        if tie_out:
            output_map = 0.7 * U_k                              # eta U_k
        else:
            output_map = mssa.W.weight[:, 4 * k:4 * k + 4]      # the free W
        expected += head @ output_map.T

    assert torch.allclose(mssa(Z[None])[0], expected, atol=1e-5)


def test_gelu_may_be_openais_approximation():
    mlp = golden_text('gpt_bias_true', gelu='tanh')[0].layers[0].mlp
    z = torch.linspace(-40, 40, 96).view(3, 32)  # where the exact function has other values

    u = mlp.up(z)
    gelu = 0.5 * u * (1 + torch.tanh(math.sqrt(2 / math.pi) * (u + 0.044715 * u ** 3)))

    assert torch.allclose(mlp(z), mlp.down(gelu), atol=1e-6)


# ---- functions in context


@pytest.fixture(params=[{}, dict(attn='mhsa', mlp=True, bias=True)])
def aot_of_functions(request):
    """A network of functions, whose weights are so large that each example counts, and three
    prompts of six examples, which are vectors x of four numbers and their y."""
    x, y = Prompts('linear', 4, 6).draw(np.random.default_rng(0), 3)
    model = text_network('aot', block_size=12, n_dims=4, **request.param)
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(std=0.3)
    return model, x, y


def plus_one(numbers, places):
    """A copy with 1 added at these places of each prompt."""
    changed = numbers.clone()
    changed[:, places] += 1
    return changed


def test_the_loss_is_the_mean_squared_error(aot_of_functions):
    model, x, y = aot_of_functions

    predictions, loss = model(x, y)

    assert predictions.shape == (3, 6)
    assert loss.item() == pytest.approx((predictions - y).square().mean().item())


def test_a_prediction_does_not_see_its_y_nor_what_comes_later(aot_of_functions):
    model, x, y = aot_of_functions

    changed = model(plus_one(x, slice(4, 6)), plus_one(y, slice(3, 6)))[0]

    assert torch.equal(changed[:, :4], model(x, y)[0][:, :4])


def test_a_prediction_sees_its_x_and_all_before(aot_of_functions):
    model, x, y = aot_of_functions
    prediction = model(x, y)[0][:, 3]

    for place in (2, 3):
        changed = model(plus_one(x, place), y)[0][:, 3]
        assert ((changed - prediction).abs() > 1e-6).all()
    for place in (0, 2):
        changed = model(x, plus_one(y, place))[0][:, 3]
        assert ((changed - prediction).abs() > 1e-6).all()


def test_examples_become_tokens_in_turn(aot_of_functions):
    model, x, y = aot_of_functions
    to_token = model.embed.examples
    positions = model.embed.pos_emb.weight

    z = model.embed(x, y)

    assert z.shape == (3, 12, 16)
    for i in range(6):
        y_as_vector = torch.cat((y[:, i:i + 1], torch.zeros(3, 3)), dim=1)
        x_token = to_token(x[:, i]) + positions[2 * i]
        y_token = to_token(y_as_vector) + positions[2 * i + 1]
        assert torch.allclose(z[:, 2 * i], x_token, atol=1e-6)
        assert torch.allclose(z[:, 2 * i + 1], y_token, atol=1e-6)
