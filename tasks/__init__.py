"""What a run learns: where its data are, and the task. A task gives the training loop its batches and says how validation
reads:

    unit, size          what a run counts, tokens, pictures or prompts, and how many of them a row of a batch has
    train, valid        two sources: len(train) rows are an epoch; train.batches(..) and valid.fixed(..) give raw batches
    numbers             random numbers that these must give with every row, for training and for validation
    take(batch, device, training)   a raw batch as the model takes it, (x, y), on the device
    ranked, rows(n)     whether validation asks for the likeliest answers; rows, at most n, whose logits a model returns
    judge(loss, top1, top5)         (what best.pt is chosen by, the columns of log.csv, the line that is printed)
    note                what to say before training

Which task it is follows from the dataset and the model: tokens of a causal model are `Text`, of another `MaskedText`;
pictures of a masked autoencoder are `MaskedPictures`, else `Pictures`; functions are `Regression`.
"""
import math
import subprocess
import sys
from pathlib import Path

from tasks import augment
from engine import settings as configurator
from tasks import files as data
from tasks import regression as icl
from engine.checkpoints import grid

TEXTS = 'stdlib', 'shakespeare', 'shakespeare_char', 'openwebtext'
SCRIPTS = (*TEXTS[1:], 'cifar10', 'cifar100', 'flowers102', 'pets', 'imagenet')
OFFLINE = ('stdlib', 'shapes')  # datasets that are prepared without a network, and so without asking


def find_data(c):
    """The folder of the dataset, prepared now if that needs no network; None for functions, which are drawn. Raises
    ValueError with the command to type."""
    if c.dataset in icl.FUNCTIONS:
        return None
    folder = Path(c.data_dir) / c.dataset
    if not (folder / 'meta.json').exists():
        script = configurator.HERE / 'prepare' / f'{"imagenet" if c.dataset == "imagenet21k" else c.dataset}.py'
        if c.dataset not in OFFLINE:
            known = sorted(p.name for p in Path(c.data_dir).glob('*') if (p / 'meta.json').exists())
            where = f' --out {folder}' * (str(folder) != f'data/{script.stem}')
            command = f'run: python prepare/{script.name}{where}' if script.stem in SCRIPTS else \
                f'prepared are {", ".join(known) or "none"}; for your own: python prepare/text.py FILES --out {folder}, ' \
                f'or python prepare/imagefolder.py FOLDER --out {folder}'
            raise ValueError(f'no data in {folder}; {command}')
        print(f'no data in {folder} yet; running python prepare/{c.dataset}.py')
        if subprocess.run([sys.executable, str(script), '--out', str(folder)]).returncode:
            raise ValueError(f'python prepare/{c.dataset}.py failed')
    return folder


def dataset_of(c, checkpoint, name='the checkpoint'):
    """(folder, split) of what a checkpoint is to be seen on: c.dataset and c.split, or what it was trained on, and there test,
    or else val. Raises ValueError if it, called `name`, cannot read that."""
    kind, dataset = checkpoint['data']['kind'], c.dataset or checkpoint['config'].get('dataset')
    if not dataset:
        example = '--dataset=shakespeare, or --benchmarks=all' if kind == 'text' else '--dataset=imagenet'
        raise ValueError(f'{c.ckpt} does not say what to score it on; give --dataset, such as {example}')
    folder = Path(c.data_dir) / dataset
    meta = data.read_meta(folder)
    if meta['kind'] != kind:
        raise ValueError(f'{name} reads {kind}, {folder} holds {meta["kind"]}; give another --dataset')
    if kind == 'text' and checkpoint['data']['tokenizer'] != meta['tokenizer']:
        raise ValueError(f'{name} reads other tokens than {folder} holds; prepare it with the same tokenizer')
    return folder, c.split or ('test' if 'test' in meta['splits'] else 'val')


def choose(c, a, meta, folder, model):
    """The task of a TrainConfig and an AugmentConfig, on a dataset, for a model."""
    mc = model.config
    if c.train_share < 1 and meta['kind'] != 'images':
        raise ValueError(f'train_share={c.train_share} is for pictures; leave it out')
    if meta['kind'] == 'functions':
        return Regression(c, mc)
    if meta['kind'] == 'images':
        return (MaskedPictures if hasattr(mc, 'mask_ratio') else Pictures)(c, a, meta, folder, mc)
    return (Text if getattr(mc, 'causal', True) else MaskedText)(folder, model)


def move(tensors, device):
    """Tensors on the device, without waiting for it."""
    if str(device).startswith('cuda'):
        tensors = [t.pin_memory() for t in tensors]
    return tuple(t.to(device, non_blocking=True) for t in tensors)


def rows_at_once(model, n):
    """At most n: the sequences of block_size tokens whose logits the model returns. Raises ValueError if there is not one."""
    rows = min(n, model.LOGITS_AT_ONCE // (model.config.block_size * model.config.vocab_size))
    if not rows:
        raise ValueError(f'the logits of block_size={model.config.block_size} tokens are too many to be ranked; set '
                         f'--block_size={model.LOGITS_AT_ONCE // model.config.vocab_size} or less')
    return rows


def hits(logits, y):
    """For each target y that is not -1, whether it is the likeliest, the second likeliest, .. up to the fifth: bool (n, 5).
    logits (.., C), y (..)."""
    logits, y = logits[y != -1], y[y != -1]
    return logits.topk(min(5, logits.size(-1))).indices == y[:, None]


class Task:
    unit, size, numbers, ranked, note = 'prompts', 1, ({}, {}), False, ''

    def rows(self, n):
        return n

    def take(self, batch, device, training):
        return move(batch, device)

    def judge(self, loss, top1, top5):
        return loss, {}, f'loss {loss:.4f}'


class Text(Task):
    unit, source = 'tokens', data.Text

    def __init__(self, folder, model):
        self.model, self.size = model, model.config.block_size
        self.rows(1)  # refused now, if at all
        self.train, self.valid = (self.source(folder, split, self.size) for split in ('train', 'val'))

    def judge(self, loss, top1, top5):
        bits = loss / math.log(2) * self.valid.tokens_per_byte
        return loss, {'bits_per_byte': bits}, f'loss {loss:.4f}, {bits:.4f} bits per byte'


class MaskedText(Text):
    """The loss is the mean over the hidden tokens of a forward pass; of several passes, or processes, the mean of means."""
    source, ranked = data.MaskedText, True

    def rows(self, n):
        return rows_at_once(self.model, n)

    def judge(self, loss, top1, top5):
        return loss, {'top1': top1, 'top5': top5}, f'loss {loss:.4f}, top-1 {top1:.2%}, top-5 {top5:.2%} of the hidden tokens'


class Pictures(Task):
    unit, ranked = 'pictures', True

    def __init__(self, c, a, meta, folder, mc):
        held_out = 'val' if 'val' in meta['splits'] else 'test'
        self.note = '' if held_out == 'val' else \
            f'{folder} has no val split: validating on test, so judge by last.pt; best.pt was chosen by looking'
        self.a, self.image_size = a, mc.image_size
        self.train = data.Images(folder, 'train', c.workers, c.train_share, c.seed)
        self.valid = data.Images(folder, held_out, c.workers)
        self.numbers = {'draws': augment.draws_needed(a)}, {}

    def pixels(self, batch, device, training):
        pictures, sizes, _, draws = batch
        pictures, = move([pictures], device)
        if training:
            return augment.train_pictures(pictures, sizes, draws, self.image_size, self.a)
        return augment.eval_pictures(pictures, sizes, self.image_size, self.a.eval_crop)

    def take(self, batch, device, training):
        return self.pixels(batch, device, training), *move([batch[2]], device)

    def judge(self, loss, top1, top5):
        return 1 - top1, {'top1': top1, 'top5': top5}, f'loss {loss:.4f}, top-1 {top1:.2%}, top-5 {top5:.2%}'


class MaskedPictures(Pictures):
    """The last numbers of a picture say which of its patches are visible."""
    ranked = False

    def __init__(self, c, a, meta, folder, mc):
        super().__init__(c, a, meta, folder, mc)
        self.patches = math.prod(grid(mc))
        self.numbers = {'draws': augment.draws_needed(a) + self.patches}, {'draws': self.patches}

    def take(self, batch, device, training):
        return self.pixels(batch, device, training), *move([batch[3][:, -self.patches:].float()], device)

    judge = Task.judge  # there is no class to be right about


class Regression(Task):
    def __init__(self, c, mc):
        self.train = self.valid = icl.Prompts(c.dataset, mc.n_dims, mc.block_size // 2, c.sparsity, c.curriculum)

    def judge(self, loss, top1, top5):
        return loss, {}, f'loss {loss:.4f}, {loss / self.valid.scale:.4f} of that of predicting zero'
