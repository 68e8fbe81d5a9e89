"""Networks by name: what they are trained on, and their configs for a dataset.

The contract. A file model_x.py beside train.py is the whole of a network x. It sets two names:

  Config    a flat dataclass. `task`, a class attribute or a property, says what the network is
            trained on: x for the file tasks/task_x.py. The dataset sets vocab_size and other fields
            that the function `sizes` below names, if the config has them.
  Network   a torch module: Network(config) with `config`; forward(x, y=None) -> (out, loss), the
            loss None without y; or (out, loss, extras), a dict of numbers to log, of which
            'penalty' is added to the loss in training. x, y and out of each task are in
            docs/extend.md.

It may set a third, ConfigError, a subclass of ValueError: what Config raises for settings that make
no sense, and what programs print in one line. Any other exception is a bug and keeps its traceback.

Some commands need more. Muon trains the matrices of `layers`. analyze.py walks `embed`, `layers`
and their `attn`. A new head replaces `read.head`. Probes ask `features(x)`.
"""
import dataclasses
import hashlib
import importlib
import json
import pkgutil
import sys
from pathlib import Path

from engine.settings import HERE, Mistake, read_file, reading

# {kind of data: the field by which one tells that a network reads it}
DATA = {'text': 'vocab_size', 'images': 'image_size', 'functions': 'n_dims'}
# {kind of data: a dataset that needs no download}
SMALL_DATASET = {'text': 'stdlib', 'images': 'shapes', 'functions': 'linear'}
SIDES = ('image_size', 'patch_size')  # int or (height, width)


# ---- networks -----------------------------------------------------------------------------------

def names():
    """The networks there are: x for each file model_x.py."""
    return sorted(path.stem.removeprefix('model_') for path in HERE.glob('model_*.py'))


def network(name):
    """(Network, Config) of model_NAME.py. Raises Mistake if there is no such file."""
    if name not in names():
        raise Mistake(f"model='{name}' is unknown; choose {', '.join(names())}, or write "
                      f'model_{name}.py')
    module = importlib.import_module(f'model_{name}')
    for field in dataclasses.fields(module.Config):
        if field.default is dataclasses.MISSING:
            raise Mistake(f'{module.Config.__name__} in model_{name}.py: {field.name} has no '
                          'default, and every field needs one')
    return module.Network, module.Config


def configs():
    """{name: Config} of all networks, and {name: exception} of those that cannot be imported, such
    as one that somebody is writing."""
    usable = {}
    broken = {}
    for name in names():
        try:
            usable[name] = network(name)[1]
        except Exception as e:
            broken[name] = e
    return usable, broken


def config_from(Config, settings):
    """Config(**settings). Sizes of pictures become (height, width). Raises Mistake for a setting
    that the network does not know, or whose value its Config refuses with a ConfigError."""
    unknown = settings.keys() - {f.name for f in dataclasses.fields(Config)}
    if unknown:
        raise Mistake(f'{Config.__name__} has no setting {min(unknown)}: this is of another '
                      'network, or of another version, which you can check out')
    settings = dict(settings)
    for name in SIDES:
        if settings.get(name):  # 0: the network reads no pictures
            settings[name] = as_pair(settings[name])
    try:
        return Config(**settings)
    except ValueError as e:
        if not is_config_error(e):
            raise
        raise Mistake(e) from None


def is_config_error(e):
    """Whether an exception is the ConfigError of a model_x.py. Such a file imports nothing from
    engine/, so it has this class of its own where other files have Mistake. Any other ValueError,
    such as that of `a, b = 1, 2, 3`, is a bug."""
    file_of_class = sys.modules[type(e).__module__]
    return type(e) is getattr(file_of_class, 'ConfigError', None)


def task_of(config):
    """The class Task of tasks/task_x.py, where x is the task of a network with this config. Raises
    Mistake if there is no such file."""
    module = f'tasks.task_{config.task}'
    try:
        return importlib.import_module(module).Task
    except ModuleNotFoundError as e:
        if e.name != module:  # a library that the file imports
            raise
    modules = pkgutil.iter_modules(importlib.import_module('tasks').__path__)
    names = [m.name.removeprefix('task_') for m in modules if m.name.startswith('task_')]
    raise Mistake(f"task='{config.task}' is unknown; choose one of {', '.join(names)}, or write "
                  f'tasks/task_{config.task}.py')


def kind_of(config):
    """The kind of data that a network with this config reads: 'text', 'images' or 'functions'."""
    return task_of(config).kind


def meta_of(folder):
    """meta.json of a dataset; {} if it is not there yet. Raises Mistake if it is damaged."""
    path = Path(folder) / 'meta.json'
    if not path.is_file():
        return {}
    with reading(f'{path} is damaged', 'prepare the dataset again'):
        meta = {'channels': 3} | json.loads(path.read_text(encoding='utf-8'))
        # datasets of earlier versions have no checksum
        if 'sha256' in meta and meta['sha256'] != checksum_of(meta):
            raise ValueError('it is not what was written')
        return meta


def checksum_of(meta):
    """The sha256 of what meta.json says of a dataset, its own `sha256` left out."""
    rest = {'channels': 3} | meta
    rest.pop('sha256', None)
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def size(model):
    """Number of trainable parameters; shared ones count once."""
    return sum(t.numel() for t in model.parameters() if t.requires_grad)


def size_in_words(model):
    """Such as '0.87M parameters', or of a small network '1,024 parameters'."""
    count = size(model)
    return f'{count / 1e6:.2f}M parameters' if count >= 1e5 else f'{count:,} parameters'


def as_pair(size):
    """(height, width) of a size that is an int or such a pair."""
    return (size, size) if isinstance(size, int) else size


def grid(c):
    """Patches of a picture, (rows, columns)."""
    return tuple(i // p for i, p in zip(c.image_size, c.patch_size))


# ---- networks and datasets ----------------------------------------------------------------------

def config_for(name, network_settings, meta, folder='the dataset'):
    """The config of a network with these settings, for a dataset with this meta.json. Raises
    Mistake if the network does not read such data."""
    Config = network(name)[1]
    kind = meta['kind']
    readable = [k for k, field in DATA.items() if hasattr(Config, field)]
    if kind not in readable:
        raise unreadable(name, readable, kind, folder)

    decided = {k: v for k, v in sizes(meta).items() if hasattr(Config, k)}
    config = config_from(Config, decided | network_settings)
    if kind_of(config) != kind:
        raise unreadable(name, [kind_of(config)], kind, folder)
    if task_of(config).extra_tokens:
        decided['vocab_size'] += task_of(config).extra_tokens
        config = config_from(Config, decided | network_settings)
    check_sizes(config, decided, folder)
    return config


def unreadable(name, kinds, kind, folder):
    """The Mistake for a network that reads the kinds of data `kinds`, and not the one in a folder.
    It says what to type."""
    if not kinds:
        return Mistake(f'{folder} holds {kind}, model={name} does not read that; choose another '
                       '--dataset or --model')
    dataset = SMALL_DATASET[kinds[0]]
    command = f'python train.py --model={name} --dataset={dataset}'
    paths = sorted((HERE / 'config').glob(f'*train_*{name}_{dataset}.py'))
    configs = [path.name for path in paths if read_file(str(path)).get('model') == name]
    if configs:
        command = f'python train.py config/{configs[0]}'
    return Mistake(f'{folder} holds {kind}, model={name} with these settings reads '
                   f'{" or ".join(kinds)}; type {command}')


def check_sizes(config, decided, folder):
    """Raises Mistake where somebody gave another size than the dataset has. A vocabulary may be
    larger: some are rounded up."""
    for name in ('vocab_size', 'num_classes', 'channels'):
        if name not in decided:
            continue
        size_of_config = getattr(config, name)
        too_large = size_of_config > decided[name] and name != 'vocab_size'
        if size_of_config < decided[name] or too_large:
            raise Mistake(f'{name}={size_of_config} does not fit {folder}, which has '
                          f'{decided[name]}; leave it out')


def sizes(meta):
    """The config fields that a dataset with this meta.json decides. A dataset without pictures sets
    image_size to 0, one without functions n_dims."""
    if meta['kind'] == 'text':
        return {'vocab_size': meta['vocab_size'], 'image_size': 0, 'n_dims': 0}
    if meta['kind'] == 'functions':
        # 41 examples of two tokens, as Garg et al.
        return {'n_dims': 20, 'block_size': 82, 'image_size': 0}
    first_split = next(iter(meta['splits'].values()))
    image_size = 224  # JPEG files of many sizes
    if 'height' in first_split:
        image_size = (first_split['height'], first_split['width'])
    return {'image_size': image_size, 'n_dims': 0, 'channels': meta.get('channels', 3),
            'num_classes': len(meta['classes'])}
