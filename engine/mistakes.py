"""A mistake of the user is one line that says what to type next, and exit code 2. So is what no
program can help, such as a full disk. Any other exception is a bug and keeps its traceback.
"""
import contextlib
import errno
import os
import re
import signal
import sys
from pathlib import Path

# libraries that only some commands need: {name to import: name to install}
OPTIONAL = {
    'matplotlib': 'matplotlib',
    'tiktoken': 'tiktoken',
    'requests': 'requests',
    'scipy': 'scipy',
    'wandb': 'wandb',
    'tensorboard': 'tensorboard',
    'torch.utils.tensorboard': 'tensorboard',
    'PIL': 'pillow',
}


class Mistake(ValueError):
    """A mistake of the user, said in one line. Any other exception is a bug and keeps its
    traceback."""


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
        # the first sentence: PyTorch goes on to say how to load such a file unsafely
        sentence = str(e).split('. ')[0][:200]
        why = in_one_line(e) or f'{type(e).__name__}: {sentence}'
        raise Mistake(f'{problem} ({why}); {advice}') from None


@contextlib.contextmanager
def one_line_errors():
    """Around a program's main: a Mistake becomes one line on standard error and exit code 2. So do
    a library that is missing and too little memory. Any other exception is a bug and keeps its
    traceback."""
    if hasattr(sys.stdout, 'reconfigure'):
        # what a console cannot show becomes an escape, as on standard error
        sys.stdout.reconfigure(errors='backslashreplace')
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except BrokenPipeError:  # the reader of our output left, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    except Exception as e:
        line = in_one_line(e)
        if not line:
            raise
        print('error:', ' '.join(line.split()), file=sys.stderr, flush=True)
        sys.exit(2)


def in_one_line(e):
    """What a user is told of an expected error; '' of any other, which is a bug."""
    text = str(e)
    if isinstance(e, Mistake):
        # if it comes from a process that reads pictures, a traceback stands before it
        return text.rpartition('engine.mistakes.Mistake: ')[2]
    if isinstance(e, ModuleNotFoundError) and e.name in OPTIONAL:
        return f'this needs a library that is missing: pip install {OPTIONAL[e.name]}'
    if is_full_disk(e):
        hint = 'make room, or take a shorter name'
        if program() == 'train.py':
            hint += '; then go on with --init_from=resume, if there is a checkpoint'
        return f'{text}; {hint}'
    if is_lack_of_memory(e):
        return f'{text[:120] or "out of memory"}; {how_to_save_memory()}'
    if is_lost_process(e):
        return ('another process of this run has ended, and its own message stands above; go on '
                'with --init_from=resume, if there is a checkpoint')
    return ''


def program():
    """The name of the file that the user has started, such as train.py."""
    return Path(sys.argv[0]).name


def how_to_save_memory():
    """What somebody can type whose program asked for too much memory."""
    if program() == 'train.py':
        return ('ask for less: half the --batch_size with twice the '
                '--gradient_accumulation_steps, or --recompute=true, or for text '
                '--loss_in_chunks=true')
    if program() in ('eval.py', 'analyze.py', 'bench.py'):
        return 'ask for less: half the --batch_size'
    return 'end other programs, or use a machine with more memory'


def is_full_disk(e):
    if not isinstance(e, OSError):
        return False
    # NumPy's words for small and for large arrays come without an error number
    numpy_says_so = re.search(' requested and |Not enough free space', str(e)) is not None
    return numpy_says_so or e.errno in (errno.ENOSPC, errno.EFBIG, errno.ENAMETOOLONG)


def is_lack_of_memory(e):
    if isinstance(e, MemoryError):
        return True
    words_of_torch = 'out of memory|allocate memory|not enough memory'
    return isinstance(e, RuntimeError) and re.search(words_of_torch, str(e)) is not None


def is_lost_process(e):
    """Whether gloo or NCCL says that the connection to another process of this run has ended."""
    words_of_torch = 'gloo.*(closed by peer|reset by peer|Broken pipe)|NCCL.*remote process exited'
    return isinstance(e, RuntimeError) and re.search(words_of_torch, str(e), re.S) is not None
