"""Generation: the cache changes nothing, greedy is argmax, top-k and top-p keep what they say."""
import pytest
import torch
from helpers import CAUSAL, text_network, tokens, loud

from engine.generate import Past, generate, next_logits, pick
from engine.settings import Mistake


def pasts_of(model):
    """A Past for every layer, as `stream` makes them."""
    return {module: Past(model.config.block_size) for module in model.modules() if hasattr(module, 'past')}


@pytest.mark.parametrize('name, settings', CAUSAL)
def test_a_cache_changes_nothing(name, settings):
    model, x = loud(text_network(name, **settings)), tokens(3, 13)
    full, pasts = model(x)[0], pasts_of(model)
    assert len(pasts) == model.config.n_layer
    with torch.no_grad():
        assert torch.allclose(next_logits(model, x[:, :6], 0, pasts), full[:, 5], atol=1e-5)
        for i in range(6, 13):
            assert torch.allclose(next_logits(model, x[:, i:i + 1], i, pasts), full[:, i], atol=1e-5)
    for temperature in (0, 1.0):
        torch.manual_seed(5)
        a = model.generate(x, 20, temperature)  # 33 tokens: far beyond the block of 16
        torch.manual_seed(5)
        assert torch.equal(a, model.generate(x, 20, temperature, use_cache=False))
        assert a.shape == (3, 33) and torch.equal(a[:, :13], x)
    assert all(module.past is None for module in pasts)  # and then it is gone


def test_a_cache_is_used_and_training_goes_on():
    model, seen = text_network('aot', dropout=0.5).train(), []
    model.embed.register_forward_pre_hook(lambda module, args: seen.append(args[0].size(1)))
    model.generate(tokens(1, 5), 4)
    model.generate(tokens(1, 5), 4, use_cache=False)
    assert seen == [5, 1, 1, 1, 5, 6, 7, 8] and model.training


KEYS = 3 * 4 * 16 * 16 * 4  # layers, batch, block, width; bytes of a float32


@pytest.mark.parametrize('name, settings, size', [
    ('aot', dict(attn='mhsa'), 2 * KEYS), ('aot', dict(attn='mssa'), KEYS), ('crate', {}, KEYS),
    ('tost', dict(head_dim=6), 3 * 4 * 2 * (6 + 6 + 1) * 4)])  # layers, batch, heads; e, m and N_k; float32
def test_mssa_keeps_half_the_bytes_of_mhsa_and_tost_sums_alone(name, settings, size):
    for N in (1, 3, 16):  # however long the text is
        model = text_network(name, **settings)
        pasts = pasts_of(model)
        next_logits(model, tokens(4, N), 0, pasts)
        kept = [t for past in pasts.values() for t in (*past.kept, *past.sums.values())]
        assert sum(t.untyped_storage().nbytes() for t in kept) == size


def test_greedy_generation_is_argmax_of_the_forward_pass():
    """test_own_network.py has a network without a cache."""
    model = loud(text_network('aot'))
    x = y = tokens(2, 4)
    for _ in range(20):
        y = torch.cat((y, model(y[:, -16:])[0][:, -1].argmax(-1, keepdim=True)), 1)
    assert torch.equal(generate(model, x, 20, temperature=0), y)
    for one in (dict(top_k=1), dict(top_p=1e-9)):
        assert torch.equal(generate(model, x, 20, 1.0, **one), y)


def test_only_a_causal_network_of_text_continues():
    with pytest.raises(Mistake):
        text_network('crate', causal=False).generate(tokens(1, 3), 1)


def test_long_prompts_are_cropped_with_a_warning():
    model, x = loud(text_network('aot')), tokens(1, 40)
    with pytest.warns(UserWarning, match='16'):
        a = model.generate(x, 3, temperature=0)
    assert torch.equal(a, torch.cat((x[:, :-16], model.generate(x[:, -16:], 3, temperature=0)), 1))


@pytest.mark.parametrize('settings, want', [
    ((1.0, None, None), (0.5, 0.3, 0.15, 0.05)), ((0.5, None, None), (0.685, 0.247, 0.062, 0.007)),
    ((1.0, 2, None), (0.625, 0.375, 0, 0)), ((1.0, 3, None), (0.526, 0.316, 0.158, 0)),
    ((1.0, None, 0.6), (0.625, 0.375, 0, 0)), ((1.0, None, 0.81), (0.526, 0.316, 0.158, 0))])
def test_tokens_are_drawn_as_often_as_they_should(settings, want):
    torch.manual_seed(0)
    logits = torch.tensor([0.15, 0.5, 0.05, 0.3]).log().expand(20_000, 4)
    share = pick(logits, *settings).flatten().bincount(minlength=4)[[1, 3, 0, 2]] / 20_000
    assert share.tolist() == pytest.approx(want, abs=0.02) and [s > 0 for s in share.tolist()] == [w > 0 for w in want]


def test_a_stop_token_ends_a_sequence():
    model, x = loud(text_network('aot')), tokens(64, 4)
    for row in model.generate(x, 30, stop_token=3)[:, 4:].tolist():
        assert 3 not in row or set(row[row.index(3):]) == {3}
    first = model.generate(x[:1], 1, temperature=0)[0, -1].item()
    assert model.generate(x[:1], 50, temperature=0, stop_token=first).shape == (1, 5)
