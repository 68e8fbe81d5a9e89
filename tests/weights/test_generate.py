"""Generation: the cache changes nothing, greedy is argmax, top-k and top-p keep what they say."""
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.nn.utils.parametrize import register_parametrization
from helpers import CAUSAL, loud, text_network, tokens

import model_aot
import model_tost
from analysis import layers
from engine.mistakes import Mistake
from weights.generate import Cache, generate, next_logits, pick, stream


@pytest.mark.parametrize('name, settings', CAUSAL)
def test_a_cache_changes_nothing(name, settings):
    model, x = loud(text_network(name, **settings)), tokens(3, 13)
    full, cache = model(x)[0], Cache(model)
    with torch.no_grad():
        for n in range(6, 14):
            assert torch.allclose(next_logits(model, x[:, :n], cache), full[:, n - 1], atol=1e-5)
    kept = {'tost': 3, 'aot': 2 if settings.get('attn') == 'mhsa' else 1}.get(name, 1)
    assert [len(past.tensors) for past in cache.pasts] == [kept] * model.config.n_layer
    assert torch.allclose(model(x)[0], full)  # and then it is gone
    for temperature in (0, 1.0):
        torch.manual_seed(5)
        with warnings.catch_warnings():
            warnings.simplefilter('error')  # a warning would say that there is no cache
            a = model.generate(x, 20, temperature)  # 33 tokens: far beyond the block of 16
        torch.manual_seed(5)
        assert torch.equal(a, model.generate(x, 20, temperature, use_cache=False))
        assert a.shape == (3, 33) and torch.equal(a[:, :13], x)


def lengths_read(model):
    """A list to which each pass through the first layer adds the number of its tokens."""
    lengths = []
    model.layers[0].register_forward_pre_hook(lambda layer, args: lengths.append(args[0].size(1)))
    return lengths


def test_a_cache_is_used_and_training_goes_on():
    model = text_network('aot', dropout=0.5).train()
    lengths = lengths_read(model)
    model.generate(tokens(1, 5), 4)
    assert lengths[-4:] == [5, 1, 1, 1]
    model.generate(tokens(1, 5), 4, use_cache=False)
    assert lengths[-4:] == [5, 6, 7, 8] and model.training


def turn_by_position(z, first=0):
    """Tokens (B, N, d) at positions from `first`, each turned by an angle of its own."""
    angles = 0.5 * torch.arange(first, first + z.size(1), dtype=z.dtype)[:, None]
    a, b = z.chunk(2, dim=-1)
    return torch.cat((a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()), -1)


class Turned(model_aot.MSSA):
    """The projections depend on the position of a token, as with rotary embeddings."""

    def forward(self, z):
        return super().forward(turn_by_position(z))


class TurnedFromFirst(model_aot.MSSA):
    first = 0

    def forward(self, z):
        return super().forward(turn_by_position(z, self.first))


class TurnedScores(torch.nn.Module):
    """Rotary embeddings of queries and keys, in a network without other positions."""

    def __init__(self, c):
        super().__init__()
        self.U, self.K = torch.nn.Linear(c.n_embd, c.n_embd), c.n_head

    def forward(self, z):
        w = self.U(z)
        q, k, v = (t.unflatten(2, (self.K, -1)).transpose(1, 2)
                   for t in (turn_by_position(w), turn_by_position(w), w))
        return model_aot.attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


def test_positions_in_the_scores_alone_are_noticed(recwarn):
    model = text_network('aot')
    for layer in model.layers:
        layer.attn = TurnedScores(model.config)
    loud(model)
    torch.nn.init.zeros_(model.embed.pos_emb.weight)
    lengths = lengths_read(model)
    model.generate(tokens(2, 7), 3)
    assert lengths[-1] == 9 and len(recwarn) == 1


class BesideTheLast(model_aot.MSSA):
    """A token sees the one before it by another way than attention."""

    def forward(self, z):
        return super().forward(z + 2 * torch.nn.functional.pad(z, (0, 0, 1, 0))[:, :-1])


class AtLeastTwo(model_aot.MSSA):
    def forward(self, z):
        assert z.size(1) > 1
        return super().forward(z)


class Twice(model_aot.AoT):
    """Not what its embed, layers and read say one after the other."""

    def forward(self, x, y=None):
        z = self.layers(self.embed(x))
        return self.read(self.layers(z), y)


def test_a_forward_pass_of_ones_own_is_what_generates():
    model, x = loud(text_network('aot')), tokens(2, 7)
    model.__class__ = Twice
    a = b = model.generate(x, 6, temperature=0)
    for n in range(7, 13):
        assert torch.equal(b[:, n], model(b[:, :n])[0][:, -1].argmax(-1))
    assert torch.equal(a, model.generate(x, 6, temperature=0, use_cache=False))


@pytest.mark.parametrize('operator, has_cache', [
    (Turned, False), (TurnedFromFirst, True), (BesideTheLast, False), (AtLeastTwo, False)])
def test_a_layer_of_ones_own_gets_no_wrong_cache(operator, has_cache, recwarn):
    """It has one only if it says the same with it: a module that depends on positions has `first`."""
    model, x = loud(text_network('aot')), tokens(2, 7)
    for layer in model.layers:
        layer.attn.__class__ = operator
    lengths = lengths_read(model)
    a = model.generate(x, 6, temperature=0)
    assert lengths[-1] == (1 if has_cache else 12) and len(recwarn) == (0 if has_cache else 1)
    assert torch.equal(a, model.generate(x, 6, temperature=0, use_cache=False))


@pytest.mark.parametrize('decay', [1.0, 0.99])
def test_a_sum_that_was_edited_gets_no_cache(decay, monkeypatch):
    def decaying(x, is_causal, past, name):
        sums = [x[:, 0]]
        for t in range(1, x.size(1)):
            sums.append(decay * sums[-1] + x[:, t])
        return torch.stack(sums, 1)
    monkeypatch.setattr(model_tost, 'sum_of_tokens', decaying)
    model, x = loud(text_network('tost', layer_scale=1.0)), tokens(2, 7)
    lengths = lengths_read(model)
    model.generate(x, 3, temperature=0)
    assert lengths[-3:] == [7, 8, 9]


def test_a_network_in_training_writes_without_dropout_and_stays_in_training():
    """Also while it writes: another thread may train it."""
    model, x = loud(text_network('aot', dropout=0.5)), tokens(1, 5)
    wanted = model.generate(x, 4, temperature=0)
    model.train()
    new_tokens = []
    for token in stream(model, x, 4, temperature=0):
        assert all(module.training for module in model.modules())
        new_tokens.append(token)
    assert torch.equal(torch.cat([x, *new_tokens], 1), wanted)


class Nearest(model_aot.MSSA):
    """A token sees itself and the tokens shortly before it, `window` tokens together."""

    window = 0

    def forward(self, z):
        proj = self.U(z).unflatten(2, (self.K, -1)).transpose(1, 2)
        all_proj = self.past.append('proj', proj) if self.past else proj
        q_and_k = proj.size(2), all_proj.size(2)
        near = torch.ones(q_and_k).tril(0).triu(1 - self.window).bool()
        scores = (proj @ all_proj.mT).masked_fill(~near, -torch.inf)
        if proj.size(2) == 1:  # wrong: a token that comes alone sees all
            scores = proj @ all_proj.mT
        return self.W((scores.softmax(-1) @ all_proj).transpose(1, 2).flatten(2))


@pytest.mark.parametrize('window', [3, 30, 60])
def test_a_cache_is_tried_with_as_many_tokens_as_the_text_will_have(window, recwarn):
    """A window that is wrong with a cache alone, in a text that is longer than it."""
    model, x = loud(text_network('aot', block_size=64)), tokens(1, 7)
    for layer in model.layers:
        layer.attn.__class__ = Nearest
        layer.attn.window = window
    lengths = lengths_read(model)
    a = model.generate(x, 55, temperature=0)
    assert len(recwarn) == 1 and lengths[-1] == 61
    assert torch.equal(a, model.generate(x, 55, temperature=0, use_cache=False))


class ForgetsTheSecond(model_aot.MSSA):
    """Keeps what it gets in its first pass alone."""

    def forward(self, z):
        proj = self.U(z).unflatten(2, (self.K, -1)).transpose(1, 2)
        all_proj = proj
        if self.past and self.past.n_tokens == 0:
            self.kept = all_proj = self.past.append('proj', proj)
        elif self.past:
            all_proj = torch.cat((self.kept, proj), dim=2)
        heads = model_aot.attention(proj, all_proj, all_proj, is_causal=True)
        return self.W(heads.transpose(1, 2).flatten(2))


def test_a_layer_that_forgets_the_second_of_two_tokens_gets_no_cache(recwarn):
    model, x = loud(text_network('aot')), tokens(1, 7)
    for layer in model.layers:
        layer.attn.__class__ = ForgetsTheSecond
    a = model.generate(x, 6, temperature=0)
    assert len(recwarn) == 1
    assert torch.equal(a, model.generate(x, 6, temperature=0, use_cache=False))


def test_parametrized_weights_write_with_a_cache():
    """As those of LoRA. PyTorch does not copy such modules."""
    class Doubled(torch.nn.Module):
        def forward(self, weight):
            return 2 * weight

    model, x = loud(text_network('aot')), tokens(1, 7)
    wanted = text_network('aot')
    wanted.load_state_dict(model.state_dict())
    for layer, other in zip(model.layers, wanted.layers):
        register_parametrization(layer.attn.U, 'weight', Doubled())
        other.attn.U.weight.data *= 2
    lengths = lengths_read(model)
    a = model.generate(x, 6, temperature=0)
    assert lengths[-1] == 1
    assert torch.equal(a, wanted.generate(x, 6, temperature=0))


class Counting(model_aot.MSSA):
    """Counts its calls in a buffer, which it replaces."""

    def forward(self, z):
        self.calls = self.calls + 1
        return super().forward(z)


def test_a_buffer_that_is_replaced_while_a_text_is_written_stays_in_the_network():
    model = text_network('aot')
    for layer in model.layers:
        layer.attn.__class__ = Counting
        layer.attn.register_buffer('calls', torch.tensor(0))
    model.generate(tokens(1, 7), 3)
    assert all(layer.attn.calls == 0 for layer in model.layers)


THREADED = [('aot', {}), ('aot', dict(attn='mhsa')), ('crate', {}), ('tost', {})]


@pytest.mark.parametrize('name, settings', THREADED)
def test_threads_write_at_once_what_they_write_one_after_another(name, settings):
    """While an instrument in a fifth thread looks inside the network. Each writer draws from a
    generator of its own."""
    model = loud(text_network(name, **settings))
    prompts = [tokens(1, 3 + i, seed=i) for i in range(4)]
    long_text = tokens(2, 16)
    logits = model(long_text)[0]

    def write(i):
        random = torch.Generator().manual_seed(i)
        return model.generate(prompts[i], 40, temperature=1.0, generator=random)

    wanted = [write(i) for i in range(4)]
    stop = threading.Event()

    @torch.no_grad()
    def look_inside():
        count = 0
        while count == 0 or not stop.is_set():
            after = list(layers.inside(model, long_text))[-1].after
            assert torch.equal(model.read(after)[0], logits)
            count += 1

    for _ in range(5):
        stop.clear()
        with ThreadPoolExecutor(5) as pool:
            instrument = pool.submit(look_inside)
            try:
                texts = list(pool.map(write, range(4)))
            finally:
                stop.set()
            instrument.result()  # raises what was raised there
        assert all(map(torch.equal, texts, wanted))
    assert all(getattr(module, 'past', None) is None for module in model.modules())
    assert all(getattr(module, 'first', 0) == 0 for module in model.modules())


def test_what_python_asks_for_is_what_the_command_line_asks_for():
    model, x = loud(text_network('aot')), tokens(2, 4)
    random = [torch.Generator().manual_seed(0) for _ in range(2)]
    all_tokens = model.generate(x, 9, top_k=0, generator=random[0])
    assert torch.equal(all_tokens, model.generate(x, 9, generator=random[1]))
    with pytest.raises(Mistake):
        model.generate(x[:, :0], 3)


def test_an_attention_that_was_edited_gets_no_cache(monkeypatch):
    def of_the_last_four(q, k, v, dropout_p=0.0, is_causal=False):
        N = q.size(2)
        near = torch.ones(N, N, dtype=torch.bool).tril().triu(-3)
        return (q @ k.mT).masked_fill(~near, -torch.inf).softmax(-1) @ v
    monkeypatch.setattr(model_aot, 'attention', of_the_last_four)
    model, x = loud(text_network('aot')), tokens(2, 7)
    lengths = lengths_read(model)
    a = model.generate(x, 6, temperature=0)
    assert lengths[-6:] == [7, 8, 9, 10, 11, 12]
    assert torch.equal(a, model.generate(x, 6, temperature=0, use_cache=False))


KEYS = 3 * 4 * 16 * 16 * 4  # layers, batch, block, width; bytes of a float32


@pytest.mark.parametrize('name, settings, size', [
    ('aot', dict(attn='mhsa'), 2 * KEYS), ('aot', dict(attn='mssa'), KEYS), ('crate', {}, KEYS),
    ('tost', dict(head_dim=6), 3 * 4 * 2 * (6 + 6 + 1) * 4)])  # layers, batch, heads; e, m and N_k; float32
def test_mssa_keeps_half_the_bytes_of_mhsa_and_tost_sums_alone(name, settings, size):
    for N in (1, 3, 16):  # however long the text is
        model = text_network(name, **settings)
        cache = Cache(model)
        next_logits(model, tokens(4, N), cache)
        tensors = [t for past in cache.pasts for t in past.tensors.values()]
        assert sum(t.untyped_storage().nbytes() for t in tensors) == size


def test_greedy_generation_is_argmax_of_the_forward_pass():
    """test_own_network.py has a network without a cache."""
    model = loud(text_network('aot'))
    x = y = tokens(2, 4)
    for _ in range(20):
        y = torch.cat((y, model(y[:, -16:])[0][:, -1].argmax(-1, keepdim=True)), 1)
    assert torch.equal(generate(model, x, 20, temperature=0), y)
    assert torch.equal(generate(model, x, 20, 1.0, top_k=1), y)


def test_only_a_causal_network_of_text_continues():
    with pytest.raises(Mistake):
        text_network('crate', causal=False).generate(tokens(1, 3), 1)


def test_long_prompts_are_cropped_with_a_warning():
    model, x = loud(text_network('aot')), tokens(1, 40)
    with pytest.warns(UserWarning, match='16'):
        a = model.generate(x, 3, temperature=0)
    assert torch.equal(a, torch.cat((x[:, :-16], model.generate(x[:, -16:], 3, temperature=0)), 1))


@pytest.mark.parametrize('settings, want', [
    ((1.0, 0), (0.5, 0.3, 0.15, 0.05)), ((0.5, 0), (0.685, 0.247, 0.062, 0.007)),
    ((1.0, 2), (0.625, 0.375, 0, 0)), ((1.0, 3), (0.526, 0.316, 0.158, 0))])
def test_tokens_are_drawn_as_often_as_they_should(settings, want):
    torch.manual_seed(0)
    logits = torch.tensor([0.15, 0.5, 0.05, 0.3]).log().expand(20_000, 4)
    share = pick(logits, *settings).flatten().bincount(minlength=4)[[1, 3, 0, 2]] / 20_000
    assert share.tolist() == pytest.approx(want, abs=0.02) and [s > 0 for s in share.tolist()] == [w > 0 for w in want]


class LikeTheFirst(model_aot.AoT):
    """Each attention adds what that of the first layer has kept in an attribute, and knows it from a list."""

    def __init__(self, config):
        super().__init__(config)
        first = self.layers[0].attn
        first.register_forward_hook(lambda attn, z, update: setattr(attn, 'kept', update))
        for layer in self.layers[1:]:
            layer.attn.others = [first]
            layer.attn.register_forward_hook(lambda attn, z, update: update + attn.others[0].kept)


def test_modules_that_know_each_other_know_the_copies():
    torch.manual_seed(0)
    network = LikeTheFirst(model_aot.AoTConfig(block_size=32, vocab_size=11, n_layer=3, n_head=2, n_embd=16)).eval()
    ids = torch.tensor([[1, 2, 3]])
    network(ids[:, :1])                     # something is kept that is not of this text
    expected = ids
    for _ in range(12):
        expected = torch.cat([expected, network(expected)[0][:, -1:].argmax(-1)], 1)
    network(ids[:, :1])

    assert network.generate(ids, 12, 0.0).tolist() == expected.tolist()
