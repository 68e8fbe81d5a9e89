"""A run directory, which is its own export:

    config.json         the settings of the run and of its network, and the tokenizer or the classes of its data
    best.safetensors    the weights of the best validation; their average, if the run has one
    last.pt             all that resuming needs: weights, average, optimizers, step, best
    log.jsonl           a line for each logged step and each validation
    curve.png           the losses, at the end

With keep_checkpoints there is also a step_N.safetensors of every validation, and eval.py adds its results.

A kill at any moment loses nothing. Each file is written under another name and then renamed, so it is the old one or
the new one, whole. last.pt alone decides where a run goes on. At a validation the log is written first, then
best.safetensors, then last.pt: a run that is killed before the last renaming repeats the steps since the old last.pt,
bit for bit, and the later lines of its log are cut.
"""
import hashlib
import json
import math
import os
from pathlib import Path

import torch
from safetensors.torch import save as as_bytes  # save_file makes files that no other user may read

from engine.device import whole
from engine.settings import Mistake, reading

FILES = ('config.json', 'log.jsonl', 'last.pt', 'best.safetensors', 'curve.png', 'results.csv', 'in_context.csv',
         'in_context.png', 'step_*.safetensors', 'events.out.tfevents*')  # the last is of TensorBoard


# ---- writing --------------------------------------------------------------------------------------------------------

def write_file(path, write, mode='w'):
    """Call write(file) on a new file, then rename it to path: a crash or a full disk leaves the old file whole. Raises
    Mistake if it cannot be written."""
    new = f'{path}.new'
    try:
        text = {} if 'b' in mode else {'encoding': 'utf-8', 'errors': 'surrogateescape', 'newline': '\n'}
        with open(new, mode, **text) as f:
            write(f)
            f.flush()
            os.fsync(f.fileno())
        os.replace(new, path)
    except (OSError, RuntimeError) as e:  # torch.save raises the latter where a disk is full
        Path(new).unlink(missing_ok=True)
        raise Mistake(f'could not write {path} ({e}); what was there before is untouched: make room, or name another '
                      'place; a run goes on with --init_from=resume') from None


def run_directory(path):
    """The run directory that a path is, or that a file of weights lies in."""
    return Path(path).parent if Path(path).suffix == '.safetensors' else Path(path)


def held_in(out_dir):
    """Names of the files of a run that a directory holds."""
    found = [p for name in FILES for p in sorted(Path(out_dir).glob(name))]
    return [p.name for p in found if p.is_file() and p.stat().st_size]


def check_new(out_dir):
    """Raises Mistake if a directory holds a run."""
    if held := held_in(out_dir):
        go_on = 'go on with --init_from=resume, ' * ('last.pt' in held)
        raise Mistake(f'{out_dir} already holds a run ({", ".join(held)}); {go_on}replace it with --overwrite=true, or '
                      'name another --out_dir')


def weights_of(model):
    """{name: tensor} of a network. Weights with two names are there once."""
    own = {name for part in (model.named_parameters(), model.named_buffers()) for name, _ in part}
    return {k: v for k, v in model.state_dict().items() if k in own}


def on_cpu(value, main=True):
    """Nested dicts and lists, in which tensors become copies on the CPU in the main process, whole where FSDP shares
    them, and None in the others."""
    if isinstance(value, torch.Tensor):
        value = whole(value.detach())
        return value.to('cpu', copy=True).contiguous() if main else None
    if isinstance(value, dict):
        return {k: on_cpu(v, main) for k, v in value.items()}
    return [on_cpu(v, main) for v in value] if isinstance(value, list) else value


def digest(weights, step):
    """sha256 of a step and of tensors with their names: it tells a flipped bit when they are read."""
    found = hashlib.sha256(str(step).encode())
    for name, t in sorted(weights.items()):
        found.update(f'{name} {t.dtype} {tuple(t.shape)}'.encode())
        found.update(t.reshape(-1).view(torch.uint8).numpy())
    return found.hexdigest()


def write_weights(path, weights, step):
    """A .safetensors file of {name: tensor on the CPU}."""
    about = {'format': 'pt', 'step': str(step), 'sha256': digest(weights, step)}
    write_file(path, lambda f: f.write(as_bytes(weights, about)), 'wb')


class RunDirectory:
    """A new run directory, or one to go on in: config.json, and log.jsonl without the lines from this step on. While it
    is open no other process writes there. The main process writes; the others take part in putting together what FSDP
    shares."""

    def __init__(self, c, here, config, step, resumed):
        """c: the run's TrainConfig; config: what config.json is to hold."""
        self.out, self.main, self.wandb, self.board = Path(c.out_dir), here.main, None, None
        if not self.main:
            return
        if c.wandb_log:  # a missing library is noticed before anything is written
            import wandb
        if c.tensorboard:
            from torch.utils.tensorboard import SummaryWriter
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            self.rows = open(self.out / 'log.jsonl', 'a', encoding='utf-8', newline='\n')
        except OSError as e:
            raise Mistake(f'{self.out} cannot be written ({e.strerror}); name another --out_dir') from None
        kept = [size for row, size in lines_of(self.out / 'log.jsonl') if row['step'] < step] if resumed else []
        refuse_second(self.rows, self.out)  # from here on this process must not open the log again: that ends the lock
        if not (resumed or c.overwrite):
            check_new(self.out)  # another run may have come and gone since the first look
        self.rows.truncate(sum(kept))
        for name in () if resumed else held_in(self.out):
            (self.out / name).unlink()
        write_file(self.out / 'config.json', lambda f: json.dump(config, f, indent=1))
        if c.wandb_log:
            wandb.init(project=c.wandb_project, name=c.wandb_run_name or c.out_dir, config=config)
            self.wandb = wandb
        if c.tensorboard:
            self.board = SummaryWriter(self.out, purge_step=step if resumed else None)

    def log(self, step, split, numbers, lr, seen, seconds):
        """A line of log.jsonl. seen: tokens or pictures so far; seconds: of training."""
        if not self.main:
            return
        row = {'step': step, 'split': split, **numbers, 'lr': lr, 'seen': seen, 'seconds': round(seconds, 3)}
        row = {k: v if isinstance(v, str) or math.isfinite(v) else None for k, v in row.items()}  # JSON knows no inf
        self.rows.write(json.dumps(row) + '\n')
        self.rows.flush()
        named = {f'{split}/{k}': v for k, v in row.items() if k not in ('step', 'split')}
        if self.wandb:
            self.wandb.log(named, step=step)
        for k, v in named.items() if self.board else ():
            self.board.add_scalar(k, v, step)

    def save_weights(self, name, model, step):
        """Write NAME.safetensors. All processes call it together, as save_last."""
        weights = on_cpu(weights_of(model), self.main)
        if self.main:
            write_weights(self.out / f'{name}.safetensors', weights, step)

    def save_last(self, model, average, optimizers, scaler, step, best, seconds):
        """Write last.pt."""
        state = on_cpu({'weights': weights_of(model), 'average': weights_of(average.module) if average else None,
                        'optimizers': [o.state_dict() for o in optimizers], 'scaler': scaler.state_dict(),
                        'step': step, 'best': best, 'seconds': seconds}, self.main)
        if self.main:
            os.fsync(self.rows.fileno())
            write_file(self.out / 'last.pt', lambda f: torch.save(state, f), 'wb')

    def close(self):
        if self.main:
            self.rows.close()
            if self.board:
                self.board.close()


def refuse_second(file, what):
    """Raises Mistake if another process has locked an open file, and locks it to the end of this one. Workers that it
    forks do not keep such a lock."""
    try:
        import fcntl
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        raise Mistake(f'{what} is being written by another process; wait for it, or name another --out_dir') from None
    except (ImportError, OSError):  # Windows, or a file system without locks
        pass


# ---- the log --------------------------------------------------------------------------------------------------------

def read_log(out_dir):
    """The lines of log.jsonl, each a dict. A last line that a crash has cut is left out. Raises Mistake if there is no
    log, or a line of it is damaged."""
    return [row for row, _ in lines_of(Path(out_dir) / 'log.jsonl')]


def lines_of(path):
    """(dict, length in bytes) of each whole line of a log."""
    if not path.is_file():
        raise Mistake(f'no {path}; name a run directory, such as out/aot_stdlib')
    for number, line in enumerate(path.read_bytes().split(b'\n')[:-1], 1):  # the last part is b'', or a cut line
        with reading(f'{path}, line {number} is damaged', 'delete that line'):
            yield json.loads(line), len(line) + 1
