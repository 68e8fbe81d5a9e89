"""What a user is told who has typed a name that does not exist, or a network and a dataset that do
not fit; or if a library is missing, the disk or the memory is full, or another process of the run
has ended. Only a program that ends so loads this.
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
# {kind of data: a dataset that needs no download}
SMALL_DATASET = {'text': 'stdlib', 'images': 'shapes', 'functions': 'linear'}
# errors of the operating system: the disk or a path has no room, or this user may not read or write
# there, or the disk fails; this user has as many processes or open files as are allowed
NO_PLACE = (errno.ENOSPC, errno.EFBIG, errno.ENAMETOOLONG, errno.EDQUOT,
            errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO, errno.ESTALE)
TOO_MANY = (errno.EAGAIN, errno.EMFILE, errno.ENFILE)
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


def unknown_choice(name, value, known):
    """What to say of a value that is none of the known ones. name: of the setting."""
    choices = ', '.join(choice for choice in known if choice)
    near = difflib.get_close_matches(value, known, 1)
    hint = f'did you mean {near[0]}? There are' if near else 'choose one of'
    return f"{name}='{value}' is unknown; {hint} {choices}"


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


# ---- networks and datasets ----------------------------------------------------------------------

def what_to_read(model, kinds, kind, folder):
    """What to say of a network that reads the kinds of data `kinds`, and not the one in a
    folder."""
    if kind == 'arrays' or not SMALL_DATASET.keys() & kinds:
        return (f'{folder} holds {kind}, model={model} reads {" or ".join(kinds)}; choose '
                'another --dataset or --model, or write a task, see docs/extend.md')
    dataset = SMALL_DATASET[kinds[0]]
    words = f'--model={model} --dataset={dataset}'
    # of dino it is train_crate_dino_shapes.py
    configs = sorted((HERE / 'config').glob(f'*train_*{model}_{dataset}.py'))
    if configs:
        words = f'config/{configs[0].name}'
    return (f'{folder} holds {kind}, model={model} with these settings reads '
            f'{" or ".join(kinds)}; type python train.py {words}')


def how_to_prepare(folder):
    """What to say of a dataset that is not there: the script that is named like it, or those for
    data of one's own."""
    scripts = [f'prepare/{Path(folder).name}.py']
    if not (HERE / scripts[0]).exists():
        scripts = ['prepare/text.py FILES', 'prepare/imagefolder.py FOLDER']
    commands = [f'python {script} --out {folder}' for script in scripts]
    return f'no data in {folder}; run: {" or ".join(commands)}'


# ---- exceptions ---------------------------------------------------------------------------------

def advice_of(e):
    """A line for the user, what is wrong and what to do; '' of any other exception, which is a
    bug."""
    text = str(e)
    if isinstance(e, ModuleNotFoundError) and e.name in OPTIONAL:
        return f'this needs a library that is missing: pip install {OPTIONAL[e.name]}'
    if isinstance(e, OSError):
        return advice_of_system(e)
    if is_lack_of_memory(e):
        return f'{text[:120] or "out of memory"}; {how_to_save_memory()}'
    if is_lost_reader(e):
        hint = 'start again'
        if program() == 'train.py':
            hint = 'go on with --init_from=resume'
        return ('a process that reads pictures has ended, or sends none, perhaps for lack of '
                f'memory; {hint}, with fewer --workers')
    if is_lost_process(e):
        return ('another process of this run has ended, and its own message stands above; go on '
                'with --init_from=resume, if there is a checkpoint')
    return ''


def reason_of(e):
    """What an exception says, for the middle of a line: the advice, or its first sentence. (PyTorch
    goes on to say how to load a damaged file unsafely.)"""
    sentence = str(e).split('. ')[0][:200]
    return advice_of(e) or f'{type(e).__name__}: {sentence}'


def advice_of_system(e):
    """As advice_of, of an error of the operating system."""
    if e.errno in TOO_MANY:
        return f'{e}; end other programs, or raise what `ulimit -a` lists'
    # NumPy gives no error number, but these words, for small and for large arrays
    numpy_says_full = re.search(' requested and |Not enough free space', str(e))
    if e.errno not in NO_PLACE and not numpy_says_full:
        return ''
    hint = 'make room and see who may use this place, or name another'
    if program() == 'train.py':
        hint += '; then go on with --init_from=resume, if there is a checkpoint'
    return f'{e}; {hint}'


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


def is_lack_of_memory(e):
    if isinstance(e, MemoryError):
        return True
    words_of_torch = ('out of memory|allocate memory|not enough memory|'
                      'calculation overflowed|Overflow when unpacking')  # of more than 64 bits
    says_so = re.search(words_of_torch, str(e)) is not None
    return isinstance(e, (RuntimeError, TypeError)) and says_so


def is_lost_reader(e):
    """Whether Python or PyTorch says that a process which reads pictures has ended, or sends
    nothing."""
    if isinstance(e, BrokenProcessPool):
        return True
    # an error that a reader has raised is none of these: it says 'DataLoader worker process'
    words_of_torch = 'DataLoader worker (pid', 'DataLoader timed out'
    return isinstance(e, RuntimeError) and str(e).startswith(words_of_torch)


def is_lost_process(e):
    """Whether gloo or NCCL says that the connection to another process of this run has ended."""
    words_of_torch = 'gloo.*(closed by peer|reset by peer|Broken pipe)|NCCL.*remote process exited'
    return isinstance(e, RuntimeError) and re.search(words_of_torch, str(e), re.S) is not None
