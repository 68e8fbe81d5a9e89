"""Networks by name, and trained networks from run directories, also with another head or resolution.

The contract. A file model_x.py beside train.py is all that `--model=x` needs. It sets two names:

  Config    a flat dataclass. `task` (a class attribute or a property) says what the network is trained on, one of TASKS
            below. The dataset fills in those of the fields in DATA that the config has.
  Network   a torch module: Network(config) with `config`; forward(x, y=None) -> (out, loss), loss None without y.
            x, y and out for each task are in docs/extend.md.

Some commands need more. Muon trains the matrices of `layers`. analyze.py walks `embed`, `layers` and their `attn`. A
new head replaces `read.head`. Probes ask `features(x)`.
"""
import dataclasses
import importlib
import json
from pathlib import Path

import torch
import torch.nn.functional as F

from engine import NO_DOWNLOAD
from engine.checkpoint import fill, read_config, read_weights, run_directory
from engine.fast import speed_up
from engine.settings import HERE, Mistake, check, collect, refusals, show

# task: the kind of data it reads, and the config of a small run, for networks that have no config of their own
TASKS = {'text': ('text', 'train_aot_stdlib'), 'masked_text': ('text', 'train_crate_bert_stdlib'),
         'image': ('images', 'train_vit_shapes'), 'masked_image': ('images', 'pretrain_vit_mae_shapes'),
         'views': ('images', 'train_crate_dino_shapes'),
         'icl': ('functions', 'train_aot_linear')}
# kind of data: the config fields that a dataset decides
DATA = {'text': ('vocab_size',), 'images': ('image_size', 'channels', 'num_classes'),
        'functions': ('n_dims', 'block_size')}
SIDES = {'image_size', 'patch_size'}  # of a number or (height, width), whatever the field says
SAME = 'n_head', 'decoder_n_head', 'causal', 'gelu', 'norm_pix_loss'  # with another, weights are another function


# ---- networks -------------------------------------------------------------------------------------------------------

def names():
    """The networks there are: x for each file model_x.py."""
    return sorted(path.stem.removeprefix('model_') for path in HERE.glob('model_*.py'))


def network(name):
    """(Network, Config) of model_NAME.py. Raises Mistake if there is no such file or it lacks a part of the
    contract."""
    if name not in names():
        raise Mistake(f"model='{name}' is unknown; choose {', '.join(names())}, or write model_{name}.py")
    module = importlib.import_module(f'model_{name}')
    Network, Config = getattr(module, 'Network', None), getattr(module, 'Config', None)
    if not Network or not dataclasses.is_dataclass(Config) or not hasattr(Config, 'task'):
        raise Mistake(f'model_{name}.py lacks a Network, or a Config, a dataclass with a `task`; docs/extend.md says '
                      'what a network file needs')
    return Network, Config


def kind_of(config):
    """The kind of data that a network with this config reads: 'text', 'images' or 'functions'."""
    if config.task not in TASKS:
        raise Mistake(f"{type(config).__name__}.task is '{config.task}', which is none of {', '.join(TASKS)}; see "
                      'docs/extend.md')
    return TASKS[config.task][0]


def kind_of_dataset(dataset, data_dir):
    """'text', 'images', 'functions', or '' if that cannot be known yet."""
    path = Path(data_dir) / dataset / 'meta.json'
    return json.loads(path.read_text(encoding='utf-8'))['kind'] if path.is_file() else \
        NO_DOWNLOAD.get(dataset, {}).get('kind', '')


def size(model):
    """Number of trainable parameters; shared ones count once."""
    return sum(t.numel() for t in model.parameters() if t.requires_grad)


def is_small(model):
    """Whether a network reads one text or picture faster in float32. With bfloat16 its weights are converted first,
    which pays from about 50 million on."""
    return size(model) < 50e6


def grid(c):
    """Patches of a picture, (rows, columns)."""
    return tuple(i // p for i, p in zip(c.image_size, c.patch_size))


def sides(size):
    """A number of pixels, or (height, width), as (height, width); 0 stays 0."""
    return (size, size) if isinstance(size, int) and size else size


# ---- networks and datasets ------------------------------------------------------------------------------------------

def config_for(name, given, meta, folder='the dataset'):
    """The config of a network for a dataset with this meta.json, with the settings given. Raises Mistake if the network
    does not read such data."""
    Config, kind = network(name)[1], meta['kind']
    fields = {f.name for f in dataclasses.fields(Config)}
    if DATA[kind][0] not in fields:
        needs = f': {Config.__name__} has no field {DATA[kind][0]}; see docs/extend.md'
        raise Mistake(f'{folder} holds {kind}, model={name} does not read that' + (
            needs if TASKS.get(Config.task, ('',))[0] == kind else '; choose another --dataset or --model'))
    decided = {k: v for k, v in sizes(meta).items() if k in fields}
    with refusals():
        config = Config(**decided | given)
    if kind_of(config) != kind:
        wrong = [f'{k}={show(given[k])}' for k in ('image_size', 'n_dims') if k in given and given[k] != decided.get(k)]
        raise Mistake(f'{folder} holds {kind}, but {", ".join(wrong) or f"model={name}"} reads {kind_of(config)}; '
                      'leave it out, or choose another --dataset')
    for k in SIDES if kind == 'images' else ():
        if hasattr(config, k):
            setattr(config, k, sides(getattr(config, k)))
    if config.task == 'masked_text':
        decided['vocab_size'] += 1  # [MASK]
        config.vocab_size = given.get('vocab_size', decided['vocab_size'])
    for k in decided.keys() & {'vocab_size', 'num_classes', 'channels'}:
        value = getattr(config, k)
        if value < decided[k] or value > decided[k] and k != 'vocab_size':
            raise Mistake(f'{k}={value} does not fit {folder}, which has {decided[k]}; leave it out')
    return config


def sizes(meta):
    """The config fields that a dataset with this meta.json decides. 0 turns off what it does not hold."""
    if meta['kind'] == 'text':
        return {'vocab_size': meta['vocab_size'], 'image_size': 0, 'n_dims': 0}
    if meta['kind'] == 'functions':
        return {'n_dims': 20, 'block_size': 82, 'image_size': 0}  # 41 examples of two tokens, as Garg et al.
    own = next(iter(meta['splits'].values()))
    return {'image_size': (own['height'], own['width']) if 'height' in own else 224, 'n_dims': 0,
            'channels': meta.get('channels', 3), 'num_classes': len(meta['classes'])}


def check_reads(run, meta, folder, name='the network'):
    """Raises Mistake if a trained network, called `name`, does not read the dataset in `folder`."""
    what, has, wants = '', run['data']['kind'], meta['kind']
    if has == wants == 'text':
        what, has, wants = 'tokens', *(' '.join(d['tokenizer'].values()) for d in (run['data'], meta))
    if has == wants == 'images':
        what, has, wants = 'pictures with channels', run['network'].get('channels', 3), meta['channels']
    if has != wants:
        reads, holds = (f'{what} {str(words)[:40]}'.strip() for words in (has, wants))  # an alphabet may be long
        raise Mistake(f'{name} reads {reads}, {folder} holds {holds}; choose another --dataset')


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
        mine = f'{count} classes' + (f' ({", ".join(known[:3])} ..)' if known else '')
        raise Mistake(f'the network knows {mine}, {where} has {len(classes)} others ({", ".join(classes[:3])} '
                      '..); put a new head on it: train.py --init_from=PATH --new_head=true')


def described(meta):
    """The part of meta.json that config.json carries: the tokenizer, or the names of the classes."""
    return {k: meta[k] for k in ('kind', 'tokenizer', 'classes') if k in meta}


def build(name, given, run, meta, folder, new_head=False, resuming=False):
    """A network for the dataset in `folder`: new, or from a trained one, with the settings given. new_head: with a
    fresh classifier. resuming: exactly as its run left it. Raises Mistake where network and dataset do not fit."""
    folder = folder or 'the dataset'
    if not run:
        if new_head:
            raise Mistake('new_head=true needs a network to put it on: --init_from=PATH')
        return speed_up(network(name)[0](config_for(name, given, meta, folder)))
    check_reads(run, meta, folder)
    new_head = new_head or 'headless' in run
    classifies = meta['kind'] == 'images' and hasattr(network(name)[1], 'num_classes')
    if new_head and not classifies:
        own = getattr(network(name)[0], 'classifier', ('',))[0]
        raise Mistake(f'model={name} has no classifier' + (f'; for one with its encoder: --model={own}' if own else
                                                           ', which new_head=true would replace; leave that out'))
    if new_head:
        given = {'num_classes': len(meta['classes'])} | given
    elif classifies:
        check_classes(run, meta['classes'], folder)
    return load_model(run, new_head, **{} if resuming else given)


# ---- trained networks -----------------------------------------------------------------------------------------------

def open_run(path, name=''):
    """A trained network: config.json of its run directory (dict), and its `weights` and `step`. path: the directory,
    for its best.safetensors, or another file of weights in it. From a masked autoencoder, `name` may be the classifier
    that can start from its encoder."""
    path = Path(path)
    if path.suffix == '.pt':
        raise Mistake(f'{path} is for resuming alone; name {path.parent} for its best weights')
    file = path if path.suffix == '.safetensors' else path / 'best.safetensors'
    run = read_config(run_directory(path))
    run['weights'], run['step'] = read_weights(file)
    own = run['model']
    if hasattr(network(own)[0], 'opened'):
        check_version(run)
        run = network(own)[0].opened(run)
    becomes = getattr(network(run['model'])[0], 'classifier', (run['model'],))[0]
    if name in ('', run['model']):
        return run
    if becomes != name:
        raise Mistake(f'{path} holds model={own}, so model={name} cannot start from it; give --model={becomes}'
                      + ' --new_head=true' * (own != run['model']))
    return as_classifier(run)


def check_version(run):
    """Raises Mistake if a run's network has settings that its Config does not know."""
    Config = network(run['model'])[1]
    unknown = run['network'].keys() - {f.name for f in dataclasses.fields(Config)}
    if unknown:
        raise Mistake(f'the run is of another version of {Config.__name__} (it has {min(unknown)}); train it again')


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


def load_model(run, new_head=False, **changes):
    """The network of open_run, in evaluation mode, with some settings changed. new_head: with a fresh classifier, and
    num_classes from the changes. image_size in the changes: positions are interpolated. Raises Mistake if a change does
    not fit the weights."""
    if 'headless' in run and not new_head:
        raise Mistake('these are the weights of a masked autoencoder, which has no classifier yet: give '
                      f'--model={run["headless"]}, or train one: train.py --init_from=PATH --model={run["model"]}')
    Network, Config = network(run['model'])
    check_version(run)
    changes |= {k: sides(v) for k, v in changes.items() if k == 'image_size'}
    with refusals():
        old, config = Config(**run['network']), Config(**run['network'] | changes)
    for k in SAME:
        if getattr(old, k, 0) != getattr(config, k, 0):
            raise Mistake(f'the network was trained with {k}={show(getattr(old, k))}; leave {k} out')
    if kind_of(old) != kind_of(config):
        raise Mistake(f'the network reads {kind_of(old)}, and with image_size={show(config.image_size)} it would read '
                      f'{kind_of(config)}; leave that out')
    model, weights = Network(config), dict(run['weights'])
    fresh = {k: v for k, v in model.state_dict().items() if new_head and k.startswith('read.head.')}
    if new_head and not fresh:
        raise Mistake(f'{Network.__name__} has no read.head to replace; docs/extend.md says what new_head needs')
    if getattr(old, 'image_size', 0) != getattr(config, 'image_size', 0) and old.patch_size == config.patch_size:
        for k in {'embed.pos', 'decoder_pos'} & weights.keys():
            weights[k] = resize_positions(weights[k], grid(old), grid(config))
    wrong = fill(model, weights | fresh)
    if wrong:
        raise Mistake(f'the weights do not fit {", ".join(f"{k}={show(v)}" for k, v in changes.items())} ({wrong} '
                      'differs); leave out what config.json of their run says otherwise')
    return speed_up(model.eval())


def resize_positions(pos, old, new):
    """Positions (1, N + 1, d), the class token's first, of an `old` grid (rows, columns) for a `new` one: bicubic,
    except for the class token's."""
    own, rest = pos[:, :1], pos[:, 1:]
    rest = F.interpolate(rest.mT.unflatten(2, old), size=new, mode='bicubic', align_corners=False, antialias=True)
    return torch.cat((own, rest.flatten(2).mT), 1)


# ---- programs that look at a trained network ------------------------------------------------------------------------

def from_command_line(argv, Settings):
    """Command line -> (Settings, what open_run gives for its `ckpt`, settings of the network that were typed, such as
    another image_size)."""
    given = collect(argv)
    run = open_run(str(given.get('ckpt', (Settings.ckpt, ''))[0]))
    checked = check(given, Settings, network(run['model'])[1])
    ours = {f.name for f in dataclasses.fields(Settings)}
    return (Settings(**{k: v for k, v in checked.items() if k in ours}), run,
            {k: v for k, v in checked.items() if k not in ours})


def heading(path, run, model):
    """What a program says first of the network that it shows: its size, and which step of its run."""
    said = f'{path}: {run["model"]}, {size(model) / 1e6:.2f}M parameters'
    steps = run['settings'].get('max_iters')  # weights of others have none
    return f'{said} (step {run["step"]:,} of {steps:,})' if steps else said
