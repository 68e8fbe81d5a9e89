"""ToST: its operator is a gradient step on R_var, and no cost of it grows faster than the number of tokens."""
import pytest
import torch
from helpers import loud, text_network, tokens

from analysis import layers
from engine.generate import Cache
from model_tost import TSSA, ToST, ToSTConfig
from scoring.flops import train_flops

SCALED = dict(layer_scale=1.0)

# ---- the operator


@pytest.mark.parametrize('causal', [True, False])
def test_with_memberships_held_fixed_the_operator_is_a_gradient_step_on_r_var(causal, monkeypatch):
    """-N times the gradient in the coordinates w, with f(x) = log(1 + x). In a text, token t takes -t times that of
    the beginning 1 .. t."""
    torch.manual_seed(0)
    N, K, p = 7, 3, 4
    kind = dict(block_size=N) if causal else dict(image_size=16)
    attn = TSSA(ToSTConfig(n_embd=12, n_head=K, bias=True, **SCALED, **kind))
    Pi, z = torch.rand(1, N, K, 1).softmax(2), 3 * torch.randn(1, N, 12)
    monkeypatch.setattr(attn, 'memberships', lambda e: Pi)
    w = attn.U(z).view(N, K, p).detach().requires_grad_()
    step = torch.empty(N, K, p)
    for t in range(N):
        n = t + 1 if causal else N
        members = Pi[0, :n].sum(0)                                      # (K, 1)
        moments = (Pi[0, :n] * w[:n].square()).sum(0) / members         # (K, p)
        r_var = (members / n * moments.log1p()).sum() / 2
        step[t] = -n * torch.autograd.grad(r_var, w)[0][t]
    assert torch.allclose(attn(z)[0], attn.W(step.flatten(1)), atol=1e-5)


def saved_for_backward(N):
    """Numbers that a training step of TSSA on N tokens keeps for its backward pass."""
    attn, kept = TSSA(ToSTConfig(n_embd=8, n_head=2, block_size=N)), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        attn(torch.randn(2, N, 8))
    return sum(kept)


def test_memory_and_operations_are_linear_in_the_number_of_tokens():
    a, b, c = map(saved_for_backward, (100, 200, 400))
    assert c - b == 2 * (b - a) > 0
    one, two = (train_flops(ToST(ToSTConfig(n_layer=2, n_head=2, n_embd=16, vocab_size=11, block_size=N)))
                for N in (64, 128))
    assert two == 2 * one > 0


def test_long_sums_keep_their_precision_in_bfloat16():
    """Also if a cache adds one token at a time. A sum that is itself in bfloat16 stops growing
    after some hundred tokens of equal size."""
    torch.manual_seed(0)
    attn = TSSA(ToSTConfig(n_embd=16, n_head=2, block_size=1500, **SCALED))
    attn.config = ToSTConfig(block_size=1500)  # a cache asks a network for its block_size
    z = torch.randn(1, 1500, 16)
    torch.nn.init.constant_(attn.temp, 200.0)  # so that the small shares of late tokens count
    exact = attn(z)
    with torch.autocast('cpu', torch.bfloat16), torch.no_grad():
        all_at_once = attn(z)
        cache = Cache(attn)
        one_by_one = []
        for t in range(1500):
            with cache.in_use():
                one_by_one.append(attn(z[:, t:t + 1]))
            cache.n_tokens = t + 1
    assert attn.first == 0  # after each use a cache puts it back
    for rounded in (all_at_once, torch.cat(one_by_one, dim=1)):
        error = (rounded.float() - exact).norm(dim=2) / exact.norm(dim=2)
        assert error[:, -300:].mean() < 0.006


# ---- the network


def test_what_is_seen_inside_a_layer_is_what_the_layer_computes():
    model = loud(text_network('tost', **SCALED))
    for layer, _, _, normed, _, half, after in layers.inside(model, tokens(2, 16)):
        assert torch.allclose(half + layer.mlp(layer.norm2(half)), after, atol=1e-6)
