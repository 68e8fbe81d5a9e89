"""Grade one file of a student: started by check.py in a process of its own, which may hang or die.

    python grade.py LESSON FILE

A lesson's exercises are in marks/lesson1.py and so on. The oracle of each is a loop over plain numbers,
written from the equation; the student's own functions are never used to compare.
"""
import importlib.util
import inspect
import io
import json
import os
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
if str(HERE.parent) not in sys.path:  # the marks import our networks
    sys.path.insert(0, str(HERE.parent))
SEEDS = 1, 2, 3
TIGHT = 1e-7  # of the largest number that is expected


@dataclass
class Exercise:
    """A function that a student writes."""
    name: str
    inputs: object                  # seed -> its arguments: tensors (float64), numbers, dicts of tensors
    oracle: object                  # the same as lists of floats -> what to expect, as lists, or a tuple of such
    mutants: dict                   # {'the softmax over the queries': a function of the same arguments}
    variants: list                  # other right ways to compute it
    hints: tuple                    # a question, the equation, a skeleton
    also: object = None             # function -> '' or what else is wrong with it
    own: object = None              # function -> result, instead of everything above but hints
    says: str = ''                  # what to say if it is right, in place of the usual


# ---- numbers --------------------------------------------------------------------------------------------------------

def as_lists(x):
    """Tensors, also inside of dicts and tuples, as lists of floats."""
    if isinstance(x, torch.Tensor):
        return x.tolist()
    if isinstance(x, dict):
        return {k: as_lists(v) for k, v in x.items()}
    return [as_lists(v) for v in x] if isinstance(x, (tuple, list)) else x


def copied(x):
    """The same, with tensors that can be written to without harm."""
    if isinstance(x, torch.Tensor):
        return x.clone()
    if isinstance(x, dict):
        return {k: copied(v) for k, v in x.items()}
    return type(x)(copied(v) for v in x) if isinstance(x, (tuple, list)) else x


def number(v):
    return f'{v:.6g}'


def as_tensor(x):
    """What a function returned as a float64 tensor. Raises ValueError with what it is instead."""
    if x is None:
        raise ValueError('returns None: fill in the gap')
    if isinstance(x, (int, float)):
        x = torch.tensor(float(x))
    if not isinstance(x, torch.Tensor):
        raise ValueError(f'returns a {type(x).__name__}, and should return a tensor')
    if x.is_complex():
        raise ValueError('returns complex numbers')
    return x.detach().double()


def difference(yours, expected, within=TIGHT):
    """'' if two results are equal up to rounding, or in words where they differ: first the shape, then
    the worst of all numbers. expected: lists of floats, or a tuple of such."""
    if isinstance(expected, tuple):
        if not isinstance(yours, (tuple, list)) or len(yours) != len(expected):
            return f'returns {describe(yours)}, and should return {len(expected)} things'
        each = (difference(y, e, within) for y, e in zip(yours, expected))
        return next((f'result {i + 1}: {found}' for i, found in enumerate(each) if found), '')
    try:
        yours = as_tensor(yours)
    except ValueError as e:
        return str(e)
    expected = torch.tensor(expected, dtype=torch.float64)
    if yours.shape != expected.shape:
        return f'shape {tuple(yours.shape)}, expected {tuple(expected.shape)}'
    if yours.isnan().any():
        return f'has NaN, first at {place(yours.isnan())}'
    gap = (yours - expected).abs()
    if not gap.numel() or gap.max() <= within * max(1e-3, expected.abs().max().item()):
        return ''
    at = place(gap == gap.max())
    shown = f'shape {tuple(yours.shape)} is right; worst at {at}: ' if yours.dim() else ''
    return f'{shown}yours {number(yours[at].item())}, expected {number(expected[at].item())}'


def place(which):
    return tuple(which.nonzero()[0].tolist())


def describe(x):
    return f'{len(x)} things' if isinstance(x, (tuple, list)) else f'a {type(x).__name__}'


# ---- one function ---------------------------------------------------------------------------------------------------

def grade(exercise, function, file, seeds=SEEDS):  # bound here, out of a student's reach
    """{'verdict', 'message', 'diagnosis'} of a student's function."""
    results = []
    for seed in seeds:
        given = exercise.inputs(seed)
        expected = exercise.oracle(*as_lists(given))
        mine = copied(given)
        try:
            yours = function(*mine)
        except NotImplementedError:
            return {'verdict': 'empty', 'message': 'the gap is not filled in'}
        except BaseException as e:  # whatever a student's file does
            return {'verdict': 'wrong', 'message': f'{where(e, file)}{in_words(e)}; {shapes(given, function)}'}
        if yours is None or yours is Ellipsis:
            return {'verdict': 'empty', 'message': 'returns None: fill in the gap'}
        if as_lists(mine) != as_lists(given):
            return {'verdict': 'wrong', 'message': 'changes its input; work on a copy'}
        coarse = in_float32(yours) and any(getattr(x, 'dtype', None) == torch.float64 for x in given) and \
            not difference(yours, expected, 1e-4)
        results.append((given, yours, 'is computed in float32, and the inputs are float64: give new tensors '
                        'dtype=Z.dtype' if coarse else difference(yours, expected)))
    wrong = [i for i, (*_, text) in enumerate(results) if text]
    if wrong:
        first = results[wrong[0]]
        pairs = [(given, yours) for given, yours, _ in results]
        found = diagnosis(exercise, pairs) or diagnosis(exercise, [first[:2]])  # of all, or of the first that is wrong
        return {'verdict': 'wrong', 'message': f'seed {seeds[wrong[0]]}: {first[2]}; {shapes(first[0], function)}',
                'diagnosis': found}
    try:
        more = exercise.also(function) if exercise.also else ''
    except Exception as e:
        more = in_words(e)
    if more:
        return {'verdict': 'wrong', 'message': more}
    return {'verdict': 'right', 'message': exercise.says or f'for {len(seeds)} seeds'}


def diagnosis(exercise, results):
    """The mistake that gives the same results on all inputs, or ''."""
    for name, mutant in exercise.mutants.items():
        try:
            same = all(not difference(yours, as_expected(mutant(*copied(given)))) for given, yours in results)
        except Exception:  # a mistake that has no result for these shapes
            continue
        if same:
            return name
    return ''


def in_float32(x):
    return isinstance(x, torch.Tensor) and x.dtype in (torch.float32, torch.float16, torch.bfloat16) or \
        isinstance(x, (tuple, list)) and any(map(in_float32, x))


def as_expected(x):
    return tuple(as_lists(v) for v in x) if isinstance(x, tuple) else as_lists(x)


def shapes(given, function):
    """The inputs of a function in words: Z (7, 4), eps 0.5."""
    def one(x):
        return f'{tuple(x.shape)}' if isinstance(x, torch.Tensor) else f'a {type(x).__name__}' \
            if isinstance(x, (dict, list, tuple)) else number(x) if isinstance(x, float) else repr(x)
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


# ---- a file ---------------------------------------------------------------------------------------------------------

def loaded(path, name):
    """A Python file as a module."""
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def exercises(lesson):
    """The exercises of a lesson, in order."""
    return loaded(HERE / 'marks' / f'lesson{lesson}.py', f'marks{lesson}').EXERCISES


def main(lesson, file):
    out = os.fdopen(os.dup(1), 'w', encoding='utf-8')       # the student's file prints elsewhere
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    sys.stdout = sys.stderr = printed = io.StringIO()

    def say(**what):
        print(json.dumps(what), file=out, flush=True)
    torch.set_num_threads(1)
    listed = exercises(lesson)
    say(names=[e.name for e in listed])
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
                result = {'verdict': 'empty' if isinstance(error, NotImplementedError) else 'wrong',
                          'message': f'{where(error, file)}{in_words(error)}'}
        else:
            result = grade(e, function, file)
            if result['verdict'] != 'right':  # a mistake is told once, not in each function that calls this one
                setattr(module, e.name, right_one(function, e))
        say(function=e.name, **result, hints=list(e.hints))
    text = '' if printed.closed else printed.getvalue()
    say(end=text.count('\n') + bool(text and not text.endswith('\n')))


def right_one(function, exercise):
    """What stands in for a student's function where others of the file call it: a right way, with the
    defaults of that function."""
    def ours(*args, **named):
        given = inspect.signature(function).bind(*args, **named)
        given.apply_defaults()
        return exercise.variants[0](*given.args, **given.kwargs)
    return ours


if __name__ == '__main__':
    sys.path.insert(0, str(HERE))
    main(int(sys.argv[1]), Path(sys.argv[2]).resolve())
