"""What every command stands on: settings, device, optimizers, checkpoints, run directories.

Import it before torch: it sets two things of the C libraries below, unless the user has set them.

OpenMP's threads wait for each other in a loop that keeps the core busy. If another program uses that
core, training seems to hang. With GOMP_SPINCOUNT a thread sleeps after so many rounds of the loop.

glibc gives large blocks of memory back to the system as soon as they are free, and asks for them
again in the next step. A training step of CRATE-T spent 6% of its time on that.
"""
import ctypes
import os
import platform

if not any(name.startswith(('OMP_', 'GOMP_')) for name in os.environ):
    os.environ['GOMP_SPINCOUNT'] = '20000'

if platform.libc_ver()[0] == 'glibc' and not any(name.startswith('MALLOC_') for name in os.environ):
    M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # names and numbers of glibc's malloc.h
    mallopt = ctypes.CDLL(None).mallopt
    for option in (M_TRIM_THRESHOLD, M_MMAP_THRESHOLD):
        mallopt(option, 2 ** 30) or mallopt(option, 2 ** 25)  # of glibc before 2.35 the second is at most 32 MiB
