"""What bench.py times: a training step, generation, and the loss over a large vocabulary, of a
network by its name; and how long a run takes and how much memory.

A name is a network, then words that say how it is computed, such as crate-tiny-plain or
gpt2-base-nanogpt. Without words a network is computed as in a long run of train.py.
"""
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from engine import optim
from engine.networks import is_small, network
from engine.device import autocast, choose_compile, choose_dtype, compile_network
from engine.fast import speed_up
from engine.generate import Past, cached_logits, generate
from engine.settings import Mistake, refusals
from model_aot import AoT, AoTConfig
from scoring.baselines import NanoGPT, ReleasedCRATE
from scoring.watch import matmul_flops, train_flops


def pictures(model, n_layer, n_embd, n_head, **more):
    """A network for pictures of 224 x 224 in patches of 16, 8 in a step."""
    return model, dict(n_layer=n_layer, n_embd=n_embd, n_head=n_head, image_size=224, patch_size=16, **more), 8


def text(model, n_layer, n_embd, n_head, block_size=1024, rows=4, vocab_size=50304, **more):
    """A network for text; 50304 is the vocabulary of GPT-2, rounded up to a multiple of 64."""
    return model, dict(n_layer=n_layer, n_embd=n_embd, n_head=n_head, block_size=block_size, vocab_size=vocab_size,
                       **more), rows


GPT2 = {'attn': 'mhsa', 'mlp': True}
NETWORKS = {  # name: x of model_x.py, its settings, pictures or sequences in a step
    'crate-tiny': pictures('crate', 12, 384, 6), 'crate-small': pictures('crate', 12, 576, 12),
    'crate-base': pictures('crate', 12, 768, 12), 'crate-large': pictures('crate', 24, 1024, 16),
    'vit-tiny': pictures('vit', 12, 192, 3), 'vit-small': pictures('vit', 12, 384, 6),
    'vit-6m': pictures('vit', 13, 192, 3),  # as many parameters as crate-tiny
    'aot-mssa-v': pictures('aot', 32, 576, 12), 'aot-mhsa-v': pictures('aot', 24, 384, 6, attn='mhsa'),
    'crate-mae-base': pictures('crate_mae', 12, 768, 12),
    'vit-mae-base': pictures('vit_mae', 12, 768, 12, decoder_n_layer=8, decoder_n_embd=512, decoder_n_head=16),
    'aot-mssa-base': text('aot', 24, 1024, 16), 'aot-mssa-medium': text('aot', 36, 1280, 20),
    'aot-mhsa-base': text('aot', 24, 896, 14, attn='mhsa'), 'gpt2-base': text('aot', 12, 768, 12, **GPT2),
    'crate-gpt-base': text('crate', 12, 768, 12, image_size=0),
    'crate-bert-base': text('crate', 12, 768, 12, 512, 8, image_size=0, causal=False),
    'aot-stdlib': text('aot', 6, 256, 8, 64, 32, 256),  # the default run's
    'aot-18x384': text('aot', 18, 384, 6, 256, 16, 256), 'gpt2-6x384': text('aot', 6, 384, 6, 256, 16, 256, **GPT2)}
LOSSES = {'chunked': 'a few thousand logits at a time', 'full': 'all logits at once'}
WORDS = {  # what a word decides
    'released': 'way', 'nanogpt': 'way', 'float32': 'dtype', 'bfloat16': 'dtype', 'plain': 'compile',
    'compiled': 'compile', 'uncached': 'cache'}
TIMED = {  # what is timed: the names there are, and what words may decide
    'training': (NETWORKS, ('way', 'dtype', 'compile')), 'loss': (LOSSES, ('dtype',)),
    'generation': (NETWORKS, ('way', 'dtype', 'compile', 'cache'))}


@dataclass
class Form:
    """What a name says. `way` is '', 'released' or 'nanogpt'."""
    base: str
    way: str
    dtype: torch.dtype
    compiled: bool
    cached: bool

    def __str__(self):
        return f'{str(self.dtype)[6:]}, {"compiled" if self.compiled else "not compiled"}'


@dataclass
class Work:
    """Something to time: run() once processes `amount` units."""
    run: Callable
    amount: int
    unit: str               # what a unit is: 'pictures' or 'tokens'
    form: Form
    params: int
    flops: float = 0.0      # operations of a run, as our network needs them whatever the form; 0 if not counted
    cache: int = 0          # bytes of keys and values that a generation keeps


def read(name, timed, device):
    """A name -> Form. What its words leave open is what a long run of train.py chooses; generation is
    not compiled. Raises Mistake for a name that does not exist."""
    known, kinds = TIMED[timed]
    base = max((k for k in known if f'{name}-'.startswith(f'{k}-')), key=len, default='')
    words = name[len(base) + 1:].split('-') if len(name) > len(base) else []
    said = {WORDS.get(word): word for word in words}
    if not base or not said.keys() <= set(kinds) or len(said) < len(words):
        raise Mistake(f"row '{name}' is unknown; choose one of {', '.join(known)}, and behind it, if you like, "
                      + ', '.join(f'-{word}' for word, kind in WORDS.items() if kind in kinds))
    dtype = choose_dtype(said.get('dtype', 'float32' if 'way' in said else 'auto'), device)
    compiled = said['compile'] == 'compiled' if 'compile' in said else \
        timed == 'training' and 'way' not in said and choose_compile('auto', device)
    return Form(base, said.get('way', ''), dtype, compiled, 'cache' not in said)


def build(base, way='', more=None):
    """A network of NETWORKS with random weights, the same in every call. more: settings that replace
    those of the table, if the network has them."""
    model, given, _ = NETWORKS[base]
    Network, Config = network(model)
    if way and (model, given.get('mlp', False)) != {'released': ('crate', False), 'nanogpt': ('aot', True)}[way]:
        raise Mistake(f'-{way} is a way to compute {"CRATE" if way == "released" else "GPT-2"}, not {base}')
    Network = {'released': ReleasedCRATE, 'nanogpt': NanoGPT}.get(way, Network)
    more = {k: v for k, v in (more or {}).items() if k in Config.__dataclass_fields__}
    if not given.get('image_size'):  # a network that reads text keeps doing so
        more.pop('image_size', None)
    torch.manual_seed(0)
    with refusals():
        model = Network(Config(**given | more))
    return model if way else speed_up(model)


def batch(c, rows):
    """(x, y) of noise, on the default device, for a network with the config c."""
    if c.task in ('image', 'masked_image'):
        x = torch.randn(rows, c.channels, *c.image_size)
        return x, torch.randint(c.num_classes, (rows,)) if c.task == 'image' else None
    return tuple(torch.randint(c.vocab_size, (rows, c.block_size)) for _ in 'xy')


# ---- what is timed --------------------------------------------------------------------------------------------------

def training(name, device, rows=0, optimizer='adamw', more=None):
    """Work: forward, backward, clipping and optimizer step, on a batch of noise. rows: pictures or
    sequences in it; 0 is the table's number."""
    form = read(name, 'training', device)
    model = build(form.base, form.way, more).to(device).train()
    c, rows = model.config, rows or NETWORKS[form.base][2]
    is_text = c.task in ('text', 'masked_text')
    flops = rows * train_flops(build_on_meta(form.base, more))
    step = stepper(model, batch(c, rows), optimizer, form, device)
    return Work(step, rows * (c.block_size if is_text else 1), 'tokens' if is_text else 'pictures', form,
                model.num_params(), flops)


def build_on_meta(base, more=None):
    with torch.device('meta'):
        return build(base, '', more)


def stepper(model, xy, optimizer, form, device):
    """A training step of a network, a function without arguments."""
    x, y = (None if t is None else t.to(device) for t in xy)
    # At a learning rate of 0 an optimizer does all its work, but the weights stay, so every step
    # computes the same.
    optimizers, cast = optim.build(model, optimizer, lr=0.0, muon_lr=0.0), autocast(device, form.dtype)
    if form.compiled:  # as train.py does
        on_cpu = torch.device(device).type == 'cpu'
        compile_network(model, whole=on_cpu)

    def step():
        with cast:
            loss = model(x, y)[1]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for o in optimizers:
            o.step()
            o.zero_grad(set_to_none=True)
    return step


def generation(name, device, tokens=64, more=None, prompt=16):
    """Work: continue a prompt of random tokens. As in sample.py, a small network does it in float32
    unless its name says otherwise."""
    form = read(name, 'generation', device)
    model = build(form.base, form.way, more).to(device).eval()
    if is_small(model) and 'bfloat16' not in name:
        form = replace(form, dtype=torch.float32)
    if model.config.task != 'text':
        raise Mistake(f'{form.base} writes no text; name another row, such as gpt2-base')
    if prompt + tokens > model.config.block_size:
        raise Mistake(f'{prompt} + {tokens} tokens exceed block_size={model.config.block_size}; ask for fewer')
    if form.compiled:
        compile_network(model, whole=False)
    idx = torch.randint(model.config.vocab_size, (1, prompt), device=device)
    cast = autocast(device, form.dtype)

    def run():
        with cast:
            if form.way:
                model.generate(idx, tokens)
            else:
                generate(model, idx, tokens, use_cache=form.cached)
    with cast:
        cache = cache_bytes(model, idx) if form.cached and not form.way else 0
    return Work(run, tokens, 'tokens', form, model.num_params(), cache=cache)


@torch.no_grad()
def cache_bytes(model, idx):
    """Bytes of the tensors in which a generation keeps keys and values."""
    pasts = {module: Past(model.config.block_size) for module in model.modules() if hasattr(module, 'past')}
    cached_logits(model, idx, 0, pasts)
    return sum(t.nbytes for past in pasts.values() for t in past.kept)


def loss(name, device, rows=4, more=None):
    """Work: the loss of the next token from a network's last tokens, and its gradients. The rows have
    1024 tokens of width 768, and 50304 words, unless `more` says otherwise."""
    form, sizes = read(name, 'loss', device), {'n_embd': 768, 'block_size': 1024, 'vocab_size': 50304}
    torch.manual_seed(0)
    c = AoTConfig(n_layer=1, n_head=1, **{k: (more or {}).get(k, size) for k, size in sizes.items()})
    head = AoT(c).read.to(device)
    if form.base == 'full':
        head.LOGITS_AT_ONCE = 2 ** 62
    z = torch.randn(rows, c.block_size, c.n_embd, device=device, requires_grad=True)
    y, cast = torch.randint(c.vocab_size, z.shape[:2], device=device), autocast(device, form.dtype)

    def run():
        with cast:
            value = head(z, y)[1]
        value.backward()
        z.grad = None
        head.zero_grad(set_to_none=True)
    return Work(run, y.numel(), 'tokens', form, head.weight.numel(), flops=6 * y.numel() * head.weight.numel())


# ---- how it is measured ---------------------------------------------------------------------------------------------

def settle(device):
    """Wait until a GPU has finished."""
    if torch.device(device).type != 'cpu':
        torch.accelerator.synchronize(device)


def seconds_of(run, least, device):
    """Mean seconds of a run, over at least so many seconds. A GPU has to finish before the clock is
    read, so runs come in bursts."""
    done, burst, spent, start = 0, 1, 0.0, time.perf_counter()
    while not done or spent < least:
        for _ in range(burst):
            run()
        settle(device)
        done, spent = done + burst, time.perf_counter() - start
        burst = max(1, min(done, int(done * (least / spent - 1))))  # twice as many, but not beyond the end
    return spent / done


def in_turn(works, rounds, least, device):
    """Measure every Work in turn, A B C A B C ..; works {name: Work}. Returns ({name: seconds of a
    run in each round}, {dtype: operations per second of a plain matmul in each round})."""
    for work in works.values():  # the first runs compile and allocate
        work.run(), work.run()
    settle(device)
    dtypes = dict.fromkeys(work.form.dtype for work in works.values())
    seconds, rates = {name: [] for name in works}, {dtype: [] for dtype in dtypes}
    for _ in range(rounds):
        for dtype in dtypes:
            rates[dtype].append(matmul_flops(device, dtype))
        for name, work in works.items():
            seconds[name].append(seconds_of(work.run, least, device))
    return seconds, rates


def alone(make, device):
    """Make a Work and run it three times, in a process that has done nothing else. Returns (the time
    at which the first run ended, peak memory in bytes: of CUDA's tensors, or what this process
    resides in beyond its size before). NaN where the system does not tell."""
    before = resident('VmRSS')
    work = make()
    work.run()
    settle(device)
    ended = time.time()
    work.run(), work.run()
    if torch.device(device).type == 'cuda':
        return ended, torch.cuda.max_memory_allocated(device)
    return ended, resident('VmHWM') - before


def resident(field):
    """Bytes of this process in memory: 'VmRSS' now, 'VmHWM' at its peak. NaN but on Linux. (The
    peak of `resource.getrusage` begins with that of the process that started this one.)"""
    try:
        with open('/proc/self/status', encoding='utf-8') as f:
            return next(1024 * int(line.split()[1]) for line in f if line.startswith(field))
    except OSError:
        return math.nan
