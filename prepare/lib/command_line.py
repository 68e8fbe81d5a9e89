"""The command line that all scripts in prepare/ share."""
import argparse

from tasks.files import check_free


class Parser(argparse.ArgumentParser):
    """--help shows the script's docstring as it is written. A mistake is reported in one line."""

    def __init__(self, doc):
        super().__init__(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)

    def error(self, message):
        raise ValueError(f'{message}; --help lists all options')


def parser(doc, out):
    """Options of every script that writes a dataset. out: the default folder, or None."""
    p = Parser(doc)
    p.add_argument('--out', default=out, help='folder to write' + (' (default: %(default)s)' if out else ''))
    p.add_argument('--overwrite', action='store_true', help='replace the folder if it exists')
    return p


def parse(p, argv):
    """The arguments. Raises ValueError if --out is missing or not free, before any work is done."""
    args = p.parse_args(argv)
    if not args.out:
        raise ValueError('--out is missing: name the folder to write, such as --out data/mine')
    check_free(args.out, args.overwrite)
    return args


def share(text):
    """The type of an option that must be between 0 and 1, both excluded."""
    if not 0 < float(text) < 1:
        raise argparse.ArgumentTypeError(f'{text} must be between 0 and 1')
    return float(text)
