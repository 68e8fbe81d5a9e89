"""Speed, measured honestly: configs trained in turn, A B A B .., to a validation loss; medians and ratios of one run.

    python bench.py config/race_aot_shakespeare_char.py config/race_gpt2_shakespeare_char.py --target_loss=1.88

Each round trains every config once, with the round as its seed, until its validation loss is at most the target.
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
    """Train one config. Returns (seconds of training, seconds of the whole process, step, validation loss); the
    first is None if the target was not reached."""
    with tempfile.TemporaryDirectory() as out:
        start = time.perf_counter()
        done = subprocess.run([sys.executable, str(configurator.HERE / 'train.py'), config, f'--target_loss={target}',
                               f'--seed={seed}', f'--out_dir={out}', *extra], capture_output=True, text=True)
        whole = time.perf_counter() - start
        if done.returncode:
            raise ValueError(f'{config}: {done.stderr.strip()}')
        with open(Path(out) / 'log.csv', newline='') as f:
            last = [row for row in csv.DictReader(f) if row['split'] == 'val'][-1]
    loss = float(last['loss'])
    return float(last['seconds']) if loss <= target else None, whole, int(last['step']), loss


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
    if not configs:
        raise ValueError('name the configs to race, such as config/race_aot_shakespeare_char.py')
    print(f'{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}, '
          f'validation loss {c.target_loss}, {c.rounds} rounds')
    seconds = {config: [] for config in configs}
    for seed in range(c.rounds):
        for config in configs:
            train, whole, step, loss = race(config, c.target_loss, seed, extra)
            seconds[config].append(train)
            said = f'reached {loss:.4f} after {train:.1f} s' if train else f'NOT reached, {loss:.4f} at the end'
            print(f'seed {seed}  {Path(config).stem:<34} {said}, step {step}, whole process {whole:.1f} s', flush=True)
    for config in configs:
        times = seconds[config]
        if None in times:
            print(f'{Path(config).stem}: the target was not reached {times.count(None)} times of {c.rounds}')
            continue
        print(f'{Path(config).stem}: median {statistics.median(times):.1f} s of training ({min(times):.1f} to {max(times):.1f})')
        if config != configs[0] and None not in seconds[configs[0]]:
            ratios = [a / b for a, b in zip(seconds[configs[0]], times)]
            print(f'{Path(configs[0]).stem} / {Path(config).stem}: {statistics.median(ratios):.2f} '
                  f'({min(ratios):.2f} to {max(ratios):.2f})')


if __name__ == '__main__':
    with configurator.one_line_errors():
        main(sys.argv[1:])
