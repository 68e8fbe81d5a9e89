"""Files that are whole at any moment: the old one, or the new one."""
import contextlib
import os
from pathlib import Path

from engine.mistakes import Mistake


def write_file(path, write, mode='w'):
    """Call write(file) on a new file, then rename it to path: a crash or a full disk leaves the old
    file whole. Raises Mistake if it cannot be written."""
    os.replace(write_new(path, write, mode), Path(path))  # which leaves out a slash at the end


def write_new(path, write, mode='w'):
    """The first half of write_file: the new file, which the caller renames. Returns its path."""
    path = Path(path)
    if path.exists() and not path.is_file():  # /dev/null must stay what it is
        raise Mistake(f'{path} is no file; name another place')
    new = f'{path}.new'
    how = {}
    if 'b' not in mode:
        how = {'encoding': 'utf-8', 'errors': 'surrogateescape', 'newline': '\n'}
    try:
        with open(new, mode, **how) as f:
            write(f)
            f.flush()
            os.fsync(f.fileno())
    except (OSError, RuntimeError) as e:  # torch.save raises the latter where a disk is full
        with contextlib.suppress(OSError):  # there is none, or the file system is read-only
            os.unlink(new)
        raise Mistake(f'could not write {path} ({e}); make room, or name another place') from None
    return new
