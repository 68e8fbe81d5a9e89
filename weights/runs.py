"""Trained networks: run directories that are opened, read and written."""
import dataclasses
import difflib
import json
import os
import sys
import zipfile
from pathlib import Path

import torch
from safetensors.torch import load

from engine import HERE
from engine.checkpoint import (check_new, digest, locked, on_cpu, remove_run, run_directory,
                               weights_of, write_new_weights)
from engine.distributed import print_main
from engine.fields import FileFields, check_types, data_fields
from engine.mistakes import Mistake, reading, regular
from engine.names import printable
from engine.networks import config_class, config_from, network_class, num_params, size_in_words
from engine.settings import filled, of_fields
from engine.writing import rename, write_new

# what the settings of a run say of a group
SETTINGS_OF_GROUPS = ('lr', 'base_lr', 'weight_decay', 'decays', 'betas', 'momentum')


@dataclasses.dataclass
class Run:
    """A trained network: what its run directory holds of it."""
    # config.json
    model: str      # x for a network of model_x.py
    settings: dict  # {name: value} of its training
    network: dict   # {name: value} of its Config
    data: dict      # of its dataset: its kind, and the tokenizer or the classes
    about: str = ''  # what its weights are, if no run of train.py wrote them, see write_run
    # best.safetensors, or another file of weights
    weights: dict | None = None  # {name: tensor}
    step: int = 0                # after so many steps of training it had these weights
    # what it lacks, if it was made of a run of another network
    unlabelled: bool = False     # its classes mean nothing: it was trained without labels
    headless: str = ''           # the model of the autoencoder of which this is the encoder, or ''
    missing: tuple = ()          # weights that are still to be drawn: how their names begin
    # for a run that goes on
    last: dict | None = None     # what last.pt holds, see RunDirectory.save_last


def open_run(path, wanted_model=''):
    """The Run of a trained network. path: its run directory, for its best.safetensors, or another
    file of weights in it. wanted_model: the network that is to start from these weights. '' is the
    run's own. Another one is the classifier of a masked autoencoder, or a network such as dino,
    inside which this one is trained."""
    folder = run_directory(path)
    run = read_config(folder)
    weights_file = path
    if folder == Path(path):
        weights_file = folder / 'best.safetensors'
    run.weights, run.step = read_weights(weights_file)

    if wanted_model and hasattr(network_class(wanted_model), 'begun_from'):
        return as_beginning(run, wanted_model)
    Network = network_class(run.model)
    if hasattr(Network, 'opened'):
        run = Network.opened(run)  # the run of a network inside this one, such as a teacher
    if wanted_model in ('', run.model):
        return run
    if wanted_model == classifier_of(run.model):
        return as_classifier(run)
    raise Mistake(f'model={wanted_model} cannot start from {path}, which holds model={run.model}; '
                  f'give --model={classifier_of(run.model) or run.model}')


def own_or_shipped(path):
    """A run out/NAME of one's own. Where that is not there yet, the run trained/NAME that came with
    the project, if there is one. A line on standard error says so."""
    own_run = Path(path)
    if own_run.parts[:1] != ('out',) or own_run.exists():
        return path
    shipped = HERE / 'trained' / own_run.relative_to('out')
    if not shipped.exists():
        return path
    shipped = os.path.relpath(shipped)
    print_main(f'there is no {path} yet: this is {shipped}, which came with nanoCRATE',
               file=sys.stderr)
    return shipped


def write_run(out_dir, model, settings, data, overwrite=False, step=0, about=''):
    """A run directory of a network that others have trained, or whose weights somebody has made of
    others, without last.pt. settings: those of its training, for fine-tuning; data: what
    config.json says of its dataset. step: after which its weights are; about: what they are, such
    as 'average of 5 checkpoints', which every command then says. Raises Mistake if there is a run
    already, unless overwrite is true, or if another process writes there."""
    out = Path(out_dir)
    name = type(model).__module__.removeprefix('model_')
    config = {'model': name, 'settings': settings, 'network': dataclasses.asdict(model.config),
              'data': data, 'about': about}
    with locked(out):
        if not overwrite:
            check_new(out)
        # on a full disk these fail, while the files of an old run are still there
        new_config = write_new(out / 'config.json', lambda f: json.dump(config, f, indent=1))
        try:
            weights = on_cpu(weights_of(model))
            new_weights = write_new_weights(out / 'best.safetensors', weights, step)
        except Mistake:
            os.unlink(new_config)
            raise
        remove_run(out)
        rename(new_config, out / 'config.json')
        rename(new_weights, out / 'best.safetensors')


# ---- the files of a run --------------------------------------------------------------------------

def read_config(out_dir):
    """The Run of a run directory, without weights. Raises Mistake, which names the file, if
    config.json is missing or damaged, or if somebody has changed it so that it makes no sense."""
    path = Path(out_dir) / 'config.json'
    if not path.exists():
        raise no_run(Path(out_dir))
    advice = f'train with --out_dir={out_dir}, or name another'
    with reading(f'{path} is damaged', advice):
        parts = json.loads(regular(path).read_text(encoding='utf-8'))
        run = filled(Run, parts)
    try:
        check_types(vars(run), Run)
        check_types(run.settings, FileFields)
        run.data = data_fields(path, run.data)
        run.about = printable(run.about)
        Config = config_class(run.model)
        new_names = getattr(Config, 'old_names', {})  # {old name: new name}, of its settings
        network = {}
        for name, value in run.network.items():
            if isinstance(value, list):  # JSON knows no tuples
                value = tuple(value)
            network[new_names.get(name, name)] = value
        run.network = network
        check_types(run.network, Config)
        config_from(Config, run.network)  # raises Mistake for what makes no sense
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


def read_weights(path):
    """({name: tensor}, step) of a .safetensors file in a run directory. One that another program
    wrote has no checksum to compare, and perhaps no step, which is 0 then. Raises Mistake if the
    file is missing or damaged."""
    advice = 'name another run, or a .safetensors file in one'
    with reading(f'{path} is missing or damaged', advice):
        content = regular(path).read_bytes()  # at once: a run may be writing the next one
        weights = load(content)
        header_length = int.from_bytes(content[:8], 'little')
        about = json.loads(content[8:8 + header_length]).get('__metadata__', {})
        step = int(about.get('step', 0))
    if 'sha256' in about and about['sha256'] != digest(weights, step):
        raise Mistake(f'{path} is damaged: its tensors are not those of its checksum; {advice}')
    return weights, step


def open_last(out_dir):
    """The Run of a run directory as the run left it, so that it can go on."""
    run = read_config(out_dir)
    last = read_last(out_dir)
    return dataclasses.replace(run, weights=last['weights'], step=last['step'], last=last)


def read_last(out_dir):
    """The dict that save_last wrote. Raises Mistake if it is missing or damaged."""
    path = Path(out_dir) / 'last.pt'
    if not path.exists() and not path.with_name('best.safetensors').exists():
        raise Mistake(f'{out_dir} has no checkpoint yet; type the first command of the run again')
    advice = f'start from the best weights with --init_from={out_dir} and another --out_dir'
    with reading(f'{path} is missing or damaged', advice):
        regular(path)
        with zipfile.ZipFile(path) as z:
            if z.testzip():  # torch.load does not compare checksums
                raise ValueError('a checksum differs')
        return torch.load(path, map_location='cpu', weights_only=True)


def restore(last, average, optimizers, scaler):
    """Put the states that last.pt holds into average, optimizers and scaler. The run may have had
    another number of processes. Rates and decay stay those of the settings."""
    if last['scaler']:  # else it was not in float16
        scaler.load_state_dict(last['scaler'])
    if average is not None and last['average']:
        # shared weights are there once
        average.module.load_state_dict(last['average'], strict=False)
        average.n_averaged.fill_(last['step'])
    with reading('last.pt is of another optimizer than config.json says', 'get both again'):
        load_states(optimizers, last['optimizers'])


def load_states(optimizers, states):
    """Let optimizers go on from their state dicts, but with the settings of now, which may have
    been typed anew. What else an optimizer keeps in its groups, such as a count of its steps, is
    that of the state dict."""
    for optimizer, state in zip(optimizers, states, strict=True):
        for saved, now in zip(state['param_groups'], optimizer.param_groups, strict=True):
            saved.update({name: now[name] for name in SETTINGS_OF_GROUPS if name in now})
        optimizer.load_state_dict(state)


# ---- a run as that of another network ------------------------------------------------------------

def classifier_of(model_name):
    """The network that classifies with the encoder of a masked autoencoder; '' of any other
    network."""
    name, _ = getattr(network_class(model_name), 'classifier', ('', {}))
    return name


def as_classifier(run):
    """The run of a masked autoencoder as one of the classifier that can start from its encoder:
    patch map, class token, positions (trained from now on), layers and final LayerNorm. It is
    headless: `trained_network` in request/trained.py adds the head."""
    # the autoencoder names the classifier, and the settings that this one must have
    model_name, required = network_class(run.model).classifier
    Classifier = network_class(model_name)
    Config = config_class(model_name)
    network_settings = of_fields(run.network, Config) | required
    with torch.device('meta'):  # takes no memory
        wanted = Classifier(Config(**network_settings)).state_dict()

    weights = {}
    for name, value in run.weights.items():
        name_there = name
        if name.startswith('norm.'):
            name_there = f'read.{name}'  # the final LayerNorm of a classifier is part of its head
        if name_there not in wanted:
            continue
        if value.dim() == 4 and wanted[name_there].dim() == 2:
            # the patch map is a convolution there and a linear map here
            value = value.permute(0, 2, 3, 1).flatten(1)
        weights[name_there] = value
    return dataclasses.replace(run, model=model_name, network=network_settings, weights=weights,
                               headless=run.model)


def as_beginning(run, wanted_model):
    """A run as the beginning of a new run of wanted_model, a network that trains another one inside
    it. A run of wanted_model has all weights. Those of another run become the network inside;
    `missing` then tells which weights are still to be drawn. Raises Mistake if the run does not fit
    in there."""
    if classifier_of(run.model):
        # inside another network it needs no classifier
        run = dataclasses.replace(as_classifier(run), headless='')
    try:
        return dataclasses.replace(network_class(wanted_model).begun_from(run), model=wanted_model)
    except ValueError as e:
        if type(e).__name__ != 'ConfigError':
            raise
        raise Mistake(e) from None


# ---- what is said of a run -----------------------------------------------------------------------

def heading(path, run, model):
    """What a program says first of the network that it shows: its size, and which step of its
    run."""
    line = f'{path}: {run.model}, {size_in_words(model)}'
    progress = progress_of(run)
    if progress:
        line += f' ({progress})'
    return line


def progress_of(run):
    """Which step of its run the weights are of, such as 'step 1,200 of 2,000', or what else they
    are. If no validation after the first one was better, the weights are UNTRAINED. It is '' for
    weights of others, which do not say it."""
    if run.about:
        return run.about
    if 'init_from' not in run.settings:
        return ''
    max_iters = run.settings.get('max_iters', 0)
    line = f'step {run.step:,} of {max_iters:,}'
    if run.step == 0 and max_iters > 0:
        line += ', UNTRAINED: as it began'
    return line


def is_small(model):
    """Whether a network reads one text or picture faster in float32. With bfloat16 its weights are
    converted first, which pays from about 50 million on."""
    return num_params(model) < 50e6


def title_of(path, run, layer=0, n_layer=0):
    """What each figure of a network says of it, such as 'out/crate_shapes, step 1,200 of 2,000,
    layer 5 of 6'. path: of the run or of its weights; run: its Run; layer: from 1, or 0 if the
    figure shows no single layer."""
    # longer paths would not fit above a figure
    parts = ['/'.join(run_directory(path).parts[-2:])]
    progress = progress_of(run)
    if progress:
        parts.append(progress)
    if layer:
        parts.append(f'layer {layer} of {n_layer}')
    return ', '.join(parts)
