"""Networks of text, all alike: causality, memorizing a batch, the loss in chunks, compiling; CRATE-alpha's and
CRATE-LM's runs, which are not among helpers.KINDS."""
import math

import pytest
import torch
from helpers import (TEXT_NETWORKS, config_of, equal, go, losses, memorize, same_in_chunks, text_network, tokens,
                     weights, wild)


@pytest.mark.parametrize('name, settings', TEXT_NETWORKS)
def test_the_future_cannot_change_the_past_where_the_next_token_is_predicted(name, settings):
    """And what fills in hidden tokens sees all of the text."""
    model, x = wild(text_network(name, **settings)), tokens(2, 16)
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
    model, x, y = text_network(name, seed=3, **settings).train(), tokens(4, 16), tokens(4, 16, seed=2)
    assert model(x, y)[1].item() == pytest.approx(math.log(11), abs=0.05 if name == 'aot' else 0.1)
    memorize(model, x, y, 0.3)


@pytest.mark.parametrize('name, settings', TEXT_NETWORKS)
def test_loss_in_chunks_is_the_same(name, settings, monkeypatch):
    x, y = tokens(3, 16), tokens(3, 16, seed=2)
    y[0, :5] = -1
    same_in_chunks(wild(text_network(name, **settings)), x, y, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize('name, settings', TEXT_NETWORKS)
def test_compiles_as_one_graph_for_every_length(name, settings):
    model = text_network(name, **settings)
    compiled = torch.compile(model, backend='eager', fullgraph=True)
    for B, N in ((2, 16), (2, 12), (3, 9)):
        x, y = tokens(B, N), tokens(B, N, seed=2)
        assert torch.allclose(compiled(x, y)[1], model(x, y)[1])


@pytest.mark.parametrize('more', [[], ['--decoupled=false', '--skip=false']])
def test_a_run_that_was_stopped_is_the_run_that_was_not(more, tiny, tmp_path, quick):
    words = [*tiny, '--dropout=0.2', '--optimizer=muon', '--model=crate_alpha', *more]
    go(*words, f'--out_dir={tmp_path}/whole')
    go(*words, '--max_iters=3', '--lr_decay_iters=6', f'--out_dir={tmp_path}/a')
    go('--init_from=resume', '--max_iters=6', f'--out_dir={tmp_path}/a')
    assert config_of(tmp_path / 'a')['image_size'] == 0 and config_of(tmp_path / 'a')['vocab_size'] == 256
    assert equal(weights(tmp_path / 'a'), weights(tmp_path / 'whole'))
    assert losses(tmp_path / 'a') == losses(tmp_path / 'whole')
