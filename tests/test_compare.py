"""compare.py: who is compared, the runs that are kept and gone on with, and what is said of them."""
import csv
import json
import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
from helpers import ROOT, fails
from scipy import stats

import compare
from scoring import significance


# ---- the rule

@pytest.mark.parametrize('n', [3, 5, 12])
def test_the_interval_is_that_of_scipy(n):
    rng = np.random.default_rng(n)
    first, second = rng.normal(1, 1, n), rng.normal(0, 2, n)
    found = significance.interval((first - second).tolist())
    assert np.allclose(found, stats.ttest_rel(first, second).confidence_interval(0.95))


@pytest.mark.slow
@pytest.mark.parametrize('n_seeds', [3, 5])
def test_equal_networks_get_a_verdict_in_five_of_a_hundred_comparisons(n_seeds):
    """10,000 comparisons of two networks of one quality, whose seeds differ more than they do. Two standard errors of a
    share of 5% are 0.44%."""
    rng = np.random.default_rng(0)
    of_seeds = rng.normal(2, 1, (10_000, n_seeds))
    pairs = of_seeds + 0.1 * rng.normal(size=(2, 10_000, n_seeds))
    said = [significance.verdict('a', 'b', differences) for differences in (pairs[0] - pairs[1]).tolist()]
    share = sum('do not tell' not in line for line in said) / len(said)
    assert abs(share - 0.05) < 0.007
    better = sum('a is better' in line for line in said) / len(said)
    assert abs(better - 0.025) < 0.005


def test_four_pairs_by_a_printed_table_of_students_t():
    """Four differences of -3, -1, 1, 3 have the variance 20/3, and their mean 5/3. The table has 3.182 for three degrees
    of freedom, so the interval ends 4.108 from the mean."""
    for shift, said in ((-4.12, 'is better'), (-4.10, 'do not tell'), (4.10, 'do not tell'), (4.12, 'is worse')):
        assert said in significance.verdict('a', 'b', [shift + d for d in (-3, -1, 1, 3)])


@pytest.mark.parametrize('difference', [0.0, -0.25])
def test_equal_differences_tell_nothing_of_chance(difference):
    assert 'do not tell' in significance.verdict('a', 'b', [difference] * 3)


@pytest.mark.parametrize('n', [1, 2])
def test_fewer_than_three_pairs_give_no_verdict(n):
    said = significance.verdict('a', 'b', [-8.0] * n)
    assert '-8.0000' in said and 'better' not in said and 'worse' not in said


# ---- who is compared

BASE = "model, dataset, batch_size, eval_iters = 'aot', 'tiny', 4, 2\n" \
       'n_layer, n_head, n_embd, block_size = 2, 2, 16, 16\n'


@pytest.fixture
def never(monkeypatch):
    def never(*args, **keywords):
        raise AssertionError
    monkeypatch.setattr(compare, 'train', never)


@pytest.mark.parametrize('words, said', [
    ('aot', 'two different'), ('aot aot', 'two different'), ('aot tots', 'tots'), ('aot no.py', 'no.py'),
    ('aot tost --seed=3', '--seed'), ('aot tost --tost.out_dir=x', '--tost.out_dir'), ('aot tost --seeds=0', 'seeds'),
    ('aot tost --crate.n_layer=1', '--crate.n_layer'), ('aot tost --equal=time', 'time'),
    ('aot tost --n_layers=1', 'n_layers'), ('aot tost --aot.n_layers=1', 'n_layers'), ('aot vit', 'vit'),
    ('aot tost --tost.batch_size=5', '--batch_size=5'), ('aot large.py', '--batch_size=5'),
    ('aot gaps.py', 'different things'), ('aot wide.py', '--block_size=8'), ('dino.py other.py', 'two losses'),
    ('aot tost --equal=weights --aot.n_embd=2 --tost.n_layer=9', '--tost.n_layer')])
def test_what_cannot_be_compared_is_said_before_anything_is_trained(words, said, tiny, quads, never, monkeypatch, tmp_path,
                                                                   capsys):
    monkeypatch.chdir(tmp_path)
    sizes = {word.split('=')[0]: word for word in tiny}
    for name, text in (('large', 'batch_size = 5'), ('gaps', "model, causal = 'crate', False"),
                       ('wide', 'block_size = 8')):
        (tmp_path / f'{name}.py').write_text(BASE + text)
    for name in ('dino', 'other'):
        (tmp_path / f'{name}.py').write_text("model, dataset, patch_size, n_embd, n_head = 'dino', 'quads', 4, 16, 2")
    typed = [sizes['--data_dir']]
    if 'vit' in words:
        typed = tiny[:2]
    elif 'dino' in words:
        typed = quads[:1]
    elif '.py' in words:  # what goes to both would make them equal
        (tmp_path / 'aot.py').write_text(BASE)
        words = words.replace('aot ', 'aot.py ')
    else:
        typed = [word for word in tiny if '_interval' not in word]
    assert said in fails(capsys, compare.main, *words.split(), *typed)
    assert not (tmp_path / 'out').exists()


def test_flags_of_one_network_are_its_own(tiny):
    typed = {'n_layer': '2', 'gpt2.n_layer': '3', 'dataset': 'tiny', 'data_dir': tiny[0].split('=')[1], 'n_head': '2',
             'n_embd': '16', 'block_size': '16'}
    sizes = {name: compare.contestant(name, typed).task.config for name in ('gpt2', 'aot', 'crate')}
    assert [config.n_layer for config in sizes.values()] == [3, 2, 2]
    assert (sizes['gpt2'].attn, sizes['gpt2'].mlp, sizes['gpt2'].bias) == ('mhsa', True, True)


@pytest.mark.parametrize('first, other', [('crate', 'gpt2'), ('gpt2', 'crate'), ('aot', 'tost')])
def test_equal_weights_are_equal_within_two_percent(first, other, tiny):
    typed = dict(word[2:].split('=') for word in tiny) | {'n_embd': '48', 'n_head': '4'}
    one, two = (compare.contestant(name, typed) for name in (first, other))
    wide = compare.as_large_as(one, two)
    assert abs(wide.parameters / one.parameters - 1) <= 0.02
    assert compare.with_words(other, wide.words).parameters == wide.parameters  # what train.py builds


# ---- runs

@pytest.fixture
def runs(monkeypatch, tiny, tmp_path):
    """runs(errors, *words) compares without training, in tmp_path/c. errors: {network: losses, one for each seed, or
    {a word of its command line: loss}}. Returns the folders of what would have been trained."""
    def runs(errors, *words):
        trained = []

        def train(command, out, jobs):
            if '--eval_interval=20' in command:  # to see how long it takes
                name, of_network = 'trial', [1.0]
            else:
                name = out.name.split('_')[0]
                trained.append(out.name)
                of_network = errors[name]
            seed = int(next(word for word in command if word.startswith('--seed=')).split('=')[1])
            if isinstance(of_network, dict):
                loss = next(loss for word, loss in of_network.items() if word in command)
            else:
                loss = of_network[min(seed, len(of_network) - 1)]
            out.mkdir(exist_ok=True)
            rows = [{'step': step, 'split': split, 'loss': loss, 'top1': 1 - loss, 'seconds': float(step)}
                    for step in range(25) for split in ('train', 'val')]
            (out / 'log.jsonl').write_text(''.join(json.dumps(row) + '\n' for row in rows))
            return 0
        monkeypatch.setattr(compare, 'train', train)
        compare.main([*errors, *tiny, *words, f'--out={tmp_path}/c'])
        return trained
    return runs


def table(folder):
    with open(folder / 'results.csv', encoding='utf-8', newline='') as file:
        return list(csv.DictReader(file))


def test_runs_are_paired_by_seed_and_kept(runs, tmp_path, capsys):
    errors = {'aot': [0.9, 1.9, 2.9], 'tost': [1.0, 2.0, 3.0]}
    trained = runs(errors)
    assert trained == [f'{name}_seed{seed}' for seed in range(3) for name in errors]
    out = capsys.readouterr().out
    assert 'aot is better than tost' in out and 'aot - tost: -0.1000' in out
    assert [row['run'] for row in table(tmp_path / 'c')] == trained
    assert 'aot is better than tost' in (tmp_path / 'c' / 'results.md').read_text(encoding='utf-8')
    assert (tmp_path / 'c' / 'curves.png').exists()
    # typed again, with more seeds: only these are trained
    assert runs({'aot': [0.9, 1.9, 2.9, 9.0], 'tost': [1.0, 2.0, 3.0, 1.0]}, '--seeds=4') == ['aot_seed3', 'tost_seed3']
    assert 'do not tell' in capsys.readouterr().out
    assert len(table(tmp_path / 'c')) == 8


def test_each_is_tuned_with_as_many_tries_on_another_seed(runs, tmp_path, capsys):
    best = {'aot': {'--learning_rate=0.003': 1.0, '--learning_rate=0.001': 2.0, '': 7.0},
            'tost': {'--learning_rate=0.003': 5.0, '--learning_rate=0.001': 3.0, '': 7.0}}
    trained = runs(best, '--sweep', 'learning_rate=0.001,0.003', '--seeds=3')
    tuning = [name for name in trained if 'learning_rate' in name]
    assert len(tuning) == 4 and len(trained) == 10 and not any('_seed0' in name for name in tuning)
    rows = {row['run']: row for row in table(tmp_path / 'c')}
    assert float(rows['aot_seed0']['error']) == 1.0 and float(rows['tost_seed2']['error']) == 3.0


def test_a_folder_of_another_comparison_is_refused_with_what_to_type(runs, tmp_path, tiny, capsys):
    errors = {'aot': [1.0] * 3, 'tost': [2.0] * 3}
    runs(errors)
    said = fails(capsys, compare.main, 'aot', 'tost', *tiny, '--tost.n_layer=1', f'--out={tmp_path}/c')
    assert f'python compare.py aot tost {" ".join(tiny)}' in said
    (tmp_path / 'mine').mkdir()
    (tmp_path / 'mine' / 'a.txt').touch()
    assert 'mine' in fails(capsys, compare.main, 'aot', 'tost', *tiny, f'--out={tmp_path}/mine')


def test_a_run_that_fails_ends_the_comparison_and_the_same_command_goes_on(monkeypatch, tmp_path, tiny, capsys):
    codes = iter([0, 0, 0, 3, *[0] * 9])  # of two short runs, and of those that count
    begun = []

    def train(command, out, jobs):
        begun.append(out.name)
        out.mkdir(exist_ok=True)
        rows = [{'step': step, 'split': split, 'loss': 1.0, 'seconds': float(step)} for step in range(25)
                for split in ('train', 'val')]
        (out / 'log.jsonl').write_text(''.join(json.dumps(row) + '\n' for row in rows))
        return next(codes)
    monkeypatch.setattr(compare, 'train', train)
    words = 'aot', 'tost', *tiny, f'--out={tmp_path}/c'
    with pytest.raises(SystemExit) as end:
        compare.main(words)
    assert end.value.code == 3 and begun[2:] == ['aot_seed0', 'tost_seed0'] and 'again' in capsys.readouterr().err
    compare.main(words)
    assert [row['run'] for row in table(tmp_path / 'c')] == begun[2:3] + begun[-5:]


def test_a_try_that_diverges_is_the_worst(runs, monkeypatch, tmp_path, tiny):
    runs({'aot': [5.0], 'tost': [1.0]})  # puts a stand-in for train
    stand_in = compare.train

    def train(command, out, jobs):
        return 2 if '--learning_rate=9' in command else stand_in(command, out, jobs)
    monkeypatch.setattr(compare, 'train', train)
    compare.main(['aot', 'tost', *tiny, '--seeds=1', f'--out={tmp_path}/d', '--sweep', 'learning_rate=9,0.001'])
    assert [row['error'] for row in table(tmp_path / 'd')].count('inf') == 2


@pytest.mark.parametrize('sweep', ['learning_rates=1', 'n_embd=16,32', 'max_iters=3,6', 'batch_size=4,8', 'learning_rate='])
def test_a_sweep_that_makes_no_sense_is_refused_before_anything_is_trained(sweep, tiny, never, tmp_path, capsys):
    fails(capsys, compare.main, 'aot', 'tost', *tiny, f'--sweep={sweep}', f'--out={tmp_path}/c')
    assert not (tmp_path / 'c').exists()


def test_sizes_that_differ_are_said_in_the_verdict(runs, capsys):
    runs({'aot': [1.0] * 3, 'gpt2': [2.0, 2.1, 2.2]})
    line = next(line for line in capsys.readouterr().out.splitlines() if 'better' in line)
    assert 'times the weights of aot' in line


@pytest.mark.slow
def test_a_comparison_that_is_killed_goes_on(tiny, tmp_path):
    """In fact, with processes: the runs are those of a comparison without a kill."""
    words = [sys.executable, ROOT / 'compare.py', 'aot', 'tost', *tiny, '--device=cpu', '--dtype=float32', '--seeds=1']
    environment = os.environ | {'OMP_NUM_THREADS': '1'}
    process = subprocess.Popen([*words, f'--out={tmp_path}/a'], env=environment, stdout=subprocess.PIPE, text=True,
                               start_new_session=True)
    while 'aot_seed0' not in process.stdout.readline():
        pass
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    for name in 'ab':
        subprocess.run([*words, f'--out={tmp_path}/{name}'], env=environment, check=True)
    kept = ('run', 'command', 'seed', 'weights', 'steps', 'chosen_step', 'val_error', 'split', 'error')
    a, b = ([{key: row[key] for key in kept} for row in table(tmp_path / name)] for name in 'ab')
    assert a == b and len(a) == 2 and len({row['error'] for row in a}) == 2


EXAMPLES = re.findall(r'python compare.py (.*)', compare.__doc__)


@pytest.mark.parametrize('words', EXAMPLES)
def test_the_examples_of_help_fit_together(words, tiny, quads, tmp_path, monkeypatch):
    """Up to where they would be trained, on the data of a test."""
    monkeypatch.setattr(compare, 'claim', lambda *_: sys.exit('claims'))
    data = quads[:1] + ['--dataset=quads', '--image_size=8', '--patch_size=4'] if 'shapes' in words else tiny[:2]
    words = [word.replace('config/', f'{ROOT}/config/') for word in words.split()]
    with pytest.raises(SystemExit, match='claims'):
        compare.main([*words, *data, f'--out={tmp_path}/c'])
