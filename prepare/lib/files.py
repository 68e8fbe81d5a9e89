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
from tasks.files import digests


def check_free(out, overwrite):
    """Raises Mistake if `out` exists; with overwrite, only if it is no prepared dataset. Call it
    before the work."""
    out = Path(out)
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        if not (out / 'meta.json').exists():
            raise Mistake(f'{out} exists and is no prepared dataset; give another --out')
        if not overwrite:
            raise Mistake(f'{out} exists; give another --out, or --overwrite to replace it')


LOCKS = []  # open files, to the end of this process


def hold(path):
    """Let no other process write at `path` before this one has ended; wait for one that does."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        LOCKS.append(open(path.with_name(f'.{path.name}.lock'), 'ab'))
    except OSError as e:
        raise Mistake(f'{path} cannot be written ({e.strerror}); name another place') from None
    try:
        import fcntl
        try:
            fcntl.lockf(LOCKS[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            print(f'another process writes {path}; waiting for it', flush=True)
            fcntl.lockf(LOCKS[-1], fcntl.LOCK_EX)
    except (ImportError, OSError):  # Windows, or a file system without locks
        pass


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


class Growing:
    """A 1-D .npy file that grows. Numpy leaves room in its header for a longer axis, so the header is written again in
    the same place once the length is known. keep: the length of what is there already and stays."""

    def __init__(self, path, dtype, keep=0):
        self.file, self.dtype, self.ends = open(path, 'r+b' if keep else 'w+b'), np.dtype(dtype), array('q', [keep])
        self.file.truncate(self.write_header() + keep * self.dtype.itemsize)
        self.file.seek(0, os.SEEK_END)

    @property
    def length(self):
        return self.ends[-1]

    def write_header(self):
        self.file.seek(0)
        np.lib.format.write_array_header_1_0(self.file, {
            'descr': np.lib.format.dtype_to_descr(self.dtype), 'fortran_order': False, 'shape': (self.length,)})
        return self.file.tell()

    def append(self, a):
        self.file.write(np.ascontiguousarray(a, self.dtype))
        self.ends.append(self.length + len(a))

    def close(self):
        """Complete the file; returns where each appended part ends, after where the first begins, int64."""
        self.write_header()
        self.file.close()
        return np.array(self.ends)


def write_meta(folder, meta):
    """Write meta.json, with the digests of all arrays in the folder, which must be complete."""
    meta = meta | {'files': digests(sorted(Path(folder).glob('*.npy')), 'checksums')}
    (Path(folder) / 'meta.json').write_text(json.dumps(meta, indent=1), encoding='utf-8', newline='\n')


def write_text_meta(folder, tokenizer, files, n_bytes):
    """Complete the files of a text dataset, {split: Growing}, and write its meta.json. n_bytes: {split: UTF-8
    bytes}."""
    splits = {}
    for split, file in files.items():
        if file.length < 2:
            raise Mistake(f'too little text: {file.length} tokens for {split}; give more, or another --val')
        file.close()
        splits[split] = {'tokens': file.length, 'dtype': str(file.dtype), 'bytes': n_bytes[split]}
    write_meta(folder, {'kind': 'text', 'tokenizer': tokenizer.spec, 'vocab_size': tokenizer.vocab_size,
                        'splits': splits})


def write_text(out, tokenizer, parts):
    """Write a text dataset and print its counts. parts: (split, ids (n,), UTF-8 bytes of its text, for bits per byte)
    of each split; one at a time is in memory."""
    dtype, files, n_bytes = np.uint16 if tokenizer.vocab_size <= 2 ** 16 else np.uint32, {}, {}
    with new_folder(out) as new:
        for name, ids, count in parts:
            files[name], n_bytes[name] = Growing(new / f'{name}.npy', dtype), count
            files[name].append(ids)
        write_text_meta(new, tokenizer, files, n_bytes)
    for name, file in files.items():
        print(f'{out}/{name}.npy: {file.length:,} tokens of {n_bytes[name]:,} bytes, {tokenizer.vocab_size} in the '
              'vocabulary')
