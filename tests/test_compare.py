"""compare.py: who is compared, the runs that are kept and gone on with, and what is said of them."""
import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import ROOT, PreparedPopen, fails
from scipy import stats

import compare
from scoring import significance


# ---- the rule

def test_the_interval_is_that_of_scipy():
    rng = np.random.default_rng(5)
    first = rng.normal(1, 1, 5)
    second = rng.normal(0, 2, 5)
    found = significance.interval((first - second).tolist())
    assert np.allclose(found, stats.ttest_rel(first, second).confidence_interval(0.95))


@pytest.mark.slow
@pytest.mark.parametrize('n_seeds', [3, 5])
def test_equal_networks_get_a_verdict_in_five_of_a_hundred_comparisons(n_seeds):
    """10,000 comparisons of two networks of one quality, whose seeds differ more than they do. Two
    standard errors of a share of 5% are 0.44%."""
    rng = np.random.default_rng(0)
    of_seeds = rng.normal(2, 1, (10_000, n_seeds))
    first, second = of_seeds + 0.1 * rng.normal(size=(2, 10_000, n_seeds))
    said = [significance.verdict('a', 'b', pairs) for pairs in (first - second).tolist()]

    share = sum('do not tell' not in line for line in said) / len(said)
    assert abs(share - 0.05) < 0.007
    better = sum('a is better' in line for line in said) / len(said)
    assert abs(better - 0.025) < 0.005


def test_four_pairs_by_a_printed_table_of_students_t():
    """Four differences of -3, -1, 1, 3 have the variance 20/3, and their mean 5/3. The table has 3.182 for three degrees
    of freedom, so the interval ends 4.108 from the mean."""
    for shift, said in ((-4.12, 'is better'), (-4.10, 'do not tell'), (4.10, 'do not tell'),
                        (4.12, 'is worse')):
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
    ('aot', 'two different'),
    ('aot aot', 'two different'),
    ('aot tots', 'tots'),
    ('aot tost --seed=3', '--seed'),
    ('aot tost --tost.out_dir=x', '--tost.out_dir'),
    ('aot tost --sweep=out_dir=a,b', '--out_dir'),
    ('aot tost --crate.n_layer=1', '--crate.n_layer'),
    ('aot tost --sweep=tots.n_layer=1,2', 'tots'),
    ('aot tost --seeds=0', 'seeds'),
    ('aot tost --equal=time', 'time'),
    ('aot tost --device=cudo', '--device=auto'),
    ('aot tost --aot.n_layers=1', 'n_layers'),
    ('aot vit', 'vit'),
    ('aot gaps.py', 'different things'),
    ('dino.py other.py', 'two losses'),
    ('aot tost --tost.batch_size=5', '--batch_size=5'),
    ('aot epochs.py', '--eval_interval='),
    ('aot wide.py', '--block_size=8'),
    ('aot gpt2 --dataset=linear --block_size=82 --gpt2.n_dims=3', '--n_dims=3'),
    ('aot tost --equal=weights --aot.n_embd=2 --tost.n_layer=9', '--tost.n_layer'),
])
def test_what_cannot_be_compared_is_said_before_anything_is_trained(
        words, said, tiny, quads, never, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    for name, text in (('gaps', "model, causal = 'crate', False"), ('wide', 'block_size = 8'),
                       ('epochs', 'eval_epochs = 0.01')):
        (tmp_path / f'{name}.py').write_text(BASE + text)
    for name in ('dino', 'other'):
        (tmp_path / f'{name}.py').write_text(
            "model, dataset, patch_size, n_embd, n_head = 'dino', 'quads', 4, 16, 2")
    typed = tiny[:1]
    if 'vit' in words:
        typed = tiny[:2]
    elif 'dino' in words:
        typed = quads[:1]
    elif 'linear' in words:
        typed = ['--n_layer=1', '--n_embd=16', '--n_head=2']
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


@pytest.mark.parametrize('heads', [1, 6])
@pytest.mark.parametrize('name', ['crate_mae', 'vit_mae', 'crate', 'vit'])
def test_the_width_of_a_network_is_found_again(name, heads, quads):
    """The two autoencoders need widths that are multiples of 4. In vit_mae and vit the heads share the width."""
    typed = dict(word[2:].split('=') for word in quads[:2])
    typed |= {'patch_size': '4', 'n_layer': '1', 'n_head': str(heads)}
    if name == 'vit_mae':
        typed |= {'decoder_n_layer': '1', 'decoder_n_head': '2', 'decoder_n_embd': '16'}
    one, two = (compare.contestant(name, typed | {'n_embd': width}) for width in ('144', '24'))
    wide = compare.as_large_as(one, two)
    assert wide.task.config.n_embd == 144 and wide.parameters == one.parameters


@pytest.mark.parametrize('first, other', [('crate', 'gpt2'), ('aot', 'tost')])
def test_equal_weights_are_equal_within_two_percent(first, other, tiny):
    typed = dict(word[2:].split('=') for word in tiny) | {'n_embd': '48', 'n_head': '4'}
    one, two = (compare.contestant(name, typed) for name in (first, other))
    wide = compare.as_large_as(one, two)
    assert abs(wide.parameters / one.parameters - 1) <= 0.02
    assert compare.with_words(other, wide.words).parameters == wide.parameters  # train.py builds it


@pytest.mark.parametrize('name, eval_iters', [('crate', '50'), ('gpt2', '2'), ('aot', '2')])
def test_a_validation_is_as_much_work_as_the_rows_that_it_reads(name, eval_iters, tiny, quads):
    """A split of pictures may be shorter than the validation that is asked for."""
    words = {'crate': [*quads[:2], '--patch_size=4'], 'gpt2': tiny, 'aot': ['--dataset=linear']}
    typed = dict(word[2:].split('=') for word in words[name])
    typed |= {'n_layer': '1', 'n_head': '2', 'n_embd': '8', 'batch_size': '4', 'max_iters': '30',
              'eval_interval': '10', 'eval_iters': eval_iters}
    one = compare.contestant(name, typed)
    rows = sum(len(x) for x, _ in one.task.validation_batches())
    n_validations = 4   # after 0, 10, 20 and 30 steps; each has no backward pass
    assert one.work() == pytest.approx(30 + n_validations * rows / one.task.rows_per_step / 3)


# ---- runs

def write_log(out, loss):
    """The log of a run that has the same loss in each of 25 validations."""
    os.makedirs(out, exist_ok=True)
    with open(f'{out}/log.jsonl', 'w') as file:
        for step in range(25):
            for split in ('train', 'val'):
                row = {'step': step, 'split': split, 'loss': loss, 'top1': 1 - loss, 'seconds': float(step)}
                file.write(json.dumps(row) + '\n')


def is_trial(command):
    """Whether a network is trained to see how long it takes."""
    return '--eval_interval=20' in command


@pytest.fixture
def runs(monkeypatch, tiny, tmp_path):
    """runs(errors, *words) compares without training, in tmp_path/c. errors: {network: losses, one for each seed, or
    {a word of its command line: loss}}. Returns the folders of what would have been trained."""
    def runs(errors, *words):
        trained = []

        def train(command, out):
            loss = 1.0
            if not is_trial(command):
                trained.append(out.name)
                of_network = errors[out.name.split('_')[0]]
                if isinstance(of_network, dict):
                    loss = next(loss for word, loss in of_network.items() if word in command)
                else:
                    seed = int(command[-1].removeprefix('--seed='))
                    loss = of_network[min(seed, len(of_network) - 1)]
            write_log(out, loss)
            return 0, ''
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


def test_with_fewer_seeds_the_first_ones_are_reported_and_nothing_is_trained(
        runs, tmp_path, monkeypatch, capsys):
    errors = {'aot': [1.0, 2.0, 9.0], 'tost': [2.0, 4.0, 1.0]}
    runs(errors)
    before = table(tmp_path / 'c')
    capsys.readouterr()

    monkeypatch.setattr(compare, 'say_duration', None)  # to say it, networks are trained
    assert runs(errors, '--seeds=2') == []
    report = (tmp_path / 'c' / 'results.md').read_text(encoding='utf-8')
    assert '--seeds=2' in report
    assert re.search(r'\| aot \|.*\| 1.5000 \|', report)
    assert re.search(r'\| tost \|.*\| 3.0000 \|', report)
    assert report.split('```')[2].split('![')[0].strip() in capsys.readouterr().out
    assert table(tmp_path / 'c') == before


def test_it_says_how_long_those_runs_take_that_are_missing(runs, tmp_path, monkeypatch):
    errors = {'aot': [1.0], 'tost': [2.0]}
    runs(errors)
    path = tmp_path / 'c' / 'results.csv'
    lines = path.read_text(encoding='utf-8').splitlines()
    kept = [line for line in lines if not line.startswith('tost_seed1')]
    path.write_text('\n'.join(kept), encoding='utf-8')

    said = []
    monkeypatch.setattr(compare, 'say_duration', lambda _, n_runs, jobs: said.append(n_runs))
    assert len(runs(errors, '--seeds=5')) == 5
    assert said == [5]


def test_two_jobs_train_the_same_runs(runs, tmp_path, monkeypatch):
    monkeypatch.setenv('OMP_NUM_THREADS', '1')  # set back afterwards
    names = [f'{name}_seed{seed}' for seed in range(3) for name in ('aot', 'tost')]
    assert sorted(runs({'aot': [1.0], 'tost': [2.0]}, '--jobs=2')) == sorted(names)
    assert [row['run'] for row in table(tmp_path / 'c')] == names


# ---- the folder

def test_a_folder_of_another_comparison_is_refused_with_what_to_type(runs, tmp_path, tiny, capsys):
    errors = {'aot': [1.0] * 3, 'tost': [2.0] * 3}
    runs(errors)
    for words in (['--tost.n_layer=1'], ['--sweep=learning_rate=1e-3']):
        said = fails(capsys, compare.main, 'aot', 'tost', *tiny, *words, f'--out={tmp_path}/c')
        assert f'python compare.py aot tost {" ".join(tiny)}' in said


def test_what_is_no_folder_of_a_comparison_is_left_as_it_is(never, tmp_path, tiny, capsys):
    (tmp_path / 'mine').mkdir()
    (tmp_path / 'mine' / 'a.txt').touch()
    (tmp_path / 'file').touch()
    for name in ('mine', 'file', 'file/c'):
        assert name in fails(capsys, compare.main, 'aot', 'tost', *tiny, f'--out={tmp_path}/{name}')
    assert sorted(path.name for path in tmp_path.rglob('*')) == ['a.txt', 'file', 'mine']


TAKE_LOCK = 'import fcntl, sys; f = open(sys.argv[1], "a"); fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)'


def is_free(folder):
    """Whether another process may write there."""
    return subprocess.run([sys.executable, '-c', TAKE_LOCK, folder / '.lock'], capture_output=True).returncode == 0


def test_as_long_as_it_runs_no_other_process_may_write_to_its_folder(failing, tmp_path):
    failing.is_free = lambda: is_free(tmp_path / 'c')
    failing({}, '--seeds=1')
    with pytest.raises(SystemExit):
        failing({'aot_seed1': (3, '')}, '--seeds=2')
    assert len(failing.free) == 3 and not any(failing.free)
    assert is_free(tmp_path / 'c')


def test_a_comparison_that_runs_already_is_not_disturbed(tmp_path, tiny, never, capsys):
    (tmp_path / 'c').mkdir()
    hold = TAKE_LOCK + '; print(flush=True); sys.stdin.read()'
    other = subprocess.Popen([sys.executable, '-c', hold, tmp_path / 'c' / '.lock'],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    other.stdout.readline()
    try:
        said = fails(capsys, compare.main, 'aot', 'tost', *tiny, f'--out={tmp_path}/c')
        assert f'{tmp_path}/c' in said
    finally:
        other.communicate()
    assert [path.name for path in (tmp_path / 'c').iterdir()] == ['.lock']


# ---- runs that fail

@pytest.fixture
def failing(monkeypatch, tiny, tmp_path):
    """failing(ends, *words) compares aot with tost without training, in tmp_path/c. ends: {name of a run: (its exit
    code, what it says)} of those that fail. failing.begun: the names of the runs that began; failing.free: what
    failing.is_free() returned in each."""
    def failing(ends, *words):
        def train(command, out):
            name = os.path.basename(out)
            write_log(out, 1.0)
            if not is_trial(command):
                failing.begun.append(name)
                failing.free.append(failing.is_free())
            return ends.get(name, (0, ''))
        monkeypatch.setattr(compare, 'train', train)
        compare.main(['aot', 'tost', *tiny, *words, f'--out={tmp_path}/c'])

    failing.begun = []
    failing.free = []
    failing.is_free = bool
    return failing


@pytest.mark.parametrize('code, code_of_comparison', [(3, 3), (-9, 1)])
def test_a_run_that_fails_ends_the_comparison_and_the_same_command_goes_on(
        code, code_of_comparison, failing, tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        failing({'tost_seed0': (code, 'error')})
    assert end.value.code == code_of_comparison
    assert failing.begun == ['aot_seed0', 'tost_seed0'] and 'again' in capsys.readouterr().err
    failing({})
    assert failing.begun[2:] == ['tost_seed0', 'aot_seed1', 'tost_seed1', 'aot_seed2', 'tost_seed2']
    assert [row['run'] for row in table(tmp_path / 'c')] == ['aot_seed0', *failing.begun[2:]]


@pytest.mark.parametrize('code, said', [(2, 'error: No space left on device'), (-9, '')])
def test_a_try_that_fails_for_another_reason_is_tried_again(code, said, failing, tmp_path):
    sweep = '--seeds=1', '--sweep=learning_rate=9,0.001'
    with pytest.raises(SystemExit):
        failing({'aot_learning_rate=9': (code, said)}, *sweep)
    failing({}, *sweep)
    assert failing.begun.count('aot_learning_rate=9') == 2
    assert {row['error'] for row in table(tmp_path / 'c')} == {'1.0'}


def test_a_signal_between_two_runs_ends_the_program():
    with pytest.raises(SystemExit) as end:
        compare.end_runs(signal.SIGINT, None)
    assert end.value.code == 128 + signal.SIGINT


def test_no_run_begins_after_a_signal_even_if_the_current_one_ends_well(monkeypatch, tiny, tmp_path):
    begun, sent = [], []

    class Process:
        send_signal = sent.append

    def train(command, out):
        write_log(out, 1.0)
        if not is_trial(command):
            begun.append(out.name)
            compare.running.append(Process)
            compare.end_runs(signal.SIGTERM, None)
            compare.running.remove(Process)
        return 0, ''
    monkeypatch.setattr(compare, 'train', train)
    with pytest.raises(SystemExit) as end:
        compare.main(['aot', 'tost', *tiny, f'--out={tmp_path}/c'])
    assert (begun, sent, end.value.code) == (['aot_seed0'], [signal.SIGTERM], 128 + signal.SIGTERM)
    assert [row['run'] for row in table(tmp_path / 'c')] == begun  # what it has made is kept


@pytest.mark.parametrize('sweep', [
    'learning_rates=1', 'n_embd=16,32', 'batch_size=4,8', 'learning_rate='])
def test_a_sweep_that_makes_no_sense_is_refused_before_anything_is_trained(sweep, tiny, never, tmp_path, capsys):
    fails(capsys, compare.main, 'aot', 'tost', *tiny, f'--sweep={sweep}', f'--out={tmp_path}/c')
    assert not (tmp_path / 'c').exists()


def test_sizes_that_differ_are_said_in_the_verdict(runs, capsys):
    runs({'aot': [1.0] * 3, 'gpt2': [2.0, 2.1, 2.2]})
    line = next(line for line in capsys.readouterr().out.splitlines() if 'better' in line)
    assert 'times the weights of aot' in line


@pytest.fixture
def command(tiny, tmp_path, monkeypatch):
    """The words that compare two networks in fact, in tmp_path/NAME: command(NAME, ..)."""
    monkeypatch.setenv('OMP_NUM_THREADS', '1')

    def command(name, *more):
        return ['aot', 'tost', *tiny, '--device=cpu', '--dtype=float32', '--seeds=1', *more,
                f'--out={tmp_path}/{name}']
    return command


START = '''
import sys
import compare
compare.say_duration = lambda *_: None
compare.main(sys.argv[1:])
'''


def start(words):
    """compare.py in a process of its own, without a look at how long it takes."""
    return subprocess.Popen([sys.executable, '-c', START, *words], text=True, cwd=ROOT,
                            stdout=subprocess.PIPE, start_new_session=True)


@pytest.fixture
def prepared(monkeypatch):
    """compare.main trains without a look at how long it takes, and its processes start quickly."""
    monkeypatch.setattr(compare, 'say_duration', lambda *_: None)
    its_subprocess = SimpleNamespace(Popen=PreparedPopen, DEVNULL=0, PIPE=0)
    monkeypatch.setattr(compare, 'subprocess', its_subprocess)


@pytest.mark.slow
def test_a_comparison_that_is_killed_goes_on(command, prepared, tmp_path):
    """The runs are those of a comparison without a kill."""
    process = start(command('a'))
    while 'aot_seed0' not in process.stdout.readline():
        pass
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    for name in 'ab':
        compare.main(command(name))
    kept = ('run', 'command', 'seed', 'weights', 'steps', 'chosen_step', 'val_error', 'split', 'error')
    a, b = ([{key: row[key] for key in kept} for row in table(tmp_path / name)] for name in 'ab')
    assert a == b and len(a) == 2 and len({row['error'] for row in a}) == 2


@pytest.mark.slow
def test_where_the_run_of_a_killed_comparison_still_trains_it_is_said(
        command, prepared, tmp_path, capsys):
    words = command('a', '--max_iters=1000000')
    first = start(words)
    while not (tmp_path / 'a' / 'aot_seed0' / '.lock').exists():
        time.sleep(0.1)
    first.kill()
    first.wait()
    try:
        with pytest.raises(SystemExit) as end:
            compare.main(words)
    finally:
        os.killpg(first.pid, signal.SIGTERM)
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert 'Traceback' not in said
    assert f'{tmp_path}/a/aot_seed0' in said
    assert not (tmp_path / 'a' / 'results.csv').exists()


@pytest.mark.slow
def test_a_learning_rate_with_which_training_diverges_is_the_worst(command, prepared, tmp_path):
    compare.main(command('a', '--sweep=learning_rate=1e30,1e-3'))
    rows = {row['run']: row for row in table(tmp_path / 'a')}
    for name in ('aot', 'tost'):
        assert rows[f'{name}_learning_rate=1e30']['error'] == 'inf'
        assert '--learning_rate=1e-3' in rows[f'{name}_seed0']['command']


EXAMPLES = re.findall(r'python compare.py (.*)', compare.__doc__)


@pytest.mark.parametrize('words', EXAMPLES)
def test_the_examples_of_help_fit_together(words, tiny, quads, tmp_path, monkeypatch):
    """Up to where they would be trained, on the data of a test."""
    monkeypatch.setattr(compare, 'claim', lambda *_: sys.exit('claims'))
    data = quads[:1] + ['--dataset=quads', '--image_size=8', '--patch_size=4'] if 'shapes' in words else tiny[:2]
    words = [word.replace('config/', f'{ROOT}/config/') for word in words.split()]
    with pytest.raises(SystemExit, match='claims'):
        compare.main([*words, *data, f'--out={tmp_path}/c'])
