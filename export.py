"""Write a trained network as model.safetensors and config.json, the layout of the model hub.

    python export.py --ckpt=out/crate_shapes --out=exported/crate_shapes
    python export.py --ckpt=out/crate_shapes --out=exported/crate_shapes --authors=crate.pth
    python sample.py --ckpt=exported/crate_shapes --image=cat.jpg
    python train.py --init_from=exported/crate_shapes --out_dir=out/tuned
    python export.py --help

The weights are those that the other commands look at: best.pt of a run directory, and their average
where the run has one. Each of these commands reads the folder in place of a run directory; only
resuming needs the run itself.
"""
import sys
from dataclasses import dataclass
from pathlib import Path

import engine  # before torch
import torch

from engine import exported, settings
from engine.checkpoints import from_command_line, load_model, size
from engine.output import check_new, check_writable, write_file
from engine.settings import Mistake
from tasks import LOOK


@dataclass
class ExportConfig:
    ckpt: str = 'out/aot_stdlib'     # a checkpoint, a run directory for its best.pt, or official:PATH
    model: str = ''                  # network of an official file: crate, crate_alpha, crate_mae, vit, vit_mae
    out: str = ''                    # folder to write
    authors: str = ''                # also write the weights in the format of the authors' code, to this file
    overwrite: bool = False          # replace these files if they exist


def main(argv):
    if '--help' in argv or '-h' in argv:
        return print(settings.help_text(__doc__, ExportConfig))
    c, checkpoint, overrides = from_command_line(argv, ExportConfig)
    if not c.out:
        raise Mistake('where to? name a folder: --out=FOLDER, such as --out=exported/crate_shapes')
    exported.check_new(c.out, c.overwrite)
    model = load_model(checkpoint, **overrides)
    theirs = in_their_format(c, model) if c.authors else None
    exported.write(c.out, model, checkpoint, c.overwrite)
    if theirs:
        write_file(c.authors, lambda f: torch.save(theirs, f), 'wb', 'run this again, or give another --authors')
    look = LOOK['views' if checkpoint['data'].get('unlabelled') else model.config.task]
    print(f'{c.out}: {exported.WEIGHTS} and {exported.CONFIG}, {type(model).__name__} of {size(model) / 1e6:.2f}M '
          f'parameters{f", and {c.authors}" * bool(theirs)}; now try: python {look.format(c.out)}')


def in_their_format(c, model):
    """The state dict of the authors' code. Raises Mistake, before any work, if there is none, or
    it cannot be written to --authors."""
    if not hasattr(model, 'to_official'):
        raise Mistake(f'{type(model).__name__} has no format of the authors; leave --authors out')
    if not Path(c.authors).parent.is_dir() or Path(c.authors).is_dir():
        raise Mistake(f'{c.authors} cannot be written; give another --authors, such as --authors=crate.pth')
    check_new(c.authors, c.overwrite, '--authors')
    check_writable(c.authors, 'give another --authors')
    return model.to_official()


if __name__ == '__main__':
    with settings.one_line_errors():
        main(sys.argv[1:])
