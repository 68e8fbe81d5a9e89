"""Settings: config files of plain assignments and --key=value on the command line, one check for
both.

A program's settings are the fields of dataclasses. The comment beside a field is its line in
--help, so that name, default and meaning stand in one place:

    @dataclass
    class Config:
        n_layer: int = 12   # how many layers
"""
import ast
import dataclasses
import os
import runpy
import shlex
import subprocess
import types
import typing

from engine.mistakes import Mistake

TYPED = 'the command line'
SIZE = int | tuple  # of pictures or patches: one number, or height and width
EXPECTED = {int: 'a whole number', float: 'a number', bool: 'true or false', str: 'a string',
            SIZE: 'one or two whole numbers', dict: 'an object', list[int]: 'whole numbers',
            list[str]: 'a list of texts'}


class Requested(typing.NamedTuple):
    """A setting that somebody asked for."""
    value: object
    source: str = ''  # TYPED, a config file, or config.json; empty for a default

    @property
    def is_typed(self):
        return self.source == TYPED


# ---- reading -------------------------------------------------------------------------------------

def collect(argv):
    """Command line -> {name: Requested}. A word without dashes is a config file. A typed setting
    wins over one of a file, and a later one of a kind over an earlier one."""
    return with_files(*split(argv))


def with_files(files, typed):
    """The settings of config files, see read_file, overridden by the typed ones, both {name:
    Requested}. A later file wins over an earlier one. Names and values are not checked yet."""
    requested = {}
    for file in files:
        for name, value in read_file(file).items():
            requested[name] = Requested(value, file)
    return requested | typed


def split(argv):
    """Command line -> (the words that stand alone, {name: Requested} of the typed settings). The
    value of --name=value and of --name value is a text, and that of a --name alone is True."""
    alone = []
    typed = {}
    words = list(argv)
    while words:
        word = words.pop(0)
        if not word.startswith('--'):
            alone.append(word)
            continue
        name, equals, value = word[2:].partition('=')
        if not equals:
            value_follows = words and not words[0].startswith('--')
            value = words.pop(0) if value_follows else True
        typed[name] = Requested(value, TYPED)
    return alone, typed


def asks_for_help(words):
    """Whether the words of a command line ask for --help or --version."""
    return not {'--help', '-h', '--version'}.isdisjoint(words)


def read_file(path):
    """{name: value} of a config file. Left out are modules, functions, and names that begin with an
    underscore. Raises Mistake for a file that is not there, or, with the line, that Python cannot
    run."""
    # a config file is run as Python, and nothing but a .py file may be run
    if not path.endswith('.py') or not os.path.isfile(path):
        from engine.advice import what_was_meant  # here and below: few programs need advice
        raise Mistake(f'no config file {path}; {what_was_meant(path)}')

    try:
        values = runpy.run_path(path)
    except Exception as e:
        from engine.advice import place_of
        raise Mistake(f'{place_of(e, path)}: {type(e).__name__}: {e}; mend the file') from None
    file_settings = {}
    for name, value in values.items():
        is_setting = not callable(value) and not isinstance(value, types.ModuleType)
        if is_setting and not name.startswith('_'):
            file_settings[name] = value
    return file_settings


# ---- checking ------------------------------------------------------------------------------------

def check(requested, *classes):
    """{name: Requested} -> {name: value}, each of the type of its field in one of the dataclasses.
    An int may fill a float. Raises Mistake that names the nearest setting for an unknown name, and
    what was expected for a wrong type."""
    fields = {}
    type_of = {}
    for cls in classes:
        fields.update({f.name: f for f in dataclasses.fields(cls)})
        type_of.update(typing.get_type_hints(cls))

    checked = {}
    for name, (value, source) in requested.items():
        if name not in fields:
            from engine.advice import unknown_setting
            raise Mistake(unknown_setting(name, source, source == TYPED, fields))
        checked[name] = checked_value(value, source, fields[name], type_of[name])
    return checked


def check_first(name, requested, cls):
    """The value of one setting of a dataclass, which is needed before the others can be checked:
    the one that somebody asked for, or its default."""
    if name not in requested:
        return getattr(cls, name)
    return check({name: requested[name]}, cls)[name]


def checked_value(value, source, field, want):
    """A value as the type `want` of its field. A path may begin with `~/`, the home folder. Raises
    Mistake if the value is of another type, or if there is none, as in --out_dir, or in
    --out_dir=$OUT where OUT is not set."""
    is_typed_alone = value is True and source == TYPED and want is not bool
    is_blank = isinstance(value, str) and value.strip() == ''
    may_be_blank = field.default == ''
    if is_typed_alone or (is_blank and not may_be_blank):
        raise Mistake(f'{field.name} in {source} has no value; type --{field.name}=VALUE, or leave '
                      'it out')
    # a shell leaves the ~ of --out_dir=~/runs, because it does not begin a word
    is_text = field.name in ('start', 'stop')
    if isinstance(value, str) and value.startswith('~/') and not is_text:
        value = os.path.expanduser(value)
    try:
        return cast(value, want, source == TYPED)
    except (ValueError, SyntaxError):
        expected = EXPECTED.get(want, want)
        raise Mistake(f'{field.name}={show(value)} in {source}: expected {expected}, as in '
                      f'--{field.name}={show(field.default)}') from None


def cast(value, want, typed):
    """A value as the type of its field. It may be a text that somebody typed, or a value of Python.
    Raises ValueError or SyntaxError where it does not fit."""
    if want is str:
        if not isinstance(value, (str, bool)):
            raise ValueError
        return show(value)  # a file may say compile = True
    if typed and isinstance(value, str):
        # Python says True, people type true
        word = value.capitalize() if want is bool else value
        value = ast.literal_eval(word)

    if want == SIZE:
        return cast_size(value)
    if want is float and type(value) is int:
        return float(value)
    if typing.get_origin(want) is list and isinstance(value, (list, tuple)):
        [want_of_item] = typing.get_args(want)
        return [cast(item, want_of_item, typed) for item in value]
    if type(value) is not want:
        raise ValueError
    return value


def cast_size(value):
    """A size of pictures or patches: an int, or a pair of two, height and width."""
    if isinstance(value, (tuple, list)):
        height, width = value  # ValueError if these are not two
        if type(height) is int and type(width) is int:
            return height, width
    elif type(value) is int:
        return value
    raise ValueError


def names_of_fields(*classes):
    """The names of the settings of some dataclasses."""
    names = set()
    for cls in classes:
        names.update(f.name for f in dataclasses.fields(cls))
    return names


def of_fields(values, *classes):
    """Those of the values, {name: value}, that are settings of some dataclasses."""
    names = names_of_fields(*classes)
    return {name: value for name, value in values.items() if name in names}


def filled(cls, values):
    """A dataclass with those of its settings that `values` has, {name: value}."""
    return cls(**of_fields(values, cls))


def check_ranges(c, ranges):
    """Raises Mistake for a setting of c outside its range; ranges: {(low, high): names}."""
    for (low, high), names in ranges.items():
        for name in names:
            value = getattr(c, name)
            if low <= value <= high:  # nan is in no range
                continue
            most = f' and at most {high}' if high < 1e30 or value > high else ''
            raise Mistake(f'{name}={show(value)} must be at least {low}{most}')


def choice_of(name, value, known):
    """The one of the known values that `value` means; upper and lower case are the same. Raises
    Mistake if there is none. name: what the message says."""
    for choice in known:
        if value.lower() == choice.lower():
            return choice
    from engine.advice import unknown_choice
    raise Mistake(unknown_choice(name, value, known))


def take_choices(c, **choices):
    """Replace settings of c, {name: known values}, by the known values that they mean."""
    for name, known in choices.items():
        setattr(c, name, choice_of(name, getattr(c, name), known))


def check_meant(c, only_for, purpose):
    """Raises Mistake for a setting of c that is not at its default, and has no effect for this
    purpose. only_for: {setting: the purposes for which it has one}."""
    for name, purposes in only_for.items():
        changed = getattr(c, name) != getattr(type(c), name)
        if changed and purpose not in purposes:
            raise Mistake(f'--{name} is for {" or ".join(purposes)}, not for {purpose}; leave it '
                          'out')


# ---- showing -------------------------------------------------------------------------------------

def show(value):
    """A value as one types it."""
    if isinstance(value, (tuple, list)):
        return ','.join(str(part) for part in value)
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def quoted(*words):
    """Words, such as a path, as one types them in the shell of this system."""
    texts = map(str, words)
    return subprocess.list2cmdline(texts) if os.name == 'nt' else shlex.join(texts)
