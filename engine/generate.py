"""Continue a sequence of tokens, with a cache of the past.

Every network of the task 'text' can do it. One whose attention has a `past`, and whose `embed` takes
`first`, keeps the keys and values of earlier tokens, or sums over them; of others the whole sequence
is computed again for each token.
"""
import warnings

import torch

from engine.settings import Mistake


def generate(model, idx, *settings, **named):
    """All at once what `stream` yields, behind the prompt: int64 (B, N + new)."""
    return torch.cat([idx, *stream(model, idx, *settings, **named)], dim=1)


@torch.no_grad()
def stream(model, idx, max_new_tokens, temperature=1.0, top_k=None, top_p=None, stop_token=None, use_cache=True):
    """Continue sequences of tokens: yields the next token of each, int64 (B, 1), max_new_tokens times.

    idx: int64 (B, N), N >= 1; of more than block_size tokens only the last are used, with a
    warning. temperature: divides the logits; 0 takes the likeliest token. top_k: sample from the k
    likeliest tokens. top_p: sample from the likeliest tokens that together have probability p.
    stop_token: a sequence that draws it is finished and padded with it; generation ends when all
    are finished. use_cache: keep keys and values, or sums (the same result up to rounding, linear
    instead of quadratic work). Raises Mistake if the model continues no text.
    """
    if model.config.task != 'text':
        raise Mistake(f'only a causal network of text continues sequences; the task here is {model.config.task}')
    block, was_training = model.config.block_size, model.training
    if idx.size(1) > block:
        warnings.warn(f'the prompt has {idx.size(1)} tokens; only its last {block} (block_size) are used')
        idx = idx[:, -block:]
    model.eval()
    pasts = {module: Past(block) for module in model.modules() if hasattr(module, 'past')} if use_cache else {}
    new, done, stop = idx, torch.zeros_like(idx[:, :1]).bool(), -1 if stop_token is None else stop_token
    for _ in range(max_new_tokens):
        if idx.size(1) > block:  # from here on every position shifts at every token: nothing to keep
            pasts = {}
        logits = next_logits(model, new if pasts else idx[:, -block:], idx.size(1) - new.size(1), pasts)
        new = pick(logits.float(), temperature, top_k, top_p).masked_fill(done, stop)  # (B, 1)
        done = new == stop
        idx = torch.cat((idx, new), 1)
        yield new
        if stop_token is not None and done.all():
            break
    model.train(was_training)


class Past:
    """What one layer keeps of the tokens so far. In most networks these are keys and values; where they are the same
    tensor, as in MSSA, it is kept once. In ToST these are sums over tokens, as much memory for any number of them."""

    def __init__(self, block_size):
        self.block_size, self.first, self.kept, self.sums = block_size, 0, [], {}

    def __call__(self, k, v):
        """New keys and values (B, N, K p), at positions from `first` -> all so far (B, first + N, K p)."""
        new, end = [k] if k is v else [k, v], self.first + k.size(1)
        if not self.kept:
            self.kept = [t.new_empty(len(t), self.block_size, t.size(2)) for t in new]
        for kept, t in zip(self.kept, new):
            kept[:, self.first:end] = t
        past = [kept[:, :end] for kept in self.kept]
        return past[0], past[-1]

    def plus(self, name, sums):
        """Sums over new tokens up to each of them (B, N, ..) -> over all tokens up to each of them."""
        sums = sums + self.sums.get(name, 0)
        self.sums[name] = sums[:, -1:].clone()
        return sums


def next_logits(model, x, first, pasts):
    """Logits (B, vocab_size) after the last of the tokens x (B, N), which begin at position `first`. pasts: {module:
    its Past}, which holds the tokens before. It is in the network only meanwhile, so that several streams can share
    one network."""
    if not hasattr(model, 'read'):
        return model(x)[0][:, -1]
    try:
        for module, past in pasts.items():
            module.past, past.first = past, first
        z = model.embed(x, first=first) if pasts else model.embed(x)
        for layer in model.layers:
            z = layer(z)
        return model.read(z[:, -1:])[0][:, 0]
    finally:
        for module in pasts:
            module.past = None


def pick(logits, temperature, top_k, top_p):
    """One token per row of logits (B, vocab_size), float32: (B, 1). See `stream`."""
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
