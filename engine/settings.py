"""Settings: config files of plain assignments and --key=value on the command line, one check for
both.

A program's settings are the fields of dataclasses. The comment beside a field is its line in
--help, so that name, default and meaning stand in one place:

    @dataclass
    class Config:
        n_layer: int = 12   # how many layers
"""
import ast
import contextlib
import dataclasses
import difflib
import errno
import inspect
import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
import typing
from pathlib import Path


class Mistake(ValueError):
    """A mistake of the user, said in one line. Any other exception is a bug and keeps its traceback."""


HERE = Path(__file__).resolve().parent.parent
TYPED = 'the command line'
OPTIONAL = {name: name for name in ('matplotlib', 'tiktoken', 'requests', 'scipy', 'wandb', 'tensorboard')} | {
    'PIL': 'pillow', 'torch.utils.tensorboard': 'tensorboard'}  # libraries that only some commands need


def collect(argv):
    """Command line -> {name: (value, where it was given)}. The command line wins over files, a later word over an
    earlier. A word without dashes is a config file, run in its own namespace; its names without a leading underscore
    are settings. Nothing is checked yet. Raises Mistake for a file that is not there."""
    files, typed = split(argv)
    return {name: (value, file) for file in files for name, value in read_file(file).items()} | typed


def split(argv):
    """Command line -> (the words that stand alone, {name: (value, where)} of each --name=value, --name value and
    --name, which means true)."""
    alone, typed, words = [], {}, list(argv)
    while words:
        name, equals, value = words.pop(0).partition('=')
        if not name.startswith('--'):
            alone.append(name + equals + value)
        elif equals:
            typed[name[2:]] = value, TYPED
        else:
            typed[name[2:]] = words.pop(0) if words and not words[0].startswith('--') else 'true', TYPED
    return alone, typed


def read_file(path):
    """{name: value} of a config file."""
    if not (path.endswith('.py') and os.path.isfile(path)):  # a picture of a stranger must not run
        near = difflib.get_close_matches(path, [str(p) for p in Path('config').glob('*.py')], 1, 0.4)
        hint = f'did you mean {near[0]}?' if near else 'settings are typed --name=value'
        raise Mistake(f'no config file {path}; {hint}')
    names = runpy.run_path(path)
    return {k: v for k, v in names.items() if not k.startswith('_') and not inspect.ismodule(v)}


def check(given, *classes):
    """{name: (value, where)} -> {name: value}, each of the type of its field in one of the dataclasses. An int may fill
    a float. Raises Mistake that names the nearest setting for an unknown name, and what was expected for a wrong
    type."""
    fields = {f.name: f for cls in classes for f in dataclasses.fields(cls)}
    types = {name: kind for cls in classes for name, kind in typing.get_type_hints(cls).items()}
    checked = {}
    for name, (value, where) in given.items():
        if name not in fields:
            near = difflib.get_close_matches(name, fields, 1, 0.5)
            hint = f'did you mean {near[0]}?' if near else '--help lists all'
            raise Mistake(f'unknown setting {name} in {where}; {hint}')
        try:
            checked[name] = cast(value, types[name], where == TYPED)
        except (ValueError, SyntaxError):
            raise Mistake(f'{name}={value} in {where}: expected {EXPECTED.get(types[name], "one or two whole numbers")}'
                          f', as in --{name}={show(fields[name].default)}') from None
    return checked


EXPECTED = {int: 'a whole number', float: 'a number', bool: 'true or false', str: 'a string'}


def cast(value, want, typed):
    """A value as the type of its field: a typed word, which is always a string, or a value of a config file. Raises
    ValueError or SyntaxError where it does not fit."""
    if want is str and isinstance(value, (str, bool)):
        return show(value)  # a file may say compile = True
    if typed:
        value = ast.literal_eval(value.capitalize() if want is bool else value)
    if want is float and type(value) is int:
        value = float(value)
    if want == int | tuple:  # a size: n, or height and width
        value = tuple(value) if isinstance(value, list) else value
        want = tuple if isinstance(value, tuple) and [*map(type, value)] == [int, int] else int
    if type(value) is not want:
        raise ValueError
    return value


def filled(cls, values):
    """A dataclass with those of its settings that `values` has, {name: value}."""
    return cls(**{f.name: values[f.name] for f in dataclasses.fields(cls) if f.name in values})


def check_ranges(c, ranges):
    """Raises Mistake for a setting of c outside its range; ranges {(low, high): names}."""
    for (low, high), names in ranges.items():
        for name in names:
            if not low <= getattr(c, name) <= high:
                most = f' and at most {high}' * (high < 1e30)
                raise Mistake(f'{name}={show(getattr(c, name))} must be at least {low}{most}')


def check_choice(name, value, known):
    """Raises Mistake for a value that is none of the known ones. name: what the message calls it."""
    if value not in known:
        raise Mistake(f"{name}='{value}' is unknown; choose one of {', '.join(filter(None, known))}")


def check_choices(c, **choices):
    """check_choice for settings of c, {name: known}."""
    for name, known in choices.items():
        check_choice(name, getattr(c, name), known)


def check_meant(c, only_for, what):
    """Raises Mistake for a setting of c that was changed and means nothing for `what`. only_for:
    {setting: all that it is for}."""
    for name, whats in only_for.items():
        if getattr(c, name) != getattr(type(c), name) and what not in whats:
            raise Mistake(f'--{name} is for {" or ".join(whats)}, not for {what}; leave it out')


def show(value):
    if isinstance(value, (tuple, list)):
        return ','.join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def meanings(cls):
    """{field name: the comment beside it} of a dataclass, read from its source."""
    source = '\n'.join(inspect.getsource(part) for part in reversed(cls.__mro__) if dataclasses.is_dataclass(part))
    return dict(re.findall(r'^    (\w+): [\w| ]+ = .*?  # (.*)$', source, re.M))


def help_text(usage, *classes, **values):
    """Every setting of the dataclasses with its meaning, and its default or the one of `values`."""
    lines = [usage.strip()]
    for cls in classes:
        lines += ['', f'{cls.__name__} ({Path(inspect.getfile(cls)).name})']
        meaning = meanings(cls)
        for f in dataclasses.fields(cls):
            value = show(values.get(f.name, f.default))
            lines.append(f'  --{f.name + "=" + value:<36} {meaning.get(f.name, "")}'.rstrip())
    return '\n'.join(lines)


def quoted(path):
    """A path as one types it in the shell of this system."""
    return subprocess.list2cmdline([path]) if os.name == 'nt' else shlex.quote(path)


def in_one_line(e):
    """What a user is told of an exception that is no bug of ours; '' of any other."""
    if isinstance(e, Mistake):
        return str(e).rpartition('engine.settings.Mistake: ')[2]  # a reader of pictures sends its traceback
    if isinstance(e, ModuleNotFoundError) and e.name in OPTIONAL:
        return f'this needs a library that is missing: pip install {OPTIONAL[e.name]}'
    full = ' requested and ' in str(e)  # NumPy's words, without a number
    if isinstance(e, OSError) and (full or e.errno in (errno.ENOSPC, errno.EFBIG, errno.ENAMETOOLONG)):
        return f'{e}; make room or take a shorter name; a run goes on with --init_from=resume --out_dir=..'
    lack = re.search('out of memory|allocate memory|not enough memory', str(e))  # words of PyTorch
    if isinstance(e, MemoryError) or isinstance(e, RuntimeError) and lack:
        return (f'{str(e)[:120] or "out of memory"}; ask for less: half the --batch_size, in training with twice the '
                '--gradient_accumulation_steps, or --recompute=true')
    return ''


@contextlib.contextmanager
def reading(said, advice='get it again'):
    """Around what reads a file. Libraries raise exceptions of many types for a missing or damaged one, or one that
    claims more than the memory holds. Each becomes a Mistake: `said`, the library's first sentence, the advice."""
    try:
        yield
    except (Mistake, ImportError):  # no fault of the file
        raise
    except Exception as e:
        # the first sentence: PyTorch goes on to say how to load such a file unsafely
        why = in_one_line(e) or f'{type(e).__name__}: {str(e).split(". ")[0][:200]}'
        raise Mistake(f'{said} ({why}); {advice}') from None


@contextlib.contextmanager
def one_line_errors():
    """Around a program's main: a Mistake becomes one line on standard error and exit code 2. So do a library that is
    missing and too little memory. Any other exception is a bug and keeps its traceback."""
    if hasattr(sys.stdout, 'reconfigure'):  # what a console cannot show becomes an escape, as on standard error
        sys.stdout.reconfigure(errors='backslashreplace')
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except BrokenPipeError:  # the reader of our output left, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    except Exception as e:
        if not (said := in_one_line(e)):
            raise
        print('error:', ' '.join(said.split()), file=sys.stderr, flush=True)
        sys.exit(2)


def run(main, doc, *classes):
    """A program as a user starts it: with --help or -h all its settings, those of the dataclasses."""
    with one_line_errors():
        if {'--help', '-h'} & {*sys.argv}:
            return print(help_text(doc, *classes))
        main(sys.argv[1:])
