"""ToST: its operator is a gradient step on R_var, and no cost of it grows faster than the number of
tokens."""
from types import SimpleNamespace

import pytest
import torch

from model_tost import TSSA, ToST, ToSTConfig
from scoring.flops import train_flops
from weights.generate import Cache

# ---- the operator


@pytest.mark.parametrize('kind', [dict(block_size=7), dict(image_size=16)])
def test_with_fixed_memberships_the_operator_is_a_gradient_step_on_r_var(kind, monkeypatch):
    """It is -N times the gradient in the coordinates w, with f(x) = log(1 + x). In a text, token t
    takes -t times the gradient of R_var of the tokens 1 .. t."""
    torch.manual_seed(0)
    N, K, p = 7, 3, 4
    attn = TSSA(ToSTConfig(n_embd=12, n_head=K, bias=True, layer_scale=1.0, **kind))
    Pi = torch.rand(N, K, 1).softmax(1)
    monkeypatch.setattr(attn, 'memberships', lambda energy: Pi[None])
    z = 3 * torch.randn(1, N, 12)
    w = attn.U(z).view(N, K, p).detach().requires_grad_()

    step = torch.empty(N, K, p)
    for t in range(N):
        n = t + 1 if attn.is_causal else N
        N_k = Pi[:n].sum(0)                                             # (K, 1)
        moments = (Pi[:n] * w[:n].square()).sum(0) / N_k                # (K, p)
        r_var = (N_k / n * moments.log1p()).sum() / 2
        gradient = torch.autograd.grad(r_var, w)[0]                     # (N, K, p)
        step[t] = -n * gradient[t]

    assert torch.allclose(attn(z)[0], attn.W(step.flatten(1)), atol=1e-5)


def saved_for_backward(N):
    """How many numbers a training step of TSSA on N tokens keeps for its backward pass."""
    attn = TSSA(ToSTConfig(n_embd=8, n_head=2, block_size=N))
    sizes = []

    def pack(tensor):
        sizes.append(tensor.numel())
        return tensor

    def unpack(tensor):
        return tensor
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        attn(torch.randn(2, N, 8))
    return sum(sizes)


def test_memory_is_linear_in_the_number_of_tokens():
    of_100 = saved_for_backward(100)
    of_200 = saved_for_backward(200)
    of_400 = saved_for_backward(400)

    assert of_200 > of_100
    assert of_400 - of_200 == 2 * (of_200 - of_100)


def test_operations_are_linear_in_the_number_of_tokens():
    sizes = dict(n_layer=2, n_head=2, n_embd=16, vocab_size=11)

    of_64 = train_flops(ToST(ToSTConfig(block_size=64, **sizes)))
    of_128 = train_flops(ToST(ToSTConfig(block_size=128, **sizes)))

    assert of_64 > 0
    assert of_128 == 2 * of_64


# ---- long sums in bfloat16

# a sum that is itself in bfloat16 stops growing after some hundred tokens of equal size


@pytest.fixture
def long_text():
    """(attention, 1500 tokens, what they become in float32)"""
    torch.manual_seed(0)
    attn = TSSA(ToSTConfig(n_embd=16, n_head=2, block_size=1500, layer_scale=1.0))
    z = torch.randn(1, 1500, 16)
    torch.nn.init.constant_(attn.temp, 200.0)  # so that the small shares of late tokens count
    return attn, z, attn(z)


def late_error(rounded, exact):
    """The mean relative error of the last 300 tokens."""
    error = (rounded.float() - exact).norm(dim=2) / exact.norm(dim=2)
    return error[:, -300:].mean()


def test_long_sums_keep_their_precision_in_bfloat16(long_text):
    attn, z, exact = long_text

    with torch.autocast('cpu', torch.bfloat16):
        rounded = attn(z)

    assert late_error(rounded, exact) < 0.006


@torch.no_grad()
def test_sums_in_a_cache_keep_their_precision_in_bfloat16(long_text):
    """A cache adds one token at a time."""
    attn, z, exact = long_text
    # what a cache asks a network for
    cache = Cache(SimpleNamespace(layers=attn, config=ToSTConfig(block_size=1500)))

    results = []
    for t in range(1500):
        with torch.autocast('cpu', torch.bfloat16):
            results.append(cache.read(z[:, t:t + 1]))

    assert attn.first == 0 and attn.past is None  # the copy alone has a past
    assert late_error(torch.cat(results, dim=1), exact) < 0.006
