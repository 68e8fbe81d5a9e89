"""Writing prepared datasets, which tasks/files.py describes.

A folder appears whole or not at all, and one process at a time writes it: it locks a file beside
the folder, .NAME.lock, for which others wait. Windows and some file systems have no such locks.

Only files with the names of a dataset's files are deleted. A folder that holds anything else is
refused.
"""
import contextlib
import json
import os
import re
from array import array
from pathlib import Path

import numpy as np

from engine.mistakes import Mistake
from tasks.checksums import digest
from tasks.files import checksum_of

# the names of the files of a dataset, also of one that is being written
OF_DATASET = re.compile(r'(train|val|test)(\.\w+)?\.npy|meta\.json|progress\.(json|new)')
LOCKS = []  # files that stay open to the end of this process: to close one would end its lock


def hold(path):
    """Let no other process write at `path` before this process has ended. If another process holds
    it, wait for that one; if this one does, go on. Raises Mistake if the folder of `path` cannot be
    written."""
    try:
        path = Path(path).resolve()
        path.parent.mkdir(parents=True, exist_ok=True)
        lock_file = open(path.with_name(f'.{path.name}.lock'), 'ab')
    except (OSError, RuntimeError) as e:  # the latter of a link that leads to itself
        raise Mistake(f'{path} cannot be written ({e}); give another --out') from None
    LOCKS.append(lock_file)

    with contextlib.suppress(ImportError, OSError):  # where there are no locks
        import fcntl
        try:
            fcntl.lockf(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            print(f'another process writes {path}; waiting for it', flush=True)
            fcntl.lockf(lock_file, fcntl.LOCK_EX)


@contextlib.contextmanager
def new_folder(out, progress=''):
    """A folder to write into, a Path. It becomes `out` when the block ends, and is deleted if the
    block fails: a dataset appears whole or not at all. Raises Mistake if anything but datasets
    would be deleted.

    progress: the name of a file that says how far the work is. If the block fails and the folder
    has this file, the folder is kept, and the next call yields it as it is. The block removes the
    file at its end.
    """
    out = Path(out).resolve()  # a link stays; the folder that it leads to is replaced
    new = out.with_name(out.name + '.unfinished')
    replaced = out.with_name(out.name + '.replaced')
    hold(out)

    # a process that was killed may have left both folders
    remove(replaced)
    if not progress:
        remove(new)

    try:
        new.mkdir(parents=True, exist_ok=bool(progress))
        yield new
        if out.exists():
            os.replace(out, replaced)
        os.replace(new, out)
        remove(replaced)
    finally:
        if not progress or not (new / progress).exists():
            remove(new)


def remove(folder):
    """Delete a folder of a dataset, if it is there. Raises Mistake if it holds anything else."""
    if folder.exists():
        check_replaceable(folder)
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()


def check_replaceable(folder):
    """Raises Mistake if a folder holds anything but the files of one dataset."""
    names = sorted(path.name for path in folder.iterdir())
    if names == ['meta.json', 'test.jsonl']:  # a test split, see texts.py
        return
    for name in names:
        if not OF_DATASET.fullmatch(name):
            raise Mistake(f'{folder} also holds {name}, which is no file of the dataset; move it '
                          'to another folder')


HEADER = 128  # size in bytes of numpy's header of a 1-D array, the same for every length


class Growing:
    """A 1-D .npy file that grows. Its header has one size for every length. So room is left for it,
    and it is written at the end, when the length is known."""

    def __init__(self, path, dtype, keep=0):
        """keep: how many items of an existing file to keep; 0 begins a new file."""
        self.dtype = np.dtype(dtype)
        self.ends = array('q', [keep])  # the length at the start, and after each append
        self.file = open(path, 'r+b' if keep else 'w+b')
        self.file.truncate(HEADER + keep * self.dtype.itemsize)
        self.file.seek(0, os.SEEK_END)

    @property
    def length(self):
        """How many items there are."""
        return self.ends[-1]

    def append(self, a):
        self.file.write(np.ascontiguousarray(a, self.dtype))
        self.ends.append(self.length + len(a))

    def flush(self):
        """Wait until everything that was appended is on the disk."""
        self.file.flush()
        os.fsync(self.file)

    def close(self):
        """Complete the file. Returns where the first appended array begins, and where each appended
        array ends, int64."""
        self.file.seek(0)
        header = {'descr': self.dtype.str, 'fortran_order': False, 'shape': (self.length,)}
        np.lib.format.write_array_header_1_0(self.file, header)
        self.file.close()
        return np.array(self.ends)


def write_meta(folder, meta):
    """Write meta.json: `meta`, a dict, the digests of all arrays in the folder, which must be
    complete, and a checksum of all this."""
    arrays = sorted(Path(folder).glob('*.npy'))
    meta = meta | {'files': {path.name: digest(path) for path in arrays}}
    meta['sha256'] = checksum_of(meta)
    with open(Path(folder) / 'meta.json', 'w', encoding='utf-8', newline='\n') as file:
        json.dump(meta, file, indent=1)
