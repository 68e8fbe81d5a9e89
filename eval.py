"""Score a trained network: its losses and accuracies on a prepared dataset.

    python eval.py --ckpt=out/crate_cifar10 --split=test                       # loss, top-1, top-5
    python eval.py --ckpt=out/crate_cifar10 --dataset=cifar100 --probe=true    # linear probe
    python eval.py --ckpt=out/crate_shapes --confusion=confusion.png           # confused classes
    python eval.py --ckpt=out/crate_shapes --knn=20                            # nearest neighbours
    python eval.py --ckpt=out/crate_mae_shapes                                 # hidden patches
    python eval.py --ckpt=out/crate_mae_shapes --probe=true --train_share=0.1  # few labels
    python eval.py --ckpt=out/crate_base --dataset=imagenet --real=real.json   # ImageNet-ReaL
    python eval.py --ckpt=out/aot_owt --benchmarks=all                         # language benchmarks
    python eval.py --ckpt=out/aot_icl --beside=out/gpt2_icl                    # learning in context
    python eval.py --help

A linear probe and nearest neighbours classify pictures by the frozen features of a network. With
--dtype=auto, benchmarks and functions in context are computed in float32. How each score is
computed is in scoring/.
"""
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from engine.process import prepare_process

if __name__ == '__main__':
    prepare_process()  # before torch is loaded

import numpy as np
import torch

from analysis import confusion, figures, in_context
from analysis.tables import say_table
from engine import settings
from engine.checkpoint import run_directory
from engine.device import Device, name_of
from engine.mistakes import Mistake
from engine.report import metrics_line
from request.help import run_program
from request.trained import from_command_line
from scoring import benchmarks, probes, regression, splits
from tasks import augment, task_of
from tasks.dataset import check_classes, dataset_of
from tasks.imagenet import readable
from tasks.pictures import ImageSplit
from tasks.regression import Prompts
from tasks.tokenizer import Tokenizer
from train import TrainConfig, sum_metrics
from weights.runs import Run, heading, open_run, own_or_shipped, title_of
from weights.surgery import load_model


@dataclass
class EvalConfig:
    ckpt: str = 'out/aot_stdlib'  # a run directory, for its best weights, or a .safetensors in it
    dataset: str = ''             # folder in data_dir, or functions; empty: as in training
    data_dir: str = 'data'        # where prepared datasets are
    verify: bool = False          # first compare every byte of the dataset with its checksums
    split: str = ''               # split to score; empty: test, or val if there is none
    batch_size: int = 256         # sequences or pictures in a forward pass
    workers: int = -1             # processes that decode JPEG; -1: one per core, at most 16
    device: str = 'auto'          # cpu, cuda, cuda:1, mps
    dtype: str = 'auto'           # float32, bfloat16, float16; auto: as in training, but see above
    eval_view: str = ''           # pictures: crop or squash; empty: as trained, probe, knn: squash
    eval_crop: float = 0.0        # pictures: eval_view=crop with this share of the short side
    real: str = ''                # pictures: path of real.json, to score by ImageNet-ReaL as well
    confusion: str = ''           # pictures: draw confused classes in this file, a table beside it
    probe: bool = False           # pictures: fit a linear classifier to frozen training features
    knn: str = ''                 # pictures: classify by k nearest training features: 20, or 10,20
    layer: int = 0                # pictures: probe, knn see features after this layer; 0: the last
    train_share: float = 1.0      # pictures: probe, knn learn from this share of each class
    seed: int = -1                # pictures: which ones train_share takes; -1: the seed of training
    benchmarks: str = ''          # text: zero-shot benchmarks, with commas between them, or all
    stride: int = 0               # benchmarks: tokens from window to window; 0: half the context
    results: str = ''             # table to write; empty: results.csv or in_context.csv in the run
    beside: str = ''              # functions: other runs in the same figure, commas between them
    prompts: int = 1280           # functions: prompts to average over
    overwrite: bool = False       # replace existing figures and tables of confusion and functions


# What can be scored: the keys of SCORES below, which are tasks and these three
BENCHMARKS = '--benchmarks'
FEATURES = '--probe or --knn'
ANOTHER_TASK = 'another task'  # one that this file does not know

# Groups of them
PICTURE_TASKS = ('image', 'masked_image')
PICTURES = (*PICTURE_TASKS, FEATURES)
PREPARED = (*PICTURES, 'text', 'masked_text', ANOTHER_TASK)  # those that read a split in data_dir

# {setting: what it is for}; it is refused where something else is scored
ONLY_FOR = {
    'dataset': (*PREPARED, 'icl'),
    'split': PREPARED,
    'verify': PREPARED,
    'batch_size': (*PREPARED, BENCHMARKS),
    'workers': PICTURES,
    'eval_view': PICTURES,
    'eval_crop': PICTURES,
    'layer': [FEATURES],
    'train_share': [FEATURES],
    'seed': [FEATURES],
    'real': ['image'],
    'confusion': ['image'],
    'stride': [BENCHMARKS],
    'results': (BENCHMARKS, 'icl'),
    'beside': ['icl'],
    'prompts': ['icl'],
    'overwrite': ('icl', 'image'),
}


@dataclass
class Trained:
    """A trained network, and where it computes."""
    run: Run
    model: torch.nn.Module  # in evaluation mode, on the device
    device: Device


def split_to_score(c, trained):
    """(task, name) of the split that is asked for. task: the Task of the network, with all of the
    split as task.valid; name: what the split is called."""
    run = trained.run
    network_config = trained.model.config
    folder, split = dataset_of(c, run)
    values = run.settings | {'batch_size': c.batch_size, 'workers': c.workers,
                             'dataset': folder.name, 'train_share': 1.0}
    train_config = settings.filled(TrainConfig, values)
    Task = task_of(network_config)
    data = Task.open_split(train_config, network_config, folder, split)
    task = Task(train_config, augment_config(c, run), network_config, trained.device,
                train=None, valid=data)
    return task, f'{folder} {split}'


def augment_config(c, run):
    """The AugmentConfig of a run, changed by the settings: how evaluation sees pictures."""
    changes = {}
    if c.eval_view:
        changes['eval_view'] = c.eval_view
    elif c.probe or c.knn:
        changes['eval_view'] = 'squash'
    if c.eval_crop != 0:
        changes['eval_view'] = 'crop'
        changes['eval_crop'] = c.eval_crop
    return augment.config_of(run, **changes)


def validate(trained, task):
    """({name: number}, number of targets, such as tokens): what validation in training computes,
    on all of a split."""
    sums, count = sum_metrics(trained.model, task, trained.device, task.all_batches())
    trained.model.eval()  # sum_metrics leaves it as training needs it
    return task.finish(sums, count), count


def others(metrics):
    """The end of a line: numbers that a network or task of one's own has beside those of ours."""
    ours = ('loss', 'bits_per_byte', 'top1', 'top5')
    rest = {name: number for name, number in metrics.items() if name not in ours}
    return f'; {metrics_line(rest)}' if rest else ''


# ---- text ---------------------------------------------------------------------------------------

def score_next_tokens(c, trained):
    """The loss of the next tokens."""
    task, name = split_to_score(c, trained)
    metrics, count = validate(trained, task)
    line = f'{name}: {count:,} tokens, loss {metrics["loss"]:.4f} nats'
    if 'bits_per_byte' in metrics:
        line += f', {metrics["bits_per_byte"]:.4f} bits per byte'
    print(f'{line}, at a context of {task.tokens_per_row}{others(metrics)}')


def score_hidden_tokens(c, trained):
    """Loss and accuracy of hidden tokens."""
    task, name = split_to_score(c, trained)
    metrics, count = validate(trained, task)
    all_tokens = len(task.valid) * task.tokens_per_row
    most_frequent = splits.commonest_share(task)
    print(f'{name}: {count:,} hidden tokens of {all_tokens:,}, '
          f'loss {metrics["loss"]:.4f} nats, top-1 {metrics["top1"]:.2%}, '
          f'top-5 {metrics["top5"]:.2%}, at a context of {task.tokens_per_row}; '
          f'always predicting the most frequent token: top-1 {most_frequent:.2%}'
          f'{others(metrics)}')


def score_benchmarks(c, trained):
    """The zero-shot benchmarks of language models: printed, and added to a table."""
    prepared = benchmarks.read(c.benchmarks, c.data_dir)  # {name: (rows, name of their file)}
    context = trained.model.config.block_size
    settings.check_ranges(c, {(0, context): ['stride']})
    stride = c.stride or max(1, context // 2)
    table = Path(c.results or run_directory(c.ckpt) / 'results.csv')
    figures.check_free(table, True, '--results', ['.csv'])  # rows are added to one that exists
    benchmarks.check_table(table)

    tokenizer = Tokenizer(**trained.run.data['tokenizer'])
    tokenizer_name = tokenizer.spec['name']
    protocol = (tokenizer_name, context, stride)
    print(f'{tokenizer_name} tokens, a context of {context}, windows {stride} apart, '
          'texts as published')

    print(f'{"benchmark":<12} {"measure":<15} {"value":>9}   count')
    for name, (rows, source) in prepared.items():
        measures = benchmarks.measures(name, rows, trained.model, tokenizer, stride, c.batch_size,
                                       trained.device.autocast)
        for measure, value, count, unit in measures:
            shown = f'{value:.2%}' if measure == 'accuracy' else f'{value:.4f}'
            print(f'{name:<12} {measure:<15} {shown:>9}   {count:,} {unit} of {source}', flush=True)
            row = (c.ckpt, trained.run.step, name, measure, f'{value:.6g}', count, unit)
            benchmarks.append(table, row + protocol)
    print(f'added to {table}')


# ---- pictures -----------------------------------------------------------------------------------

def score_classifier(c, trained):
    """Loss and accuracies of a classifier. Where some classes have more pictures than others, also
    the accuracy of each class. If asked for: its accuracy by ImageNet-ReaL, and which classes it
    takes for which."""
    task, name = split_to_score(c, trained)
    images = task.valid
    # what can be wrong here is noticed before the work
    check_classes(trained.run, images.classes, images.folder)
    if c.confusion:
        figures.check_figure(c.confusion, c.overwrite, '--confusion')
    if c.real:
        real_labels = splits.real_labels(c.real, images)

    metrics, count = validate(trained, task)
    print(f'{name}: {count:,} pictures, loss {metrics["loss"]:.4f}, '
          f'top-1 {metrics["top1"]:.2%}, top-5 {metrics["top5"]:.2%}{others(metrics)}')

    class_sizes = Counter(images.labels.tolist()).values()
    has_unequal_classes = min(class_sizes) < max(class_sizes)
    if c.real or c.confusion or has_unequal_classes:
        guesses = splits.guesses(trained.model, task)
    if has_unequal_classes:
        say_accuracy_of_classes(images, guesses)
    if c.real:
        print(f'{name}: ReaL top-1 {accuracy_by_real(guesses, real_labels):.2%}')
    if c.confusion:
        network = title_of(c.ckpt, trained.run)
        confusion.report(images.labels, guesses, images.classes, c.confusion,
                         f'{network}\n{name}')


def say_accuracy_of_classes(images, guesses):
    """Print how often a classifier is right in each class of an ImageSplit, and the mean of these
    accuracies. A class without pictures in the split is left out. guesses: the class that the
    network gives each picture."""
    is_right = images.labels == guesses                     # (N,)
    accuracies = []
    rows = []
    for number in np.unique(images.labels):
        is_right_in_class = is_right[images.labels == number]
        accuracy = is_right_in_class.mean()
        accuracies.append(accuracy)
        name = readable(images.classes[number])
        rows.append((name, len(is_right_in_class), f'{accuracy:.2%}'))
    say_table(('class', 'pictures', 'top-1'), rows)
    print(f'balanced accuracy, the mean of all classes: {np.mean(accuracies):.2%}')


def accuracy_by_real(guesses, real_labels):
    """How often a guess is one of the ImageNet-ReaL labels of its picture. Pictures without a label
    do not count."""
    return np.mean([guess in labels for guess, labels in zip(guesses, real_labels) if labels])


def score_hidden_patches(c, trained):
    """The loss of a masked autoencoder, beside that of a prediction that needs no network."""
    task, name = split_to_score(c, trained)
    metrics, count = validate(trained, task)
    hidden_share, baseline = splits.hidden_and_baseline(trained.model, task)
    prediction = 'the mean colour of the visible patches'
    if trained.model.config.norm_pix_loss:
        prediction = "each patch's own mean"
    print(f'{name}: {count:,} pictures, {hidden_share:.0%} of their patches masked, '
          f'loss {metrics["loss"]:.4f}; predicting {prediction}: {baseline:.4f}'
          f'{others(metrics)}')


def score_features(c, trained):
    """What frozen features tell about classes: a linear probe, nearest neighbours, or both."""
    task, _ = split_to_score(c, trained)
    model = trained.model
    images = task.valid
    if c.layer != 0:
        settings.check_ranges(c, {(1, len(model.layers)): ['layer']})
        model.layers = model.layers[:c.layer]
    if images.split == 'train':
        raise Mistake('--probe and --knn learn from the train split; score another --split')
    num_classes = len(images.classes)
    if num_classes == 1:
        raise Mistake(f'{images.folder} has one class, so every guess would be right; score the '
                      'features on another --dataset')
    seed = c.seed if c.seed >= 0 else task.c.seed
    train_images = ImageSplit(images.folder, 'train', c.workers, c.train_share, seed)

    train = probes.features(model, train_images, task)
    test = probes.features(model, images, task)
    test_name = f'{images.split} ({len(images):,} pictures)'

    if c.probe:
        train_features, _ = train
        print(f'linear probe of {train_features.size(1)} features, '
              f'{len(train_images):,} training pictures:')
        accuracy, C = probes.linear_probe(train, test, num_classes)
        print(f'linear probe: top-1 {accuracy:.2%} on {test_name}, C = {C:g}')
    if c.knn:
        for number in c.knn.split(','):
            k = min(int(number), len(train_images))
            accuracy = probes.nearest_neighbours(train, test, num_classes, k)
            print(f'{k} nearest neighbours: top-1 {accuracy:.2%} on {test_name}')


# ---- functions ----------------------------------------------------------------------------------

def score_functions(c, trained):
    """Errors of networks and estimators that regress in context: printed, saved and drawn."""
    table = Path(c.results or run_directory(c.ckpt) / 'in_context.csv')
    figures.check_free(table, c.overwrite, '--results', ['.csv'])
    figures.check_figure(table.with_suffix('.png'), c.overwrite, '--results')
    models = {c.ckpt: trained.model}
    for path in filter(None, c.beside.split(',')):
        models[path] = open_beside(c, trained, path)

    config = trained.model.config
    function = c.dataset or trained.run.settings['dataset']
    sparsity = min(trained.run.settings['sparsity'], config.n_dims)
    examples = config.block_size // 2  # x and y are a token each
    prompts = Prompts(function, config.n_dims, examples, sparsity)
    curves = regression.curves(models, prompts, trained.device.autocast, c.prompts)
    title = (f'{function.replace("_", " ")} functions of {config.n_dims} dimensions, '
             f'{c.prompts:,} prompts')

    print(f'{title}: squared error, normalized, after this many examples')
    columns = sorted({round(i * (examples - 1) / 8) for i in range(9)})  # fewer in a short prompt
    rows = []
    for name, (errors, _) in curves.items():
        numbers = [*errors[columns], errors.mean()]
        rows.append([name, *(f'{number:.3f}' for number in numbers)])
    say_table(('', *columns, 'mean'), rows)
    in_context.draw(curves, models, title, table)  # it writes the table too


def open_beside(c, trained, path):
    """The network of another run, for the same figure. Raises Mistake if it reads other prompts."""
    run = open_run(own_or_shipped(path))
    config = trained.model.config
    for name in ('n_dims', 'block_size'):
        if run.network.get(name) != getattr(config, name):
            raise Mistake(f'--beside={path} does not read the prompts of {c.ckpt}; leave it out')
    model = load_model(run).to(trained.device.name)
    print(heading(path, run, model))
    return model


# ---- tasks of users -----------------------------------------------------------------------------

def score_another_task(c, trained):
    """What validation reports, for a task that this file does not know."""
    task, name = split_to_score(c, trained)
    metrics, count = validate(trained, task)
    print(f'{name}: {count:,} targets, {metrics_line(metrics)}')


# ---- the command --------------------------------------------------------------------------------

SCORES = {
    'text': score_next_tokens,
    BENCHMARKS: score_benchmarks,
    'masked_text': score_hidden_tokens,
    'image': score_classifier,
    'masked_image': score_hidden_patches,
    FEATURES: score_features,
    'icl': score_functions,
    ANOTHER_TASK: score_another_task,
}


def main(argv):
    c, run, network_changes = from_command_line(argv, EvalConfig)
    model = load_model(run, **network_changes)
    purpose = purpose_of(c, model.config.task)
    check_settings(c, purpose)

    dtype = c.dtype
    if dtype == 'auto':
        dtype = run.settings.get('dtype', 'auto')
        if purpose in (BENCHMARKS, 'icl'):
            dtype = 'float32'  # errors of functions can be smaller than bfloat16 can resolve
    device = Device(c.device, dtype, compile='false')
    print(f'{heading(c.ckpt, run, model)}, {name_of(device.dtype)} on {device.name}')
    SCORES[purpose](c, Trained(run, model.to(device.name), device))


def purpose_of(c, task):
    """What is scored of a network with this task: a key of SCORES."""
    settings.check_meant(c, {
        'benchmarks': ['text'],
        'probe': PICTURE_TASKS,
        'knn': PICTURE_TASKS,
    }, task)
    if c.benchmarks:
        return BENCHMARKS
    if c.probe or c.knn:
        return FEATURES
    if task in SCORES:
        return task
    return ANOTHER_TASK


def check_settings(c, purpose):
    """Raises Mistake for a setting that is out of its range or means nothing for this purpose."""
    settings.check_meant(c, ONLY_FOR, purpose)
    if c.eval_crop != 0 and c.eval_view == 'squash':
        raise Mistake('--eval_crop is for --eval_view=crop; leave one of them out')
    settings.check_ranges(c, {
        (1, 1e30): ['batch_size'],
        (2, 1e30): ['prompts'],
        (-1, 2 ** 32 - 1): ['seed'],
        (-1, 1024): ['workers'],
        (1e-9, 1): ['train_share'],
    })
    if c.knn and not re.fullmatch(r'[1-9]\d*(,[1-9]\d*)*', c.knn):
        raise Mistake(f'knn={c.knn} must be a number of neighbours, or several, such as '
                      '10,20,100,200')


if __name__ == '__main__':
    run_program(main, __doc__, EvalConfig)
