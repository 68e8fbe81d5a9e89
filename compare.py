"""Which of some networks learns better? All are trained for the same number of steps, with the same
seeds.

    python compare.py crate gpt2 --dataset=mine --n_layer=4 --n_head=4 --n_embd=128 --block_size=64
    python compare.py crate gpt2 --n_head=4 --n_embd=128 --gpt2.n_layer=4 --equal=weights
    python compare.py config/train_crate_shapes.py config/train_vit_shapes.py --jobs=2
    python compare.py crate vit --dataset=shapes --n_embd=96 --n_head=4 --sweep muon_lr=0.01,0.03

Networks are named by the x of model_x.py, or by config files. A network takes the settings of
`python train.py --model=x`. Any `--KEY=VALUE` that is no setting below goes to all runs, and
`--NAME.KEY=VALUE` to the runs of one network.

A run chooses its checkpoint on the validation split, and is scored on the test split. Where there
is no test, it is scored on validation. The error is 1 - top1 for classes, else the loss. Runs lie
in --out, with results.csv, results.md and curves.png. A comparison that was stopped goes on if the
same command is typed again. scoring/significance.py says when a difference counts.
"""
import csv
import json
import math
import operator
import os
import signal
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

from engine.process import prepare_process

if __name__ == '__main__':
    prepare_process()  # before torch is loaded

import torch

import tasks
from bench import machine, split_settings, words_of
from engine import HERE, plots, settings
from engine.checkpoint import read_log
from engine.device import Device, choose_device
from engine.mistakes import Mistake
from engine.networks import network_class, num_params
from engine.tables import write_table
from engine.writing import write_file
from eval import EvalConfig, Trained, split_to_score, validate
from request import start
from request.build import build_network, config_for
from request.help import commit, run_program
from scoring.significance import verdict
from tasks.files import read_meta
from train import AugmentConfig, TrainConfig, epochs_to_steps
from weights.runs import open_run
from weights.surgery import load_model


@dataclass
class CompareConfig:
    seeds: int = 3          # how often each network is trained, with the seeds 0, 1, ..
    equal: str = 'steps'    # steps, or weights: also give the others the width with as many weights
    sweep: str = ''         # tune each first: a setting and its values, muon_lr=0.01,0.03
    jobs: int = 1           # runs side by side; if there are several, each has one thread
    out: str = ''           # folder to write; empty: out/compare_NAMES


TUNING_SEED = 2 ** 31   # none of the seeds of the comparison
TRIAL_STEPS = 20        # how many steps of each network tell how long it takes
SAME_WEIGHTS = 0.02     # by how much two numbers of weights may differ that count as equal
COLUMNS = ('run', 'network', 'command', 'seed', 'weights', 'steps', 'chosen_step', 'seconds',
           'val_error', 'split', 'error', 'commit', 'machine')
NUMBERS = {'seed': int, 'weights': int, 'steps': int, 'chosen_step': int, 'seconds': float,
           'val_error': float, 'error': float}
CHOSEN_HERE = ('model', 'seed', 'out_dir', 'init_from', 'eval_only', 'overwrite')


class Contestant(NamedTuple):
    """A network that is compared."""
    name: str
    words: list             # of its command line, python train.py WORDS
    parameters: int
    task: tasks.BaseTask    # it says what the error of a validation is; task.c is the TrainConfig
    dataset: Path

    def work(self):
        """The work of a run, in training steps. A validation batch goes forwards alone, so it is
        about a third of the work of a training pass."""
        c = self.task.c
        n_validations = c.max_iters // c.eval_interval + 1
        passes = n_validations * c.eval_iters * c.batch_size / self.task.rows_per_step
        return c.max_iters + passes / 3


def main(argv):
    names, requested = settings.split(argv)
    c, typed = split_settings(requested, CompareConfig)
    settings.check_ranges(c, {(1, 1e6): ['seeds', 'jobs']})
    settings.take_choices(c, equal=('steps', 'weights'))
    check_names(names, typed)

    # ---- who is compared. Nothing is trained yet, so that every mistake comes up now
    first, *rivals = [contestant(name, typed) for name in names]
    for rival in rivals:
        check_same_budget(first, rival)
    if c.equal == 'weights':
        rivals = [as_large_as(first, rival) for rival in rivals]
    length = ['--epochs=0', f'--max_iters={first.task.c.max_iters}']  # that of the first
    contestants = [with_words(entry.name, entry.words + length) for entry in (first, *rivals)]
    tries = {entry.name: tries_of(entry, c.sweep) for entry in contestants}

    # ---- where, and how long
    command = ' '.join(['python compare.py', *map(settings.quoted, argv)])
    folder = Path(c.out or f'out/compare_{"_".join(tries)}')
    claim(folder, contestants, c.sweep, command)
    if c.jobs > 1:
        torch.set_num_threads(1)
    print(f'{machine(choose_device(first.task.c.device))}; {length[1]}, {c.seeds} seeds, in '
          f'{folder}')
    n_runs = len(contestants) * c.seeds + sum(map(len, tries.values()))
    n_missing = n_runs - len(read_table(folder / 'results.csv'))
    if n_missing > 0:
        say_duration(contestants, n_missing, c.jobs)
    start_time = time.monotonic()

    # ---- tune, each with as many tries
    if c.sweep:
        contestants = [best_of(tries[name], folder, c.jobs) for name in tries]

    # ---- train and score
    rows = run_all([(entry, seed) for seed in range(c.seeds) for entry in contestants], folder,
                   c.jobs)
    report = report_of(contestants, rows)
    text = f'```sh\n{command}\n```\n\n{report}\n\n![validation errors](curves.png)\n'
    write_file(folder / 'results.md', lambda f: f.write(text))
    print(f'\n{report}\n')
    draw(contestants, rows, folder)
    print(f'{folder}: results.md, results.csv, curves.png and {n_runs} runs, in '
          f'{duration(time.monotonic() - start_time)}')


def duration(seconds):
    return str(timedelta(seconds=round(seconds)))


# ---- who is compared ----------------------------------------------------------------------------

def short_name(name):
    """What a network is called in tables and folders: the x of model_x.py, or of a config file."""
    return Path(name).stem if name.endswith('.py') else name


def check_names(names, typed):
    """Raises Mistake for names that are too few or called alike, and for settings that are chosen
    here, or that are for no network."""
    known = [short_name(name) for name in names]
    if len(known) < 2 or len(set(known)) < len(known):
        raise Mistake('name two different networks, or config files that are called differently, '
                      'such as: python compare.py crate gpt2')
    for setting in typed:
        owner, dot, key = setting.rpartition('.')
        if dot and owner not in known:
            raise Mistake(f'--{setting} is for none of {", ".join(known)}; say --NAME.{key}')
        if key in CHOSEN_HERE or (dot and key in ('max_iters', 'epochs')):
            raise Mistake(f'compare.py chooses the {key} of each run itself; leave --{setting} out')


def contestant(name, typed):
    """The Contestant of a network or a config file. typed: {setting: value} of all runs, or
    NAME.setting of those of one network."""
    of_all = {}
    of_this = {}
    for setting, value in typed.items():
        owner, _, key = setting.rpartition('.')
        if owner == short_name(name):
            of_this[key] = value
        elif not owner:
            of_all[key] = value
    words = [name] if name.endswith('.py') else [f'--model={name}']
    return with_words(short_name(name), words + words_of(of_all | of_this))


def with_words(name, words):
    """The Contestant of a command line. Raises Mistake where train.py would."""
    request = start.read(*settings.split(words), TrainConfig, AugmentConfig)
    c = request.config
    dataset = tasks.find_data(c.dataset, c.data_dir)
    model = build_network(request, read_meta(dataset), dataset)
    task = tasks.choose(c, request.augment, dataset, model, Device('cpu', 'float32', 'false'))
    epochs_to_steps(c, task)  # from now on c.max_iters is the length of a run
    all_zero = Counter()  # a validation in which each number is 0
    if task.error(all_zero) is None:
        raise Mistake(f'two losses of {name} cannot be compared; train each network with train.py '
                      'and compare its features, with python eval.py --ckpt=RUN --knn=20')
    return Contestant(name, words, num_params(model), task, dataset)


def check_same_budget(first, second):
    """Raises Mistake for two Contestants whose errors cannot be compared, because they do not learn
    the same, or not from as much data in a step, or are not validated alike."""
    if type(first.task) is not type(second.task):
        raise Mistake(f'{first.name} and {second.name} learn different things, so their errors '
                      'cannot be compared; name networks of one task')
    budget_of_first = budget(first.task)
    for name, value in budget(second.task).items():
        if budget_of_first[name] != value:
            raise Mistake(f'{first.name} has {name}={budget_of_first[name]}, {second.name} has '
                          f'{name}={value}, so their errors cannot be compared; give both the same '
                          f'--{name}={value}')


def budget(task):
    """{setting: value}, those that decide what a step and a validation read."""
    names = ('dataset', 'data_dir', 'train_share', 'batch_size', 'gradient_accumulation_steps',
             'eval_iters', 'sparsity', 'curriculum', 'target_loss', 'patience')
    values = {name: getattr(task.c, name) for name in names}
    values |= {name: getattr(task.augment, name) for name in ('eval_view', 'eval_crop')}
    return values | {'block_size': task.tokens_per_row}  # 1 for pictures


def as_large_as(first, rival):
    """A Contestant with the width at which it has as many weights as the first. Raises Mistake if
    no width comes near enough."""
    request = start.read(*settings.split(rival.words), TrainConfig, AugmentConfig)
    model = request.config.model
    meta = read_meta(rival.dataset)
    config = rival.task.config
    has_own_heads = getattr(config, 'head_dim', None) == 0  # n_embd / n_head
    step = config.n_head
    if hasattr(config, 'head_dim'):
        step = 4 if config.task == 'masked_image' else 1  # positions of sines need multiples of 4

    def of_width(width):
        """Settings of the network at a width. Heads get their share of it, rounded."""
        if has_own_heads:
            return {'n_embd': width, 'head_dim': round(width / config.n_head)}
        return {'n_embd': width}

    def count(width):
        """Weights at a width."""
        wide = config_for(model, request.network | of_width(width), meta)
        with torch.device('meta'):  # without memory for them
            return num_params(network_class(model)(wide))

    def distance(width):
        return abs(count(width) / first.parameters - 1)

    widths = range(4 * config.n_head, 20_000, step)
    above = bisect_left(widths, first.parameters, key=count)
    width = min(widths[max(0, above - 1):above + 1], key=distance)  # those on both sides
    if distance(width) > SAME_WEIGHTS:
        raise Mistake(f'--equal=weights: {rival.name} comes nearest with n_embd={width}, where it '
                      f'has {count(width):,} weights and {first.name} {first.parameters:,}; give '
                      f'it another --{rival.name}.n_layer or --{rival.name}.n_head')
    return with_words(rival.name, [*rival.words, *words_of(of_width(width))])


def tries_of(entry, sweep):
    """The Contestants of a sweep `SETTING=VALUE,VALUE`, one for each value; [] without one. Raises
    Mistake where they do not fit, and for a setting that changes size or budget."""
    if not sweep:
        return []
    setting, _, values = sweep.partition('=')
    if entry.task.held_out(entry.dataset) == 'test':
        raise Mistake(f'--sweep chooses on validation, and {entry.dataset} has no val split')
    tries = []
    for value in dict.fromkeys(map(str.strip, values.split(','))):
        one = with_words(entry.name, [*entry.words, f'--{setting}={value}'])
        check_same_budget(entry, one)
        if (one.parameters, one.task.c.max_iters) != (entry.parameters, entry.task.c.max_iters):
            raise Mistake(f'--sweep={setting} changes the size or the length; tune another setting')
        tries.append(one)
    return tries


# ---- before the runs ----------------------------------------------------------------------------

def claim(folder, contestants, sweep, command):
    """Write to comparison.json whose folder this is. Raises Mistake if it holds something else."""
    path = folder / 'comparison.json'
    mine = {'networks': {entry.name: entry.words for entry in contestants}, 'sweep': sweep}
    if path.exists():
        content = json.loads(path.read_text(encoding='utf-8'))
        command_before = content['command']
        if content != mine | {'command': command_before}:
            raise Mistake(f'{folder} holds another comparison: {command_before}; type that, or '
                          'name another --out')
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise Mistake(f'{folder} holds no comparison; name another --out')
    folder.mkdir(parents=True, exist_ok=True)
    write_file(path, lambda f: json.dump(mine | {'command': command}, f, indent=1))


def say_duration(contestants, n_runs, jobs):
    """Train each network for a few steps, and print how long so many runs take by that."""
    words = [f'--max_iters={TRIAL_STEPS}', f'--eval_interval={TRIAL_STEPS}', '--eval_iters=1',
             '--log_interval=1', '--show_samples=false', '--target_loss=0', '--seed=0']
    seconds_of_runs = []
    for entry in contestants:
        with tempfile.TemporaryDirectory() as out:
            start_time = time.monotonic()
            code = train([*entry.words, *words], Path(out), jobs)
            if code != 0:
                sys.exit(code)  # train.py has said why
            elapsed = time.monotonic() - start_time
            seconds = [row['seconds'] for row in read_log(out) if row['split'] == 'train']
        seconds_of_step = (seconds[-1] - seconds[0]) / (TRIAL_STEPS - 1)
        seconds_of_runs.append(elapsed - seconds[-1] + entry.work() * seconds_of_step)
    print(f'{n_runs} runs take about {duration(n_runs * fmean(seconds_of_runs) / jobs)}, by the '
          f'first {TRIAL_STEPS} steps of each network', flush=True)


# ---- runs ---------------------------------------------------------------------------------------

running = []  # processes of train.py


def end_runs(number, frame):
    """Hand a signal on to the runs, which save and end."""
    for process in running:
        process.send_signal(number)


def train(words, out, jobs):
    """Train in a process of its own, which goes on if `out` holds a part of the run. Returns its
    exit code."""
    if (out / 'last.pt').exists():
        words = ['--init_from=resume']
    else:
        words = [*words, '--overwrite=true']  # what a run left that ended before a checkpoint
    environment = dict(os.environ)
    if jobs > 1:
        environment['OMP_NUM_THREADS'] = '1'
    process = subprocess.Popen([sys.executable, HERE / 'train.py', *words, f'--out_dir={out}'],
                               stdout=subprocess.DEVNULL, env=environment)
    running.append(process)
    code = process.wait()
    running.remove(process)
    return code


def run_all(runs, folder, jobs):
    """Train and score all runs, (Contestant, seed) each, and print a line for each. Returns the
    rows of results.csv, {column: value}, in the order of the runs. Those that stand there already
    are not trained again. If a run fails, no other one begins, and the program ends."""
    about = {'commit': commit(), 'machine': machine(choose_device(runs[0][0].task.c.device))}
    table = folder / 'results.csv'
    rows = {row['run']: row for row in read_table(table)}
    failed = []  # exit codes

    def run(name, entry, seed):
        """The row of a run, or None if it fails, or if another one has failed."""
        if failed:
            return None
        code = train([*entry.words, f'--seed={seed}'], folder / name, jobs)
        row = {'run': name, 'network': entry.name, 'seed': seed, 'weights': entry.parameters,
               'command': ' '.join(['python train.py', *map(settings.quoted, entry.words)])} | about
        if code == 0:
            return row | score(entry, folder / name)
        if code == 2 and seed == TUNING_SEED:  # its loss is not finite: the worst of all tries
            return row | {'steps': 0, 'chosen_step': 0, 'seconds': 0, 'val_error': math.inf,
                          'split': 'val', 'error': math.inf}
        failed.append(code)
        return None

    names = []
    with ThreadPoolExecutor(jobs) as pool:
        waiting = []
        for entry, seed in runs:
            last_word = f'_{entry.words[-1].strip("-")}' if seed == TUNING_SEED else f'_seed{seed}'
            names.append(entry.name + last_word)
            if names[-1] not in rows:
                waiting.append(pool.submit(run, names[-1], entry, seed))
        for done in as_completed(waiting):
            row = done.result()
            if row is None:
                continue
            rows[row['run']] = row
            cells_of = operator.itemgetter(*COLUMNS)
            write_table(table, [COLUMNS, *map(cells_of, rows.values())])
            print(f'{row["run"]:<40} {row["split"]} error {row["error"]:.4f} (validation '
                  f'{row["val_error"]:.4f}) at step {row["chosen_step"]:.0f} of '
                  f'{row["steps"]:.0f}, {row["seconds"]:.0f} s of training', flush=True)
    if failed:
        print(f'a run in {folder} has ended with exit code {failed[0]}; to go on, type the same '
              'command again', file=sys.stderr)
        sys.exit(failed[0] if failed[0] > 0 else 1)
    return [rows[name] for name in names]


def score(entry, out):
    """The columns of results.csv that a finished run tells."""
    validations = validations_of(out)
    chosen = min(validations, key=entry.task.error)
    split = entry.task.held_out(entry.dataset)
    if split == 'test':  # there is no val, and what is scored must choose nothing
        chosen = validations[-1]
    columns = {'steps': validations[-1]['step'], 'chosen_step': chosen['step'],
               'seconds': validations[-1]['seconds'], 'val_error': entry.task.error(chosen)}
    if split == 'test' or 'test' not in read_meta(entry.dataset).get('splits', ()):
        return columns | {'split': split, 'error': columns['val_error']}

    run = open_run(out)
    device = Device(entry.task.c.device, entry.task.c.dtype, 'false')
    trained = Trained(run, load_model(run).to(device.name), device)
    eval_config = EvalConfig(ckpt=str(out), data_dir=entry.task.c.data_dir)
    task, _ = split_to_score(eval_config, trained)
    metrics, _ = validate(trained, task)
    return columns | {'split': 'test', 'error': task.error(metrics)}


def validations_of(out):
    return [row for row in read_log(out) if row['split'] == 'val']


def best_of(tries, folder, jobs):
    """The Contestant with the smallest validation error, of those that differ in one setting."""
    rows = run_all([(entry, TUNING_SEED) for entry in tries], folder, jobs)
    errors = [row['val_error'] for row in rows]
    best = tries[errors.index(min(errors))]
    print(f'{best.name} takes {best.words[-1]}, the best of {len(tries)} on validation')
    return best


def read_table(path):
    """The rows of results.csv, {column: value} each; [] if there is none. Raises Mistake for other
    columns."""
    if not path.exists():
        return []
    with open(path, encoding='utf-8', newline='') as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        if tuple(row) != COLUMNS:
            raise Mistake(f'{path} has other columns, of another version; name another --out')
        row |= {name: kind(row[name]) for name, kind in NUMBERS.items()}
    return rows


# ---- what came out ------------------------------------------------------------------------------

def rows_of(entry, rows):
    return [row for row in rows if row['network'] == entry.name]


def report_of(contestants, rows):
    """A table of the networks in Markdown, and a verdict on the first beside each other one."""
    lines = [f'| network | weights | {rows[0]["split"]} error | its spread | seconds |',
             '|---|---|---|---|---|']
    errors = {}
    for entry in contestants:
        runs = rows_of(entry, rows)
        errors[entry.name] = [row['error'] for row in runs]
        spread = f'{stdev(errors[entry.name]):.4f}' if len(runs) > 1 else ''
        lines.append(f'| {entry.name} | {entry.parameters:,} | {fmean(errors[entry.name]):.4f} | '
                     f'{spread} | {fmean(row["seconds"] for row in runs):.0f} |')
    first, *rivals = contestants
    for rival in rivals:
        differences = [a - b for a, b in zip(errors[first.name], errors[rival.name])]
        line = verdict(first.name, rival.name, differences)
        ratio = rival.parameters / first.parameters
        if abs(ratio - 1) > SAME_WEIGHTS:
            line += f' ({rival.name} has {ratio:.2f} times the weights of {first.name})'
        lines += ['', line]
    return '\n'.join(lines)


def draw(contestants, rows, folder):
    """curves.png: the validation error of each network over steps, the mean of its seeds, and a
    band from the lowest to the highest."""
    with plots.house_style():
        figure = plots.empty_figure(7, 4.2)
        panel = figure.subplots()
        for entry in contestants:
            errors_of_runs = []  # {step: error} of each
            for row in rows_of(entry, rows):
                validations = validations_of(folder / row['run'])
                errors_of_runs.append({v['step']: entry.task.error(v) for v in validations})
            steps = sorted(set.intersection(*map(set, errors_of_runs)))
            errors = []  # of all seeds, for each step
            for step in steps:
                errors.append([run[step] for run in errors_of_runs])
            panel.plot(steps, [fmean(e) for e in errors], 'o-', label=entry.name)
            panel.fill_between(steps, [min(e) for e in errors], [max(e) for e in errors], alpha=0.2)
        panel.set(xlabel='step', ylabel='validation error')
        panel.xaxis.set_major_locator(plots.whole_numbers())
        panel.legend()
        plots.save_picture(folder / 'curves.png', figure)


if __name__ == '__main__':
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end_runs)
    run_program(main, __doc__, CompareConfig)
