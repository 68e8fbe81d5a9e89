"""Continue a sequence of tokens, with a cache of the past.

Every network of the task 'text' can do it. A layer looks at other tokens by a function of the model
file, `attention` or ToST's `sum_of_tokens`. While a cache is in use, methods of the class Cache
stand in their place, which remember the tokens so far.

A layer that somebody wrote may look at other tokens in another way, or depend on positions. Then a
cache would be wrong. `agrees` tries it with a few tokens, and if it makes a difference, the
sequence is read from its beginning for each new token. A module of a layer that depends on
positions may have a number `first = 0`: before each pass it is set to the position of the first
token that the module gets.
"""
import sys
import warnings
from contextlib import contextmanager
from functools import partial

import torch

from engine.fast import attention, is_plain, operations
from engine.settings import Mistake


def generate(model, idx, *settings, **named_settings):
    """The prompt idx and behind it all tokens that `stream` yields: int64 (B, N + new). The
    settings are those of `stream`."""
    return torch.cat([idx, *stream(model, idx, *settings, **named_settings)], dim=1)


@torch.no_grad()
def stream(model, idx, max_new_tokens, temperature=1.0, top_k=None, top_p=None, stop_token=None,
           use_cache=True):
    """Continue sequences of tokens: yields the next token of each, int64 (B, 1), max_new_tokens
    times.

    idx: int64 (B, N), N >= 1. If N is more than the network reads, only the last tokens are used,
    with a warning. It reads block_size tokens, or as many as its attribute `reach` says.
    temperature: divides the logits; 0 takes the likeliest token.
    top_k: sample from the k likeliest tokens.
    top_p: sample from the likeliest tokens that together have probability p.
    stop_token: a sequence that draws it is finished, and is filled up with it. Generation ends when
    all sequences are finished.
    use_cache: keep keys and values, or sums over tokens. Then each token goes through the layers
    once. The result is the same up to rounding.

    While it yields, the model is in evaluation mode. Raises Mistake, when the first token is asked
    for, if the model does not continue text.
    """
    if model.config.task != 'text':
        raise Mistake('only a causal network of text continues sequences; the task here is '
                      f'{model.config.task}')
    reach = reach_of(model)
    if idx.size(1) > reach:
        warnings.warn(f'the prompt has {idx.size(1)} tokens; only its last {reach} '
                      '(block_size) are used', stacklevel=2)
        idx = idx[:, -reach:]

    was_training = model.training
    model.eval()
    try:
        # There are three ways to read, the fastest first: with a cache; by the parts of the
        # network, which compute the logits of the last token alone; by model(x).
        cache = None
        if use_cache and can_have_cache(model):
            if agrees(model, idx, Cache(model)):
                cache = Cache(model)
            else:
                warnings.warn('this network cannot use a cache, so the text is read again for each '
                              'token; docs/extend.md says why', stacklevel=2)
        in_parts = cache is not None or (has_parts(model) and agrees(model, idx))

        finished = torch.zeros_like(idx[:, :1]).bool()
        for _ in range(max_new_tokens):
            if idx.size(1) > reach:
                # from now on each token changes all positions, so nothing of the past stays valid
                cache = None
            x = idx[:, -reach:]
            if in_parts:
                logits = next_logits(model, x, cache)                   # (B, vocab_size)
            else:
                logits = model(x)[0][:, -1]

            new = pick(logits.float(), temperature, top_k, top_p)       # (B, 1)
            if stop_token is not None:
                new = new.masked_fill(finished, stop_token)
                finished = new == stop_token
            idx = torch.cat((idx, new), 1)
            yield new
            if stop_token is not None and finished.all():
                break
    finally:
        model.train(was_training)


# ---- the cache ----------------------------------------------------------------------------------

class Cache:
    """What a network keeps of the tokens so far: keys and values, or sums over the tokens.

    Each pass calls the functions in the same order. So a call finds what the call of the same
    number kept in the passes before. The functions belong to a file, so two threads must not use
    caches of networks from one file at once.
    """

    def __init__(self, model):
        self.reach = reach_of(model)
        self.functions = functions_over_tokens(model)
        self.modules = [module for module in model.modules()
                        if type(getattr(module, 'first', None)) is int]
        self.n_tokens = 0       # how many it has read
        self.next_call = 0      # in this pass
        self.tensors = {}       # {number of a call: what it keeps}

    @contextmanager
    def in_use(self):
        """In this block the layers get new tokens only, and their functions see the earlier ones
        too."""
        self.next_call = 0
        try:
            for module in self.modules:
                module.first = self.n_tokens
            for file, name, original in self.functions:
                method = self.attend if name == 'attention' else self.add_up
                setattr(file, name, partial(method, original))
            yield
        finally:
            for file, name, original in self.functions:
                setattr(file, name, original)
            for module in self.modules:
                module.first = 0

    def attend(self, original, q, k, v, **settings):
        """The attention of new tokens to all tokens so far. q, k, v: (B, K, N, p)."""
        new = [k] if k is v else [k, v]  # those of MSSA are one tensor, which is kept once
        end = self.n_tokens + k.size(2)
        if self.next_call not in self.tensors:
            self.tensors[self.next_call] = [
                t.new_empty(*t.shape[:2], self.reach, t.size(3)) for t in new]
        buffers = self.tensors[self.next_call]
        self.next_call += 1
        for buffer, t in zip(buffers, new):
            buffer[:, :, self.n_tokens:end] = t
        k = buffers[0][:, :, :end]
        v = buffers[-1][:, :, :end]  # the same if there is one buffer
        if q.size(2) == 1:
            settings['is_causal'] = False  # the newest token may see all of them
        return original(q, k, v, **settings)

    def add_up(self, original, x, is_causal):
        """ToST's sums over all tokens so far. x: (B, N, ..), of the new ones."""
        sums = original(x, is_causal)
        if self.next_call in self.tensors:
            sums = sums + self.tensors[self.next_call]
        self.tensors[self.next_call] = sums[:, -1:].clone()
        self.next_call += 1
        return sums


def plain_sum(x, is_causal):
    """sum_of_tokens of model_tost.py. A cache is for this one alone."""
    if is_causal:
        return x.cumsum(dim=1)
    return x.sum(dim=1, keepdim=True)


def functions_over_tokens(model):
    """The functions by which layers look at other tokens, if nobody edited them: a list of (file,
    name, function). The files are those in which the classes of the network's modules stand."""
    functions = []
    for file_name in {type(module).__module__ for module in model.modules()}:
        file = sys.modules[file_name]
        function = getattr(file, 'attention', None)
        if function is attention or is_plain(function):     # the fast form, or what it stands for
            functions.append((file, 'attention', function))
        function = getattr(file, 'sum_of_tokens', None)
        if operations(function) == operations(plain_sum):
            functions.append((file, 'sum_of_tokens', function))
    return functions


def reach_of(model):
    """How many tokens a network reads. A network whose positions have no table may say more than
    block_size by an attribute `reach`."""
    return getattr(model, 'reach', model.config.block_size)


def can_have_cache(model):
    is_long = reach_of(model) > 1
    return is_long and has_parts(model) and len(functions_over_tokens(model)) > 0


# ---- the logits of the next token ---------------------------------------------------------------

def has_parts(model):
    return all(hasattr(model, part) for part in ('embed', 'layers', 'read'))


def next_logits(model, x, cache=None):
    """Logits (B, vocab_size) after the last of the tokens x (B, N), by the parts of a network.

    They are computed for the last token alone, where model(x) computes those of all tokens. With a
    cache, only those tokens go through the layers that the cache does not know yet.
    """
    z = model.embed(x)                                  # at their positions: (B, N, d)
    if cache is None:
        z = model.layers(z)
    else:
        z = z[:, cache.n_tokens:]
        with cache.in_use():
            z = model.layers(z)
        cache.n_tokens = x.size(1)
    logits = model.read(z[:, -1:])[0]                   # (B, 1, vocab_size)
    return logits[:, 0]


def agrees(model, idx, cache=None):
    """Whether the parts of a network say of up to 16 different tokens what model(x) says. With a
    cache, which must be new, the last token goes through the layers in a pass of its own.

    idx: int64, on the device of the model.
    """
    x = torch.arange(min(16, reach_of(model)), device=idx.device) % model.config.vocab_size
    x = x.unsqueeze(0)                                  # (1, N)
    with torch.autocast(idx.device.type, enabled=False):    # which would round differently
        wanted = model(x)[0][:, -1]
        try:
            if cache is not None:
                next_logits(model, x[:, :-1], cache)
            logits = next_logits(model, x, cache)
        except Exception:  # such as of a layer that needs more than one token
            return False
    return bool((logits - wanted).norm() <= 0.01 * wanted.norm())   # matrix products may round


# ---- the next token -----------------------------------------------------------------------------

def pick(logits, temperature, top_k, top_p):
    """Draw one token per row of logits (B, vocab_size), float32. Returns int64 (B, 1). `stream`
    says what the settings mean."""
    if temperature < 1e-6:
        return logits.argmax(-1, keepdim=True)
    highest = logits.max(-1, keepdim=True).values
    logits = (logits - highest) / temperature
    if top_k is not None:
        k = min(top_k, logits.size(-1))
        kth = logits.topk(k).values[:, -1:]
        logits = logits.masked_fill(logits < kth, -torch.inf)
    if top_p is not None:
        probs, order = logits.softmax(-1).sort(descending=True)
        # drop a token if those before it reach top_p already; so the first one stays
        before = probs.cumsum(-1) - probs
        drop = before >= top_p
        drop = drop.scatter(-1, order, drop)                            # in the order of the ids
        logits = logits.masked_fill(drop, -torch.inf)
    return torch.multinomial(logits.softmax(-1), 1)
