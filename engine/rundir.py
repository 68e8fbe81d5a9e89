"""A run directory and the checkpoints in it: config.json, log.csv, last.pt, best.pt and curve.png.

With keep_checkpoints there is also a step_N.pt of every validation, and eval.py adds its results.
While a run is under way, .lock keeps other processes from writing there (see engine/lock.py). Files
are written under another name and renamed, so a crash or a full disk leaves the old file whole.
"""
import dataclasses
import importlib
import json
import math
import os
import shutil
from pathlib import Path

import torch

from engine import lock, missing, reader
from engine.device import share, whole
from engine.log import Log, read_log
from engine.output import check_folder, write_file
from engine.plots import draw_curve
from engine.settings import Mistake

LOCK = '.lock'  # in a run directory
FILES = ('config.json', 'log.csv', 'last.pt', 'best.pt', 'curve.png', 'results.csv', 'in_context.csv', 'in_context.png')
FORMAT = 2  # of checkpoints; 1 had other tensor names, and no such number
# what a checkpoint holds, in the words of engine/reader.py
SETTING, WEIGHTS = (bool, int, float, str, tuple, list, dict, None), {str: torch.Tensor}
SCHEMA = {
    'format?': int, 'weights': WEIGHTS, 'ema': (None, WEIGHTS), 'model_config': {str: SETTING},
    'config': {'model': str, 'dataset?': str, 'seed?': int, 'sparsity?': int, str: SETTING},
    'data': ({'kind': 'text', 'tokenizer': ({'name': 'chars', 'alphabet': str}, {'name': str})},
             {'kind': 'images', 'classes': (None, [str]), 'unlabelled?': bool}, {'kind': 'functions'}),
    'optimizers': [{'state': {int: WEIGHTS}, 'param_groups': [{'params': [int], str: SETTING}]}],
    'scaler': {str: (int, float)}, 'step': int, 'best': float, 'seconds': float}
KEYS = {k.rstrip('?') for k in SCHEMA}
# what an optimizer keeps for each parameter: tensors like it, and a number of steps
STATES = {'Adam': {'step', 'exp_avg', 'exp_avg_sq'}, 'AdamW': {'step', 'exp_avg', 'exp_avg_sq'}, 'Lion': {'exp_avg'},
          'Muon': {'momentum_buffer'}}


def held_in(out_dir):
    """Names of the files of a run that a directory holds."""
    kept = sorted(p.name for p in Path(out_dir).glob('step_*.pt') if p.stem[5:].isdecimal())
    kept += sorted(p.name for p in Path(out_dir).glob('events.out.tfevents.*'))  # of TensorBoard
    return [name for name in FILES if os.path.exists(Path(out_dir) / name)] + kept


def refuse_held(out_dir):
    """Raises Mistake if a directory holds a run."""
    held = held_in(out_dir)
    if held:
        resume = 'go on with --init_from=resume, ' if 'last.pt' in held else ''
        raise Mistake(f'{out_dir} already holds a run ({", ".join(held)}); {resume}replace it with '
                      '--overwrite=true, or name another --out_dir')


def check_new(out_dir, overwrite):
    """Raises Mistake, before any work, if no new run can be written to a directory."""
    check_folder(out_dir, 'last.pt.new', '--out_dir')
    if not overwrite:
        refuse_held(out_dir)
    if (Path(out_dir) / 'model.safetensors').exists():
        raise Mistake(f'{out_dir} holds exported weights; name another --out_dir')


def hold(out_dir):
    """Make a run directory, and let no other process write there. Raises Mistake if one does."""
    lock.hold(Path(out_dir) / LOCK, out_dir, 'name another --out_dir')


def claim(out_dir):
    """Empty a run directory. Raises Mistake if that fails."""
    try:
        for name in held_in(out_dir):
            os.remove(Path(out_dir) / name)
    except OSError as e:
        raise Mistake(f'{out_dir} cannot be written ({e.strerror}); name another --out_dir') from None


class RunDirectory:
    """A new run directory, or one to go on in: the log loses its rows from this step on. While it is open no other
    process writes there. The main process writes, the others take part in putting together what FSDP shares."""

    def __init__(self, c, device, settings, data, step, resumed):
        """c: the run's TrainConfig; settings: all of them; data: the tokenizer or the classes."""
        self.out, self.device, self.settings, self.data = Path(c.out_dir), device, settings, data
        if not resumed:
            if not c.overwrite:
                refuse_held(c.out_dir)  # all processes end here, or none
            device.wait()
        if not device.main:
            return
        self.wandb = wanted('wandb', 'Weights & Biases: pip install wandb') if c.wandb_log else None
        board = wanted('torch.utils.tensorboard', 'TensorBoard: pip install tensorboard') if c.tensorboard else None
        hold(c.out_dir)
        if not resumed:
            if not c.overwrite:
                refuse_held(c.out_dir)  # another run may have come and gone since
            claim(c.out_dir)
        if c.init_from == 'resume_best':  # before the log loses its later rows: a crash leaves no last.pt ahead
            with open(self.out / 'best.pt', 'rb') as best:
                write_file(self.out / 'last.pt', lambda f: shutil.copyfileobj(best, f), 'wb')
        write_file(self.out / 'config.json', lambda f: json.dump(settings, f, indent=1))
        self.csv = Log(self.out / 'log.csv', step)
        if self.wandb:
            self.wandb.init(project=c.wandb_project, name=c.wandb_run_name or c.out_dir, config=settings)
        self.board = board and board.SummaryWriter(self.out, purge_step=step if resumed else None)

    def log(self, step, split, numbers, lr, seen, seconds):
        """A row of log.csv. seen: tokens or pictures so far; seconds: of training."""
        if not self.device.main:
            return
        row = {'step': step, 'split': split, **numbers, 'lr': lr, 'seen': seen, 'seconds': round(seconds, 3)}
        self.csv.write(**row)
        named = {f'{split}/{k}': v for k, v in row.items() if k not in ('step', 'split')}
        if self.wandb:
            self.wandb.log(named, step=step)
        for k, v in named.items() if self.board else ():
            self.board.add_scalar(k, v, step)

    def save(self, names, model, average, optimizers, scaler, step, best, seconds):
        """Write these checkpoints, all the same, in this order. All processes call it together."""
        held = on_cpu({
            'weights': model.state_dict(keep_vars=True),  # which tells shared weights apart from equal ones
            'ema': average.module.state_dict(keep_vars=True) if average else None,
            'optimizers': [o.state_dict() for o in optimizers]}, self.device.main)
        if not self.device.main:
            return
        for k, _ in model.named_parameters():
            if not (held['weights'][k].abs() < 1e18).all():  # products of larger numbers are no float32
                raise Mistake(f'{k} is not finite, or beyond 1e18, at step {step}, so nothing was saved; go on from '
                              'the last checkpoint with --init_from=resume and a lower --learning_rate')
        for name in names:
            save(self.out / name, {
                'format': FORMAT, **held, 'model_config': dataclasses.asdict(model.config), 'config': self.settings,
                'data': self.data, 'scaler': scaler.state_dict(), 'step': step, 'best': best, 'seconds': seconds})

    def close(self):
        if self.device.main:
            self.csv.file.close()
            if self.board:
                self.board.close()
            draw_curve(self.out)
            lock.let_go(self.out / LOCK)


def wanted(module, what):
    """A module that only some runs need. Raises Mistake with what to install."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise Mistake(f'this run needs {what}') from None


def on_cpu(state, main):
    """Nested dicts and lists with whole tensors on the CPU, in the main process, and None for them in the others.
    Shared weights stay shared."""
    known = {}

    def held(value):
        if isinstance(value, torch.Tensor):
            if id(value) not in known:
                t = whole(value.detach())
                known[id(value)] = t.cpu() if main else None
            return known[id(value)]
        if isinstance(value, dict):
            return {k: held(v) for k, v in value.items()}
        return [held(v) for v in value] if isinstance(value, list) else value
    return held(state)


def restore(checkpoint, c, average, optimizers, device):
    """Put the states of a checkpoint, which any number of processes may have written, into average, optimizers and
    scaler. Returns (step, best, seconds)."""
    if checkpoint['step'] > c.max_iters:
        raise Mistake(f'the run in {c.out_dir} is at step {checkpoint["step"]} already; give a larger --max_iters')
    try:
        check_states(optimizers, checkpoint['optimizers'])
        if checkpoint['scaler'] and device.scaler.is_enabled():
            reader.fit(checkpoint['scaler'], {k: type(v) for k, v in device.scaler.state_dict().items()}, 'scaler')
    except reader.Unfit as e:
        path = Path(c.out_dir) / ('best.pt' if c.init_from == 'resume_best' else 'last.pt')
        raise Mistake(f'{path} cannot be resumed ({e}); start from its weights: train.py --init_from={path} '
                      '--out_dir=ANOTHER') from None
    if checkpoint['scaler']:  # else its run was not in float16
        device.scaler.load_state_dict(checkpoint['scaler'])
    if average and checkpoint['ema']:
        own = average.module.state_dict()
        average.module.load_state_dict({k: share(v, own[k]) for k, v in checkpoint['ema'].items()})
        average.n_averaged.fill_(checkpoint['step'])
    for optimizer, state in zip(optimizers, checkpoint['optimizers']):
        parameters = [p for group in optimizer.param_groups for p in group['params']]
        state['state'] = {i: {k: share(v, parameters[i]) for k, v in kept.items()}
                          for i, kept in state['state'].items()}
        state['param_groups'] = optimizer.state_dict()['param_groups']  # rates and decay are those of the settings
        optimizer.load_state_dict(state)
    return checkpoint['step'], checkpoint['best'], checkpoint['seconds']


def nothing_left(c, step):
    """Whether a resumed run stands at its last step, and was validated there."""
    try:
        rows = read_log(Path(c.out_dir) / 'log.csv') if step == c.max_iters else []
    except (OSError, Mistake):
        return False
    return any(row['split'] == 'val' and int(row['step']) == step for row in rows)


def save(path, checkpoint, **advice):
    """Write a checkpoint, a dict with the KEYS, if it could be read again. Raises Mistake if not, or if
    writing fails."""
    assert checkpoint.keys() == KEYS
    try:
        reader.fit(reader.plain(checkpoint), SCHEMA)
    except reader.Unfit as e:
        raise Mistake(f'{e}, so {path} was not written: it could not be read again') from None
    write_file(path, lambda f: torch.save(checkpoint, f), 'wb', **advice)


def folder_of(path):
    """The run directory of a checkpoint; path may be the directory itself, or official:PATH."""
    path = str(path).removeprefix('official:')
    return Path(path) if os.path.isdir(path) else Path(path).parent


def load_checkpoint(path):
    """The dict that `save` wrote, from a file or from the best.pt of a run directory. Raises
    Mistake for a missing, damaged or foreign file, or one from before the tensors were
    renamed."""
    path = Path(path) / 'best.pt' if os.path.isdir(path) else Path(path)
    if not path.is_file():
        raise Mistake(missing.checkpoint(path))
    try:
        checkpoint = reader.plain(reader.load(path))
        fit(checkpoint)
    except reader.Unfit as e:
        best = path.with_name('best.pt')
        other = f'to go on from {best}: train.py --init_from=resume_best' if best.exists() and best != path else \
            'take another checkpoint, or train one: train.py --out_dir=ANOTHER'
        raise Mistake(f'{path} is damaged or no nanoCRATE checkpoint ({e}); {other}') from None
    check_format(path, checkpoint)
    return checkpoint


def fit(checkpoint):
    """Raises Unfit if a plain dict is no checkpoint."""
    reader.fit(checkpoint, SCHEMA)
    if checkpoint['data']['kind'] == 'functions':
        reader.fit(checkpoint['config'], {'dataset': str, 'sparsity': int, str: SETTING}, 'config')
    if checkpoint['step'] < 0 or not 0 <= checkpoint['seconds'] < math.inf:
        raise reader.Unfit('its step or seconds are out of range')


def check_format(path, checkpoint):
    """Raises Mistake if a checkpoint is from a version with other names."""
    if checkpoint.get('format') != FORMAT:
        other = 'another' if 'format' in checkpoint else 'an earlier'
        raise Mistake(f'{path} is from {other} version of nanoCRATE, which named tensors differently; train it '
                      'again: python train.py --out_dir=ANOTHER')


def check_states(optimizers, states):
    """Raises Mistake for saved states of other parameters or of other tensors than the
    optimizers keep. Fused kernels do not look at shapes and types: they would crash."""
    if len(states) != len(optimizers):
        raise reader.Unfit(f'it holds states of {len(states)} optimizers, and the run has {len(optimizers)}')
    for i, (optimizer, saved) in enumerate(zip(optimizers, states)):
        theirs, ours = ([g['params'] for g in state['param_groups']] for state in (saved, optimizer.state_dict()))
        if theirs != ours:
            raise reader.Unfit(f'optimizers.{i} has other groups of parameters')
        parameters = dict(enumerate(p for group in optimizer.param_groups for p in group['params']))
        for n, kept in saved['state'].items():
            name = f'optimizers.{i}.state.{n}'
            if type(optimizer).__name__ not in STATES:  # of a fork, which keeps what it likes
                continue
            if n not in parameters or kept.keys() != STATES[type(optimizer).__name__]:
                raise reader.Unfit(f'{name} is not what {type(optimizer).__name__} keeps of a parameter')
            for k, t in kept.items():
                shape, dtype = ((), torch.float32) if k == 'step' else (parameters[n].shape, parameters[n].dtype)
                if t.shape != shape or t.dtype != dtype or not t.is_contiguous():
                    raise reader.Unfit(f'{name}.{k} is {t.dtype} of shape {tuple(t.shape)}; expected {dtype} of shape '
                                       f'{tuple(shape)}')
