"""What a run learns. A task gives train.py its batches and says what validation reports:

    unit, size      what a run counts (tokens, pictures, prompts), and how many of them a row of a batch has
    train, valid    the two splits of the dataset; len(train) rows are one epoch
    take            a batch as a split gives it -> (x, y) for the network, on the device
    metrics         a dict of numbers over one batch; validation prints and logs their means
    error           the number that best.pt is chosen by, smaller is better; None: the last one is
    warning         a line about the metrics of a validation, or ''

Each task stands beside the data that it reads: text.py, pictures.py, views.py, regression.py.
"""
import subprocess
import sys
from pathlib import Path

from engine import NO_DOWNLOAD
from engine.networks import check_reads
from engine.settings import HERE, Mistake, check_meant
from tasks import files

LOOK = {'text': 'sample.py --ckpt={}', 'masked_text': 'sample.py --ckpt={} --start="def [MASK]ain():"',
        'image': 'sample.py --ckpt={} --image=PICTURE', 'masked_image': 'sample.py --ckpt={} --image=PICTURE',
        'views': 'analyze.py attention --ckpt={}', 'icl': 'analyze.py layers --ckpt={}'}  # a network of each task
FUNCTIONS = [name for name, meta in NO_DOWNLOAD.items() if meta['kind'] == 'functions']  # drawn, not read from a folder


class Task:
    """What most tasks share. c is the run's TrainConfig; device says which share of a batch this
    process gets."""
    unit, size, note = 'prompts', 1, ''
    train_wants = valid_wants = {}  # what batches and fixed are asked for: keywords, such as random numbers per sample

    def __init__(self, c, device, train, valid):
        self.c, self.device, self.train, self.valid, world = c, device, train, valid, device.world
        self.n_passes, self.rows = c.gradient_accumulation_steps, c.batch_size  # of this process, in a step
        self.batch = self.n_passes * self.rows  # rows of a step, over all passes and processes
        if self.n_passes % world == 0:
            self.n_passes //= world
        elif self.rows % world == 0:
            self.rows //= world
        else:
            raise Mistake(f'{world} processes cannot share gradient_accumulation_steps={self.n_passes} of '
                          f'batch_size={self.rows}; make one of them a multiple of {world}')

    def start(self, first):
        """Begin to read the training batches, from step `first` on."""
        start = self.device.rank * self.n_passes * self.rows
        share = [slice(i, i + self.rows) for i in range(start, start + self.n_passes * self.rows, self.rows)]
        self.stream = self.train.batches(self.batch, self.c.seed, share, first, self.c.max_iters, **self.train_wants)

    def passes(self):
        """(x, y) of this process for each forward pass of the next step."""
        for _ in range(self.n_passes):
            yield self.take(next(self.stream), training=True)

    def validation(self, rows=0, batches=0):
        """This process's share of the validation batches (x, y), always the same ones."""
        rows, batches = rows or self.c.batch_size, batches or self.c.eval_iters
        for batch in self.valid.fixed(rows, batches, self.device.rank, self.device.world, **self.valid_wants):
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


def choose(c, augment, folder, model, device):
    """The task of a run: of the network `model`, on the dataset in `folder`. augment: its
    AugmentConfig."""
    from tasks import pictures, regression, text, views
    task = {'text': text.NextToken, 'masked_text': text.HiddenTokens, 'image': pictures.Classification,
            'masked_image': pictures.Reconstruction, 'views': views.Distillation,
            'icl': regression.Regression}[model.config.task]
    for name, default, reads, meant in (('train_share', 1, pictures.Classification, 'pictures'),
                                        ('curriculum', 0, regression.Regression, 'functions')):
        if getattr(c, name) != default and not issubclass(task, reads):
            raise Mistake(f'{name}={getattr(c, name)} is for {meant}; leave it out')
    if augment:
        of_pictures = {f: ('image', 'masked_image', 'views') for f in vars(augment)}
        check_meant(augment, of_pictures | dict.fromkeys(augment.of_views, ('views',)), model.config.task)
    return task(c, augment, folder, model.config, device)


def ranks(logits, y):
    """For each target y that is not -1: whether it is the likeliest, the second likeliest, .. up to
    the fifth, bool (n, 5). logits (.., C), y (..)."""
    logits, y = logits[y != -1], y[y != -1]
    return logits.topk(min(5, logits.size(-1))).indices == y[:, None]


def top1_top5(logits, y):
    """(number of targets, {'top1', 'top5'}): the shares that are the likeliest, and among the five
    likeliest."""
    hits = ranks(logits, y).cpu().double()  # exact shares; not every device has float64
    return len(hits), {'top1': hits[:, 0].mean(), 'top5': hits.sum(1).mean()}


# ---- datasets -------------------------------------------------------------------------------------------------------

def find_data(c, check):
    """The folder of the dataset; None for functions. It is prepared now if that needs no download,
    after check(what is known of it). Raises Mistake with the command to type."""
    if c.dataset in FUNCTIONS:
        return None
    folder = Path(c.data_dir) / c.dataset
    if (folder / 'meta.json').exists():
        return folder
    if c.dataset not in NO_DOWNLOAD:
        raise files.missing(folder)
    check(NO_DOWNLOAD[c.dataset])
    script = HERE / 'prepare' / f'{c.dataset}.py'  # it needs no download, so it is run without asking
    print(f'no data in {folder} yet; running python prepare/{script.name}', flush=True)
    if subprocess.run([sys.executable, str(script), '--once', '--out', str(folder)]).returncode:
        raise Mistake(f'python prepare/{script.name} failed')
    return folder


def dataset_of(c, run, name='the checkpoint'):
    """(folder, split) to show a trained network: c.dataset and c.split, or the dataset it was trained on, and there
    test, or else val. Raises Mistake if the network, called `name`, cannot read that."""
    dataset = c.dataset or run['settings'].get('dataset')
    if not dataset:
        raise Mistake(f'{c.ckpt} does not say what to score it on; give --dataset')
    folder = Path(c.data_dir) / dataset
    meta = files.read_meta(folder)
    check_reads(run, meta, folder, name)
    if getattr(c, 'verify', False):
        files.verify(folder)
    return folder, c.split or ('test' if 'test' in meta['splits'] else 'val')
