"""A mistake of the user is one line that says what to type next, and exit code 2. What no program
can prevent, such as a full disk, is said in the same way. Any other exception is a bug and keeps
its traceback.
"""
import contextlib
import os
import signal
import sys
from pathlib import Path

from engine.names import printable


class Mistake(ValueError):
    """A mistake of the user, said in one line."""


@contextlib.contextmanager
def reading(problem, advice='get it again'):
    """Around what reads a file. Libraries raise exceptions of many types for a missing or damaged
    one, or one that claims more than the memory holds. Each exception becomes a Mistake: the
    problem, the library's first sentence, the advice."""
    try:
        yield
    except (Mistake, ImportError):  # no fault of the file
        raise
    except Exception as e:
        from engine.advice import reason_of  # here and below: most programs need no advice
        raise Mistake(f'{problem} ({reason_of(e)}); {advice}') from None


def regular(path):
    """A path, as a Path. Raises ValueError if something else than a file is there, such as a pipe,
    or a device, which may have no end."""
    path = Path(path)
    if path.exists() and not path.is_file():
        raise ValueError('it is no file')
    return path


@contextlib.contextmanager
def one_line_errors():
    """Around a program's main: a Mistake becomes one line on standard error and exit code 2, and so
    does an exception for which there is advice, see engine/advice.py."""
    open_missing_streams()
    if hasattr(sys.stdout, 'reconfigure'):
        # what a console cannot show becomes an escape, as on standard error
        sys.stdout.reconfigure(errors='backslashreplace')
    try:
        with printing():
            yield
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except Mistake as e:
        # of a process that reads pictures, PyTorch hands on the traceback as a text; keep its end
        end_with(str(e).rpartition('engine.mistakes.Mistake: ')[2])
    except Exception as e:
        from engine.advice import advice_of
        line = advice_of(e)
        if not line:
            raise
        end_with(line)


def open_missing_streams():
    """Open os.devnull in the place of a standard stream that the user has closed, as `>&-` does.
    Else the next file that the program opens would get the number of that stream."""
    for name, mode in (('stdin', 'r'), ('stdout', 'w'), ('stderr', 'w')):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))


@contextlib.contextmanager
def printing():
    """Around what prints. Where standard output takes no more, the program ends: quietly if its
    reader has left, as `| head` does, and with exit code 1 if it is a full disk."""
    try:
        yield
    except OSError as e:
        if e.filename is None:  # perhaps print has raised it: then this print fails too
            print_or_end('\n')
        raise
    finally:
        print_or_end('')


def print_or_end(text):
    """Print a text, and all that waits to be printed. Ends the program where that fails."""
    try:
        print(text, end='', flush=True)
    except OSError as e:
        # else Python fails again when it ends, and writes what is left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(e, BrokenPipeError):
            sys.exit(128 + 13)  # SIGPIPE, which Windows has not
        print(f'error: {e}; what was printed is not whole', file=sys.stderr)
        sys.exit(1)


def end_with(text):
    """End the program with one line on standard error."""
    print_error(text)
    sys.exit(2)


def print_error(text):
    """Print a text, or a Mistake, as one line on standard error."""
    line = ' '.join(str(text).split())
    print('error:', printable(line), file=sys.stderr, flush=True)
