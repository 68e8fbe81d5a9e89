"""The command line that all scripts in prepare/ share."""
import argparse
import sys
from pathlib import Path

from engine.settings import Mistake, one_line_errors
from lib.files import hold


class Help(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """The script's docstring as it is written, and each option with its default."""


class Parser(argparse.ArgumentParser):
    """A mistake is reported in one line."""

    def error(self, message):
        raise Mistake(f'{message}; --help lists all options')


# ---- options: what argparse's add_argument is called with -----------------------------------------------------------


def option(name, help, **settings):
    return name, settings | {'help': help}


def choice(name, help, *values):
    """One of the values, by default the first."""
    return option(name, help, type=type(values[0]), choices=values, default=values[0])


def number(name, help, default, low, high):
    """A number from low to high, of the type of its default."""
    def number(text):
        if not low <= type(default)(text) <= high:
            raise argparse.ArgumentTypeError(f'{text} must be between {low} and {high}')
        return type(default)(text)
    return option(name, help, type=number, default=default)


def local(what, **settings):
    """--from: the user's own copy, or what else it is."""
    return option('--from', what, dest='source', metavar='PATH', type=Path, **settings)


# ---- scripts --------------------------------------------------------------------------------------------------------


def script(name, check, *options):
    """A decorator: of a function of the arguments it makes main(argv=None), which calls check(args), and then it. name:
    the __name__ of its file. The help is the docstring of this file. If it is the one that the user started, main runs
    at once, and a mistake becomes one line. SIZE in the folder to write stands for --size."""
    def command(function):
        def main(argv=None):
            p = Parser(description=sys.modules[name].__doc__, formatter_class=Help)
            p.add_argument('--overwrite', '--overwrite=true', action='store_true', help='replace what is there')
            for flag, settings in options:
                p.add_argument(flag, **settings)
            args = p.parse_args(argv)
            if 'size' in args:
                args.out = args.out.replace('SIZE', str(args.size).lower())
            check(args)
            function(args)
        if name == '__main__':
            with one_line_errors():
                main()
        return main
    return command


def dataset(name, out, *options, ends=('',)):
    """The script of a dataset. out: the default of the folder --out, or None if the user must name it. ends: of the
    folders that are claimed, whose names begin so."""
    folder = option('--out', 'folder to write', default=out, required=out is None)
    once = option('--once', 'do nothing if it is prepared; wait if it is being written', action='store_true')
    return script(name, lambda args: claim(args, *(args.out + end for end in ends)), folder, once, *options)


def claim(args, *folders):
    """Raises Mistake, before any work is done, if a folder is not free; from then on other processes wait. With --once,
    the program ends if the datasets are there."""
    for folder in folders:
        hold(folder)
    if args.once and all(Path(folder, 'meta.json').exists() for folder in folders):
        print(f'{" and ".join(folders)} is there')
        sys.exit()
    for folder in map(Path, folders):
        if (folder / 'meta.json').exists():
            if not args.overwrite:
                raise Mistake(f'{folder} exists; give another --out, or --overwrite to replace it')
        elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise Mistake(f'{folder} exists and is no prepared dataset; give another --out')
