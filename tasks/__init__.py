"""What a run learns. The file task_x.py here is the task x: a network's config names it, as `task`,
and no list does. The file sets one name, Task, a class with all that is particular to the task:

    kind                what it reads: 'text', 'images', 'arrays' or 'functions'
    settings            of the settings that not every task has, the names of those that it has
    unit                what is counted: tokens, pictures or prompts
    tokens_per_row      how many of them a row of a batch has
    extra_tokens        how many tokens the network knows beside those of the dataset
    shares_passes       whether all processes must share each forward pass
    held_out            the name of the split that a run validates on
    open_split          one split of the dataset: 'train', or the one that is held out
    begin               what the task does once, when it is made
    train_options,      keywords with which the splits are asked for batches, in training and in
    valid_options       validation, such as how many random numbers a picture needs
    valid_rows          rows of a validation batch
    take                a batch as a split gives it -> (x, y) for the network
    count               how many tokens, pictures or prompts such a batch has
    metrics             what validation measures in one batch
    finish              what validation prints and logs, from the metrics of all batches
    error               the number that best.safetensors is chosen by, smaller is better;
                        None: losses of two steps cannot be compared, keep the latest weights
    warning             a line about a validation, or ''
    note                a line before the first step, or ''
    sample              what the network makes of a few examples, in a line; or ''
    score, look         commands that show a trained network

BaseTask below has what most tasks have in common; docs/extend.md shows how to write one. train.py
asks an object of the class for training_batches and validation_batches, eval.py for all_batches.
What tasks read is in text.py, pictures.py, arrays.py and regression.py.
"""
import importlib
import math
import pkgutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from engine import HERE
from engine.mistakes import Mistake
from engine.settings import check_meant, check_ranges, quoted, take_choices

FUNCTIONS = ('linear', 'sparse_linear')  # datasets that are drawn, not read from a folder
MADE_HERE = ('stdlib', 'shapes', 'shapes_many')  # datasets that need no download

# settings of train.py that mean something for some tasks only
OF_SOME_TASKS = ('train_share', 'probe_interval', 'sparsity', 'curriculum', 'ema', 'telemetry',
                 'loss_in_chunks')


@dataclass
class AugmentConfig:
    """How pictures are shown in training and in evaluation; see augment.py and views.py."""
    crop_scale: float = 0.08     # least share of the area that training's crops keep; 1: off
    flip: bool = True            # mirror half of the training pictures
    randaugment_n: int = 0       # RandAugment: operations per picture; 0: off
    randaugment_m: float = 14.0  # RandAugment: their magnitude
    randaugment_scale: str = 'torchvision'  # its scale: torchvision (0 to 30) or timm (0 to 10)
    local_crops: int = 8         # DINO: small crops beside the two large ones
    local_size: int = 96         # DINO: their pixels
    local_scale: float = 0.05    # DINO: least share that they keep; crop_scale is their largest
    jitter: float = 1.0          # DINO: factor of colour jitter, of grey and of solarization
    hue: float = 0.1             # DINO: largest turn of the hue, in whole turns; 0.5 gives any hue
    grey: float = 0.2            # DINO: how often pictures are grey, times jitter
    blur: float = 2.0            # DINO: largest standard deviation of the blur, in pixels; 0: off
    eval_view: str = 'crop'      # evaluation sees the centre (crop) or all, resized (squash)
    eval_crop: float = 0.875     # share of the short side that the centre crop keeps (224 of 256)

    def __post_init__(self):
        check_ranges(self, {
            (1e-9, 1): ('crop_scale', 'local_scale'),
            (0.01, 1): ('eval_crop',),  # a picture is drawn 1 / eval_crop times as large
            (0, 1): ('jitter', 'grey'),
            (0, 0.5): ('hue',),
            (0, 10): ('randaugment_n',),
            (0, 20): ('blur',),
            (0, 30): ('randaugment_m',),
            (0, 64): ('local_crops',),
            (1, 4096): ('local_size',),
        })
        take_choices(self, randaugment_scale=('torchvision', 'timm'), eval_view=('crop', 'squash'))

    @property
    def view(self):
        """What evaluation sees, as eval_pictures takes it."""
        return None if self.eval_view == 'squash' else self.eval_crop


# ---- a task -------------------------------------------------------------------------------------

class BaseTask:
    """What most tasks have in common. c: the run's TrainConfig; augment: its AugmentConfig; config:
    that of the network; device: an engine.device.Device; train, valid: two splits of the dataset.
    eval.py trains nothing, so there train is None."""
    kind = ''
    settings = ('ema', 'telemetry')
    unit = 'prompts'
    tokens_per_row = 1
    extra_tokens = 0
    note = ''
    shares_passes = False
    score = 'eval.py --ckpt={out_dir}{data_dir}'
    look = ''

    def __init__(self, c, augment, config, device, train, valid):
        from engine.distributed import rank, world_size  # here: scripts for data load no torch
        self.rank = rank()
        self.world_size = world_size()
        self.c = c
        self.augment = augment
        self.config = config
        self.device = device
        self.train = train
        self.valid = valid
        self.valid_rows = c.batch_size
        self.train_options = {}
        self.valid_options = {}

        # batch_size rows are one forward pass; a step is several passes, over all processes
        passes = c.gradient_accumulation_steps
        self.rows_per_step = passes * c.batch_size
        self.n_passes, self.parts = share_of_step(passes, c.batch_size, self.rank,
                                                  self.world_size, self.shares_passes)
        self.begin()

    def begin(self):
        """A task may check or replace here what __init__ has set."""

    @classmethod
    def held_out(cls, folder):
        """The name of the split that a run validates on."""
        return 'val'

    @classmethod
    def open_split(cls, c, config, folder, split):
        """A split of the dataset in `folder`, for a network with this config."""
        raise NotImplementedError

    def training_batches(self, first_step):
        """This process's batches from a step on: n_passes of them for each step."""
        batches = self.train.batches(self.rows_per_step, self.c.seed, self.parts, first_step,
                                     self.c.max_iters, **self.train_options)
        return (self.take(batch, training=True) for batch in batches)

    def validation_batches(self):
        """This process's share of the validation batches, always the same ones: eval_iters batches
        of batch_size rows, or as many rows in smaller batches."""
        count = self.c.eval_iters * self.c.batch_size // self.valid_rows
        return self.fixed_batches(count)

    def all_batches(self):
        """This process's share of the whole split that is held out."""
        return self.fixed_batches(math.ceil(len(self.valid) / self.valid_rows))

    def fixed_batches(self, count):
        """This process's share of `count` batches of the split that is held out."""
        batches = self.valid.fixed(self.valid_rows, count, self.rank, self.world_size,
                                   **self.valid_options)
        return (self.take(batch) for batch in batches)

    def take(self, batch, training=False):
        """A batch as a split gives it -> (x, y) for the network, on the device, both with B rows.
        Text and functions come as such a pair."""
        return tuple(self.device.send(tensor) for tensor in batch)

    def count(self, x, y):
        """How many tokens, pictures or prompts a batch for the network has."""
        return len(y)

    def metrics(self, out, loss, y):
        """Of a batch: (the number of its targets, {name: mean over them}). A mean may be a tensor
        with several numbers, such as one for each class."""
        return len(y), {'loss': loss}

    def finish(self, sums, count):
        """What validation prints and logs, {name: number}: here the means. sums: {name: sum over
        all targets}, float64; count: the number of targets. A task whose sums are tensors with
        several numbers has its own."""
        return {name: (value / max(1, count)).item() for name, value in sums.items()}

    def error(self, metrics):
        return metrics['loss']

    def warning(self, metrics):
        return ''

    def sample(self, model):
        """What the network makes of a few examples, in a line; '' prints nothing."""
        return ''


def task_of(config):
    """The class Task of tasks/task_x.py, where x is the task of a network with this config. Raises
    Mistake if there is no such file."""
    modules = pkgutil.iter_modules(__path__)
    names = [m.name.removeprefix('task_') for m in modules if m.name.startswith('task_')]
    if config.task not in names:
        raise Mistake(f"task='{config.task}' is unknown; choose one of {', '.join(names)}, or "
                      f'write tasks/task_{config.task}.py')
    return importlib.import_module(f'tasks.task_{config.task}').Task


def kind_of(config):
    """The kind of data that a network with this config reads, such as 'text'."""
    return task_of(config).kind


def choose(c, augment, folder, model, device):
    """The task of a run: that of the network `model`, on the dataset in `folder`. augment: the
    run's AugmentConfig. Raises Mistake for a setting that means nothing here."""
    config = model.config
    Task = task_of(config)
    task = f'task={config.task}'
    for settings, names in ((c, OF_SOME_TASKS), (augment, vars(augment))):
        not_meant = {name: ['other tasks'] for name in names if name not in Task.settings}
        check_meant(settings, not_meant, task)
    train = Task.open_split(c, config, folder, 'train')
    valid = Task.open_split(c, config, folder, Task.held_out(folder))
    return Task(c, augment, config, device, train, valid)


def share_of_step(passes, rows, rank, world_size, shares_passes=False):
    """(number of forward passes of this process in a step, for each the slice of the step's rows
    that it computes). A step has `passes` times `rows` rows. The processes share them: each has
    passes of its own where these can be divided, else smaller passes. shares_passes: each must have
    a part of every pass, because the loss compares the rows of a pass."""
    if shares_passes or passes % world_size != 0:
        own_passes = passes
        own_rows = rows // world_size
    else:
        own_passes = passes // world_size
        own_rows = rows
    if own_passes * own_rows * world_size != passes * rows:  # a division left a remainder
        raise Mistake(f'{world_size} processes cannot share gradient_accumulation_steps={passes} '
                      f'of batch_size={rows}; make batch_size a multiple of {world_size}')
    starts = range(0, passes * rows, own_rows)
    all_parts = [slice(start, start + own_rows) for start in starts]
    if shares_passes:  # the parts of a pass lie beside each other: one for each process
        return own_passes, all_parts[rank::world_size]
    first = rank * own_passes  # else a process takes parts that lie beside each other
    return own_passes, all_parts[first:first + own_passes]


# ---- datasets -----------------------------------------------------------------------------------

def find_data(dataset, data_dir):
    """The folder of a dataset; None for functions. It is prepared now if it is missing and needs
    no download."""
    if dataset in FUNCTIONS:
        return None
    folder = Path(data_dir) / dataset
    if dataset in MADE_HERE and not (folder / 'meta.json').exists():
        script = f'prepare/{dataset}.py'
        print(f'no data in {folder} yet; running python {script}', flush=True)
        done = subprocess.run([sys.executable, HERE / script, '--once', '--out', folder])
        if done.returncode != 0:
            raise Mistake(f'python {script} failed')
    return folder


def commands_to_try(c, task):
    """Commands to type when a run of this task is done. c: its TrainConfig."""
    data_dir = ''
    if c.data_dir != type(c).data_dir:  # the default
        data_dir = f' --data_dir={quoted(c.data_dir)}'
    commands = filter(None, (task.score, task.look))
    return ['python ' + command.format(out_dir=quoted(c.out_dir), data_dir=data_dir)
            for command in commands]
