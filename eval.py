"""Score a trained network: its losses and accuracies on a prepared dataset.

    python eval.py --ckpt=out/crate_cifar10 --split=test                       # top-1, top-5, loss
    python eval.py --ckpt=out/crate_cifar10 --dataset=cifar100 --probe=true    # linear probe of frozen features
    python eval.py --ckpt=out/crate_shapes --confusion=confusion.png           # which classes it takes for which
    python eval.py --ckpt=out/crate_shapes --knn=20                            # nearest neighbours of features
    python eval.py --ckpt=out/crate_mae_shapes                                 # how well hidden patches are predicted
    python eval.py --ckpt=out/crate_mae_shapes --probe=true --train_share=0.1  # features of a masked autoencoder
    python eval.py --ckpt=out/crate_base --dataset=imagenet --real=real.json   # ImageNet-ReaL
    python eval.py --ckpt=out/aot_owt --benchmarks=all                         # zero-shot language benchmarks
    python eval.py --ckpt=out/aot_icl --beside=out/gpt2_icl                    # in-context regression, drawn
    python eval.py --help

How each score is computed is in scoring/.
"""
import re
from dataclasses import dataclass
from pathlib import Path

import engine  # before torch
from analysis.panels import say_table
from engine import figures, settings
from engine.checkpoint import run_directory
from engine.device import Device
from engine.networks import task_of
from engine.report import metrics_line
from engine.settings import Mistake
from engine.trained import check_classes, from_command_line, heading, load_model, open_run
from scoring import benchmarks, confusion, probes, regression, splits
from tasks import augment
from tasks.pictures import ImageSplit
from tasks.regression import Prompts
from tasks.dataset import dataset_of
from tasks.tokenizer import Tokenizer
from train import TrainConfig, sum_metrics


@dataclass
class EvalConfig:
    ckpt: str = 'out/aot_stdlib'    # a run directory, for its best weights, or a .safetensors file in one
    dataset: str = ''               # folder in data_dir; empty means the one it was trained on
    data_dir: str = 'data'          # where prepared datasets are
    verify: bool = False            # first compare every byte of the dataset with the digests in its meta.json
    split: str = ''                 # split to score; empty means test, or val if there is none
    batch_size: int = 256           # sequences or pictures in a forward pass
    workers: int = -1               # processes that decode JPEG pictures; -1 means one per core, at most 16
    device: str = 'auto'            # cpu, cuda, cuda:1, mps
    dtype: str = 'auto'             # float32, bfloat16, float16; auto: as in training, float32 for benchmarks and icl
    eval_view: str = ''             # pictures: crop or squash; empty: as in training, but squash for probe and knn
    eval_crop: float = 0.0          # pictures: share of the short side that the crop keeps; 0 as in training
    real: str = ''                  # pictures: path of the ImageNet-ReaL labels, real.json, to score by as well
    confusion: str = ''             # pictures: draw which classes are taken for which, here; the table is beside it
    probe: bool = False             # pictures: fit a linear classifier to frozen features of the training split
    knn: str = ''                   # pictures: classify by the k nearest training features: 20, or 10,20,100,200
    layer: int = 0                  # pictures: probe and neighbours see the features after this layer; 0: the last
    train_share: float = 1.0        # pictures: share of each class's training pictures for probe and neighbours
    seed: int = -1                  # pictures: which ones; -1 means the seed of the training run
    benchmarks: str = ''            # text: zero-shot benchmarks, with commas between them, or all
    stride: int = 0                 # benchmarks: tokens between windows of a long text; 0 means half the context
    detokenize: bool = False        # benchmarks: undo the spaces around punctuation before tokenizing
    results: str = ''               # table to write; empty: results.csv (benchmarks) or in_context.csv in the run
    beside: str = ''                # functions: other runs in the same figure, with commas between them
    prompts: int = 1280             # functions: prompts to average over
    overwrite: bool = False         # replace the pictures and tables of --confusion and functions if they exist


PICTURES = ('image', 'masked_image')
TEXT = ('text', 'masked_text')
OWN = 'another task'  # one for which this file has no words of its own
ONLY_FOR = {'dataset': (*PICTURES, *TEXT, OWN, 'icl'), 'split': (*PICTURES, *TEXT, OWN), 'probe': PICTURES, 'knn': PICTURES,
            'layer': PICTURES, 'train_share': PICTURES, 'eval_view': PICTURES, 'eval_crop': PICTURES,
            'real': ('image',), 'stride': ('--benchmarks',), 'detokenize': ('--benchmarks',),
            'results': ('--benchmarks', 'icl'), 'verify': (*PICTURES, *TEXT, OWN), 'beside': ('icl',), 'prompts': ('icl',),
            'overwrite': ('icl', 'image'), 'confusion': ('image',)}


def pictures(c, run, model, device):
    """Scores of a classifier or a masked autoencoder, or of its frozen features."""
    folder, split = dataset_of(c, run)
    images, features = ImageSplit(folder, split, c.workers), c.probe or c.knn
    view = c.eval_view or ('squash' if features else '')
    changes = {'eval_view': 'crop' if c.eval_crop else view, 'eval_crop': c.eval_crop}
    changes = {name: value for name, value in changes.items() if value}
    how = device.autocast, c.batch_size, augment.config_of(run, **changes).view
    if c.real or c.confusion or model.config.task == 'image' and not features:
        classify(c, run, model, device, images, how, changes)
    if features:
        settings.check_ranges(c, {(0, len(model.layers)): ['layer']})
        if c.layer:
            model.layers = model.layers[:c.layer]
        probe(c, run, model, images, how)
    elif model.config.task == 'masked_image':
        _, metrics, count = score_split(c, run, model, device, folder, split, **changes)
        hidden, baseline = splits.hidden_and_baseline(model, images, *how[1:])
        flat = "each patch's own mean" if model.config.norm_pix_loss else 'the mean colour of the visible patches'
        print(f'{folder} {split}: {count:,} pictures, {hidden:.0%} of their patches masked, loss '
              f'{metrics["loss"]:.4f}; predicting {flat}: {baseline:.4f}')


def probe(c, run, model, images, how):
    """What frozen features tell about classes: a linear probe, nearest neighbours, or both."""
    if images.split == 'train':
        raise Mistake('--probe and --knn learn from the train split; score another --split')
    seed = c.seed if c.seed >= 0 else run['settings'].get('seed', 1337)
    learnt = ImageSplit(images.folder, 'train', c.workers, c.train_share, seed)
    train, test = (probes.features(model, part, *how) for part in (learnt, images))
    classes, on = len(images.classes), f'on {images.split} ({len(images):,} pictures)'
    if c.probe:
        print(f'linear probe of {train[0].size(1)} features, {len(learnt):,} training pictures:')
        accuracy, C = probes.linear_probe(train, test, classes)
        print(f'linear probe: top-1 {accuracy:.2%} {on}, C = {C:g}')
    for k in filter(None, c.knn.split(',')):
        k = min(int(k), len(learnt))
        print(f'{k} nearest neighbours: top-1 {probes.nearest_neighbours(train, test, classes, k):.2%} {on}')


def classify(c, run, model, device, images, how, changes):
    """Loss and accuracies of a classifier, and its confusions."""
    check_classes(run, images.classes, images.folder)
    if c.confusion:
        figures.check_figure(c.confusion, c.overwrite, '--confusion')
    labels = splits.real_labels(c.real, images) if c.real else None
    _, metrics, _ = score_split(c, run, model, device, images.folder, images.split, **changes)
    where = f'{images.folder} {images.split}'
    print(f'{where}: {len(images):,} pictures, loss {metrics["loss"]:.4f}, top-1 {metrics["top1"]:.2%}, '
          f'top-5 {metrics["top5"]:.2%}')
    if labels or c.confusion:
        guesses = splits.guesses(model, images, *how)
    if labels:
        right = [guess in mine for guess, mine in zip(guesses, labels) if mine]  # pictures without a label do not count
        print(f'{where}: ReaL top-1 {sum(right) / len(right):.2%}')
    if c.confusion:
        confusion.report(images.labels, guesses, images.classes, c.confusion)


def score_split(c, run, model, device, folder, split, **changes):
    """(its task, {name: number}, the number of targets) of a network on all of a split, as the
    training loop validates. changes: settings of AugmentConfig."""
    values = run['settings'] | {'batch_size': c.batch_size, 'workers': c.workers, 'dataset': folder.name}
    config = settings.filled(TrainConfig, values)
    Task = task_of(model.config)
    data = Task.open_split(config, model.config, folder, split)
    task = Task(config, augment.config_of(run, **changes), model.config, device, None, data)
    sums, count = sum_metrics(model, task, device, task.all_batches())
    return task, task.finish(sums, count), count


def next_tokens(c, run, model, device):
    """The loss of the next tokens."""
    task, metrics, count = score_split(c, run, model, device, *dataset_of(c, run))
    bits = ''
    if 'bits_per_byte' in metrics:
        bits = f', {metrics["bits_per_byte"]:.4f} bits per byte'
    print(f'{task.valid.path.parent} {task.valid.path.stem}: {count:,} tokens, loss {metrics["loss"]:.4f} nats{bits}, '
          f'at a context of {task.tokens_per_row}')


def hidden_tokens(c, run, model, device):
    """Loss and accuracy of hidden tokens."""
    task, metrics, count = score_split(c, run, model, device, *dataset_of(c, run))
    commonest = splits.commonest_share(task.valid, task.valid_rows)
    all_tokens = len(task.valid) * task.tokens_per_row
    print(f'{task.valid.path.parent} {task.valid.path.stem}: {count:,} hidden tokens of {all_tokens:,}, loss '
          f'{metrics["loss"]:.4f} nats, top-1 {metrics["top1"]:.2%}, top-5 {metrics["top5"]:.2%}, at a context of '
          f'{task.tokens_per_row}; always predicting the most frequent token: top-1 {commonest:.2%}')


def own_task(c, run, model, device):
    """What validation reports of a task for which this file has no words of its own."""
    folder, split = dataset_of(c, run)
    _, metrics, count = score_split(c, run, model, device, folder, split)
    print(f'{folder} {split}: {count:,} targets, {metrics_line(metrics)}')


def zero_shot(c, run, model, device):
    """The benchmarks of language models: printed, and added to a table."""
    found, context = benchmarks.read(c.benchmarks, c.data_dir), model.config.block_size
    settings.check_ranges(c, {(0, context): ['stride']})
    stride, table = c.stride or max(1, context // 2), Path(c.results or run_directory(c.ckpt) / 'results.csv')
    benchmarks.check_table(table)
    tokenizer = Tokenizer(**run['data']['tokenizer'])
    how = tokenizer.spec['name'], context, stride, settings.show(c.detokenize)
    print(f'{how[0]} tokens, a context of {context}, windows {stride} apart, texts '
          f'{"de-tokenized" if c.detokenize else "as published"}')
    print(f'{"benchmark":<12} {"measure":<15} {"value":>9}   count')
    for name, (rows, source) in found.items():
        clean = benchmarks.detokenize if c.detokenize else str
        for measure, value, count, unit in benchmarks.measures(
                name, rows, model, tokenizer, stride, c.batch_size, device.autocast, clean):
            shown = f'{value:.2%}' if measure == 'accuracy' else f'{value:.4f}'
            print(f'{name:<12} {measure:<15} {shown:>9}   {count:,} {unit} of {source}', flush=True)
            benchmarks.append(table, (c.ckpt, run['step'], name, measure, f'{value:.6g}', count, unit, *how))
    print(f'added to {table}')


def in_context(c, run, model, device):
    """Errors of networks and estimators that regress in context: printed, saved and drawn."""
    table = Path(c.results or run_directory(c.ckpt) / 'in_context.csv')
    figures.check_figure(table.with_suffix('.png'), c.overwrite, '--results')
    models, own = {c.ckpt: model}, model.config
    for path in filter(None, c.beside.split(',')):
        other = open_run(path)
        if any(other['network'].get(name) != getattr(own, name) for name in ('n_dims', 'block_size')):
            raise Mistake(f'--beside={path} does not read the prompts of {c.ckpt}; leave it out')
        models[path] = load_model(other).to(next(model.parameters()).device)
        print(heading(path, other, models[path]))
    function, sparsity = c.dataset or run['settings']['dataset'], min(run['settings']['sparsity'], own.n_dims)
    prompts = Prompts(function, own.n_dims, own.block_size // 2, sparsity)
    found = regression.curves(models, prompts, device.autocast, c.prompts)
    title = f'{function.replace("_", " ")} functions of {prompts.d} dimensions, {c.prompts:,} prompts'
    shown = sorted({round(i * (prompts.n - 1) / 8) for i in range(9)})
    print(f'{title}: squared error, normalized, after this many examples')
    rows = [(name, *(f'{error:.3f}' for error in (*mean[shown], mean.mean()))) for name, (mean, _) in found.items()]
    say_table(('', *shown, 'mean'), rows)
    regression.draw(found, models, title, table)


SCORES = {
    'text': next_tokens,
    '--benchmarks': zero_shot,
    'masked_text': hidden_tokens,
    'image': pictures,
    'masked_image': pictures,
    'icl': in_context,
    OWN: own_task,
}


def main(argv):
    c, run, overrides = from_command_line(argv, EvalConfig)
    model = load_model(run, **overrides)
    settings.check_meant(c, {'benchmarks': ('text',)}, model.config.task)
    what = model.config.task if model.config.task in SCORES else OWN
    if c.benchmarks:
        what = '--benchmarks'
    settings.check_meant(c, ONLY_FOR, what)
    settings.check_ranges(c, {(1, 1e30): ['batch_size'], (2, 1e30): ['prompts'],
                              (-1, 1e30): ['seed', 'workers'], (0, 1): ['eval_crop'], (1e-9, 1): ['train_share']})
    if not re.fullmatch(r'|[1-9]\d*(,[1-9]\d*)*', c.knn):
        raise Mistake(f'knn={c.knn} must be a number of neighbours, or several, such as 10,20,100,200')
    # The error of in-context regression can be smaller than bfloat16 can resolve.
    exact = c.dtype == 'auto' and what in ('--benchmarks', 'icl')
    device = Device(c.device, 'float32' if exact else c.dtype, 'false')
    print(f'{heading(c.ckpt, run, model)}, {str(device.dtype)[6:]} on {device.name}')
    SCORES[what](c, run, model.to(device.name), device)


if __name__ == '__main__':
    settings.run(main, __doc__, EvalConfig)
