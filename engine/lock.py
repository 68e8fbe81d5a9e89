"""One process at a time writes a folder: it holds a lock, an open file that names it.

The system releases the lock when the process ends, even if it is killed, so none is ever stale. A
process that ends in order removes the file too; one that is left stops nobody. On a network file
system without locks a line says so, and the work goes on.
"""
import atexit
import contextlib
import errno
import os
import platform
import shlex
import sys
import time
from pathlib import Path

from engine.settings import Mistake

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None
    import msvcrt

HELD = {}  # by path of the lock: the open file, and the folders that were made for it
BUSY = errno.EAGAIN, errno.EACCES, errno.EDEADLK


def beside(path):
    """The lock of a prepared dataset or a download: a hidden file beside it."""
    return Path(path).with_name(f'.{Path(path).name}.lock')


def hold(path, what, advice, wait=False):
    """Hold the lock at `path` until let_go, or to the end of this process; `what` is the folder or
    file that it is for. If another process holds it, raises Mistake that names it; with wait, it
    is waited for."""
    path = Path(path).absolute()
    if path in HELD:
        return
    made, said = [folder for folder in path.parents if not folder.exists()], False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            file = open(path, 'a+b', buffering=0)
            free = locked(file, what)
            if free and lies_at(file, path):
                break
            with file:  # another process holds it, or has removed it a moment ago
                file.seek(0)
                who = file.read(500).decode(errors='replace') or 'another process'
            if not free and not wait:
                raise Mistake(f'{what} is being written by {who}; wait for it, or {advice}')
            if not free and not said:
                print(f'{what} is being written by {who}; waiting for it', flush=True)
                said = True
            time.sleep(0.1)
    except (OSError, RecursionError) as e:
        raise Mistake(f'{what} cannot be written ({getattr(e, "strerror", "nested too deep")}); {advice}') from None
    HELD[path] = file, made
    with contextlib.suppress(OSError):  # a full disk; the lock holds without the words
        file.truncate(0)
        words = shlex.join(sys.argv)[:300]
        file.write(f'process {os.getpid()} on {platform.node()} ({words})'.encode(errors='replace'))


def let_go(path):
    """Release a lock that this process may hold, and remove its file, and folders that were made for
    it if nothing else is in them."""
    path = Path(path).absolute()
    if path not in HELD:
        return
    file, made = HELD.pop(path)
    if not fcntl:
        file.close()  # Windows removes no open file; elsewhere it is removed while no other process can hold it
    with contextlib.suppress(OSError):
        os.remove(path)
    file.close()
    with contextlib.suppress(OSError):
        for folder in made:
            folder.rmdir()


@contextlib.contextmanager
def held(path, what, advice, wait=False):
    """hold while the block runs."""
    hold(path, what, advice, wait)
    try:
        yield
    finally:
        let_go(path)


# ---- helpers --------------------------------------------------------------------------------------------------------

def locked(file, what):
    """Lock an open file. Returns False if another process has."""
    try:
        if fcntl:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            file.seek(2 ** 30)  # far behind the words: others cannot read the locked byte
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
    except OSError as e:
        if e.errno in BUSY:
            return False
        print(f'note: {what} is on a file system without locks ({e.strerror}); start nothing else that writes there')
    return True


def lies_at(file, path):
    """Whether the file at `path` is this open one."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


def forget():
    """In a forked process: the locks are its parent's, and end with that."""
    for file, _ in HELD.values():
        file.close()
    HELD.clear()


def let_all_go():
    for path in list(HELD):
        let_go(path)


atexit.register(let_all_go)
if hasattr(os, 'register_at_fork'):
    os.register_at_fork(after_in_child=forget)
