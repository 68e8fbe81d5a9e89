"""Grade one file of a student. check.py starts this program in a process of its own, which may hang
or die.

    python grade.py LESSON FILE

A student's function is compared with the answer in answers/, on the inputs of marks/lesson1.py and
so on. tests/test_course.py holds the answers equal to our networks. A mistake is an answer in which
a few characters are changed: a line of marks/lesson1.tsv and so on. If a mistake gives the
student's numbers on all inputs, its name is the diagnosis.
"""
import argparse
import contextlib
import copy
import importlib.util
import inspect
import io
import itertools
import json
import math
import os
import re
import sys
import traceback
import types
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

HERE = Path(__file__).resolve().parent
SEEDS = 1, 2, 3
TOLERANCE = 1e-7  # relative to the largest number of the expected result
FLOAT32_TOLERANCE = 1e-4
MEMORY = 4 << 30  # bytes
EMPTY = 'the gap is not filled in'


@dataclass
class Exercise:
    """A function that a student writes."""
    name: str
    inputs: object              # seed -> the arguments of the function
    extra_check: object = None  # function -> '', or what is wrong although its numbers are right
    judge: object = None        # function -> its verdict, where many answers are right
    answer: object = None       # the function in answers/
    # a mistake is (its name, the answer with this mistake in it)
    mistakes: list = field(default_factory=list)
    mistakes_elsewhere: list = field(default_factory=list)  # in other functions of the lesson


def normal(seed):
    """randn(*shape), which draws float64 tensors from N(0, 1), one after the other."""
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    return randn


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


def exercises(lesson):
    """The exercises of a lesson, in order, with their answers and mistakes."""
    listed = loaded(HERE / 'marks' / f'lesson{lesson}.py', f'marks{lesson}').EXERCISES
    source = (HERE / 'answers' / f'lesson{lesson}.py').read_text(encoding='utf-8')
    answers = run(source)
    for exercise in listed:
        # a run for each: a student's file that gets hold of one answer reaches no other
        exercise.answer = run(source)[exercise.name]

    table = (HERE / 'marks' / f'lesson{lesson}.tsv').read_text(encoding='utf-8')
    for line in table.splitlines()[1:]:
        changed_function, old, new, name = line.split('\t')
        right = answers[changed_function]
        functions = run(changed(source, changed_function, old, new), right)
        for exercise in listed:
            mistake = name, functions[exercise.name]
            if exercise.name == changed_function:
                exercise.mistakes.append(mistake)
            else:
                exercise.mistakes_elsewhere.append(mistake)
    return listed


def diagnosis(exercise, results):
    """The name of the mistake that gives the same results on all inputs, or ''. `results` is a list
    of (inputs, the student's result). Mistakes in other functions come second: the student's
    function may call these, or have their lines in it."""
    if same(exercise.answer, results):  # the numbers are right, and the problem is float32
        return ''
    for mistakes in (exercise.mistakes, exercise.mistakes_elsewhere):
        names = []
        for name, mistake in mistakes:
            if name not in names and same(mistake, results):
                names.append(name)
        if names:
            return one_of(names)
    return diagnosis_of_wrong_results(exercise, results)


def one_of(names):
    """The names of mistakes that give the same results, in words; '' without names."""
    words = ' | '.join(names)
    return f'one of: {words}' if len(names) > 1 else words


def diagnosis_of_wrong_results(exercise, results):
    """For a function that returns several things, of which some are right: the name of the mistake
    that gives the wrong ones on all inputs, or ''."""
    inputs, _ = results[0]
    expected = exercise.answer(*copy.deepcopy(inputs))
    if not isinstance(expected, tuple):
        return ''
    for _, yours in results:
        if not isinstance(yours, (tuple, list)) or len(yours) != len(expected):
            return ''

    wrong = {}                                          # {place: [(inputs, the student's result)]}
    for place in range(len(expected)):
        results_there = [(inputs, yours[place]) for inputs, yours in results]
        if not same(result_at(place, exercise.answer), results_there):
            wrong[place] = results_there
    if len(wrong) == len(expected):
        return ''

    names = []
    for name, mistake in exercise.mistakes:
        is_same = all(same(result_at(place, mistake), wrong[place]) for place in wrong)
        if is_same and name not in names:
            names.append(name)
    return one_of(names)


def result_at(place, function):
    """A function that returns one of the things that another one returns."""
    def result(*inputs):
        return function(*inputs)[place]
    return result


def same(mistake, results):
    """Whether a mistake, which changes no input, gives these results. One that raises an exception
    does not."""
    try:
        for inputs, yours in results:
            if difference(yours, mistake(*inputs)):
                return False
    except Exception:  # a mistake that has no result for these shapes
        return False
    return True


# ---- numbers ------------------------------------------------------------------------------------

def as_lists(x):
    """Tensors, also inside of dicts and tuples, as lists of numbers."""
    if isinstance(x, torch.Tensor):
        return x.tolist()
    if isinstance(x, dict):
        return {name: as_lists(value) for name, value in x.items()}
    if isinstance(x, (tuple, list)):
        return [as_lists(value) for value in x]
    return x


def number(value):
    return f'{value:.6g}'


def as_tensor(x):
    """A result of a function as a float64 tensor. Raises ValueError with what it is instead, if it
    is neither a tensor nor a number."""
    if x is None:
        raise ValueError('returns None: fill in the gap')
    if isinstance(x, np.generic):  # a number or a bool of scipy
        x = x.item()
    if isinstance(x, (int, float)):
        try:
            x = torch.tensor(x, dtype=torch.float64)
        except OverflowError:
            raise ValueError('returns a number that is too large for float64') from None
    if not isinstance(x, torch.Tensor):
        raise ValueError(f'returns {describe(x)}, and should return a tensor')
    if x.is_complex():
        raise ValueError('returns complex numbers')
    return x.detach().double()


def difference(yours, expected, tolerance=TOLERANCE):
    """'' if two results are equal up to rounding. Otherwise it says in words where they differ:
    first by their shape, then by the number that is off most. NaN equals NaN, because a mistake may
    give NaN too."""
    if isinstance(expected, dict):
        if not isinstance(yours, dict) or yours.keys() != expected.keys():
            keys = ', '.join(expected)
            return f'returns {describe(yours)}, and should return a dict with the keys {keys}'
        for key in expected:
            text = difference(yours[key], expected[key], tolerance)
            if text:
                return f"'{key}': {text}"
        return ''

    if isinstance(expected, tuple):
        if not isinstance(yours, (tuple, list)) or len(yours) != len(expected):
            return f'returns {describe(yours)}, and should return {len(expected)} things'
        for i in range(len(expected)):
            text = difference(yours[i], expected[i], tolerance)
            if text:
                return f'result {i + 1}: {text}'
        return ''

    try:
        return difference_of_tensors(as_tensor(yours), as_tensor(expected), tolerance)
    except ValueError as e:
        return str(e)


def difference_of_tensors(yours, expected, tolerance):
    """difference() of two float64 tensors."""
    if yours.shape != expected.shape:
        return f'shape {tuple(yours.shape)}, expected {tuple(expected.shape)}'
    nan_differs = yours.isnan() != expected.isnan()
    if nan_differs.any():
        return f'has NaN, first at {first_place(nan_differs)}'

    gap = (yours - expected).abs().nan_to_num(0.0, posinf=math.inf)
    if gap.numel() == 0:
        return ''
    largest = expected.nan_to_num(0.0, 0.0, 0.0).abs().max().item()
    if gap.max() <= tolerance * max(1e-3, largest):
        return ''

    worst = first_place(gap == gap.max())
    your_number = yours[worst].item()
    right_number = expected[worst].item()
    text = f'yours {number(your_number)}, expected {number(right_number)}'
    if number(your_number) == number(right_number):
        text = f'yours {your_number:.9g}, expected {right_number:.9g}'
    if yours.dim() > 0:
        text = f'shape {tuple(yours.shape)} is right; worst at {worst}: {text}'
    return text


def first_place(where_true):
    """The index of the first True of a tensor."""
    return tuple(where_true.nonzero()[0].tolist())


def describe(x):
    if isinstance(x, (tuple, list)):
        return f'{len(x)} things'
    return f'a {type(x).__name__}'


# ---- float32 ------------------------------------------------------------------------------------

class Float32Watch(TorchFunctionMode):
    """Inside of `with`, it finds out where float32 tensors come from. `sources` is {id of a tensor:
    the line of the student's file where float32 came in, with advice}."""

    def __init__(self, file, dtype):
        super().__init__()
        self.file = file
        self.dtype = dtype  # how the student writes the dtype of the inputs
        self.sources = {}
        self.tensors = []   # they stay alive, so that no new tensor gets the id of an old one

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        inputs = float32_tensors(args)
        if inputs:
            # blame an input that is rounded, rather than one of whole numbers, such as torch.eye
            rounded = [x for x in inputs if not is_whole(x)]
            source = self.sources.get(id((rounded or inputs)[0]))
        else:
            line = last_line(traceback.extract_stack(), self.file)
            source = line + float32_advice(function.__name__, result, self.dtype)
        for x in float32_tensors(result):
            self.sources.setdefault(id(x), source)
            self.tensors.append(x)
        return result


def float32_source(function, inputs, file):
    """Which line of a student's function made its result float32, and what to write instead."""
    dtype = 'torch.float64'
    for name, value in zip(parameter_names(function), inputs):
        if isinstance(value, torch.Tensor) and value.dtype == torch.float64:
            dtype = f'{name}.dtype'
            break
    watch = Float32Watch(file, dtype)
    with watch:
        result = call_again(function, inputs)
    _, tensor = float32_result(result)
    general_advice = 'give new tensors, and a bool times a number, the dtype of the inputs'
    return watch.sources.get(id(tensor)) or general_advice


def float32_advice(call, result, dtype):
    """What to write where a call of PyTorch makes a float32 tensor."""
    if call in ('tensor', 'as_tensor'):
        if result.dim() == 0:
            return 'torch.tensor of a number makes float32: write dtype=torch.float64'
        return ('torch.tensor of a list makes float32: write dtype=torch.float64, '
                'or torch.stack the tensors')
    if call in ('zeros', 'ones', 'eye', 'arange', 'empty', 'full', 'linspace', 'rand', 'randn'):
        return f'torch.{call} makes float32: give it dtype={dtype}'
    if call in ('float', 'to', 'type'):
        return f'.{call} makes float32: write .to({dtype})'
    return f'{call} of bools or whole numbers makes float32: turn them into {dtype} first'


def float32_result(result):
    """(its name, the tensor) of the first float32 tensor in a result; ('', None) if there is none.
    A tensor of whole numbers does not count, because float32 does not round them."""
    several = isinstance(result, (tuple, list))
    results = result if several else [result]
    for i, x in enumerate(results, 1):
        name = f'result {i}' if several else 'the result'
        for tensor in float32_tensors(x):
            if not is_whole(tensor):
                return name, tensor
    return '', None


def is_whole(x):
    """Whether all numbers of a tensor are whole, which float32 does not round."""
    return torch.equal(x, x.round())


def float32_tensors(x):
    return [tensor for tensor in tensors_in(x) if tensor.dtype == torch.float32]


def tensors_in(x):
    """The tensors in nested tuples, lists and dicts."""
    if isinstance(x, torch.Tensor):
        return [x]
    if isinstance(x, dict):
        x = list(x.values())
    tensors = []
    if isinstance(x, (tuple, list)):
        for value in x:
            tensors += tensors_in(value)
    return tensors


def has_float64(x):
    """Whether a float64 tensor or a Python float is in nested tuples, lists and dicts."""
    if isinstance(x, dict):
        x = list(x.values())
    if isinstance(x, (tuple, list)):
        return any(has_float64(value) for value in x)
    return isinstance(x, float) or getattr(x, 'dtype', None) == torch.float64


# ---- one function -------------------------------------------------------------------------------

def grade(exercise, function, file, seeds=SEEDS):  # bound here, out of a student's reach
    """{'verdict', 'message', 'diagnosis'} of a student's function, which stands in `file`."""
    results = []
    first_problem = ''
    for seed in seeds:
        inputs = exercise.inputs(seed)
        inputs_in_use = copy.deepcopy(inputs)
        with_inputs = f'with {describe_inputs(inputs, function)}'
        try:
            yours = function(*inputs_in_use)
        except BaseException as e:  # whatever a student's file does
            if is_gap(e, function):
                return {'verdict': 'empty', 'message': EMPTY}
            return {'verdict': 'wrong', 'message': f'{failure(e, file)}; {with_inputs}'}
        if yours is None or yours is Ellipsis:
            return {'verdict': 'empty', 'message': 'returns None: fill in the gap'}
        if as_lists(inputs_in_use) != as_lists(inputs):
            return {'verdict': 'wrong', 'message': 'changes its input; work on a copy'}

        expected = exercise.answer(*copy.deepcopy(inputs))
        problem = difference(yours, expected)
        result_name, tensor = float32_result(yours)
        is_float32 = tensor is not None and has_float64(inputs)
        if is_float32 and not difference(yours, expected, FLOAT32_TOLERANCE):
            problem = f'{result_name} is float32; {float32_source(function, inputs, file)}'
        if problem and not first_problem:
            first_problem = f'seed {seed}: {problem}; {with_inputs}'
        results.append((inputs, yours))

    if first_problem:
        mistake = diagnosis(exercise, results)
        if not mistake and differs_when_repeated(function, results):
            mistake = 'random draws without a seed: each call gives other numbers'
        return {'verdict': 'wrong', 'message': first_problem, 'diagnosis': mistake}
    if exercise.extra_check:
        try:
            problem = exercise.extra_check(function)
        except Exception as e:
            problem = in_words(e)
        if problem:
            return {'verdict': 'wrong', 'message': problem}
    return {'verdict': 'right', 'message': f'for {len(seeds)} seeds'}


def differs_when_repeated(function, results):
    """Whether a function gives other tensors for the same inputs when it is called again. `results`
    is a list of (inputs, its first result)."""
    for inputs, first_result in results:
        result = call_again(function, inputs)
        # compared as texts, because NaN is not equal to itself
        new_text = str(as_lists(tensors_in(result)))
        if result is not None and new_text != str(as_lists(tensors_in(first_result))):
            return True
    return False


def call_again(function, inputs):
    """The result of a function that ran a moment ago; None if it raises an exception now. What it
    prints is not counted twice."""
    try:
        with contextlib.redirect_stdout(Printed()):
            return function(*copy.deepcopy(inputs))
    except BaseException:  # whatever a student's file does
        return None


def describe_inputs(inputs, function):
    """The inputs of a function in words: Z (7, 4), eps 0.5."""
    names = parameter_names(function)
    words = []
    for i, value in enumerate(inputs):
        if isinstance(value, torch.Tensor):
            text = str(tuple(value.shape))
        elif isinstance(value, (dict, list, tuple)) or callable(value):
            text = f'a {type(value).__name__}'
        elif isinstance(value, float):
            text = number(value)
        else:
            text = repr(value)
        if i < len(names):
            text = f'{names[i]} {text}'
        words.append(text)
    return ', '.join(words)


def parameter_names(function):
    """The names of the parameters of a function; [] if it does not tell them."""
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return []


def failure(exception, file):
    """An exception in words, with the line of the student's file that raised it."""
    if isinstance(exception, SyntaxError) and exception.filename == str(file):
        line = f'line {exception.lineno}: '
    else:
        line = last_line(traceback.extract_tb(exception.__traceback__), file)
    return line + in_words(exception)


def last_line(frames, file):
    """'line 7: ' for the last frame that is in a file; '' if none is."""
    lines = [frame.lineno for frame in frames if frame.filename == str(file)]
    return f'line {lines[-1]}: ' if lines else ''


def in_words(exception):
    try:
        text = str(exception.msg if isinstance(exception, SyntaxError) else exception)
    except Exception:  # the exception of a student can do that
        text = ''
    words = ' '.join(text.split())[:200]
    name = type(exception).__name__
    return f'{name}: {words}' if words else name


def is_gap(exception, function):
    """Whether an exception is that of a gap, in the file in which a student's function or class
    stands. A gap in a file that this one imports is none."""
    if not isinstance(exception, NotImplementedError):
        return False
    try:
        file = inspect.getfile(function)
    except (TypeError, OSError):  # it is neither a function nor a class
        return False
    return traceback.extract_tb(exception.__traceback__)[-1].filename == file


# ---- a file -------------------------------------------------------------------------------------

class Printed(io.TextIOBase):
    """Where a student's file prints to. It counts the lines, and does not keep them."""
    lines = 0

    def write(self, text):
        self.lines += text.count('\n')
        return len(text)


def loaded(path, name):
    """A Python file as a module."""
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def put_answers_in_other_lessons(lesson, file):
    """Put our answers into the lessons that a student's file imports. The files beside this program
    may have gaps, anybody's solutions, or a mistake that Python cannot read. With our answers the
    verdict does not depend on them."""
    source = Path(file).read_text(encoding='utf-8', errors='replace')
    for path in sorted((HERE / 'answers').glob('lesson[1-9].py')):
        name = path.stem
        if name == f'lesson{lesson}' or name not in source:
            continue
        try:
            module = loaded(HERE / path.name, name)
        except BaseException:  # whatever is in that file
            module = types.ModuleType(name)
            sys.modules[name] = module
        for function_name, value in run(path.read_text(encoding='utf-8')).items():
            if inspect.isfunction(value):
                setattr(module, function_name, value)


def limit_memory():
    try:
        import resource
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    except (ImportError, ValueError, OSError):  # Windows has no limit, or a lower one is set
        pass


def verdict_of(exercise, function, file):
    """The verdict of what stands in a student's file under the name of an exercise."""
    if not callable(function):
        message = f'there is no function {exercise.name} in the file'
        return {'verdict': 'missing', 'message': message}
    if not exercise.judge:
        return grade(exercise, function, file)
    try:
        return exercise.judge(function)
    except BaseException as e:  # whatever a student's file does
        if is_gap(e, function):
            return {'verdict': 'empty', 'message': EMPTY}
        return {'verdict': 'wrong', 'message': failure(e, file)}


def main(lesson, file):
    out = os.fdopen(os.dup(1), 'w', encoding='utf-8')
    # what the student's file prints goes elsewhere, also what it prints without sys.stdout
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    printed = Printed()
    sys.stdout = printed
    sys.stderr = printed
    warnings.simplefilter('ignore')  # those of PyTorch are no lines that the file printed

    def report(**values):
        print(json.dumps(values), file=out, flush=True)

    torch.set_num_threads(1)
    listed = exercises(lesson)
    report(names=[exercise.name for exercise in listed])
    put_answers_in_other_lessons(lesson, file)
    limit_memory()
    try:
        module = loaded(file, 'student')
    except BaseException as e:  # whatever a student's file does
        report(file=failure(e, file))
        return

    for exercise in listed:
        report(begin=exercise.name)
        result = verdict_of(exercise, getattr(module, exercise.name, None), file)
        # a mistake is reported once, and not again in each function that calls this one
        if result['verdict'] in ('wrong', 'empty') and not exercise.judge:
            setattr(module, exercise.name, exercise.answer)
        report(function=exercise.name, **result)
    report(end=printed.lines)


if __name__ == '__main__':
    sys.path.insert(1, str(HERE.parent))  # a student's network may import ours
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('lesson', metavar='LESSON', type=int)
    parser.add_argument('file', metavar='FILE', type=Path)
    args = parser.parse_args()
    main(args.lesson, args.file.resolve())
