"""A trained network in the layout of the model hub: a folder with model.safetensors and config.json.

export.py writes it, and --ckpt and --init_from read it as a checkpoint that cannot be resumed.
config.json has the fields that the hub shows (architectures, model_type, dtype, id2label), and what
builds the network again: model_config, the settings of its training, and the tokenizer or the
classes of its data.
"""
import json
import math
import os
from pathlib import Path

from engine import lock, reader
from engine.output import check_folder, write_file
from engine.rundir import FORMAT, LOCK, SCHEMA, SETTING, check_format, fit
from engine.settings import Mistake

WEIGHTS, CONFIG = 'model.safetensors', 'config.json'
LARGEST = 2 ** 24  # bytes of config.json; 21,000 classes have 2 MB
HELD = {'architectures': [str], 'model_type': str, 'format': int, 'step': int, 'data': SCHEMA['data'],
        'model_config': {str: SETTING}, 'config': {str: SETTING}, 'id2label?': {str: str}, 'dtype?': str, str: SETTING}
OF_THIS_MACHINE = 'model', 'data_dir', 'out_dir', 'init_from', 'overwrite', 'device', 'workers'  # not exported


def check_new(out, overwrite):
    """Raises Mistake, before any work, if no export can be written to this folder."""
    check_folder(out, f'{WEIGHTS}.new', '--out')
    held = sorted(name for name in (WEIGHTS, CONFIG) if os.path.exists(Path(out) / name))
    runs = sorted(p.name for p in Path(out).glob('*.pt'))
    if runs:
        raise Mistake(f'{out} holds a run ({", ".join(runs[:3])}); name another folder: --out=FOLDER')
    if held and not overwrite:
        raise Mistake(f'{out} already holds {" and ".join(held)}; replace them with --overwrite=true, or name '
                      'another --out')


def write(out, model, checkpoint, overwrite):
    """Write a network, and what its checkpoint says of data and training, to the folder `out`."""
    try:
        from safetensors.torch import save
    except ImportError:
        raise Mistake('exporting needs a library that is missing: pip install safetensors') from None
    settings = {k: v for k, v in checkpoint['config'].items() if k not in OF_THIS_MACHINE}
    own, data = vars(model.config), checkpoint['data']
    config = {'architectures': [type(model).__name__], 'model_type': checkpoint['config']['model'],
              'dtype': str(next(model.parameters()).dtype)[6:], 'format': FORMAT, 'step': checkpoint['step'],
              'data': data, 'model_config': own, 'config': settings | own}
    if data.get('classes'):
        config['id2label'] = {str(i): name for i, name in enumerate(data['classes'])}
    advice = 'run this again, or name another --out'
    lock.hold(Path(out) / LOCK, out, 'name another --out')
    check_new(out, overwrite)  # another process may have written there since
    places = [Path(out) / name for name in (WEIGHTS, CONFIG)]
    weights, about = (place.with_name(f'{place.name}.next') for place in places)
    try:
        write_file(weights, lambda f: f.write(save(*shared_once(model.state_dict()))), 'wb', advice)
        write_file(about, lambda f: json.dump(config, f, indent=1), advice=advice)
        places[1].unlink(missing_ok=True)  # weights never lie beside the config of others
        for new, place in zip((weights, about), places):
            os.replace(new, place)
    finally:
        weights.unlink(missing_ok=True), about.unlink(missing_ok=True)
    lock.let_go(Path(out) / LOCK)


def shared_once(weights):
    """A state dict with one name of weights that share memory, and {other name: that one} for the
    metadata of the file, which has no place for shared memory."""
    names, others = {}, {'format': 'pt'}
    for name, t in weights.items():
        first = names.setdefault((t.data_ptr(), t.shape, t.stride()), name)
        others |= {name: first} if first != name else {}
    return {k: t.contiguous() for k, t in weights.items() if k not in others}, others


def is_one(path):
    """Whether a path names an export: its folder, or its weights."""
    return os.path.basename(path) == WEIGHTS or \
        os.path.isfile(os.path.join(path, WEIGHTS)) and not os.path.exists(os.path.join(path, 'best.pt'))


def read(path):
    """An export as a checkpoint (dict) without optimizers. Raises Mistake for a damaged or foreign
    one."""
    folder = Path(path).parent if os.path.basename(path) == WEIGHTS else Path(path)
    try:
        held = read_config(folder / CONFIG)
        check_format(folder, held)
        checkpoint = {k: held[k] for k in ('format', 'data', 'step')} | {
            'model_config': tuples(held['model_config']),
            'config': tuples(held['config']) | {'model': held['model_type']},
            'weights': reader.state_dict(reader.load_safetensors(folder / WEIGHTS)), 'ema': None, 'optimizers': [],
            'scaler': {}, 'best': math.inf, 'seconds': 0.0}
        fit(checkpoint)
    except reader.Unfit as e:
        raise Mistake(f'{folder} is damaged or no export of nanoCRATE ({e}); take another, or write it again: '
                      'python export.py --ckpt=RUN --out=FOLDER') from None
    return checkpoint


def read_config(path):
    """config.json, with what HELD says. Raises Unfit for anything else."""
    try:
        if not path.is_file() or path.stat().st_size > LARGEST:
            raise reader.Unfit(f'{CONFIG} is no file of at most {LARGEST:,} bytes')
        held = reader.plain(json.loads(path.read_text(encoding='utf-8')))
    except (OSError, ValueError, RecursionError) as e:
        raise reader.Unfit(str(e) if isinstance(e, reader.Unfit) else f'{CONFIG}: {type(e).__name__}') from None
    reader.fit(held, HELD)
    return held


def tuples(settings):
    """Settings as they were before they became JSON, which has no tuples."""
    return {k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()}
