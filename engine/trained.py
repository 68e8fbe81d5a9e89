"""Trained networks: read from run directories, also with another head or resolution.

A trained network is a dict, `run`: config.json of its run directory, and its `weights` and `step`.
"""
import dataclasses
import json
import zipfile
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import safe_open

from engine.checkpoint import digest, held_in, on_cpu, run_directory, weights_of, write_file, write_weights
from engine.device import share
from engine.fast import speed_up
from engine.networks import config_from, grid, network, size
from engine.settings import TYPED, Mistake, check, collect, filled, reading, show

# what a resumed run must keep, besides the settings of its network
FIXED = {'model', 'dataset', 'train_share', 'sparsity', 'seed', 'optimizer', 'new_head'}
# what a fine-tuned run does not take over from the run before it
OWN = {'out_dir', 'overwrite', 'eval_only', 'new_head', 'compile', 'target_loss', 'wandb_run_name', 'device', 'workers',
       'fsdp'}
SAME = 'n_head', 'decoder_n_head', 'causal', 'gelu', 'norm_pix_loss'  # with another, weights are another function


# ---- run directories ------------------------------------------------------------------------------------------------

def open_run(path, name=''):
    """A trained network: config.json of its run directory (dict), and its `weights` and `step`. path: the directory,
    for its best.safetensors, or another file of weights in it. From a masked autoencoder, `name` may be the classifier
    that can start from its encoder."""
    folder = run_directory(path)
    run = read_config(folder)
    run['weights'], run['step'] = read_weights(folder / 'best.safetensors' if folder == Path(path) else path)
    own, Network = run['model'], network(run['model'])[0]
    if hasattr(Network, 'opened'):
        run = Network.opened(run)
    becomes = getattr(network(run['model'])[0], 'classifier', (run['model'],))[0]
    if name in ('', run['model']):
        return run
    if becomes != name:
        raise Mistake(f'from {path}, which holds model={own}, only model={becomes} can start; give --model={becomes}')
    return as_classifier(run)


def write_run(out_dir, model, settings, data):
    """A run directory of a network that others have trained, without last.pt. settings: with which it would be trained
    on; data: what config.json says of its dataset."""
    out = Path(out_dir)
    out.mkdir(parents=True, exist_ok=True)
    for name in held_in(out):
        (out / name).unlink()
    config = {'model': type(model).__module__.removeprefix('model_'), 'settings': settings,
              'network': dataclasses.asdict(model.config), 'data': data}
    write_file(out / 'config.json', lambda f: json.dump(config, f, indent=1))
    write_weights(out / 'best.safetensors', on_cpu(weights_of(model)), 0)


def read_config(out_dir):
    """config.json of a run directory: {'model', 'settings', 'network', 'data'}. Raises Mistake if it is missing or
    damaged."""
    path = Path(out_dir) / 'config.json'
    with reading(f'{path} is missing or damaged', f'train with --out_dir={out_dir}, or name another'):
        return json.loads(path.read_text(encoding='utf-8'), object_hook=with_tuples)


def with_tuples(held):
    """A dict in which pairs of numbers, such as height and width, are tuples again. JSON knows lists alone."""
    numbers = {k: tuple(v) for k, v in held.items() if isinstance(v, list) and v and all(type(n) is int for n in v)}
    return held | numbers


def read_weights(path):
    """({name: tensor}, step) of a .safetensors file in a run directory. Raises Mistake if it is missing or damaged."""
    advice = 'name another run, or a .safetensors file in one'
    with reading(f'{path} is missing or damaged', advice), safe_open(path, 'pt') as f:
        weights, about = {k: f.get_tensor(k) for k in f.keys()}, f.metadata() or {}
    if about.get('sha256') != digest(weights, about.get('step')):
        raise Mistake(f'{path} is damaged, or no nanoCRATE wrote it: its tensors are not those of its checksum')
    return weights, int(about['step'])


def as_classifier(run):
    """A masked autoencoder as the classifier that can start from its encoder: patch map, class token, positions
    (trained from now on), layers and final LayerNorm. `build` adds the head that it lacks."""
    name, settings = network(run['model'])[0].classifier
    Network, Config = network(name)
    fields = {f.name for f in dataclasses.fields(Config)}
    settings = {k: v for k, v in run['network'].items() if k in fields} | settings
    with torch.device('meta'):  # takes no memory
        wanted = Network(Config(**settings)).state_dict()
    weights = {f'read.{k}' if k.startswith('norm.') else k: v for k, v in run['weights'].items()}
    for k, v in weights.items():
        if k in wanted and v.dim() == 4 and wanted[k].dim() == 2:  # a convolution's patch map as a linear one
            weights[k] = v.permute(0, 2, 3, 1).flatten(1)
    return run | {'weights': {k: v for k, v in weights.items() if k in wanted}, 'network': settings, 'model': name,
                  'headless': run['model']}


# ---- training goes on from one ---------------------------------------------------------------------------------------

def resumed(given, file, *classes):
    """(settings, run) of a run that goes on: its own settings, and what was typed."""
    out_dir = str(given['out_dir'][0])
    run = read_config(out_dir) | read_last(out_dir)
    old = settings_of(run, *classes) | run['network']
    checked = check(given, *classes, network(run['model'])[1])
    other = {k: v for k, v in checked.items() if given[k][1] and v != old.get(k) != (v, v)}  # 32 is 32 x 32
    typed = {k: v for k, v in other.items() if given[k][1] == TYPED}
    here = {'init_from': 'resume', 'out_dir': out_dir, 'overwrite': False, 'eval_only': typed.get('eval_only', False)}
    for k in sorted(typed.keys() & (FIXED | {f.name for f in dataclasses.fields(network(run['model'])[1])})):
        raise Mistake(f'--{k}={show(typed[k])}: the run in {out_dir} has {k}={show(old.get(k))}; leave it out, or '
                      'start anew with another --out_dir')
    if ignored := sorted(other.keys() - typed.keys() - here.keys()):
        print(f"resuming with the settings of the run, not the config file's {', '.join(ignored)}; type what you want "
              'to change')
    return old | typed | here, run


def fine_tuned(given, file, *classes):
    """(settings, run) of a new run from trained weights. file: whether a config file is named; else the settings of
    their training stand behind what is typed."""
    path, (name, named) = str(given['init_from'][0]), given['model']
    run = open_run(path, str(name) if named else '')
    checked = check(given, *classes, network(run['model'])[1])
    if not file:
        own = OWN | {*classes[1].of_views}  # AugmentConfig's
        old = {k: v for k, v in settings_of(run, *classes).items() if k not in own}
        checked = old | {k: v for k, v in checked.items() if given[k][1]}
    if 'dataset' not in checked:
        raise Mistake(f'--init_from={path} does not say what to train on: give --dataset, such as --dataset=cifar10')
    return checked | {'model': run['model'], 'init_from': path}, run


def settings_of(run, *classes):
    """The settings of a run, with the types of their fields."""
    return {'model': run['model']} | check({k: (v, 'config.json') for k, v in run['settings'].items()}, *classes)


def read_last(out_dir):
    """What save_last wrote. Raises Mistake if there is no such file, or it is damaged or of another version."""
    path = Path(out_dir) / 'last.pt'
    advice = f'start from the best weights with --init_from={out_dir} and another --out_dir'
    with reading(f'{path} is missing or damaged', advice):
        with zipfile.ZipFile(path) as z:
            if z.testzip():  # torch.load does not compare checksums
                raise ValueError('a checksum differs')
        return torch.load(path, map_location='cpu', weights_only=True)


def restore(last, average, optimizers, scaler):
    """Put the states of last.pt, which any number of processes may have written, into average, optimizers and scaler.
    Rates and decay stay those of the settings. Returns (step, best, seconds)."""
    if last['scaler']:  # else its run was not in float16
        scaler.load_state_dict(last['scaler'])
    if average and last['average']:
        own = average.module.state_dict()
        average.module.load_state_dict({k: share(v, own[k]) for k, v in last['average'].items()}, strict=False)
        average.n_averaged.fill_(last['step'])
    for optimizer, state in zip(optimizers, last['optimizers'], strict=True):
        parameters = [p for group in optimizer.param_groups for p in group['params']]
        state['state'] = {i: {k: share(v, parameters[i]) for k, v in kept.items()}
                          for i, kept in state['state'].items()}
        optimizer.load_state_dict(state | {'param_groups': optimizer.state_dict()['param_groups']})
    return last['step'], last['best'], last['seconds']


# ---- weights to networks --------------------------------------------------------------------------------------------

def load_model(run, new_head=False, **changes):
    """The network of open_run, in evaluation mode, with some settings changed. new_head: with a fresh classifier, and
    num_classes from the changes. image_size in the changes: positions are interpolated. Raises Mistake if a change does
    not fit the weights."""
    if 'headless' in run and not new_head:
        raise Mistake('these are the weights of a masked autoencoder, which has no classifier yet: give '
                      f'--model={run["headless"]}, or train one: train.py --init_from=PATH --model={run["model"]}')
    Network, Config = network(run['model'])
    old = config_from(Config, run['network'])
    config = config_from(Config, run['network'] | changes)
    for k in SAME:
        if getattr(old, k, 0) != getattr(config, k, 0):
            raise Mistake(f'the network was trained with {k}={show(getattr(old, k))}; leave {k} out')
    model, weights = Network(config), dict(run['weights'])
    fresh = {k: v for k, v in model.state_dict().items() if new_head and k.startswith('read.head.')}
    if new_head and not fresh:
        raise Mistake(f'{Network.__name__} has no read.head to replace; docs/extend.md says what new_head needs')
    if getattr(old, 'image_size', 0) != getattr(config, 'image_size', 0) and old.patch_size == config.patch_size:
        for k in {'embed.pos', 'decoder_pos'} & weights.keys():
            weights[k] = resize_positions(weights[k], grid(old), grid(config))
    weights |= fresh
    wanted = {k: v.shape for k, v in weights_of(model).items()}
    if wrong := dict(wanted.items() ^ {k: v.shape for k, v in weights.items()}.items()):
        raise Mistake(f'the weights do not fit {", ".join(f"{k}={show(v)}" for k, v in changes.items())} ({min(wrong)} '
                      'differs); leave out what config.json of their run says otherwise')
    model.load_state_dict(weights, strict=False)
    return speed_up(model.eval())


def resize_positions(pos, old, new):
    """Positions (1, N + 1, d), the class token's first, of an `old` grid (rows, columns) for a `new` one: bicubic,
    except for the class token's."""
    own, rest = pos[:, :1], pos[:, 1:]
    rest = F.interpolate(rest.mT.unflatten(2, old), size=new, mode='bicubic', align_corners=False, antialias=True)
    return torch.cat((own, rest.flatten(2).mT), 1)


# ---- networks and datasets ------------------------------------------------------------------------------------------

def fitted(c, given, run, meta, folder):
    """A trained network for the dataset in `folder`, with the settings given; of a resumed run exactly as that left it.
    c: the run's TrainConfig. Raises Mistake where network and dataset do not fit."""
    check_reads(run, meta, folder)
    goes_on = c.init_from == 'resume'
    new_head = 'headless' in run or c.new_head and not goes_on
    classifies = meta['kind'] == 'images' and hasattr(network(run['model'])[1], 'num_classes')
    if new_head and not classifies:
        raise Mistake(f'model={run["model"]} has no classifier to replace; leave new_head out, or give --model of one')
    if new_head:
        given = {'num_classes': len(meta['classes'])} | given
    elif classifies:
        check_classes(run, meta['classes'], folder)
    return load_model(run, new_head, **{} if goes_on else given)


def check_reads(run, meta, folder, name='the network'):
    """Raises Mistake if a trained network, called `name`, does not read the dataset in `folder`."""
    reads = {'kind': run['data']['kind'], 'tokenizer': run['data'].get('tokenizer'),
             'channels': run['network'].get('channels', 3)}
    for k, own in reads.items():
        if own != meta.get(k, own):
            raise Mistake(f'{name} reads {k} {str(own)[:60]}, {folder} has {str(meta[k])[:60]}; give another --dataset')


def check_labelled(run):
    """Raises Mistake, with what to do instead, if a network was trained without labels and names no classes."""
    if run['data'].get('unlabelled'):
        raise Mistake('the network names nothing, because it was trained without labels; score its features '
                      'with eval.py --knn=20, or give it a classifier with train.py --init_from=PATH --new_head=true')


def check_classes(run, classes, where):
    """Raises Mistake, with the setting that replaces the head, if a classifier knows other classes than a dataset."""
    check_labelled(run)
    known, count = run['data']['classes'], run['network'].get('num_classes')
    if count != len(classes) or known is not None and known != classes:
        raise Mistake(f'the network knows {count} classes, {where} has {len(classes)} others ({", ".join(classes[:3])} '
                      '..); put a new head on it: train.py --init_from=PATH --new_head=true')


# ---- programs that look at a trained network ------------------------------------------------------------------------

def from_command_line(argv, Settings):
    """Command line -> (Settings, what open_run gives for its `ckpt`, settings of the network that were typed, such as
    another image_size)."""
    given = collect(argv)
    run = open_run(str(given.get('ckpt', (Settings.ckpt, ''))[0]))
    checked = check(given, Settings, network(run['model'])[1])
    c = filled(Settings, checked)
    return c, run, {k: v for k, v in checked.items() if k not in vars(c)}


def is_small(model):
    """Whether a network reads one text or picture faster in float32. With bfloat16 its weights are converted first,
    which pays from about 50 million on."""
    return size(model) < 50e6


def heading(path, run, model):
    """What a program says first of the network that it shows: its size, and which step of its run."""
    said = f'{path}: {run["model"]}, {size(model) / 1e6:.2f}M parameters'
    steps = run['settings'].get('max_iters')  # weights of others have none
    return f'{said} (step {run["step"]:,} of {steps:,})' if steps else said
