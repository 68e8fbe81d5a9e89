"""Continuing a sequence of tokens, with a cache of the past.

A model takes part by `config.block_size`, `tok_emb`, `embed(x, first)`, `layers` that take (z, remember), `norm` and `head`;
its attention by `kv`, `K` and `p`.
"""
import warnings

import torch


@torch.no_grad()
def stream(model, idx, max_new_tokens, temperature=1.0, top_k=None, top_p=None, stop_token=None, use_cache=True):
    """Yield the next token of each sequence, (B, 1), max_new_tokens times; arguments as for `generate`."""
    if idx.dim() != 2 or idx.size(1) == 0:
        raise ValueError(f'generate needs token ids (B, N) with at least one token a row, got {tuple(idx.shape)}')
    if not temperature >= 0 or (top_k is not None and top_k < 1) or (top_p is not None and not 0 < top_p <= 1):
        raise ValueError(f'need temperature >= 0, top_k >= 1, 0 < top_p <= 1; got {temperature}, {top_k}, {top_p}')
    block = model.config.block_size
    if idx.size(1) > block:
        warnings.warn(f'the prompt has {idx.size(1)} tokens; only its last {block} (block_size) are used')
        idx = idx[:, -block:]
    was_training = model.training
    model.eval()
    try:
        cache = new_cache(model, len(idx)) if use_cache else None
        new, done = idx, torch.zeros(len(idx), 1, dtype=torch.bool, device=idx.device)
        for _ in range(max_new_tokens):
            if cache is not None and idx.size(1) <= block:
                z = step(model, new, cache, idx.size(1) - new.size(1))
            else:  # past the block every position shifts by one at every token, so there is nothing to keep
                z = step(model, idx[:, -block:])
            new = pick(model.head(z).float(), temperature, top_k, top_p)                   # (B, 1)
            if stop_token is not None:
                new = new.masked_fill(done, stop_token)
                done |= new == stop_token
            idx = torch.cat((idx, new), 1)
            yield new
            if stop_token is not None and done.all():
                return
    finally:
        model.train(was_training)


def new_cache(model, B):
    """Room for the projected tokens of all layers: (n_layer, kv, B, K, block_size, p), kv 1 for MSSA, 2 for MHSA."""
    attn, w = next(m for m in model.layers[0].modules() if hasattr(m, 'kv')), model.tok_emb.weight
    dtype = torch.get_autocast_dtype(w.device.type) if torch.is_autocast_enabled(w.device.type) else w.dtype
    return torch.zeros(len(model.layers), attn.kv, B, attn.K, model.config.block_size, attn.p, dtype=dtype,
                       device=w.device)


def step(model, x, cache=None, first=0):
    """Ids (B, N) at positions first .. through all layers; with a cache, beside the `first` tokens it holds.

    Returns the last token (B, d), ready for the head.
    """
    z = model.embed(x, first)
    for l, layer in enumerate(model.layers):
        def remember(*new):  # (B, K, N, p) each; stores them, returns past and new together
            for old, t in zip(cache[l], new):
                old[:, :, first:first + x.size(1)] = t
            return cache[l, :, :, :, :first + x.size(1)]
        z = layer(z, None if cache is None else remember)
    return model.norm(z[:, -1])


def pick(logits, temperature, top_k, top_p):
    """One token a row from logits (B, vocab_size), float32; returns (B, 1). See `AoT.generate`."""
    if temperature < 1e-6:
        return logits.argmax(-1, keepdim=True)
    logits = (logits - logits.max(-1, keepdim=True).values) / temperature
    if top_k is not None:
        kth = logits.topk(min(top_k, logits.size(-1))).values[:, -1:]
        logits = logits.masked_fill(logits < kth, -torch.inf)
    if top_p is not None:
        probs, order = logits.softmax(-1).sort(descending=True)
        drop = probs.cumsum(-1) - probs >= top_p  # what already lies above a token reaches top_p; the first stays
        logits = logits.masked_fill(drop.scatter(-1, order, drop), -torch.inf)
    return torch.multinomial(logits.softmax(-1), 1)
