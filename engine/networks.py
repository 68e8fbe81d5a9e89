"""Networks by name: what they are trained on, and their configs for a dataset.

The contract. A file model_x.py beside train.py is all that `--model=x` needs. It sets two names:

  Config    a flat dataclass. `task` (a class attribute or a property) says what the network is trained on, one of TASKS
            below. The dataset fills in those of the fields in `sizes` that the config has.
  Network   a torch module: Network(config) with `config`; forward(x, y=None) -> (out, loss), loss None without y.
            x, y and out for each task are in docs/extend.md.

Some commands need more. Muon trains the matrices of `layers`. analyze.py walks `embed`, `layers` and their `attn`. A
new head replaces `read.head`. Probes ask `features(x)`.
"""
import dataclasses
import importlib
import json
import traceback
from pathlib import Path

from engine.settings import HERE, Mistake, reading

# task: the kind of data it reads, and the config of a small run, for networks that have no config of their own
TASKS = {'text': ('text', 'train_aot_stdlib'), 'masked_text': ('text', 'train_crate_bert_stdlib'),
         'image': ('images', 'train_vit_shapes'), 'masked_image': ('images', 'pretrain_vit_mae_shapes'),
         'views': ('images', 'train_crate_dino_shapes'), 'icl': ('functions', 'train_aot_linear')}
DATA = {'text': 'vocab_size', 'images': 'image_size', 'functions': 'n_dims'}  # the field of configs that read it
NO_DOWNLOAD = {'stdlib': 'text', 'shapes': 'images', 'linear': 'functions', 'sparse_linear': 'functions'}
SIDES = {'image_size', 'patch_size'}  # of a number or (height, width), whatever the field says


# ---- networks -------------------------------------------------------------------------------------------------------

def names():
    """The networks there are: x for each file model_x.py."""
    return sorted(path.stem.removeprefix('model_') for path in HERE.glob('model_*.py'))


def network(name):
    """(Network, Config) of model_NAME.py. Raises Mistake if there is no such file."""
    if name not in names():
        raise Mistake(f"model='{name}' is unknown; choose {', '.join(names())}, or write model_{name}.py")
    module = importlib.import_module(f'model_{name}')
    return module.Network, module.Config


def config_from(Config, settings):
    """Config(**settings). Sizes of pictures become (height, width). Raises Mistake for a setting that the network does
    not know, or whose value its Config refuses: for a ValueError that its __post_init__ raises on purpose."""
    fields = {f.name for f in dataclasses.fields(Config)}
    if unknown := settings.keys() - fields:
        raise Mistake(f'the run is of another version of {Config.__name__} (it has {min(unknown)}); train it again')
    settings = {k: (v, v) if k in SIDES and type(v) is int and v else v for k, v in settings.items()}
    try:
        return Config(**settings)
    except ValueError as e:  # network files know no Mistake, because they import nothing of this project
        if 'raise ' not in traceback.extract_tb(e.__traceback__)[-1].line:
            raise
        raise Mistake(e) from None


def kind_of(config):
    """The kind of data that a network with this config reads: 'text', 'images' or 'functions'."""
    return TASKS[config.task][0]


def meta_of(folder):
    """meta.json of a dataset; {} if it is not there yet. Raises Mistake if it is damaged."""
    path = Path(folder) / 'meta.json'
    with reading(f'{path} is damaged', 'prepare the dataset again'):
        return {'channels': 3} | json.loads(path.read_text(encoding='utf-8')) if path.is_file() else {}


def size(model):
    """Number of trainable parameters; shared ones count once."""
    return sum(t.numel() for t in model.parameters() if t.requires_grad)


def grid(c):
    """Patches of a picture, (rows, columns)."""
    return tuple(i // p for i, p in zip(c.image_size, c.patch_size))


# ---- networks and datasets ------------------------------------------------------------------------------------------

def config_for(name, given, meta, folder='the dataset'):
    """The config of a network for a dataset with this meta.json, with the settings given. Raises Mistake if the network
    does not read such data."""
    Config, kind = network(name)[1], meta['kind']
    if not hasattr(Config, DATA.get(kind, '')):
        raise Mistake(f'{folder} holds {kind}, model={name} does not read that; choose another --dataset or --model')
    decided = {k: v for k, v in sizes(meta).items() if hasattr(Config, k)}
    config = config_from(Config, decided | given)
    if config.task == 'masked_text':
        decided['vocab_size'] += 1  # [MASK]
        config.vocab_size = given.get('vocab_size', decided['vocab_size'])
    if kind_of(config) != kind:
        raise Mistake(f'{folder} holds {kind}, model={name} with these settings reads {kind_of(config)}; choose '
                      'another --dataset or --model')
    for k in decided.keys() & {'vocab_size', 'num_classes', 'channels'}:
        if getattr(config, k) < decided[k] or getattr(config, k) > decided[k] and k != 'vocab_size':
            raise Mistake(f'{k}={getattr(config, k)} does not fit {folder}, which has {decided[k]}; leave it out')
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
