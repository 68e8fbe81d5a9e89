"""Work in several processes, with results in order and a clean end on Ctrl-C."""
import collections
import multiprocessing
import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from engine.settings import Mistake


def begin():
    """In a worker: the end of the main process, however it comes, is the end of this one."""
    threading.Thread(target=lambda: (multiprocessing.parent_process().join(), os._exit(1)), daemon=True).start()


def in_order(function, jobs, workers):
    """Yield (job, function(job[-1])) for each job, in order. The function runs in `workers` processes, or in this one
    if there are fewer than two. Only a few jobs are read ahead: multiprocessing's Pool.imap would read them all, each
    with a picture, and wait for ever for a worker that was killed."""
    if workers < 2:
        yield from ((job, function(job[-1])) for job in jobs)
        return
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context('spawn'), begin)
    waiting, mask = collections.deque(), getattr(signal, 'pthread_sigmask', lambda *_: None)  # Windows has none
    try:
        for job in jobs:
            mask(signal.SIG_BLOCK, {signal.SIGINT})  # workers start here, and Ctrl-C is for this process alone
            waiting.append((job, pool.submit(function, job[-1])))
            mask(signal.SIG_UNBLOCK, {signal.SIGINT})
            if len(waiting) >= 4 * workers:
                job, result = waiting.popleft()
                yield job, result.result()
        yield from ((job, result.result()) for job, result in waiting)
    except BrokenProcessPool:
        raise Mistake('a worker process was killed, perhaps because memory ran out; set fewer --workers') from None
    finally:
        pool.shutdown(cancel_futures=True)
