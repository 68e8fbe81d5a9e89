"""Speed of the networks, beside others' ways to compute them. Rows are measured in turn, A B C A B C .., in one run;
ratios are of two measurements of the same round.

    python bench.py                                     # training steps of small networks
    python bench.py step --rows=crate-base,crate-base-released,vit-small
    python bench.py generate --rows=gpt2-base,gpt2-base-uncached --tokens=512
    python bench.py grow                                # a step's cost by width, depth and context
    python bench.py config/race_aot_shakespeare_char.py config/race_gpt2_shakespeare_char.py --target_loss=1.88

A row is a network of the table below, such as crate-tiny, aot-mssa-base or gpt2-base, and words that say how it is
computed. Without words it is computed as train.py does; when it generates, as sample.py does.

    -plain, -compiled       not compiled, or compiled
    -float32, -bfloat16     precision of matrix products
    -released               CRATE as in its authors' code: float32, not compiled
    -nanogpt                GPT-2 as in nanoGPT: float32, not compiled, no cache
    -uncached               generation without a cache

The share of a matmul's rate counts the operations that our network needs, whatever the form. Settings of networks, such
as --n_layer=2, change every row that has them.

A race trains every config once a round, the round's number as seed, until its validation loss is at most the target or
its iterations end. Seconds are of training, without evaluation, unless stated otherwise. Any `--KEY=VALUE` that is not
a setting of the race goes to every training run.
"""
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import median

import engine  # before torch
import torch

from engine import optim, settings
from engine.checkpoint import read_log
from engine.device import autocast, choose_compile, choose_device, choose_dtype, compile_network
from engine.fast import speed_up
from engine.generate import generate
from engine.networks import is_small, network, size
from engine.settings import Mistake
from scoring.baselines import NanoGPT, ReleasedCRATE
from scoring.watch import matmul_flops, train_flops


@dataclass
class BenchConfig:
    rows: str = ''              # what to measure, with commas between; empty takes the command's own
    rounds: int = 5             # how often each row is measured, in turn
    seconds: float = 1.0        # one measurement takes about so long
    batch_size: int = 0         # pictures or sequences in a step; 0 takes each network's own
    optimizer: str = 'adamw'    # 'adamw' (fused), 'adam', 'lion', 'muon', at a learning rate of 0
    tokens: int = 64            # generate: tokens to write
    device: str = 'auto'        # cpu, cuda, cuda:1, mps; auto takes cuda, then mps, then cpu


@dataclass
class RaceConfig:
    target_loss: float = 1.88   # validation loss at which a run stops
    rounds: int = 3             # how often each config is trained, in turn


def pictures(model, n_layer, n_embd, n_head):
    """A network for pictures of 224 x 224 in patches of 16, 8 in a step."""
    return model, dict(n_layer=n_layer, n_embd=n_embd, n_head=n_head, image_size=224, patch_size=16), 8


def text(model, n_layer, n_embd, n_head, block_size=1024, rows=4, vocab_size=50304, **more):
    """A network for text; 50304 is the vocabulary of GPT-2, rounded up to a multiple of 64."""
    shape = dict(n_layer=n_layer, n_embd=n_embd, n_head=n_head, block_size=block_size, vocab_size=vocab_size)
    return model, shape | more, rows


GPT2 = {'attn': 'mhsa', 'mlp': True}
NETWORKS = {  # name: x of model_x.py, its settings, pictures or sequences in a step
    'crate-tiny': pictures('crate', 12, 384, 6), 'crate-base': pictures('crate', 12, 768, 12),
    'vit-6m': pictures('vit', 13, 192, 3), 'vit-small': pictures('vit', 12, 384, 6),  # 6m: as many as crate-tiny
    'aot-mssa-base': text('aot', 24, 1024, 16), 'aot-mhsa-base': text('aot', 24, 896, 14, attn='mhsa'),
    'gpt2-base': text('aot', 12, 768, 12, **GPT2),
    'aot-stdlib': text('aot', 6, 256, 8, 64, 32, 256),  # the default run's
    'aot-18x384': text('aot', 18, 384, 6, 256, 16, 256), 'gpt2-6x384': text('aot', 6, 384, 6, 256, 16, 256, **GPT2)}
WORDS = {'released': 'way', 'nanogpt': 'way', 'float32': 'dtype', 'bfloat16': 'dtype', 'plain': 'compile',
         'compiled': 'compile', 'uncached': 'cache'}  # what a word decides
ROWS = {  # of each command
    'step': 'crate-tiny,crate-tiny-float32,crate-tiny-released,vit-6m,gpt2-6x384,gpt2-6x384-nanogpt,aot-18x384,'
            'aot-stdlib',
    'generate': 'gpt2-base,gpt2-base-float32,gpt2-base-uncached,gpt2-base-nanogpt,aot-mhsa-base,aot-mssa-base',
    'grow': 'aot-stdlib-plain,gpt2-6x384-plain'}
SHAPES = [{name: n} for name, sizes in {'n_embd': (128, 256, 512, 1024), 'n_layer': (3, 6, 12),
                                        'block_size': (64, 256, 1024)}.items() for n in sizes]


# ---- what is timed --------------------------------------------------------------------------------------------------

@dataclass
class Work:
    """Something to time: run() once processes `amount` units."""
    row: str
    run: Callable
    amount: int
    unit: str               # 'pictures' or 'tokens'
    dtype: torch.dtype
    form: str               # how it is computed, in words
    params: int
    flops: float = 0.0      # operations of a run, as our network needs them; 0 if not counted


def read(row, command):
    """A row -> (its network's name, {what a word decides: the word}). Raises Mistake for one that does not exist."""
    base = max((k for k in NETWORKS if f'{row}-'.startswith(f'{k}-')), key=len, default='')
    words = row[len(base) + 1:].split('-') if len(row) > len(base) else []
    said = {WORDS.get(word): word for word in words}
    if not base or None in said or len(said) < len(words) or 'cache' in said and command != 'generate':
        raise Mistake(f"row '{row}' is unknown; choose one of {', '.join(NETWORKS)}, and behind it, if you like, "
                      + ', '.join(f'-{word}' for word in WORDS))
    return base, said


def build(base, way='', more=None):
    """A network of NETWORKS with random weights, the same in every call. more: settings that replace those of the
    table, if the network has them."""
    model, given, _ = NETWORKS[base]
    Network, Config = network(model)
    own = {k: v for k, v in (more or {}).items() if k in Config.__dataclass_fields__}
    if not given.get('image_size'):  # a network that reads text keeps doing so
        own.pop('image_size', None)
    torch.manual_seed(0)
    with settings.refusals():
        config = Config(**given | own)
    return {'released': ReleasedCRATE, 'nanogpt': NanoGPT}[way](config) if way else speed_up(Network(config))


def batch(c, rows):
    """(x, y) of noise, for a network with the config c."""
    if c.task == 'image':
        return torch.randn(rows, c.channels, *c.image_size), torch.randint(c.num_classes, (rows,))
    return tuple(torch.randint(c.vocab_size, (rows, c.block_size)) for _ in 'xy')


def work_of(command, row, c, more):
    """The Work of a row: a training step on a batch of noise, or for `generate` the continuation of a prompt of random
    tokens."""
    (base, said), trains = read(row, command), command != 'generate'
    way = said.get('way', '')
    model = build(base, way, more).to(c.device).train(trains)
    small = not trains and is_small(model)  # sample.py computes these in float32
    dtype = choose_dtype(said.get('dtype', 'float32' if way or small else 'auto'), c.device)
    compiled = said['compile'] == 'compiled' if 'compile' in said else \
        trains and not way and choose_compile('auto', c.device)
    if compiled:  # as train.py does
        compile_network(model, whole=trains and torch.device(c.device).type == 'cpu')
    cast, form = autocast(c.device, dtype), f'{str(dtype)[6:]}, {"compiled" if compiled else "not compiled"}'
    run, amount, unit, flops = (training if trains else generation)(model, base, said, cast, c, more)
    return Work(row, run, amount, unit, dtype, form, size(model), flops)


def training(model, base, said, cast, c, more):
    """(a training step, how much it processes, the unit, its operations)"""
    rows = c.batch_size or NETWORKS[base][2]
    x, y = (t.to(c.device) for t in batch(model.config, rows))
    optimizers = optim.build(model, c.optimizer, lr=0.0, muon_lr=0.0)  # does all its work, but the weights stay
    with torch.device('meta'):
        flops = rows * train_flops(build(base, '', more))

    def step():
        with cast:
            loss = model(x, y)[1]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    return (step, x.numel(), 'tokens', flops) if x.dim() == 2 else (step, rows, 'pictures', flops)


def generation(model, base, said, cast, c, more, prompt=16):
    """The same of a continuation; its operations are not counted."""
    if model.config.task != 'text':
        raise Mistake(f'{base} writes no text; name another row, such as gpt2-base')
    idx = torch.randint(model.config.vocab_size, (1, prompt), device=c.device)

    def run():
        with cast:
            model.generate(idx, c.tokens) if 'way' in said else \
                generate(model, idx, c.tokens, use_cache='cache' not in said)
    return run, c.tokens, 'tokens', 0.0


# ---- the timing loop ------------------------------------------------------------------------------------------------

def in_turn(works, c):
    """Measures every Work in turn. Returns ([seconds of a run in each round] for each, {dtype: [operations per second
    of a plain matmul in each round]})."""
    seconds, rates = [[] for _ in works], {work.dtype: [] for work in works}
    counts = []
    for work in works:
        timed(work, 2, c.device)  # everything compiles and allocates
        counts.append(1 + int(c.seconds / timed(work, 1, c.device)))
    for _ in range(c.rounds):
        for dtype in rates:
            rates[dtype].append(matmul_flops(c.device, dtype))
        for work, count, own in zip(works, counts, seconds):
            own.append(timed(work, count, c.device))
    return seconds, rates


def timed(work, count, device):
    """Seconds of a run, the mean of so many."""
    start = time.perf_counter()
    for _ in range(count):
        work.run()
    if torch.device(device).type != 'cpu':
        torch.accelerator.synchronize(device)  # a GPU has to finish before the clock is read
    return (time.perf_counter() - start) / count


def compare(command, c, more):
    """Prints a line for each row."""
    works = [work_of(command, row, c, more) for row in c.rows.split(',')]
    seconds, rates = in_turn(works, c)
    print(f'{machine(c.device)}; {c.rounds} rounds; a plain matmul reaches ' + ', '.join(
        f'{median(r) / 1e12:.2f} TFLOP/s in {str(dtype)[6:]}' for dtype, r in rates.items()))
    print(f'{"":<50}  {"parameters":>12}{"ms":>10}{"a second":>20}{"of a matmul":>13}  speed over the first')
    first = {}
    for work, own in zip(works, seconds):
        one, theirs = first.setdefault(work.unit, (work, own))
        ratios = [work.amount / s / (one.amount / t) for s, t in zip(own, theirs)]
        share = median(work.flops / s / rate for s, rate in zip(own, rates[work.dtype]))
        print(f'{work.row:<29}{work.form:<23}{work.params:>12,}{1e3 * median(own):>10,.1f}'
              f'{work.amount / median(own):>11,.1f} {work.unit:<8}{f"{share:.0%}" * (share > 0):>13}'
              + (f'  {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})' if one is not work else ''))


def grow(command, c, more):
    """Prints a line for each of SHAPES, with a column for each row."""
    print(f'{machine(c.device)}; ms of a training step with 2,048 tokens; 6 layers of width 512, context 256, except:')
    rows, works, sequences = c.rows.split(','), [], c.batch_size
    for shape in SHAPES:
        given = {'n_layer': 6, 'n_embd': 512, 'block_size': 256} | more | shape
        given['n_head'] = max(1, given['n_embd'] // 64)
        c.batch_size = sequences or max(1, 2048 // given['block_size'])
        works += [work_of(command, row, c, given) for row in rows]
    seconds, _ = in_turn(works, c)
    print(' ' * 20 + ''.join(f'{row:>29}' for row in rows))
    for i, shape in enumerate(SHAPES):
        name = ' '.join(f'{k}={v}' for k, v in shape.items())
        print(f'{name:<20}' + ''.join(f'{1e3 * median(own):>29,.0f}' for own in seconds[i * len(rows):][:len(rows)]))


def machine(device):
    chip = torch.cuda.get_device_name(device) if 'cuda' in device else platform.processor() or platform.machine()
    return f'{chip}, {torch.get_num_threads()} threads, torch {torch.__version__}'


# ---- a race to a loss -----------------------------------------------------------------------------------------------

def race(config, target, seed, extra):
    """Trains one config. Returns its last validation, a row of its log, and the seconds that the whole process took."""
    with tempfile.TemporaryDirectory() as out:
        start = time.perf_counter()
        words = config, *extra, f'--target_loss={target}', f'--seed={seed}', f'--out_dir={out}'
        done = subprocess.run([sys.executable, settings.HERE / 'train.py', *words], capture_output=True,
                              encoding='utf-8', errors='replace')
        if done.returncode:
            raise Mistake(f'{config}: {done.stderr.strip()}')
        return [row for row in read_log(out) if row['split'] == 'val'][-1], time.perf_counter() - start


def race_all(configs, given):
    ours = {f.name for f in fields(RaceConfig)}
    c = RaceConfig(**settings.check({k: v for k, v in given.items() if k in ours}, RaceConfig))
    extra = [f'--{k}={value}' for k, (value, _) in given.items() if k not in ours]
    print(f'{machine("cpu")}, validation loss {c.target_loss}, {c.rounds} rounds')
    seconds, missed = {config: [] for config in configs}, set()
    for seed in range(c.rounds):
        for config in configs:
            row, whole = race(config, c.target_loss, seed, extra)
            seconds[config].append(row['seconds'])
            if row['loss'] > c.target_loss:
                missed.add(config)
            print(f'seed {seed}  {Path(config).stem:<34} validation loss {row["loss"]:.4f} at step {row["step"]} after '
                  f'{row["seconds"]:.1f} s of training, {whole:.1f} s in all', flush=True)
    for config in configs:
        print(f'{Path(config).stem:<34} ' + spread(seconds[config], 's of training')
              + '; the target was missed, so this is a lower bound: the time of the whole run' * (config in missed))
    first, *others = configs
    for config in others:
        ratios = [a / b for a, b in zip(seconds[first], seconds[config])]
        print(f'{Path(first).stem} / {Path(config).stem}: ' + spread(ratios, 'of the time', '.2f') +
              (', at most' if config in missed and first not in missed else ''))


def spread(values, unit, form='.1f'):
    return f'median {median(values):{form}} {unit} ({min(values):{form}} to {max(values):{form}})'


# ---- the command ----------------------------------------------------------------------------------------------------

def main(argv):
    if '--help' in argv or '-h' in argv:
        return print(settings.help_text(__doc__, BenchConfig, RaceConfig))
    words, given = settings.split(argv)
    if words and all(word.endswith('.py') for word in words):
        return race_all(words, given)
    command, *rest = words or ['step']
    if command not in ROWS or rest:
        raise Mistake(f"'{' '.join(words)}' is unknown; say {', '.join(ROWS)}, or name configs to race, such as "
                      'config/race_aot_shakespeare_char.py')
    more = settings.check(given, BenchConfig, *(network(model)[1] for model, *_ in NETWORKS.values()))
    c = BenchConfig(**{f.name: more.pop(f.name) for f in fields(BenchConfig) if f.name in more})
    settings.check_least(c, rounds=1, batch_size=0, tokens=1, seconds=0)
    c.rows, c.device = c.rows or ROWS[command], choose_device(c.device)
    (grow if command == 'grow' else compare)(command, c, more)


if __name__ == '__main__':
    with settings.one_line_errors():
        main(sys.argv[1:])
