"""Networks of text, all alike: causality, memorizing a batch, the loss in chunks, compiling."""
import math

import pytest
import torch
from helpers import TEXT_NETWORKS, memorize, text_network, tokens, loud


@pytest.mark.parametrize('name, settings', TEXT_NETWORKS)
def test_the_future_cannot_change_the_past_where_the_next_token_is_predicted(name, settings):
    """And what fills in hidden tokens sees all of the text."""
    model, x = loud(text_network(name, **settings)), tokens(2, 16)
    changed, causal = x.clone(), model.config.task == 'text'
    changed[:, 9:] = (changed[:, 9:] + 1) % 11
    a, b = model(x)[0], model(changed)[0]
    assert torch.equal(a[:, :9], b[:, :9]) == causal
    moved = (a - b)[:, 9 if causal else 0:].abs()
    assert moved.amax(-1).min() > 0 and moved.amin(-1).max() > 1e-4
    with torch.autocast('cpu', torch.bfloat16):
        assert torch.equal(model(x)[0][:, :9], model(changed)[0][:, :9]) == causal


@pytest.mark.parametrize('name, settings', TEXT_NETWORKS)
def test_a_fresh_network_knows_nothing_and_can_memorize(name, settings):
    """And PyTorch compiles it as one graph."""
    model, x, y = text_network(name, seed=3, **settings).train(), tokens(4, 16), tokens(4, 16, seed=2)
    assert model(x, y)[1].item() == pytest.approx(math.log(11), abs=0.05 if name == 'aot' else 0.1)
    memorize(model, x, y, 0.3)
    assert torch.allclose(torch.compile(model, backend='eager', fullgraph=True)(x, y)[1], model(x, y)[1])


