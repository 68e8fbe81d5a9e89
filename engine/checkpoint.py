"""A run directory. Nothing else is needed to use its network. To go on with the run, its dataset is
needed too.

    config.json         the settings of the run and of its network, and the tokenizer or the classes
                        of its data
    best.safetensors    the weights of the best validation; their average, if the run has one
    last.pt             all that resuming needs: weights, average, optimizers, step, best error
    log.jsonl           a line for each logged step and each validation
    curve.png           the losses, at the end

A process that writes there holds a lock on the empty file .lock.

With keep_checkpoints there is also a step_N.safetensors of every validation, and eval.py adds its
results.

A kill at any moment damages no file. The log grows line by line. Every other file above is written
under another name and then renamed, so it is the old one or the new one, whole. last.pt alone
decides where a run goes on. At a validation the log is written first, then best.safetensors, then
last.pt: a run that is killed before the last renaming repeats the steps since the old last.pt, and
the later lines of its log are cut. train.py says when these steps are the same bit for bit.
"""
import contextlib
import hashlib
import json
import math
import os
from pathlib import Path

import torch
from safetensors.torch import save as as_bytes  # save_file makes files that no other user may read

from engine.distributed import is_main
from engine.mistakes import Mistake, reading
from engine.settings import quoted
from engine.writing import rename, write_file, write_new, writing

FILES = ('config.json', 'log.jsonl', 'last.pt', 'best.safetensors', 'curve.png', 'results.csv',
         'in_context.csv', 'in_context.png', 'step_*.safetensors', 'wandb_id.txt',
         'events.out.tfevents*')  # the last is of TensorBoard


# ---- files --------------------------------------------------------------------------------------

def run_directory(path):
    """The path itself, or its folder if it is a .safetensors file in a run directory."""
    path = Path(path)
    is_weights = path.suffix == '.safetensors' and not path.is_dir()
    return path.parent if is_weights else path


def run_files(out_dir):
    """Names of the files of a run that lie in a directory, empty ones left out."""
    names = []
    for pattern in FILES:
        for path in sorted(Path(out_dir).glob(pattern)):
            if path.is_file() and path.stat().st_size > 0:
                names.append(path.name)
    return names


def check_new(out_dir):
    """Raises Mistake if a directory holds a run. A config.json alone is none: its run ended before
    it had anything to keep."""
    names = run_files(out_dir)
    if not names or names == ['config.json']:
        return
    go_on = ''
    if 'last.pt' in names:
        go_on = f'go on with: python train.py --init_from=resume --out_dir={quoted(out_dir)}; or '
    raise Mistake(f'{out_dir} already holds a run ({", ".join(names)}); {go_on}replace it with '
                  '--overwrite=true, or name another --out_dir')


# ---- weights ------------------------------------------------------------------------------------

def weights_of(model):
    """{name: tensor} of a network. Weights with two names are there once."""
    names = {*dict(model.named_parameters()), *dict(model.named_buffers())}
    return {name: tensor for name, tensor in model.state_dict().items() if name in names}


def on_cpu(weights):
    """{name: tensor} with copies on the CPU, which share no memory."""
    return {name: tensor.detach().to('cpu', copy=True).contiguous()
            for name, tensor in weights.items()}


def digest(weights, step):
    """The sha256 checksum of a step and of tensors with their names. It shows whether a file has
    changed since it was written."""
    checksum = hashlib.sha256(str(step).encode())
    for name, tensor in sorted(weights.items()):
        checksum.update(f'{name} {tensor.dtype} {tuple(tensor.shape)}'.encode())
        checksum.update(tensor.reshape(-1).view(torch.uint8).numpy())
    return checksum.hexdigest()


def write_new_weights(path, weights, step):
    """write_new of a .safetensors file of {name: tensor on the CPU}."""
    about = {'format': 'pt', 'step': str(step), 'sha256': digest(weights, step)}
    return write_new(path, lambda f: f.write(as_bytes(weights, about)), 'wb')


# ---- a run --------------------------------------------------------------------------------------

class RunDirectory:
    """A new run directory, or one to go on in. While it is open no other process writes there.
    Every process of a run makes one, and only the main process writes. A `with` block closes it,
    also if the run ends with an exception."""

    def __init__(self, c, config, step, resumed):
        """c: the run's TrainConfig; config: what config.json is to hold; step: the first one."""
        self.out = Path(c.out_dir)
        self.lock = None
        self.log_file = None
        self.loggers = []  # W&B and TensorBoard, if they are used
        if not is_main():
            return
        try:
            self.open(c, config, step, resumed)
        except BaseException:
            self.close(failed=True)
            raise

    def open(self, c, config, step, resumed):
        """In the main process: lock the directory, make it that of this run, open the logs."""
        if c.wandb_log or c.tensorboard:
            from engine import loggers  # here: few runs need it
            loggers.check_libraries(c)  # one that is missing is noticed before anything is written

        self.lock = locked(self.out)
        for name in FILES:
            for path in self.out.glob(f'{name}.[0-9]*.new'):  # of a process that was killed
                path.unlink()
        if not resumed and not c.overwrite:
            check_new(self.out)  # another run may have come and gone since the first look
        log_path = self.out / 'log.jsonl'
        lines = []
        if resumed:  # the others are written again
            lines = [line for row, line in log_lines(log_path) if row['step'] < step]
        # on a full disk this fails, while the files of an old run are still there
        config_path = self.out / 'config.json'
        new_config = write_new(config_path, lambda f: json.dump(config, f, indent=1))
        if not resumed:
            remove_run(self.out)
        rename(new_config, config_path)
        # into a new file: a backup with a hard link to the old log stays as it is
        write_file(log_path, lambda f: f.writelines(lines), 'wb')
        with writing(log_path):
            self.log_file = open(log_path, 'a', encoding='utf-8', newline='\n')

        if c.wandb_log:
            self.loggers.append(loggers.WandbLogger(c, config))
        if c.tensorboard:
            self.loggers.append(loggers.TensorBoardLogger(c, step if resumed else None))

    def __enter__(self):
        return self

    def __exit__(self, error_type, error, traceback):
        self.close(failed=error_type is not None)

    def log(self, step, split, numbers, lr, seen, seconds):
        """Write a line of log.jsonl, and its numbers to W&B and TensorBoard if they are used. seen:
        tokens or pictures so far; seconds: of training."""
        if not is_main():
            return
        numbers = {**numbers, 'lr': lr, 'seen': seen, 'seconds': round(seconds, 3)}
        for name, value in numbers.items():
            if not math.isfinite(value):
                numbers[name] = None  # JSON knows no inf and no nan
        row = {'step': step, 'split': split, **numbers}
        with writing(self.out / 'log.jsonl'):
            self.log_file.write(json.dumps(row) + '\n')
            self.log_file.flush()

        for logger in self.loggers:
            logger.log(step, split, numbers)

    def save_weights(self, name, model, step):
        """Write NAME.safetensors."""
        if is_main():
            path = self.out / f'{name}.safetensors'
            rename(write_new_weights(path, on_cpu(weights_of(model)), step), path)

    def save_last(self, model, average, optimizers, scaler, step, seen, best_error, best_step,
                  seconds):
        """Write last.pt, from which `restore` in weights/runs.py goes on."""
        if not is_main():
            return
        average_weights = None
        if average is not None:
            average_weights = weights_of(average.module)
        state = {
            'weights': weights_of(model),
            'average': average_weights,
            'optimizers': [optimizer.state_dict() for optimizer in optimizers],
            'scaler': scaler.state_dict(),
            'step': step,
            'seen': seen,
            'best': best_error,
            'best_step': best_step,
            'seconds': seconds,
        }
        with writing(self.out / 'log.jsonl'):
            os.fsync(self.log_file.fileno())  # it is on the disk before last.pt counts on it
        write_file(self.out / 'last.pt', lambda f: torch.save(state, f), 'wb')

    def close(self, failed):
        """failed: whether an exception has ended the run, as W&B then shows it."""
        for file in (self.log_file, self.lock):
            if file:
                with contextlib.suppress(OSError):  # of a write that has failed, and was reported
                    file.close()
        for logger in self.loggers:
            logger.close(failed)


def locked(out_dir):
    """The file .lock of a run directory, open, and locked until it is closed: whoever writes to the
    directory has this lock. Raises Mistake if the directory cannot be written, or if another
    process has the lock. Workers that this process forks do not keep it."""
    with writing(out_dir):
        # of a link, the folder that it leads to, which may have been deleted
        os.makedirs(os.path.realpath(out_dir), exist_ok=True)
        lock = open(out_dir / '.lock', 'ab')
    try:
        import fcntl
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        raise Mistake(f'{out_dir} is being written by another process; wait for it, or name '
                      'another folder') from None
    except (ImportError, OSError):  # Windows, or a file system without locks
        pass
    return lock


def remove_run(out_dir):
    """Remove the files of a run."""
    for name in run_files(out_dir):
        with writing(out_dir / name):
            (out_dir / name).unlink()


# ---- the log ------------------------------------------------------------------------------------

def read_log(out_dir):
    """The lines of log.jsonl, each a dict. A last line that a crash has cut is left out. Raises
    Mistake if there is no log, or a line of it is damaged."""
    return [row for row, _ in log_lines(Path(out_dir) / 'log.jsonl')]


def validations_of(out_dir):
    """The lines of log.jsonl that are of validations."""
    return [row for row in read_log(out_dir) if row['split'] == 'val']


def log_lines(path):
    """(dict, bytes) of each whole line of a log."""
    if not path.is_file():
        raise Mistake(f'no {path}; name a run directory, such as out/aot_stdlib')
    with reading(f'{path} cannot be read', 'make it readable'):
        lines = path.read_bytes().split(b'\n')[:-1]  # the last part is b'', or a cut line
    for number, line in enumerate(lines, 1):
        with reading(f'{path}, line {number} is damaged', 'delete that line'):
            row = json.loads(line)
            if not {'step', 'split', 'loss'} <= row.keys() or not isinstance(row['step'], int):
                raise ValueError('step, split or loss is missing')
            yield row, line + b'\n'
