"""Weights of others as a run directory."""
import dataclasses
import json
import math
import os

ADVICE = 'run this again, or name another --out_dir'


def write_run(out, model, data, config):
    """Make `out` a run directory with this network in best.pt. data: what a checkpoint says of its
    dataset; config: the settings with which it would be trained on. Files of a run that was there
    are removed. Raises Mistake if that fails, or another process writes there."""
    from engine.lock import let_go  # here, as they import torch: --help of a script is fast
    from engine.output import write_file
    from engine.rundir import FORMAT, LOCK, held_in, hold, save
    own = dataclasses.asdict(model.config)
    hold(out)
    save(out / 'best.pt', {'format': FORMAT, 'weights': model.state_dict(), 'ema': None, 'config': config | own,
                           'model_config': own, 'optimizers': [], 'scaler': {}, 'step': 0, 'best': math.inf,
                           'seconds': 0.0, 'data': data}, advice=ADVICE)
    for name in held_in(out):  # the other files of a replaced run do not belong to these weights
        if name != 'best.pt':
            os.remove(out / name)
    write_file(out / 'config.json', lambda f: json.dump(config | own, f, indent=1), advice=ADVICE)
    let_go(out / LOCK)
