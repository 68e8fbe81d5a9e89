"""Writing prepared datasets, which tasks/files.py describes: a folder appears whole or not at all, and one process at a
time writes it. While it is written, a lock beside it, .NAME.lock, lets other processes wait."""
import contextlib
import json
import os
import shutil
from array import array
from pathlib import Path

import numpy as np

from engine.settings import Mistake
from tasks.files import digest

LOCKS = []  # open files, to the end of this process


def hold(path):
    """Let no other process write at `path` before this one has ended; wait for one that does."""
    path = Path(path).absolute()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        LOCKS.append(open(path.with_name(f'.{path.name}.lock'), 'ab'))
    except OSError as e:
        raise Mistake(f'{path} cannot be written ({e.strerror}); give another --out') from None
    with contextlib.suppress(ImportError, OSError):  # of Windows, or of a file system without locks
        import fcntl
        try:
            fcntl.lockf(LOCKS[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            print(f'another process writes {path}; waiting for it', flush=True)
            fcntl.lockf(LOCKS[-1], fcntl.LOCK_EX)


@contextlib.contextmanager
def new_folder(out, progress=''):
    """A folder to write into. It becomes `out` when the block ends and is deleted if the block
    fails: a dataset appears whole or not at all. progress: the name of a file; if the folder holds
    it after a failure, the folder is kept, and the next try goes on in it."""
    out = Path(out)
    new, old = out.with_name(out.name + '.unfinished'), out.with_name(out.name + '.replaced')
    hold(out)
    for left_over in (old,) if progress else (new, old):
        shutil.rmtree(left_over, ignore_errors=True)
    try:
        new.mkdir(parents=True, exist_ok=bool(progress))
        yield new
        if out.exists():
            os.replace(out, old)
        os.replace(new, out)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        if not progress or not (new / progress).exists():
            shutil.rmtree(new, ignore_errors=True)


HEADER = 128  # bytes that numpy's header of a 1-D array has, of whatever length


class Growing:
    """A 1-D .npy file that grows. Numpy leaves room in its header for a longer axis, so the header is written again in
    the same place once the length is known. keep: the length of what is there already and stays."""

    def __init__(self, path, dtype, keep=0):
        self.dtype, self.ends = np.dtype(dtype), array('q', [keep])
        self.file = open(path, 'r+b' if keep else 'w+b')
        self.file.truncate(HEADER + keep * self.dtype.itemsize)
        self.file.seek(0, os.SEEK_END)

    def append(self, a):
        self.file.write(np.ascontiguousarray(a, self.dtype))
        self.ends.append(self.ends[-1] + len(a))

    def close(self):
        """Complete the file; returns where each appended part ends, after where the first begins, int64."""
        self.file.seek(0)
        header = {'descr': self.dtype.str, 'fortran_order': False, 'shape': (self.ends[-1],)}
        np.lib.format.write_array_header_1_0(self.file, header)
        assert self.file.tell() == HEADER
        self.file.close()
        return np.array(self.ends)


def write_meta(folder, meta):
    """Write meta.json, with the digests of all arrays in the folder, which must be complete."""
    meta = meta | {'files': {path.name: digest(path) for path in sorted(Path(folder).glob('*.npy'))}}
    (Path(folder) / 'meta.json').write_text(json.dumps(meta, indent=1), encoding='utf-8', newline='\n')
