"""Speed of the networks, beside others' ways to compute them. compare.py says which learns better.

Rows are measured in turn, A B C A B C .., in one run; ratios are of two measurements of the same
round.

    python bench.py                                     # training steps of small networks
    python bench.py step --rows=crate-base,crate-base-released,vit-small
    python bench.py generate --rows=gpt2-base,gpt2-base-uncached --tokens=512
    python bench.py step --rows=tost,aot --n_layer=2 --n_embd=64 --n_head=4 --block_size=64
    python bench.py config/race_aot_shakespeare_char.py config/race_gpt2_shakespeare_char.py

A row is a network of the table below, such as crate-tiny, aot-mssa-base or gpt2-base, or x of any
file model_x.py, with the sizes of its Config and 8 rows in a batch. Behind it stand words that say
how it is computed. Without words it is computed as train.py does; when it generates, as sample.py
does.

    -plain, -compiled       not compiled, or compiled
    -float32, -bfloat16     precision of matrix products
    -released               CRATE as in its authors' code: float32, not compiled
    -nanogpt                GPT-2 as in nanoGPT: float32, not compiled, no cache
    -uncached               generation without a cache

The column "of a matmul" is the operations a second of our network, for every way to compute it, as
a share of those of a large matrix product. Settings of networks, such as --n_layer=2, change every
row that has them.

A race trains every config once a round, the round's number as seed, until its validation loss is at
most --target_loss or its iterations end. Seconds are of training, without evaluation. Any
`--KEY=VALUE` that is not a setting of the race goes to every training run.
"""
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from engine.process import prepare_process

if __name__ == '__main__':
    prepare_process()  # before torch is loaded

import torch
from torch.utils.benchmark import Timer

from engine import HERE, optim, settings
from engine.checkpoint import validations_of
from engine.compiled import compile_network
from engine.device import autocast, choose_compile, choose_device, choose_dtype, name_of
from engine.mistakes import Mistake
from engine.networks import SIDES, config_class, config_from, names, network_class, num_params
from request.help import run_program
from scoring.baselines import NanoGPT, ReleasedCRATE
from scoring.flops import batch, matmul_flops, train_flops
from tasks import task_of
from weights.generate import generate
from weights.runs import is_small


@dataclass
class BenchConfig:
    rows: str = ''            # what to measure, with commas between; empty: rows of the command
    rounds: int = 5           # how often each row is measured, in turn
    seconds: float = 1.0      # one measurement takes about so long
    batch_size: int = 0       # pictures or sequences in a step; 0: those of the table, or 8
    optimizer: str = 'adamw'  # 'adamw' (fused), 'adam', 'lion', 'muon'; it leaves the weights
    tokens: int = 64          # generate: tokens to write
    device: str = 'auto'      # cpu, cuda, cuda:1, mps; auto takes cuda, then mps, then cpu


@dataclass
class RaceConfig:
    target_loss: float = 1.88   # validation loss at which a run stops
    rounds: int = 3             # how often each config is trained, in turn


# ---- what a row is ------------------------------------------------------------------------------

class BenchNetwork(NamedTuple):
    """A network whose speed is measured."""
    model: str       # x of model_x.py
    settings: dict   # of its config
    batch_size: int = 8  # pictures or sequences in a step


def pictures(model, n_layer, n_embd, n_head):
    """A network for pictures of 224 x 224 in patches of 16."""
    shape = dict(n_layer=n_layer, n_embd=n_embd, n_head=n_head, image_size=224, patch_size=16)
    return BenchNetwork(model, shape)


def text(model, n_layer, n_embd, n_head, block_size=1024, batch_size=4, vocab_size=50304,
         **settings):
    """A network for text; 50304 is the vocabulary of GPT-2, rounded up to a multiple of 64."""
    shape = dict(n_layer=n_layer, n_embd=n_embd, n_head=n_head, block_size=block_size,
                 vocab_size=vocab_size)
    return BenchNetwork(model, shape | settings, batch_size)


GPT2 = {'attn': 'mhsa', 'mlp': True}
NETWORKS = {  # by the name that begins a row
    'crate-tiny': pictures('crate', 12, 384, 6),
    'crate-base': pictures('crate', 12, 768, 12),
    'vit-6m': pictures('vit', 13, 192, 3),  # as many parameters as crate-tiny
    'vit-small': pictures('vit', 12, 384, 6),
    'aot-mssa-base': text('aot', 24, 1024, 16),
    'aot-mhsa-base': text('aot', 24, 896, 14, attn='mhsa'),
    'gpt2-base': text('aot', 12, 768, 12, **GPT2),
    'tost-base': text('tost', 12, 768, 12),
    # aot-stdlib is the network of a bare `python train.py`
    'aot-stdlib': text('aot', 6, 256, 8, block_size=64, batch_size=32, vocab_size=256),
    'aot-18x384': text('aot', 18, 384, 6, block_size=256, batch_size=16, vocab_size=256),
    'gpt2-6x384': text('aot', 6, 384, 6, block_size=256, batch_size=16, vocab_size=256, **GPT2),
}
WAYS = {'released': ReleasedCRATE, 'nanogpt': NanoGPT}  # as others compute such a network
PRECISIONS = ('float32', 'bfloat16')
WORDS = (*WAYS, *PRECISIONS, 'plain', 'compiled', 'uncached')
ROWS = {  # what each command measures where --rows is empty
    'step': 'crate-tiny,crate-tiny-float32,crate-tiny-released,vit-6m,gpt2-6x384,'
            'gpt2-6x384-nanogpt,aot-18x384,aot-stdlib',
    'generate': 'gpt2-base,gpt2-base-float32,gpt2-base-uncached,gpt2-base-nanogpt,aot-mhsa-base,'
                'aot-mssa-base',
}


def read(row):
    """A row -> (the name of its network, its words). Raises Mistake for one that is unknown."""
    known = '|'.join(re.escape(name) for name in (*NETWORKS, *names()))
    words = '|'.join(WORDS)
    match = re.fullmatch(f'({known})((-({words}))*)', row)
    if match is None:
        choices = ', '.join(f'-{word}' for word in WORDS)
        raise Mistake(f"row '{row}' is unknown; choose one of {', '.join(NETWORKS)}, or x of a "
                      f'file model_x.py ({", ".join(names())}), and behind it, if you like, '
                      f'{choices}')
    return match[1], match[2].split('-')


def of_name(name):
    """The BenchNetwork of a name in NETWORKS, or else of model_NAME.py."""
    if name in NETWORKS:
        return NETWORKS[name]
    Config = config_class(name)
    # these two are named, so that config_from makes (height, width) of them, as in training
    sides = {side: getattr(Config, side) for side in SIDES if hasattr(Config, side)}
    return BenchNetwork(name, sides)


def first_of(choices, words):
    """The first of the words that is one of the choices, or None."""
    return next((word for word in words if word in choices), None)


def build(name, Way=None, changes=None):
    """The network of a name, see `of_name`, with random weights, the same in every call. Way: a
    class of WAYS that computes it. changes: settings that replace its own, if it has them."""
    model, own_settings, _ = of_name(name)
    Network = network_class(model)
    Config = config_class(model)
    changes = settings.of_fields(changes or {}, Config)
    if 'image_size' not in own_settings:
        changes.pop('image_size', None)  # with an image_size, this network would read pictures
    torch.manual_seed(0)
    config = config_from(Config, own_settings | changes)
    if Way is not None:
        return Way(config)
    return Network(config)


# ---- what is timed ------------------------------------------------------------------------------

class Work:
    """What a row times. run() is a training step on a batch of noise, or for `generate` the
    continuation of a prompt of 16 random tokens.

    unit, amount: what run() processes, such as 'tokens', and how many. flops: the operations of a
    training step; 0 for `generate`, where they are not counted. form: its precision, and whether it
    is compiled, in words.
    """

    def __init__(self, command, row, c, changes):
        """c: a BenchConfig; changes: {setting: value}, of which the network takes its own. Raises
        Mistake for a row that is unknown, or that the command does not fit."""
        name, words = read(row)
        Way = WAYS.get(first_of(WAYS, words))
        self.row = row
        self.trains = command != 'generate'
        self.model = build(name, Way, changes).to(c.device)
        self.model.train(self.trains)
        if not self.trains and self.model.config.task != 'text':
            raise Mistake(f'{name} writes no text; name another row, such as gpt2-base')

        # others compute in float32; so does sample.py, if a network is small
        default = 'auto'
        if Way is not None or (not self.trains and is_small(self.model)):
            default = 'float32'
        self.dtype = choose_dtype(first_of(PRECISIONS, words) or default, c.device)
        self.autocast = autocast(c.device, self.dtype)
        form = 'not compiled'
        if is_compiled(words, Way, self.trains, c.device):
            form = 'compiled'
            on_cpu = torch.device(c.device).type == 'cpu'
            # in one piece in training on a CPU, as train.py does
            compile_network(self.model, in_one_piece=self.trains and on_cpu)
        self.form = f'{name_of(self.dtype)}, {form}'
        self.use_cache = Way is not NanoGPT and 'uncached' not in words  # for `generate`

        ours = self.model
        if Way is not None:
            with torch.device('meta'):  # without memory for its weights
                ours = build(name, changes=changes)
        self.prepare(c.batch_size or of_name(name).batch_size, c, ours)

    def prepare(self, batch_size, c, ours):
        """The input of run(), its unit, amount and flops, and the optimizers of a training step.
        ours: the network as this project computes it, whose operations are counted."""
        with torch.device(c.device):
            self.x, self.y = batch(self.model.config, batch_size)
        self.unit = task_of(self.model.config).unit
        if self.trains:
            self.amount = self.x.numel() if self.unit == 'tokens' else batch_size
            # at a learning rate of 0 the weights stay
            self.optimizers = optim.build(self.model, c.optimizer, lr=0.0, muon_lr=0.0)
            self.flops = batch_size * train_flops(ours)
        else:
            self.amount = c.tokens
            self.flops = 0

    def run(self):
        if not self.trains:
            with self.autocast:
                generate(self.model, self.x[:1, :16], self.amount, use_cache=self.use_cache)
            return
        with self.autocast:
            loss = self.model(self.x, self.y)[1]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()


def is_compiled(words, Way, trains, device):
    """Whether a network is compiled. If no word says so, those of this project are compiled for
    training wherever train.py compiles."""
    if 'compiled' in words:
        return True
    if 'plain' in words or Way is not None or not trains:
        return False
    return choose_compile('auto', device)


# ---- the timing loop ----------------------------------------------------------------------------

def in_turn(works, c):
    """Measures every Work in turn. Returns for each a list of seconds that run() takes, a number
    for each round. It is the mean of as many runs as fit in c.seconds, at least one. Before them
    the Timer makes a run that does not count."""
    timers = []
    for work in works:
        work.run()  # this first run compiles and allocates
        # a Timer waits until a GPU has finished
        timers.append(Timer('work.run()', globals={'work': work},
                            num_threads=torch.get_num_threads()))
    seconds = [[] for _ in works]
    for _ in range(c.rounds):
        for timer, seconds_of_work in zip(timers, seconds):
            measurement = timer.blocked_autorange(min_run_time=c.seconds)
            seconds_of_work.append(measurement.mean)
    return seconds


def print_table(works, c):
    """Prints a line for each Work. Its speed is compared with that of the first one that has the
    same unit."""
    dtypes = dict.fromkeys(work.dtype for work in works)  # each of them once
    rates = {dtype: matmul_flops(c.device, dtype) for dtype in dtypes}
    reached = ', '.join(f'{rate / 1e12:.2f} TFLOP/s in {name_of(dtype)}'
                        for dtype, rate in rates.items())
    print(f'{machine(c.device)}; {c.rounds} rounds; a plain matmul reaches {reached}')
    print(f'{"":<61}  {"parameters":>12}{"ms":>10}{"a second":>20}{"of a matmul":>13}  '
          'speed over the first')

    first_speeds = {}  # {unit: the speeds of its first row, one for each round}
    for work, seconds in zip(works, in_turn(works, c)):
        speeds = [work.amount / s for s in seconds]
        speeds_of_first = first_speeds.setdefault(work.unit, speeds)
        ratios = [speed / first for speed, first in zip(speeds, speeds_of_first)]
        share = ''
        if work.flops > 0:
            share = f'{work.flops / median(seconds) / rates[work.dtype]:.0%}'
        milliseconds = 1e3 * median(seconds)
        print(f'{work.row:<40}{work.form:<23}{num_params(work.model):>12,}{milliseconds:>10,.1f}'
              f'{median(speeds):>11,.1f} {work.unit:<8}{share:>13}  {spread(ratios)}')


def spread(values):
    return f'{median(values):.2f} ({min(values):.2f} to {max(values):.2f})'


def machine(device):
    """What a device is, 'auto' the best one here, in words."""
    device = choose_device(device)
    if 'cuda' in device:
        chip = torch.cuda.get_device_name(device)
    else:
        chip = torch.cpu.get_capabilities()['cpu_name']
    return f'{chip}, {torch.get_num_threads()} threads, torch {torch.__version__}'


# ---- runs of train.py ---------------------------------------------------------------------------

def split_settings(requested, Config):
    """({name: Requested}, a dataclass) -> (a Config with those settings that are fields of it, the
    others as {name: value}, which go to every training run)."""
    fitting = settings.of_fields(requested, Config)
    others = {name: setting.value for name, setting in requested.items() if name not in fitting}
    return Config(**settings.check(fitting, Config)), others


def words_of(values):
    """{name: value} as words of a command line."""
    return [f'--{name}={value}' for name, value in values.items()]


# ---- a race to a loss ---------------------------------------------------------------------------

def race(config, target, seed, extra):
    """Trains one config. Returns its last validation, a row of its log. extra: words for the
    command line of train.py."""
    with tempfile.TemporaryDirectory() as out:
        words = [config, *extra, f'--target_loss={target}', f'--seed={seed}', f'--out_dir={out}']
        process = subprocess.run([sys.executable, HERE / 'train.py', *words],
                                 stdout=subprocess.DEVNULL)
        if process.returncode != 0:
            sys.exit(process.returncode)  # it has said why
        return validations_of(out)[-1]


def race_all(configs, requested):
    """Trains every config in turn, and prints a line for each run and for each config. requested:
    {name: Requested}, settings of the race or of train.py."""
    c, extra_settings = split_settings(requested, RaceConfig)
    settings.check_ranges(c, {(1, 1e30): ['rounds']})
    extra = words_of(extra_settings)

    print(f'{machine("auto")}, validation loss {c.target_loss}, {c.rounds} rounds')
    runs = {config: [] for config in configs}
    for seed in range(c.rounds):
        for config in runs:
            last = race(config, c.target_loss, seed, extra)
            runs[config].append(last)
            print(f'seed {seed}  {config:<44} validation loss {last["loss"]:.4f} at step '
                  f'{last["step"]} after {last["seconds"]:.1f} s of training', flush=True)

    first_rows = runs[configs[0]]
    for config, rows in runs.items():
        seconds = [row['seconds'] for row in rows]
        ratios = [first['seconds'] / row['seconds'] for first, row in zip(first_rows, rows)]
        line = (f'{config:<44} {spread(seconds)} s of training; '
                f'the first takes {spread(ratios)} of that')
        if any(row['loss'] > c.target_loss for row in rows):
            line += '; the target was missed: the time of the whole run, a lower bound'
        print(line)


# ---- the command --------------------------------------------------------------------------------

def main(argv):
    words, requested = settings.split(argv)
    if words and all(word.endswith('.py') for word in words):
        race_all(words, requested)
        return
    command = ' '.join(words) or 'step'
    if command not in ROWS:
        raise Mistake(f"'{command}' is unknown; say {', '.join(ROWS)}, or name configs to "
                      'race, such as config/race_aot_shakespeare_char.py')

    rows = (settings.check_first('rows', requested, BenchConfig) or ROWS[command]).split(',')
    models = [of_name(read(row)[0]).model for row in rows]
    values = settings.check(requested, BenchConfig, *[config_class(model) for model in models])
    c = settings.filled(BenchConfig, values)
    settings.check_ranges(c, {
        (1, 1e30): ['rounds', 'tokens'],
        (0, 1e30): ['batch_size', 'seconds'],
    })
    settings.take_choices(c, optimizer=optim.NAMES)
    c.device = choose_device(c.device)
    works = [Work(command, row, c, values) for row in rows]
    print_table(works, c)


if __name__ == '__main__':
    run_program(main, __doc__, BenchConfig, RaceConfig)
