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

    def __init__(self, doc, what):
        super().__init__(description=doc, formatter_class=Help)
        self.add_argument('--overwrite', '--overwrite=true', action='store_true', help=f'replace {what} if it exists')

    def error(self, message):
        raise Mistake(f'{message}; --help lists all options')


def parser(doc, out, source='', required=False):
    """Options of every script that writes a dataset. out: the default folder, or None if the user must name it; source:
    what --from is, if there is this option."""
    p = Parser(doc, 'the folder')
    if source:
        p.add_argument('--from', dest='source', metavar='PATH', help=source, required=required)
    p.add_argument('--out', default=out, required=out is None, help='folder to write')
    p.add_argument('--once', action='store_true', help='do nothing if it is prepared; wait if it is being written')
    return p


def parse(p, argv):
    """The arguments of a script that writes the folder --out, which is claimed."""
    args = p.parse_args(argv)
    claim(args, args.out)
    return args


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


def between(kind, low, high):
    """The type of an option that is a number from low to high."""
    def number(text):
        if not low <= kind(text) <= high:
            raise argparse.ArgumentTypeError(f'{text} must be between {low} and {high}')
        return kind(text)
    return number


def run(main):
    """A script as a user starts it: a mistake becomes one line."""
    with one_line_errors():
        main()
