"""Networks by name, and trained networks from files: our checkpoints, the authors' files, with
another head or resolution.

The contract. A file model_x.py beside train.py is all that `--model=x` needs. It sets two names:

  Config    a flat dataclass. `task` (a class attribute or a property) says what the network is trained on, one of TASKS
            below. The dataset fills in those of the fields in DATA that the config has.
  Network   a torch module: Network(config) with `config`; forward(x, y=None) -> (out, loss), loss None without y.
            x, y and out for each task are in docs/extend.md.

A config may have `earlier`, {setting: value} for checkpoints that were saved before it had that
setting.

Some commands need more. Muon trains the matrices of `layers`. analyze.py walks `embed`, `layers`
and their `attn`. A new head replaces `read.head`. Probes ask `features(x)`.
"""
import dataclasses
import importlib
import inspect
import json
import math
import re
from pathlib import Path

import torch
import torch.nn.functional as F

from engine import NO_DOWNLOAD, exported, official
from engine.fast import speed_up
from engine.rundir import load_checkpoint
from engine.settings import HERE, Mistake, Typed, check, collect, refusals, refuse_alone, show

# task: the kind of data it reads, and the config of a small run, for networks that have no config
# of their own
TASKS = {'text': ('text', 'train_aot_stdlib'), 'masked_text': ('text', 'train_crate_bert_stdlib'),
         'image': ('images', 'train_vit_shapes'), 'masked_image': ('images', 'pretrain_vit_mae_shapes'),
         'views': ('images', 'train_crate_dino_shapes'),
         'icl': ('functions', 'train_aot_linear')}
# kind of data: the config fields that a dataset decides
DATA = {'text': ('vocab_size',), 'images': ('image_size', 'channels', 'num_classes'),
        'functions': ('n_dims', 'block_size')}
SIDES = {'image_size', 'patch_size'}  # of a number or (height, width), whatever the field says
GPT2_TOKENS = 50257  # with which the authors trained CRATE-GPT


# ---- networks -------------------------------------------------------------------------------------------------------

def names():
    """The networks there are: x for each file model_x.py."""
    return sorted(path.stem.removeprefix('model_') for path in HERE.glob('model_*.py'))


def network(name):
    """(Network, Config) of model_NAME.py. Raises Mistake if there is no such file or it lacks a
    part of the contract."""
    if name not in names():
        raise Mistake(f"model='{name}' is unknown; choose {', '.join(names())}, or write model_{name}.py")
    module = importlib.import_module(f'model_{name}')
    Network, Config = getattr(module, 'Network', None), getattr(module, 'Config', None)
    is_network = inspect.isclass(Network) and issubclass(Network, torch.nn.Module)
    lacks = 'a Network, a torch.nn.Module' if not is_network else \
        'a Config, a dataclass' if not dataclasses.is_dataclass(Config) else \
        f'a `task` in {Config.__name__}' if not hasattr(Config, 'task') else ''
    if lacks:
        raise Mistake(f'model_{name}.py lacks {lacks}; docs/extend.md says what a network file needs')
    return Network, Config


def kind_of(config):
    """The kind of data that a network with this config reads: 'text', 'images' or 'functions'."""
    if config.task not in TASKS:
        raise Mistake(f"{type(config).__name__}.task is '{config.task}', which is none of {', '.join(TASKS)}; see "
                      'docs/extend.md')
    return TASKS[config.task][0]


def kind_of_dataset(dataset, data_dir):
    """'text', 'images', 'functions', or '' if that cannot be known yet."""
    try:
        return str(json.loads((Path(data_dir) / dataset / 'meta.json').read_text(encoding='utf-8'))['kind'])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return NO_DOWNLOAD.get(dataset, {}).get('kind', '')


def size(model):
    """Number of trainable parameters; shared ones count once."""
    return sum(t.numel() for t in model.parameters() if t.requires_grad)


def is_small(model):
    """Whether a network reads one text or picture faster in float32. With bfloat16 its weights are
    converted first, which pays from about 50 million on."""
    return size(model) < 50e6


def grid(c):
    """Patches of a picture, (rows, columns)."""
    return tuple(i // p for i, p in zip(c.image_size, c.patch_size))


def sides(size):
    """A number of pixels, or (height, width), as (height, width); 0 stays 0."""
    return (size, size) if isinstance(size, int) and size else size


def config_for(name, given, meta, folder='the dataset'):
    """The config of a network for a dataset with this meta.json, with the settings given. Raises
    Mistake if the network does not read such data."""
    Config, kind = network(name)[1], meta['kind']
    fields = {f.name for f in dataclasses.fields(Config)}
    if DATA[kind][0] not in fields:
        if TASKS.get(Config.task, ('',))[0] == kind:  # it is declared, but not whole
            raise Mistake(f'{Config.__name__}.task is {Config.task}, so it needs a field {DATA[kind][0]}; see '
                          'docs/extend.md')
        raise Mistake(f'{folder} holds {kind}, model={name} does not read that; choose another --dataset or --model')
    decided = {k: v for k, v in sizes(meta).items() if k in fields}
    with refusals():
        config = Config(**decided | given)
    if kind_of(config) != kind:
        wrong = [f'{k}={show(given[k])}' for k in ('image_size', 'n_dims') if k in given and given[k] != decided.get(k)]
        raise Mistake(f'{folder} holds {kind}, but {", ".join(wrong) or f"model={name}"} reads {kind_of(config)}; '
                      'leave it out, or choose another --dataset')
    for k in ('image_size', 'patch_size') * (kind == 'images'):
        if hasattr(config, k):
            setattr(config, k, sides(getattr(config, k)))
    if config.task == 'masked_text':
        decided['vocab_size'] += 1  # [MASK]
        config.vocab_size = given.get('vocab_size', decided['vocab_size'])
    for k in ('vocab_size', 'num_classes'):
        if k in decided and getattr(config, k) < decided[k]:
            raise Mistake(f'{k}={getattr(config, k)} is too small for {folder}, which needs {decided[k]}; leave it '
                          'out')
    if getattr(config, 'num_classes', 0) > decided.get('num_classes', 2 ** 63):
        raise Mistake(f'num_classes={config.num_classes} is more than the {decided["num_classes"]} classes of '
                      f'{folder}; leave it out')
    if 'channels' in decided and config.channels != decided['channels']:
        raise Mistake(f'{folder} has pictures of {decided["channels"]} channels, not {config.channels}; leave '
                      'channels out')
    return config


def sizes(meta):
    """The config fields that a dataset with this meta.json decides. 0 turns off what it does not
    hold."""
    if meta['kind'] == 'text':
        return {'vocab_size': meta['vocab_size'], 'image_size': 0, 'n_dims': 0}
    if meta['kind'] == 'functions':
        return {'n_dims': 20, 'block_size': 82, 'image_size': 0}  # 41 examples of two tokens, as Garg et al.
    own = next(iter(meta['splits'].values()))
    return {'image_size': (own['height'], own['width']) if 'height' in own else 224, 'n_dims': 0,
            'channels': meta.get('channels', 3), 'num_classes': len(meta['classes'])}


def described(meta):
    """The part of meta.json that a checkpoint carries: the tokenizer, or the names of the
    classes."""
    return {k: meta[k] for k in ('kind', 'tokenizer', 'classes') if k in meta}


def build(name, given, checkpoint, meta, folder, new_head=False, resuming=False):
    """A network for the dataset in `folder`: new, or from a checkpoint, with the settings given.
    new_head: with a fresh classifier. resuming: exactly as the checkpoint's run left it. Raises
    Mistake where network and dataset do not fit."""
    folder = folder or 'the dataset'
    if not checkpoint:
        if new_head:
            raise Mistake('new_head=true needs a network to put it on: --init_from=PATH')
        return speed_up(network(name)[0](config_for(name, given, meta, folder)))
    held, kind = checkpoint['data'], meta['kind']
    new_head = new_head or 'headless' in checkpoint
    if held['kind'] != kind:
        raise Mistake(f'the checkpoint reads {held["kind"]}, {folder} holds {kind}; choose another --dataset')
    if kind == 'text' and held['tokenizer'] != meta['tokenizer']:
        raise Mistake(f'the checkpoint reads {held["tokenizer"]["name"]} tokens, {folder} holds other ones '
                      f'({meta["tokenizer"]["name"]}); prepare it with the same tokenizer, or start from scratch')
    channels = checkpoint['model_config'].get('channels', 3)
    if kind == 'images' and channels != meta.get('channels', 3):
        raise Mistake(f'the checkpoint reads pictures of {channels} channels, '
                      f'{folder} holds {meta.get("channels", 3)}; prepare it with as many, or start from scratch')
    classifies = kind == 'images' and hasattr(network(name)[1], 'num_classes')
    if new_head:
        if kind != 'images':
            raise Mistake(f'new_head=true is for pictures; a network that reads {kind} keeps its head')
        if not classifies:
            own = getattr(network(name)[0], 'classifier', ('',))[0]
            has_one = f'; for one with its encoder: --model={own}' if own else ''
            raise Mistake(f'model={name} has no classifier{has_one}')
        given = {'num_classes': len(meta['classes'])} | given
        if given['num_classes'] < len(meta['classes']):
            raise Mistake(f'num_classes={given["num_classes"]} is too small for {folder}, which needs '
                          f'{len(meta["classes"])}')
    elif classifies:
        same_classes(checkpoint, meta['classes'], folder)
    return load_model(checkpoint, new_head, not resuming, **{} if resuming else given)


def same_classes(checkpoint, classes, where):
    """Raises Mistake, with the setting that replaces the head, if a classifier knows other
    classes than a dataset."""
    check_labelled(checkpoint)
    known, count = checkpoint['data']['classes'], checkpoint['model_config'].get('num_classes')
    if count != len(classes) or known is not None and known != classes:
        mine = f'{count} classes' + (f' ({", ".join(known[:3])} ..)' if known else '')
        raise Mistake(f'the checkpoint knows {mine}, {where} has {len(classes)} others ({", ".join(classes[:3])} '
                      '..); put a new head on it: train.py --init_from=PATH --new_head=true')


def check_labelled(checkpoint):
    """Raises Mistake, with what to do instead, if a network was trained without labels and names no
    classes."""
    if checkpoint['data'].get('unlabelled'):
        raise Mistake('the checkpoint names nothing, because it was trained without labels; score its features '
                      'with eval.py --knn=20, or give it a classifier with train.py --init_from=PATH --new_head=true')


# ---- from files -----------------------------------------------------------------------------------------------------

def load_weights(path, name='', **settings):
    """A checkpoint (dict) to start from: a file or run directory of ours, a folder that export.py
    wrote, or `official:PATH`, a file of the authors, which needs the network's name and the
    settings that its tensors do not tell, n_head above all. From a masked autoencoder, `name` may
    be the classifier that can start from its encoder."""
    if path.startswith('official:'):
        return load_official(path.removeprefix('official:'), name, settings)
    checkpoint = exported.read(path) if exported.is_one(path) else load_checkpoint(path)
    own = checkpoint['config']['model']
    Network, Config = network(own)
    if hasattr(Network, 'opened'):
        config = trained(checkpoint)
        outline(Network, Config, config)                                # refuses a damaged file
        checkpoint = Network.opened(checkpoint | {'model_config': config})
    holds = checkpoint['config']['model']
    if name in ('', holds):
        return checkpoint
    becomes = getattr(network(holds)[0], 'classifier', (holds,))[0]
    if becomes != name:
        raise Mistake(f'{path} holds model={own}, so model={name} cannot start from it; give --model={becomes}'
                      + ' --new_head=true' * (own != holds))
    return as_classifier(checkpoint)


def load_official(path, name, settings):
    """The authors' file at `path` as a checkpoint (dict). See load_weights."""
    if name not in official.FORMATS:
        raise Mistake(f"official:{path} needs the network's name: --model={' or --model='.join(official.FORMATS)}")
    if settings.get('n_head', 0) < 1:
        raise Mistake(f'official:{path} does not say its number of heads: give --n_head, or a config that does')
    sd = official.read(path)
    holds = name
    for other, (_, own) in official.FORMATS.items():  # a masked autoencoder's file, where its classifier is asked for
        if getattr(network(other)[0], 'classifier', ('',))[0] == name and own in sd and 'head.weight' not in sd:
            holds = other
    Network, Config = network(holds)
    text = holds == 'crate' and not settings.get('image_size', official.CRATE_GPT not in sd)
    pixels, patch = (settings.get(k, getattr(Config, k)) for k in ('image_size', 'patch_size'))
    pixels, patch = (tuple(v) if isinstance(v, (tuple, list)) else (v, v) for v in (pixels, patch))
    positions = sd.get(official.FORMATS[holds][0], torch.empty(0))
    patches = positions.shape[1] - 1 if positions.dim() == 3 else 0
    side = math.isqrt(patches)
    if 0 < patches == side ** 2 != math.prod(i // max(p, 1) for i, p in zip(pixels, patch)):
        pixels = tuple(p * side for p in patch)  # trained on squares of another size
    read_off = ('n_head', 'image_size', 'patch_size', 'num_classes', 'channels', 'vocab_size', 'block_size', 'causal',
                'final_norm')  # load_model compares them
    fields = {f.name for f in dataclasses.fields(Config)} - set(read_off)
    rest = {k: v for k, v in settings.items() if k in fields}
    if holds == 'vit_mae' != name:
        rest['decoder_n_head'] = 1  # the decoder is not used
    elif name == 'vit_mae' and 'decoder_n_head' not in rest:
        raise Mistake(f'official:{path} does not say how many heads its decoder has: give --decoder_n_head, '
                      'theirs is 16')
    shape = {'n_head': settings['n_head'], 'image_size': 0 if text else pixels, 'patch_size': patch}
    try:
        if holds != name and 'decoder_pred.weight' not in sd:  # an encoder alone, such as MAE's files for fine-tuning
            sd = official.spare_decoder(Network, Config, sd, holds, shape) | sd
        with refusals():
            model = Network.from_official(sd, **shape, **rest)
        if text and model.config.vocab_size < GPT2_TOKENS:
            raise Mistake(f"it knows {model.config.vocab_size} tokens, GPT-2's tokenizer {GPT2_TOKENS}; one with "
                          'other tokens can be read in Python, by CRATE.from_official')
    except Mistake as e:
        raise Mistake(f'{path}: {e}') from None
    data = {'kind': 'text', 'tokenizer': {'name': 'gpt2'}} if text else {'kind': 'images', 'classes': None}
    checkpoint = {'weights': model.state_dict(), 'ema': None, 'model_config': dataclasses.asdict(model.config),
                  'config': {'model': holds} | official.VIEWS.get(holds, {}), 'data': data, 'step': 0}
    return checkpoint if holds == name else as_classifier(checkpoint)


def as_classifier(checkpoint):
    """The checkpoint of a masked autoencoder as one of the classifier that can start from its
    encoder: patch map, class token, positions (trained from now on), layers and final LayerNorm.
    `build` adds the head that it lacks."""
    whole = checkpoint['config']['model']
    name, settings = network(whole)[0].classifier
    Network, Config = network(name)
    fields = {f.name for f in dataclasses.fields(Config)}
    config = {k: v for k, v in trained(checkpoint).items() if k in fields} | settings
    wanted = outline(Network, Config, config)

    def encoder(weights):
        found = {re.sub('^norm', 'read.norm', k): v for k, v in (weights or {}).items()}
        found = {k: v for k, v in found.items() if k in wanted}
        for k, v in found.items():
            if v.dim() == 4 and wanted[k].dim() == 2:  # a convolution's patch map as a linear one, in patchify's order
                found[k] = v.permute(0, 2, 3, 1).flatten(1)
        return found or None
    return checkpoint | {'weights': encoder(checkpoint['weights']), 'ema': encoder(checkpoint['ema']),
                         'model_config': config, 'config': checkpoint['config'] | {'model': name}, 'headless': whole}


def load_model(checkpoint, new_head=False, averaged=True, **overrides):
    """The network in a checkpoint, in evaluation mode; with the average of its weights if it has
    one and `averaged`.

    new_head: a fresh classifier, with num_classes from the overrides. image_size in the overrides:
    positions are interpolated. Raises Mistake if other overrides do not fit the weights.
    """
    name = checkpoint['config']['model']
    if 'headless' in checkpoint and not new_head:
        raise Mistake('these are the weights of a masked autoencoder, which has no classifier yet: give '
                      f'--model={checkpoint["headless"]}, or train one: train.py --init_from=PATH --model={name}')
    if 'image_size' in overrides:
        overrides['image_size'] = sides(overrides['image_size'])
    Network, Config = network(name)
    settings = trained(checkpoint)
    with refusals():
        old, config = Config(**settings), Config(**settings | overrides)
    data = checkpoint.get('data', {'kind': kind_of(old)})
    tokenizer = data.get('tokenizer', {})
    tokens = {'bytes': 256, 'gpt2': GPT2_TOKENS}.get(tokenizer.get('name'), len(tokenizer.get('alphabet', '')))
    if data['kind'] != kind_of(old) or tokens > getattr(old, 'vocab_size', tokens):
        raise Mistake(f'the checkpoint is damaged (its data are {data["kind"]} of {tokens} tokens, and its network '
                      'is for others); take another one')
    for k in ('n_head', 'decoder_n_head', 'causal', 'gelu'):  # with another, the same weights would be another function
        had, has = (getattr(c, k, 0) or k == 'decoder_n_head' and getattr(c, 'n_head', 0) for c in (old, config))
        if had != has:
            raise Mistake(f'the checkpoint has {k}={show(had)}, not {show(has)}; leave {k} out')
    if kind_of(old) != kind_of(config):
        raise Mistake(f'the checkpoint reads {kind_of(old)}, with image_size={show(config.image_size)} it would '
                      f'read {kind_of(config)}; leave that out')
    model = Network(config)
    fresh, weights = model.state_dict(), dict(averaged and checkpoint['ema'] or checkpoint['weights'])
    head = [k for k in fresh if new_head and k.startswith('read.head.')]
    had, has = ([getattr(c, k, 0) for k in ('image_size', 'patch_size')] for c in (old, config))
    for k in ('embed.pos', 'decoder_pos'):
        if k in weights and had[0] != has[0] and had[1] == has[1] != 0:
            weights[k] = resize_positions(weights[k], grid(old), grid(config))
    if new_head and not head:
        raise Mistake(f'{Network.__name__} has no read.head to replace; docs/extend.md says what new_head needs')
    wrong = differing(weights, fresh, head)
    if wrong:
        raise Mistake(f'the checkpoint does not fit {", ".join(f"{k}={v}" for k, v in overrides.items())} '
                      f'({wrong} differs); leave out what its config.json says otherwise' if overrides else
                      f'the checkpoint is damaged ({wrong} is not that of its own model_config); take another one')
    model.load_state_dict(weights | {k: fresh[k] for k in head})
    return speed_up(model.eval())


def trained(checkpoint):
    """The settings that a checkpoint's network was trained with. Raises Mistake for unknown ones
    and wrong types."""
    Config = network(checkpoint['config']['model'])[1]
    settings, fields = getattr(Config, 'earlier', {}) | checkpoint['model_config'], dataclasses.fields(Config)
    unknown = sorted(settings.keys() - {f.name for f in fields})
    if unknown:
        raise Mistake(f'the checkpoint is from another version of {Config.__name__} (it has {unknown[0]}); train it '
                      'again')
    plain = [f.name for f in fields if f.type in (bool, int, float, str) and f.name in settings.keys() - SIDES]
    settings |= check({k: (settings[k], 'the model_config of the checkpoint') for k in plain}, Config)
    return settings


def outline(Network, Config, settings):
    """The state dict of a network with these settings, whose tensors take no memory."""
    with refusals(), torch.device('meta'):
        return Network(Config(**settings)).state_dict()


def differing(weights, wanted, head=()):
    """The first name, but for those of a head that is replaced, whose tensor is missing in one of two
    state dicts, or has another shape or kind of numbers; '' if there is none."""
    def same(k):
        return k in weights and k in wanted and weights[k].shape == wanted[k].shape and \
            weights[k].is_floating_point() == wanted[k].is_floating_point()
    return next((k for k in sorted(wanted.keys() | weights.keys()) if k not in head and not same(k)), '')


def resize_positions(pos, old, new):
    """Positions (1, N + 1, d), the class token's first, of an `old` grid (rows, columns) for a
    `new` one: bicubic, except for the class token's."""
    own, rest = pos[:, :1], pos[:, 1:]
    rest = F.interpolate(rest.mT.unflatten(2, old), size=new, mode='bicubic', align_corners=False, antialias=True)
    return torch.cat((own, rest.flatten(2).mT), 1)


def heading(path, checkpoint, model):
    """What a program says first of the network that it shows: its size, and which step of its run."""
    said = f'{path}: {checkpoint["config"]["model"]}, {size(model) / 1e6:.2f}M parameters'
    if 'max_iters' not in checkpoint['config']:  # weights of others
        return said
    which = f'{Path(path).stem}, ' if path.endswith('.pt') else '' if exported.is_one(path) else 'best, '
    return f'{said} ({which}step {checkpoint["step"]:,} of {checkpoint["config"]["max_iters"]:,})'


def from_command_line(argv, Settings):
    """Command line -> (Settings, the checkpoint that `ckpt` or `official` names, the network's
    settings that were given: another image_size, or what an official file, of the network `model`,
    does not tell)."""
    given = collect(argv)
    refuse_alone(given, 'ckpt', 'official', 'model')
    if 'official' in given:
        if 'ckpt' in given:
            raise Mistake('--official=PATH is --ckpt=official:PATH; leave one of the two out')
        given['ckpt'] = Typed(f'official:{given["official"][0]}'), given.pop('official')[1]
    path, name = (str(given.get(k, (getattr(Settings, k), ''))[0]) for k in ('ckpt', 'model'))
    checkpoint = None if path.startswith('official:') else load_weights(path)
    if checkpoint and name not in ('', checkpoint['config']['model']):
        raise Mistake(f'{path} holds model={checkpoint["config"]["model"]}, not model={name}; leave model out')
    Config = network(checkpoint['config']['model'] if checkpoint else name or 'crate')[1]
    checked = check(given, Settings, Config)
    ours = {f.name for f in dataclasses.fields(Settings)}
    overrides = {k: v for k, v in checked.items() if k not in ours}
    trained = checkpoint['model_config'].get('norm_pix_loss') if checkpoint else None
    if trained is not None and overrides.get('norm_pix_loss', trained) != trained:
        raise Mistake(f'{path} was trained with norm_pix_loss={show(trained)}; leave norm_pix_loss out')
    return (Settings(**{k: v for k, v in checked.items() if k in ours}),
            checkpoint or load_weights(path, name, **overrides), overrides)
