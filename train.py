"""Train a white-box transformer, or the black box that it is compared with.

    python train.py                                      # AoT on Python's source code, anywhere
    python train.py config/train_crate_shapes.py         # CRATE on pictures drawn on the spot
    python train.py config/train_aot_owt.py --batch_size=8
    torchrun --nproc_per_node=4 train.py config/train_aot_owt.py
    python train.py --init_from=resume --out_dir=out/aot_owt
    python train.py --help                               # every setting; also after a config

A run directory holds config.json, log.jsonl, last.pt, best.safetensors and, with matplotlib,
curve.png. The batch of a step depends on nothing but the settings and the step; dropout depends on
the number of processes too. So a resumed run reproduces the uninterrupted one: on a CPU bit for
bit, on the same machine with OMP_NUM_THREADS set. Without it, a run takes a thread less while
another program needs the core, and sums are rounded differently. On a GPU nobody has compared them,
and some sums of CUDA have no fixed order.
"""
import math
import signal
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from itertools import islice

from engine.process import prepare_process

if __name__ == '__main__':
    prepare_process()  # before torch is loaded

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from tqdm import tqdm

import tasks
from engine import curve, distributed, optim, report, settings
from engine.checkpoint import RunDirectory, check_new
from engine.clock import Clock
from engine.device import Device, catch_signals
from engine.distributed import all_means, any_process, is_main, print_main, rank, world_size
from engine.mistakes import Mistake, one_line_errors
from engine.settings import asks_for_help, quoted
from engine.threads import Threads
from request import start
from request.build import build_network
from tasks import AugmentConfig, files


@dataclass
class TrainConfig:
    # data
    model: str = 'aot'                      # model_x.py: aot, crate, crate_mae, dino, tost, vit, ..
    dataset: str = 'stdlib'                 # folder in data_dir; or linear, sparse_linear
    data_dir: str = 'data'                  # where prepared datasets lie
    verify: bool = False                    # first compare the dataset with its checksums

    # the run
    out_dir: str = 'out'                    # run directory
    overwrite: bool = False                 # replace a run that out_dir already holds
    init_from: str = 'scratch'              # scratch, resume, or a run directory to fine-tune
    new_head: bool = False                  # fine-tune with a fresh classifier
    new_norm: bool = False                  # and with a fresh LayerNorm before it
    seed: int = 1337                        # of weights, batches and dropout
    batch_size: int = 12                    # sequences or pictures in a forward pass
    gradient_accumulation_steps: int = 1    # forward passes in a step, over all processes
    max_iters: int = 2000                   # steps of the run
    epochs: float = 0.0                     # length in passes over the data; 0: max_iters steps

    # optimizer
    optimizer: str = 'adamw'                # adamw, adam, lion, or muon (adamw outside of layers)
    learning_rate: float = 6e-4             # peak rate; with muon, of what muon does not train
    muon_lr: float = 0.02                   # peak rate of muon
    momentum: float = 0.95                  # of muon
    beta1: float = 0.9                      # of adam, adamw, lion
    beta2: float = 0.95                     # of adam, adamw, lion
    weight_decay: float = 0.1               # on matrices and convolutions only
    weight_decay_end: float = -1.0          # weight decay of the last step; -1: it is constant
    grad_clip: float = 1.0                  # largest norm of the gradient; 0: no limit
    ema: float = 0.0                        # decay of an average of the weights; 0: no average

    # learning-rate schedule
    schedule: str = 'cosine'                # cosine, linear, constant; as CRATE: cosine_from_start
    warmup_iters: int = 100                 # steps of linear warm-up
    warmup_epochs: float = 0.0              # warm-up in passes over the data; 0: warmup_iters
    lr_decay_iters: int = 0                 # step at which min_lr is reached; 0: max_iters
    min_lr: float = 6e-5                    # where learning_rate ends; muon_lr falls likewise

    # validation, logs, checkpoints
    eval_interval: int = 250                # steps between validations, which write checkpoints
    eval_epochs: float = 0.0                # interval in passes over the data; 0: eval_interval
    eval_iters: int = 100                   # validation batches, always the same ones
    eval_only: bool = False                 # validate, print, write nothing
    target_loss: float = 0.0                # stop at a validation loss this low; 0: never
    patience: int = 0                       # stop after N validations, none a new best; 0: never
    show_samples: bool = True               # print what the network writes at validations
    log_interval: int = 10                  # steps between printed and logged training losses
    telemetry: bool = False                 # log R^c, sparsity and objective of every layer
    keep_checkpoints: bool = False          # keep the weights of every validation
    checkpoint_minutes: float = 15.0        # write last.pt between validations too; 0: never
    wandb_log: bool = False                 # log to Weights & Biases too (pip install wandb)
    wandb_project: str = 'nanocrate'        # its project
    wandb_run_name: str = ''                # its run name; empty: out_dir
    tensorboard: bool = False               # log to TensorBoard too (pip install tensorboard)

    # hardware
    workers: int = -1                       # processes that decode JPEG; -1: one per core, up to 16
    device: str = 'auto'                    # cpu, cuda, cuda:1, mps; auto: cuda, then mps, then cpu
    dtype: str = 'auto'                     # float32, bfloat16, float16; auto: what is fast here
    compile: str = 'auto'                   # true, false; auto: on CUDA under Linux
    recompute: bool = False                 # compute layers twice, to save memory

    # for some tasks alone
    train_share: float = 1.0                # pictures: share of each class to use, by the seed
    probe_interval: int = 0                 # pictures: steps between scores of features; 0: none
    sparsity: int = 3                       # functions: non-zero weights of a sparse_linear one
    curriculum: int = 0                     # functions: steps after which prompts grow; 0: never
    loss_in_chunks: bool = False            # text: compute few logits at a time, to save memory


ADVICE = ('give a lower --learning_rate; --init_from=resume goes on from the last checkpoint, if '
          'there is one')


def main(argv):
    """Train as a command line asks. Returns the exit code, see `train`."""
    if asks_for_help(argv):
        from request.help import help_or_version
        print(help_or_version(argv, __doc__, TrainConfig, AugmentConfig))
        return None
    config_files, typed = settings.split(argv)
    return train(start.read(config_files, typed, TrainConfig, AugmentConfig))


def train(request):  # noqa: C901 (long, because the loop stands in it whole)
    """Train as a Request asks, see request/start.py. Returns the exit code: 128 + the signal's
    number after a signal, else None."""
    c = request.config
    resumed = c.init_from == 'resume'
    if not resumed and not c.eval_only and not c.overwrite:
        check_new(c.out_dir)  # now, before anything takes time

    # ---- device and processes
    device = Device(c.device, c.dtype, c.compile)
    distributed.join(device.type)  # does nothing where this process is alone
    # float16 has a small range: losses are multiplied by a scale before the backward pass
    scaler = torch.amp.GradScaler(device.type, enabled=device.dtype == torch.float16)

    # ---- data, network, task
    folder = distributed.main_first(tasks.find_data, c.dataset, c.data_dir)
    if c.verify and distributed.is_first_on_machine():
        from tasks.checksums import verify  # here and below: few runs need it
        verify(folder)
    meta = files.read_meta(folder)

    torch.manual_seed(c.seed)
    raw_model = build_network(request, meta, folder)  # with trained weights, if there are any
    raw_model.train().to(device.name)

    task = tasks.choose(c, request.augment, folder, raw_model, device)
    epochs_to_steps(c, task)  # only now the length of the dataset is known

    # one network:
    #   raw_model   what the optimizers change, and what last.pt holds
    #   model       what training calls. With one process it is raw_model itself, perhaps compiled
    #               in place; with several it is raw_model inside of DistributedDataParallel
    #   average     a copy that keeps the running mean of the weights, or None
    #   eval_model  what is validated, and saved as the best: the average, or else raw_model
    average = None
    eval_model = raw_model
    if c.ema > 0:
        # this copies raw_model, so it comes before raw_model is compiled
        average = AveragedModel(raw_model, multi_avg_fn=get_ema_multi_avg_fn(c.ema))
        eval_model = average.module
    model = device.for_training(raw_model, c.recompute, c.loss_in_chunks)

    optimizers = optim.build(raw_model, c.optimizer, c.learning_rate, c.muon_lr, (c.beta1, c.beta2),
                             c.weight_decay, c.momentum)

    # ---- where the run begins
    step = 0
    seen = 0  # tokens, pictures or prompts of all steps and processes
    best_error = math.inf
    best_step = 0
    training_seconds = 0.0
    if resumed:
        from weights.runs import restore  # here: a new run reads no trained network
        last = request.checkpoint.last
        restore(last, average, optimizers, scaler)  # the weights are there already
        step = last['step']
        # earlier versions wrote neither `seen`, as they had rows of one length, nor `best_step`
        seen = last.get('seen', step * task.rows_per_step * task.tokens_per_row)
        best_error = last['best']
        best_step = last.get('best_step', step)
        training_seconds = last['seconds']
        del last  # to free its memory
        if step > c.max_iters:
            raise Mistake(f'the run in {c.out_dir} is at step {step} already; give a larger '
                          '--max_iters')
    request.checkpoint = None  # frees its memory

    report.print_plan(request, task, raw_model, folder, step)
    if c.eval_only:
        optim.to_eval(optimizers)
        metrics = evaluate(eval_model, task, step)
        print_main('validation  ' + report.metrics_line(metrics))
        return None

    # ---- what only some runs need
    if c.telemetry:
        from analysis.layers import telemetry
    if c.probe_interval > 0:
        from scoring.probes import probe
    # what a network does before and after the step of the optimizers: DINO freezes its last layer
    # for a while, and its teacher follows its student
    before_step = getattr(raw_model, 'before_step', no_hook)
    after_step = getattr(raw_model, 'after_step', no_hook)

    # ---- files, batches, clocks
    with RunDirectory(c, config_json(request, meta, raw_model), step, resumed) as run:
        batches = task.training_batches(first_step=step)
        threads = Threads(device.type)  # of the CPU: fewer where another program needs a core
        signals = catch_signals()  # a list: the numbers of those that have come, such as Ctrl-C
        clock = Clock(training_seconds, step)  # stands still during validations
        last_save_time = time.monotonic()
        # the first step whose loss or gradient was not finite; infinity as long as there is none
        first_bad_step = torch.tensor(math.inf).to(device.name)

        while True:
            # ---- what is due before this step
            progress = f'step {step:6d} of {c.max_iters}'
            lr_factor = learning_rate_factor(c, step)
            lr = c.learning_rate * lr_factor
            finished = step >= c.max_iters
            time_to_validate = finished or step % c.eval_interval == 0
            minutes_since_save = (time.monotonic() - last_save_time) / 60
            time_to_save = c.checkpoint_minutes > 0 and minutes_since_save > c.checkpoint_minutes
            # all processes must go the same way, even if one alone got the signal
            time_to_save, stop_requested = any_process(time_to_save, bool(signals))

            # ---- validate, save, stop. Skip this block to read how a step is made
            if time_to_validate or time_to_save or stop_requested:
                raise_if_diverged(first_bad_step)  # waits for the GPU
                clock.stop()

                validated = False
                # a schedule-free optimizer validates an average of the weights that it trains
                trained_weights = optim.to_eval(optimizers)
                if time_to_validate and not stop_requested:
                    metrics = evaluate(eval_model, task, step, signals)
                    validated = metrics is not None
                    if not validated:  # a signal came; the resumed run begins with this validation
                        stop_requested = True

                if validated:
                    print_main(f'{progress}  validation  {report.metrics_line(metrics)}  '
                               f'({clock.training_seconds:.0f} s of training)')
                    warning = task.warning(metrics)
                    if warning and step >= 0.1 * c.max_iters:  # at first every network looks bad
                        print_main(f'{progress}  {warning}')
                    if c.show_samples and is_main():
                        sample = sample_of(eval_model, task, device, c.seed)
                        if sample:
                            print_main(f'{progress}  sample  {sample}')
                    if c.telemetry:
                        metrics |= telemetry(eval_model, task)
                    if c.probe_interval > 0 and (finished or step % c.probe_interval == 0):
                        scores = probe(eval_model, task)
                        print_main('features  ' + report.metrics_line(scores))
                        metrics |= scores

                    # the log, then weights, then last.pt. A resumed run begins where the last.pt on
                    # the disk says, and makes the later steps and lines of the log again
                    run.log(step, 'val', metrics, lr, seen, clock.training_seconds)

                    # the error is 1 - top1 for classes, else the loss. DINO has none: its losses of
                    # two steps cannot be compared, so its latest weights are kept
                    error = task.error(metrics)
                    is_best = error is None or error < best_error
                    if is_best:
                        run.save_weights('best', eval_model, step)
                        best_error = error
                        best_step = step
                    if c.keep_checkpoints:
                        run.save_weights(f'step_{step}', eval_model, step)

                    reason = reason_to_end(c, metrics, step, best_step)
                    if reason:
                        print_main(f'{progress}  ends: {reason}')
                        finished = True

                optim.to_train(optimizers, trained_weights)
                if not validated:  # one batch looks at the weights before last.pt holds them
                    evaluate(raw_model, task, step, most_batches=1)
                run.save_last(raw_model, average, optimizers, scaler, step, seen, best_error,
                              best_step, clock.training_seconds)
                if stop_requested or finished:
                    break
                last_save_time = time.monotonic()
                threads.restart()
                clock.start(step)

            # ---- forward and backward: the gradients of all passes add up
            threads.adapt()
            optim.set_rates(optimizers, lr_factor, weight_decay_at(c, step))
            torch.manual_seed(dropout_seed(c, step))  # so a resumed run draws the same numbers

            mean_loss = 0.0
            mean_extras = Counter()
            seen_before = seen
            # n_passes: of this process; several processes share the rows of a step
            for micro_step in range(task.n_passes):
                x, y = next(batches)
                seen += task.count(x, y) * world_size()
                if world_size() > 1:
                    # gradients travel between processes in the last pass alone, as with no_sync()
                    is_last_pass = micro_step == task.n_passes - 1
                    model.require_backward_grad_sync = is_last_pass

                with device.autocast:
                    objective, loss, extras = training_loss(model, x, y)
                scaler.scale(objective / task.n_passes).backward()

                # kept on the device: .item() here would wait for the GPU in every pass
                mean_loss = mean_loss + loss.detach() / task.n_passes
                for name, number in extras.items():
                    mean_extras[name] += number / task.n_passes

            if world_size() > 1:
                raise_if_weight_unused(raw_model)

            # ---- clip and step
            before_step(step / c.max_iters)
            for optimizer in optimizers:
                scaler.unscale_(optimizer)
            gradients = [p.grad for p in raw_model.parameters() if p.grad is not None]
            grad_norm = torch.nn.utils.get_total_norm(gradients)
            if c.grad_clip > 0:
                torch.nn.utils.clip_grads_with_norm_(raw_model.parameters(), c.grad_clip, grad_norm)

            # Where a float16 gradient overflows, no optimizer takes this step. (scaler.step alone
            # would skip only the optimizer whose gradients overflowed.) scaler.update then lowers
            # the scale
            overflow = scaler.is_enabled() and not grad_norm.isfinite()
            if not overflow:
                for optimizer in optimizers:
                    scaler.step(optimizer)
            scaler.update()
            for optimizer in optimizers:
                optimizer.zero_grad()

            # remember the first step whose loss or gradient is not finite. The next log or
            # validation looks at it, because to look at it now would wait for the GPU
            is_finite = mean_loss.isfinite()
            if not scaler.is_enabled():  # a float16 gradient that overflows is no fault, see above
                is_finite = is_finite & grad_norm.isfinite()
            bad_step = torch.where(is_finite, math.inf, step)  # infinity if it is good
            first_bad_step = torch.minimum(first_bad_step, bad_step)

            if average is not None:
                average.update_parameters(raw_model)
            after_step(step / c.max_iters, distributed.all_sum)  # DINO sums over all processes

            # ---- print and log
            if step % c.log_interval == 0:
                raise_if_diverged(first_bad_step)  # waits for the GPU
                row = all_means({**mean_extras, 'loss': mean_loss})
                row['grad_norm'] = grad_norm.item()
                clock.lap(step)

                line = (f'{progress}  loss {row["loss"]:.4f}  lr {lr:.2e}  '
                        f'{(seen - seen_before) / clock.step_seconds:,.0f} {task.unit}/s')
                print_main(line + report.time_left(clock.seconds_left(step, c.max_iters)))
                run.log(step, 'train', row, lr, seen, clock.training_seconds)
            step += 1

    # ---- the end
    if is_main() and c.telemetry:
        from analysis import watched
        watched.draw_curve(c.out_dir)
    elif is_main():
        curve.draw_curve(c.out_dir)
    if stop_requested:
        print_main(f'stopped at step {step}; go on with: python train.py --init_from=resume '
                   f'--out_dir={quoted(c.out_dir)}')
        if signals:
            return 128 + signals[0]
        return 128 + signal.SIGTERM  # another process got the signal
    report.print_end(c, step, clock.training_seconds, best_step, tasks.commands_to_try(c, task))
    return None


def no_hook(*arguments):
    """Stands in for before_step and after_step, which few networks have."""


def reason_to_end(c, metrics, step, best_step):
    """Why a run ends with this validation, before max_iters; '' if it goes on."""
    if c.target_loss != 0 and metrics['loss'] <= c.target_loss:
        return f'the target loss of {c.target_loss} is reached'
    if c.patience > 0 and step - best_step >= c.patience * c.eval_interval:
        return f'no validation was better since step {best_step}'
    return ''


def dropout_seed(c, step):
    """A number that differs for each seed, step and process, below a million steps and a thousand
    processes."""
    return (c.seed * 1_000_003 + step) * 1_009 + rank()


# ---- loss ---------------------------------------------------------------------------------------

def training_loss(model, x, y):
    """Of a batch: (what the step minimizes, the loss that is logged, {name: number to log}). A term
    of your own, such as distillation from another network, goes in here."""
    out, loss, extras = forward(model, x, y)
    objective = loss
    if 'penalty' in extras:  # counts in training alone; the loss that is logged is without it
        objective = loss + extras['penalty']
    return objective, loss, numbers_of(extras)


def forward(model, x, y):
    """(out, loss, extras) of a network, which returns that or (out, loss) alone. The loss of a
    batch without targets is 0. Raises Mistake if it returns something else."""
    returned = model(x, y)
    if not isinstance(returned, tuple) or len(returned) not in (2, 3) or returned[1] is None:
        raise Mistake('forward(x, y) of a network must return (out, loss), or (out, loss, extras), '
                      'and here the loss must not be None; docs/extend.md says more')
    extras = {}
    if len(returned) == 3:
        out, loss, extras = returned
    else:
        out, loss = returned
    if y is not None and not y.is_floating_point():
        # -1 is no target, and a mean over no targets is NaN
        loss = torch.where((y != -1).any(), loss, 0.0)
    return out, loss, extras


def numbers_of(extras):
    """{name: tensor of one number, without its gradient} of a network's extras. What is larger than
    a number, such as tokens, is left out. Raises Mistake for a name that the log has already."""
    check_names(extras)
    numbers = {}
    for name, value in extras.items():
        value = torch.as_tensor(value).detach()
        if value.numel() == 1:
            numbers[name] = value.float().reshape(())
    return numbers


def check_names(names):
    """Raises Mistake if a number would take the place of one that the log has already."""
    for name in ('step', 'split', 'loss', 'lr', 'seen', 'seconds', 'grad_norm'):
        if name in names:
            raise Mistake(f'the log has a number called {name} already; give yours another name')


def raise_if_weight_unused(model):
    """Raises Mistake for a weight that gets no gradient. DistributedDataParallel sends gradients in
    groups, and never sends one that lacks a weight. It would stop in the next step, without the
    name of the weight."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.grad is None:
            raise Mistake(f'{name} gets no gradient, which several processes cannot share: use it '
                          'in forward, or call requires_grad_(False) on it')


def raise_if_diverged(first_bad_step):
    """Raises Mistake if a loss or a gradient of any process was not finite."""
    first = min(distributed.gather(first_bad_step.item()))
    if first < math.inf:
        raise Mistake(f'the loss or its gradient is not finite at step {first:.0f}; {ADVICE}')


# ---- validation ---------------------------------------------------------------------------------

def evaluate(model, task, step, signals=(), most_batches=None):
    """{name: number} of a validation, or None if a signal came meanwhile. most_batches: of each
    process; None looks at all. Raises Mistake if a weight or the loss is not finite."""
    advice = ADVICE
    if step == 0:
        advice = 'no step has been taken yet: look at the network and at the data'
    if not all(p.isfinite().all() for p in model.parameters()):
        raise Mistake(f'the weights are not finite at step {step}; {advice}')
    batches = islice(task.validation_batches(), most_batches)
    sums, count = sum_metrics(model, task, task.device, batches, signals)
    if any(distributed.gather(bool(signals))):
        return None

    metrics = task.finish(sums, count)
    if not math.isfinite(metrics['loss']):
        raise Mistake(f'the validation loss is not finite at step {step}; {advice}')
    return metrics


@torch.no_grad()
def sum_metrics(model, task, device, batches, signals=()):
    """({name: sum of a metric over all targets}, the number of targets), over the batches of all
    processes. Each process computes its share, perhaps one batch less than another."""
    no_bar = None if is_main() else True  # None: none where standard error is no terminal
    bar = tqdm(batches, 'validation', delay=3, leave=False, disable=no_bar)
    sums = Counter()
    count = 0
    model.eval()
    with device.uncompiled():
        for x, y in bar:
            if signals:
                break
            with device.autocast:
                out, loss, extras = forward(model, x, y)
            n_targets, metrics = task.metrics(out, loss, y)
            check_names(metrics.keys() - {'loss'})
            for name, number in numbers_of(extras).items():
                metrics.setdefault(name, number)
            for name, mean in metrics.items():
                mean = torch.as_tensor(mean).cpu().double()
                if n_targets == 0:
                    mean = torch.zeros_like(mean)  # it may be NaN
                sums[name] += n_targets * mean
            count += n_targets
    model.train()

    total = Counter()
    for sums_of_process in distributed.gather(sums):
        total.update(sums_of_process)  # of a Counter: it adds
    return total, sum(distributed.gather(count))


@torch.no_grad()
def sample_of(model, task, device, seed):
    """What the network makes of a few examples now, in a line."""
    torch.manual_seed(seed)  # the loop sets its own seed before every step
    model.eval()
    with device.uncompiled(), device.autocast:
        sample = task.sample(model)
    model.train()
    return sample


# ---- schedules ----------------------------------------------------------------------------------

def learning_rate_factor(c, step):
    """The share of the peak learning rate at a step: a linear warm-up, then what the schedule says,
    down to min_lr or constant. With cosine_from_start the cosine begins at step 0, and the smaller
    one of warm-up and cosine counts."""
    warmup = (step + 1) / (c.warmup_iters + 1)
    last_decay_step = c.lr_decay_iters or c.max_iters
    lowest = c.min_lr / c.learning_rate
    if c.schedule == 'cosine_from_start':
        fraction = min(1.0, step / max(1, last_decay_step))
        return min(warmup, cosine(1.0, lowest, fraction))
    if step < c.warmup_iters:
        return warmup
    if c.schedule == 'constant':
        return 1.0
    decay_iters = max(1, last_decay_step - c.warmup_iters)
    fraction = min(1.0, (step - c.warmup_iters) / decay_iters)
    if c.schedule == 'cosine':
        return cosine(1.0, lowest, fraction)
    return lowest + (1 - lowest) * (1 - fraction)


def weight_decay_at(c, step):
    """The weight decay at a step: a cosine from weight_decay to weight_decay_end."""
    if c.weight_decay_end < 0:
        return c.weight_decay
    return cosine(c.weight_decay, c.weight_decay_end, step / c.max_iters)


def cosine(first, last, fraction):
    """From first to last on half a wave, which is flat at both ends."""
    return last + (first - last) * (1 + math.cos(math.pi * fraction)) / 2


def epochs_to_steps(c, task):
    """Put lengths that were given in passes over the training set into steps."""
    for in_steps, in_epochs in start.LENGTHS.items():
        epochs = getattr(c, in_epochs)
        if epochs > 0:
            steps = epochs * len(task.train) / task.rows_per_step
            setattr(c, in_steps, max(1, round(steps)))


# ---- config.json --------------------------------------------------------------------------------

def config_json(request, meta, model):
    """What config.json holds: enough to resume the run, and to use its weights elsewhere."""
    run_settings = dict(vars(request.config))
    if meta['kind'] == 'images':
        run_settings.update(vars(request.augment))
    of_data = ('kind', 'tokenizer', 'classes', 'shape', 'sha256')
    data = {name: meta[name] for name in of_data if name in meta}
    return {
        'model': request.config.model,
        'settings': run_settings,
        'network': asdict(model.config),
        'data': data,
    }


if __name__ == '__main__':
    with one_line_errors():
        code = main(sys.argv[1:])
        distributed.leave()
        sys.exit(code)
