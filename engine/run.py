"""A run directory: config.json, log.csv, last.pt, best.pt, curve.png, with keep_checkpoints step_N.pt, and what eval.py adds.

Files are written beside their place and renamed into it, so a crash or a full disk leaves the old one whole.
"""
import contextlib
import csv
import os
import zipfile
from pathlib import Path

import torch

FILES = ('config.json', 'log.csv', 'last.pt', 'best.pt', 'curve.png')
KEYS = {'weights', 'ema', 'model_config', 'config', 'data', 'optimizers', 'scaler', 'step', 'best', 'seconds'}


def write_file(path, write, mode='w', advice='go on with --init_from=resume, or name another --out_dir'):
    """Write beside path by write(file), then rename: a crash or a full disk leaves the old file whole. Raises ValueError
    with the advice if it cannot be written."""
    new = f'{path}.new'
    try:
        with open(new, mode) as f:
            write(f)
            f.flush()
            os.fsync(f.fileno())
        os.replace(new, path)
    except (OSError, RuntimeError) as e:
        with contextlib.suppress(OSError):
            os.remove(new)
        raise ValueError(f'could not write {path} ({e}); what was there before is untouched: make room, then '
                         f'{advice}') from None


def check_writable(path, advice):
    """Raises ValueError, before any work, if `write_file` could not write path."""
    try:
        open(f'{path}.new', 'w').close()
        os.remove(f'{path}.new')
    except OSError as e:
        raise ValueError(f'{path} cannot be written ({e.strerror}); {advice}') from None


def check_picture_path(path, endings, setting):
    """Raises ValueError, before any work, if path has none of these endings, such as .png, or lies in no folder; setting is
    what names it, such as --out."""
    path = Path(path)
    if path.suffix.lower() not in endings:
        raise ValueError(f'{path} cannot be written: its ending is no format of pictures; give another {setting}, such as '
                         f'{setting}=sheet.png')
    if path.is_dir() or not path.parent.is_dir():
        raise ValueError(f'{path} cannot be written: {"it" if path.is_dir() else path.parent} is '
                         f'{"a" if path.is_dir() else "no"} folder; give another {setting}')


def check_new(path, overwrite, setting):
    """Raises ValueError if there is a file that must stay."""
    if Path(path).exists() and not overwrite:
        raise ValueError(f'{path} exists; give another {setting}, or --overwrite=true to replace it')


def held_in(out_dir):
    """Names of the files of a run that a directory holds."""
    kept = sorted(p.name for p in Path(out_dir).glob('step_*.pt') if p.stem[5:].isdecimal())
    return [name for name in FILES if os.path.exists(Path(out_dir) / name)] + kept


def refuse_held(out_dir):
    """Raises ValueError if a directory holds a run."""
    held = held_in(out_dir)
    if held:
        resume = 'go on with --init_from=resume, ' if 'last.pt' in held else ''
        raise ValueError(f'{out_dir} already holds a run ({", ".join(held)}); {resume}replace it with --overwrite=true, '
                         'or name another --out_dir')


def claim(out_dir):
    """Make a run directory ours and empty. Raises ValueError if it cannot be."""
    try:
        os.makedirs(out_dir, exist_ok=True)
        for name in held_in(out_dir):
            os.remove(Path(out_dir) / name)
    except OSError as e:
        raise ValueError(f'{out_dir} cannot be written ({e.strerror}); name another --out_dir') from None


def save(path, checkpoint, **advice):
    """Write a checkpoint, a dict with the KEYS. Raises ValueError if it cannot be written."""
    assert checkpoint.keys() == KEYS
    write_file(path, lambda f: torch.save(checkpoint, f), 'wb', **advice)


def folder_of(path):
    """The run directory that a checkpoint lies in, or that stands for it."""
    return Path(path) if os.path.isdir(path) else Path(path).parent


def load_checkpoint(path):
    """The dict that `save` wrote; a run directory stands for its best.pt. Raises ValueError for a missing, damaged
    or foreign file."""
    path = Path(path) / 'best.pt' if os.path.isdir(path) else Path(path)
    if not path.is_file():
        raise ValueError(f'no checkpoint {path}; train one first: python train.py --out_dir={path.parent}')
    try:
        if zipfile.ZipFile(path).testzip():  # torch.load does not compare checksums
            raise zipfile.BadZipFile('a checksum differs')
        checkpoint = torch.load(path, map_location='cpu', weights_only=True)
        if checkpoint.keys() != KEYS:
            raise KeyError('other keys')
    except Exception as e:  # of many types, depending on where the damage is
        best = path.with_name('best.pt')
        other = f'; to go on from {best}: train.py --init_from=resume_best' if best.exists() and best != path else ''
        raise ValueError(f'{path} is damaged or no nanoCRATE checkpoint ({type(e).__name__}){other}') from None
    return checkpoint


class Log:
    """log.csv: one row a logged training step and one a validation; `seen` counts the tokens or pictures trained on.
    On resume, rows from that step on are dropped. Telemetry has columns of its own, `more`, before the last."""

    COLUMNS = ('step', 'split', 'loss', 'bits_per_byte', 'top1', 'top5', 'lr', 'seen', 'seconds')

    def __init__(self, path, step, more=()):
        kept, self.path = [], path
        if step and os.path.exists(path):
            try:
                with open(path, newline='') as f:
                    whole = [line for line in f if line.endswith('\n')]  # a killed run may leave half a row
                kept = [row for row in csv.DictReader(whole) if int(row['step']) < step]
            except (OSError, ValueError, KeyError, TypeError, csv.Error) as e:
                raise ValueError(f'{path} is damaged ({type(e).__name__}); move it away to go on without it') from None

        *first, last = self.COLUMNS
        columns = list(dict.fromkeys([*first, *(k for row in kept[:1] for k in row if k and k != last), *more, last]))

        def write(f):
            writer = csv.DictWriter(f, columns, lineterminator='\n')
            writer.writeheader()
            writer.writerows({k: row.get(k, '') for k in columns} for row in kept)
        write_file(path, write)
        self.file = open(path, 'a', newline='')
        self.writer = csv.DictWriter(self.file, columns, restval='', lineterminator='\n')

    def write(self, **row):
        try:
            self.writer.writerow(row)
            self.file.flush()
        except OSError as e:
            raise ValueError(f'could not write {self.path} ({e.strerror}); make room, then go on with '
                             '--init_from=resume') from None


def draw_curve(run):
    """out_dir/curve.png from log.csv: training and validation loss against steps; with telemetry also the coding rate and the
    sparsity of every layer, a line for each validation, darker to brighter (CRATE, Figure 4). Nothing without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        return
    matplotlib.use('Agg')
    from matplotlib import pyplot as plt
    with open(Path(run) / 'log.csv', newline='') as f:
        rows = list(csv.DictReader(f))
    watched = [r for r in rows if r.get('rate_1')]
    panels = [(k, label) for k, label in (('rate', 'coding rate R^c, nats'), ('nonzeros', 'share of non-zeros'))
              if watched and watched[0].get(f'{k}_1')]
    _, axes = plt.subplots(1, 1 + len(panels), figsize=(6 + 4.5 * len(panels), 4), squeeze=False, layout='constrained')
    for axis, (k, label) in zip(axes[0, 1:], panels):
        for i, r in enumerate(watched):
            values = [float(r[f'{k}_{l}']) for l in range(1, len(r)) if r.get(f'{k}_{l}')]
            colour, named = plt.get_cmap('viridis')(i / max(1, len(watched) - 1)), i in (0, len(watched) - 1)
            axis.plot(range(1, len(values) + 1), values, marker='.', color=colour, label=f'step {r["step"]}' if named else None)
        axis.set(xlabel='layer', ylabel=label)
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.legend()
    plt.sca(axes[0, 0])
    for split, style in (('train', {'linewidth': 0.7, 'alpha': 0.6}), ('val', {'marker': '.'})):
        points = [(int(r['step']), float(r['loss'])) for r in rows if r['split'] == split]
        if points:
            plt.plot(*zip(*points), label=split, **style)
    plt.xlabel('step')
    plt.ylabel('loss')
    plt.title(str(run))
    plt.legend()
    write_file(Path(run) / 'curve.png', lambda f: plt.savefig(f, dpi=120), 'wb')
    plt.close()
