"""Continue a sequence of tokens, with a cache of the past.

Every network of the task 'text' can do it. One whose attention has an `average` with a `past`, and
whose `embed` takes `first`, keeps the keys and values of earlier tokens; of others the whole
sequence is computed again for each token.
"""
import warnings

import torch

from engine.settings import Mistake


def generate(model, idx, max_new_tokens, temperature=1.0, top_k=None, top_p=None, stop_token=None, use_cache=True):
    """Continue sequences of tokens.

    idx: int64 (B, N), N >= 1; of more than block_size tokens only the last are used, with a
    warning. temperature: divides the logits; 0 takes the likeliest token. top_k: sample from the k
    likeliest tokens. top_p: sample from the likeliest tokens that together have probability p.
    stop_token: a sequence that draws it is finished and padded with it; generation ends when all
    are finished. use_cache: keep keys and values (the same result up to rounding, linear instead of
    quadratic work). Returns int64 (B, N + new): the prompt, then what was drawn. Raises Mistake
    if the model reads no text.
    """
    new = stream(model, idx, max_new_tokens, temperature, top_k, top_p, stop_token, use_cache)
    return torch.cat([idx, *new], dim=1)


@torch.no_grad()
def stream(model, idx, max_new_tokens, temperature=1.0, top_k=None, top_p=None, stop_token=None, use_cache=True):
    """Yields the next token of each sequence, (B, 1), max_new_tokens times. See `generate`."""
    if model.config.task != 'text':
        raise Mistake(f'only a causal network of text continues sequences; the task here is {model.config.task}')
    if idx.dim() != 2 or idx.size(1) == 0:
        raise Mistake(f'generate needs token ids (B, N) with at least one token per row, got {tuple(idx.shape)}')
    if not temperature >= 0 or (top_k is not None and top_k < 1) or (top_p is not None and not 0 < top_p <= 1):
        raise Mistake(f'need temperature >= 0, top_k >= 1, 0 < top_p <= 1; got {temperature}, {top_k}, {top_p}')
    block = model.config.block_size
    if idx.size(1) > block:
        warnings.warn(f'the prompt has {idx.size(1)} tokens; only its last {block} (block_size) are used')
        idx = idx[:, -block:]
    was_training = model.training
    model.eval()
    pasts = {module: Past(block) for module in model.modules() if hasattr(module, 'past')} if use_cache else {}
    try:
        new, done = idx, torch.zeros(len(idx), 1, dtype=torch.bool, device=idx.device)
        for _ in range(max_new_tokens):
            if idx.size(1) > block:  # from here on every position shifts at every token: nothing to keep
                pasts = {}
            first = idx.size(1) - new.size(1)
            logits = cached_logits(model, new, first, pasts) if pasts else last_logits(model, idx[:, -block:])
            new = pick(logits.float(), temperature, top_k, top_p)                      # (B, 1)
            if stop_token is not None:
                new = new.masked_fill(done, stop_token)
                done |= new == stop_token
            idx = torch.cat((idx, new), 1)
            yield new
            if stop_token is not None and done.all():
                return
    finally:
        model.train(was_training)


class Past:
    """The keys and values of the tokens so far, of one layer. Where they are the same tensor, as in
    MSSA, it is kept once."""

    def __init__(self, block_size):
        self.block_size, self.length, self.kept = block_size, 0, []

    def __call__(self, k, v):
        """New keys and values (B, N, K p) -> all so far (B, N_past + N, K p)."""
        new, N = [k] if k is v else [k, v], k.size(1)
        if not self.kept:
            self.kept = [t.new_empty(len(t), self.block_size, t.size(2)) for t in new]
        for kept, t in zip(self.kept, new):
            kept[:, self.length:self.length + N] = t
        self.length += N
        past = [kept[:, :self.length] for kept in self.kept]
        return past[0], past[-1]


def cached_logits(model, x, first, pasts):
    """The same as `last_logits` of all tokens so far, from the new ones x (B, N), which begin at
    position `first`, and the cache, {module: its Past}. The cache is in the network only meanwhile,
    so that several streams can share one network."""
    try:
        for module, past in pasts.items():
            module.past = past
        return last_logits(model, x, first)
    finally:
        for module in pasts:
            module.past = None


def last_logits(model, x, first=None):
    """Logits (B, vocab_size) after the last of the tokens x (B, N), which begin at position `first`
    if there is a cache."""
    if not hasattr(model, 'read'):
        return model(x)[0][:, -1]
    z = model.embed(x) if first is None else model.embed(x, first=first)
    for layer in model.layers:
        z = layer(z)
    return model.read(z[:, -1:])[0][:, 0]


def pick(logits, temperature, top_k, top_p):
    """One token per row of logits (B, vocab_size), float32: (B, 1). See `generate`."""
    if temperature < 1e-6:
        return logits.argmax(-1, keepdim=True)
    logits = (logits - logits.max(-1, keepdim=True).values) / temperature
    if top_k is not None:
        kth = logits.topk(min(top_k, logits.size(-1))).values[:, -1:]
        logits = logits.masked_fill(logits < kth, -torch.inf)
    if top_p is not None:
        probs, order = logits.softmax(-1).sort(descending=True)
        drop = probs.cumsum(-1) - probs >= top_p  # the tokens before it reach top_p already; the first one stays
        logits = logits.masked_fill(drop.scatter(-1, order, drop), -torch.inf)
    return torch.multinomial(logits.softmax(-1), 1)
