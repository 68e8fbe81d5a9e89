"""Speed, measured honestly: configs trained in turn, A B A B .., to a validation loss; medians and ratios of one run.

    python bench.py config/race_aot_shakespeare_char.py config/race_gpt2_shakespeare_char.py --target_loss=1.88

Each round trains every config once, with the round as its seed, until its validation loss is at most the target or
its iterations end. Seconds are of training alone, without evaluation, unless said otherwise.
Only ratios travel from one machine to another. `--KEY=VALUE` beyond the settings below goes to every training run.
"""
import csv
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, fields
from pathlib import Path

import torch

import configurator


@dataclass
class BenchConfig:
    target_loss: float = 1.88   # validation loss that ends a training run
    rounds: int = 3             # times that each config is trained, interleaved


def race(config, target, seed, extra):
    """Train one config. Returns its last validation as a row of log.csv, and the seconds of the whole process."""
    with tempfile.TemporaryDirectory() as out:
        start = time.perf_counter()
        done = subprocess.run([sys.executable, str(configurator.HERE / 'train.py'), config, f'--target_loss={target}',
                               f'--seed={seed}', f'--out_dir={out}', *extra], capture_output=True, text=True)
        whole = time.perf_counter() - start
        if done.returncode:
            raise ValueError(f'{config}: {done.stderr.strip()}')
        with open(Path(out) / 'log.csv', newline='') as f:
            return [row for row in csv.DictReader(f) if row['split'] == 'val'][-1], whole


def main(argv):
    if '--help' in argv or '-h' in argv:
        print(configurator.help_text(__doc__, BenchConfig))
        return
    configs = [word for word in argv if not word.startswith('--')]
    ours = {f.name for f in fields(BenchConfig)}
    mine, extra = [], []
    for word in argv:
        if word.startswith('--'):
            (mine if word[2:].partition('=')[0] in ours else extra).append(word)
    c = BenchConfig(**configurator.check(configurator.collect(mine), BenchConfig))
    if c.rounds < 1:
        raise ValueError(f'rounds={c.rounds} must be at least 1')
    if not configs:
        raise ValueError('name the configs to race, such as config/race_aot_shakespeare_char.py')
    print(f'{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}, '
          f'validation loss {c.target_loss}, {c.rounds} rounds')
    seconds, missed = {config: [] for config in configs}, set()
    for seed in range(c.rounds):
        for config in configs:
            row, whole = race(config, c.target_loss, seed, extra)
            if row['step'] == '0':
                raise ValueError(f'{config} meets target_loss={c.target_loss} untrained; lower it')
            seconds[config].append(float(row['seconds']))
            if float(row['loss']) > c.target_loss:
                missed.add(config)
            print(f'seed {seed}  {Path(config).stem:<34} validation loss {float(row["loss"]):.4f} at step {row["step"]} '
                  f'after {seconds[config][-1]:.1f} s of training, {whole:.1f} s in all', flush=True)
    first = configs[0]
    for config in configs:
        note = '; the target was missed, so this is the time of the run, less than it would need' if config in missed else ''
        print(f'{Path(config).stem:<34} ' + spread(seconds[config], 's of training') + note)
    for config in configs[1:]:
        ratios = [a / b for a, b in zip(seconds[first], seconds[config])]
        print(f'{Path(first).stem} / {Path(config).stem}: ' + spread(ratios, 'of the time', '.2f') +
              (', at most' if config in missed and first not in missed else ''))


def spread(values, unit, form='.1f'):
    return f'median {statistics.median(values):{form}} {unit} ({min(values):{form}} to {max(values):{form}})'


if __name__ == '__main__':
    with configurator.one_line_errors():
        main(sys.argv[1:])
