"""Train a white-box transformer, or the black box that it is compared with.

    python train.py                                      # AoT on Python's own source code, on any machine
    python train.py config/train_crate_shapes.py         # CRATE on pictures that are drawn on the spot
    python train.py config/train_aot_owt.py --batch_size=8
    torchrun --nproc_per_node=4 train.py config/train_aot_owt.py
    python train.py --init_from=resume --out_dir=out/aot_owt
    python train.py --help                               # every setting and its meaning; also after a config

A run directory holds config.json, log.jsonl, last.pt, best.safetensors and, with matplotlib, curve.png. The batch and
the dropout of a step depend on the seed and the step alone (dropout also on the number of processes), so a run that
was stopped anywhere goes on as if it never had been.
"""
import math
import os
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from datetime import timedelta

import engine  # before torch
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from tqdm import tqdm

import tasks
from engine import device, networks, optim, plots, settings, start
from engine.checkpoint import RunDirectory, check_new, held_in
from engine.settings import Mistake, quoted
from tasks import AugmentConfig, files


@dataclass
class TrainConfig:
    model: str = 'aot'                      # model_x.py: aot, crate, crate_alpha, crate_mae, dino, tost, vit, vit_mae
    dataset: str = 'stdlib'                 # folder in data_dir that prepare/NAME.py wrote; or linear, sparse_linear
    train_share: float = 1.0                # share of each class's training pictures to use; the seed decides which
    sparsity: int = 3                       # non-zero weights of a sparse_linear function
    curriculum: int = 0                     # functions: steps until a dimension and two examples are added; 0 never
    data_dir: str = 'data'                  # where prepared datasets lie
    verify: bool = False                    # first compare every byte of the dataset with the digests in its meta.json
    out_dir: str = 'out'                    # run directory
    overwrite: bool = False                 # replace a run that out_dir already holds
    init_from: str = 'scratch'              # scratch, resume, or a run directory whose weights to fine-tune
    new_head: bool = False                  # fine-tune with a fresh classifier, for other classes
    seed: int = 1337                        # of weights, batches and dropout
    batch_size: int = 12                    # sequences or pictures in a forward pass
    gradient_accumulation_steps: int = 1    # forward passes in a step, over all processes
    max_iters: int = 2000                   # steps of the run
    epochs: float = 0.0                     # length in passes over the training set; 0 leaves it to max_iters
    optimizer: str = 'adamw'                # adamw, adam, lion, or muon (on matrices inside layers, adamw on the rest)
    learning_rate: float = 6e-4             # peak rate; with muon, of all but the matrices inside layers
    muon_lr: float = 0.02                   # peak rate of muon
    momentum: float = 0.95                  # of muon
    beta1: float = 0.9                      # of adam, adamw, lion
    beta2: float = 0.95                     # of adam, adamw, lion
    weight_decay: float = 0.1               # on matrices and convolutions; biases and norms do not decay
    weight_decay_end: float = -1.0          # where it goes to by a cosine; -1 keeps it
    grad_clip: float = 1.0                  # largest norm of the gradient; 0 is no limit
    ema: float = 0.0                        # decay of an average of the weights, validated and used instead; 0 for none
    schedule: str = 'cosine'                # after the warm-up: cosine, linear or constant
    warmup_iters: int = 100                 # steps of linear warm-up
    warmup_epochs: float = 0.0              # warm-up in passes over the training set; 0 leaves it to warmup_iters
    lr_decay_iters: int = 0                 # step at which min_lr is reached; 0 means max_iters
    min_lr: float = 6e-5                    # where learning_rate decays to; muon_lr decays in proportion
    eval_interval: int = 250                # steps between validations, each of which writes checkpoints
    eval_epochs: float = 0.0                # the same in passes over the training set; 0 leaves it to eval_interval
    eval_iters: int = 100                   # validation batches, evenly spaced over the split, always the same ones
    eval_only: bool = False                 # validate, print, write nothing
    target_loss: float = 0.0                # stop at a validation loss this low; 0 never
    log_interval: int = 10                  # steps between printed and logged training losses
    probe_interval: int = 0                 # pictures: score features too at validations that it divides; 0 never
    telemetry: bool = False                 # at each validation, log R^c, sparsity and objective of every layer too
    keep_checkpoints: bool = False          # keep the weights of every validation as step_N.safetensors
    checkpoint_minutes: float = 15.0        # write last.pt this often between validations too; 0 never
    workers: int = -1                       # processes that decode JPEG pictures; -1 means one per core, at most 16
    device: str = 'auto'                    # cpu, cuda, cuda:1, mps; auto takes cuda, then mps, then cpu
    dtype: str = 'auto'                     # float32, bfloat16, float16; auto: bfloat16 if fast, else float16 on GPUs
    compile: str = 'auto'                   # true, false; auto: on CUDA under Linux
    fsdp: bool = False                      # share weights, gradients and optimizer states among the processes (FSDP2)
    recompute: bool = False                 # activation checkpointing: layers keep only their input, and compute twice
    wandb_log: bool = False                 # log to Weights & Biases too (pip install wandb)
    wandb_project: str = 'nanocrate'        # its project
    wandb_run_name: str = ''                # its run name; empty means out_dir
    tensorboard: bool = False               # log to TensorBoard too, in out_dir (pip install tensorboard)


RANGES = {
    (1, 1e30): ('batch_size', 'gradient_accumulation_steps', 'eval_interval', 'eval_iters', 'log_interval'),
    (0, 1e30): ('max_iters', 'epochs', 'warmup_iters', 'warmup_epochs', 'lr_decay_iters', 'eval_epochs', 'muon_lr',
                'min_lr', 'weight_decay', 'grad_clip', 'probe_interval', 'checkpoint_minutes', 'seed', 'sparsity',
                'curriculum'),
    (1e-30, 1e30): ('learning_rate',),
    (1e-9, 1): ('train_share',),
    (-1, 1e30): ('weight_decay_end', 'workers'),
    (0, 1 - 1e-9): ('beta1', 'beta2', 'momentum', 'ema')}


def main(argv):
    if '--help' in argv or '-h' in argv:
        return print(help_for([word for word in argv if word not in ('--help', '-h')]))
    c, augment, given, trained, recipe = start.read(argv, TrainConfig, AugmentConfig)
    resumed = c.init_from == 'resume'
    settings.check_ranges(c, RANGES)
    settings.check_choices(c, optimizer=optim.NAMES, schedule=optim.SCHEDULES, compile=('auto', 'true', 'false'))
    if c.min_lr > c.learning_rate and c.schedule != 'constant':
        raise Mistake(f'min_lr={c.min_lr} is above learning_rate={c.learning_rate}; set --min_lr to at most that')
    if not (resumed or c.eval_only or c.overwrite):
        check_new(c.out_dir)
    here = device.Device(c.device, c.dtype, c.compile, c.fsdp)

    # ---- data, network, task, optimizers
    folder = here.first(tasks.find_data, c)
    if c.verify and os.environ.get('LOCAL_RANK', '0') == '0':  # one process on each machine
        files.verify(folder)
    meta = files.read_meta(folder)
    torch.manual_seed(c.seed)
    model = start.build(c, given, trained, meta, folder).train()
    task = tasks.choose(c, augment, folder, model, here)
    for epochs, iters in start.IN_EPOCHS.items():
        if getattr(c, epochs):
            setattr(c, iters, max(1, round(getattr(c, epochs) * len(task.train) / task.batch)))
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(c.ema)) if c.ema else None
    validated = here.place(average.module) if average else model
    network = here.wrap(model, c.recompute)  # as training calls it; `model` is the same without a wrapper
    optimizers = optim.build(model, c.optimizer, c.learning_rate, c.muon_lr, (c.beta1, c.beta2), c.weight_decay,
                             c.momentum)
    step, best, seconds = 0, math.inf, 0.0
    if resumed:
        from engine.trained import restore
        step, best, seconds = restore(trained, average, optimizers, here.scaler)
    trained = None  # frees its memory
    if step > c.max_iters:
        raise Mistake(f'the run in {c.out_dir} is at step {step} already; give a larger --max_iters')

    # ---- what is said and made before the first step
    here.say(f'{c.model}: {networks.size(model) / 1e6:.2f}M parameters; learns {folder or c.dataset}, writes to '
             f'{c.out_dir}' + f'; settings of {recipe}' * bool(recipe))
    passes = f', {c.max_iters * task.batch / len(task.train):.3g} passes over the data' if folder else ''
    here.say(f'goes on at step {step:,} of ' * bool(step) + f'{c.max_iters:,} steps of {task.batch} x {task.size} '
             f'{task.unit}{passes}; a validation every {c.eval_interval:,} steps')
    here.say(f'on {here}')
    if c.eval_only:
        return here.say('validation  ' + shown(evaluate(validated, task, here)))
    if here.kind == 'cuda':
        from scoring.watch import matmul_flops, train_flops  # mfu is the share of a plain matrix product's speed
        share_of = train_flops(model, augment) * task.batch / matmul_flops(here.name, here.dtype) / here.world
    if c.telemetry:
        from analysis.layers import telemetry
    if c.probe_interval:
        from scoring.frozen import probe
    run = RunDirectory(c, here, {
        'model': c.model, 'settings': vars(c) | (vars(augment) if meta['kind'] == 'images' else {}),
        'network': asdict(model.config),
        'data': {k: meta[k] for k in ('kind', 'tokenizer', 'classes') if k in meta}}, step, resumed)
    if task.note:
        here.say(task.note)
    batches = task.train.batches(task.batch, c.seed, task.parts, step, c.max_iters, **task.train_wants)
    signals, amount = device.note_signals(), task.batch * task.size  # tokens in a step
    diverged = torch.tensor(math.inf).to(here.name)  # the first step whose loss or gradient is not finite
    begun, saved = None, time.monotonic()
    tick, since = time.perf_counter(), 0  # training is timed from here; steps since then

    while True:
        # ---- before a step: validate, save, stop
        factor = optim.lr_factor(step, c.schedule, c.warmup_iters, c.lr_decay_iters or c.max_iters,
                                 c.min_lr / c.learning_rate)  # of the peak learning rate
        lr, at, done = c.learning_rate * factor, f'step {step:6d} of {c.max_iters}', step >= c.max_iters
        validates = done or step % c.eval_interval == 0
        told, late = here.any(bool(signals), 0 < 60 * c.checkpoint_minutes < time.monotonic() - saved)
        if validates or told or late:
            refuse(here, diverged)
            seconds += time.perf_counter() - tick
            metrics = evaluate(validated, task, here, signals) if validates and not told else {}
            if not math.isfinite(metrics.get('loss', 0.0)):
                raise Mistake(f'the validation loss is not finite at step {step}; {LOWER}')
            told = here.any(told or bool(signals))[0]  # a resumed run repeats a validation that a signal ended
            if metrics and not told:
                here.say(f'{at}  validation  {shown(metrics)}  ({seconds:.0f} s of training)')
                if (warning := task.warning(metrics)) and 10 * step >= c.max_iters:
                    here.say(f'{at}  {warning}')
                with here.whole(validated):
                    more = telemetry(validated, task) if c.telemetry else {}
                    if c.probe_interval and (done or step % c.probe_interval == 0):
                        more |= (scores := probe(validated, task))
                        here.say('features  ' + shown(scores))
                run.log(step, 'val', metrics | more, lr, step * amount, seconds)
                error = task.error(metrics)  # None where the losses of two steps cannot be compared
                for name in ['best'] * (error is None or error < best) + [f'step_{step}'] * c.keep_checkpoints:
                    run.save_weights(name, validated, step)
                best = best if error is None else min(error, best)
                if c.target_loss and metrics['loss'] <= c.target_loss:
                    here.say(f'target loss {c.target_loss} reached at step {step} after {seconds:.1f} s of training')
                    done = True
            run.save_last(model, average, optimizers, here.scaler, step, best, seconds)
            tick, since, saved = time.perf_counter(), 0, time.monotonic()
            here.adapt_threads(anew=True)
            if told or done:
                break

        # ---- forward and backward: the gradients of all passes add up
        here.adapt_threads()
        optim.set_rates(optimizers, factor, optim.decay(c, step))
        torch.manual_seed((c.seed * 1_000_003 + step) * 1_009 + here.rank)  # dropout: a function of the step
        mean_loss, numbers = 0.0, Counter()
        for i in range(task.n_passes):
            x, y = task.take(next(batches), training=True)
            here.sync(network, now=i == task.n_passes - 1)
            with here.autocast:
                out, loss, *more = network(x, y)  # more: {name: number to log}, if the network has any
            mean_loss = mean_loss + loss.detach() / task.n_passes
            numbers.update({k: v / task.n_passes for k, v in numbers_of(more).items()})
            if more and 'penalty' in more[0]:  # it counts in training alone: the loss that is logged is without it
                loss = loss + more[0]['penalty']
            here.scaler.scale(loss / task.n_passes).backward()

        # ---- clip and step
        if hasattr(model, 'before_step'):  # a network may ask to be told
            model.before_step(step / c.max_iters)
        for optimizer in optimizers:
            here.scaler.unscale_(optimizer)
        norm = device.whole(torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]))
        if c.grad_clip:
            torch.nn.utils.clip_grads_with_norm_(model.parameters(), c.grad_clip, norm)
        for optimizer in optimizers:
            if not here.scaler.is_enabled() or norm.isfinite():  # float16 leaves out steps that overflow
                here.scaler.step(optimizer)
            optimizer.zero_grad(set_to_none=True)
        here.scaler.update()
        fine = (mean_loss if here.scaler.is_enabled() else norm + mean_loss).isfinite()
        diverged = torch.where(fine, diverged, diverged.clamp(max=step))
        if average:
            average.update_parameters(model)
        if hasattr(model, 'after_step'):
            model.after_step(step / c.max_iters, here.sum)

        # ---- print and log
        since += 1
        if step % c.log_interval == 0:
            refuse(here, diverged)
            loss, now = here.sum(mean_loss).item() / here.world, time.perf_counter()
            each, begun = (now - tick) / since, begun or (now, step)  # the first step, which may compile, is slower
            seconds, tick, since = seconds + now - tick, now, 0
            mfu = f'  mfu {min(1, share_of / each):.0%}' if here.kind == 'cuda' else ''
            left = (now - begun[0]) / max(1, step - begun[1]) * (c.max_iters - step - 1)  # validations included
            left = f'  {timedelta(seconds=round(left))} left' * (step > begun[1])
            here.say(f'{at}  loss {loss:.4f}  lr {lr:.2e}  {amount / each:,.0f} {task.unit}/s{mfu}{left}')
            means = {k: here.sum(v).item() / here.world for k, v in numbers.items()}
            run.log(step, 'train', means | {'loss': loss, 'grad_norm': norm.item()}, lr, (step + 1) * amount, seconds)
        step += 1

    run.close()
    if here.main:
        plots.draw_curve(c.out_dir)
    if told:
        here.say(f'stopped at step {step}; go on with: python train.py --init_from=resume '
                 f'--out_dir={quoted(c.out_dir)}')
        return 128 + (signals or [15])[0]
    here.say(f'done: {step:,} steps, {timedelta(seconds=round(seconds))} of training; {c.out_dir} holds '
             f'{", ".join(held_in(c.out_dir))}')
    data_dir = f' --data_dir={quoted(c.data_dir)}' * (c.data_dir != TrainConfig.data_dir)
    views = model.config.task == 'views'  # these have no classes to be scored by
    here.say(f'now try: python eval.py --ckpt={quoted(c.out_dir)}{data_dir}{" --knn=20" * views}')
    here.say(f'         python {tasks.LOOK[model.config.task].format(quoted(c.out_dir))}{data_dir * views}')


@torch.no_grad()
def evaluate(model, task, here, signals=()):
    """The means of task.metrics over the validation batches, of which each process has its share, perhaps one less than
    another. A signal ends it early."""
    bar = tqdm(task.validation(), 'validation', delay=3, leave=False, disable=None if here.main else True)
    sums = Counter()
    model.eval()
    with here.whole(model):
        for x, y in bar:
            if signals:
                break
            with here.autocast:
                out, loss, *more = model(x, y)
            weight, metrics = task.metrics(out, loss, y)
            metrics = metrics | numbers_of(more) | metrics | {'weight': 1.0}
            sums.update({k: float(v) * weight for k, v in metrics.items()})
    model.train()
    total = Counter()
    for part in here.gather(sums):
        total.update(part)
    return {k: v / total['weight'] for k, v in total.items() if k != 'weight'}


def numbers_of(more):
    """The numbers to log, {name: tensor}, that a network may hand over behind out and loss. What is
    larger than a number, such as tokens, is not logged."""
    handed = more[0] if more else {}
    tensors = {k: torch.as_tensor(v).detach() for k, v in handed.items()}
    return {k: v.float().reshape(()) for k, v in tensors.items() if v.numel() == 1}


LOWER = 'give a lower --learning_rate; --init_from=resume goes on from the last checkpoint, if there is one'


def refuse(here, diverged):
    """Raises Mistake if a loss or a gradient of any process was not finite."""
    step = min(here.gather(diverged.item()))
    if step < math.inf:
        raise Mistake(f'the loss or its gradient is not finite at step {step:.0f}; {LOWER}')


def shown(metrics):
    return ', '.join(f'{k} {v:.4f}' for k, v in metrics.items())


def help_for(argv):
    """Every setting. Of the run that a command line asks for, the values that it would have; of other
    networks, their defaults."""
    c, augment, given, *_ = start.read(argv, TrainConfig, AugmentConfig)
    own, *others = sorted(networks.names(), key=lambda name: name != c.model)
    text = settings.help_text(__doc__ + f'\nBelow are the values of `{" ".join(["python train.py", *argv])}`.',
                              TrainConfig, AugmentConfig, networks.network(own)[1],
                              **vars(c), **vars(augment), **given)
    return '\n'.join([text, '\nOther networks, and their defaults:',
                      *(settings.help_text('', networks.network(name)[1]).lstrip('\n') for name in others)])


if __name__ == '__main__':
    with settings.one_line_errors():
        code = main(sys.argv[1:])
        device.leave()
        sys.exit(code)
