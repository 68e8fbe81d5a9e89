"""Files that are whole at any moment: the old one, or the new one."""
import contextlib
import os
from pathlib import Path

from engine.mistakes import Mistake
from engine.settings import quoted


def write_file(path, write, mode='w'):
    """Call write(file) on a new file, then rename it to path: a crash or a full disk leaves the old
    file whole. Raises Mistake if it cannot be written."""
    rename(write_new(path, write, mode), path)


def write_new(path, write, mode='w'):
    """The first half of write_file: the new file, for `rename`. Returns its path, which has the
    number of this process, as others may write the same file."""
    path = Path(path)
    if path.exists() and not path.is_file():  # /dev/null must stay what it is
        raise Mistake(f'{path} is no file; name another place')
    new = f'{path}.{os.getpid()}.new'
    how = {}
    if 'b' not in mode:
        how = {'encoding': 'utf-8', 'errors': 'surrogateescape', 'newline': '\n'}
    with writing(path):
        try:
            with open(new, mode, **how) as f:
                write(f)
                f.flush()
                os.fsync(f.fileno())
        except BaseException:
            with contextlib.suppress(OSError):  # there is none, or the file system is read-only
                os.unlink(new)
            raise
    return new


def rename(new, path):
    """The second half of write_file."""
    with writing(path):
        try:
            os.replace(new, Path(path))  # Path leaves out a slash at the end
        except OSError:
            os.unlink(new)
            raise


@contextlib.contextmanager
def writing(path):
    """Around what writes a file: an error of the disk becomes a Mistake. It says what is safe."""
    try:
        yield
    except (OSError, RuntimeError) as e:  # torch.save raises the latter where a disk is full
        advice = 'make room, or name another place'
        folder = os.path.dirname(path)
        if os.path.isfile(os.path.join(folder, 'last.pt')):
            advice = ('its last checkpoint is safe: make room, then go on with python train.py '
                      f'--init_from=resume --out_dir={quoted(folder)}')
        raise Mistake(f'could not write {path} ({e}); {advice}') from None
