"""What a user is told who has typed a name that does not exist, or if a library is missing, the
disk or the memory is full, or another process of the run has ended. Only a program that ends so
loads this.
"""
import difflib
import errno
import os
import re
import sys
import traceback
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from engine import HERE

# {what people type, from nanoGPT or for another of our programs: what this program may call it}
OTHER_NAMES = {'out_dir': 'ckpt', 'init_from': 'ckpt', 'ckpt': 'init_from', 'lr': 'learning_rate',
               'prompt': 'start'}
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


# ---- names and config files ---------------------------------------------------------------------

def unknown_setting(name, source, is_typed, known):
    """What to say of a setting that is none of the known ones. source: where it stands."""
    if source == 'config.json':
        return (f'config.json of the run has {name}, which is no setting here: the run is of '
                'another version, which you can check out')
    near = difflib.get_close_matches(name, known, 1, 0.6)
    if OTHER_NAMES.get(name) in known:
        hint = f'did you mean {OTHER_NAMES[name]}?'
    elif near:
        hint = f'did you mean {near[0]}?'
    elif not is_typed:
        hint = 'this network has none; begin a name that is no setting with _'
    else:
        hint = '--help lists all'
    return f'unknown setting {name} in {source}; {hint}'


def what_was_meant(path):
    """A guess what somebody means who has typed the path of a config file that is not there."""
    if os.path.isfile(f'{path}/config.json'):
        return f'a run is named by --ckpt={path}, or in training --init_from={path}'
    names = [f'config/{file.name}' for file in (HERE / 'config').glob('*.py')]
    near = difflib.get_close_matches(path, names, 1, 0.4)
    if near and not os.path.exists(path):
        return f'did you mean {near[0]}?'
    return ('settings are typed --name=value, with one value: name a folder for several files, and '
            'put a name with spaces in quotes')


def place_of(error, path):
    """Where in a config file an error came up: 'PATH, line 3', or PATH alone if it is not known."""
    lines = [entry.lineno for entry in traceback.extract_tb(error.__traceback__)
             if entry.filename == path]
    if isinstance(error, SyntaxError) and error.filename == path:
        lines.append(error.lineno)
    if not lines or lines[-1] is None:
        return path
    return f'{path}, line {lines[-1]}'


# ---- exceptions ---------------------------------------------------------------------------------

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
    if is_lack_of_processes(e):
        return f'{text}; end other programs, or raise what `ulimit -a` lists'
    if is_lack_of_memory(e):
        return f'{text[:120] or "out of memory"}; {how_to_save_memory()}'
    if is_lost_reader(e):
        hint = 'start again'
        if program() == 'train.py':
            hint = 'go on with --init_from=resume'
        return ('a process that reads pictures was ended, perhaps for lack of memory; '
                f'{hint}, with fewer --workers')
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


def is_lack_of_processes(e):
    """Whether the system lets this user have no more processes or open files."""
    return isinstance(e, OSError) and e.errno in (errno.EAGAIN, errno.EMFILE, errno.ENFILE)


def is_lack_of_memory(e):
    if isinstance(e, MemoryError):
        return True
    words_of_torch = ('out of memory|allocate memory|not enough memory|'
                      'calculation overflowed|Overflow when unpacking')  # of more than 64 bits
    says_so = re.search(words_of_torch, str(e)) is not None
    return isinstance(e, (RuntimeError, TypeError)) and says_so


def is_lost_reader(e):
    """Whether Python or PyTorch says that a process which reads pictures has ended."""
    if isinstance(e, BrokenProcessPool):
        return True
    # an error that a reader has raised is none of these: it says 'DataLoader worker process'
    return isinstance(e, RuntimeError) and 'DataLoader worker (pid' in str(e)


def is_lost_process(e):
    """Whether gloo or NCCL says that the connection to another process of this run has ended."""
    words_of_torch = 'gloo.*(closed by peer|reset by peer|Broken pipe)|NCCL.*remote process exited'
    return isinstance(e, RuntimeError) and re.search(words_of_torch, str(e), re.S) is not None
