"""The first step compiles, if that is on; and with another program on a core, one thread fewer is faster."""
import contextlib
import os
import time
from collections import deque
from statistics import median

import torch

from engine import compiling, machine


class Pace:
    """Compiles before the first step, if that is on, and chooses the number of threads. Both change
    results only by rounding. `meet` is called with each batch, before the forward pass.

    On a CPU all threads wait for the slowest one. If another program takes a core, one thread fewer
    is faster. A few forward passes with each number decide: first after five seconds, then whenever
    steps become slower, and with fewer threads every 15 seconds, because the core may be free again.
    If OMP_NUM_THREADS is set, that number stays.
    """

    FIRST, AGAIN = 5.0, 15.0            # seconds until threads are looked at first, and again
    SLOWER = 1.25                       # steps that take so many times the best time are slow

    def __init__(self, here, model, run):
        self.here, self.model, self.run = here, model, run
        self.step, self.times, self.clock = None, deque(maxlen=20), 0.0  # seconds of the last steps
        self.alone = here.kind == 'cpu' and not here.grouped
        self.threads = torch.get_num_threads() if self.alone and 'OMP_NUM_THREADS' not in os.environ else 1
        self.best, self.next_probe = float('inf'), time.perf_counter() + self.FIRST

    def meet(self, step, x, y):
        """Before a forward pass of a step. x, y: its batch."""
        if step == self.step:
            return
        now = time.perf_counter()
        if self.step is None:
            if self.here.compiled:
                self.compile(x, y)
        elif not self.run.due(step):  # else there was a validation in between
            self.times.append(now - self.clock)
            if self.threads > 1 and now > self.next_probe and len(self.times) >= 5:
                self.choose_threads(step, x, y)
        self.step, self.clock = step, time.perf_counter()

    def compile(self, x, y):
        """Compile, and try it on a batch. If that fails, the network stays as it is. The clock of
        training leaves this time out where it tells how fast the run is."""
        start = time.perf_counter()
        if self.alone:
            compiling.compile_whole(self.model)
        try:
            with torch.random.fork_rng(devices=[self.here.device] if self.here.kind == 'cuda' else []):
                with self.here.autocast, untouched(self.model):
                    loss = self.model(x, y)[1]
                loss.backward()
        except Exception as e:  # of many types: no compiler, one that is too old, an operator that it does not know
            if machine.advice(e):  # of train.py: too little memory, or another process has ended
                raise
            compiling.plain_again(self.model)
            self.here.compiled = False
            lines = [line for line in str(e).splitlines() if line.strip()] or ['']
            self.here.say(f'not compiled after all: {type(e).__name__}: {lines[0][:200]}. Compiling on a CPU needs a '
                          'C++ compiler, such as g++')
        finally:
            self.model.zero_grad(set_to_none=True)
            self.run.aside += time.perf_counter() - start

    # ---- threads

    def choose_threads(self, step, x, y):
        """Compare the number of threads with another one, if there is a reason to."""
        now, recent = torch.get_num_threads(), median(list(self.times)[-5:])
        reduced, first = now < self.threads, self.best == float('inf')
        self.best = min(self.best, recent)
        self.next_probe = time.perf_counter() + (self.AGAIN if reduced else 1.0)
        if not (first or reduced or recent > self.SLOWER * self.best):
            return
        other = self.threads if reduced else now - 1
        seconds = {n: [] for n in (now, other)}
        for n in (now, other) * 3:
            torch.set_num_threads(n)
            start = time.perf_counter()
            with torch.no_grad(), torch.random.fork_rng(devices=[]), compiling.without_compiled(), \
                    self.here.autocast, untouched(self.model):
                self.model(x, y)
            seconds[n].append(time.perf_counter() - start)
        was, would_be = median(seconds[now]), median(seconds[other])
        torch.set_num_threads(now)
        self.next_probe = time.perf_counter() + self.AGAIN
        if would_be < (0.95 if reduced else 0.8) * was:
            torch.set_num_threads(other)
            self.times.clear()
            why = 'the cores are free again' if reduced else 'another program needs a core'
            self.here.say(f'{self.run.at(step)}  {other} thread{"s" * (other > 1)} instead of {now}: {why}')


@contextlib.contextmanager
def untouched(model):
    """After the block, also after an error in it, the buffers of a network are as they were before."""
    kept = [buffer.clone() for buffer in model.buffers()]
    try:
        yield
    finally:
        for buffer, old in zip(model.buffers(), kept):
            buffer.data.copy_(old)
