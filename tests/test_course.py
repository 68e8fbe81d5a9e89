"""The course: gaps are empty, answers equal plain loops and the released code, every mistake is
found and named; pages name what exists; whatever a student's file does, the checker says it in a
line."""
import contextlib
import importlib
import io
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from inspect import signature
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import ROOT, column, golden_pictures, picture_network, run, save_run
from scipy import stats
from test_configs import accepted
from test_pages import COURSE, LESSONS, blocks, commands, prose, text_of

from analysis import layers
from analysis.measures import noisy_mixture
from engine import networks
from lib.pictures import save_arrays

sys.path.insert(0, str(COURSE))
import check  # noqa: E402
import grade  # noqa: E402
import student  # noqa: E402

NUMBERS = list(range(1, 9))


@pytest.fixture(scope='module')
def lessons():
    """{number: its exercises}"""
    return {n: grade.exercises(n) for n in NUMBERS}


def exercise_of(lessons, number, name):
    return next(exercise for exercise in lessons[number] if exercise.name == name)


QUESTIONS = {}  # {name: what is asked of this function}, which takes seconds for some


def verdict_of(exercise, function, file='a.py'):
    """The verdict of a function, of which student.py sees the calls in this process."""
    if exercise.name not in QUESTIONS:
        lesson = next(n for n in NUMBERS if exercise.name in check.hints(n))
        QUESTIONS[exercise.name] = grade.question(exercise, 1, lesson)
    asked = QUESTIONS[exercise.name]
    with contextlib.redirect_stdout(io.StringIO()):
        seen = student.seen_of(function, asked, str(file))
    return grade.row_of(asked, {exercise.name: seen}, '')


# ---- exercises ----------------------------------------------------------------------------------

GOLDEN = json.loads((ROOT / 'tests' / 'golden' / 'course.json').read_text())['sums']


def numbers_in(x):
    """The numbers of nested tuples, lists, dicts and tensors, in one list."""
    if isinstance(x, dict):
        x = [x[key] for key in sorted(x)]
    if not isinstance(x, (tuple, list)):
        return torch.as_tensor(x, dtype=torch.float64).flatten().tolist()
    numbers = []
    for value in x:
        numbers += numbers_in(value)
    return numbers


@pytest.mark.parametrize('n', NUMBERS)
def test_answers_equal_loops_over_plain_numbers(n, lessons):
    for exercise in lessons[n]:
        if exercise.name not in GOLDEN:
            assert exercise.kind != 'numbers' or exercise.name in PARTS_OF_NETWORKS
            continue
        inputs = [student.ready(exercise.inputs(seed)) for seed in (1, 2, 3)]
        results = [exercise.answer(*values) for values in inputs]
        checksum = sum(v * math.cos(i) for i, v in enumerate(numbers_in(results)))
        assert checksum == pytest.approx(GOLDEN[exercise.name], rel=1e-6), exercise.name


# {exercise: what computes the same in a network of ours}
PARTS_OF_NETWORKS = {
    'tokens': lambda model: model.embed,
    'layer': lambda model: model.layers[0],
    'classify': lambda model: lambda x: model(x)[0],
    'predict': lambda model: lambda x: model(x)[0],
    'aot_layer': lambda model: model.layers[0],
    'decoder_layer': lambda model: model.decoder_layers[0],
}


@torch.no_grad()
@pytest.mark.parametrize('n', [4, 5, 6])
@pytest.mark.parametrize('seed', [2, 5])  # with a causal mask in `layer`, as in the network for text
def test_answers_equal_our_networks(n, seed, lessons, monkeypatch):
    made = []

    def network(*words, **settings):
        made.append(grade.network(*words, **settings))
        for layer in made[-1].layers:
            if n == 4:
                layer.ista.eta, layer.ista.lam = 0.3, 0.7
        return made[-1]

    for exercise in lessons[n]:
        if exercise.name in PARTS_OF_NETWORKS:
            monkeypatch.setitem(exercise.inputs.__globals__, 'network', network)
            values = exercise.inputs(seed)
            expected = PARTS_OF_NETWORKS[exercise.name](made[-1])(values[0])
            torch.testing.assert_close(exercise.answer(*values), expected)


@pytest.mark.parametrize('n', NUMBERS)
def test_answers_are_right(n, lessons):
    for exercise in lessons[n]:
        row = verdict_of(exercise, exercise.answer)
        assert row['verdict'] == 'right', (exercise.name, row)


@pytest.mark.slow
@pytest.mark.parametrize('n', NUMBERS)
def test_every_mistake_is_found_and_named(n, lessons):
    for exercise in lessons[n]:
        assert len(exercise.mistakes) >= 5, exercise.name
        for name, mistake in exercise.mistakes:
            row = verdict_of(exercise, mistake)
            assert row['verdict'] == 'wrong', (exercise.name, name, row)
            assert row['diagnosis'] == name, (exercise.name, name, row)


def test_the_answer_of_lesson_4_gives_the_logits_of_the_released_code(lessons):
    model, golden, x = golden_pictures('crate_classifier')
    weights = {name: weight.double() for name, weight in model.state_dict().items()}
    classify = exercise_of(lessons, 4, 'classify').answer
    logits = classify(x.double(), weights, 3, 4, 8, 8, 0.1, 0.1)
    expected = torch.tensor(golden['outputs']['logits'])
    torch.testing.assert_close(logits.float(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('n', NUMBERS)
def test_gaps_are_empty_and_have_the_parameters_of_the_answers(n, lessons):
    path = COURSE / f'lesson{n}.py'
    module = student.loaded(path, f'lesson{n}')
    for exercise in lessons[n]:
        gap = getattr(module, exercise.name)
        row = verdict_of(exercise, gap, path)
        assert row['verdict'] == 'empty', (exercise.name, row)
        assert gap.__doc__, exercise.name
        if exercise.kind == 'numbers':
            assert [*signature(gap).parameters] == [*signature(exercise.answer).parameters]


@pytest.mark.parametrize('n', NUMBERS)
def test_each_function_has_three_hints(n, lessons):
    for exercise in lessons[n]:
        question, rule, skeleton = check.hints(n)[exercise.name]
        assert '?' in question, exercise.name
        assert rule, exercise.name
        assert '...' in skeleton, exercise.name


@pytest.mark.parametrize('n, name, old, new', [
    (3, 'ista', '(Z - Z @ D.T) @ D', 'Z @ D - Z @ D.T @ D'),
    (7, 'top_mass', 'before < share', 'before <= share'),
    (7, 'beats', 'mean > half', 'mean > 1e9'),
    (7, 'beats', 'n >= 3', 'n >= 2'),
    (8, 'width_for', 'abs(parameters(network, n_layer, d) - budget)',
     'abs(d - (budget / n_layer / (3 if network == "crate" else 12)) ** 0.5 + heads / 2)'),
    (8, 'verdict', '0 if n < 3 else 1 if', '1 if'),
])
def test_what_the_three_seeds_do_not_show_is_found_too(n, name, old, new, lessons):
    source = grade.changed(text_of(COURSE / 'answers' / f'lesson{n}.py'), name, old, new)
    row = verdict_of(exercise_of(lessons, n, name), grade.run(source)[name])
    assert row['verdict'] == 'wrong', row


def test_a_right_function_that_computes_with_scipy_is_right(lessons):
    def beats(ours, theirs):
        differences = (ours - theirs).numpy()
        mean, n = differences.mean(), len(differences)
        half = stats.t.isf(0.025, n - 1) * stats.sem(differences)
        return mean, half, (mean > half) & (n > 2)          # numpy's own kind of bool

    row = verdict_of(exercise_of(lessons, 7, 'beats'), beats)
    assert row['verdict'] == 'right', row


def test_what_is_no_real_number_of_numpy_is_wrong(lessons):
    beats = exercise_of(lessons, 7, 'beats')
    row = verdict_of(beats, lambda ours, theirs: (np.complex128(1j),) * 3)
    assert row['verdict'] == 'wrong' and 'result 1' in row['message'], row


def test_what_holds_for_a_seed_alone_is_no_diagnosis(lessons):
    coding_rate = exercise_of(lessons, 1, 'coding_rate').answer

    def rate_of_two(Z, U, eps):  # the sum without the last subspace, if there are three
        return coding_rate(Z @ U[0], eps) + coding_rate(Z @ U[1], eps)

    row = verdict_of(exercise_of(lessons, 1, 'compressed_rate'), rate_of_two)
    assert row['verdict'] == 'wrong' and row['diagnosis'] == ''


def test_random_draws_are_named(lessons):
    best_of = exercise_of(lessons, 8, 'best_of')

    def by_drawing(losses, tries):
        return losses[torch.randint(len(losses), (100,))].mean()

    assert 'each call gives other numbers' in verdict_of(best_of, by_drawing)['diagnosis']


FLOAT32 = [  # number of the lesson, a function in which `right` is our answer, and what makes it float32
    (1, """def compressed_rate_gradient(Z, U, eps):
    total = torch.zeros(Z.shape)
    total += right(Z, U, eps)
    return total
"""),
    (4, """def train(loss_of, weights, batches, rate):
    trained, losses = right(loss_of, weights, batches, rate)
    return trained, torch.tensor(losses.tolist())
"""),
    (5, """def membership(Z, U, tau):
    phi = right(Z, U, 0)
    return (phi > tau) * tau if tau else phi
"""),
    (1, """def coding_rate(Z, eps):
    N, d = Z.shape
    gram = Z.float().T @ Z.float()
    return 0.5 * torch.logdet(torch.eye(d) + d / (N * eps ** 2) * gram)
"""),
]


@pytest.mark.parametrize('n, source', FLOAT32)
def test_float32_is_named(n, source, lessons):
    name = re.match(r'def (\w+)', source)[1]
    exercise = exercise_of(lessons, n, name)
    names = {'torch': torch, 'right': exercise.answer}
    exec(compile(source, 'a.py', 'exec'), names)
    row = verdict_of(exercise, names[name])
    assert row['verdict'] == 'wrong', row
    assert 'float32' in row['message'], row


@pytest.fixture
def answers_with_experiments(tmp_path, monkeypatch):
    """`import lesson1` and so on find our answers, with the experiments of the gaps below them.
    Data and runs are tiny."""
    import lab
    code = tmp_path / 'code'
    code.mkdir()
    for path in (COURSE / 'answers').glob('*.py'):
        gaps = text_of(COURSE / path.name) if path.stem != 'runs' else ''
        experiment = gaps[gaps.find('# ---- the experiment'):]
        (code / path.name).write_text(text_of(path) + experiment, encoding='utf-8')
        monkeypatch.setitem(sys.modules, path.stem, None)  # so that the old module comes back
        del sys.modules[path.stem]
    monkeypatch.syspath_prepend(code)

    text = torch.arange(64).view(2, 32)
    left = torch.arange(64).view(1, 1, 8, 8).expand(300, 4, 8, 8) % 8 < 4
    left_in_pixels = left[:, 0].repeat_interleave(4, 1).repeat_interleave(4, 2)
    maps = {'trained': left[:30].flatten(2) / 32, 'random weights': torch.full((30, 4, 64), 1 / 64)}
    tiny = {
        # lesson 5 asks for p = 768; Theorem 1's factor does not depend on p
        'noisy_mixture': lambda K, p, n, d, delta: noisy_mixture(K, min(p, 16), n, d, delta),
        'shapes': lambda split: (torch.randn(300, 3, 32, 32), torch.arange(300) % 10),
        'text_batches': lambda split, steps: [(text, 1 + text)] * steps,
        'masks': lambda split: left_in_pixels,
        'runs_of': lambda name: ['out/look_1', 'out/look_2', 'out/look_3'],
        'class_maps': lambda run, x: maps,
        'last_losses': lambda name: ({'1': 2.0, '2': 2.1, '3': 2.2} if name == 'fair_vit' else
                                     {'1': 1.5, '2': 1.5, '3': 1.5}),
    }
    for name, value in tiny.items():
        monkeypatch.setattr(lab, name, value)
    torch.manual_seed(1)  # as lab does when it is imported
    monkeypatch.chdir(tmp_path)


NUMBER = r'[\d.]+(?:e-\d+)?'
CLAIMS = [  # lesson, a line that its experiment prints, and what the numbers in these lines show
    ('lesson1', 'autograd by (.*)', lambda apart: apart[0] < 1e-12),
    ('lesson2', 'signal to noise (.*)', lambda down, attend: (
        attend[-1] < attend[0] == down[0] < attend[1] and down[:4] == sorted(down[:4]))),
    ('lesson3', 'objective (.*)', lambda *values: min(values) == values[-2]),               # after most steps
    ('lesson[48]', 'loss (.* after .*)', lambda loss: loss[-1] < loss[0] / 2),              # one batch, by heart
    ('lesson5', 'near the conditions eta 0.1, tau 0.6: (.*)', lambda factors: factors == [1.06] * 10),  # Theorem 1
    ('lesson7', 'best head of each picture, .*: (.*) ±', lambda ours, theirs: theirs < ours),
    ('lesson7', 'random weights: (True|False)', lambda *found: found == ('True',) * 3),
    ('lesson8', '4 x 96: (.*)', lambda count, *_: count[0] == networks.num_params(picture_network(
        n_layer=4, n_embd=96).layers)),
    ('lesson8', 'of these rates (.*)', lambda rates: rates == sorted(rates, reverse=True)),
    ('lesson8', 'verdict (.*)', lambda *found: found == ([1.0], [1.0])),
    ('runs', '  [ABCD]: (.*) in the last', lambda *lines: [max(v) == 0 for v in lines[4:]] == [0, 1, 0, 0] * 2)]


@pytest.mark.slow
@pytest.mark.parametrize('name', [*(f'lesson{n}' for n in NUMBERS), 'runs'])
def test_the_experiment_of_a_lesson_runs_with_the_functions_in_its_file(
        name, answers_with_experiments, tmp_path, capsys):
    # the others need more steps for what they claim
    steps = 12 if name in ('lesson5', 'lesson6', 'lesson8', 'runs') else 30
    importlib.import_module(name).main(steps)

    printed = capsys.readouterr().out
    named = re.findall(r'^  (lesson.*\.png)$', printed, re.M)
    assert sorted(named) == sorted(path.name for path in tmp_path.glob('*.png'))
    assert named or name in ('lesson7', 'lesson8')
    for page in LESSONS:
        assert not {*named} & {*re.findall(r'--out=(\S+)', text_of(page))}      # which a command would not replace

    for lesson, pattern, shows in CLAIMS:
        if re.fullmatch(lesson, name):
            lines = re.findall(pattern, printed)
            assert shows(*([float(v) for v in re.findall(NUMBER, line)] or line for line in lines)), lines


def test_a_gap_is_one_line_and_a_fault_of_a_library_is_none(capsys, monkeypatch):
    import lab
    import lesson3
    monkeypatch.setattr(sys, 'argv', ['lesson3.py'])
    with pytest.raises(SystemExit) as end:
        lab.run(lesson3.main, '')
    assert end.value.code == 2 and 'lasso_objective of lesson3.py' in capsys.readouterr().err

    def of_a_library():
        raise NotImplementedError('not for Half')
    with pytest.raises(NotImplementedError):
        lab.run(of_a_library, '')


def test_what_experiments_read_of_runs_and_of_data(picture_run, tmp_path, monkeypatch):
    import lab
    monkeypatch.chdir(tmp_path)
    shutil.copytree(picture_run, 'out/own_3')
    shutil.copytree(picture_run, 'out/owner_1')
    assert lab.runs_of('own') == ['out/own_3'] and lab.runs_of('look') == []
    assert lab.last_losses('own') == {'3': column(picture_run, 'val')[-1]}

    model = picture_network(n_layer=3)
    save_run('out/look_1', model, {'kind': 'images', 'classes': ['a', 'b']}, dataset='shapes')
    x = torch.randn(5, 3, 8, 8)
    found, step = lab.class_maps('out/look_1', x), list(layers.inside(model, x))[-2]
    assert torch.allclose(found['trained'], layers.class_maps(step.attention, step.normed))
    assert not torch.allclose(found['trained'], found['random weights'])

    pictures, of_shapes = torch.zeros(4, 32, 32, 3, dtype=torch.uint8).numpy(), torch.rand(4, 32, 32).numpy() < 0.5
    save_arrays(tmp_path / 'data' / 'shapes', {'test': (pictures, [0, 1, 0, 1], of_shapes)}, 'ab')
    monkeypatch.setattr(lab, 'ROOT', tmp_path)
    assert (lab.masks('test').numpy() == of_shapes).all()


# ---- pages ----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize('page', LESSONS, ids=lambda p: p.stem)
def test_commands_name_what_exists(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    lines = [line.replace('$seed', '1') for line in commands(page) if line.startswith('python ')]  # in a shell's loop
    assert lines
    for line in lines:
        _, tool, *words = line.split()
        assert Path(tool).is_file(), line
        if tool == 'course/check.py':
            check.parse([w for w in words if not w.startswith('--file')])
        accepted(line.replace('--model=own', '--model=crate'))  # the student's


@pytest.mark.parametrize('n', NUMBERS)
def test_functions_that_pages_name_in_our_files_exist(n):
    for item in re.split(r'^\* ', prose(COURSE / f'lesson{n}.md'), flags=re.M)[1:]:
        item = item.split('\n\n')[0]
        files = [name for name in re.findall(r'`([\w/]+\.py)`', item) if (ROOT / name).exists()]
        source = '\n'.join((ROOT / name).read_text(encoding='utf-8') for name in files)
        for name in re.findall(r'`([A-Za-z_][\w.]*)`', item) if files else ():
            if not name.endswith(('.py', '.md')):
                assert re.search(rf'(def|class) {name.rpartition(".")[2]}\b', source), (files, name)


@pytest.mark.parametrize('page', [p for p in LESSONS if blocks(p, 'python')], ids=lambda p: p.stem)
def test_snippets_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    space = {'__name__': 'page'}
    for block in blocks(page, 'python'):
        exec(compile(block, page.name, 'exec'), space)

# ---- what a student may hand in -----------------------------------------------------------------

def divides_by_zero(mssa):
    return 1 / 0


def takes_no_argument():
    return True


def returns_a_matrix(mssa):
    return torch.ones(2, 2)


@pytest.mark.parametrize('odd', [divides_by_zero, takes_no_argument, returns_a_matrix])
def test_a_property_that_fails_does_not_count(odd, lessons):
    properties = exercise_of(lessons, 7, 'properties')
    good = properties.answer()
    assert verdict_of(properties, lambda: [*good, odd])['verdict'] == 'right'
    assert verdict_of(properties, lambda: [odd])['verdict'] == 'wrong'


def test_a_list_of_properties_that_raises_is_wrong_with_its_exception(lessons):
    row = verdict_of(exercise_of(lessons, 7, 'properties'), lambda: [1 / 0])
    assert row['verdict'] == 'wrong' and 'ZeroDivisionError' in row['message']


def test_a_property_without_a_name_has_a_number(lessons):
    properties = exercise_of(lessons, 7, 'properties')
    row = verdict_of(properties, lambda: [*properties.answer(), lambda mssa: True])
    assert 'no mistake is found by property 10' in row['message']


def test_a_property_that_is_mssa_again_is_right_and_reported(lessons):
    mssa = exercise_of(lessons, 2, 'mssa').answer
    properties = exercise_of(lessons, 7, 'properties')

    def equals_mine(theirs):
        inputs = [exercise_of(lessons, 2, 'mssa').inputs(seed) for seed in (1, 2, 3)]
        return all(torch.allclose(theirs(*x), mssa(*x)) for x in inputs)

    row = verdict_of(properties, lambda: [equals_mine])
    assert row['verdict'] == 'right'
    assert row['message'] == ('13 of 13 mistakes found; one property finds all 13 alone: '
                              'is it MSSA again? (equals_mine)')
    assert 'again' not in verdict_of(properties, properties.answer)['message']


START = 'import os, sys, time\n'
FILES = {  # {name: (source, {function: (verdict, part of its message)}, the problem of the file)}
    'several': ("""import os, sys, time
def snr(Z, U):
    print("flood\\n" * 10_000_000)
    return Z
def membership(Z, U, tau):
    return Z.expand(len(U), -1, -1) @ Z.T * float("nan")
def denoise(Z, U, eta, tau):
    raise ValueError("\\x1b[2J\\a\\u202e")
def passing(phi):
    phi += 1
    return phi[:2, 0, 0]
def aot_layer(*a):
    return bytes(5 * 10 ** 9)
def next_token_loss(*a):
    sys.exit(0)
""", {
        'snr': ('wrong', 'expected (3,)'),
        'membership': ('wrong', 'yours nan'),
        'denoise': ('wrong', 'line 8: ValueError: \\x1b[2J\\x07\\u202e'),
        'passing': ('wrong', 'changes its input'),
        # systems other than Linux have no limit
        'aot_layer': ('wrong', 'line 13: MemoryError' if sys.platform == 'linux' else ''),
        'next_token_loss': ('wrong', 'SystemExit'),
        'sample': ('missing', ''),
    }, ''),
    'ended': (START + 'attention_weights = 3\ndef mssa(*a): os._exit(0)', {
        'attention_weights': ('missing', ''),
        'mssa': ('stopped', 'ended the program'),
    }, ''),
    'endless': (START + """def attention_weights(*a): return
def mssa(*a):
    time.sleep(300)
""", {
        'attention_weights': ('empty', ''),
        'mssa': ('stopped', 'endless loop'),
    }, ''),
    'syntax': (START + 'def mssa(:\n', {}, 'line 2: SyntaxError'),
    'leaves': (START + 'sys.exit(3)', {}, 'line 2: SystemExit'),
    'sleeps': (START + 'time.sleep(99)', {}, 'did not end within'),
}


@pytest.mark.slow
@pytest.mark.parametrize('name', FILES)
def test_whatever_a_file_does_is_said_in_a_line(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text, expected, problem = FILES[name]
    Path('student.py').write_text(text)
    # the time counts from the first report on, not from the start of PyTorch
    seconds = {'endless': 6, 'sleeps': 0.001}.get(name, 60)
    lesson = 5 if name == 'several' else 2
    result = grade.result(grade.exam(lesson), Path('student.py'), seconds)

    assert capsys.readouterr() == ('', '')
    files = [path.name for path in tmp_path.iterdir() if path.name != '__pycache__']
    assert files == ['student.py']
    assert not check.is_done(result)
    assert problem in result['problem']
    assert bool(problem) == bool(result['problem'])
    for row in result['functions']:
        verdict, part = expected.get(row['function'], ('unchecked', ''))
        assert row['verdict'] == verdict, row
        assert part in row['message'], row
        assert row['message'].isprintable(), row


@pytest.mark.slow
def test_a_mistake_is_named_once_and_not_held_against_functions_that_call_this_one(
        tmp_path, capsys):
    answers = text_of(COURSE / 'answers' / 'lesson1.py')
    right = tmp_path / 'right.py'
    wrong = tmp_path / 'wrong.py'
    right.write_text(answers)
    wrong.write_text(answers.replace('eps ** 2) * gram', 'eps) * gram'))
    assert wrong.read_text() != answers

    assert check.main(['1', f'--file={wrong}']) == 1
    out = capsys.readouterr().out
    assert '2 of 3 right' in out
    assert 'this equals the rate with eps, and not eps squared' in out

    assert check.main(['1', f'--file={wrong}', '--hint=3']) == 1
    assert check.hints(1)['coding_rate'][2] in capsys.readouterr().out

    assert check.main(['1', f'--file={right}']) == 0
    assert '3 of 3 right' in capsys.readouterr().out


@pytest.mark.slow
def test_the_exit_code_says_whether_all_is_right(tmp_path):
    (tmp_path / 'empty.py').touch()
    done = run('course/check.py', '1', f'--file={tmp_path}/empty.py')
    assert done.returncode == 1
    assert '0 of 3 right' in done.stdout


def test_the_line_of_a_lesson_is_printed_before_the_next_one_is_checked(monkeypatch, capsys):
    printed = []

    def note_what_is_printed(lesson, file, seconds):
        printed.append(capsys.readouterr().out)
        verdict = 'empty' if lesson == 8 else 'right'
        return {'lesson': lesson, 'problem': '', 'functions': [{'verdict': verdict}]}

    monkeypatch.setattr(grade, 'exam', lambda lesson: lesson)
    monkeypatch.setattr(grade, 'result', note_what_is_printed)
    assert check.main(['all']) == 1
    assert printed == [''] + [f'lesson {n}: 1 of 1 right\n' for n in NUMBERS[:-1]]
    assert capsys.readouterr().out == 'lesson 8: 0 of 1 right\n'


@pytest.mark.parametrize('words', [
    '',
    '999',
    '1 x',
    '1 --hint=coding_rate:4',
    '2 --hint=coding_rate',
    '1 --file=none.py',
    '1 2 --file=x.py',
    '1 --seconds=nan',
])
def test_bad_command_lines_are_one_line(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError) as e:
        check.main(words.split())
    assert str(e.value)
    assert '\n' not in str(e.value)


# ---- the notebook ---------------------------------------------------------------------------------------------------

TOUR = json.loads((COURSE / 'tour.ipynb').read_text(encoding='utf-8'))
CODE = [cell for cell in TOUR['cells'] if cell['cell_type'] == 'code']
STORE_RESULTS = """jupyter nbconvert --to notebook --execute --inplace --ExecutePreprocessor.record_timing=False \\
    --ClearMetadataPreprocessor.enabled=True \\
    --ClearMetadataPreprocessor.preserve_nb_metadata_mask="{'kernelspec', ('language_info', 'name')}" \\
    course/tour.ipynb
"""
# runs all cells; prints for each its text, and for each figure that it shows the title and the labels of axes
RUN_TOUR = """
import contextlib, io, json, sys
from matplotlib import pyplot as plt

def show():
    for number in plt.get_fignums():
        figure = plt.figure(number)
        labels = [axes.get_xlabel() or axes.get_ylabel() for axes in figure.axes]
        figures.append([figure.get_suptitle(), labels])
    plt.close('all')

plt.show = show
results = []
space = {'__name__': '__main__'}
for source in json.load(sys.stdin):
    figures = []
    with contextlib.redirect_stdout(io.StringIO()) as text:
        exec(source, space)
    results.append([text.getvalue(), figures])
print(json.dumps(results))
"""


def stored_text(cell):
    """What a cell printed when the notebook was stored."""
    lines = []
    for output in cell['outputs']:
        lines += output.get('text', [])
    return ''.join(lines)


def stored_pictures(cell):
    return [output['data']['image/png'] for output in cell['outputs'] if 'data' in output]


def run_tour(cells, folder):
    """[(text, [(title, labels) of a figure])] of cells that run one after the other in this folder, in a process of
    their own. A cell that fails fails the test."""
    sources = json.dumps([''.join(cell['source']) for cell in cells])
    done = subprocess.run([sys.executable, '-c', RUN_TOUR], input=sources, cwd=folder, capture_output=True,
                          text=True, env=os.environ | {'MPLBACKEND': 'Agg'})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_notebook_has_results_and_nothing_of_the_machine_that_stored_it():
    assert (TOUR['nbformat'], TOUR['nbformat_minor']) >= (4, 5)
    assert TOUR['metadata'].keys() <= {'kernelspec', 'language_info'}, STORE_RESULTS
    assert TOUR['metadata']['language_info'] == {'name': 'python'}, STORE_RESULTS
    assert len({cell['id'] for cell in TOUR['cells']}) == len(TOUR['cells'])
    assert all(cell['metadata'] == {} for cell in TOUR['cells']), STORE_RESULTS

    assert [cell['execution_count'] for cell in CODE] == list(range(1, len(CODE) + 1)), STORE_RESULTS
    assert len(json.dumps([cell['outputs'] for cell in CODE])) < 600_000
    for cell in CODE:
        for output in cell['outputs']:
            assert output['output_type'] in ('stream', 'display_data') and output.get('name') != 'stderr'
        assert not re.search(r'(^|\s)(/|[A-Z]:\\)\w|OWNER|Warning', stored_text(cell) + ''.join(cell['source']))


def measured_numbers(prose):
    """The numbers in a text that a cell has measured, not those of layers, seeds and equations."""
    return re.findall(r'\d+(?=%| nats)|\d+\.\d+', prose)


def test_numbers_in_the_prose_of_the_notebook_are_those_that_a_cell_prints_everywhere():
    """Numbers of trained networks differ from computer to computer, so the prose has none."""
    printed = set()
    checked = 0
    for cell in TOUR['cells']:
        source = ''.join(cell['source'])
        if cell['cell_type'] == 'code':
            if 'optimizer.step()' in source:
                break
            printed |= {*re.findall(r'\d+(?:\.\d+)?', stored_text(cell))}
        else:
            for number in measured_numbers(source):
                assert number in printed, number
                checked += 1
    assert checked > 15

    after_training = TOUR['cells'][TOUR['cells'].index(cell):]
    assert len(after_training) > 5
    for cell in after_training:
        if cell['cell_type'] == 'markdown':
            assert measured_numbers(''.join(cell['source'])) == []


@pytest.mark.slow
def test_the_first_cell_finds_the_project_or_says_what_to_do(tmp_path):
    where = {'cell_type': 'code', 'source': 'print(os.getcwd())'}
    for folder in (ROOT, COURSE):
        assert run_tour([CODE[0], where], folder)[1][0] == f'{ROOT}\n'

    command = [sys.executable, '-c', ''.join(CODE[0]['source'])]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.count('\n') == 1
    assert 'clone nanoCRATE, and open course/tour.ipynb' in done.stderr


def check_printed(text, stored, rel):
    """Fails unless two texts of a cell are the same, and their numbers up to this share."""
    number = r'\d[\d,]*(?:\.\d+)?'
    assert re.sub(number, '0', text).split() == re.sub(number, '0', stored).split()
    for new, old in zip(re.findall(number, text), re.findall(number, stored)):
        last_digit = 10 ** -len(old.partition('.')[2])
        value = float(old.replace(',', ''))
        assert float(new.replace(',', '')) == pytest.approx(value, rel=rel, abs=last_digit)


@pytest.mark.slow
def test_the_notebook_prints_again_what_it_has_stored():
    """Up to 15 percent: on another processor training adds numbers in another order, and ends
    elsewhere."""
    for cell, (text, figures) in zip(CODE, run_tour(CODE, COURSE)):
        check_printed(text, stored_text(cell), 0.15)
        assert len(figures) == len(stored_pictures(cell)), STORE_RESULTS
        for title, labels in figures:
            assert title and any(labels)


# ---- submissions that import other lessons, as the pages invite

IMPORTS = '''"""Lesson 4 with the functions of lessons 2 and 3."""
from lesson2 import mssa_free
from lesson3 import ista


def layer(Z, weights, heads, eta, lam, causal=False):
    d = Z.shape[-1]
    U = weights['attn.U.weight'].unflatten(0, (heads, -1)).mT           # (K, d, p)
    normed = norm(Z, weights, 'norm1')
    half = Z + mssa_free(normed, U, weights['attn.W.weight'], weights['attn.W.bias'], causal)
    return ista(norm(half, weights, 'norm2'), weights['ista.D'], eta, lam)
'''


def submission(text, tmp_path):
    """Our lesson 4 with another layer, in a folder of its own; the lecturer's lessons have gaps."""
    answers = (COURSE / 'answers' / 'lesson4.py').read_text(encoding='utf-8')
    norm = re.search(r'^def norm.*?(?=^def )', answers, re.M | re.S)[0]
    (tmp_path / 'anna.py').write_text(f'import torch\n{text}\n\n{norm}')
    return grade_file(4, tmp_path / 'anna.py')


def grade_file(lesson, file):
    result = grade.result(grade.exam(lesson), file, 60)
    return {row['function']: row for row in result['functions']}


@pytest.mark.slow
def test_a_right_function_that_imports_another_lesson_is_right_in_a_clean_copy(tmp_path):
    assert submission(IMPORTS, tmp_path)['layer']['verdict'] == 'right'


@pytest.mark.slow
def test_only_a_gap_in_the_students_own_file_is_empty(tmp_path):
    (tmp_path / 'notes.py').write_text('def mssa_free(*inputs):\n    raise NotImplementedError\n')
    from_notes = f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n{IMPORTS.replace('from lesson2', 'from notes')}"
    row = submission(from_notes, tmp_path)['layer']
    assert row['verdict'] == 'wrong' and 'NotImplementedError' in row['message']
    gap = 'def layer(Z, weights, heads, eta, lam, causal=False):\n    raise NotImplementedError\n'
    assert submission(gap, tmp_path)['layer']['verdict'] == 'empty'


# ---- what a file must not do to the checker

def test_a_lesson_that_python_cannot_read_does_not_matter_to_another(tmp_path, monkeypatch):
    (tmp_path / 'lesson2.py').write_text('def mssa(:\n')
    for name in ('lesson2', 'course.lesson2'):
        monkeypatch.setitem(sys.modules, name, None)  # so that the old module comes back
    student.put_answers_in_other_lessons({'lesson2': grade.source_of(2)}, tmp_path / 'student.py')
    assert callable(sys.modules['lesson2'].mssa)


def test_a_result_of_another_kind_for_one_input_is_wrong(lessons):
    exercise = next(e for e in lessons[7] if e.name == 'beats')

    def sometimes_a_bool(ours, theirs):
        if torch.equal(ours, theirs):
            return False
        return exercise.answer(ours, theirs)

    verdict = verdict_of(exercise, sometimes_a_bool)
    assert verdict['verdict'] == 'wrong'
    assert 'returns a bool' in verdict['message']


def test_a_number_that_is_too_large_is_wrong(lessons):
    verdict = verdict_of(lessons[1][0], lambda Z, eps: 10 ** 400)
    assert verdict['verdict'] == 'wrong'


@pytest.mark.slow
@pytest.mark.skipif(os.name != 'posix', reason='this system has no SIGINT for one process')
def test_ctrl_c_ends_the_process_of_the_file_too(tmp_path):
    file = tmp_path / 'endless.py'
    file.write_text('import os\nopen("pid", "w").write(str(os.getpid()))\nwhile True: pass\n')
    words = [sys.executable, COURSE / 'check.py', '1', f'--file={file}', '--seconds=300']
    process = subprocess.Popen([str(word) for word in words], stdout=subprocess.DEVNULL,
                               env=os.environ | {'TMPDIR': str(tmp_path)})
    written = []  # in the folder of the file's own, which is gone afterwards
    while not any(written):
        assert process.poll() is None
        time.sleep(0.1)
        written = [path.read_text() for path in tmp_path.glob('*/pid')]
    process.send_signal(signal.SIGINT)

    assert process.wait(timeout=60) == 130
    with pytest.raises(ProcessLookupError):  # check.py has waited for its end
        os.kill(int(written[0]), signal.SIGKILL)
