"""A run directory and the checkpoints in it: config.json, log.csv, last.pt, best.pt and curve.png.

With keep_checkpoints there is also a step_N.pt of every validation, and eval.py adds its results.
While a run is under way, .lock keeps other processes from writing there (see engine/lock.py). Files
are written under another name and renamed, so a crash or a full disk leaves the old file whole.
"""
import math
import os
from pathlib import Path

import torch

from engine import lock, missing, reader
from engine.output import check_folder, write_file
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
