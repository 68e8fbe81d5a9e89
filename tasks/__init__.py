"""What a run learns. A task gives train.py its batches and says what validation reports:

    unit, size      what a run counts (tokens, pictures, prompts), and how many of them a row of a batch has
    train, valid    the two splits of the dataset; len(train) rows are one epoch
    take            a batch as a split gives it -> (x, y) for the network, on the device
    metrics         a dict of numbers over one batch; validation prints and logs their means
    error           the number that best.safetensors is chosen by, smaller is better; None: the last one is
    warning         a line about the metrics of a validation, or ''

Each task stands beside the data that it reads: text.py, hidden.py, pictures.py, views.py, regression.py.
"""
import pkgutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from engine.networks import NO_DOWNLOAD, kind_of
from engine.settings import HERE, Mistake, check_choices, check_meant, check_ranges

LOOK = {'text': 'sample.py --ckpt={}', 'masked_text': 'sample.py --ckpt={} --start="def [MASK]ain():"',
        'image': 'sample.py --ckpt={} --image=PICTURE', 'masked_image': 'sample.py --ckpt={} --image=PICTURE',
        'views': 'analyze.py attention --ckpt={}', 'icl': 'analyze.py layers --ckpt={}'}  # a network of each task
FUNCTIONS = [name for name, kind in NO_DOWNLOAD.items() if kind == 'functions']  # drawn, not read from a folder


@dataclass
class AugmentConfig:
    """How pictures are shown in training and in evaluation; see augment.py and views.py."""
    crop_scale: float = 0.08     # least share of the area that random resized crops of training keep; 1 turns them off
    flip: bool = True            # mirror half of the training pictures
    randaugment_n: int = 0       # RandAugment: operations per picture; 0 turns it off
    randaugment_m: float = 14.0  # RandAugment: their magnitude
    randaugment_scale: str = 'torchvision'  # its scale: 'torchvision' (0 to 30) or 'timm' (0 to 10; more is 10)
    local_crops: int = 8         # DINO: small crops beside the two large ones
    local_size: int = 96         # DINO: their pixels
    local_scale: float = 0.05    # DINO: least share of the area that they keep; crop_scale is their largest
    jitter: float = 1.0          # DINO: factor of the colour jitter, of grey and of how often pictures are solarized
    hue: float = 0.1             # DINO: largest turn of the jitter's hue, in whole turns; 0.5 gives any hue
    grey: float = 0.2            # DINO: how often pictures are grey, times jitter
    blur: float = 2.0            # DINO: largest standard deviation of the blur, in pixels; 0 turns it off
    eval_view: str = 'crop'      # evaluation sees the centre ('crop'), or the whole picture resized ('squash'); see cut
    eval_crop: float = 0.875     # share of the short side that evaluation's centre crop keeps (224 of 256)
    of_views = 'local_crops', 'local_size', 'local_scale', 'jitter', 'hue', 'grey', 'blur'  # not a setting: DINO's own

    def __post_init__(self):
        check_ranges(self, {(1e-9, 1): ('crop_scale', 'local_scale', 'eval_crop'), (0, 1): ('jitter', 'grey'),
                            (0, 0.5): ('hue',), (0, 10): ('randaugment_n',), (0, 20): ('blur',),
                            (0, 30): ('randaugment_m',), (0, 64): ('local_crops',), (1, 4096): ('local_size',)})
        check_choices(self, randaugment_scale=('torchvision', 'timm'), eval_view=('crop', 'squash'))

    @property
    def view(self):
        """What evaluation sees, as eval_pictures takes it."""
        return None if self.eval_view == 'squash' else self.eval_crop


class Task:
    """What most tasks share. c is the run's TrainConfig; device says which share of a batch this
    process gets."""
    unit, size, note, together = 'prompts', 1, '', False  # together: all processes share each forward pass
    train_wants = valid_wants = {}  # what batches and fixed are asked for: keywords, such as random numbers per sample

    def __init__(self, c, device, train, valid):
        self.c, self.device, self.train, self.valid = c, device, train, valid
        passes, rows, world, rank = c.gradient_accumulation_steps, c.batch_size, device.world, device.rank
        self.valid_rows = rows  # of a batch of validation
        self.batch = passes * rows  # rows of a step, over all passes and processes
        shared = self.together or passes % world  # all processes share each pass, or each has passes of its own
        n, self.rows = (passes, rows // world) if shared else (passes // world, rows)  # of a process
        if n * self.rows * world != self.batch:
            raise Mistake(f'{world} processes cannot share gradient_accumulation_steps={passes} of batch_size={rows}; '
                          f'make {"batch_size" if self.together else "one of them"} a multiple of {world}')
        parts = [slice(i, i + self.rows) for i in range(0, self.batch, self.rows)]  # those of all processes
        self.parts = parts[rank::world] if self.together else parts[rank * n:(rank + 1) * n]
        self.n_passes = n

    def validation(self):
        """This process's share of the validation batches (x, y), always the same ones."""
        count = self.c.eval_iters * self.c.batch_size // self.valid_rows
        for batch in self.valid.fixed(self.valid_rows, count, self.device.rank, self.device.world, **self.valid_wants):
            yield self.take(batch)

    def take(self, batch, training=False):
        return self.device.send(*batch)

    def metrics(self, out, loss, y):
        """(weight of the batch, {name: mean over the batch}). Each name is a column of the log."""
        return len(y), {'loss': loss}

    def error(self, metrics):
        return metrics['loss']

    def warning(self, metrics):
        return ''


CLASSES = {'text': 'tasks.text.NextToken', 'masked_text': 'tasks.text.HiddenTokens',
           'image': 'tasks.pictures.Classification', 'masked_image': 'tasks.pictures.Reconstruction',
           'views': 'tasks.views.Distillation', 'icl': 'tasks.regression.Regression'}


def choose(c, augment, folder, model, device):
    """The task of a run: of the network `model`, on the dataset in `folder`. augment: its AugmentConfig."""
    task, pictures = model.config.task, ('image', 'masked_image', 'views')
    check_meant(c, {'train_share': ['images'], 'probe_interval': ['images'], 'curriculum': ['functions']},
                kind_of(model.config))
    check_meant(c, dict.fromkeys(('ema', 'telemetry'), [name for name in CLASSES if name != 'views']), task)
    own = dict.fromkeys(augment.of_views, ('views',)) | {'randaugment_n': ('image', 'masked_image')}
    check_meant(augment, dict.fromkeys(vars(augment), pictures) | own, task)
    return pkgutil.resolve_name(CLASSES[task])(c, augment, folder, model.config, device)


def accuracies(logits, loss, y):
    """Metrics of classes and hidden tokens: (number of targets y that are not -1, {'loss', 'top1', 'top5'}), the shares
    that are the likeliest, and among the five likeliest. logits (.., C), y (..)."""
    logits, y = logits[y != -1], y[y != -1]
    hits = (logits.topk(min(5, logits.size(-1))).indices == y[:, None]).cpu().double()  # (n, 5); exact, also of MPS
    return len(hits), {'loss': loss, 'top1': hits[:, 0].mean(), 'top5': hits.sum(1).mean()}


# ---- datasets -------------------------------------------------------------------------------------------------------

def find_data(c):
    """The folder of the dataset; None for functions. It is prepared now if that needs no download."""
    if c.dataset in FUNCTIONS:
        return None
    folder = Path(c.data_dir) / c.dataset
    if c.dataset in NO_DOWNLOAD and not (folder / 'meta.json').exists():
        script = f'prepare/{c.dataset}.py'
        print(f'no data in {folder} yet; running python {script}', flush=True)
        if subprocess.run([sys.executable, HERE / script, '--once', '--out', folder]).returncode:
            raise Mistake(f'python {script} failed')
    return folder
