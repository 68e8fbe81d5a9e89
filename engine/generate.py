"""Continue a sequence of tokens, with a cache of the past.

Every network of the task 'text' can do it. A network has a cache if some of its modules have an
attribute `past`, and if its `embed` takes the position `first` of the first token. Each of these
modules then keeps the keys and values of earlier tokens, or sums over them. A network without a
cache reads the sequence from its beginning for each new token.
"""
import warnings

import torch

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
    pasts = new_pasts(model) if use_cache else {}
    finished = torch.zeros_like(idx[:, :1]).bool()
    new = idx
    for _ in range(max_new_tokens):
        if idx.size(1) > block_size:
            # from now on each token changes all positions, so nothing of the past stays valid
            pasts = {}
        if pasts:
            logits = next_logits(model, new, idx.size(1) - new.size(1), pasts)
        else:
            logits = next_logits(model, idx[:, -block_size:], 0, pasts)

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

class Past:
    """What one module keeps of the tokens so far. It is empty at first.

    Most networks keep keys and values. Where these are the same tensor, as in MSSA, it is kept
    once. ToST keeps sums over tokens, which need the same memory for any number of tokens.
    """

    def __init__(self, block_size):
        self.block_size = block_size
        self.first = 0   # position of the first new token; `next_logits` sets it
        self.kept = []   # keys and values, each (.., block_size, p)
        self.sums = {}   # {name: sum over all tokens so far}, each (B, 1, ..)

    def __call__(self, k, v):
        """Take keys and values (.., N, p) of new tokens, at positions from `first`. Returns those
        of all tokens so far, (.., first + N, p)."""
        tensors = [k] if k is v else [k, v]
        end = self.first + k.size(-2)
        if not self.kept:
            for t in tensors:
                self.kept.append(t.new_empty(*t.shape[:-2], self.block_size, t.size(-1)))
        for buffer, t in zip(self.kept, tensors):
            buffer[..., self.first:end, :] = t
        past = [buffer[..., :end, :] for buffer in self.kept]
        return past[0], past[-1]

    def plus(self, name, sums):
        """Take sums over the new tokens up to each of them, (B, N, ..). Returns sums over all
        tokens up to each of the new ones."""
        sums = sums + self.sums.get(name, 0)
        self.sums[name] = sums[:, -1:].clone()
        return sums


def new_pasts(model):
    """{module: an empty Past} for the modules that use one."""
    pasts = {}
    for module in model.modules():
        if hasattr(module, 'past'):
            pasts[module] = Past(model.config.block_size)
    return pasts


def next_logits(model, x, first, pasts):
    """Logits (B, vocab_size) after the last of the tokens x (B, N). The first of x is at position
    `first`.

    pasts: {module: Past}, which hold all tokens before x. The modules have them during this call
    only, so that several streams can share one network.
    """
    if not hasattr(model, 'read'):
        logits = model(x)[0]
        return logits[:, -1]
    try:
        for module, past in pasts.items():
            past.first = first
            module.past = past
        z = model.embed(x, first=first) if pasts else model.embed(x)    # (B, N, d)
        for layer in model.layers:
            z = layer(z)
        logits = model.read(z[:, -1:])[0]                               # (B, 1, vocab_size)
        return logits[:, 0]
    finally:
        for module in pasts:
            module.past = None


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
