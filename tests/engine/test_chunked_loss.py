"""A loss that is computed in chunks is the loss."""
import pytest
import torch

from helpers import TEXT_NETWORKS, loud, text_network, tokens

from engine import chunked_loss


@pytest.mark.parametrize('name, settings', TEXT_NETWORKS)
def test_loss_in_chunks_is_the_same(name, settings, monkeypatch):
    """And so is its gradient. Then no logits are returned. Without y, and in evaluation, they
    are."""
    x = tokens(3, 16)
    y = tokens(3, 16, seed=2)
    y[0] = -1  # of the first two chunks nothing counts
    monkeypatch.setattr(chunked_loss, 'LOGITS_AT_ONCE', 7 * 11)
    results = []
    for in_chunks in (False, True):
        model = loud(text_network(name, **settings)).train()
        if in_chunks:
            chunked_loss.spare_logits(model)
        logits, loss = model(x, y)
        loss.backward()
        results.append([loss, *(p.grad for p in model.parameters())])
        assert (logits is None) == in_chunks
        assert in_chunks or logits.shape == (3, 16, 11)
        assert model(x)[0].shape == model.eval()(x, y)[0].shape == (3, 16, 11)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(*results, strict=True))
