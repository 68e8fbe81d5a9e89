"""How a training run starts: from scratch, resumed, or fine-tuned from a trained network.

Settings typed on the command line always win. What stands behind them depends on the start:

    from scratch    the config files that are named, or else the recipe of the network and dataset
    resumed         the settings of the run; a config file that is named again is not read
    fine-tuned      the config files that are named, or else the settings of the network's own run
"""
import dataclasses

from engine import networks
from engine.fast import speed_up
from engine.settings import HERE, TYPED, Mistake, check, collect, filled

IN_EPOCHS = {'epochs': 'max_iters', 'warmup_epochs': 'warmup_iters', 'eval_epochs': 'eval_interval'}


def read(argv, TrainConfig, AugmentConfig):
    """What a command line asks for: (its TrainConfig, its AugmentConfig, the network's settings that were given, the
    trained network to start from or None, the config file that was taken because none was named or ''). Of a resumed
    run the trained network has all of last.pt. Raises Mistake for settings that do not exist or do not fit."""
    given, classes, file = collect(argv), (TrainConfig, AugmentConfig), ''
    for k in ('init_from', 'out_dir', 'model', 'data_dir'):
        given.setdefault(k, (getattr(TrainConfig, k), ''))
    init_from = str(given['init_from'][0])
    if init_from == 'scratch':
        if not names_a_file(given):
            file, given = with_recipe(given, *classes)
        settings, run = check(given, *classes, networks.network(str(given['model'][0]))[1]), None
    else:
        from engine import trained  # here and below: a new run reads no trained network
        how = trained.resumed if init_from == 'resume' else trained.fine_tuned
        settings, run = how(given, names_a_file(given), *classes)
    ours = {f.name for cls in classes for f in dataclasses.fields(cls)}
    if twice := ours & {f.name for f in dataclasses.fields(networks.network(settings['model'])[1])}:
        raise Mistake(f'model_{settings["model"]}.py has a setting {min(twice)}, which is one of training already; '
                      'give it another name')
    config = filled(TrainConfig, settings)
    typed = {k for k, (_, where) in given.items() if where == TYPED}
    for epochs, iters in IN_EPOCHS.items():
        if iters in typed and epochs not in typed:  # a length in steps takes the place of one in epochs
            setattr(config, epochs, 0.0)
    of_network = {k: v for k, v in settings.items() if k not in ours}
    return config, filled(AugmentConfig, settings), of_network, run, file


def build(c, given, run, meta, folder):
    """The network that `read` tells of, for the dataset in `folder` with this meta.json. Raises Mistake where they do
    not fit."""
    folder = folder or 'the dataset'
    if run:
        from engine.trained import fitted
        return fitted(c, given, run, meta, folder)
    if c.new_head:
        raise Mistake('new_head=true needs a network to put it on: --init_from=PATH')
    return speed_up(networks.network(c.model)[0](networks.config_for(c.model, given, meta, folder)))


# ---- helpers --------------------------------------------------------------------------------------------------------

def names_a_file(given):
    return any(where not in ('', TYPED) for _, where in given.values())


def with_recipe(given, *classes):
    """(the config file of a network where none is named, the settings with those of the file): train_NAME_DATASET.py or
    pretrain_NAME_DATASET.py, for the small dataset of its task, or else the file of another network with that task.
    From the file of another network only settings of training are taken: the network keeps its own sizes."""
    name = str(given['model'][0])
    Config = networks.network(name)[1]
    settings = check(given, *classes, Config)
    dataset, decided = settings.get('dataset', ''), {}
    meta = networks.meta_of(f'{settings["data_dir"]}/{dataset}')
    kind = meta.get('kind', networks.NO_DOWNLOAD.get(dataset, ''))
    if hasattr(Config, networks.DATA.get(kind, '')):  # else it is refused later
        decided = networks.sizes({'kind': kind, 'vocab_size': 256, 'classes': [''], 'splits': {'': {}}})
    later = networks.SIDES if meta else ()  # once there is a dataset, `build` compares these with its pictures
    settings = decided | {k: v for k, v in settings.items() if k not in later}
    config = networks.config_from(Config, {k: v for k, v in settings.items() if hasattr(Config, k)})
    file = f'config/{networks.TASKS[config.task][1]}.py'
    names = [f'config/{k}_{name}_{file.split("_")[-1]}' for k in ('train', 'pretrain')] + [file] * (f'_{name}_' in file)
    own = next((path for path in names if (HERE / path).exists()), None)
    taken = collect([str(HERE / (own or file))])
    if not own:
        of_training = {f.name for cls in classes for f in dataclasses.fields(cls)} - {'model', 'out_dir'}
        taken = {k: v for k, v in taken.items() if k in of_training}
    return own or file, given | taken | {k: v for k, v in given.items() if v[1] == TYPED}
