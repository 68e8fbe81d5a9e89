"""The settings and the network of a run that begins with trained weights: one that goes on, or one
that is fine-tuned. Also what the command line of a program says that looks at a trained network."""
import dataclasses

import torch

from engine.checkpoint import run_directory, weights_of
from engine.distributed import print_main
from engine.mistakes import Mistake
from engine.networks import config_class, config_from, network_class
from engine.settings import (Requested, check, check_first, collect, filled, names_of_fields,
                             of_fields, show)
from tasks import task_of
from tasks.dataset import check_classes, check_reads
from weights.runs import open_last, open_run, own_or_shipped, read_config
from weights.surgery import load_model

# what a resumed run must keep, besides the settings of its network
FIXED = {'model', 'dataset', 'train_share', 'sparsity', 'seed', 'optimizer', 'new_head'}
# what a fine-tuned run does not take over from the run before it
NOT_INHERITED = {'out_dir', 'overwrite', 'eval_only', 'new_head', 'new_norm', 'compile',
                 'target_loss', 'wandb_run_name', 'device', 'workers'}


def settings_to_resume(requested, TrainConfig, AugmentConfig):
    """(settings, Run) of a run that goes on: its own settings, overridden by the typed ones.
    requested: {name: Requested}. Raises Mistake for a typed one that a run must keep."""
    out_dir = check_first('out_dir', requested, TrainConfig)
    run = open_last(out_dir)
    Config = config_class(run.model)
    old = settings_of(run, TrainConfig, AugmentConfig) | run.network

    typed = {}    # what changes the run
    ignored = []  # what a config file says otherwise than the run
    for name, value in check(requested, TrainConfig, AugmentConfig, Config).items():
        # the size of a picture is a pair in config.json; who types 32 means 32 x 32
        if old.get(name) in (value, (value, value)):
            continue
        if requested[name].is_typed:
            typed[name] = value
        else:
            ignored.append(name)
    for name in sorted(typed.keys() & (FIXED | names_of_fields(Config))):
        raise Mistake(f'--{name}={show(typed[name])}: the run in {out_dir} has '
                      f'{name}={show(old.get(name))}; leave it out, or start anew with another '
                      '--out_dir')

    of_this_start = {'init_from': 'resume', 'out_dir': out_dir, 'overwrite': False,
                     'eval_only': typed.get('eval_only', False)}
    ignored = sorted(set(ignored) - of_this_start.keys())
    if ignored:
        print_main(f"resuming with the settings of the run, not the config file's "
                   f"{', '.join(ignored)}; type what you want to change")
    return old | typed | of_this_start, run


# ---- fine-tuning ---------------------------------------------------------------------------------

def settings_to_fine_tune(requested, names_a_file, TrainConfig, AugmentConfig):
    """(settings, Run) of a new run from trained weights. Typed settings win over those of config
    files, or if no file is named, over those with which the weights were trained. requested: {name:
    Requested}."""
    path = own_or_shipped(check_first('init_from', requested, TrainConfig))
    wanted_model = ''  # the network that the weights are of
    if 'model' in requested:
        wanted_model = check_first('model', requested, TrainConfig).lower()
    run = open_run(path, wanted_model)
    values = check(requested, TrainConfig, AugmentConfig, config_class(run.model))

    typed = {name: value for name, value in values.items() if requested[name].is_typed}
    if not names_a_file:
        values = inherited_settings(run, path, TrainConfig, AugmentConfig) | typed
    # weights are missing where the trained network begins a larger one, such as DINO with it inside
    if run.missing:
        # the sizes in a config file are those of a new network, and here the weights decide
        for name in run.network.keys() - typed.keys():
            values.pop(name, None)
        run = with_fresh_weights(run, values, values.get('seed', TrainConfig.seed))
    if 'dataset' not in values:
        raise Mistake(f'--init_from={path} does not say what to train on: give --dataset, such as '
                      '--dataset=cifar10')
    return values | {'model': run.model, 'init_from': path}, run


def inherited_settings(run, path, *classes):
    """The settings of training that a new run takes over from the one at `path`, from which it
    starts as `run`. Left out are those of the old run's task that have no effect in the new one."""
    inherited = settings_of(run, *classes)
    of_old_task = task_settings(read_config(run_directory(path)))
    of_new_task = task_settings(run)
    for name in NOT_INHERITED | (of_old_task - of_new_task):
        inherited.pop(name, None)
    return inherited


def task_settings(run):
    """The names of the settings that the task of a run has, of those that not all tasks have."""
    return set(task_of(config_from(config_class(run.model), run.network)).settings)


def with_fresh_weights(run, values, seed):
    """A run with fresh weights, drawn with this seed, for those that `run.missing` names. values:
    {name: value} of settings; those of the network decide the sizes."""
    Network = network_class(run.model)
    Config = config_class(run.model)
    settings = run.network | of_fields(values, Config)
    torch.manual_seed(seed)
    weights = dict(run.weights)
    for name, tensor in weights_of(Network(config_from(Config, settings))).items():
        if name.startswith(run.missing):
            weights[name] = tensor
    return dataclasses.replace(run, weights=weights)


def settings_of(run, *classes):
    """The settings of a run, with the types of their fields."""
    requested = {name: Requested(value, 'config.json') for name, value in run.settings.items()}
    return {'model': run.model} | check(requested, *classes)


# ---- the network ---------------------------------------------------------------------------------

def trained_network(request, meta, folder):
    """The network of a Request that begins with trained weights, for the dataset in `folder` with
    this meta.json. A run that goes on gets exactly the network that it saved. Raises Mistake where
    network and dataset do not fit."""
    run = request.checkpoint
    changes = request.network
    # the encoder of an autoencoder is headless: it has no classifier yet
    new_head = request.config.new_head or run.headless != ''
    check_reads(run, meta, folder)
    if request.config.init_from == 'resume':
        new_head = False
        changes = {}
        checksum = run.data.get('sha256')  # None of a run by an earlier version
        if checksum and checksum != meta.get('sha256'):
            raise Mistake(f'{folder} has changed since the run began; prepare it again as it was, '
                          f'or begin a new run: --init_from={request.config.out_dir} --out_dir=..')
    classifies = meta['kind'] == 'images' and hasattr(config_class(run.model), 'num_classes')
    if new_head and not classifies:
        raise Mistake(f'model={run.model} has no classifier to replace; leave new_head out, or '
                      'give --model of one')
    if new_head:
        changes = {'num_classes': len(meta['classes'])} | changes
    elif classifies:
        check_classes(run, meta['classes'], folder)
    model = load_model(run, new_head, **changes)
    if new_head and request.config.new_norm:
        model.read.norm.reset_parameters()
    return model


# ---- programs that look at a trained network -----------------------------------------------------

def from_command_line(argv, Settings):
    """Command line -> (Settings, the Run of its `ckpt`, settings of the network that were typed,
    such as another image_size)."""
    requested = collect(argv)
    path = own_or_shipped(check_first('ckpt', requested, Settings))
    requested['ckpt'] = Requested(path)
    run = open_run(path)
    values = check(requested, Settings, config_class(run.model))
    c = filled(Settings, values)
    of_network = {name: value for name, value in values.items() if name not in vars(c)}
    return c, run, of_network
