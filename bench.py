"""Speed and memory of the networks, beside others' ways to compute them. Rows are measured in turn,
A B C A B C .., in one run; ratios are of two measurements of the same round.

    python bench.py                                     # training steps of small networks
    python bench.py step --rows=crate-base,crate-base-released,vit-small
    python bench.py pictures                            # CRATE, as its authors compute it, and ViT
    python bench.py generate --rows=gpt2-base,gpt2-base-uncached --tokens=512
    python bench.py loss                                # over 50,304 words: in parts, and all at once
    python bench.py fits                                # the largest batch in 8 to 140 GiB, computed
    python bench.py needs                               # a step's memory here: computed, and measured
    python bench.py grow                                # a step's cost by width, depth and context
    python bench.py config/race_aot_shakespeare_char.py config/race_gpt2_shakespeare_char.py --target_loss=1.88

A row is a network of scoring/speed.py, such as crate-tiny, aot-mssa-base or gpt2-base, and words
that say how it is computed. Without words it is computed as in a long run of train.py; when it
generates, as in sample.py.

    -plain, -compiled       not compiled, or compiled
    -float32, -bfloat16     precision of matrix products
    -released               CRATE as in its authors' code: float32, not compiled
    -nanogpt                GPT-2 as in nanoGPT: float32, not compiled, no cache
    -uncached               generation without a cache

Each row first runs in a process of its own. Peak memory is what that process grows by (on CUDA its
tensors), start-up the time from the start of Python to the end of the first step, with nothing
compiled before. The share of a matmul's rate counts the operations that our network needs, whatever
the form. Settings of networks, such as --n_layer=2, change every row that has them.

A race trains every config once a round, the round's number as seed, until its validation loss is at
most the target or its iterations end. Seconds are of training, without evaluation, unless stated
otherwise. Any `--KEY=VALUE` that is not a setting of the race goes to every training run.
"""
import csv
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from unittest.mock import patch

import engine  # before torch
import torch

from engine import networks, plots, settings
from engine.checkpoint import write_file
from engine.device import choose_device
from engine.settings import Mistake
from scoring import memory, speed


@dataclass
class BenchConfig:
    rows: str = ''              # what to measure, with commas between; empty takes the command's own
    rounds: int = 5             # how often each row is measured, in turn
    seconds: float = 1.0        # one measurement takes at least so long
    batch_size: int = 0         # pictures or sequences in a step; 0 takes each network's own
    optimizer: str = 'adamw'    # 'adamw' (fused), 'adam', 'lion', 'muon', at a learning rate of 0
    tokens: int = 64            # generate: tokens to write
    alone: bool = True          # run each row in a process of its own too
    device: str = 'auto'        # cpu, cuda, cuda:1, mps; auto takes cuda, then mps, then cpu
    csv: str = ''               # file that gets every measurement
    overwrite: bool = False     # replace that file if it exists


@dataclass
class RaceConfig:
    target_loss: float = 1.88   # validation loss at which a run stops
    rounds: int = 3             # how often each config is trained, in turn


ROWS = {  # of each command
    'step': 'crate-tiny,crate-tiny-plain,crate-tiny-plain-float32,crate-tiny-released,vit-6m,'
            'gpt2-6x384,gpt2-6x384-plain,gpt2-6x384-nanogpt,aot-18x384,aot-18x384-plain,aot-stdlib',
    'pictures': 'crate-tiny-plain,crate-tiny-released,crate-tiny-released-bfloat16,vit-6m-plain',
    'generate': 'gpt2-base,gpt2-base-float32,gpt2-base-uncached,gpt2-base-uncached-float32,gpt2-base-nanogpt,'
                'aot-mhsa-base,aot-mssa-base,aot-mssa-base-float32',
    'loss': 'chunked,full,chunked-float32,full-float32',
    'fits': ','.join(name for name in speed.NETWORKS if '384' not in name and name not in ('vit-6m', 'aot-stdlib')),
    'needs': 'crate-tiny-plain,crate-tiny-plain-float32,gpt2-6x384-plain,gpt2-6x384-plain-float32,aot-18x384-plain,'
             'aot-18x384-plain-float32',
    'grow': 'aot-stdlib-plain,gpt2-6x384-plain'}
COLUMNS = {  # measure: a factor, a format and a head for the table
    'parameters': (1, ',.0f', 'parameters'), 'run': (1e3, ',.1f', 'ms'), 'pictures/s': (1, ',.1f', 'pictures/s'),
    'tokens/s': (1, ',.0f', 'tokens/s'), 'share': (1, '.0%', 'of a matmul'), 'memory': (2 ** -20, ',.0f', 'peak MiB'),
    'cache': (2 ** -20, ',.1f', 'cache MiB'), 'start-up': (1, '.1f', 'start-up s'),
    'ratio': (1, '.2f', 'speed over the first')}
MEMORIES = 8, 24, 80, 140  # GiB
SHAPES = [{name: n} for name, sizes in {'n_embd': (128, 256, 512, 1024), 'n_layer': (3, 6, 12),
                                        'block_size': (64, 256, 1024)}.items() for n in sizes]


# ---- rows in turn ---------------------------------------------------------------------------------------------------

def maker(command, row, c, more):
    """A function without arguments that makes the Work of a row. Raises Mistake now if the row
    does not exist."""
    speed.read(row, command if command == 'loss' else 'generation' if command == 'generate' else 'training', c.device)
    if command == 'loss':
        return partial(speed.loss, row, c.device, c.batch_size or 4, more)
    if command == 'generate':
        return partial(speed.generation, row, c.device, c.tokens, more)
    return partial(speed.training, row, c.device, c.batch_size, c.optimizer, more)


def started(words, **env):
    """A finished process of this Python, whose output is text."""
    env = os.environ | {'PYTHONIOENCODING': 'utf-8'} | env
    return subprocess.run([sys.executable, *words], capture_output=True, encoding='utf-8', errors='replace', env=env)


def alone(command, c, row, argv, **env):
    """{'start-up': seconds, 'memory': bytes} of a row, from a process of its own."""
    start = time.time()
    words = [str(settings.HERE / 'bench.py'), 'alone', command, *argv, f'--rows={row}']
    done = started(words, **env)
    if done.returncode:
        said = done.stderr.strip().splitlines() or ['its process was killed, perhaps for lack of memory']
        raise Mistake(f'{row}: {said[-1].removeprefix("error: ")}')
    ended, peak = json.loads(done.stdout.splitlines()[-1])
    return {'start-up': ended - start} | ({} if math.isnan(peak) else {'memory': peak})


def compare(command, c, more, argv):
    makers = {row: maker(command, row, c, more) for row in c.rows.split(',')}
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, TORCHINDUCTOR_CACHE_DIR=folder):
        found = {row: alone(command, c, row, argv) if c.alone else {} for row in makers}  # compiles what is not there
        works = {row: make() for row, make in makers.items()}
        seconds, rates = speed.in_turn(works, c.rounds, c.seconds, c.device)
    first, measured = {}, []
    for row, work in works.items():
        reference = first.setdefault(work.unit, row)
        found[row] |= {'parameters': work.params} | ({'cache': work.cache} if work.cache else {})
        measured += [(row, str(work.form), '', measure, value) for measure, value in found[row].items()]
        for i, s in enumerate(seconds[row]):
            now = {'run': s, f'{work.unit}/s': work.amount / s}
            if work.flops:
                now['share'] = work.flops / s / rates[work.form.dtype][i]
            if row != reference:
                now['ratio'] = work.amount / s / works[reference].amount * seconds[reference][i]
            measured += [(row, str(work.form), i, measure, value) for measure, value in now.items()]
    print(f'{here(c.device)}; {c.rounds} rounds; a plain matmul reaches ' + ', '.join(
        f'{statistics.median(r) / 1e12:.2f} TFLOP/s in {str(dtype)[6:]}' for dtype, r in rates.items()))
    columns = [m for m in COLUMNS if any(m == measure for *_, measure, _ in measured)]
    line('', '', *(COLUMNS[m][2] for m in columns))
    for row, work in works.items():
        line(row, str(work.form), *(cell(m, [v for r, _, _, k, v in measured if (r, k) == (row, m)]) for m in columns))
    return measured


def cell(measure, values):
    """The median of the rounds, and of ratios also the least and the greatest."""
    factor, form, _ = COLUMNS[measure]
    around = f' ({min(values):{form}} to {max(values):{form}})' if values and measure == 'ratio' else ''
    return f'{statistics.median(values) * factor:{form}}{around}' if values else ''


def line(name, form, *words):
    print(f'{name:<29} {form:<23}' + ''.join(f'  {word:>11}' for word in words), flush=True)


# ---- memory, and cost by size ---------------------------------------------------------------------------------------

def fits(command, c, more, argv):
    print('GiB of weights and moments (held) and of a training step with a batch of 1; largest batch in 0.9 of a '
          'memory.\nbfloat16, AdamW, not compiled; what layers compute is kept or recomputed in the backward pass.')
    line('', 'layers', 'held', 'batch of 1', *(f'{m} GiB' for m in MEMORIES))
    measured = []
    for row in c.rows.split(','):
        base = speed.read(row, 'training', c.device).base
        for form in ('kept', 'recomputed'):
            step = memory.Step(base, recompute=form == 'recomputed', more=more)
            sizes = {'held': step.held(), 'batch of 1': step.bytes(1)}
            most = {f'{m} GiB': step.largest(0.9 * m * 2 ** 30) for m in MEMORIES}
            line(base, form, *(f'{n / 2 ** 30:.2f}' for n in sizes.values()), *most.values())
            measured += [(base, form, '', m, n) for m, n in (sizes | most).items()]
    return measured


def needs(command, c, more, argv):
    print('Peak MiB of a training step: computed; measured while freed memory goes back to the system at once; and '
          'as it comes.')
    line('', '', 'computed', 'measured', '', 'as it comes', '')
    measured = []
    for row in c.rows.split(','):
        form = speed.read(row, 'training', c.device)
        step = memory.Step(form.base, form.dtype, way=form.way, more=more)
        computed = step.bytes(c.batch_size or speed.NETWORKS[form.base][2])
        found = [alone(command, c, row, argv, **env).get('memory', math.nan)
                 for env in ({'MALLOC_MMAP_THRESHOLD_': '65536'}, {})]
        line(row, str(form), f'{computed / 2 ** 20:,.0f}',
             *(word for n in found for word in (f'{n / 2 ** 20:,.0f}', f'{n / computed - 1:+.0%}')))
        measured += [(row, str(form), '', *pair) for pair in zip(('computed', 'measured', 'kept'), (computed, *found))]
    return measured


def grow(command, c, more, argv):
    print(f'{here(c.device)}; ms of a training step with 2,048 tokens; 6 layers of width 512, context 256, except:')
    rows, works = c.rows.split(','), {}
    for i, shape in enumerate(SHAPES):
        given = {'n_layer': 6, 'n_embd': 512, 'block_size': 256} | more | shape
        given['n_head'] = max(1, given['n_embd'] // 64)
        for row in rows:
            sequences = c.batch_size or max(1, 2048 // given['block_size'])
            works[i, row] = speed.training(row, c.device, sequences, c.optimizer, given)
    seconds, _ = speed.in_turn(works, c.rounds, c.seconds, c.device)
    names = [' '.join(f'{k}={v}' for k, v in shape.items()) for shape in SHAPES]
    print(' ' * 20 + ''.join(f'{row:>29}' for row in rows))
    for i, name in enumerate(names):
        print(f'{name:<20}' + ''.join(f'{1e3 * statistics.median(seconds[i, row]):>29,.0f}' for row in rows))
    return [(row, names[i], n, 'run', s) for (i, row), times in seconds.items() for n, s in enumerate(times)]


# ---- a race to a loss -----------------------------------------------------------------------------------------------

def race(config, target, seed, extra):
    """Train one config. Returns its last validation, a row of log.csv, and the seconds that the
    whole process took."""
    with tempfile.TemporaryDirectory() as out:
        start = time.perf_counter()
        done = started([str(settings.HERE / 'train.py'), config, f'--target_loss={target}', f'--seed={seed}',
                        f'--out_dir={out}', *extra])
        whole = time.perf_counter() - start
        if done.returncode:
            raise Mistake(f'{config}: {done.stderr.strip()}')
        with open(Path(out) / 'log.csv', encoding='utf-8', newline='') as f:
            return [row for row in csv.DictReader(f) if row['split'] == 'val'][-1], whole


def race_all(argv):
    configs, typed = ([word for word, alone in settings.marked(argv) if alone == wanted] for wanted in (True, False))
    given, ours = settings.collect(typed), {f.name for f in fields(RaceConfig)}
    c = RaceConfig(**settings.check({k: v for k, v in given.items() if k in ours}, RaceConfig))
    extra = [f'--{k}={value}' for k, (value, _) in given.items() if k not in ours]
    settings.check_least(c, rounds=1)
    own = given.keys() & {'seed', 'out_dir', 'init_from', 'eval_only', 'overwrite'}
    if own:
        raise Mistake(f'a race decides {min(own)} itself; leave it out')
    unknown = [word for word in configs if not word.endswith('.py') and not Path(word).is_file()]
    if unknown:
        raise Mistake(f"'{unknown[0]}' is unknown; say {', '.join(ROWS)}, or name configs to race, such as "
                      'config/race_aot_shakespeare_char.py')
    print(f'{here("cpu")}, validation loss {c.target_loss}, {c.rounds} rounds')
    seconds, missed = {config: [] for config in configs}, set()
    for seed in range(c.rounds):
        for config in configs:
            row, whole = race(config, c.target_loss, seed, extra)
            if row['step'] == '0' and float(row['loss']) <= c.target_loss:
                raise Mistake(f'{config} reaches target_loss={c.target_loss} untrained; set a lower --target_loss')
            seconds[config].append(float(row['seconds']))
            if float(row['loss']) > c.target_loss:
                missed.add(config)
            print(f'seed {seed}  {Path(config).stem:<34} validation loss {float(row["loss"]):.4f} at step '
                  f'{row["step"]} after {seconds[config][-1]:.1f} s of training, {whole:.1f} s in all', flush=True)
    for config in configs:
        note = '; the target was missed, so this is a lower bound: the time of the whole run' * (config in missed)
        print(f'{Path(config).stem:<34} ' + spread(seconds[config], 's of training') + note)
    first, *others = configs
    for config in others:
        ratios = [a / b for a, b in zip(seconds[first], seconds[config])]
        print(f'{Path(first).stem} / {Path(config).stem}: ' + spread(ratios, 'of the time', '.2f') +
              (', at most' if config in missed and first not in missed else ''))


def spread(values, unit, form='.1f'):
    return f'median {statistics.median(values):{form}} {unit} ({min(values):{form}} to {max(values):{form}})'


def here(device):
    cuda = torch.device(device).type == 'cuda'
    chip = torch.cuda.get_device_name(device) if cuda else platform.processor() or platform.machine()
    return f'{chip}, {torch.get_num_threads()} threads, torch {torch.__version__}'


# ---- the command ----------------------------------------------------------------------------------------------------

def main(argv):
    if '--help' in argv or '-h' in argv:
        return print(settings.help_text(__doc__, BenchConfig, RaceConfig))
    words = [word for word, stands_alone in settings.marked(argv) if stands_alone]
    is_child = words[:1] == ['alone']
    command = (words[is_child:] or ['step'])[0]
    if command not in ROWS:
        return race_all(argv)
    for word in words[:1 + is_child]:
        argv = argv[:(i := argv.index(word))] + argv[i + 1:]
    models = {model for model, *_ in speed.NETWORKS.values()}
    given = settings.check(settings.collect(argv), BenchConfig, *(networks.network(name)[1] for name in models))
    c = BenchConfig(**{f.name: given.pop(f.name) for f in fields(BenchConfig) if f.name in given})
    settings.check_least(c, rounds=1, batch_size=0, tokens=1)
    settings.check_ranges(c, {(0, 1e6): ('seconds',)})
    c.rows, c.device = c.rows or ROWS[command], choose_device(c.device)
    if is_child:
        if command == 'needs':
            dtype = str(speed.read(c.rows, 'training', c.device).dtype)[6:]  # what a first step loads does not count
            maker(command, f'aot-stdlib-plain-{dtype}', c, {'n_layer': 1})().run()
        return print(json.dumps(speed.alone(maker(command, c.rows, c, given), c.device)))
    if c.csv:
        plots.check_free(c.csv, c.overwrite, '--csv', ['.csv'])
    measured = {'fits': fits, 'needs': needs, 'grow': grow}.get(command, compare)(command, c, given, argv)
    if c.csv:
        lines = [('command', 'row', 'form', 'round', 'measure', 'value'), *((command, *line) for line in measured)]
        write_file(c.csv, lambda f: csv.writer(f).writerows(lines), advice='give another --csv')


if __name__ == '__main__':
    with settings.one_line_errors():
        main(sys.argv[1:])
