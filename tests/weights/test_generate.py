"""Generation: the cache changes nothing, greedy is argmax, top-k and top-p keep what they say."""
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.nn.utils.parametrize import register_parametrization
from helpers import CAUSAL, generator, loud, text_network, tokens

import model_aot
from analysis import layers
from engine.mistakes import Mistake
from weights.generate import Cache, next_logits, pick, stream


def lengths_read(model):
    """A list to which each pass through the first layer adds the number of its tokens."""
    lengths = []
    model.layers[0].register_forward_pre_hook(lambda layer, args: lengths.append(args[0].size(1)))
    return lengths


def greedy(model, x, n):
    """x and the n tokens that follow, each the likeliest by the forward pass."""
    for _ in range(n):
        logits = model(x[:, -16:])[0][:, -1]
        x = torch.cat((x, logits.argmax(-1, keepdim=True)), dim=1)
    return x


def uncached(model, x, n):
    """x and the n likeliest tokens that follow, when the text is read again for each."""
    return model.generate(x, n, temperature=0, use_cache=False)


@pytest.fixture
def aot():
    return loud(text_network('aot'))


# ---- the cache


@pytest.mark.parametrize('name, settings', CAUSAL)
def test_logits_with_a_cache_are_those_of_the_whole_text(name, settings):
    model = loud(text_network(name, **settings))
    x = tokens(3, 13)
    logits = model(x)[0]
    cache = Cache(model)

    with torch.no_grad():
        for n in range(6, 14):
            of_last_token = next_logits(model, x[:, :n], cache)
            assert torch.allclose(of_last_token, logits[:, n - 1], atol=1e-5)

    assert torch.equal(model(x)[0], logits)  # the network has no cache


@pytest.mark.parametrize('temperature', [0, 1.0])
@pytest.mark.parametrize('name, settings', CAUSAL)
def test_a_text_with_a_cache_is_that_without(name, settings, temperature):
    model = loud(text_network(name, **settings))
    x = tokens(3, 13)

    with warnings.catch_warnings():
        warnings.simplefilter('error')  # a warning would say that there is no cache
        text = model.generate(x, 20, temperature, generator=generator(5))  # the block has 16 tokens

    without = model.generate(x, 20, temperature, use_cache=False, generator=generator(5))
    assert torch.equal(text, without)
    assert text.shape == (3, 33)
    assert torch.equal(text[:, :13], x)


def test_with_a_cache_each_token_goes_through_the_layers_once(aot):
    lengths = lengths_read(aot)

    aot.generate(tokens(1, 5), 4)
    assert lengths[-4:] == [5, 1, 1, 1]
    uncached(aot, tokens(1, 5), 4)
    assert lengths[-4:] == [5, 6, 7, 8]


KEYS = 3 * 4 * 16 * 16 * 4  # layers, batch, block, width; bytes of a float32
SUMS = 3 * 4 * 2 * (6 + 6 + 1) * 4  # layers, batch, heads; e, m and N_k; bytes of a float32


@pytest.mark.parametrize('name, settings, n_bytes', [
    ('aot', dict(attn='mhsa'), 2 * KEYS),
    ('aot', dict(attn='mssa'), KEYS),
    ('crate', {}, KEYS),
    ('tost', dict(head_dim=6), SUMS),
])
def test_mssa_keeps_half_the_bytes_of_mhsa_and_tost_sums_alone(name, settings, n_bytes):
    model = text_network(name, **settings)
    for N in (1, 16):  # however long the text is
        cache = Cache(model)
        next_logits(model, tokens(4, N), cache)

        sizes = []
        for past in cache.pasts:
            for tensor in past.tensors.values():
                sizes.append(tensor.untyped_storage().nbytes())
        assert sum(sizes) == n_bytes


def test_parametrized_weights_write_with_a_cache(aot):
    """As those of LoRA. PyTorch does not copy such modules."""
    class Doubled(torch.nn.Module):
        def forward(self, weight):
            return 2 * weight

    x = tokens(1, 7)
    doubled = text_network('aot')
    doubled.load_state_dict(aot.state_dict())
    for layer, doubled_layer in zip(aot.layers, doubled.layers):
        register_parametrization(layer.attn.U, 'weight', Doubled())
        doubled_layer.attn.U.weight.data *= 2
    lengths = lengths_read(aot)

    text = aot.generate(x, 6, temperature=0)

    assert lengths[-1] == 1
    assert torch.equal(text, doubled.generate(x, 6, temperature=0))


# ---- layers of one's own get no wrong cache


def turn_by_position(z, first=0):
    """Tokens (B, N, d) at positions from `first`, each turned by an angle of its own."""
    positions = torch.arange(first, first + z.size(1), dtype=z.dtype)
    angles = 0.5 * positions[:, None]
    a, b = z.chunk(2, dim=-1)
    turned_a = a * angles.cos() - b * angles.sin()
    turned_b = a * angles.sin() + b * angles.cos()
    return torch.cat((turned_a, turned_b), dim=-1)


class Turned(model_aot.MSSA):
    """The projections depend on the position of a token, as with rotary embeddings."""

    def forward(self, z):
        return super().forward(turn_by_position(z))


class TurnedFromFirst(model_aot.MSSA):
    first = 0

    def forward(self, z):
        return super().forward(turn_by_position(z, self.first))


class TurnedScores(model_aot.MSSA):
    """Rotary embeddings of queries and keys."""

    def forward(self, z):
        w = self.U(z)
        turned = turn_by_position(w)
        q, k, v = [x.unflatten(2, (self.K, -1)).transpose(1, 2) for x in (turned, turned, w)]
        heads = model_aot.attention(q, k, v, is_causal=True)
        return self.W(heads.transpose(1, 2).flatten(2))


class AtLeastTwo(model_aot.MSSA):
    def forward(self, z):
        assert z.size(1) > 1
        return super().forward(z)


class ForgetsTheSecond(model_aot.MSSA):
    """Keeps what it gets in its first pass alone."""

    def forward(self, z):
        proj = self.U(z).unflatten(2, (self.K, -1)).transpose(1, 2)
        all_proj = proj
        if self.past and self.past.n_tokens == 0:
            all_proj = self.past.append('proj', proj)
            self.kept = all_proj
        elif self.past:
            all_proj = torch.cat((self.kept, proj), dim=2)
        heads = model_aot.attention(proj, all_proj, all_proj, is_causal=True)
        return self.W(heads.transpose(1, 2).flatten(2))


class Nearest60(model_aot.MSSA):
    """A token sees itself and the 59 tokens before it. But one that comes alone sees all."""

    def forward(self, z):
        proj = self.U(z).unflatten(2, (self.K, -1)).transpose(1, 2)
        all_proj = self.past.append('proj', proj) if self.past else proj
        scores = proj @ all_proj.mT
        if proj.size(2) > 1:
            near = torch.ones_like(scores[0, 0]).tril().triu(-59).bool()
            scores = scores.masked_fill(~near, -torch.inf)
        return self.W((scores.softmax(-1) @ all_proj).transpose(1, 2).flatten(2))


@pytest.mark.parametrize('operator, has_cache', [
    (Turned, False),
    (TurnedFromFirst, True),
    (TurnedScores, False),
    (AtLeastTwo, False),
    (ForgetsTheSecond, False),
    (Nearest60, False),  # so a cache is tried with as many tokens as the text will have
])
def test_a_layer_has_a_cache_only_if_it_says_the_same_with_it(operator, has_cache, recwarn):
    """A module that depends on positions has `first`. The network has no other positions."""
    model = loud(text_network('aot', block_size=64))
    torch.nn.init.zeros_(model.embed.pos_emb.weight)
    x = tokens(1, 7)
    for layer in model.layers:
        layer.attn.__class__ = operator
    lengths = lengths_read(model)

    text = model.generate(x, 55, temperature=0)

    assert lengths[-1] == (1 if has_cache else 61)
    assert len(recwarn) == (0 if has_cache else 1)
    assert torch.equal(text, uncached(model, x, 55))


class Twice(model_aot.AoT):
    """Not what its embed, layers and read say one after the other."""

    def forward(self, x, y=None):
        z = self.layers(self.embed(x))
        return self.read(self.layers(z), y)


@pytest.mark.filterwarnings('ignore:this network cannot use a cache')
def test_a_forward_pass_of_ones_own_is_what_generates(aot):
    x = tokens(2, 7)
    aot.__class__ = Twice

    expected = greedy(aot, x, 6)

    assert torch.equal(aot.generate(x, 6, temperature=0), expected)
    assert torch.equal(uncached(aot, x, 6), expected)


# ---- the network stays as it is


def test_a_network_in_training_writes_without_dropout_and_stays_in_training():
    """Also while it writes: another thread may train it."""
    model = loud(text_network('aot', dropout=0.5))
    x = tokens(1, 5)
    expected = model.generate(x, 4, temperature=0)
    model.train()

    text = x
    for token in stream(model, x, 4, temperature=0):
        assert all(module.training for module in model.modules())
        text = torch.cat((text, token), dim=1)

    assert torch.equal(text, expected)


class Counting(model_aot.MSSA):
    """Counts its calls in a buffer, which it replaces."""

    def forward(self, z):
        self.calls = self.calls + 1
        return super().forward(z)


def test_a_buffer_that_is_replaced_while_a_text_is_written_stays_in_the_network(aot):
    for layer in aot.layers:
        layer.attn.__class__ = Counting
        layer.attn.register_buffer('calls', torch.tensor(0))

    aot.generate(tokens(1, 7), 3)

    assert all(layer.attn.calls == 0 for layer in aot.layers)


class LikeTheFirst(model_aot.AoT):
    """Each attention adds what that of the first layer has kept in an attribute, and knows it from
    a list."""

    def __init__(self, config):
        super().__init__(config)
        first = self.layers[0].attn
        first.register_forward_hook(lambda attn, z, update: setattr(attn, 'kept', update))
        for layer in self.layers[1:]:
            layer.attn.others = [first]
            layer.attn.register_forward_hook(
                lambda attn, z, update: update + attn.others[0].kept)


def test_modules_that_know_each_other_know_the_copies(aot):
    model = LikeTheFirst(aot.config).eval()
    x = tokens(1, 3)
    expected = greedy(model, x, 12)
    model(x[:, :1])                     # something is kept that is not of this text

    assert torch.equal(model.generate(x, 12, temperature=0), expected)


@pytest.mark.parametrize('name', ['aot', 'tost'])
def test_threads_write_at_once_what_they_write_one_after_another(name):
    """While an instrument in a fifth thread looks inside the network. Each writer draws from a
    generator of its own."""
    model = loud(text_network(name))
    long_text = tokens(2, 16)
    logits = model(long_text)[0]

    def write(i):
        prompt = tokens(1, 3 + i, seed=i)
        return model.generate(prompt, 30, temperature=1.0, generator=generator(i))

    expected = [write(i) for i in range(4)]
    stop = threading.Event()

    @torch.no_grad()
    def look_inside():
        n_looks = 0
        while n_looks == 0 or not stop.is_set():
            after = list(layers.inside(model, long_text))[-1].after
            assert torch.equal(model.read(after)[0], logits)
            n_looks += 1

    for _ in range(2):
        stop.clear()
        with ThreadPoolExecutor(5) as pool:
            instrument = pool.submit(look_inside)
            try:
                texts = list(pool.map(write, range(4)))
            finally:
                stop.set()
            instrument.result()  # raises what was raised there
        assert all(map(torch.equal, texts, expected))


# ---- what is drawn


def test_greedy_generation_is_argmax_of_the_forward_pass(aot):
    """test_own_network.py has a network without a cache."""
    x = tokens(2, 4)
    expected = greedy(aot, x, 20)

    for settings in (dict(temperature=0), dict(top_k=1), dict(top_p=1e-9)):
        assert torch.equal(aot.generate(x, 20, **settings), expected)


@pytest.mark.parametrize('temperature, top_k, top_p, expected', [
    (1.0, None, None, (0.5, 0.3, 0.15, 0.05)),
    (1.0, 0, None, (0.5, 0.3, 0.15, 0.05)),
    (0.5, None, None, (0.685, 0.247, 0.062, 0.007)),
    (1.0, 2, None, (0.625, 0.375, 0, 0)),
    (1.0, None, 0.6, (0.625, 0.375, 0, 0)),
    (1.0, None, 0.81, (0.526, 0.316, 0.158, 0)),
])
def test_tokens_are_drawn_as_often_as_they_should(temperature, top_k, top_p, expected):
    logits = torch.tensor([0.15, 0.5, 0.05, 0.3]).log().expand(20_000, 4)

    drawn = pick(logits, temperature, top_k, top_p, generator(0)).flatten()

    shares = drawn.bincount(minlength=4)[[1, 3, 0, 2]] / 20_000
    assert shares.tolist() == pytest.approx(expected, abs=0.02)
    assert torch.equal(shares > 0, torch.tensor(expected) > 0)


def test_a_stop_token_ends_a_sequence(aot):
    x = tokens(64, 4)

    for row in aot.generate(x, 30, stop_token=3)[:, 4:].tolist():
        if 3 in row:
            after_stop = row[row.index(3):]
            assert set(after_stop) == {3}

    first = aot.generate(x[:1], 1, temperature=0)[0, -1].item()
    assert aot.generate(x[:1], 50, temperature=0, stop_token=first).shape == (1, 5)


# ---- what cannot be


@pytest.mark.parametrize('n_tokens, settings, word', [
    (4, dict(temperature=-1.0), 'temperature'),
    (4, dict(top_k=-1), 'top_k'),
    (4, dict(top_p=0.0), 'top_p'),
    (0, {}, 'empty'),
])
def test_a_setting_that_makes_no_sense_is_named(n_tokens, settings, word, aot):
    with pytest.raises(Mistake, match=word):
        aot.generate(tokens(2, n_tokens), 3, **settings)


def test_only_a_causal_network_of_text_continues():
    with pytest.raises(Mistake):
        text_network('crate', causal=False).generate(tokens(1, 3), 1)


def test_long_prompts_are_cropped_with_a_warning(aot):
    x = tokens(1, 40)

    with pytest.warns(UserWarning, match='16'):
        text = aot.generate(x, 3, temperature=0)

    of_last_tokens = aot.generate(x[:, -16:], 3, temperature=0)
    assert torch.equal(text, torch.cat((x[:, :-16], of_last_tokens), dim=1))
