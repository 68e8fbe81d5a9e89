"""Continue a sequence of tokens, with a cache of the past.

Every network of the task 'text' can do it. The model files know nothing of the cache. A network
looks at other tokens by a function of its file, `attention` or ToST's `sum_of_tokens`. While a
cache is in use, functions of this file stand in their place, which remember the tokens so far.

A layer of one's own may look at other tokens in another way, or depend on positions. Then a cache
would be wrong, which `agrees` notices, and the sequence is read from its beginning for each new
token. A module that depends on positions, but has an attribute `first`, is told the position of the
first token in it.
"""
import sys
import warnings
from contextlib import contextmanager
from functools import partial

import torch

from engine.fast import attention, is_plain
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

    idx: int64 (B, N), N >= 1. If N is more than block_size, only the last block_size tokens are
    used, with a warning.
    temperature: divides the logits; 0 takes the likeliest token.
    top_k: sample from the k likeliest tokens.
    top_p: sample from the likeliest tokens that together have probability p.
    stop_token: a sequence that draws it is finished, and is filled up with it. Generation ends when
    all sequences are finished.
    use_cache: keep keys and values, or sums. The result is the same up to rounding, with linear
    instead of quadratic work.

    Raises Mistake if the model does not continue text.
    """
    if model.config.task != 'text':
        raise Mistake('only a causal network of text continues sequences; the task here is '
                      f'{model.config.task}')
    block_size = model.config.block_size
    if idx.size(1) > block_size:
        warnings.warn(f'the prompt has {idx.size(1)} tokens; only its last {block_size} '
                      '(block_size) are used', stacklevel=2)
        idx = idx[:, -block_size:]

    was_training = model.training
    model.eval()
    few = idx[:1, -1:].repeat(1, min(3, block_size))    # one token, several times
    cache = None
    if use_cache and can_have_cache(model):
        if agrees(model, few, Cache(model)):
            cache = Cache(model)
        else:
            warnings.warn('a cache would change what this network says, so it reads the text again '
                          'for each token; docs/extend.md says why', stacklevel=2)
    in_parts = cache is not None or has_parts(model) and agrees(model, few)
    finished = torch.zeros_like(idx[:, :1]).bool()
    for _ in range(max_new_tokens):
        if idx.size(1) > block_size:
            # from now on each token changes all positions, so nothing of the past stays valid
            cache = None
        x = idx[:, -block_size:]
        if in_parts:
            logits = next_logits(model, x, cache)                       # (B, vocab_size)
        else:
            logits = model(x)[0][:, -1]

        new = pick(logits.float(), temperature, top_k, top_p)           # (B, 1)
        if stop_token is not None:
            new = new.masked_fill(finished, stop_token)
            finished = new == stop_token
        idx = torch.cat((idx, new), 1)
        yield new
        if stop_token is not None and finished.all():
            break
    model.train(was_training)


# ---- the cache ----------------------------------------------------------------------------------

class Cache:
    """What a network keeps of the tokens so far: keys and values, or sums over the tokens.

    Each pass calls `attention` once a layer, always in the same order. So a call goes on with what
    the call of the same number kept in the passes before.
    """

    def __init__(self, model):
        self.block_size = model.config.block_size
        self.functions = functions_over_tokens(model)
        self.modules = [module for module in model.modules() if hasattr(module, 'first')]
        self.n_tokens = 0   # how many it has read
        self.number = 0     # of the next call in this pass
        self.tensors = {}      # {number of a call: its tensors}

    @contextmanager
    def in_use(self):
        """In this block the network reads new tokens only, and the functions of its file see the
        earlier ones too."""
        self.number = 0
        for module in self.modules:
            module.first = self.n_tokens
        for file, name, function in self.functions:
            method = self.attend if name == 'attention' else self.sum
            setattr(file, name, partial(method, function))
        try:
            yield
        finally:
            for file, name, function in self.functions:
                setattr(file, name, function)
            for module in self.modules:
                module.first = 0

    def attend(self, plain, q, k, v, **settings):
        """The plain attention of new tokens to all tokens so far. q, k, v: (B, K, N, p)."""
        new = [k] if k is v else [k, v]  # those of MSSA are one tensor, which is kept once
        end = self.n_tokens + k.size(2)
        if self.number not in self.tensors:
            shape = *k.shape[:2], self.block_size, k.size(3)
            self.tensors[self.number] = [t.new_empty(shape) for t in new]
        buffers = self.tensors[self.number]
        self.number += 1
        for buffer, t in zip(buffers, new):
            buffer[:, :, self.n_tokens:end] = t
        k = buffers[0][:, :, :end]
        v = buffers[-1][:, :, :end]
        if q.size(2) < end:
            settings['is_causal'] = False  # the new token is the last, so it may see all of them
        return plain(q, k, v, **settings)

    def sum(self, plain, x, is_causal):
        """The plain sums over the new tokens, and all tokens before them. x: (B, N, ..)."""
        sums = plain(x, is_causal)
        if self.number in self.tensors:
            sums = sums + self.tensors[self.number]
        self.tensors[self.number] = sums[:, -1:].clone()
        self.number += 1
        return sums


def functions_over_tokens(model):
    """The functions by which layers look at other tokens: a list of (file, name, function)."""
    functions = []
    for file_name in {type(module).__module__ for module in model.modules()}:
        file = sys.modules[file_name]
        function = getattr(file, 'attention', None)
        if function is attention or is_plain(function):
            functions.append((file, 'attention', function))
        if hasattr(file, 'sum_of_tokens'):
            functions.append((file, 'sum_of_tokens', file.sum_of_tokens))
    return functions


def can_have_cache(model):
    return (has_parts(model) and model.config.block_size > 1
            and len(functions_over_tokens(model)) > 0)


# ---- the logits of the next token ---------------------------------------------------------------

def has_parts(model):
    return all(hasattr(model, part) for part in ('embed', 'layers', 'read'))


def next_logits(model, x, cache=None):
    """Logits (B, vocab_size) after the last of the tokens x (B, N), by the parts of a network.

    They are computed for the last token alone, where model(x) computes those of all tokens. With a
    cache, only the tokens go through the layers that it does not know yet.
    """
    z = model.embed(x)                                                  # (B, N, d)
    if cache is None:
        z = model.layers(z)
    else:
        z = z[:, cache.n_tokens:]
        with cache.in_use():
            z = model.layers(z)
        cache.n_tokens = x.size(1)
    logits = model.read(z[:, -1:])[0]                                   # (B, 1, vocab_size)
    return logits[:, 0]


def agrees(model, x, cache=None):
    """Whether the parts of a network say of the tokens x (1, N) what model(x) says; with a new
    cache, if they get the last token alone."""
    with torch.autocast(x.device.type, enabled=False):
        wanted = model(x)[0][:, -1]
        try:
            if cache is not None:
                next_logits(model, x[:, :-1], cache)
            logits = next_logits(model, x, cache)
        except Exception:  # such as of a layer that cannot do with one token
            return False
    return (logits - wanted).norm() <= 0.05 * wanted.norm()


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
