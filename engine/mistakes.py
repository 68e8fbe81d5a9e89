"""A mistake of the user is one line that says what to type next, and exit code 2. What no program
can prevent, such as a full disk, is said in the same way. Any other exception is a bug and keeps
its traceback.
"""
import contextlib
import os
import signal
import sys


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
        from engine.advice import advice_of
        # the first sentence: PyTorch goes on to say how to load such a file unsafely
        sentence = str(e).split('. ')[0][:200]
        why = advice_of(e) or f'{type(e).__name__}: {sentence}'
        raise Mistake(f'{problem} ({why}); {advice}') from None


@contextlib.contextmanager
def one_line_errors():
    """Around a program's main: a Mistake becomes one line on standard error and exit code 2, and so
    does an exception for which there is advice, see engine/advice.py."""
    if hasattr(sys.stdout, 'reconfigure'):
        # what a console cannot show becomes an escape, as on standard error
        sys.stdout.reconfigure(errors='backslashreplace')
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except BrokenPipeError:  # the reader of our output left, as `| head` does
        # else Python fails again when it ends, and writes what is left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + 13)  # SIGPIPE, which Windows has not
    except Mistake as e:
        # of a process that reads pictures, PyTorch hands on the traceback as a text; keep its end
        end_with(str(e).rpartition('engine.mistakes.Mistake: ')[2])
    except Exception as e:
        from engine.advice import advice_of  # here and above: most programs need none
        line = advice_of(e)
        if not line:
            raise
        end_with(line)


def end_with(line):
    """End the program with one line on standard error."""
    print('error:', ' '.join(line.split()), file=sys.stderr, flush=True)
    sys.exit(2)
