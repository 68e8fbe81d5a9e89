"""How a training run starts: from scratch, resumed, fine-tuned from a checkpoint of ours, or from
the authors' weights.

Settings typed on the command line always win. What stands behind them depends on the start:

    from scratch    the config files that are named, or else the recipe of the network and dataset
    resumed         the settings of the run; a config file that is named again is not read
    fine-tuned      the config files that are named, or else the settings of the checkpoint's own run
    official        the config files that are named, or else config/base/transfer.py
"""
import dataclasses
from dataclasses import dataclass
from pathlib import Path

from engine import checkpoints
from engine.rundir import load_checkpoint
from engine.settings import HERE, TYPED, Mistake, check, collect, refusals, refuse_alone, show

IN_EPOCHS = {'epochs': 'max_iters', 'warmup_epochs': 'warmup_iters', 'eval_epochs': 'eval_interval'}
FIXED = 'model', 'dataset', 'train_share', 'sparsity', 'seed', 'optimizer'  # what a resumed run must keep


@dataclass
class Start:
    config: object            # TrainConfig
    augment: object           # AugmentConfig
    network: dict             # the network's settings that were given
    checkpoint: dict | None   # what to start from
    resumed: bool
    recipe: str = ''          # the config file that was taken because none was named


def read(argv, TrainConfig, AugmentConfig):
    """The Start that a command line asks for. Raises Mistake for settings that do not exist or
    do not fit."""
    given = collect(argv)
    refuse_alone(given, 'init_from', 'out_dir', 'model')
    for k in ('init_from', 'out_dir', 'model', 'data_dir'):
        given.setdefault(k, (getattr(TrainConfig, k), ''))
    init_from = str(given['init_from'][0])
    how = resumed if init_from in ('resume', 'resume_best') else from_scratch if init_from == 'scratch' else \
        from_official if init_from.startswith('official:') else fine_tuned
    file = ''
    if how is from_scratch and not names_a_file(given):
        file, given = with_recipe(given, TrainConfig, AugmentConfig)
    settings, checkpoint = how(argv, given, TrainConfig, AugmentConfig)
    if settings.get('out_dir') == '':
        raise Mistake('--out_dir is empty; name a folder, such as --out_dir=out/mine')
    ours, its = ({f.name for f in dataclasses.fields(cls)} for cls in (TrainConfig, AugmentConfig))
    Config = checkpoints.network(settings['model'])[1]
    for f in dataclasses.fields(Config):
        if f.name in ours | its:
            raise Mistake(f'model_{settings["model"]}.py has a setting {f.name}, which is one of training already; '
                          'give it another name')
    return Start(TrainConfig(**{k: v for k, v in settings.items() if k in ours}),
                 AugmentConfig(**{k: v for k, v in settings.items() if k in its}),
                 {k: v for k, v in settings.items() if k not in ours | its}, checkpoint, how is resumed, file)


def from_scratch(argv, given, *classes):
    Config = checkpoints.network(str(given['model'][0]))[1]
    return typed_iterations(check(given, *classes, Config), given), None


def resumed(argv, given, *classes):
    out_dir = str(given['out_dir'][0])
    last = given['init_from'][0] == 'resume'
    checkpoint = load_checkpoint(Path(out_dir) / ('last.pt' if last else 'best.pt'))
    Config = checkpoints.network(checkpoint['config']['model'])[1]
    old, checked = settings_of(checkpoint, *classes, Config), check(given, *classes, Config)
    typed = {k: v for k, v in checked.items() if given[k][1] == TYPED}
    if typed.get('new_head'):
        raise Mistake('a resumed run keeps its head; for a new one start from it: --init_from=PATH --new_head=true')
    old = typed_iterations(old, given)
    free = {f.name for cls in classes for f in dataclasses.fields(cls)} - set(FIXED)
    here = {'init_from': checked['init_from'], 'out_dir': out_dir, 'overwrite': False,
            'eval_only': typed.get('eval_only', False)}
    other = {k for k, v in checked.items() if v != old.get(k) and (v, v) != old.get(k)}  # a size of 32 is 32 x 32
    for k in sorted(other & typed.keys() & old.keys() - free):
        raise Mistake(f'--{k}={show(typed[k])}: the run in {out_dir} has {k}={show(old[k])}; leave it out, or start '
                      'anew with another --out_dir')
    ignored = [k for k in checked if k in other and k not in typed and k not in here and given[k][1]]
    if ignored:
        print(f"resuming with the settings of the run, not the config file's {', '.join(ignored)}; type what you want "
              'to change')
    return old | typed | here, checkpoint


def fine_tuned(argv, given, *classes):
    path, asked = str(given['init_from'][0]), given['model']
    checkpoint = checkpoints.load_weights(path, str(asked[0]) if asked[1] else '')
    name = checkpoint['config']['model']
    checked = check(given, *classes, checkpoints.network(name)[1])
    if not names_a_file(given):  # then the settings of its training, and of these what does not name the run
        free = {f.name for cls in classes for f in dataclasses.fields(cls)}
        free -= {'out_dir', 'overwrite', 'eval_only', 'new_head', 'compile', 'target_loss', 'wandb_run_name',
                 'device', 'workers', 'fsdp'}
        free -= {name for cls in classes for name in getattr(cls, 'of_views', ())}
        old = {k: v for k, v in settings_of(checkpoint, *classes).items() if k in free}
        checked = old | {k: v for k, v in checked.items() if given[k][1]}
    return typed_iterations(checked, given) | {'model': name, 'init_from': path}, checkpoint


def from_official(argv, given, *classes):
    if not names_a_file(given):
        if 'dataset' not in given:
            raise Mistake(f'--init_from={given["init_from"][0]} does not say what to train on: give --dataset, '
                          'such as --dataset=cifar10')
        given = collect(argv, str(HERE / 'config' / 'base' / 'transfer.py'))
    name = str(given['model'][0])
    checked = typed_iterations(check(given, *classes, checkpoints.network(name)[1]), given)
    ours = {f.name for cls in classes for f in dataclasses.fields(cls)}
    network = {k: v for k, v in checked.items() if k not in ours}
    return checked, checkpoints.load_weights(str(given['init_from'][0]), name, **network)


# ---- helpers --------------------------------------------------------------------------------------------------------

def settings_of(checkpoint, *classes):
    """The settings of a checkpoint's run; those of the classes have the types of their fields."""
    fields = {f.name for cls in classes for f in dataclasses.fields(cls)} - checkpoints.SIDES
    known = {k: (v, 'the checkpoint') for k, v in checkpoint['config'].items() if k in fields}
    return checkpoint['config'] | check(known, *classes)


def names_a_file(given):
    return any(where not in ('', TYPED) for _, where in given.values())


def typed_iterations(settings, given):
    """Settings without the epochs of a file or checkpoint where the command line gives the same
    length in steps."""
    typed = {k for k, (_, where) in given.items() if where == TYPED}
    return {k: v for k, v in settings.items() if not (k in IN_EPOCHS and IN_EPOCHS[k] in typed and k not in typed)}


def with_recipe(given, *classes):
    """(the config file of a network where none is named, the settings with those of the file). From the
    file of another network only settings of training are taken: the network keeps its own sizes."""
    name = str(given['model'][0])
    file, own = recipe(name, check(given, *classes, checkpoints.network(name)[1]))
    of_training = {f.name for cls in classes for f in dataclasses.fields(cls)} - {'model', 'out_dir'}
    its = {k: v for k, v in collect([], str(HERE / file)).items() if own or k in of_training}
    return file, given | its | {k: v for k, v in given.items() if v[1] == TYPED}


def recipe(name, settings):
    """The config file of a network where none is named, and whether it is its own:
    train_NAME_DATASET.py or pretrain_NAME_DATASET.py, for the small dataset of its task, or else
    the file of another network with that task."""
    Config = checkpoints.network(name)[1]
    fields = {f.name for f in dataclasses.fields(Config)}
    kind = checkpoints.kind_of_dataset(settings.get('dataset', ''), settings['data_dir'])
    decided = {}
    if kind in checkpoints.DATA and checkpoints.DATA[kind][0] in fields:  # else it is refused later
        decided = checkpoints.sizes({'kind': kind, 'vocab_size': 256, 'classes': [''], 'splits': {'': {}}})
    network = {k: v for k, v in (decided | settings).items() if k in fields}
    with refusals():
        file = checkpoints.TASKS[Config(**network).task][1]
    for own in (f'train_{name}_{file.split("_")[-1]}', f'pretrain_{name}_{file.split("_")[-1]}', file):
        if (HERE / 'config' / f'{own}.py').exists():
            return f'config/{own}.py', f'_{name}_' in own
    raise Mistake(f'no recipe config/{file}.py; name a config file')
