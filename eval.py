"""Score what a trained model does: losses and accuracies of a checkpoint on a prepared dataset.

    python eval.py --ckpt=out/crate_cifar10 --split=test                       # top-1, top-5, loss
    python eval.py --ckpt=out/crate_cifar10 --dataset=cifar100 --probe=true    # linear probe of frozen features
    python eval.py --ckpt=out/crate_shapes --knn=20                            # nearest neighbours among features
    python eval.py --ckpt=out/crate_mae_shapes                                 # how well masked patches are predicted
    python eval.py --ckpt=out/crate_mae_shapes --probe=true --train_share=0.1  # features of a masked autoencoder
    python eval.py --ckpt=official:crate_base.pth --model=crate --n_head=12 --dataset=imagenet --real=real.json
    python eval.py --ckpt=out/aot_owt --benchmarks=all                         # zero-shot language benchmarks
    python eval.py --ckpt=out/aot_icl --beside=out/gpt2_icl                    # regression in context, drawn
    python eval.py --help

A linear probe follows CRATE-MAE, appendix B.1: full-batch multinomial logistic regression on the features that the model's
own classifier sees, for C = 1, 10, .. 1e5 as scikit-learn counts it. There the best C is the one that does best on the test
set; here it is chosen on a fifth of the training set that is held out, and the test set is looked at once.
"""
import json
import math
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from tqdm import tqdm

from tasks import augment
from scoring import benchmarks
from engine import settings as configurator
from tasks import files as data
from engine import plots as figures
from tasks import regression as icl
from engine import machine
from engine.machine import choose_device, choose_dtype
from engine.checkpoints import from_command_line, grid, load_model, load_weights, same_classes
from engine.run import folder_of
from tasks import dataset_of, hits, rows_at_once


@dataclass
class EvalConfig:
    ckpt: str = 'out/crate_shapes'  # a checkpoint, a run directory for its best.pt, or official:PATH for the authors' weights
    dataset: str = ''               # folder in data_dir; empty takes what the model was trained on
    data_dir: str = 'data'          # where prepared datasets lie
    split: str = ''                 # split to score; empty takes test, or else val
    probe: bool = False             # fit a linear classifier on frozen features of the training split, and score it
    knn: int = 0                    # classify by so many nearest training features, and score that; 0 does not
    train_share: float = 1.0        # share of each class's training pictures that probe and neighbours learn from
    seed: int = -1                  # which pictures those are; -1 the same as in the model's training
    real: str = ''                  # the ImageNet-ReaL labels, real.json, to score by as well
    model: str = ''                 # network of an official file: crate, crate_mae, vit or vit_mae
    benchmarks: str = ''            # zero-shot benchmarks of a language model: names with commas between them, or all
    stride: int = 0                 # tokens that the window moves over a text longer than the context; 0 half the context
    detokenize: bool = False        # undo the benchmarks' spaces around punctuation before tokenizing
    results: str = ''               # where their table goes; empty means results.csv, of functions in_context.csv, in the run
    beside: str = ''                # of functions in context: other runs in the same picture, with commas between them
    prompts: int = 1280             # of functions in context: prompts to average over
    overwrite: bool = False         # replace in_context.csv and its picture if they are there
    eval_crop: float = 0.0          # share of the short side that the centre crop keeps; 0 as in training, or 0.875
    batch_size: int = 256           # sequences or pictures a forward pass
    workers: int = -1               # processes that decode JPEG pictures; -1 one a core, at most 16
    device: str = 'auto'            # cpu, cuda, cuda:1, mps
    dtype: str = 'auto'             # float32, bfloat16, float16; auto is float32 for benchmarks and functions, else as training


PROBE_C = tuple(10.0 ** k for k in range(6))


# ---- what is computed of features (N, d) and labels (N,) ----------------------------------------------------------------


def fit_logistic(x, y, classes, C, start=None):
    """Multinomial logistic regression, full batch: weights and bias, one matrix (classes, d + 1), that minimize

        sum_i cross_entropy(W x_i + b, y_i) + |W|^2 / (2 C)

    as scikit-learn's does; the bias is free. By L-BFGS, from `start` or zero; x decides precision and device.
    """
    W = torch.zeros(classes, x.size(1) + 1, dtype=x.dtype, device=x.device) if start is None else start.clone()
    W.requires_grad_()
    optimizer = torch.optim.LBFGS([W], max_iter=1000, max_eval=2000, tolerance_grad=1e-6, tolerance_change=1e-10,
                                  history_size=20, line_search_fn='strong_wolfe')

    def objective():
        optimizer.zero_grad()
        loss = F.cross_entropy(scores(W, x), y) + W[:, :-1].square().sum() / (2 * C * len(x))
        loss.backward()
        return loss
    optimizer.step(objective)
    return W.detach()


def scores(W, x):
    return F.linear(x, W[:, :-1], W[:, -1])


def linear_probe(train, test, classes, say=print):
    """Share of the test set that a linear classifier of frozen features gets right, and the C that was chosen.

    train, test: (features (N, d), labels (N,)). C is the best of PROBE_C on a random fifth of the training pictures, held out;
    the classifier is then fitted to all.
    """
    x, y = train
    x = x.double() if x.device.type == 'cpu' else x.float()
    held = torch.zeros(len(y), dtype=torch.bool, device=y.device)
    held[torch.randperm(len(y), generator=torch.Generator().manual_seed(0))[:max(1, len(y) // 5)].to(y.device)] = True
    best, W = (-1.0, None), None
    for C in PROBE_C:
        W = fit_logistic(x[~held], y[~held], classes, C, W)
        right = (scores(W, x[held]).argmax(1) == y[held]).double().mean().item()
        say(f'  C = {C:<8g} held-out top-1 {right:.2%}')
        best = max(best, (right, -C))  # of equals the smallest C
    C = -best[1]
    W = fit_logistic(x, y, classes, C)
    return (scores(W, test[0].to(x.dtype)).argmax(1) == test[1]).double().mean().item(), C


def nearest_neighbours(train, test, classes, k, temperature=0.07):
    """Share of the test set that its k nearest training pictures get right: by cosine similarity s of features, each
    voting for its class with weight exp(s / temperature), as is usual since Wu et al. 2018."""
    x, y = F.normalize(train[0].float(), dim=1), train[1]
    k, right = min(k, len(y)), 0
    for features, labels in zip(test[0].split(256), test[1].split(256)):
        s, i = (F.normalize(features.float(), dim=1) @ x.T).topk(k)
        votes = torch.zeros(len(labels), classes, device=s.device).scatter_add_(1, y[i], (s / temperature).exp())
        right += (votes.argmax(1) == labels).sum().item()
    return right / len(test[1])


def real_accuracy(guesses, names, path):
    """Share of ImageNet's validation pictures whose guess is among their ReaL labels (Beyer et al. 2020); pictures
    without any do not count. path: real.json, a list of lists in the order ILSVRC2012_val_00000001, .. 2, .."""
    try:
        labels = json.loads(Path(path).read_text())
        places = [int(re.fullmatch(r'(?:.*/)?ILSVRC2012_val_(\d{8})\.\w+', name.decode())[1]) for name in names]
        assert isinstance(labels, list) and min(places) > 0
        right = [guess in labels[i - 1] for guess, i in zip(guesses, places) if labels[i - 1]]
    except (OSError, ValueError, TypeError, IndexError, AssertionError) as e:
        raise ValueError(f'--real={path} does not hold the labels of these pictures ({type(e).__name__}: {e}); it is real.json '
                         'of github.com/google-research/reassessed-imagenet, for the val split of imagenet') from None
    if not right:
        raise ValueError(f'--real={path} has no label for any of these pictures')
    return sum(right) / len(right)


# ---- a model over a split -----------------------------------------------------------------------------------------------


def views(images, model, c, eval_crop, draws=0):
    """A whole split in order, one batch after the other: (pixels, labels, that many random numbers a picture), where the
    model is."""
    device, total = next(model.parameters()).device, math.ceil(len(images) / c.batch_size)
    batches = images.fixed(c.batch_size, len(images), draws=draws)
    for pictures, sizes, y, numbers in tqdm(batches, f'{images.folder.name} {images.split}', total, disable=None):
        x = augment.eval_pictures(pictures.to(device), sizes, model.config.image_size, eval_crop)
        yield x, y.to(device), numbers.float().to(device)


@torch.no_grad()
def over(images, model, autocast, c, eval_crop, function):
    """function(pictures) of a whole split in order, one batch after the other: what it returns (N, ..), and labels (N,)."""
    out, labels = [], []
    for x, y, _ in views(images, model, c, eval_crop):
        with autocast:
            out.append(function(x).float())
        labels.append(y)
    return torch.cat(out), torch.cat(labels)


def probe_and_neighbours(model, folder, split, autocast, c, eval_crop):
    """Scores of frozen features: the training split's teach, the scored split's are told apart."""
    sets = data.Images(folder, 'train', c.workers, c.train_share, c.seed), data.Images(folder, split, c.workers)
    train, test = (over(images, model, autocast, c, eval_crop, model.features) for images in sets)
    classes = len(data.read_meta(folder)['classes'])
    if c.probe:
        print(f'linear probe of {train[0].size(1)} features, {len(train[1]):,} training pictures:')
        right, C = linear_probe(train, test, classes)
        print(f'linear probe: top-1 {right:.2%} on {split} ({len(test[1]):,} pictures), C = {C:g}')
    if c.knn:
        right = nearest_neighbours(train, test, classes, c.knn)
        print(f'{c.knn} nearest neighbours: top-1 {right:.2%} on {split} ({len(test[1]):,} pictures)')


def classify(model, checkpoint, folder, split, autocast, c, eval_crop):
    images = data.Images(folder, split, c.workers)
    same_classes(checkpoint, images.classes, folder)
    if c.real and images.names() is None:
        raise ValueError(f'--real needs a dataset that knows the names of its pictures; {folder} does not')
    if c.real and not Path(c.real).is_file():
        raise ValueError(f'--real={c.real}: no such file; it is real.json of github.com/google-research/reassessed-imagenet')
    logits, y = over(images, model, autocast, c, eval_crop, lambda x: model(x)[0])
    right = hits(logits, y)
    print(f'{folder} {split}: {len(y):,} pictures, loss {F.cross_entropy(logits, y).item():.4f}, '
          f'top-1 {right[:, 0].double().mean().item():.2%}, top-5 {right.any(1).double().mean().item():.2%}')
    if c.real:
        right = real_accuracy(logits.argmax(1).tolist(), images.names(), c.real)
        print(f'{folder} {split}: ReaL top-1 {right:.2%}')


@torch.no_grad()
def reconstruct(model, folder, split, autocast, c, eval_crop):
    """Print the loss of a masked autoencoder, and that of predicting the mean colour of each picture's visible patches; with
    norm_pix_loss, where patches have no colour, that of predicting each patch's own mean."""
    images, losses = data.Images(folder, split, c.workers), []
    for x, y, noise in views(images, model, c, eval_crop, draws=math.prod(grid(model.config))):
        with autocast:
            loss = model(x, noise)[1]
        hidden, target = model.hide(noise), model.target(x)
        flat = torch.zeros_like(target) if model.config.norm_pix_loss else visible_colour(target, hidden)
        losses.append(len(y) * torch.stack((loss, model.loss(x, flat, hidden))).double())
    loss, flat = (torch.stack(losses).sum(0) / len(images)).tolist()
    how = 'each patch\'s own mean' if model.config.norm_pix_loss else 'the mean colour of the visible patches'
    print(f'{folder} {split}: {len(images):,} pictures, {hidden.double().mean().item():.0%} of their patches masked, '
          f'loss {loss:.4f}; predicting {how}: {flat:.4f}')


def visible_colour(patches, hidden):
    """Patches (B, N, P) in the mean colour of their picture's visible ones; hidden bool (B, N)."""
    pixels = patches.unflatten(2, (-1, 3))                                                  # (B, N, P/3, 3)
    colour = (pixels.mean(2) * ~hidden[..., None]).sum(1) / (~hidden).sum(1)[:, None]       # (B, 3)
    return colour[:, None, None].expand_as(pixels).flatten(2)


@torch.no_grad()
def score_text(model, folder, split, autocast, c):
    """Print the loss of predicting the next tokens; or, of a model that is not causal, the hidden ones, and how many of them
    it fills in rightly."""
    causal, N = getattr(model.config, 'causal', True), model.config.block_size
    text, device = (data.Text if causal else data.MaskedText)(folder, split, N), next(model.parameters()).device
    rows = c.batch_size if causal else rows_at_once(model, c.batch_size)
    sums = torch.zeros(4, dtype=torch.float64)  # tokens, loss, the likeliest is right, one of the five likeliest is
    seen = torch.zeros(model.config.vocab_size, dtype=torch.int64)  # how often each token was to be predicted
    for x, y in tqdm(text.fixed(rows, len(text)), f'{folder.name} {split}', math.ceil(len(text) / rows), disable=None):
        x, y = x.to(device), y.to(device)
        with autocast:
            logits, loss = model(x, y)
        right = torch.zeros(y.numel(), 5) if causal else hits(logits, y)
        if not causal:
            seen += torch.bincount(y[y != -1].cpu(), minlength=len(seen))
        sums += torch.tensor([len(right), loss * len(right), right[:, 0].sum(), right.sum()], dtype=torch.float64)
    count, loss, top1, top5 = sums[0].item(), *(sums[1:] / sums[0]).tolist()
    if causal:
        print(f'{folder} {split}: {count:,.0f} tokens, loss {loss:.4f} nats, '
              f'{loss / math.log(2) * text.tokens_per_byte:.4f} bits per byte, at a context of {N}')
    else:
        print(f'{folder} {split}: {count:,.0f} hidden tokens of {len(text) * N:,}, loss {loss:.4f} nats, top-1 {top1:.2%}, '
              f'top-5 {top5:.2%}, at a context of {N}; always guessing the commonest: top-1 {seen.max() / count:.2%}')


def refuse(c, names, why):
    """Raises ValueError if one of these settings, which do not apply, was given."""
    for name in names:
        if getattr(c, name) != getattr(EvalConfig, name):
            raise ValueError(f'--{name} {why}; leave it out')


OF_PICTURES = 'probe', 'knn', 'train_share', 'real', 'eval_crop'
OF_BENCHMARKS = 'stride', 'detokenize', 'results'
OF_FUNCTIONS = 'beside', 'prompts', 'overwrite'


def zero_shot(c, checkpoint, overrides):
    """The benchmarks of language models."""
    if checkpoint['data']['kind'] != 'text':
        raise ValueError(f'--benchmarks is for language models; this checkpoint reads {checkpoint["data"]["kind"]}, '
                         'so leave it out')
    refuse(c, ('dataset', 'split', *OF_PICTURES, *OF_FUNCTIONS), 'does not go with --benchmarks')
    names = benchmarks.chosen(c.benchmarks, c.data_dir)  # before the model is built
    c.dtype = 'float32' if c.dtype == 'auto' else c.dtype
    model, autocast = ready(c, c.ckpt, checkpoint, overrides)
    if not getattr(model.config, 'causal', True):
        raise ValueError('--benchmarks is for causal models; this one sees the tokens that it is to predict, so leave it out')
    benchmarks.run(names, model, checkpoint, c, autocast)


def in_context(c, checkpoint, overrides):
    """Errors of models that regress in context, beside those of estimators: printed, saved and drawn."""
    refuse(c, ('split', *OF_PICTURES, 'stride', 'detokenize'), 'is not for functions in context')
    if c.prompts < 2:
        raise ValueError(f'prompts={c.prompts} must be at least 2')
    table, models = Path(c.results or folder_of(c.ckpt) / 'in_context.csv'), {}
    if table.suffix != '.csv' or not table.parent.is_dir():
        raise ValueError(f'--results={table} must end with .csv, in a folder that exists')
    figures.check_free(table.with_suffix('.png'), c.overwrite, '--results')
    c.dtype = 'float32' if c.dtype == 'auto' else c.dtype  # errors may be smaller than bfloat16 can tell apart
    for path in (c.ckpt, *filter(None, c.beside.split(','))):
        other = checkpoint if path == c.ckpt else load_weights(path)
        if other['data']['kind'] != 'functions':
            raise ValueError(f'{path} reads {other["data"]["kind"]}, not functions; leave it out of --beside')
        name = f'./{path}' if path in icl.estimators(sparse=True) else path
        models[name], autocast = ready(c, path, other, overrides)
    mine, *others = (m.config for m in models.values())
    for o in others:
        if (o.n_dims, o.block_size) != (mine.n_dims, mine.block_size):
            raise ValueError(f'--beside: a model of n_dims={o.n_dims} and block_size={o.block_size} does not fit one of '
                             f'{mine.n_dims} and {mine.block_size}; leave it out')
    function = c.dataset or checkpoint['config']['dataset']
    prompts = icl.Prompts(function, mine.n_dims, mine.block_size // 2, min(checkpoint['config']['sparsity'], mine.n_dims))
    title = f'{function.replace("_", " ")} functions of {prompts.d} dimensions'
    icl.report(icl.curves(models, prompts, autocast, c.prompts), models, f'{title}, {c.prompts:,} prompts', table)


def ready(c, path, checkpoint, overrides):
    """The model of the checkpoint at path, where c wants it, and the context that it computes in."""
    device = choose_device(c.device)
    dtype = choose_dtype(c.dtype, device)
    model = load_model(checkpoint, **overrides).to(device)
    print(f'{path}: {checkpoint["config"]["model"]}, {model.num_params() / 1e6:.2f}M parameters, {str(dtype)[6:]} on {device}')
    return model, machine.autocast(device, dtype)


def main(argv):
    if '--help' in argv or '-h' in argv:
        print(configurator.help_text(__doc__, EvalConfig))
        return
    c, checkpoint, overrides = from_command_line(argv, EvalConfig)
    if (c.batch_size < 1 or c.knn < 0 or c.seed < -1 or not 0 <= c.eval_crop <= 1 or not 0 < c.train_share <= 1
            or not -1 <= c.workers <= 1024):
        raise ValueError('need batch_size >= 1, knn >= 0, seed >= -1, 0 <= eval_crop <= 1, 0 < train_share <= 1 and workers >= '
                         f'-1; got {c.batch_size}, {c.knn}, {c.seed}, {c.eval_crop}, {c.train_share}, {c.workers}')
    if checkpoint['data']['kind'] == 'functions' and not c.benchmarks:
        return in_context(c, checkpoint, overrides)
    if c.benchmarks:
        return zero_shot(c, checkpoint, overrides)
    refuse(c, OF_FUNCTIONS, f'is for functions in context, and this checkpoint reads {checkpoint["data"]["kind"]}')
    refuse(c, OF_BENCHMARKS, 'is for --benchmarks, such as --benchmarks=all')
    c.seed = c.seed if c.seed >= 0 else checkpoint['config'].get('seed', 1337)
    folder, split = dataset_of(c, checkpoint)
    model, autocast = ready(c, c.ckpt, checkpoint, overrides)
    if checkpoint['data']['kind'] == 'text':
        refuse(c, OF_PICTURES, 'is for pictures, and this checkpoint reads text')
        return score_text(model, folder, split, autocast, c)
    masked = hasattr(model.config, 'mask_ratio')
    if masked and c.real:
        raise ValueError('--real is for classifiers; this checkpoint is a masked autoencoder, so leave it out')
    if c.train_share < 1 and not (c.probe or c.knn):
        raise ValueError('--train_share says what --probe and --knn learn from; add --probe=true, or leave it out')
    eval_crop = c.eval_crop or checkpoint['config'].get('eval_crop', augment.AugmentConfig.eval_crop)
    if c.probe or c.knn:
        probe_and_neighbours(model, folder, split, autocast, c, eval_crop)
    elif masked:
        reconstruct(model, folder, split, autocast, c, eval_crop)
    if not masked and (c.real or not (c.probe or c.knn)):
        classify(model, checkpoint, folder, split, autocast, c, eval_crop)


if __name__ == '__main__':
    with configurator.one_line_errors():
        main(sys.argv[1:])
