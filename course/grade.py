"""Grade one file of a student: started by check.py in a process of its own, which may hang or die.

    python grade.py LESSON FILE

A student's function is compared with the answer in answers/, which tests/test_course.py holds equal to our networks, on
the inputs of marks/lesson1.py and so on. A mistake is the answer with a few characters changed, a line of
marks/lesson1.tsv: where it gives the student's numbers on all inputs, its name is the diagnosis.
"""
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
from dataclasses import dataclass
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
SEEDS = 1, 2, 3
TIGHT = 1e-7  # of the largest number that is expected
MEMORY = 4 << 30  # bytes


@dataclass
class Exercise:
    """A function that a student writes."""
    name: str
    inputs: object                  # seed -> its arguments: tensors (float64), numbers, dicts of tensors
    also: object = None             # function -> '' or what else is wrong with it
    own: object = None              # function -> result, instead of a comparison with the answer
    answer: object = None           # the function in answers/
    mistakes: tuple = ()            # [(name, function)] of its own, then those of the lesson's other functions


# ---- mistakes -------------------------------------------------------------------------------------------------------

def changed(source, function, old, new):
    """The source of a lesson's answers with a mistake in a function, or elsewhere if it lacks the fragment. A `new`
    that ends with # leaves out the rest of the line."""
    part = re.search(rf'^(def|class) {function}\b.*?(?=^\S|\Z)', source, re.M | re.S)[0]
    part = part if old in part else source
    assert part.count(old) == 1, f'{function}: {old} is there {part.count(old)} times'
    return source.replace(part, part.replace(old, new))


def run(source):
    """The functions of a source, in which a mistake may need some names that the answers do not import."""
    space = {'__name__': 'answers', 'F': torch.nn.functional, 'itertools': itertools, 'math': math}
    exec(source, space)
    return space


def exercises(lesson):
    """The exercises of a lesson, in order, with their answers and mistakes."""
    listed = loaded(HERE / 'marks' / f'lesson{lesson}.py', f'marks{lesson}').EXERCISES
    source = (HERE / 'answers' / f'lesson{lesson}.py').read_text(encoding='utf-8')
    table = (HERE / 'marks' / f'lesson{lesson}.tsv').read_text(encoding='utf-8').splitlines()[1:]
    wrong = [(function, name, run(changed(source, function, old, new)))
             for function, old, new, name in (line.split('\t') for line in table)]
    for e in listed:
        e.answer = run(source)[e.name]
        e.mistakes = tuple([(name, functions[e.name]) for of, name, functions in wrong if (of == e.name) == own]
                           for own in (True, False))
    return listed


def diagnosis(exercise, results):
    """The mistake that gives the same results on all inputs, or ''. Those of other functions come second: this one may
    call them, or have their lines in it."""
    if same(exercise.answer, results):  # only rounded in another way
        return ''
    for mistakes in exercise.mistakes:
        found = {name: None for name, mistake in mistakes if same(mistake, results)}
        if found:
            return 'one of: ' * (len(found) > 1) + ' | '.join(found)
    return ''


def same(mistake, results):
    try:
        return all(not difference(yours, mistake(*copy.deepcopy(given))) for given, yours in results)
    except Exception:  # a mistake that has no result for these shapes
        return False


# ---- numbers --------------------------------------------------------------------------------------------------------

def as_lists(x):
    """Tensors, also inside of dicts and tuples, as lists of floats."""
    if isinstance(x, torch.Tensor):
        return x.tolist()
    if isinstance(x, dict):
        return {k: as_lists(v) for k, v in x.items()}
    return [as_lists(v) for v in x] if isinstance(x, (tuple, list)) else x


def number(v):
    return f'{v:.6g}'


def as_tensor(x):
    """What a function returned as a float64 tensor. Raises ValueError with what it is instead."""
    if x is None:
        raise ValueError('returns None: fill in the gap')
    if isinstance(x, (int, float)):
        x = torch.tensor(x, dtype=torch.float64)
    if not isinstance(x, torch.Tensor):
        raise ValueError(f'returns {describe(x)}, and should return a tensor')
    if x.is_complex():
        raise ValueError('returns complex numbers')
    return x.detach().double()


def difference(yours, expected, within=TIGHT):
    """'' if two results are equal up to rounding, or in words where they differ: first the shape, then the worst of all
    numbers. NaN equals NaN, which a mistake may give."""
    if isinstance(expected, dict):
        if not isinstance(yours, dict) or yours.keys() != expected.keys():
            return f'returns {describe(yours)}, and should return a dict with the keys {", ".join(expected)}'
        each = {k: difference(yours[k], e, within) for k, e in expected.items()}
        return next((f"'{k}': {found}" for k, found in each.items() if found), '')
    if isinstance(expected, tuple):
        if not isinstance(yours, (tuple, list)) or len(yours) != len(expected):
            return f'returns {describe(yours)}, and should return {len(expected)} things'
        each = (difference(y, e, within) for y, e in zip(yours, expected))
        return next((f'result {i + 1}: {found}' for i, found in enumerate(each) if found), '')
    try:
        yours, expected = as_tensor(yours), as_tensor(expected)
    except ValueError as e:
        return str(e)
    if yours.shape != expected.shape:
        return f'shape {tuple(yours.shape)}, expected {tuple(expected.shape)}'
    odd = yours.isnan() != expected.isnan()
    if odd.any():
        return f'has NaN, first at {place(odd)}'
    gap = (yours - expected).abs().nan_to_num(0.0, posinf=math.inf)
    if not gap.numel() or gap.max() <= within * max(1e-3, expected.nan_to_num(0.0, 0.0, 0.0).abs().max().item()):
        return ''
    at = place(gap == gap.max())
    shown = f'shape {tuple(yours.shape)} is right; worst at {at}: ' if yours.dim() else ''
    a, b = yours[at].item(), expected[at].item()
    return f'{shown}yours {a:.9g}, expected {b:.9g}' if number(a) == number(b) else \
        f'{shown}yours {number(a)}, expected {number(b)}'


def place(which):
    return tuple(which.nonzero()[0].tolist())


def describe(x):
    return f'{len(x)} things' if isinstance(x, (tuple, list)) else f'a {type(x).__name__}'


# ---- one function ---------------------------------------------------------------------------------------------------

def grade(exercise, function, file, seeds=SEEDS):  # bound here, out of a student's reach
    """{'verdict', 'message', 'diagnosis'} of a student's function."""
    results, wrong = [], ''
    for seed in seeds:
        given = exercise.inputs(seed)
        mine = copy.deepcopy(given)
        try:
            yours = function(*mine)
        except BaseException as e:  # whatever a student's file does
            if is_gap(e, function):
                return {'verdict': 'empty', 'message': 'the gap is not filled in'}
            return {'verdict': 'wrong', 'message': f'{where(e, file)}{in_words(e)}; {shapes(given, function)}'}
        if yours is None or yours is Ellipsis:
            return {'verdict': 'empty', 'message': 'returns None: fill in the gap'}
        if as_lists(mine) != as_lists(given):
            return {'verdict': 'wrong', 'message': 'changes its input; work on a copy'}
        expected = exercise.answer(*copy.deepcopy(given))
        text = difference(yours, expected)
        if in_float32(yours) and in_float64(given) and not difference(yours, expected, 1e-4):
            text = 'is computed in float32, and the inputs are float64: give new tensors, and a bool times a number, ' \
                'the dtype of the inputs'
        wrong = wrong or text and f'seed {seed}: {text}; {shapes(given, function)}'
        results.append((given, yours))
    if wrong:
        return {'verdict': 'wrong', 'message': wrong, 'diagnosis': diagnosis(exercise, results)}
    try:
        more = exercise.also(function) if exercise.also else ''
    except Exception as e:
        more = in_words(e)
    if more:
        return {'verdict': 'wrong', 'message': more}
    return {'verdict': 'right', 'message': f'for {len(seeds)} seeds'}


def in_float64(x):
    if isinstance(x, (tuple, list, dict)):
        return any(map(in_float64, x.values() if isinstance(x, dict) else x))
    return isinstance(x, float) or getattr(x, 'dtype', None) == torch.float64


def in_float32(x):
    return isinstance(x, torch.Tensor) and x.dtype in (torch.float32, torch.float16, torch.bfloat16) or \
        isinstance(x, (tuple, list)) and any(map(in_float32, x))


def shapes(given, function):
    """The inputs of a function in words: Z (7, 4), eps 0.5."""
    def one(x):
        return f'{tuple(x.shape)}' if isinstance(x, torch.Tensor) else f'a {type(x).__name__}' \
            if isinstance(x, (dict, list, tuple)) or callable(x) else number(x) if isinstance(x, float) else repr(x)
    try:
        names = [*inspect.signature(function).parameters]
    except (TypeError, ValueError):
        names = []
    return 'with ' + ', '.join(' '.join(pair) for pair in zip(names + [''] * len(given), map(one, given)))


def in_words(e):
    try:
        said = ' '.join(str(e.msg if isinstance(e, SyntaxError) else e).split())
    except Exception:  # a student's exception can do that
        said = ''
    return f'{type(e).__name__}: {said[:200]}' if said else type(e).__name__


def where(e, file):
    """The line of the student's file that raised an exception."""
    if isinstance(e, SyntaxError) and e.filename == str(file):
        return f'line {e.lineno}: '
    lines = [frame.lineno for frame in traceback.extract_tb(e.__traceback__) if frame.filename == str(file)]
    return f'line {lines[-1]}: ' if lines else ''


def is_gap(e, function):
    """Whether an exception is that of a gap in the file of a student's function, and not in a file that it imports."""
    frames = traceback.extract_tb(e.__traceback__)
    code = getattr(function, '__code__', None)
    return isinstance(e, NotImplementedError) and code is not None and frames[-1].filename == code.co_filename


# ---- a file ---------------------------------------------------------------------------------------------------------

class Printed(io.TextIOBase):
    """Where a student's file prints: lines are counted, and not kept."""
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
    """A student's file may import functions of other lessons. The lecturer's files there have gaps, or solutions: our
    answers take their place, so that a right function is right whoever has filled them in."""
    source = Path(file).read_text(encoding='utf-8', errors='replace')
    for path in sorted((HERE / 'answers').glob('lesson[1-9].py')):
        other = path.stem
        if other == f'lesson{lesson}' or other not in source:
            continue
        module = loaded(HERE / path.name, other)
        for name, value in run(path.read_text(encoding='utf-8')).items():
            if inspect.isfunction(value):
                setattr(module, name, value)


def limit_memory():
    try:
        import resource
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    except (ImportError, ValueError, OSError):  # Windows has no such limit, and somebody may have set a lower one
        pass


def main(lesson, file):
    out = os.fdopen(os.dup(1), 'w', encoding='utf-8')       # the student's file prints elsewhere
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    sys.stdout = sys.stderr = printed = Printed()

    def say(**what):
        print(json.dumps(what), file=out, flush=True)
    torch.set_num_threads(1)
    listed = exercises(lesson)
    say(names=[e.name for e in listed])
    put_answers_in_other_lessons(lesson, file)
    limit_memory()
    try:
        module = loaded(file, 'student')
    except BaseException as e:
        say(file=f'{where(e, file)}{in_words(e)}')
        return
    for e in listed:
        say(begin=e.name)
        function = getattr(module, e.name, None)
        if not callable(function):
            result = {'verdict': 'missing', 'message': f'there is no function {e.name} in the file'}
        elif e.own:
            try:
                result = e.own(function)
            except BaseException as error:
                result = {'verdict': 'wrong', 'message': f'{where(error, file)}{in_words(error)}'}
                if is_gap(error, function):
                    result = {'verdict': 'empty', 'message': 'the gap is not filled in'}
        else:
            result = grade(e, function, file)
            if result['verdict'] != 'right':  # a mistake is told once, not in each function that calls this one
                setattr(module, e.name, e.answer)
        say(function=e.name, **result)
    say(end=printed.lines)


if __name__ == '__main__':
    sys.path.insert(1, str(HERE.parent))  # a student's network may import ours
    main(int(sys.argv[1]), Path(sys.argv[2]).resolve())
