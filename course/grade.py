"""Grade one file of a student: student.py calls its functions in a process of its own, and this
module compares the numbers with those of the answers. Nothing of the student's runs here.

The answers are in answers/, the inputs in marks/lesson1.py and so on. tests/test_course.py holds
the answers equal to our networks. A mistake is an answer in which a few characters are changed: a
line of marks/lesson1.tsv and so on. If a mistake gives the student's numbers on all inputs, its
name is the diagnosis. A student's copy has neither: bundle.py writes the numbers for it.
"""
import ast
import functools
import inspect
import io
import itertools
import math
import multiprocessing
import os
import random
import re
import signal
import sys
import tempfile
import time
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

import torch

import judges
import student
from judges import wrong
from student import HERE, as_lists, in_words, loaded, plain, ready

sys.path.insert(0, str(HERE.parent))  # also for the programs that import this module
from analysis.measures import gaussian  # noqa: E402
from engine import networks  # noqa: E402
from engine.names import printable  # noqa: E402

LESSONS = {number: HERE / f'lesson{number}.py' for number in range(1, 9)}
SIZES = 3                       # for each function there are inputs of three sizes
TOLERANCE = 1e-7                # relative to the mean size of the numbers of the expected result
FLOAT32_TOLERANCE = 1e-4
BYTES_OF_RESULTS = 64 << 20
PROCESSES = multiprocessing.get_context('forkserver' if os.name == 'posix' else 'spawn')
PROCESSES.set_forkserver_preload(['torch'])  # read once, before any student's code runs


@dataclass
class Exercise:
    """A function that a student writes."""
    name: str
    inputs: object              # seed -> the arguments of the function
    kind: str = 'numbers'       # how student.py calls it
    gradient: tuple = ()        # places of the inputs with respect to which lessons need a gradient
    products_count: bool = False    # may it take more operations for products than the answer?
    more: tuple = ()            # other inputs that it is given besides
    answer: object = None       # the function in answers/
    # a mistake is (its name, the answer with this mistake in it)
    mistakes: list = field(default_factory=list)
    mistakes_elsewhere: list = field(default_factory=list)  # in other functions of the lesson


def seeded(seed):
    """A generator of random numbers."""
    return torch.Generator().manual_seed(seed)


def normal(seed):
    """randn(*shape), which draws float64 tensors from N(0, 1), one after the other."""
    return functools.partial(gaussian, seeded(seed))


def network(seed, model, **settings):
    """A network of ours in float64, with weights of which none is zero."""
    config = networks.config_class(model)(**settings)
    torch.manual_seed(seed)
    made = networks.network_class(model)(config).double()
    randn = normal(seed)
    for weight in made.parameters():
        weight.data += 0.4 * randn(*weight.shape)
    return made


def of_size(sizes, seed):
    """The entry of a table of three sizes. Seeds 1, 4, 7 and so on have the first one."""
    return sizes[(seed - 1) % SIZES]


def variant(seed):
    """A whole number for inputs that are not drawn: 0 for seeds 1 to 3, and so on, up to 6."""
    return (seed - 1) // SIZES % 7


# ---- mistakes -----------------------------------------------------------------------------------

def changed(source, function, old, new):
    """The source of a lesson's answers, in which `new` stands in place of the fragment `old` of a
    function. If the function has no such fragment, it is looked for in the whole source. A `new`
    that ends with # leaves out what follows on its line. If `old` is empty, `new` is a statement in
    front of the others."""
    definition = re.search(rf'^(def|class) {function}\b.*?(?=^\S|\Z)', source, re.M | re.S)[0]
    if old == '':
        header, _, body = definition.partition(':\n')
        return source.replace(definition, f'{header}:\n    {new}\n{body}')
    if old not in definition:
        definition = source
    assert definition.count(old) == 1, f'{function}: {old} is there {definition.count(old)} times'
    return source.replace(definition, definition.replace(old, new))


def run(source, right=None):
    """{name: value} after a source has run. A row of marks/*.tsv may use F, itertools and math in
    it, and call `right`, the function without the mistake."""
    names = {
        '__name__': 'answers',
        'F': torch.nn.functional,
        'itertools': itertools,
        'math': math,
        'right': right,
    }
    exec(source, names)
    return names


def text_of(path):
    """The text of a file of the course."""
    return (HERE / path).read_text(encoding='utf-8')


def source_of(lesson):
    return text_of(f'answers/lesson{lesson}.py')


def mistakes_of(lesson):
    """The rows of marks/lesson1.tsv and so on: [(function, old, new, name)]."""
    lines = text_of(f'marks/lesson{lesson}.tsv').splitlines()
    return [line.split('\t') for line in lines[1:]]


def exercises(lesson):
    """The exercises of a lesson, in order, with their answers and mistakes."""
    listed = loaded(HERE / 'marks' / f'lesson{lesson}.py', f'marks{lesson}').EXERCISES
    source = source_of(lesson)
    answers = run(source)
    for exercise in listed:
        exercise.answer = answers[exercise.name]

    for changed_function, old, new, name in mistakes_of(lesson):
        functions = run(changed(source, changed_function, old, new), answers[changed_function])
        for exercise in listed:
            mistake = name, functions[exercise.name]
            if exercise.name == changed_function:
                exercise.mistakes.append(mistake)
            else:
                exercise.mistakes_elsewhere.append(mistake)
    return listed


# ---- what is asked, and what is expected --------------------------------------------------------

def exam(lesson, first_seed=1):
    """What a lesson asks of a file, and expects. A student's copy reads it from expected/.

    Returns {'lesson', 'questions': a list of dicts, 'source': our answers, 'lessons': {name: our
    answers for an earlier lesson}}. Each first_seed = 1, 4, 7 .. gives other numbers.
    """
    stored = HERE / 'expected' / f'lesson{lesson}.pt'
    if stored.is_file():
        return torch.load(stored, weights_only=True)
    return {
        'lesson': lesson,
        'questions': [question(exercise, first_seed, lesson) for exercise in exercises(lesson)],
        'source': source_of(lesson),
        'lessons': {f'lesson{n}': source_of(n) for n in range(1, lesson)},
    }


def question(exercise, first_seed, lesson):
    """An exercise as numbers, with what student.py needs to call the function."""
    asked = {'name': exercise.name, 'kind': exercise.kind}
    seeds = range(first_seed, first_seed + SIZES)
    if exercise.kind == 'network':
        return asked | {'sizes': [exercise.inputs(seed) for seed in seeds]}
    if exercise.kind == 'properties':
        implementations = exercise.inputs()
        random.Random(first_seed).shuffle(implementations)
        names, sources = zip(*implementations)
        return asked | {'implementations': sources, 'mistakes': names}

    # then other numbers of the first sizes, and the first numbers again: what a function keeps from
    # one call to the next gives wrong results there
    inputs = [exercise.inputs(seed) for seed in [*seeds, first_seed + SIZES, first_seed]]
    inputs += exercise.more
    if first_seed > 1:  # new numbers may by chance hide a mistake that the first ones show
        inputs += [exercise.inputs(seed) for seed in (1, 2, 3)]
    operations = 0
    if exercise.products_count:
        operations = student.operations(exercise.answer, inputs[0])
    return asked | {
        'inputs': inputs,
        'expected': [plain(exercise.answer(*ready(x))) for x in inputs],
        'parameters': list(inspect.signature(exercise.answer).parameters),
        'gradient': exercise.gradient,
        'gradients': [student.gradients(exercise.answer, x, exercise.gradient) for x in inputs],
        'trains': lesson in (4, 5, 6),  # NumPy is allowed elsewhere, which has no gradients
        'operations': operations,
        'mistakes': [exercise.mistakes, exercise.mistakes_elsewhere],
    }


def results_of(mistake, asked):
    """The results of a mistake on the inputs of a question, one after the other: None where it has
    none. In a student's copy they are stored."""
    if not callable(mistake):
        yield from mistake
        return
    for inputs in asked['inputs']:
        try:
            yield plain(mistake(*ready(inputs)))
        except Exception:  # a mistake that has no result for these shapes
            yield None


def diagnosis(asked, results):
    """The name of the mistake that gives the same results on all inputs, or ''. Mistakes in other
    functions come second: the student's function may call these, or have their lines in it."""
    for mistakes in asked['mistakes']:
        names = [name for name, mistake in mistakes if gives(mistake, asked, results)]
        names = dict.fromkeys(names)  # each once, and in order
        if names:
            return ('one of: ' if len(names) > 1 else '') + ' | '.join(names)
    return ''


def gives(mistake, asked, results):
    """Whether a mistake gives these results."""
    return not any(map(difference, results, results_of(mistake, asked)))


# ---- numbers ------------------------------------------------------------------------------------

def as_tensor(x):
    """A result of a function as a float64 tensor. Raises ValueError with what it is instead, if it
    is neither a tensor nor a number."""
    if x is None:
        raise ValueError('returns None: fill in the gap')
    if isinstance(x, (int, float)):
        x = torch.tensor(x, dtype=torch.float64)
    if not isinstance(x, torch.Tensor):
        raise ValueError(f'returns {describe(x)}, and should return a tensor')
    if x.is_complex():
        raise ValueError('returns complex numbers')
    return x.double()


def difference(yours, expected, tolerance=TOLERANCE):
    """'' if two results are equal up to rounding. Otherwise it says in words where they differ:
    first by their shape, then by the number that is off most. NaN equals NaN, because a mistake may
    give NaN too."""
    if not isinstance(expected, (dict, tuple)):
        try:
            return difference_of_tensors(as_tensor(yours), as_tensor(expected), tolerance)
        except ValueError as e:
            return str(e)
    parts = parts_of(yours)
    expected_parts = parts_of(expected)
    if parts.keys() != expected_parts.keys():
        return f'returns {describe(yours)}, and should return {describe(expected)}'
    for name, part in expected_parts.items():
        text = difference(parts[name], part, tolerance)
        if text:
            return name + text
    return ''


def parts_of(result):
    """{name: part} of a dict, or of a tuple; anything else is one part without a name."""
    if isinstance(result, dict):
        return {f"'{key}': ": part for key, part in result.items()}
    if isinstance(result, tuple):
        return {f'result {i}: ': part for i, part in enumerate(result, 1)}
    return {'': result}


def difference_of_tensors(yours, expected, tolerance):
    """difference() of two float64 tensors."""
    if yours.shape != expected.shape:
        return f'shape {tuple(yours.shape)}, expected {tuple(expected.shape)}'
    mean_size = expected.nan_to_num(0.0, 0.0, 0.0).abs().mean().item()
    tolerance *= max(1e-3, mean_size)
    is_equal = yours.isclose(expected, 0, tolerance, equal_nan=True)
    if is_equal.all():
        return ''
    gap = (yours - expected).abs().nan_to_num(math.inf).masked_fill(is_equal, -1)
    worst = tuple((gap == gap.max()).nonzero()[0].tolist())
    text = f'yours {yours[worst].item():.9g}, expected {expected[worst].item():.9g}'
    if yours.dim() > 0:
        text = f'shape {tuple(yours.shape)} is right; worst at {worst}: {text}'
    return text


def describe(x):
    """What a result is, as student.plain leaves it: a text says what it was."""
    if isinstance(x, str):
        return x
    if isinstance(x, tuple):
        return f'{len(x)} things'
    if isinstance(x, dict):
        return f'a dict with the keys {", ".join(x)}'
    return f'a {type(x).__name__}'


def describe_inputs(asked, i):
    """The inputs of a call in words: Z (7, 4), eps 0.5."""
    words = []
    for name, value in zip(asked['parameters'], ready(asked['inputs'][i])):
        if isinstance(value, torch.Tensor):
            value = tuple(value.shape)
        if isinstance(value, (tuple, float, int, str)):
            words.append(f'{name} {value}')
    return ', '.join(words)


# ---- one function -------------------------------------------------------------------------------

def verdict(asked, seen):
    """{'verdict', 'message', 'diagnosis'} of what student.py has seen of a function."""
    if seen['is_missing']:
        return {'verdict': 'missing',
                'message': f'there is no function {asked["name"]} in the file'}
    if seen.get('is_gap'):
        return {'verdict': 'empty', 'message': 'the gap is not filled in'}
    if asked['kind'] == 'network':
        return judges.network(asked, seen)
    if asked['kind'] == 'properties':
        return judges.properties(asked, seen)

    results = seen['results']
    if any(yours is None for yours in results):
        return {'verdict': 'empty', 'message': 'returns None: fill in the gap'}
    if seen['changes_inputs']:
        return wrong('changes its input; work on a copy')
    if seen.get('exception'):
        i = min(len(results), len(asked['inputs']) - 1)
        return wrong(f'{seen["exception"]}; with {describe_inputs(asked, i)}')

    for i, (yours, expected) in enumerate(zip(results, asked['expected'], strict=True)):
        problem = problem_of(yours, expected)
        if problem:
            name = diagnosis(asked, results) or what_lives_on(results, i)
            return wrong(f'call {i + 1}: {problem}; with {describe_inputs(asked, i)}', name)
    if asked['operations'] and seen['operations'] > asked['operations']:
        share = seen['operations'] / asked['operations']
        return wrong(f'the numbers are right, but products of matrices take {share:.1f} times the '
                     'operations that are enough')

    missing = gradient_problem(asked, seen['gradients'])
    if missing and asked['trains']:
        return wrong(f'the numbers are right, but {missing}',
                     'numbers without their gradient: .item(), .detach(), no_grad or NumPy')
    remark = f'; {missing}, so nothing can be trained through it' if missing else ''
    return {'verdict': 'right', 'message': f'for {len(results)} inputs{remark}'}


def problem_of(yours, expected):
    """'' if a result is right, else what is wrong with it."""
    if has_float32(yours) and not difference(yours, expected, FLOAT32_TOLERANCE):
        return ('has the rounding of float32, and inputs are float64: write dtype=Z.dtype where '
                'you make a tensor, .to(Z.dtype) behind bools and whole numbers, torch.stack and '
                'not torch.tensor for a list of tensors')
    text = difference(yours, expected)
    if text or not isinstance(expected, torch.Tensor) or expected.dim() == 0:
        return text
    if expected.dtype == torch.bool and yours.dtype != torch.bool:
        return f'returns {yours.dtype}, and should return torch.bool'
    return ''


def has_float32(result):
    """Whether float32 has rounded a result, or one of several. It does not round whole numbers."""
    if isinstance(result, (dict, tuple)):
        return any(map(has_float32, parts_of(result).values()))
    if not isinstance(result, torch.Tensor) or result.dtype != torch.float32:
        return False
    return not result.equal(result.round())


def what_lives_on(results, i):
    """A diagnosis for a function that gives other results when it is called again, or ''. i is the
    first call with a problem."""
    last = SIZES + 1
    if SIZES <= i <= last:
        return 'something that lives on from one call to the next, such as a global or a cache'
    # compared as texts, because NaN is not equal to itself
    if str(as_lists(results[0])) != str(as_lists(results[last])):
        return 'random draws without a seed: each call gives other numbers'
    return ''


def gradient_problem(asked, gradients):
    """'' if the gradients are those of the answer, else what is wrong with them."""
    for yours, expected in zip(gradients, asked['gradients']):
        if expected and not yours:
            return 'it has no gradient'
        problem = difference(yours, expected, 10 * TOLERANCE)
        if problem:
            return f'its gradient is wrong, with respect to {problem}'
    return ''


# ---- a file -------------------------------------------------------------------------------------

def result(asked_of_lesson, file, seconds, hidden=()):
    """The result of a file: {'lesson', 'file', 'functions', 'problem'}.

    'functions' is a list of {'function', 'verdict', 'message', ..}, with the verdicts right, wrong,
    empty, missing, stopped and unchecked. 'problem' says what is wrong with the file. hidden:
    folders that the file must not read.
    """
    file = file.resolve()
    deadline = time.monotonic() + seconds
    questions = asked_of_lesson['questions']
    problem, rows = judged(asked_of_lesson, questions, file, seconds, hidden)

    # a mistake is reported once, and not again in each function that calls this one
    not_right = [row['function'] for row in rows if row['verdict'] in ('wrong', 'empty')]
    for i, asked in enumerate(questions):
        others = [name for name in not_right if name != asked['name'] and is_called(name, file)]
        if rows[i]['verdict'] == 'wrong' and others and asked_of_lesson['source']:
            left = max(1.0, deadline - time.monotonic())
            _, rows_again = judged(asked_of_lesson, [asked], file, left, hidden, others)
            rows[i] = rows_again[0]
    return {
        'lesson': asked_of_lesson['lesson'],
        'file': printable(str(file)),
        'problem': problem,
        'functions': rows,
    }


def row_of(asked, functions, stopped):
    """The verdict of one function, as a dict. stopped: what ended the process."""
    row = {'function': asked['name']}
    seen = functions.get(asked['name'])
    if seen is None:
        reason = 'the file could not be read'
        if functions:
            reason = f'{list(functions)[-1]} {stopped}'
        return row | {'verdict': 'unchecked', 'message': f'not checked, because {reason}'}
    if not seen:
        return row | {'verdict': 'stopped', 'message': stopped}
    try:
        row |= verdict(asked, seen)
    except Exception as e:  # numbers of a stranger, of which some cannot even be compared
        row |= wrong(f'its results cannot be compared: {in_words(e)}')
    return row | {'message': printable(row['message'])}


def is_called(name, file):
    """Whether a file names a function more often than where it defines it."""
    text = file.read_text(encoding='utf-8', errors='replace')
    return len(re.findall(rf'\b{name}\b', text)) > 1


def without(source, names):
    """Our answers without these functions."""
    tree = ast.parse(source)
    tree.body = [node for node in tree.body if getattr(node, 'name', None) not in names]
    return ast.unparse(tree)


def judged(asked_of_lesson, questions, file, seconds, hidden, replaced=()):
    """(what is wrong with the file or '', the verdict of each function as a dict). Our functions
    stand in place of those of the file that `replaced` names."""
    text = file.read_text(encoding='utf-8', errors='replace')
    names = [asked['name'] for asked in asked_of_lesson['questions']]
    answers = asked_of_lesson['lessons'].items()
    job = {
        'file': str(file),
        'lessons': {name: source for name, source in answers if name in text},
        'replaced': replaced,
        'ours': without(asked_of_lesson['source'], {*names} - {*replaced}),
        'hidden': [HERE / 'answers', HERE / 'marks', *hidden],
    }
    needed = ('name', 'kind', 'inputs', 'gradient', 'operations', 'sizes', 'implementations')
    calls = io.BytesIO()
    torch.save([{key: asked[key] for key in needed if key in asked} for asked in questions], calls)
    job['calls'] = calls.getvalue()

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        # opened before the file runs, which may put anything else under this name
        with open(Path(folder) / 'results', 'w+b') as results:
            timed_out = run_student(job | {'results': results.name}, seconds)
            written = read(results)
    stopped = 'ended the program'
    if timed_out:
        stopped = f'did not end within {seconds:g} s: an endless loop?'

    functions = written['functions']
    problem = printable(written['file'])
    if not problem and not functions:
        problem = f'the file {stopped}'
    return problem, [row_of(asked, functions, stopped) for asked in questions]


def run_student(job, seconds):
    """Run student.main in a process, and end it after so many seconds, with what it has started.
    Returns whether it was stopped. Where there is a fork server PyTorch is there before the time
    begins."""
    process = PROCESSES.Process(target=student.main, kwargs=job)
    process.start()
    try:
        process.join(seconds)   # until the process ends, whatever it has started
        return process.exitcode is None
    finally:  # also at Ctrl-C, which does not reach a process of another session
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (AttributeError, ProcessLookupError):  # Windows has no groups; nothing is left of it
            pass
        process.kill()
        process.join()


def read(results):
    """What student.py has written. A stranger's file may have written anything there, so it is read
    without pickle, up to a size; if that fails, nothing was seen."""
    try:
        size = sum(member.file_size for member in zipfile.ZipFile(results).infolist())
        if size <= BYTES_OF_RESULTS:
            results.seek(0)
            written = torch.load(results, weights_only=True)
            functions = {str(name): dict(seen) for name, seen in written['functions'].items()}
            return {'file': str(written['file']), 'functions': functions}
    except Exception:  # zipfile and PyTorch have a dozen kinds for a file that is broken
        pass
    return {'file': '', 'functions': {}}
