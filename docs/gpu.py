"""The first half hour with a GPU: does everything work there, how fast, and what does it learn?

    python docs/gpu.py                        # all phases
    python docs/gpu.py steps train            # some of them
    python docs/gpu.py learn --minutes=40     # with another time limit for each phase
    python docs/gpu.py --out=FOLDER           # where results go; out/gpu if not said
    python docs/gpu.py --data_dir=FOLDER      # where prepared datasets lie; data if not said
    python docs/gpu.py --toy                  # tiny sizes on the CPU: tries this script itself

    phase    minutes   what it does
    steps    5         a step of every network: CUDA and CPU, compiled, bfloat16, float16; generation
    train    6         train.py itself, resuming, then sample.py, eval.py and analyze.py
    two      2         two processes that share the GPU: their gradients are those of one
    speed    6         tokens and pictures per second, share of a plain product's rate, peak memory
    learn    6         tiny Shakespeare as nanoGPT trains it, and CRATE beside ViT on drawn shapes

Each phase runs in a process of its own. Each of its parts adds a line to results.jsonl as soon as it
is known: phase, part, ok (null: left out), numbers, seconds, error. The exit code is 1 if a part
failed. `learn` reads data/shakespeare_char, which python prepare/shakespeare_char.py downloads.
"""
import argparse
import contextlib
import datetime
import gc
import json
import math
import platform
import statistics
import subprocess
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from engine.process import prepare_process

if __name__ == '__main__':
    prepare_process()  # before torch is loaded

import torch
import torch._dynamo
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import bench
from engine.checkpoint import read_log
from engine.networks import config_class, network_class
from scoring.flops import matmul_flops


# ---- parts, and where their results go ------------------------------------------------------------------------------

class Skipped(Exception):
    """A part is left out, for the reason given."""


class Report:
    """The results of one phase, and how much time is left for it."""

    def __init__(self, o, phase):
        self.o, self.phase, self.end, self.failed = o, phase, time.time() + 60 * (o.minutes or PHASES[phase][1]), 0

    def left(self):
        return self.end - time.time()

    def part(self, name, function, *args, least=15):
        """Writes the numbers that function(numbers, *args) puts into a dict, and its error if it raises one. Returns
        the numbers. It is left out if less than `least` seconds are left."""
        numbers, ok, error, start = {}, True, '', time.perf_counter()
        try:
            if self.left() < least:
                raise Skipped('no time is left; ask for this phase alone, with more --minutes')
            function(numbers, *args)
        except Skipped as e:
            ok, error = None, str(e)
        except Exception:
            ok, error, self.failed = False, traceback.format_exc(), self.failed + 1
        write(self.o, self.phase, name, ok, numbers, time.perf_counter() - start, error)
        return numbers


def write(o, phase, part, ok, numbers, seconds, error=''):
    """One line in results.jsonl, and one on the screen."""
    row = dict(phase=phase, part=part, ok=ok, numbers=numbers, seconds=round(seconds, 2), error=error)
    with open(o.out / 'results.jsonl', 'a', encoding='utf-8') as f:
        f.write(json.dumps(row) + '\n')
    said = [f'{k} {v:.4g}' if isinstance(v, float) else f'{k} {v}' for k, v in numbers.items()]
    said += error.splitlines()[-1:]
    word = {None: 'left out', True: 'ok', False: 'FAILED'}[ok]
    print(f'{phase:<6} {part:<34} {word:<9}{seconds:>6.1f} s ', ', '.join(said), flush=True)


def program(report, name, words):
    """Runs a program of the project. What it prints goes to a file."""
    if report.left() < 15:
        raise Skipped('no time is left')
    path = report.o.out / f'{name}.txt'
    with open(path, 'w', encoding='utf-8') as f:
        code = subprocess.run([sys.executable, *words], cwd=ROOT, stdout=f, stderr=f, timeout=report.left()).returncode
    if code:
        raise RuntimeError(f'exit code {code}; {path} ends with\n' + path.read_text(errors='replace')[-3000:])


def programs(report, jobs, check=lambda n, name: None, at_once=4):
    """Runs programs {name: words} side by side. A part for each: check(numbers, name) looks at what it made. Returns
    {name: numbers}."""
    def ended(n, name, future):
        future.result()
        check(n, name)
    with ThreadPoolExecutor(2 if report.o.toy else at_once) as pool:
        futures = {name: pool.submit(program, report, name, words) for name, words in jobs.items()}
        return {name: report.part(name, ended, name, future, least=-math.inf) for name, future in futures.items()}


def flags(**settings):
    return [f'--{k}={v}' for k, v in settings.items()]


# ---- steps ----------------------------------------------------------------------------------------------------------

TEXT, PICTURES = dict(image_size=0, block_size=64, vocab_size=65), dict(image_size=32, patch_size=8)
NETWORKS = {  # x of model_x.py, and settings besides the size
    'aot text': ('aot', TEXT), 'aot pictures': ('aot', PICTURES), 'aot icl': ('aot', dict(n_dims=5, block_size=22)),
    'crate text': ('crate', TEXT), 'crate masked text': ('crate', TEXT | dict(causal=False)),
    'crate pictures': ('crate', PICTURES), 'crate_alpha': ('crate_alpha', PICTURES),
    'crate_lm': ('crate_alpha', TEXT | dict(decoupled=False, skip=False)),
    'crate_mae': ('crate_mae', PICTURES), 'dino': ('dino', PICTURES | dict(out_dim=64, hidden_dim=64, bottleneck_dim=32)),
    'tost text': ('tost', TEXT | dict(layer_scale=1.0)), 'vit': ('vit', PICTURES),
    'vit_mae': ('vit_mae', PICTURES | dict(decoder_n_layer=2, decoder_n_head=2, decoder_n_embd=32))}
LIMITS = {  # how far a loss, and the gradient of a parameter, may be from those of a plain float32 step; slowest last
    'on the CPU': (1e-4, 2e-3), 'in two passes': (1e-4, 2e-3), 'in bfloat16': (0.05, 0.5), 'compiled': (1e-4, 2e-3)}


def steps(report):
    float32_products('highest')
    for name in NETWORKS:
        report.part(f'{name} in float16', float16, report.o, name)
        if name in ('aot text', 'crate text', 'crate_lm', 'tost text'):
            report.part(f'{name} written', generation, report.o, name)
    for way, limits in LIMITS.items():
        for name in NETWORKS:
            report.part(f'{name} {way}', same_step, report.o, name, way, *limits)


def same_step(n, o, name, way, of_loss, of_gradient):
    """Loss and gradients of a step, computed in two ways."""
    model, xy = small(o, name)
    n['loss'], want = gradients(model, [xy])
    if way == 'on the CPU':
        model, xy = model.cpu(), each(lambda t: t.cpu(), xy)
    elif way == 'compiled':
        compile_layers(o, model)
    batches = pieces(xy, model.config.task, 2) if way == 'in two passes' else [xy]
    n['other loss'], found = gradients(model, batches, torch.bfloat16 if way == 'in bfloat16' else torch.float32)
    n['gradients differ by'] = distance(want, found)
    assert abs(n['loss'] - n['other loss']) <= of_loss * abs(n['loss']), f'losses differ by more than {of_loss:.0e}'
    assert n['gradients differ by'] <= of_gradient, f'gradients differ by more than {of_gradient:.0e}'


def float16(n, o, name):
    """Some steps on one batch, with the loss scaled. Steps that overflow are not taken."""
    model, (x, y) = small(o, name)
    scaler, optimizer = torch.amp.GradScaler(o.device), torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(15):
        with torch.autocast(o.device, torch.float16):
            loss = model(x, y)[1]
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.item())
    n |= {'first loss': losses[0], 'last loss': losses[-1], 'scale': scaler.get_scale()}
    assert all(map(math.isfinite, losses)) and losses[-1] < losses[0], f'it does not fall: {losses}'


def generation(n, o, name):
    """The likeliest tokens, with and without a cache, beyond the longest sequence that the network reads."""
    model, (x, y) = small(o, name)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(3 if p.dim() == 2 else 1)  # so that what is written depends on what came before
    count = model.config.block_size
    a, b = (model.generate(x[:2, :8], count, temperature=0, use_cache=cache) for cache in (True, False))
    n |= {'different tokens': len(a[:, 8:].unique()), 'that a cache changes': (a != b).sum().item()}
    assert a.equal(b), 'a cache changes what is written'


def float32_products(precision):
    """'highest': in float32; 'high': in TF32 where the GPU can."""
    torch.set_float32_matmul_precision(precision)
    torch.backends.cudnn.allow_tf32 = precision == 'high'


def build(o, model, settings):
    """A network as train.py makes it, the same in every call."""
    Network, Config = network_class(model), config_class(model)
    torch.manual_seed(0)
    return Network(Config(**settings)).to(o.device).train()


def small(o, name):
    """(network, batch) of a name in NETWORKS."""
    model, settings = NETWORKS[name]
    model = build(o, model, settings | (shape(2, 32, 2) if o.toy else shape(4, 256, 4)))
    return model, each(lambda t: t.to(o.device), batch(model.config, 8))


def shape(n_layer, n_embd, n_head):
    return dict(n_layer=n_layer, n_embd=n_embd, n_head=n_head)


def batch(c, n):
    """(x, y) of noise for a network with the config c, on torch's default device."""
    if c.task in ('text', 'masked_text'):
        x, y = torch.randint(c.vocab_size, (2, n, c.block_size)).unbind()
        known = torch.arange(c.block_size) % 4 > 0  # of each row as many, so that halves of a batch weigh the same
        return x, torch.where(known, -1, y) if c.task == 'masked_text' else y
    if c.task == 'icl':
        return torch.randn(n, c.block_size // 2, c.n_dims), torch.randn(n, c.block_size // 2)
    (H, W), (h, w) = c.image_size, c.patch_size
    if c.task == 'views':
        return (torch.randn(2, n, c.channels, H, W), torch.randn(2, n, c.channels, H // 2, W // 2)), None
    x = torch.randn(n, c.channels, H, W)
    return x, torch.randint(c.num_classes, (n,)) if c.task == 'image' else torch.rand(n, (H // h) * (W // w))


def each(function, x):
    """function of each tensor in nested tuples."""
    return tuple(each(function, t) for t in x) if isinstance(x, tuple) else None if x is None else function(x)


def pieces(xy, task, count):
    """A batch in equal parts."""
    return [each(lambda t: t.chunk(count, 1 if task == 'views' else 0)[i], xy) for i in range(count)]


def gradients(model, batches, dtype=torch.float32):
    """(mean loss, {parameter: its gradient}) of some batches together."""
    model.zero_grad()
    total = 0.0
    for x, y in batches:
        with torch.autocast(next(model.parameters()).device.type, dtype, enabled=dtype != torch.float32):
            loss = model(x, y)[1] / len(batches)
        loss.backward()
        total += loss.item()
    return total, gradients_of(model)


def gradients_of(model):
    return {k: p.grad.cpu().clone() for k, p in model.named_parameters() if p.grad is not None}


def distance(a, b):
    """How far apart two dicts of gradients are: that of the worst parameter, relative to its norm."""
    assert a.keys() == b.keys(), f'gradients of other parameters: {sorted(a.keys() ^ b.keys())}'
    floor = 0.01 * max(t.norm().item() for t in a.values())
    return max((a[k] - b[k]).norm().item() / (a[k].norm().item() + floor) for k in a)


def compile_layers(o, model):
    """Compiles each layer in place, as train.py does on a GPU."""
    torch.compiler.reset()
    layers = [layer for name in ('layers', 'decoder_layers') for layer in getattr(model, name, ())]
    for layer in layers or [model]:
        layer.compile(dynamic=False, backend='aot_eager' if o.toy else 'inductor')


# ---- train ----------------------------------------------------------------------------------------------------------

SHAPES, MASKED = dict(config='train_crate_shapes'), dict(config='pretrain_crate_mae_shapes')
RUNS = {  # a config file, and settings
    'aot text': {}, 'crate shapes': SHAPES, 'crate_mae shapes': MASKED, 'linear': dict(config='train_aot_linear'),
    'dino shapes': dict(config='train_crate_dino_shapes'), 'float16 text': dict(dtype='float16'),
    'simdino shapes': dict(config='train_crate_simdino_shapes'),
    'float16 shapes': SHAPES | dict(dtype='float16'), 'float32 text': dict(dtype='float32'),
    'average and two passes': dict(ema=0.9, gradient_accumulation_steps=2), 'recomputed': dict(recompute='true'),
    'straight': dict(dropout=0.1), 'resumed': dict(dropout=0.1)}
TINY = shape(1, 16, 2) | dict(batch_size=16, eval_iters=2, eval_interval=3, log_interval=1, warmup_iters=1,
                              compile='false')


def train(report):
    o, out, total = report.o, report.o.out, 6 if report.o.toy else 200
    length = dict(lr_decay_iters=total, eval_interval=50, eval_iters=20, warmup_iters=20)

    def fell(n, name):
        found = [row['loss'] for row in read_log(out / name) if row['split'] == 'val']
        n |= {'first loss': found[0], 'last loss': found[-1]}
        assert all(map(math.isfinite, found)), f'not all are finite: {found}'
        assert found[-1] < found[0] or 'dino' in name, f'it does not fall: {found}'  # DINO's aim moves
    prepare(report)
    trained(report, {name: length | dict(max_iters=total // (1 + (name == 'resumed'))) | more
                     for name, more in RUNS.items()}, fell)
    report.part('resumed as straight', resume, report, total)
    here = dict(device=o.device)
    pictures = here | dict(ckpt=out / 'crate shapes', data_dir=o.data_dir, num_samples=4, overwrite='true')
    masked = dict(ckpt=out / 'crate_mae shapes', image=o.data_dir / 'shapes', out=out / 'masked.png', overwrite='true')
    programs(report, {
        'sample text': ['sample.py', *flags(ckpt=out / 'aot text', max_new_tokens=100, **here)],
        'sample masked': ['sample.py', *flags(**here, **masked, num_samples=4)],
        **{f'analyze {what}': ['analyze.py', what, *flags(**pictures, out=out / f'{what}.png')]
           for what in ('layers', 'attention')},
        **{f'eval {name}': ['eval.py', *flags(ckpt=out / name, data_dir=o.data_dir, **here), *more] for name, more in
           {'aot text': [], 'crate shapes': ['--knn=20'], 'crate_mae shapes': [], 'linear': ['--overwrite=true'],
            'dino shapes': ['--knn=20']}.items()}})


def prepare(report):
    """Makes the datasets that need no download."""
    programs(report, {f'data {name}': [f'prepare/{name}.py', '--once', '--out', str(report.o.data_dir / name)]
                      for name in ('stdlib', 'shapes')})


def trained(report, runs, check, at_once=4):
    """Runs train.py with the settings {name: settings}. See `programs`."""
    o, jobs = report.o, {}
    for name, settings in runs.items():
        settings = settings | dict(out_dir=o.out / name, data_dir=o.data_dir, device=o.device, overwrite='true')
        settings |= TINY if o.toy else {}
        config = settings.pop('config', '')
        jobs[name] = ['train.py', *[f'config/{config}.py'] * bool(config), *flags(**settings)]
    return programs(report, jobs, check, at_once)


def resume(n, report, total):
    """A run that ended half-way goes on, and is compared with one that never stopped."""
    o, limit = report.o, 0.03 if report.o.device == 'cuda' else 1e-4
    more = flags(init_from='resume', out_dir=o.out / 'resumed', max_iters=total, data_dir=o.data_dir, device=o.device)
    program(report, 'goes on', ['train.py', *more, *flags(compile='false') * o.toy])
    a, b = ({(row['step'], row['split']): row['loss'] for row in read_log(o.out / name)}
            for name in ('straight', 'resumed'))
    assert a.keys() == b.keys(), f'other rows: {sorted(a.keys() ^ b.keys())}'
    n |= {'equal to the last bit': a == b, 'losses differ by': max(abs(a[k] - b[k]) for k in a),
          'first step that differs': min((k[0] for k in a if a[k] != b[k]), default=None)}
    assert n['losses differ by'] <= limit, f'losses differ by more than {limit}'


# ---- two processes on one GPU ---------------------------------------------------------------------------------------

def two(report):
    for name, compiled in (('aot text', False), ('aot text', True), ('crate pictures', True), ('crate_mae', True)):
        report.part(f'{name}{", compiled" * compiled}', as_one, report.o, name, compiled)


def as_one(n, o, name, compiled):
    for kind in ('group', 'json'):
        (o.out / f'two.{kind}').unlink(missing_ok=True)
    torch.multiprocessing.spawn(one_of_two, (o, name, compiled), nprocs=2)
    n |= json.loads((o.out / 'two.json').read_text())
    assert max(n.values()) < 2e-3, 'the gradients of two processes are not those of one'


def one_of_two(rank, o, name, compiled):
    """One of two processes. NCCL refuses two on one GPU, gloo does not."""
    dist.init_process_group('gloo', init_method=f'file://{o.out / "two.group"}', rank=rank, world_size=2,
                            timeout=datetime.timedelta(seconds=90))
    found = halves(rank, o, name, compiled)
    if rank == 0:
        (o.out / 'two.json').write_text(json.dumps(found))
    dist.barrier()
    gc.collect()  # the network goes before the group does: in the other order a process may hang at its end
    dist.destroy_process_group()


def halves(rank, o, name, compiled):
    """Gradients of a process that has half of the batch, in one pass and in two, beside those of all of it in one."""
    float32_products('highest')
    model, xy = small(o, name)
    want, found = gradients(model, [xy])[1], {}
    if compiled:
        torch._dynamo.config.optimize_ddp = False  # as in train.py: layers stay whole
        compile_layers(o, model)
    parallel = DistributedDataParallel(model, device_ids=[0] if o.device == 'cuda' else None)
    for passes in (1, 2):
        parallel.zero_grad()
        for i, (x, y) in enumerate(pieces(xy, model.config.task, 2 * passes)[rank * passes:][:passes], 1):
            with contextlib.nullcontext() if i == passes else parallel.no_sync():
                (parallel(x, y)[1] / passes).backward()
        error = torch.tensor(distance(want, gradients_of(model)))
        dist.all_reduce(error, dist.ReduceOp.MAX)
        found[f'gradients differ by, passes={passes}'] = error.item()
    return found


# ---- speed ----------------------------------------------------------------------------------------------------------

TIMED = 'aot-mssa-base', 'aot-mhsa-base', 'gpt2-base', 'crate-tiny', 'crate-base', 'vit-small'  # rows of bench.py


def speed(report):
    float32_products('high')
    for i, row in enumerate(TIMED):
        report.part(row, fastest, report.o, row, time.time() + 0.7 * report.left() / (len(TIMED) - i))


def fastest(n, o, row, until):
    """The best of a few batch sizes, in bfloat16, compiled; no further one after the time `until`. Operations are
    counted as if causal attention computed all of its products; kernels leave out half of these."""
    rate, text = matmul_flops(o.device, torch.bfloat16), 'block_size' in bench.NETWORKS[row][1]
    n['TFLOP/s of a product'] = 1e-12 * rate
    more = shape(1, 32, 2) | dict(image_size=32, block_size=64, vocab_size=65) if o.toy else {}
    for size in (2, 4) if o.toy else (8, 24, 64) if text else (64, 256, 768):
        if o.device == 'cuda':
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        try:
            torch.compiler.reset()
            work = bench.Work('step', f'{row}-bfloat16', bench.BenchConfig(batch_size=size, device=o.device), more)
            (seconds,), = bench.in_turn([work], bench.BenchConfig(rounds=1))
            unit = f'{work.unit}/s'
        except torch.OutOfMemoryError:
            n['out of memory at'] = size
            break
        n[f'{unit} at {size}'] = work.amount / seconds
        if n[f'{unit} at {size}'] > n.get(unit, 0):
            n |= {unit: work.amount / seconds, 'batch': size, 'share': work.flops / seconds / rate,
                  'GiB': torch.cuda.max_memory_allocated() / 2 ** 30 if o.device == 'cuda' else 0.0}
        del work
        if time.time() > until:
            break


# ---- learn ----------------------------------------------------------------------------------------------------------

SEEDS = 1337, 1, 2
OF_NANOGPT = dict(dataset='shakespeare_char', block_size=256, batch_size=64, dropout=0.2, optimizer='adamw',
                  learning_rate=1e-3, min_lr=1e-4, schedule='cosine', beta1=0.9, beta2=0.99, weight_decay=0.1,
                  grad_clip=1, warmup_iters=100, eval_interval=250, eval_iters=20)
LANGUAGE = {  # about 10.5 to 11 million parameters
    'gpt2': dict(model='aot', attn='mhsa', mlp='true') | shape(6, 384, 6) | OF_NANOGPT,
    'aot': dict(model='aot', attn='mssa') | shape(20, 512, 8) | OF_NANOGPT,
    'crate': dict(model='crate', image_size=0) | shape(14, 512, 8) | OF_NANOGPT}


def learn(report):
    o = report.o
    prepare(report)
    seeds(report, 'shapes', {name: dict(config=f'train_{name}_shapes', max_iters=6 if o.toy else 900)
                             for name in ('crate', 'vit')})
    if not (o.data_dir / 'shakespeare_char').is_dir():
        return write(o, 'learn', 'characters', None, {}, 0.0, f'{o.data_dir} has no shakespeare_char; '
                     'python prepare/shakespeare_char.py makes it in data')
    short = dict(max_iters=6 if o.toy else 200)
    paces = trained(report, {f'trial {name}': more | short for name, more in LANGUAGE.items()},
                    lambda n, name: n.update(pace(o.out / name)))
    slowest = max(n.get('seconds a step', 1.0) for n in paces.values())  # while three runs share the GPU
    time_allows = int(0.7 * report.left() / (slowest * len(SEEDS))) // 250 * 250
    steps = 6 if o.toy else min(5000, max(250, time_allows))
    seeds(report, f'characters {steps}', {name: more | dict(max_iters=steps) for name, more in LANGUAGE.items()})


def pace(folder):
    """Seconds of a step in the second half of a run."""
    rows = [row for row in read_log(folder) if row['split'] == 'train']
    first, last = rows[len(rows) // 2], rows[-1]
    return {'seconds a step': (last['seconds'] - first['seconds']) / (last['step'] - first['step'])}


def seeds(report, what, runs):
    """Trains {name: settings} with several seeds, all side by side. Writes mean and spread of the best losses."""
    def best(n, name):
        rows = [row for row in read_log(report.o.out / name) if row['split'] == 'val']
        n |= {k: v for k, v in min(rows, key=lambda row: row['loss']).items() if k in ('step', 'loss', 'top1')}
    found = trained(report, {f'{what} {name} {seed}': more | dict(seed=seed) for seed in SEEDS
                             for name, more in runs.items()}, best, at_once=9)
    for name in runs:
        report.part(f'{what} {name}', means, [found[f'{what} {name} {seed}'] for seed in SEEDS], name, least=-math.inf)


def means(n, found, name):
    for k in ('loss', 'top1'):
        values = [numbers[k] for numbers in found if k in numbers]
        if len(values) > 1:
            n |= {k: statistics.mean(values), f'{k} ±': statistics.stdev(values), 'seeds': len(values)}
    assert n, 'fewer than two runs ended'
    if name == 'gpt2':
        n['nanoGPT publishes'] = '1.4697 after 5000 steps'


# ---- the command ----------------------------------------------------------------------------------------------------

PHASES = {'steps': (steps, 5), 'train': (train, 6), 'two': (two, 2), 'speed': (speed, 6), 'learn': (learn, 6)}
FAILED = 3  # exit code of a phase whose failed parts are written down


def machine(o):
    """Writes what this machine is."""
    n = {'gpu': 'none: toy sizes on the CPU', 'torch': torch.__version__, 'python': platform.python_version()}
    if o.device == 'cuda':
        n |= {'gpu': torch.cuda.get_device_name(), 'cuda': torch.version.cuda}
    write(o, 'all', 'machine', True, n, 0.0)


def in_its_process(o, phase):
    """Runs a phase in a process of its own, which is ended if it hangs. Returns whether nothing failed."""
    minutes = o.minutes or PHASES[phase][1]
    words = [phase, '--child', *flags(out=o.out, data_dir=o.data_dir, minutes=minutes), *['--toy'] * o.toy]
    try:
        code = subprocess.run([sys.executable, __file__, *words], timeout=60 * minutes + 60).returncode
    except subprocess.TimeoutExpired:
        code = 'none: it hung'
    if code not in (0, FAILED):
        write(o, phase, 'whole phase', False, {}, 0.0, f'its process ended with code {code}; see the screen')
    return code == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('phases', nargs='*', help=', '.join(PHASES))
    parser.add_argument('--out', type=Path, default=ROOT / 'out' / 'gpu')
    parser.add_argument('--data_dir', type=Path, default=ROOT / 'data')
    parser.add_argument('--minutes', type=float, default=0)
    for name in ('toy', 'child'):
        parser.add_argument(f'--{name}', action='store_true')
    o = parser.parse_args()
    o.out, o.data_dir, o.device = o.out.resolve(), o.data_dir.resolve(), 'cpu' if o.toy else 'cuda'
    if set(o.phases) - PHASES.keys():
        parser.error(f'the phases are {", ".join(PHASES)}')
    if not (o.toy or torch.cuda.is_available()):
        parser.error('there is no GPU here that torch can use; --toy runs on the CPU')
    o.out.mkdir(parents=True, exist_ok=True)
    if o.child:
        report = Report(o, o.phases[0])
        PHASES[o.phases[0]][0](report)
        sys.exit(FAILED if report.failed else 0)
    machine(o)
    well = [in_its_process(o, phase) for phase in o.phases or PHASES]
    print(f'{sum(well)} of {len(well)} phases without a failure; every part is in {o.out / "results.jsonl"}')
    sys.exit(not all(well))


if __name__ == '__main__':
    main()
