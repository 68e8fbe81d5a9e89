"""Which of some networks learns better? Each is trained with the same seeds, in as many steps.

    python compare.py crate gpt2 --dataset=mine --n_layer=4 --n_head=4 --n_embd=128 --block_size=64
    python compare.py aot gpt2 --gpt2.n_layer=4 --equal=weights --seeds=5
    python compare.py config/train_crate_shapes.py config/train_vit_shapes.py --jobs=2
    python compare.py crate vit --dataset=shapes --sweep learning_rate=1e-3,3e-3

Networks are named by the x of model_x.py, or by config files. A network takes the settings of
`python train.py --model=x`. Any `--KEY=VALUE` that is no setting below goes to all runs, and
`--NAME.KEY=VALUE` to the runs of one network.

A run chooses its checkpoint on the validation split, and is scored on the test split, or on
validation where there is no test. The error is 1 - top1 for classes, else the loss. Runs lie in
--out, with results.csv, results.md and curves.png. A comparison that was stopped goes on if the
same command is typed again. scoring/significance.py says when a difference counts.
"""
import csv
import json
import os
import subprocess
import sys
import time
from bisect import bisect_left
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

from engine.process import prepare_process

if __name__ == '__main__':
    prepare_process()  # before torch is loaded

import torch

import eval as scores
import tasks
from bench import machine, split_settings, words_of
from engine import HERE, plots, settings
from engine.checkpoint import read_log
from engine.device import Device, choose_device
from engine.mistakes import Mistake
from engine.networks import network_class, num_params
from engine.writing import write_file, write_table
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
    equal: str = 'steps'    # 'weights': the width of the others is chosen for as many weights, too
    sweep: str = ''         # tune first: a setting and its values, learning_rate=1e-3,3e-3
    jobs: int = 1           # runs side by side, each with one thread if they are several
    out: str = ''           # folder to write; empty: out/compare_NAMES


TUNING_SEED = 1337   # none of the seeds of the comparison
PROBE_STEPS = 20     # how many steps of each network tell how long it takes
SAME_WEIGHTS = 0.02  # how much --equal=weights may miss


class Contestant(NamedTuple):
    """A network that is compared."""
    name: str
    words: list             # of its command line, python train.py WORDS
    parameters: int
    task: tasks.BaseTask    # it says what the error of a validation is; task.c is the TrainConfig
    folder: Path            # its dataset

    @property
    def steps_and_validations(self):
        """How many steps a run takes, and the work of its validations: a validation batch is about
        a third of the work of a training pass, which goes forwards and backwards."""
        c = self.task.c
        n_validations = c.max_iters // c.eval_interval + 1
        passes = n_validations * c.eval_iters * c.batch_size / self.task.rows_per_step
        return c.max_iters + passes / 3


def main(argv):
    names, requested = settings.split(argv)
    c, typed = split_settings(requested, CompareConfig)
    settings.check_ranges(c, {(1, 1e30): ['seeds', 'jobs']})
    settings.take_choices(c, equal=('steps', 'weights'))
    check_names(names, typed)

    # ---- who is compared. Nothing is trained, so every mistake comes up now
    first, *others = [contestant(name, typed) for name in names]
    for other in others:
        check_same_budget(first, other)
    if c.equal == 'weights':
        others = [as_large_as(first, other) for other in others]
    # all take as many steps as the first
    steps = ['--epochs=0', f'--max_iters={first.task.c.max_iters}']
    contestants = [entry._replace(words=entry.words + steps) for entry in (first, *others)]
    values = c.sweep.partition('=')[2].split(',') if c.sweep else []

    folder = Path(c.out or f'out/compare_{"_".join(entry.name for entry in contestants)}')
    claim(folder, contestants, c, argv)
    print(f'{machine(choose_device(first.task.c.device))}; {first.task.c.max_iters:,} steps, '
          f'{c.seeds} seeds, in {folder}')
    there = len(read_table(folder / 'results.csv'))
    if there > 0:
        print(f'{there} runs are there already')
    else:
        say_duration(contestants, c.seeds + len(values), folder, c.jobs)
    start_time = time.monotonic()

    # ---- tune, each with as many tries
    if c.sweep:
        setting = c.sweep.partition('=')[0]
        tries = [(entry, TUNING_SEED, [f'--{setting}={value}'])
                 for entry in contestants for value in values]
        rows = run_all(tries, folder, c.jobs)
        contestants = [with_best(entry, rows) for entry in contestants]

    # ---- train and score
    rows = run_all([(entry, seed, []) for seed in range(c.seeds) for entry in contestants],
                   folder, c.jobs)
    draw(contestants, rows, folder)
    report = report_of(contestants, rows)
    command = ' '.join(['python compare.py', *map(settings.quoted, argv)])
    text = f'```sh\n{command}\n```\n\n{report}\n\n![validation errors](curves.png)\n'
    write_file(folder / 'results.md', lambda f: f.write(text))
    print(f'\n{report}\n\n{folder}: results.md, results.csv, curves.png and {len(rows)} runs, in '
          f'{minutes(time.monotonic() - start_time)}')


def minutes(seconds):
    return str(timedelta(seconds=round(seconds)))


# ---- who is compared ----------------------------------------------------------------------------

def short(name):
    """What a network is called in tables and folders: the x of model_x.py, or of a config file."""
    return Path(name).stem if name.endswith('.py') else name


def check_names(names, typed):
    """Raises Mistake for names that are too few or the same, or that settings do not have."""
    known = [short(name) for name in names]
    if len(known) < 2 or len(set(known)) < len(known):
        raise Mistake('name two different networks or config files, such as: python compare.py '
                      'crate gpt2')
    for setting in typed:
        owner, dot, key = setting.rpartition('.')
        if dot and owner not in known:
            raise Mistake(f'--{setting} is for none of {", ".join(known)}; say --NAME.{key}')
        if key in ('seed', 'out_dir', 'init_from'):
            raise Mistake(f'compare.py chooses the {key} of each run itself; leave --{setting} out')


def contestant(name, typed):
    """The Contestant of a network or a config file. typed: {setting: value} of all runs, or
    NAME.setting of those of one network."""
    own = {}
    for setting, value in typed.items():
        owner, _, key = setting.rpartition('.')
        if owner == short(name):
            own[key] = value
    of_all = {setting: value for setting, value in typed.items() if '.' not in setting}
    words = [name] if name.endswith('.py') else [f'--model={name}']
    return with_words(short(name), words + words_of(of_all | own))


def with_words(name, words):
    """The Contestant of a command line. Raises Mistake where train.py would."""
    request = start.read(*settings.split(words), TrainConfig, AugmentConfig)
    c = request.config
    folder = tasks.find_data(c.dataset, c.data_dir)
    model = build_network(request, read_meta(folder), folder)
    task = tasks.choose(c, request.augment, folder, model, Device('cpu', 'float32', 'false'))
    epochs_to_steps(c, task)  # from now on c.max_iters is the length of a run
    all_zero = Counter()  # each metric of it is 0
    if task.error(all_zero) is None:
        raise Mistake(f'two losses of {name} cannot be compared; train each network with train.py '
                      'and compare its features, with python eval.py --ckpt=RUN --knn=20')
    return Contestant(name, words, num_params(model), task, folder)


def check_same_budget(first, second):
    """Raises Mistake for two Contestants whose errors cannot be compared, because they do not learn
    the same, or not from as much data in a step."""
    if type(first.task) is not type(second.task):
        raise Mistake(f'{first.name} and {second.name} learn different things, so their errors '
                      'cannot be compared; name networks of one task')
    budget_of_first = budget(first.task)
    for name, value in budget(second.task).items():
        if budget_of_first[name] != value:
            raise Mistake(f'{first.name} has {name}={budget_of_first[name]}, {second.name} has '
                          f'{name}={value}, so their errors cannot be compared; type '
                          f'--{name}={value}, which goes to both')


def budget(task):
    """{setting: value}, those that decide what a step and a validation read."""
    of_training = ('dataset', 'batch_size', 'gradient_accumulation_steps', 'eval_iters')
    values = {name: getattr(task.c, name) for name in of_training}
    values['block_size'] = task.tokens_per_row  # 1 for pictures
    return values


def as_large_as(first, other):
    """A Contestant with the width at which it has as many weights as the first. Raises Mistake if
    no width comes near enough."""
    def of_width(width):
        """Settings of the network at a width. Heads get their share of it, rounded."""
        if hasattr(other.task.config, 'head_dim'):
            return {'n_embd': width, 'head_dim': round(width / n_head)}
        return {'n_embd': width}

    def count(width):
        """Weights at a width."""
        config = config_for(model, network | of_width(width), meta)
        with torch.device('meta'):  # without memory for them
            return num_params(network_class(model)(config))

    def distance(width):
        return abs(count(width) / first.parameters - 1)

    request = start.read(*settings.split(other.words), TrainConfig, AugmentConfig)
    model = request.config.model
    network = request.network
    meta = read_meta(other.folder)
    n_head = other.task.config.n_head
    step = 1 if hasattr(other.task.config, 'head_dim') else n_head
    widths = range(n_head, 20_000, step)
    above = bisect_left(widths, first.parameters, key=count)
    width = min(widths[max(0, above - 1):above + 1], key=distance)
    if distance(width) > SAME_WEIGHTS:
        raise Mistake(f'--equal=weights: {other.name} comes nearest with n_embd={width}, where it '
                      f'has {count(width):,} weights and {first.name} {first.parameters:,}; give '
                      f'it another --{other.name}.n_layer or --{other.name}.n_head')
    return with_words(other.name, [*other.words, *words_of(of_width(width))])


# ---- before the runs ----------------------------------------------------------------------------

def claim(folder, contestants, c, argv):
    """Make the folder that of this comparison. Raises Mistake if it holds another one."""
    path = folder / 'comparison.json'
    command = ' '.join(['python compare.py', *map(settings.quoted, argv)])
    mine = {'networks': {entry.name: entry.words for entry in contestants}, 'sweep': c.sweep}
    if path.exists():
        held = json.loads(path.read_text(encoding='utf-8'))
        if {key: held[key] for key in mine} != mine:
            raise Mistake(f'{folder} holds another comparison: {held["command"]}; type that, or '
                          'name another --out')
    elif folder.exists() and any(folder.iterdir()):
        raise Mistake(f'{folder} holds no comparison; name another --out')
    folder.mkdir(parents=True, exist_ok=True)
    write_file(path, lambda f: json.dump(mine | {'command': command}, f, indent=1))


def say_duration(contestants, runs_of_each, folder, jobs):
    """Train each network for a few steps, and print how long the comparison takes from that."""
    def probe(entry):
        """Seconds of a run of this network."""
        out = folder / f'probe_{entry.name}'
        start_time = time.monotonic()
        words = [f'--max_iters={PROBE_STEPS}', f'--eval_interval={PROBE_STEPS}', '--eval_iters=1',
                 '--log_interval=1', '--show_samples=false', '--seed=0']
        train([*entry.words, *words], out, jobs)
        whole = time.monotonic() - start_time
        seconds = [row['seconds'] for row in read_log(out) if row['split'] == 'train']
        seconds_of_step = (seconds[-1] - seconds[0]) / (PROBE_STEPS - 1)
        starting = max(0, whole - seconds[-1])
        return starting + entry.steps_and_validations * seconds_of_step

    with ThreadPoolExecutor(jobs) as pool:
        seconds = sum(pool.map(probe, contestants))
    n_runs = runs_of_each * len(contestants)
    print(f'{n_runs} runs take about {minutes(runs_of_each * seconds / jobs)}, by the first '
          f'{PROBE_STEPS} steps of each network', flush=True)


# ---- runs ---------------------------------------------------------------------------------------

def train(words, out, jobs):
    """Train in a process of its own, which goes on if `out` holds a part of the run. If it fails,
    so does this program: train.py has said why."""
    if (out / 'last.pt').exists():
        words = ['--init_from=resume']
    else:
        words = [*words, '--overwrite=true']  # a run that was ended before its first checkpoint
    environment = dict(os.environ)
    if jobs > 1:
        environment['OMP_NUM_THREADS'] = '1'
    done = subprocess.run([sys.executable, HERE / 'train.py', *words, f'--out_dir={out}'],
                          stdout=subprocess.DEVNULL, env=environment)
    if done.returncode != 0:
        sys.exit(done.returncode)


def run_all(runs, folder, jobs):
    """Train and score all runs, (Contestant, seed, more words) each, and print a line for each.
    Returns the rows of results.csv, dicts. Those that stand there already are not trained again."""
    def run(entry, seed, more):
        name = '_'.join([entry.name, *(word.strip('-') for word in more), f'seed{seed}'])
        if name in known:
            return known[name]
        out = folder / name
        train([*entry.words, *more, f'--seed={seed}'], out, jobs)
        return {'run': name, 'network': entry.name, 'words': ' '.join([*entry.words, *more]),
                'seed': seed, 'weights': entry.parameters, **score(entry, out),
                'commit': commit(), 'machine': machine(choose_device(entry.task.c.device))}

    table = folder / 'results.csv'
    known = {row['run']: row for row in read_table(table)}
    rows = []
    with ThreadPoolExecutor(jobs) as pool:
        for row in pool.map(run, *zip(*runs)):
            known[row['run']] = row
            write_table(table, [list(row), *(r.values() for r in known.values())])
            rows.append(row)
            print(f'{row["run"]:<40} {row["split"]} error {float(row["error"]):.4f} (validation '
                  f'{float(row["val_error"]):.4f}) at step {row["chosen_step"]} of {row["steps"]}, '
                  f'{float(row["seconds"]):.0f} s of training', flush=True)
    return rows


def validations_of(out):
    return [row for row in read_log(out) if row['split'] == 'val']


def score(entry, out):
    """The columns of results.csv that a finished run tells."""
    validations = validations_of(out)
    chosen = min(validations, key=entry.task.error)
    split = entry.task.held_out(entry.folder)
    if split == 'test':  # there is no val, and what is scored must choose nothing
        chosen = validations[-1]
    columns = {'steps': validations[-1]['step'], 'chosen_step': chosen['step'],
               'seconds': validations[-1]['seconds'], 'val_error': entry.task.error(chosen)}
    if split == 'test' or 'test' not in read_meta(entry.folder).get('splits', ()):
        return columns | {'split': split, 'error': columns['val_error']}

    c = scores.EvalConfig(ckpt=str(out), data_dir=entry.task.c.data_dir)
    run = open_run(out)
    device = Device(entry.task.c.device, entry.task.c.dtype, 'false')
    trained = scores.Trained(run, load_model(run).to(device.name), device)
    task, _ = scores.split_to_score(c, trained)
    metrics, _ = scores.validate(trained, task)
    return columns | {'split': 'test', 'error': task.error(metrics)}


def with_best(entry, rows):
    """A Contestant with the words of the try that has the smallest validation error."""
    tries = [row for row in rows if row['network'] == entry.name]
    best = min(tries, key=lambda row: float(row['val_error']))
    print(f'{entry.name} takes {best["words"].split()[-1]}, the best of {len(tries)} on validation')
    return entry._replace(words=[*entry.words, best['words'].split()[-1]])


def read_table(path):
    """The rows of a .csv file, {column: text} each; [] if there is none."""
    if not path.exists():
        return []
    with open(path, encoding='utf-8', newline='') as file:
        return list(csv.DictReader(file))


# ---- what came out ------------------------------------------------------------------------------

def report_of(contestants, rows):
    """A table of the networks in Markdown, and a verdict on the first beside each other one."""
    errors = {entry.name: [float(row['error']) for row in rows if row['network'] == entry.name]
              for entry in contestants}
    lines = [f'| network | weights | {rows[0]["split"]} error | its spread | seconds |',
             '|---|---|---|---|---|']
    for entry in contestants:
        own = [row for row in rows if row['network'] == entry.name]
        seconds = fmean(float(row['seconds']) for row in own)
        spread = f'{stdev(errors[entry.name]):.4f}' if len(own) > 1 else ''
        lines.append(f'| {entry.name} | {entry.parameters:,} | {fmean(errors[entry.name]):.4f} | '
                     f'{spread} | {seconds:.0f} |')
    first, *others = contestants
    for other in others:
        differences = [a - b for a, b in zip(errors[first.name], errors[other.name])]
        said = verdict(first.name, other.name, differences)
        ratio = other.parameters / first.parameters
        if abs(ratio - 1) > SAME_WEIGHTS:
            said += f' ({other.name} has {ratio:.2f} times its weights)'
        lines += ['', said]
    return '\n'.join(lines)


def draw(contestants, rows, folder):
    """curves.png: the validation error of each network over steps, the mean of its seeds, and a
    band from the lowest to the highest."""
    with plots.house_style():
        figure = plots.empty_figure(7, 4.2)
        panel = figure.subplots()
        for entry in contestants:
            runs = []
            for row in rows:
                if row['network'] == entry.name:
                    validations = validations_of(folder / row['run'])
                    runs.append({v['step']: entry.task.error(v) for v in validations})
            steps = sorted(set.intersection(*map(set, runs)))
            errors = [[run[step] for run in runs] for step in steps]
            panel.plot(steps, [fmean(e) for e in errors], 'o-', label=entry.name)
            panel.fill_between(steps, [min(e) for e in errors], [max(e) for e in errors], alpha=0.2)
        panel.set(xlabel='step', ylabel='validation error')
        panel.xaxis.set_major_locator(plots.whole_numbers())
        panel.legend()
        plots.save_picture(folder / 'curves.png', figure)


if __name__ == '__main__':
    run_program(main, __doc__, CompareConfig)
