"""Continue a sequence of tokens, with a cache of the past.

Every network of the task 'text' can do it. A module that looks at earlier tokens has an attribute
`past`, which is None. While a text is written, a copy of the module, with the same weights, has a
Past there. It keeps the keys and values of earlier tokens, or sums over them. The network itself
stays as it is: so several threads may write texts with it, and others may train it meanwhile.

A module that depends on positions may have a number `first = 0`. In the copy it is the position of
the first token that the module gets.

A layer that somebody wrote may look at earlier tokens in another way. Then a cache would be wrong.
So `agrees` tries the cache first, and if it makes a difference, the text is read from its beginning
for each new token.
"""
import copy
import warnings

import torch

from engine.settings import Mistake


def generate(model, idx, *settings, **named_settings):
    """The prompt idx and behind it all tokens that `stream` yields: int64 (B, N + new). The
    settings are those of `stream`."""
    return torch.cat([idx, *stream(model, idx, *settings, **named_settings)], dim=1)


@torch.no_grad()
def stream(model, idx, max_new_tokens, temperature=1.0, top_k=None, top_p=None, stop_token=None,
           use_cache=True, generator=None):
    """Continue sequences of tokens: yields the next token of each, int64 (B, 1), max_new_tokens
    times.

    idx: int64 (B, N), N >= 1. If N is more than the network reads, only the last tokens are used,
    with a warning. It reads block_size tokens, or as many as its attribute `reach` says.
    temperature: divides the logits; 0 takes the likeliest token.
    top_k: sample from the k likeliest tokens; None or 0 from all.
    top_p: sample from the likeliest tokens that together have probability p.
    stop_token: a sequence that draws it is finished, and is filled up with it. Generation ends when
    all sequences are finished.
    use_cache: keep keys and values, or sums over tokens. Then each token goes through the layers
    once. The result is the same up to rounding.
    generator: a torch.Generator to draw from, so that a thread draws numbers of its own. None draws
    from PyTorch's, which all threads share.

    The network is not changed, and computes as in evaluation mode. Raises Mistake, when the first
    token is asked for, if the model does not continue text, or if there is no prompt.
    """
    if model.config.task != 'text':
        raise Mistake('only a causal network of text continues sequences; the task here is '
                      f'{model.config.task}')
    if idx.size(1) == 0:
        raise Mistake('the prompt is empty; give at least one token')
    if temperature < 0:
        raise Mistake(f'temperature={temperature} must be at least 0')
    reach = reach_of(model)
    if idx.size(1) > reach:
        warnings.warn(f'the prompt has {idx.size(1)} tokens; only its last {reach} '
                      '(block_size) are used', stacklevel=2)
        idx = idx[:, -reach:]

    model = private_copy(model)
    # There are three ways to read, the fastest first: with a cache; by the parts of the network,
    # which compute the logits of the last token alone; by model(x).
    length = min(reach, idx.size(1) + max_new_tokens)
    cache = None
    if use_cache and reach > 1 and has_parts(model):
        if agrees(model, idx.device, length, Cache(model)):
            cache = Cache(model)
        else:
            warnings.warn('this network cannot use a cache, so the text is read again for each '
                          'token; docs/extend.md says why', stacklevel=2)
    in_parts = cache is not None or (has_parts(model) and agrees(model, idx.device, length))

    finished = torch.zeros_like(idx[:, :1]).bool()
    for _ in range(max_new_tokens):
        if idx.size(1) > reach:
            # from now on each token changes all positions, so nothing of the past stays valid
            cache = None
        x = idx[:, -reach:]
        if in_parts:
            logits = next_logits(model, x, cache)                       # (B, vocab_size)
        else:
            logits = model(x)[0][:, -1]

        new = pick(logits.float(), temperature, top_k, top_p, generator)    # (B, 1)
        if stop_token is not None:
            new = new.masked_fill(finished, stop_token)
            finished = new == stop_token
        idx = torch.cat((idx, new), 1)
        yield new
        if stop_token is not None and finished.all():
            break


# ---- the cache ----------------------------------------------------------------------------------

class Cache:
    """A copy of a network's layers, whose modules keep what they need of the tokens so far."""

    def __init__(self, model):
        self.layers = private_copy(model.layers)
        self.n_tokens = 0       # how many the layers have read
        self.pasts = []
        for module in self.layers.modules():
            if hasattr(module, 'past'):
                module.past = Past(reach_of(model))
                self.pasts.append(module.past)

    def read(self, z):
        """Send new tokens z (B, N, d), which follow those so far, through the layers."""
        for module in self.layers.modules():
            if type(getattr(module, 'first', None)) is int:
                module.first = self.n_tokens
        self.n_tokens += z.size(1)
        z = self.layers(z)
        for past in self.pasts:
            past.n_tokens = self.n_tokens
        return z


class Past:
    """What one module keeps of the tokens before those that it gets now."""

    def __init__(self, reach):
        self.reach = reach      # so many tokens the network reads
        self.n_tokens = 0       # how many the module got in earlier passes
        self.tensors = {}       # {name: what is kept}

    def append(self, name, new):
        """Of new tokens, (B, K, N, p) -> the same of all tokens so far. name: which of the things
        that the module keeps these are, such as its keys."""
        B, K, N, p = new.shape
        if name not in self.tensors:
            self.tensors[name] = new.new_empty(B, K, self.reach, p)
        end = self.n_tokens + N
        self.tensors[name][:, :, self.n_tokens:end] = new
        return self.tensors[name][:, :, :end]

    def add(self, name, sums):
        """Sums (B, N, ..) over the new tokens up to each of them -> sums over all tokens up to each
        of them."""
        if name in self.tensors:
            sums = sums + self.tensors[name]
        self.tensors[name] = sums[:, -1:].clone()
        return sums


def private_copy(module):
    """A module and those inside of it once more, with the same weights, in evaluation mode. What is
    set in the copy does not change the module."""
    new = copy.copy(module)     # shares weights, buffers and hooks
    new.training = False
    # recompute_layers in engine/device.py puts a `forward` into a module, which is for training
    new.__dict__.pop('forward', None)
    new._modules = {}
    for name, child in module._modules.items():
        new._modules[name] = None if child is None else private_copy(child)
    return new


def reach_of(model):
    """How many tokens a network reads. A network whose positions have no table may say more than
    block_size by an attribute `reach`."""
    return getattr(model, 'reach', model.config.block_size)


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
        z = cache.read(z[:, cache.n_tokens:])
    logits = model.read(z[:, -1:])[0]                   # (B, 1, vocab_size)
    return logits[:, 0]


def agrees(model, device, length, cache=None):
    """Whether the parts of a network say of a text of this many tokens what model(x) says. With a
    cache, which must be new, the last token goes through the layers in a pass of its own. device:
    where the network is."""
    x = torch.arange(length, device=device) % model.config.vocab_size
    x = x.unsqueeze(0)                                  # (1, N)
    with torch.autocast(x.device.type, enabled=False):  # which would round differently
        wanted = model(x)[0][:, -1]
        try:
            if cache is not None and length > 1:
                next_logits(model, x[:, :-1], cache)
            logits = next_logits(model, x, cache)
        except Exception:  # such as of a layer that needs more than one token
            return False
    # a GPU may multiply float32 in TF32, which rounds more
    is_exact = torch.get_float32_matmul_precision() == 'highest' and logits.dtype == torch.float32
    tolerance = 1e-4 if is_exact else 1e-2
    return bool((logits - wanted).norm() <= tolerance * wanted.norm())


# ---- the next token -----------------------------------------------------------------------------

def pick(logits, temperature, top_k, top_p, generator=None):
    """Draw one token per row of logits (B, vocab_size), float32. Returns int64 (B, 1). `stream`
    says what the settings mean."""
    if temperature < 1e-6:
        return logits.argmax(-1, keepdim=True)
    highest = logits.max(-1, keepdim=True).values
    logits = (logits - highest) / temperature
    if top_k:
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
    return torch.multinomial(logits.softmax(-1), 1, generator=generator)
