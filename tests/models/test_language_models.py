"""Networks of text, all alike: what a token sees, memorizing a batch, compiling."""
import math

import pytest
import torch
from helpers import CAUSAL, TEXT_NETWORKS, loud, memorize, text_network, tokens

from model_aot import AoT


def changed_logits(model):
    """Logits of a text, and after its tokens from the tenth on have changed."""
    x = tokens(2, 16)
    changed = x.clone()
    changed[:, 9:] = (changed[:, 9:] + 1) % 11
    return model(x)[0], model(changed)[0]


@pytest.mark.parametrize('name, settings', CAUSAL)
def test_tokens_change_what_comes_after_them_and_not_the_past(name, settings):
    model = loud(text_network(name, **settings))

    before, after = changed_logits(model)
    assert torch.equal(before[:, :9], after[:, :9])
    differences = (before - after)[:, 9:].abs()
    assert differences.amax(-1).min() > 0
    assert differences.amin(-1).max() > 1e-4
    with torch.autocast('cpu', torch.bfloat16):
        before, after = changed_logits(model)
        assert torch.equal(before[:, :9], after[:, :9])


def test_what_fills_in_hidden_tokens_sees_all_of_the_text():
    model = loud(text_network('crate', causal=False))

    before, after = changed_logits(model)
    differences = (before - after).abs()
    assert differences.amax(-1).min() > 0
    assert differences.amin(-1).max() > 1e-4
    with torch.autocast('cpu', torch.bfloat16):
        before, after = changed_logits(model)
        assert not torch.equal(before[:, :9], after[:, :9])


@pytest.fixture(params=TEXT_NETWORKS, ids=str)
def batch(request):
    """(a network in training, token ids, the ids to predict)"""
    name, settings = request.param
    model = text_network(name, seed=3, n_layer=1, **settings).train()
    return model, tokens(2, 16), tokens(2, 16, seed=2)


def test_a_fresh_network_knows_nothing(batch):
    model, x, y = batch
    tolerance = 0.05 if isinstance(model, AoT) else 0.1

    assert model(x, y)[1].item() == pytest.approx(math.log(11), abs=tolerance)


@pytest.mark.slow
def test_a_network_can_memorize(batch):
    memorize(*batch, 0.3, lr=2e-2)


@pytest.mark.slow
@pytest.mark.parametrize('name, settings', dict(TEXT_NETWORKS).items())
def test_a_network_compiles_as_one_graph(name, settings):
    """The last network of each file. test_classifiers.py has other settings."""
    model = text_network(name, n_layer=1, **settings).train()
    x = tokens(2, 16)
    y = tokens(2, 16, seed=2)

    compiled = torch.compile(model, backend='eager', fullgraph=True)

    assert torch.allclose(compiled(x, y)[1], model(x, y)[1])
