"""What a program does before it loads torch: it checks that the libraries are installed, it forgets
which window matplotlib should draw in, and it sets two things of the C libraries, unless the user
has set them.

A notebook names its own backend of matplotlib in MPLBACKEND, also for the programs that it starts.
matplotlib cannot be imported where this backend is not installed. We draw files alone, so we need
no backend.

OpenMP's threads wait for each other in a loop that keeps the core busy. If another program uses
that core, training seems to hang. With GOMP_SPINCOUNT a thread sleeps after so many rounds of the
loop. OpenMP reads this when torch is loaded.

glibc gives large blocks of memory back to the system as soon as they are free, and asks for them
again in the next step. A training step of CRATE-T spent 6% of its time on that.
"""
import ctypes
import importlib.util
import os
import platform
import sys

REQUIRED_LIBRARIES = ('torch', 'numpy', 'safetensors', 'tqdm')

# names and numbers of glibc's malloc.h
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3


def prepare_process():
    """Only programs call this: to import our files must change nothing for those who have a process
    of their own, such as a notebook."""
    check_libraries()
    os.environ.pop('MPLBACKEND', None)
    if not set_by_user('OMP_', 'GOMP_'):
        os.environ['GOMP_SPINCOUNT'] = '20000'
    if platform.libc_ver()[0] == 'glibc' and not set_by_user('MALLOC_'):
        keep_freed_memory()


def check_libraries():
    """End the program with one line if a library is missing that every command needs."""
    for name in REQUIRED_LIBRARIES:
        if importlib.util.find_spec(name) is None:
            print(f'error: {name} is not installed; type `pip install .` in the folder of '
                  f'nanoCRATE, or start the program with uv: uv run {sys.argv[0]}',
                  file=sys.stderr)
            sys.exit(2)


def set_by_user(*prefixes):
    """Whether the environment has a variable whose name begins like this."""
    return any(name.startswith(prefixes) for name in os.environ)


def keep_freed_memory():
    mallopt = ctypes.CDLL(None).mallopt
    for option in (M_TRIM_THRESHOLD, M_MMAP_THRESHOLD):
        if not mallopt(option, 2 ** 30):
            mallopt(option, 2 ** 25)  # before glibc 2.35 M_MMAP_THRESHOLD is at most 32 MiB
