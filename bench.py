"""Speed of the networks, beside others' ways to compute them. Rows are measured in turn, A B C A B C .., in one run;
ratios are of two measurements of the same round.

    python bench.py                                     # training steps of small networks
    python bench.py step --rows=crate-base,crate-base-released,vit-small
    python bench.py generate --rows=gpt2-base,gpt2-base-uncached --tokens=512
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
its iterations end. Seconds are of training, without evaluation. Any `--KEY=VALUE` that is not a setting of the race
goes to every training run.
"""
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, fields
from statistics import median

import engine  # before torch
import torch
from torch.utils.benchmark import Timer

from engine import optim, settings
from engine.checkpoint import read_log
from engine.device import autocast, choose_compile, choose_device, choose_dtype, compile_network
from engine.fast import speed_up
from engine.networks import config_from, network, size
from engine.settings import Mistake
from engine.trained import is_small
from scoring.baselines import NanoGPT, ReleasedCRATE
from scoring.flops import batch, matmul_flops, train_flops


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
    'gpt2-base': text('aot', 12, 768, 12, **GPT2), 'tost-base': text('tost', 12, 768, 12),
    'aot-stdlib': text('aot', 6, 256, 8, 64, 32, 256),  # the default run's
    'aot-18x384': text('aot', 18, 384, 6, 256, 16, 256), 'gpt2-6x384': text('aot', 6, 384, 6, 256, 16, 256, **GPT2)}
WAYS = {'released': ReleasedCRATE, 'nanogpt': NanoGPT}
WORDS = *WAYS, 'float32', 'bfloat16', 'plain', 'compiled', 'uncached'
ROWS = {  # of each command
    'step': 'crate-tiny,crate-tiny-float32,crate-tiny-released,vit-6m,gpt2-6x384,gpt2-6x384-nanogpt,aot-18x384,'
            'aot-stdlib',
    'generate': 'gpt2-base,gpt2-base-float32,gpt2-base-uncached,gpt2-base-nanogpt,aot-mhsa-base,aot-mssa-base'}


# ---- what is timed --------------------------------------------------------------------------------------------------

def read(row):
    """A row -> (its network's name, its words)."""
    found = re.fullmatch(f'({"|".join(NETWORKS)})((-({"|".join(WORDS)}))*)', row)
    if not found:
        raise Mistake(f"row '{row}' is unknown; choose one of {', '.join(NETWORKS)}, and behind it, if you like, "
                      + ', '.join(f'-{word}' for word in WORDS))
    return found[1], found[2].split('-')


def build(base, Way=None, more={}):
    """A network of NETWORKS with random weights, the same in every call. more: settings that replace those of the
    table, if the network has them."""
    model, given, _ = NETWORKS[base]
    Network, Config = network(model)
    own = {f.name for f in fields(Config) if f.name != 'image_size' or 'image_size' in given}  # text stays text
    torch.manual_seed(0)
    config = config_from(Config, given | {k: v for k, v in more.items() if k in own})
    return Way(config) if Way else speed_up(Network(config))


class Work:
    """What a row times. run() once processes `amount` units, pictures or tokens: a training step on a batch of noise,
    or for `generate` the continuation of a prompt of 16 random tokens."""

    def __init__(self, command, row, c, more):
        """c: a BenchConfig; more: settings of the network."""
        (base, words), self.trains = read(row), command != 'generate'
        Way = next((WAYS[word] for word in words if word in WAYS), None)
        self.model = build(base, Way, more).to(c.device).train(self.trains)
        task, rows = self.model.config.task, c.batch_size or NETWORKS[base][2]
        if not self.trains and task != 'text':
            raise Mistake(f'{base} writes no text; name another row, such as gpt2-base')
        plain = Way or not self.trains and is_small(self.model)  # sample.py computes the small ones in float32
        dtype = next((word for word in words if word in ('float32', 'bfloat16')), 'float32' if plain else 'auto')
        self.dtype = choose_dtype(dtype, c.device)
        self.cast = autocast(c.device, self.dtype)
        compiled = 'compiled' in words or (
            self.trains and not Way and 'plain' not in words and choose_compile('auto', c.device))
        if compiled:  # as train.py does
            compile_network(self.model, in_one_piece=self.trains and torch.device(c.device).type == 'cpu')
        self.row, self.form = row, f'{str(self.dtype)[6:]}, {"compiled" if compiled else "not compiled"}'
        self.x, self.y = (t.to(c.device) for t in batch(self.model.config, rows))
        self.unit, self.amount, self.flops = 'tokens', c.tokens, 0  # the operations of writing are not counted
        self.cache = 'uncached' not in words
        if self.trains:
            self.unit, self.amount = ('pictures', rows) if task == 'image' else ('tokens', self.x.numel())
            self.optimizers = optim.build(self.model, c.optimizer, lr=0.0, muon_lr=0.0)  # the weights stay
            with torch.device('meta'):
                self.flops = rows * train_flops(build(base, None, more))

    def run(self):
        with self.cast:
            if not self.trains:
                return self.model.generate(self.x[:1, :16], self.amount, use_cache=self.cache)
            loss = self.model(self.x, self.y)[1]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)


# ---- the timing loop ------------------------------------------------------------------------------------------------

def in_turn(works, c):
    """Measures every Work in turn. Returns for each its seconds of a run, a number for each round: the mean of as many
    runs as fit in c.seconds, at least one, after one that does not count."""
    for work in works:
        work.run()  # everything compiles and allocates
    # a Timer waits for a GPU
    timers = [Timer('work.run()', globals={'work': work}, num_threads=torch.get_num_threads()) for work in works]
    rounds = [[timer.blocked_autorange(min_run_time=c.seconds).mean for timer in timers] for _ in range(c.rounds)]
    return list(zip(*rounds))


def compare(works, c):
    """Prints a line for each Work."""
    rates = {work.dtype: matmul_flops(c.device, work.dtype) for work in works}
    print(f'{machine(c.device)}; {c.rounds} rounds; a plain matmul reaches ' + ', '.join(
        f'{rate / 1e12:.2f} TFLOP/s in {str(dtype)[6:]}' for dtype, rate in rates.items()))
    print(f'{"":<61}  {"parameters":>12}{"ms":>10}{"a second":>20}{"of a matmul":>13}  speed over the first')
    first = {}
    for work, seconds in zip(works, in_turn(works, c)):
        speeds = [work.amount / s for s in seconds]
        ratios = [own / theirs for own, theirs in zip(speeds, first.setdefault(work.unit, speeds))]
        share = f'{work.flops / median(seconds) / rates[work.dtype]:.0%}' if work.flops else ''
        print(f'{work.row:<40}{work.form:<23}{size(work.model):>12,}{1e3 * median(seconds):>10,.1f}'
              f'{median(speeds):>11,.1f} {work.unit:<8}{share:>13}  {spread(ratios)}')


def spread(values):
    return f'{median(values):.2f} ({min(values):.2f} to {max(values):.2f})'


def machine(device):
    chip = torch.cuda.get_device_name(device) if 'cuda' in device else torch.cpu.get_capabilities()['cpu_name']
    return f'{chip}, {torch.get_num_threads()} threads, torch {torch.__version__}'


# ---- a race to a loss -----------------------------------------------------------------------------------------------

def race(config, target, seed, extra):
    """Trains one config. Returns its last validation, a row of its log."""
    with tempfile.TemporaryDirectory() as out:
        words = config, *extra, f'--target_loss={target}', f'--seed={seed}', f'--out_dir={out}'
        done = subprocess.run([sys.executable, settings.HERE / 'train.py', *words], stdout=subprocess.DEVNULL)
        if done.returncode:
            sys.exit(done.returncode)  # it has said why
        return [row for row in read_log(out) if row['split'] == 'val'][-1]


def race_all(configs, given):
    ours = {f.name for f in fields(RaceConfig)}
    c = RaceConfig(**settings.check({k: v for k, v in given.items() if k in ours}, RaceConfig))
    extra = [f'--{k}={value}' for k, (value, _) in given.items() if k not in ours]
    print(f'{machine("cpu")}, validation loss {c.target_loss}, {c.rounds} rounds')
    runs = {config: [] for config in configs}
    for seed in range(c.rounds):
        for config, rows in runs.items():
            row = race(config, c.target_loss, seed, extra)
            rows.append(row)
            print(f'seed {seed}  {config:<44} validation loss {row["loss"]:.4f} at step {row["step"]} after '
                  f'{row["seconds"]:.1f} s of training', flush=True)
    for config, rows in runs.items():
        seconds = [row['seconds'] for row in rows]
        ratios = [first['seconds'] / own for first, own in zip(runs[configs[0]], seconds)]
        missed = any(row['loss'] > c.target_loss for row in rows)
        print(f'{config:<44} {spread(seconds)} s of training; the first takes {spread(ratios)} of that'
              + '; the target was missed: the time of the whole run, a lower bound' * missed)


# ---- the command ----------------------------------------------------------------------------------------------------

def main(argv):
    words, given = settings.split(argv)
    if words and all(word.endswith('.py') for word in words):
        return race_all(words, given)
    command = ' '.join(words) or 'step'
    if command not in ROWS:
        raise Mistake(f"'{command}' is unknown; say {', '.join(ROWS)}, or name configs to race, such as "
                      'config/race_aot_shakespeare_char.py')
    more = settings.check(given, BenchConfig, *(network(model)[1] for model, *_ in NETWORKS.values()))
    c = settings.filled(BenchConfig, more)
    settings.check_ranges(c, {(1, 1e30): ['rounds', 'tokens'], (0, 1e30): ['batch_size', 'seconds']})
    c.rows, c.device = c.rows or ROWS[command], choose_device(c.device)
    compare([Work(command, row, c, more) for row in c.rows.split(',')], c)


if __name__ == '__main__':
    settings.run(main, __doc__, BenchConfig, RaceConfig)
