"""Which of some networks learns better? All are trained for the same number of steps, with the same
seeds.

    python compare.py crate gpt2 --dataset=mine --n_layer=4 --n_head=4 --n_embd=128 --block_size=64
    python compare.py crate gpt2 --n_head=4 --n_embd=128 --gpt2.n_layer=4 --equal=weights
    python compare.py config/train_crate_shapes.py config/train_vit_shapes.py --jobs=2
    python compare.py crate vit --dataset=shapes --n_embd=96 --n_head=4 --sweep muon_lr=0.01,0.03

Networks are named by the x of model_x.py, or by config files. A network takes the settings of
`python train.py --model=x`. Any `--KEY=VALUE` that is no setting below goes to all runs, and
`--NAME.KEY=VALUE` to the runs of one network.

A run chooses its checkpoint on the validation split, and is scored on the test split. Without a
test split it is scored on validation. Without a validation split its last checkpoint is scored. The
error is 1 - top1 for classes, else the loss. Runs lie in --out, with results.csv, results.md and
curves.png. scoring/significance.py says when a difference counts.

A comparison that was stopped goes on if the same command is typed again. With more --seeds it
trains the runs that are missing; with fewer it reports the first seeds alone. results.csv says on
which machine, and with how many threads, each run was trained, because its seconds depend on that.
"""
import csv
import json
import math
import operator
import os
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from engine.process import prepare_process

if __name__ == '__main__':
    prepare_process()  # before torch is loaded

import numpy as np
import torch

import tasks
from bench import machine, split_settings, words_of
from engine import HERE, plots, settings
from engine.checkpoint import locked, read_log, validations_of
from engine.device import Device, on_stop, say_at_once
from engine.mistakes import Mistake
from engine.networks import config_from, network_class, num_params
from engine.tables import write_table
from engine.writing import write_file
from eval import EvalConfig, Trained, split_to_score, validate
from request import start
from request.build import build_network
from request.help import commit, run_program
from scoring.significance import verdict
from tasks.files import read_meta
from tasks.regression import Prompts
from train import ADVICE, AugmentConfig, TrainConfig, epochs_to_steps
from weights.runs import open_run
from weights.surgery import load_model


@dataclass
class CompareConfig:
    seeds: int = 3          # how often each network is trained, with the seeds 0, 1, ..
    equal: str = 'steps'    # steps, or weights: the others get a width with as many as the first
    sweep: str = ''         # tune each first: a setting and its values, muon_lr=0.01,0.03
    jobs: int = 1           # runs side by side; if there are several, each has one thread
    out: str = ''           # folder to write; empty: out/compare_NAMES


TUNING_SEED = 2 ** 31   # none of the seeds of the comparison
TRIAL_STEPS = 20        # how many steps of each network tell how long it takes
SAME_WEIGHTS = 0.02     # the largest difference, as a share, of sizes that count as equal
COLUMNS = {  # of results.csv, and the type of each
    'run': str, 'network': str, 'command': str, 'seed': int, 'weights': int, 'steps': int,
    'chosen_step': int, 'seconds': float, 'val_error': float, 'split': str, 'error': float,
    'commit': str, 'machine': str}
# what decides how much a run reads, how long it is, and from which validations its checkpoint is
# chosen
BUDGET = ('dataset', 'data_dir', 'train_share', 'block_size', 'n_dims', 'batch_size',
          'gradient_accumulation_steps', 'sparsity', 'curriculum', 'max_iters', 'target_loss',
          'patience', 'eval_interval', 'eval_iters', 'eval_view', 'eval_crop')
CHOSEN_HERE = ('model', 'seed', 'out_dir', 'init_from', 'eval_only', 'overwrite')


@dataclass
class Contestant:
    """A network that is compared."""
    name: str
    words: list             # of its command line, python train.py WORDS
    parameters: int
    task: tasks.BaseTask    # it says what the error of a validation is; task.c is the TrainConfig
    held_out: str           # the split on which its runs validate
    scored: str             # the split on which it is scored

    def work(self):
        """The work of a run, in training steps. A validation batch goes forwards alone, so it is
        about a third of the work of a training pass."""
        c = self.task.c
        rows = c.eval_iters * c.batch_size
        if not isinstance(self.task.valid, Prompts):  # which have no end
            rows = min(rows, len(self.task.valid))
        n_validations = math.ceil(c.max_iters / c.eval_interval) + 1
        return c.max_iters + n_validations * rows / self.task.rows_per_step / 3


def main(argv):
    names, requested = settings.split(argv)
    c, typed = split_settings(requested, CompareConfig)
    settings.check_ranges(c, {(1, 1e6): ['seeds', 'jobs']})
    settings.take_choices(c, equal=('steps', 'weights'))
    # what a network is called in tables and folders: the x of model_x.py, or of a config file
    short_names = [Path(name).stem for name in names]
    check_names(short_names, [*typed, c.sweep.partition('=')[0]])

    # ---- who is compared. Nothing is trained yet, so that every mistake comes up now
    first, *rivals = [contestant(name, typed) for name in names]
    if c.equal == 'weights':
        rivals = [as_large_as(first, rival) for rival in rivals]
    length = ['--epochs=0', f'--max_iters={first.task.c.max_iters}']  # that of the first
    contestants = [with_words(entry.name, entry.words + length) for entry in (first, *rivals)]
    for entry in contestants:
        check_same_budget(contestants[0], entry)
    tries = [tries_of(entry, c.sweep) for entry in contestants]

    # ---- where. Until the end no other compare.py writes there
    if c.jobs > 1:
        torch.set_num_threads(1)  # here
        os.environ['OMP_NUM_THREADS'] = '1'  # in the runs
    command = f'python compare.py {settings.quoted(*argv)}'
    folder = Path(c.out or f'out/compare_{"_".join(short_names)}')
    with claim(folder, contestants, c.sweep, command):
        print(f'{machine(first.task.c.device)}; {length[1]}, {c.seeds} seeds, in '
              f'{folder}')
        compare(contestants, tries, c, folder, command)


def compare(contestants, tries, c, folder, command):
    """Train the contestants, and write what came out. tries: of each contestant, see tries_of."""
    start_time = time.monotonic()

    # ---- how long
    runs = runs_of(contestants, c.seeds)
    for tries_of_network in tries:
        runs |= tuning_runs_of(tries_of_network)
    n_missing = len(runs.keys() - read_table(folder / 'results.csv').keys())
    if n_missing:
        say_duration(contestants, n_missing, c.jobs)

    # ---- tune, each with as many tries
    if c.sweep:
        contestants = [best_of(tries_of_network, folder, c.jobs) for tries_of_network in tries]

    # ---- train and score
    rows = run_all(runs_of(contestants, c.seeds), folder, c.jobs)
    report = report_of(contestants, rows)
    text = f'```sh\n{command}\n```\n\n{report}\n\n![validation errors](curves.png)\n'
    write_file(folder / 'results.md', lambda f: f.write(text))
    print(f'\n{report}\n')
    draw(contestants, rows, folder)
    print(f'{folder} holds results.md, results.csv, curves.png and the runs; this took '
          f'{(time.monotonic() - start_time) / 60:.1f} minutes')


# ---- who is compared ----------------------------------------------------------------------------

def check_names(names, typed):
    """Raises Mistake for names that are too few or alike, and for settings that are chosen here, or
    that are for no network. names: those of tables and folders, see main."""
    if len(names) < 2 or len(set(names)) < len(names):
        raise Mistake('name two different networks, or config files that are called differently, '
                      'such as: python compare.py crate gpt2')
    for setting in typed:
        owner, dot, key = setting.rpartition('.')
        if dot and owner not in names:
            raise Mistake(f'--{setting} is for none of {", ".join(names)}; say --NAME.{key}')
        if key in CHOSEN_HERE or (dot and key in ('max_iters', 'epochs')):
            raise Mistake(f'compare.py chooses the {key} of each run itself; leave --{setting} out')


def contestant(name, typed):
    """The Contestant of a network or a config file. typed: {setting: value} of all runs, or
    NAME.setting of those of one network."""
    short_name = Path(name).stem
    values = {}
    for owner in ('', short_name):  # its own settings win over those of all
        for setting, value in typed.items():
            owner_of_setting, _, key = setting.rpartition('.')
            if owner_of_setting == owner:
                values[key] = value
    word = name if name.endswith('.py') else f'--model={name}'
    return with_words(short_name, [word, *words_of(values)])


def with_words(name, words):
    """The Contestant of a command line. Raises Mistake where train.py would."""
    request = start.read(*settings.split(words), TrainConfig, AugmentConfig)
    c = request.config
    dataset = tasks.find_data(c.dataset, c.data_dir)
    meta = read_meta(dataset)
    model = build_network(request, meta, dataset)
    # a device, precision or compiler that is missing here is a mistake that comes up now
    task = tasks.choose(c, request.augment, dataset, model,
                        Device(c.device, c.dtype, c.compile))
    epochs_to_steps(c, task)  # from now on c.max_iters is the length of a run
    if task.error(Counter()) is None:  # of a validation in which each number is 0: DINO's has none
        raise Mistake(f'two losses of {name} cannot be compared; train each network with train.py '
                      'and compare its features, with python eval.py --ckpt=RUN --knn=20')
    held_out = task.held_out(dataset)
    scored = 'test' if 'test' in meta['splits'] else held_out
    return Contestant(name, words, num_params(model), task, held_out, scored)


def check_same_budget(first, second):
    """Raises Mistake for two Contestants whose errors cannot be compared, because they do not learn
    the same, or not from as much data in a step, or are not validated alike."""
    if type(first.task) is not type(second.task):
        raise Mistake(f'{first.name} and {second.name} learn different things, so their errors '
                      'cannot be compared; name networks of one task')
    values_of_first = settings_of(first.task)
    values = settings_of(second.task)
    for name in BUDGET:
        if values_of_first[name] != values[name]:
            raise Mistake(f'{first.name} has {name}={values_of_first[name]}, {second.name} has '
                          f'{name}={values[name]}, so their errors cannot be compared; give all '
                          f'runs the same --{name}={values[name]}')


def settings_of(task):
    """{setting: value} of a run, with the sizes of what it reads."""
    sizes = {'block_size': task.tokens_per_row, 'n_dims': 0}
    if isinstance(task.valid, Prompts):  # its network says how long and how wide prompts are
        sizes = vars(task.config)
    return vars(task.c) | vars(task.augment) | sizes


def as_large_as(first, rival):
    """A Contestant with the width at which it has as many weights as the first. Raises Mistake if
    no width comes near enough."""
    Network = network_class(rival.task.c.model)
    config = rival.task.config
    step = 4 if config.task == 'masked_image' else 1  # positions of sines need multiples of 4
    head_dim = getattr(config, 'head_dim', None)
    if head_dim is None:  # the heads can only be a share of the width
        step = math.lcm(step, config.n_head)

    def of_width(width):
        """Settings of the network at a width."""
        if head_dim == 0:  # n_embd / n_head
            return {'n_embd': width, 'head_dim': round(width / config.n_head)}
        return {'n_embd': width}

    def count(width):
        """Weights at a width."""
        wide = config_from(type(config), vars(config) | of_width(width))
        with torch.device('meta'):  # without memory for them
            return num_params(Network(wide))

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
    if entry.held_out == 'test':
        raise Mistake('--sweep chooses on validation, and the dataset has no val split; leave it '
                      'out')
    tries = []
    for value in values.split(','):
        one = with_words(entry.name, [*entry.words, f'--{setting}={value}'])
        check_same_budget(entry, one)
        if one.parameters != entry.parameters:
            raise Mistake(f'--sweep={setting} changes the size; tune another setting')
        tries.append(one)
    return tries


# ---- before the runs ----------------------------------------------------------------------------

def claim(folder, contestants, sweep, command):
    """Write to comparison.json whose folder this is. Returns the lock of the folder, see `locked`.
    Raises Mistake if it holds something else, or if another process has the lock."""
    path = folder / 'comparison.json'
    mine = {'networks': {entry.name: entry.words for entry in contestants}, 'sweep': sweep,
            'command': command}
    if path.exists():
        before = json.loads(path.read_text(encoding='utf-8'))
        if before | {'command': command} != mine:  # with more --seeds it is the same comparison
            raise Mistake(f'{folder} holds another comparison: {before["command"]}; type that, or '
                          'name another --out')
    elif any(folder.glob('[!.]*')):
        raise Mistake(f'{folder} holds no comparison; name another --out')
    lock = locked(folder)
    write_file(path, lambda f: json.dump(mine, f))
    return lock


def say_duration(contestants, n_runs, jobs):
    """Train each network for a few steps, and print how long so many runs take by that."""
    words = [f'--max_iters={TRIAL_STEPS}', f'--eval_interval={TRIAL_STEPS}', '--eval_iters=1',
             '--log_interval=1', '--show_samples=false', '--target_loss=0']
    seconds_of_runs = []
    for entry in contestants:
        with tempfile.TemporaryDirectory() as out:
            start_time = time.monotonic()
            code, _ = train([*entry.words, *words], out)
            if code:
                sys.exit(code)  # train.py has said why
            elapsed = time.monotonic() - start_time  # much of it is no training
            first, *_, last = (row['seconds'] for row in read_log(out) if row['split'] == 'train')
        seconds_of_runs.append(elapsed + entry.work() * (last - first) / (TRIAL_STEPS - 1))
    print(f'{n_runs} runs take about {n_runs * fmean(seconds_of_runs) / jobs / 60:.1f} minutes, '
          f'by the first {TRIAL_STEPS} steps of each network', flush=True)


# ---- runs ---------------------------------------------------------------------------------------

running = []  # processes of train.py
failed = []  # exit codes; as soon as there is one, no other run begins


def end_runs(number, frame):
    """Hand a signal on to the runs, which save and end. Without runs the program ends at once, or
    as soon as the run that is being scored is done."""
    if not running:
        sys.exit(128 + number)
    failed.append(128 + number)
    say_at_once('stopping the runs')
    for process in running:
        process.send_signal(number)


def train(words, out):
    """Train in a process of its own, which goes on if `out` holds a part of the run. Returns the
    exit code of the process, and what it wrote on standard error. That is printed at its end."""
    if Path(out, 'last.pt').exists():
        words = ['--init_from=resume']
    else:
        words = [*words, '--overwrite=true']  # over the files of a run without a checkpoint
    process = subprocess.Popen([sys.executable, HERE / 'train.py', *words, f'--out_dir={out}'],
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                               errors='replace')
    running.append(process)
    _, messages = process.communicate()
    running.remove(process)
    sys.stderr.write(messages)
    return process.returncode, messages


def runs_of(contestants, n_seeds):
    """{name: (Contestant, seed)} of the runs that are compared, in the order of their seeds."""
    runs = {}
    for seed in range(n_seeds):
        for entry in contestants:
            runs[f'{entry.name}_seed{seed}'] = entry, seed
    return runs


def tuning_runs_of(tries):
    """{name: (Contestant, seed)} of the runs that try values of a setting. A run is called by the
    network and by the value that it tries."""
    return {f'{entry.name}_{entry.words[-1].strip("-")}': (entry, TUNING_SEED) for entry in tries}


def run_all(runs, folder, jobs):
    """Train and score all runs, {name: (Contestant, seed)}, and print a line for each. Returns the
    rows of results.csv, {column: value}, in the order of the runs. Those that stand there already
    are not trained again. If a run fails, no other one begins, and the program ends."""
    table = folder / 'results.csv'
    rows = read_table(table)
    failed.clear()

    def run(name):
        """The row of a run, or None if it fails, or if another one has failed."""
        if failed:
            return None
        entry, seed = runs[name]
        code, messages = train([*entry.words, f'--seed={seed}'], folder / name)
        row = {'run': name, 'network': entry.name, 'seed': seed, 'weights': entry.parameters,
               'command': f'python train.py {settings.quoted(*entry.words)}', 'commit': commit(),
               'machine': machine(entry.task.c.device)}
        if code == 0:
            return row | score(entry, folder / name)
        # train.py gives this advice where a loss is not finite. Such a try is the worst of all
        if seed == TUNING_SEED and ADVICE in messages:
            return row | {'steps': 0, 'chosen_step': 0, 'seconds': 0, 'val_error': math.inf,
                          'split': 'val', 'error': math.inf}
        failed.append(code)
        return None

    with ThreadPoolExecutor(jobs) as pool:
        missing = [name for name in runs if name not in rows]
        for row in filter(None, pool.map(run, missing)):
            rows[row['run']] = row
            cells_of = operator.itemgetter(*COLUMNS)
            write_table(table, [COLUMNS, *map(cells_of, rows.values())])
            print(f'{row["run"]:<40} {row["split"]} error {row["error"]:.4f} (validation '
                  f'{row["val_error"]:.4f}) at step {row["chosen_step"]} of {row["steps"]}, '
                  f'{row["seconds"]:.0f} s of training', flush=True)
    if failed:
        print(f'a run in {folder} has ended with exit code {failed[0]}; to go on, type the same '
              'command again', file=sys.stderr)
        sys.exit(max(failed[0], 1))
    return [rows[name] for name in runs]


def score(entry, out):
    """The columns of results.csv that a finished run tells."""
    validations = validations_of(out)
    last = validations[-1]
    chosen = min(validations, key=entry.task.error)
    if entry.held_out == 'test':  # there is no val, and the test split must not choose
        chosen = last
    val_error = error = entry.task.error(chosen)
    if entry.scored != entry.held_out:
        error = test_error(entry, out)
    return {'steps': last['step'], 'chosen_step': chosen['step'], 'seconds': last['seconds'],
            'val_error': val_error, 'split': entry.scored, 'error': error}


def test_error(entry, out):
    """The error of a run's best.safetensors on the test split."""
    run = open_run(out)
    c = entry.task.c
    device = Device(c.device, c.dtype, 'false')
    trained = Trained(run, load_model(run).to(device.name), device)
    task, _ = split_to_score(EvalConfig(ckpt=str(out), data_dir=c.data_dir), trained)
    metrics, _ = validate(trained, task)
    return task.error(metrics)


def best_of(tries, folder, jobs):
    """The Contestant with the smallest validation error, of those that differ in one setting."""
    rows = run_all(tuning_runs_of(tries), folder, jobs)
    errors = [row['val_error'] for row in rows]
    best = tries[np.argmin(errors)]
    print(f'{best.name} takes {best.words[-1]}, the best of {len(tries)} on validation')
    return best


def read_table(path):
    """The rows of results.csv, {name of a run: {column: value}}; {} if there is none. Raises
    Mistake for other columns."""
    rows = {}
    if not path.exists():
        return rows
    with open(path, encoding='utf-8', newline='') as file:
        for row in csv.DictReader(file):
            if list(row) != list(COLUMNS):
                raise Mistake(f'{path} has other columns, of another version; move it away')
            rows[row['run']] = {name: kind(row[name]) for name, kind in COLUMNS.items()}
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
    """curves.png: the validation error of each network over the steps, the mean of its runs, and a
    band from the lowest to the highest. It ends where the first of the runs ends."""
    with plots.house_style():
        figure = plots.empty_figure(7, 4.2)
        panel = figure.subplots()
        for entry in contestants:
            runs = [validations_of(folder / row['run']) for row in rows_of(entry, rows)]
            steps = [validation['step'] for validation, *_ in zip(*runs)]
            errors = [list(map(entry.task.error, validations)) for validations in zip(*runs)]
            panel.plot(steps, np.mean(errors, 1), 'o-', label=entry.name)
            panel.fill_between(steps, np.min(errors, 1), np.max(errors, 1), alpha=0.2)
        panel.set(xlabel='step', ylabel='validation error')
        panel.legend()
        plots.save_picture(folder / 'curves.png', figure)


if __name__ == '__main__':
    on_stop(end_runs)
    run_program(main, __doc__, CompareConfig)
