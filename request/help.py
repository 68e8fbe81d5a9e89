"""How a program is started: --help, --version, or its main."""
import dataclasses
import inspect
import os
import platform
import re
import shutil
import subprocess
import sys

import torch

from engine import HERE
from engine.mistakes import one_line_errors
from engine.networks import config_class, names
from engine.settings import asks_for_help, show, split
from request import start


def run_program(main, doc, *classes):
    """A program as a user starts it. With --help or -h it prints all its settings, those of the
    dataclasses; with --version what a bug report needs."""
    with one_line_errors():
        words = sys.argv[1:]
        if '--version' in words:
            print(version())
        elif asks_for_help(words):
            print(help_text(doc, *classes))
        else:
            main(words)


def help_or_version(argv, doc, *classes):
    """What train.py prints for --help or --version. Help is a line for each setting of the run that
    the command line asks for, with the value that it would have. classes: TrainConfig and
    AugmentConfig."""
    if '--version' in argv:
        return version()
    words = [word for word in argv if not asks_for_help([word])]
    request = start.read(*split(words), *classes)
    values = vars(request.config) | vars(request.augment) | request.network
    command = ' '.join(['python train.py', *words])
    usage = f'{doc}\nBelow are the values of `{command}`.'
    NetworkConfig = config_class(request.config.model)
    text = help_text(usage, *classes, NetworkConfig, **values)
    return f'{text}\n\nOther networks, {", ".join(names())}: --model=NAME --help'


def meanings(cls):
    """{field name: the comment beside it} of a dataclass, read from its source."""
    comments = {}
    # such as `    n_layer: int = 12   # how many layers`, with two spaces before the #
    for parent in reversed(cls.__mro__):  # the class itself comes last
        if dataclasses.is_dataclass(parent):
            source = inspect.getsource(parent)
            comments.update(re.findall(r'^    (\w+): [\w| ]+ = .*?  # (.*)$', source, re.M))
    return comments


def help_text(usage, *classes, only=None, **values):
    """Every setting of the dataclasses with its meaning, and its default or the one of `values`.
    only: names of settings; those that are not among them are left out."""
    lines = [usage.strip()]
    for cls in classes:
        lines += ['', f'{cls.__name__} ({os.path.relpath(inspect.getfile(cls), HERE)})']
        comments = meanings(cls)
        for f in dataclasses.fields(cls):
            if only is not None and f.name not in only:
                continue
            value = show(values.get(f.name, f.default))
            setting = f'--{f.name}={value}'
            comment = comments.get(f.name, '')
            lines.append(f'  {setting:<38} {comment}'.rstrip())
    return '\n'.join(lines)


def version():
    """What a bug report needs: the commit, the versions of PyTorch and Python, and the system."""
    return (f'nanoCRATE, commit {commit()}, PyTorch {torch.__version__}, '
            f'Python {platform.python_version()} on {platform.system()}')


def commit():
    """The commit of the project, with -dirty if a file was changed; 'unknown' outside of a
    clone."""
    if not shutil.which('git'):
        return 'unknown'
    describe = ['git', '-C', str(HERE), 'describe', '--always', '--dirty']
    return subprocess.run(describe, capture_output=True, text=True).stdout.strip() or 'unknown'
