"""What a user is told if a library is missing, if the disk or the memory is full, or if another
process of the run has ended. Only a program that ends so loads this.
"""
import errno
import re
import sys
from pathlib import Path

# libraries that only some commands need: {name to import: name to install}
OPTIONAL = {
    'matplotlib': 'matplotlib',
    'tiktoken': 'tiktoken',
    'requests': 'requests',
    'scipy': 'scipy',
    'wandb': 'wandb',
    'tensorboard': 'tensorboard',
    'torch.utils.tensorboard': 'tensorboard',
    'PIL': 'pillow',
}


def advice_of(e):
    """A line for the user, what is wrong and what to do; '' of any other exception, which is a
    bug."""
    text = str(e)
    if isinstance(e, ModuleNotFoundError) and e.name in OPTIONAL:
        return f'this needs a library that is missing: pip install {OPTIONAL[e.name]}'
    if is_full_disk(e) or is_refused(e):
        hint = 'make room, or take a shorter name'
        if is_refused(e):
            hint = 'name another place, or change who may use this one'
        if program() == 'train.py':
            hint += '; then go on with --init_from=resume, if there is a checkpoint'
        return f'{text}; {hint}'
    if is_lack_of_memory(e):
        return f'{text[:120] or "out of memory"}; {how_to_save_memory()}'
    if is_lost_reader(e):
        return ('a process that reads pictures was ended, perhaps for lack of memory; go on with '
                '--init_from=resume, and fewer --workers')
    if is_lost_process(e):
        return ('another process of this run has ended, and its own message stands above; go on '
                'with --init_from=resume, if there is a checkpoint')
    return ''


def program():
    """The name of the file that the user has started, such as train.py."""
    return Path(sys.argv[0]).name


def how_to_save_memory():
    """What somebody can type whose program asked for too much memory."""
    if program() == 'train.py':
        return ('ask for less: half the --batch_size with twice the '
                '--gradient_accumulation_steps, or --recompute=true, or for text '
                '--loss_in_chunks=true')
    if program() in ('eval.py', 'analyze.py', 'bench.py'):
        return 'ask for less: half the --batch_size'
    return 'end other programs, or use a machine with more memory'


def is_full_disk(e):
    if not isinstance(e, OSError):
        return False
    # NumPy gives no error number, but these words, for small and for large arrays
    numpy_says_so = re.search(' requested and |Not enough free space', str(e)) is not None
    full = (errno.ENOSPC, errno.EFBIG, errno.ENAMETOOLONG, errno.EDQUOT)
    return numpy_says_so or e.errno in full


def is_refused(e):
    """Whether the system does not let this user read or write, or a disk fails."""
    return isinstance(e, OSError) and e.errno in (errno.EACCES, errno.EPERM, errno.EROFS,
                                                  errno.EIO, errno.ESTALE)


def is_lack_of_memory(e):
    if isinstance(e, MemoryError):
        return True
    words_of_torch = 'out of memory|allocate memory|not enough memory'
    return isinstance(e, RuntimeError) and re.search(words_of_torch, str(e)) is not None


def is_lost_reader(e):
    """Whether PyTorch says that a process which reads pictures has ended."""
    return isinstance(e, RuntimeError) and 'DataLoader worker' in str(e)


def is_lost_process(e):
    """Whether gloo or NCCL says that the connection to another process of this run has ended."""
    words_of_torch = 'gloo.*(closed by peer|reset by peer|Broken pipe)|NCCL.*remote process exited'
    return isinstance(e, RuntimeError) and re.search(words_of_torch, str(e), re.S) is not None
