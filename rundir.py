"""A run directory: config.json, log.csv, last.pt, best.pt and curve.png.

Files are written beside their place and renamed into it, so a crash or a full disk leaves the old one whole.
"""
import contextlib
import csv
import os
import zipfile
from pathlib import Path

import torch

FILES = ('config.json', 'log.csv', 'last.pt', 'best.pt', 'curve.png')


def claim(out_dir, overwrite):
    """Make a run directory ours and empty. Raises ValueError if it holds a run and overwrite is false."""
    held = [name for name in FILES if os.path.exists(Path(out_dir) / name)]
    if held and not overwrite:
        raise ValueError(f'{out_dir} already holds a run ({", ".join(held)}); go on with --init_from=resume, '
                         'replace it with --overwrite=true, or name another --out_dir')
    try:
        os.makedirs(out_dir, exist_ok=True)
        for name in held:
            os.remove(Path(out_dir) / name)
    except OSError as e:
        raise ValueError(f'{out_dir} cannot be written ({e.strerror}); name another --out_dir') from None


def save(path, checkpoint):
    """Write atomically: a crash or a full disk leaves the old file. Raises ValueError if it cannot be written."""
    new = f'{path}.new'
    try:
        with open(new, 'wb') as f:
            torch.save(checkpoint, f)
            f.flush()
            os.fsync(f.fileno())
        os.replace(new, path)
    except (OSError, RuntimeError) as e:
        with contextlib.suppress(OSError):
            os.remove(new)
        raise ValueError(f'could not write {path} ({e}); the checkpoint before it is untouched: make room, '
                         'then go on with --init_from=resume') from None


def load_checkpoint(path):
    """The dict that `save` wrote. Raises ValueError for a missing, damaged or foreign file."""
    if not os.path.isfile(path):
        raise ValueError(f'no checkpoint {path}; train one first (python train.py --out_dir={Path(path).parent})')
    try:
        if zipfile.ZipFile(path).testzip():  # torch.load does not compare checksums
            raise zipfile.BadZipFile('a checksum differs')
        checkpoint = torch.load(path, map_location='cpu', weights_only=True)
        checkpoint['weights'], checkpoint['model_config'], checkpoint['config'], checkpoint['step']
    except Exception as e:  # of many types, depending on where the damage is
        best = Path(path).with_name('best.pt')
        other = f'; to go on from {best}: --init_from=resume_best' if best.exists() and best != Path(path) else ''
        raise ValueError(f'{path} is damaged or no nanoCRATE checkpoint ({type(e).__name__}){other}') from None
    return checkpoint


class Log:
    """log.csv: one row a logged training step and one a validation. On resume, rows from that step on are dropped."""

    COLUMNS = ('step', 'split', 'loss', 'bits_per_byte', 'lr', 'tokens', 'seconds')

    def __init__(self, path, step):
        kept = []
        if step and os.path.exists(path):
            with open(path, newline='') as f:
                whole = [line for line in f if line.endswith('\n')]  # a killed run may leave half a row
            kept = [row for row in csv.DictReader(whole) if int(row['step']) < step]
        with open(f'{path}.new', 'w', newline='') as f:
            writer = csv.DictWriter(f, self.COLUMNS)
            writer.writeheader()
            writer.writerows(kept)
        os.replace(f'{path}.new', path)
        self.file = open(path, 'a', newline='')
        self.writer = csv.DictWriter(self.file, self.COLUMNS, restval='')

    def write(self, **row):
        self.writer.writerow(row)
        self.file.flush()


def draw_curve(run):
    """out_dir/curve.png from log.csv: training and validation loss against steps. Nothing without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        return
    matplotlib.use('Agg')
    from matplotlib import pyplot as plt
    with open(Path(run) / 'log.csv', newline='') as f:
        rows = list(csv.DictReader(f))
    plt.figure(figsize=(6, 4))
    for split, style in (('train', {'linewidth': 0.7, 'alpha': 0.6}), ('val', {'marker': '.'})):
        points = [(int(r['step']), float(r['loss'])) for r in rows if r['split'] == split]
        if points:
            plt.plot(*zip(*points), label=split, **style)
    plt.xlabel('step')
    plt.ylabel('loss')
    plt.title(str(run))
    plt.legend()
    plt.tight_layout()
    plt.savefig(Path(run) / 'curve.png', dpi=120)
    plt.close()


