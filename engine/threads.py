"""Fewer threads while another program takes a core of the CPU."""
import os
import time

import torch

from engine.distributed import print_main, world_size

SECONDS_MEASURED = 0.5
# seconds of CPU over threads x seconds of the clock; it is 0.97 where no other program runs
CROWDED_BELOW = 0.85
SECONDS_UNTIL_MORE = 30.0  # with one thread fewer, before one more is tried


class Threads:
    """Sets how many threads PyTorch computes with. All threads wait for the slowest one: where
    another program has taken a core, one thread fewer is faster. One thread more is tried after
    30 s. Does nothing on GPUs, with several processes, or where the user has set OMP_NUM_THREADS.

    GOMP_SPINCOUNT (engine/process.py) is not enough. Where an endless loop took one of two cores,
    training with two threads kept 0.31 of its speed, with one thread 0.59."""

    def __init__(self, device_type):
        self.most = torch.get_num_threads()
        user_has_chosen = 'OMP_NUM_THREADS' in os.environ
        on_cpu_alone = device_type == 'cpu' and world_size() == 1
        self.active = on_cpu_alone and self.most > 1 and not user_has_chosen
        self.has_told = False
        self.try_more_at = 0.0
        self.restart()

    def restart(self):
        """Measure from now on. Called after a validation, whose files make the threads wait too."""
        self.wall_before = time.perf_counter()
        self.used_before = time.process_time()

    def adapt(self):
        """Take one thread fewer or one more, if it is time. Called before each step."""
        now = time.perf_counter()
        elapsed = now - self.wall_before
        if not self.active or elapsed < SECONDS_MEASURED:
            return
        threads = torch.get_num_threads()
        used = time.process_time() - self.used_before
        crowded = used < CROWDED_BELOW * threads * elapsed
        self.restart()
        if crowded and threads > 1:
            torch.set_num_threads(threads - 1)
            self.try_more_at = now + SECONDS_UNTIL_MORE
            if not self.has_told:
                print_main(f'{threads - 1} of {threads} threads while another program needs a core')
                self.has_told = True
        elif not crowded and threads < self.most and now > self.try_more_at:
            torch.set_num_threads(threads + 1)
