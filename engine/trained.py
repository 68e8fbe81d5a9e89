"""Trained networks: read from run directories, also with another head or resolution.

A trained network is a dict, `run`: config.json of its run directory, and its `weights` and `step`.
"""
import dataclasses
import difflib
import json
import os
import sys
import typing
import zipfile
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import safe_open

from engine.checkpoint import (check_new, digest, locked_log, on_cpu, remove_run, run_directory,
                               weights_of, write_new, write_new_weights)
from engine.distributed import print_main
from engine.networks import (SIDES, config_from, configs, grid, is_config_error, network, size,
                             size_in_words, task_of)
from engine.settings import (EXPECTED, HERE, SIZE, Mistake, Requested, cast, check, collect,
                             early, filled, reading, show)

# what a resumed run must keep, besides the settings of its network
FIXED = {'model', 'dataset', 'train_share', 'sparsity', 'seed', 'optimizer', 'new_head'}
# what a fine-tuned run does not take over from the run before it
NOT_INHERITED = {'out_dir', 'overwrite', 'eval_only', 'new_head', 'compile', 'target_loss',
                 'wandb_run_name', 'device', 'workers'}
# settings of runs by earlier versions that no longer exist
GONE = {'fsdp'}
# settings of a network that its weights do not show, but that they were trained with
FIXED_OF_NETWORK = ('n_head', 'decoder_n_head', 'causal', 'gelu', 'norm_pix_loss')
UNTRAINED = ('these are the weights with which the run began, because no later validation was '
             'better: train longer')


# ---- run directories ----------------------------------------------------------------------------

def open_run(path, wanted_model=''):
    """A trained network: config.json of its run directory (dict), and its `weights` and `step`.
    path: the directory, for its best.safetensors, or another file of weights in it. wanted_model:
    the network that is to start from these weights. '' is the run's own. Another one is the
    classifier of a masked autoencoder, or a network such as dino, inside which this one is
    trained."""
    folder = run_directory(path)
    run = read_config(folder)
    weights_file = path
    if folder == Path(path):
        weights_file = folder / 'best.safetensors'
    run['weights'], run['step'] = read_weights(weights_file)
    if wanted_model and hasattr(network(wanted_model)[0], 'begun_from'):
        return as_beginning(run, wanted_model)
    Network = network(run['model'])[0]
    if hasattr(Network, 'opened'):
        run = Network.opened(run)  # the run of a network inside this one, such as a teacher
    if wanted_model in ('', run['model']):
        return run

    Network = network(run['model'])[0]  # `opened` may have put another one in its place
    startable = run['model']
    if hasattr(Network, 'classifier'):
        startable = Network.classifier[0]
    if startable != wanted_model:
        raise Mistake(f'model={wanted_model} cannot start from {path}, which holds '
                      f'model={run["model"]}; give --model={startable}')
    return as_classifier(run)


def own_or_shipped(path):
    """A run out/NAME of one's own. Where that is not there yet, the run trained/NAME that came with
    the project, if there is one."""
    own_run = Path(path)
    if own_run.parts[:1] != ('out',) or own_run.exists():
        return path
    shipped = HERE / 'trained' / own_run.relative_to('out')
    return os.path.relpath(shipped) if shipped.exists() else path


def tell_if_shipped(asked, path):
    """Say on standard error if a run is not the one that was asked for, see own_or_shipped."""
    if path != asked:
        print_main(f'there is no {asked} yet: this is {path}, which came with nanoCRATE',
                   file=sys.stderr)


def write_run(out_dir, model, settings, data, overwrite=False):
    """A run directory of a network that others have trained, without last.pt. settings: those of
    its training, for fine-tuning; data: what config.json says of its dataset. Raises Mistake if
    there is a run already, unless overwrite is true, or if another process writes there."""
    out = Path(out_dir)
    name = type(model).__module__.removeprefix('model_')
    config = {'model': name, 'settings': settings, 'network': dataclasses.asdict(model.config),
              'data': data}
    with locked_log(out) as log_file:
        if not overwrite:
            check_new(out)
        # on a full disk these fail, while the files of an old run are still there
        new_config = write_new(out / 'config.json', lambda f: json.dump(config, f, indent=1))
        try:
            new_weights = write_new_weights(out / 'best.safetensors', on_cpu(weights_of(model)), 0)
        except Mistake:
            os.unlink(new_config)
            raise
        log_file.truncate(0)
        remove_run(out)
        os.replace(new_config, out / 'config.json')
        os.replace(new_weights, out / 'best.safetensors')


def read_config(out_dir):
    """config.json of a run directory: {'model', 'settings', 'network', 'data'}. Raises Mistake,
    which names the file, if it is missing or damaged, or if somebody has changed it so that it
    makes no sense."""
    path = Path(out_dir) / 'config.json'
    if not path.exists():
        raise no_run(Path(out_dir))
    advice = f'train with --out_dir={out_dir}, or name another'
    with reading(f'{path} is damaged', advice):
        run = json.loads(path.read_text(encoding='utf-8'), object_hook=with_tuples)
        check_parts(run)
    try:
        Config = network(run['model'])[1]
        check_types(run['network'], Config)
        config_from(Config, run['network'])
    except Mistake as e:
        raise Mistake(f'{path}: {e}') from None
    return run


def no_run(path):
    """The Mistake for a run directory that is not there, with what to type instead."""
    if path.suffix == '.pt':
        return Mistake(f'{path} is for resuming alone; name its run directory, {path.parent}')
    if path.name in ('gpt2', 'gpt2-medium', 'gpt2-large', 'gpt2-xl'):  # as OpenAI's are called
        return Mistake(f"no run in {path}; OpenAI's weights become the run out/{path.name} by "
                       f'python prepare/gpt2_weights.py --size {path.name}')
    hints = []
    for file in sorted((HERE / 'config').glob('*.py')):
        if f"out_dir = '{path.as_posix()}'" in file.read_text(encoding='utf-8'):
            hints.append(f'train it: python train.py config/{file.name}')
    runs = set()
    for place in (Path('out'), path.parent):
        runs.update(other.parent.as_posix() for other in place.glob('*/config.json'))
    if runs:
        nearest = difflib.get_close_matches(path.as_posix(), runs, 3, 0)
        hints.append(f'runs here: {", ".join(nearest)}')
    return Mistake(f'no run in {path}; {"; ".join(hints) or "train one: python train.py"}')


def check_parts(run):
    """Raises an exception for what programs read of config.json and is not there, or of another
    type."""
    settings = run['settings']
    data = run['data']
    expected = [(run['model'], str), (run['network'], dict), (data['kind'], str),
                (data.get('tokenizer') or {}, dict), (settings.get('max_iters', 0), int),
                (settings.get('dataset', ''), str), (settings.get('sparsity', 0), int),
                (settings.get('seed', 0), int)]
    expected += [(name, str) for name in data.get('classes') or []]
    for value, kind in expected:
        if not isinstance(value, kind):
            raise TypeError(f'{value!r} where {kind.__name__} is expected')


def check_types(network_settings, Config):
    """Raises Mistake for a setting of a network, {name: value}, that is not of the type of its
    field. Somebody's own network may have fields of other types, which are not looked at."""
    types = typing.get_type_hints(Config)
    for name, value in network_settings.items():
        want = SIZE if name in SIDES else types.get(name)
        if want not in EXPECTED:
            continue
        try:
            cast(value, want, typed=False)
        except ValueError:
            raise Mistake(f'{name}={show(value)}: expected {EXPECTED[want]}') from None


def with_tuples(values):
    """A dict in which lists of whole numbers, such as (height, width), are tuples again. JSON knows
    lists alone."""
    for name, value in values.items():
        if isinstance(value, list) and value and all(type(n) is int for n in value):
            values[name] = tuple(value)
    return values


def read_weights(path):
    """({name: tensor}, step) of a .safetensors file in a run directory. One that another program
    wrote has no checksum to compare, and perhaps no step, which is 0 then. Raises Mistake if the
    file is missing or damaged."""
    advice = 'name another run, or a .safetensors file in one'
    with reading(f'{path} is missing or damaged', advice), safe_open(path, 'pt') as f:
        weights = {name: f.get_tensor(name) for name in f.keys()}
        about = f.metadata() or {}
        step = int(about.get('step', 0))
    if 'sha256' in about and about['sha256'] != digest(weights, step):
        raise Mistake(f'{path} is damaged: its tensors are not those of its checksum; {advice}')
    return weights, step


def as_classifier(run):
    """A masked autoencoder as the classifier that can start from its encoder: patch map, class
    token, positions (trained from now on), layers and final LayerNorm. `fitted` adds the head that
    it lacks."""
    # a masked autoencoder names the network that classifies with its encoder, and the settings that
    # this network must have
    Autoencoder, _ = network(run['model'])
    model_name, required = Autoencoder.classifier
    Classifier, Config = network(model_name)
    fields = {f.name for f in dataclasses.fields(Config)}
    network_settings = {k: v for k, v in run['network'].items() if k in fields}
    network_settings.update(required)
    with torch.device('meta'):  # takes no memory
        wanted = Classifier(Config(**network_settings)).state_dict()

    weights = {}
    for name, value in run['weights'].items():
        name_there = name
        if name.startswith('norm.'):
            name_there = f'read.{name}'  # the final LayerNorm of a classifier is part of its head
        if name_there not in wanted:
            continue
        if value.dim() == 4 and wanted[name_there].dim() == 2:
            # the patch map is a convolution there and a linear map here
            value = value.permute(0, 2, 3, 1).flatten(1)
        weights[name_there] = value
    return run | {'weights': weights, 'network': network_settings, 'model': model_name,
                  'headless': run['model']}


def as_beginning(run, wanted_model):
    """A run as the beginning of a new run of wanted_model, a network that trains another one inside
    it. A run of wanted_model has all weights. Those of another run become the network inside; the
    key 'missing' then names the weights that are still to be drawn. Raises Mistake if the run does
    not fit in there."""
    if hasattr(network(run['model'])[0], 'classifier'):
        run = as_classifier(run)
        del run['headless']  # inside another network it needs no classifier
    try:
        return network(wanted_model)[0].begun_from(run) | {'model': wanted_model}
    except ValueError as e:
        if not is_config_error(e):
            raise
        raise Mistake(e) from None


# ---- training goes on from one ------------------------------------------------------------------

def settings_to_resume(requested, *classes):
    """(settings, run) of a run that goes on: its own settings, with those in their place that were
    typed. requested: {name: Requested}; run: config.json and last.pt in one dict."""
    out_dir = early('out_dir', requested, '')
    run = read_config(out_dir) | read_last(out_dir)
    Config = network(run['model'])[1]
    old = settings_of(run, *classes) | run['network']

    typed = {}    # what changes the run
    ignored = []  # what a config file says otherwise than the run
    for name, value in check(requested, *classes, Config).items():
        if same_value(value, old.get(name)):
            continue
        if requested[name].is_typed:
            typed[name] = value
        elif requested[name].source:
            ignored.append(name)
    refuse_changes(typed, old, FIXED | {f.name for f in dataclasses.fields(Config)}, out_dir)

    of_this_start = {'init_from': 'resume', 'out_dir': out_dir, 'overwrite': False,
                     'eval_only': typed.get('eval_only', False)}
    ignored = sorted(set(ignored) - of_this_start.keys())
    if ignored:
        print_main(f"resuming with the settings of the run, not the config file's "
                   f"{', '.join(ignored)}; type what you want to change")
    return old | typed | of_this_start, run


def same_value(new, old):
    """Whether two settings are equal. The old one comes from config.json, where the size of a
    picture is a pair; who types 32 means 32 x 32."""
    return new == old or (new, new) == old


def refuse_changes(typed, old, fixed, out_dir):
    """Raises Mistake for the first typed setting that a run which goes on must keep."""
    wrong = sorted(typed.keys() & fixed)
    if not wrong:
        return
    name = wrong[0]
    raise Mistake(f'--{name}={show(typed[name])}: the run in {out_dir} has '
                  f'{name}={show(old.get(name))}; leave it out, or start anew with another '
                  '--out_dir')


def settings_to_fine_tune(requested, names_a_file, *classes):
    """(settings, run) of a new run from trained weights. Where no config file is named, the
    settings of their training stand behind what is typed."""
    asked = early('init_from', requested, '')
    path = own_or_shipped(asked)
    wanted_model = early('model', requested, '')
    if requested['model'].source == '':  # the default, which nobody asked for
        wanted_model = ''
    run = open_run(path, wanted_model.lower())
    values = check(requested, *classes, network(run['model'])[1])
    tell_if_shipped(asked, path)
    typed = {name: value for name, value in values.items() if requested[name].is_typed}
    if not names_a_file:
        inherited = settings_of(run, *classes)
        for name in NOT_INHERITED | settings_without_meaning(run, path):
            inherited.pop(name, None)
        values = inherited | typed
    if 'missing' in run:
        # the sizes in a config file are those of a new network, and here the weights decide
        for name in run['network'].keys() - typed.keys():
            values.pop(name, None)
        TrainConfig, _ = classes
        run = with_fresh_weights(run, values, values.get('seed', TrainConfig.seed))
    if 'dataset' not in values:
        raise Mistake(f'--init_from={path} does not say what to train on: give --dataset, such as '
                      '--dataset=cifar10')
    return values | {'model': run['model'], 'init_from': path}, run


def settings_without_meaning(run, path):
    """The names of settings that have a meaning for the task of the run at `path`, but not for that
    of `run`, which starts from it."""
    def settings_of_task(some_run):
        config = config_from(network(some_run['model'])[1], some_run['network'])
        return set(task_of(config).settings)

    return settings_of_task(read_config(run_directory(path))) - settings_of_task(run)


def with_fresh_weights(run, values, seed):
    """A run of as_beginning with fresh weights, drawn with this seed, in the place of those that it
    says are missing. values: {name: value} of settings; those of the network decide the sizes."""
    Network, Config = network(run['model'])
    settings = dict(run['network'])
    for field in dataclasses.fields(Config):
        if field.name in values:
            settings[field.name] = values[field.name]
    torch.manual_seed(seed)
    weights = dict(run['weights'])
    for name, tensor in weights_of(Network(config_from(Config, settings))).items():
        if name.startswith(run['missing']):
            weights[name] = tensor
    return run | {'weights': weights}


def settings_of(run, *classes):
    """The settings of a run, with the types of their fields, but for those of earlier versions that
    are gone."""
    requested = {}
    for name, value in run['settings'].items():
        if name not in GONE:
            requested[name] = Requested(value, 'config.json')
    return {'model': run['model']} | check(requested, *classes)


def read_last(out_dir):
    """What save_last wrote. Raises Mistake if there is no such file, or if it is damaged."""
    path = Path(out_dir) / 'last.pt'
    advice = f'start from the best weights with --init_from={out_dir} and another --out_dir'
    with reading(f'{path} is missing or damaged', advice):
        with zipfile.ZipFile(path) as z:
            if z.testzip():  # torch.load does not compare checksums
                raise ValueError('a checksum differs')
        return torch.load(path, map_location='cpu', weights_only=True)


def restore(last, average, optimizers, scaler):
    """Put the states that last.pt holds into average, optimizers and scaler. Its run may have had
    another number of processes. Rates and decay stay those of the settings."""
    if last['scaler']:  # else its run was not in float16
        scaler.load_state_dict(last['scaler'])
    if average is not None and last['average']:
        average.module.load_state_dict(last['average'], strict=False)
        average.n_averaged.fill_(last['step'])
    for optimizer, state in zip(optimizers, last['optimizers'], strict=True):
        # the groups stay those of the resumed run, because its rates may have been typed anew
        groups_now = optimizer.state_dict()['param_groups']
        optimizer.load_state_dict({'state': state['state'], 'param_groups': groups_now})


# ---- weights to networks ------------------------------------------------------------------------

def load_model(run, new_head=False, **changes):
    """The network of open_run, in evaluation mode, with some settings changed. new_head: with a
    fresh classifier, and num_classes from the changes. image_size in the changes: positions are
    interpolated. Raises Mistake if a change does not fit the weights."""
    if 'headless' in run and not new_head:
        raise Mistake('these are the weights of a masked autoencoder, which has no classifier yet: '
                      f'give --model={run["headless"]}, or train one: train.py --init_from=PATH '
                      f'--model={run["model"]}')
    Network, Config = network(run['model'])
    old = config_from(Config, run['network'])
    config = config_from(Config, run['network'] | changes)
    for name in FIXED_OF_NETWORK:
        if getattr(old, name, 0) != getattr(config, name, 0):
            raise Mistake(f'the network was trained with {name}={show(getattr(old, name))}; leave '
                          f'{name} out')
    model = Network(config)
    weights = dict(run['weights'])
    if new_head:
        weights.update(fresh_head(model))
    if has_other_positions(old, config):
        for name in weights:  # also student.net.embed.pos, of the network inside DINO
            if name.endswith(('embed.pos', 'decoder_pos')):
                weights[name] = resize_positions(weights[name], grid(old), grid(config))
    wanted = weights_of(model)
    if is_shorter(old, config):
        cut_positions(weights, wanted, old.block_size, config.block_size)
    changed = {}
    for name in changes:
        if getattr(old, name) != getattr(config, name):
            changed[name] = getattr(old, name), getattr(config, name)
    check_fits(weights, wanted, changed)
    check_numbers(model, weights)
    model.load_state_dict(weights, strict=False)
    return model.eval()


def fresh_head(model):
    """{name: tensor} of the classifier that a new network begins with."""
    head = {name: value for name, value in model.state_dict().items()
            if name.startswith('read.head.')}
    if not head:
        raise Mistake(f'{type(model).__name__} has no read.head to replace; docs/extend.md says '
                      'what new_head needs')
    return head


def has_other_positions(old, new):
    """Whether pictures have another size, in the same patches."""
    same_size = getattr(old, 'image_size', 0) == getattr(new, 'image_size', 0)
    same_patches = getattr(old, 'patch_size', 0) == getattr(new, 'patch_size', 0)
    return same_patches and not same_size


def resize_positions(pos, old, new):
    """Positions (1, N + 1, d), the class token's first, of an `old` grid (rows, columns) for a
    `new` one: bicubic, except for the class token's."""
    of_class_token = pos[:, :1]                          # (1, 1, d)
    of_patches = pos[:, 1:].mT.unflatten(2, old)         # (1, d, rows, columns)
    of_patches = F.interpolate(of_patches, size=new, mode='bicubic', align_corners=False,
                               antialias=True)
    return torch.cat((of_class_token, of_patches.flatten(2).mT), 1)


def is_shorter(old, new):
    """Whether texts are shorter than those with which the network was trained."""
    return getattr(new, 'block_size', 0) < getattr(old, 'block_size', 0)


def cut_positions(weights, wanted, old_length, new_length):
    """Keep the first new_length positions of each of the weights, {name: tensor}, that has
    old_length of them. wanted: the weights of the shorter network, such as embed.pos_emb.weight
    (new_length, d)."""
    for name, tensor in weights.items():
        if name not in wanted or tensor.dim() != wanted[name].dim():
            continue
        for dim, (old, new) in enumerate(zip(tensor.shape, wanted[name].shape)):
            if (old, new) == (old_length, new_length):
                tensor = tensor.narrow(dim, 0, new_length)
        weights[name] = tensor


def check_fits(weights, wanted, changed):
    """Raises Mistake if weights, {name: tensor}, have other names or shapes than those wanted.
    changed: {setting: (what the weights were trained with, what it is now)}."""
    wrong = weights.keys() ^ wanted.keys()
    for name in weights.keys() & wanted.keys():
        if weights[name].shape != wanted[name].shape:
            wrong.add(name)
    if not wrong:
        return
    if not changed:
        raise Mistake(f'the weights are not those of config.json of their run ({min(wrong)} '
                      'differs); get both again')
    differences = [f'{name}={show(new)}, but the weights have {name}={show(trained)}'
                   for name, (trained, new) in changed.items()]
    raise Mistake(f'{"; ".join(differences)} ({min(wrong)} differs); leave out what differs')


def check_numbers(model, weights):
    """Raises Mistake if one of the weights, {name: tensor}, is NaN or infinite, or has integers
    where the model computes with floats. Buffers may be infinite, as some masks are."""
    parameters = dict(model.named_parameters())
    wanted = model.state_dict()
    for name, tensor in weights.items():
        if tensor.dtype.is_floating_point != wanted[name].dtype.is_floating_point:
            raise Mistake(f'the weights are of no use: {name} is of type {tensor.dtype}; get '
                          'others')
        is_infinite = name in parameters and tensor.isinf().any()
        if is_infinite or tensor.isnan().any():
            raise Mistake(f'the weights are of no use: {name} has numbers that are not finite; get '
                          'others')


# ---- networks and datasets ----------------------------------------------------------------------

def fitted(c, network_settings, run, meta, folder):
    """A trained network for the dataset in `folder`, with these settings; of a resumed run
    exactly as that left it. c: the run's TrainConfig. Raises Mistake where network and dataset do
    not fit."""
    check_reads(run, meta, folder)
    new_head = 'headless' in run or c.new_head
    if c.init_from == 'resume':
        new_head = False
        network_settings = {}
    Config = network(run['model'])[1]
    classifies = meta['kind'] == 'images' and hasattr(Config, 'num_classes')
    if new_head and not classifies:
        raise Mistake(f'model={run["model"]} has no classifier to replace; leave new_head out, or '
                      'give --model of one')
    if new_head:
        network_settings = {'num_classes': len(meta['classes'])} | network_settings
    elif classifies:
        check_classes(run, meta['classes'], folder)
    return load_model(run, new_head, **network_settings)


def check_reads(run, meta, folder, name='the network'):
    """Raises Mistake if a trained network, called `name`, does not read the dataset in `folder`."""
    network_reads = {
        'kind': run['data']['kind'],
        'tokenizer': run['data'].get('tokenizer'),
        'channels': run['network'].get('channels', 3),
    }
    for what, expected in network_reads.items():
        present = meta.get(what, expected)
        if present != expected:
            raise Mistake(f'{name} reads {what} {str(expected)[:60]}, {folder} has '
                          f'{str(present)[:60]}; give another --dataset')


def check_labelled(run):
    """Raises Mistake, with what to do instead, if a network was trained without labels and names no
    classes."""
    if run['data'].get('unlabelled'):
        raise Mistake('the network names nothing, because it was trained without labels; score its '
                      'features with eval.py --knn=20, or give it a classifier with train.py '
                      '--init_from=PATH --new_head=true')


def check_classes(run, classes, where):
    """Raises Mistake, with the setting that replaces the head, if a classifier knows other classes
    than a dataset."""
    check_labelled(run)
    known = run['data']['classes']
    count = run['network'].get('num_classes')
    if count != len(classes) or (known is not None and known != classes):
        raise Mistake(f'the network knows {count} classes, {where} has {len(classes)} '
                      f'({", ".join(classes[:3])} ..), not the same; put a new head on it: '
                      'train.py --init_from=PATH --new_head=true')


# ---- programs that look at a trained network ----------------------------------------------------

def from_command_line(argv, Settings):
    """Command line -> (Settings, what open_run gives for its `ckpt`, settings of the network that
    were typed, such as another image_size)."""
    requested = collect(argv)
    asked = early('ckpt', requested, Settings.ckpt)
    path = own_or_shipped(asked)
    requested['ckpt'] = Requested(path)
    try:
        run = open_run(path)
    except Mistake:
        # a setting that no network has is a mistake of its own, and comes first
        usable, _ = configs()
        check(requested, Settings, *usable.values())
        raise
    values = check(requested, Settings, network(run['model'])[1])
    tell_if_shipped(asked, path)
    c = filled(Settings, values)
    of_network = {name: value for name, value in values.items() if name not in vars(c)}
    return c, run, of_network


def is_small(model):
    """Whether a network reads one text or picture faster in float32. With bfloat16 its weights are
    converted first, which pays from about 50 million on."""
    return size(model) < 50e6


def heading(path, run, model):
    """What a program says first of the network that it shows: its size, and which step of its
    run."""
    line = f'{path}: {run["model"]}, {size_in_words(model)}'
    progress = progress_of(run)
    if progress:
        line += f' ({progress})'
    if is_untrained(run):
        line += f'; {UNTRAINED}'
    return line


def progress_of(run):
    """Which step of its run the weights are of, such as 'step 1,200 of 2,000'. It is '' for weights
    of others, which do not say it."""
    if 'init_from' not in run['settings']:
        return ''
    return f'step {run["step"]:,} of {run["settings"]["max_iters"]:,}'


def is_untrained(run):
    """Whether the best weights of a run of train.py are those with which it began."""
    settings = run['settings']
    return 'init_from' in settings and run['step'] == 0 and settings['max_iters'] > 0
