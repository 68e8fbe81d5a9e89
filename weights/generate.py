"""Continue a sequence of tokens, with a cache of the earlier ones.

Every network of the task 'text' can continue a sequence. A module that looks at earlier tokens has
an attribute `past`, which is None. While a text is written, a copy of the module, with the same
weights, has a Past there. The Past keeps keys and values of the earlier tokens, or sums over them.
The network itself stays as it is. So several threads may write texts with one network, and another
thread may call it meanwhile.

A module that depends on positions may have a number `first = 0`. In the copy it is the position of
the first token that the module gets.

A layer that somebody wrote may look at earlier tokens in another way. Then a cache would be wrong.
So `agrees` tries the cache first. If the logits differ, the whole text is read again for each new
token.
"""
import copy
import warnings
from bdb import BdbQuit

import torch
from torch.overrides import TorchFunctionMode

from engine.mistakes import Mistake


def generate(model, idx, *settings, **named_settings):
    """The prompt idx, followed by all tokens that `stream` yields: int64 (B, N + new). The settings
    are those of `stream`."""
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
    top_p: sample from the fewest likeliest tokens whose probabilities add up to p; None from all.
    stop_token: a sequence that draws it is finished, and is filled up with it. Generation ends when
    all sequences are finished.
    use_cache: keep keys and values, or sums over tokens. Then, as long as the text is not longer
    than what the network reads, each token goes through the layers once. The result is the same up
    to rounding.
    generator: the torch.Generator to draw from, with a seed of its own for each thread. None draws
    from PyTorch's, which all threads share.

    The network is not changed, and computes as in evaluation mode. Raises Mistake, when the first
    token is asked for, if the model does not continue text, if there is no prompt, or if a setting
    makes no sense.
    """
    check_asked(model, idx, temperature, top_k or 0, 1.0 if top_p is None else top_p)
    reach = reach_of(model)
    if idx.size(1) > reach:
        warnings.warn(f'the prompt has {idx.size(1)} tokens, and the network reads the last '
                      f'{reach}', stacklevel=3)
        idx = idx[:, -reach:]

    model = private_copy(model)
    # There are three ways to read. The fastest is with a cache. The next is by the parts of the
    # network, which compute the logits of the last token alone. The last is model(x).
    length = min(reach, idx.size(1) + max_new_tokens)
    cache = None
    in_parts = all(hasattr(model, part) for part in ('embed', 'layers', 'read'))
    if in_parts and use_cache and reach > 1:
        if agrees(model, idx.device, length, Cache(model)):
            cache = Cache(model)
        else:
            warnings.warn('this network cannot use a cache, so the text is read again for each '
                          'token; docs/extend.md says why', stacklevel=3)
    if in_parts and cache is None:
        in_parts = agrees(model, idx.device, length)

    finished = torch.zeros_like(idx[:, :1]).bool()
    for _ in range(max_new_tokens):
        if idx.size(1) > reach:
            # the window moves now, so every token gets another position, and the cache is wrong
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


def check_asked(model, idx, temperature, top_k, top_p):
    """Raises Mistake for what `stream` cannot do; see there."""
    if model.config.task != 'text':
        raise Mistake('only a causal network of text continues sequences; the task here is '
                      f'{model.config.task}')
    if idx.size(1) == 0:
        raise Mistake('the prompt is empty; give at least one token')
    if temperature < 0 or top_k < 0 or top_p <= 0:
        raise Mistake('temperature and top_k must be at least 0, and top_p above 0')


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
        """Send new tokens z (B, N, d), which follow those so far, through the layers. After the
        first time there must be one token, N = 1: then attention has no causal mask."""
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
        self.reach = reach      # how many tokens the network reads
        self.n_tokens = 0       # how many the module got in earlier passes
        self.tensors = {}       # {name: what is kept}

    def append(self, name, new):
        """Keep a tensor of the new tokens, (B, K, N, p), and return that of all tokens so far. name
        tells apart what one module keeps, such as 'k' and 'v'."""
        B, K, N, p = new.shape
        if name not in self.tensors:
            self.tensors[name] = new.new_empty(B, K, self.reach, p)
        end = self.n_tokens + N
        self.tensors[name][:, :, self.n_tokens:end] = new
        return self.tensors[name][:, :, :end]

    def add(self, name, sums):
        """Cumulative sums over the new tokens, (B, N, ..) -> those over all tokens so far. name
        tells apart what one module keeps."""
        if name in self.tensors:
            sums = sums + self.tensors[name]
        self.tensors[name] = sums[:, -1:].clone()
        return sums


class SharedTensors(TorchFunctionMode):
    """In its block, copy.deepcopy takes tensors as they are."""

    def __torch_function__(self, function, types, arguments=(), settings=None):
        if function is torch.Tensor.__deepcopy__:
            return arguments[0]
        return function(*arguments, **(settings or {}))


def private_copy(model):
    """A copy of a network, in evaluation mode, with the same tensors. To set an attribute of a
    module of the copy does not change the network."""
    memo = {id(weight): weight for weight in model.parameters()}
    with SharedTensors():
        new = copy.deepcopy(model, memo).eval()     # which takes what is in the memo as it is
    for module in new.modules():
        # a compiled module is for training, and so is a `forward` of this module alone, see
        # recompute_layers in engine/compiled.py and spare_logits in engine/chunked_loss.py
        module._compiled_call_impl = None
        module.__dict__.pop('forward', None)
    return new


def reach_of(model):
    """How many tokens a network reads. A network whose positions have no table may say more than
    block_size by an attribute `reach`."""
    return getattr(model, 'reach', model.config.block_size)


# ---- the logits of the next token ---------------------------------------------------------------

def next_logits(model, x, cache):
    """Logits (B, vocab_size) after the last of the tokens x (B, N), by the parts of a network.

    They are computed for the last token alone, where model(x) computes those of all tokens. With a
    cache, only the tokens that are new to it go through the layers.
    """
    z = model.embed(x)                                  # at their positions: (B, N, d)
    if cache is None:
        z = model.layers(z)
    else:
        z = cache.read(z[:, cache.n_tokens:])
    logits = model.read(z[:, -1:])[0]                   # (B, 1, vocab_size)
    return logits[:, 0]


def agrees(model, device, length, cache=None):
    """Whether the parts of a network give the logits that model(x) gives, of the last of `length`
    tokens. With a cache, which must be new, up to two tokens are read one by one. device: where
    the network is."""
    x = torch.arange(length, device=device) % model.config.vocab_size
    x = x.unsqueeze(0)                                  # (1, N)
    n_first = length if cache is None else max(1, length - 2)
    # autocast would round the two ways to read differently
    with torch.autocast(x.device.type, enabled=False):
        wanted = model(x)[0][:, -1]
        try:
            for n in range(n_first, length + 1):
                logits = next_logits(model, x[:, :n], cache)
        except BdbQuit:  # somebody ends the program in a debugger
            raise
        except Exception:  # such as of a layer that needs more than one token
            return False
    # bfloat16 rounds more than float32, and so may a GPU that multiplies float32 in TF32
    is_exact = (torch.get_float32_matmul_precision() == 'highest'
                and logits.dtype in (torch.float32, torch.float64))
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
        drop = drop.scatter(-1, order, drop)                            # back to the order of ids
        logits = logits.masked_fill(drop, -torch.inf)
    return torch.multinomial(logits.softmax(-1), 1, generator=generator)
