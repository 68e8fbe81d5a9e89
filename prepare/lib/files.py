"""Writing prepared datasets, which tasks/files.py describes: a folder appears whole or not at all, and one process at a
time writes it. While it is written, a lock beside it, .NAME.lock, lets other processes wait."""
import contextlib
import json
import os
import shutil
from pathlib import Path

import numpy as np

from engine.settings import Mistake
from tasks.files import digests


def check_free(out, overwrite):
    """Raises Mistake if `out` exists; with overwrite, only if it is no prepared dataset. Call it
    before the work."""
    out = Path(out)
    if out.is_dir() and not any(out.iterdir()) or not out.exists():
        return
    if not (out / 'meta.json').exists():
        raise Mistake(f'{out} exists and is no prepared dataset; give another --out')
    if not overwrite:
        raise Mistake(f'{out} exists; give another --out, or --overwrite to replace it')


def check_room(out, size):
    """Raises Mistake if so many bytes do not fit on the disk of `out`. Call it before the work."""
    free = shutil.disk_usage(next(p for p in Path(out).absolute().parents if p.exists())).free
    if size > free:
        raise Mistake(f'{out} would need {size / 1e9:,.1f} GB, and {free / 1e9:,.1f} GB are free; ask for less, or '
                      'give another --out')


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
    try:
        hold(out)
        for left_over in (old,) if progress else (new, old):
            shutil.rmtree(left_over, ignore_errors=True)
        new.mkdir(parents=True, exist_ok=bool(progress))
        yield new
        if out.exists():
            os.replace(out, old)
        os.replace(new, out)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as e:
        if e.filename is not None and not str(e.filename).startswith(str(out.parent)):
            raise  # it is about a file that was read
        raise Mistake(f'{out} cannot be written ({e}); make room or give another --out') from None
    finally:
        if not progress or not (new / progress).exists():
            shutil.rmtree(new, ignore_errors=True)


def write_header(file, dtype, count):
    """Write the header of a 1-D .npy file and return its length. Numpy leaves room in it for a
    longer axis, so it can be written again in the same place once the final length is known."""
    file.seek(0)
    descr = np.lib.format.dtype_to_descr(np.dtype(dtype))
    np.lib.format.write_array_header_1_0(file, {'descr': descr, 'fortran_order': False, 'shape': (count,)})
    return file.tell()


def write_meta(folder, meta):
    """Write meta.json, with the digests of all arrays in the folder, which must be complete."""
    meta = meta | {'files': digests(sorted(Path(folder).glob('*.npy')), 'checksums')}
    (Path(folder) / 'meta.json').write_text(json.dumps(meta, indent=1), encoding='utf-8', newline='\n')


def text_meta(tokenizer, splits):
    """meta.json of a text dataset. splits: {name: (tokens, dtype, UTF-8 bytes)}."""
    return {'kind': 'text', 'tokenizer': tokenizer.spec, 'vocab_size': tokenizer.vocab_size,
            'splits': {name: {'tokens': n, 'dtype': str(dtype), 'bytes': b} for name, (n, dtype, b) in splits.items()}}


def write_text(out, tokenizer, names, pieces):
    """Write a text dataset and print its counts. Only one piece of the text is in memory at a time.

    names: of the splits. pieces: (split, ids (n,), UTF-8 bytes of their text, for bits per byte),
    each split in its order.
    """
    dtype = np.dtype(np.uint16 if tokenizer.vocab_size <= 2 ** 16 else np.uint32)
    tokens, n_bytes = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
    with new_folder(out) as new, contextlib.ExitStack() as stack:
        files = {name: stack.enter_context(open(new / f'{name}.npy', 'wb')) for name in names}
        starts = {name: write_header(file, dtype, 0) for name, file in files.items()}
        for name, ids, more in pieces:
            np.asarray(ids, dtype).tofile(files[name])
            tokens[name], n_bytes[name] = tokens[name] + len(ids), n_bytes[name] + more
        for name, file in files.items():
            if tokens[name] < 2:
                raise Mistake(f'too little text: {tokens[name]} tokens for {name}; give more, or another --val')
            assert write_header(file, dtype, tokens[name]) == starts[name]
            file.close()
        meta = text_meta(tokenizer, {name: (tokens[name], dtype, n_bytes[name]) for name in names})
        write_meta(new, meta)
    for name in names:
        print(f'{out}/{name}.npy: {tokens[name]:,} tokens of {n_bytes[name]:,} bytes, {tokenizer.vocab_size} in the '
              'vocabulary')
