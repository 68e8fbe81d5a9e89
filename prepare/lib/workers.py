"""Work in several processes, with results in order and a clean end on Ctrl-C."""
import collections
import contextlib
import multiprocessing
import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from engine.settings import Mistake


def exit_with_parent():
    """Runs in a worker process: exit as soon as the parent process has ended, however it ended."""
    threading.Thread(target=lambda: (multiprocessing.parent_process().join(), os._exit(1)), daemon=True).start()


@contextlib.contextmanager
def ctrl_c_blocked():
    """Only this process gets Ctrl-C, not those started in this block. (No effect on Windows.)"""
    if not hasattr(signal, 'pthread_sigmask'):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def ctrl_c_noted():
    """Yields a list, which is empty until Ctrl-C is pressed. The loop looks at it, because a
    KeyboardInterrupt raised at a random place can get lost, for example in a destructor. A second
    Ctrl-C raises KeyboardInterrupt as usual."""
    noted = []

    def note(number, frame):
        noted.append(number)
        signal.signal(signal.SIGINT, before)
    before = signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)


def in_order(function, jobs, workers):
    """Yield (job, function(job[-1])) for each job, in order. The function runs in `workers`
    processes, or in this one if there are fewer than two. Only a few jobs are read ahead: each may
    hold a picture, and all together would hold the whole archive."""
    if workers < 2:
        for job in jobs:
            yield job, function(job[-1])
        return
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context('spawn'), exit_with_parent)
    waiting = collections.deque()
    try:
        for job in jobs:
            with ctrl_c_blocked():
                waiting.append((job, pool.submit(function, job[-1])))
            if len(waiting) >= 4 * workers:
                job, future = waiting.popleft()
                yield job, future.result()
        for job, future in waiting:
            yield job, future.result()
    except BrokenProcessPool:
        raise Mistake('a worker process was killed, perhaps because memory ran out; set fewer --workers') from None
    finally:
        pool.shutdown(cancel_futures=True)
