"""What a command line asks train.py for: a new run, one that goes on, or one that is fine-tuned.

A setting that is typed on the command line wins; a resumed run refuses those that it must keep.
Where none is typed, it comes from:

    a new run       the config files that are named, or else config/train_aot_stdlib.py
    resumed         config.json of the run; a config file is read, and a line says what of it is
                    ignored
    fine-tuned      the config files that are named, or else config.json of the trained network
"""
import dataclasses
import os

from engine import HERE, optim, settings
from engine.checkpoint import run_directory
from engine.mistakes import Mistake
from engine.networks import config_class
from engine.settings import (Requested, check, check_first, collect, filled, names_of_fields,
                             of_fields, with_files)

DEFAULT_CONFIG = 'config/train_aot_stdlib.py'
NO_LIMIT = 1e30

RANGES = {  # {(least, most): settings of train.py}
    (1, NO_LIMIT): ('eval_interval', 'eval_iters', 'log_interval'),
    (1, 10 ** 6): ('batch_size', 'gradient_accumulation_steps'),
    (0, NO_LIMIT): ('warmup_iters', 'warmup_epochs', 'lr_decay_iters', 'eval_epochs', 'muon_lr',
                    'min_lr', 'weight_decay', 'grad_clip', 'probe_interval', 'checkpoint_minutes',
                    'sparsity', 'curriculum', 'patience'),
    (0, 10 ** 9): ('max_iters',),
    (0, 10 ** 6): ('epochs',),
    (0, 2 ** 32 - 1): ('seed',),
    (1e-30, NO_LIMIT): ('learning_rate',),
    (1e-9, 1): ('train_share',),
    (-1, NO_LIMIT): ('weight_decay_end',),
    (-1, 1024): ('workers',),
    (0, 1 - 1e-9): ('beta1', 'beta2', 'momentum', 'ema'),
}
# lengths that can be given in two ways: {setting in steps: the same in passes over the data}
LENGTHS = {'max_iters': 'epochs', 'warmup_iters': 'warmup_epochs', 'eval_interval': 'eval_epochs'}


@dataclasses.dataclass
class Request:
    """What a command line asks for."""
    config: object           # the run's TrainConfig
    augment: object          # the run's AugmentConfig
    network: dict            # {setting of the network: value}; of a new run those asked for
    checkpoint: object       # the Run that it starts from; None of a run from scratch
    default_config: str      # the config file that was taken because none was named, or ''


def read(files, typed, TrainConfig, AugmentConfig):
    """Config files, and {name: Requested} of what was typed -> Request. Raises Mistake for settings
    that do not exist or do not fit."""
    classes = (TrainConfig, AugmentConfig)
    requested = with_files(files, typed)
    init_from = check_first('init_from', requested, TrainConfig)
    default_config = ''
    checkpoint = None

    if init_from == 'scratch':
        if not files:
            default_config = DEFAULT_CONFIG
            requested = with_default_config(requested, *classes)
        model = check_first('model', requested, TrainConfig).lower()
        values = check(requested, *classes, config_class(model)) | {'model': model}
    else:
        from request import trained  # here: a new run reads no trained network
        if init_from == 'resume':
            if not files and 'out_dir' not in requested:  # the run that a bare train.py makes
                requested['out_dir'] = with_default_config(requested, *classes)['out_dir']
            values, checkpoint = trained.settings_to_resume(requested, *classes)
        else:
            values, checkpoint = trained.settings_to_fine_tune(requested, bool(files), *classes)

    network = network_settings(values['model'], values, *classes)
    config = filled(TrainConfig, values)
    steps_win_over_epochs(config, requested)
    check_config(config)
    augment = filled(AugmentConfig, values)
    # an old run may hold an eval_crop that has no effect; who types one expects an effect
    if 'eval_crop' in requested and requested['eval_crop'].is_typed:
        settings.check_meant(augment, {'eval_crop': ('crop',)}, augment.eval_view)
    return Request(config, augment, network, checkpoint, default_config)


def with_default_config(typed, *classes):
    """The settings of the default config, overridden by the typed ones, both {name: Requested}. The
    sizes in that file are for its own network, so another network takes only what the file says of
    training. Another network or dataset gets another run directory."""
    TrainConfig, _ = classes
    default = collect([str(HERE / DEFAULT_CONFIG)])
    model = check_first('model', default | typed, TrainConfig).lower()
    dataset = check_first('dataset', default | typed, TrainConfig)
    other_model = model != default['model'].value
    other_dataset = dataset != default['dataset'].value

    if other_model:
        default = of_fields(default, *classes)
    if other_model or other_dataset:
        default['out_dir'] = Requested(f'out/{model}_{dataset}', DEFAULT_CONFIG)
    return default | typed


def network_settings(model, values, *classes):
    """Those of the values, {name: value}, that are settings of the network. Raises Mistake if it
    has a setting with the name of one of training."""
    Config = config_class(model)
    twice = names_of_fields(Config) & names_of_fields(*classes)
    if twice:
        raise Mistake(f'model_{model}.py has a setting {min(twice)}, which is one of training '
                      'already; give it another name')
    return of_fields(values, Config)


# ---- checks --------------------------------------------------------------------------------------

def check_config(c):
    """Raises Mistake for a value of a TrainConfig that makes no sense."""
    settings.check_ranges(c, RANGES)
    settings.take_choices(c, optimizer=optim.NAMES,
                          schedule=('cosine', 'linear', 'constant', 'cosine_from_start'),
                          compile=('auto', 'true', 'false'))
    if c.min_lr > c.learning_rate and c.schedule != 'constant':
        raise Mistake(f'min_lr={c.min_lr} is above learning_rate={c.learning_rate}; set --min_lr '
                      'to at most that')
    starts_from_run = c.init_from not in ('scratch', 'resume')
    start_folder = os.path.realpath(run_directory(c.init_from))
    same_folder = start_folder == os.path.realpath(c.out_dir)
    if c.overwrite and starts_from_run and same_folder:
        raise Mistake(f'--overwrite=true would destroy the weights in {c.out_dir}, from which the '
                      'run starts; name another --out_dir')


def steps_win_over_epochs(c, requested):
    """Who types --max_iters means steps, also where a config file gives epochs."""
    typed = [name for name, setting in requested.items() if setting.is_typed]
    for in_steps, in_epochs in LENGTHS.items():
        if in_steps in typed and in_epochs not in typed:
            setattr(c, in_epochs, 0.0)
