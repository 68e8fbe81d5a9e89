"""Train a white-box transformer, or the black box that it is compared with.

    python train.py                                      # AoT on Python's own source code, on any machine
    python train.py config/train_crate_shapes.py         # CRATE on pictures that are drawn on the spot
    python train.py config/train_aot_owt.py --batch_size=8
    torchrun --nproc_per_node=4 train.py config/train_aot_owt.py
    python train.py --init_from=resume --out_dir=out/aot_owt
    python train.py --help                               # every setting, its default and its meaning

A run directory holds config.json, log.csv, last.pt, best.pt and, with matplotlib, curve.png. The batch and the
dropout of a step depend on (seed, step) alone, so a run that was stopped anywhere goes on as if it never had been.
"""
import contextlib
import dataclasses
import functools
import json
import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from engine import settings as configurator
from tasks import files as data
from tasks import regression as icl
from analysis import layers as inside
from engine import machine
from engine import optim
import tasks
from tasks.augment import AugmentConfig
from engine.machine import Processes, choose_compile, choose_device, choose_dtype, leave, matmul_flops, noted_signals, train_flops
from engine.checkpoints import build, described, load_weights, model_classes
from engine.run import Log, claim, draw_curve, load_checkpoint, refuse_held, save, write_file

DEFAULTS = {  # the recipe where no config is named: by network and what the dataset holds
    ('aot', 'text'): 'train_aot_stdlib.py', ('aot', 'functions'): 'train_aot_icl_small.py',
    ('crate', 'text'): 'train_crate_shakespeare_char.py', ('crate', 'hidden text'): 'train_crate_bert_stdlib.py',
    **{(k, 'images'): f'train_{k}_shapes.py' for k in ('aot', 'crate', 'crate_mae', 'vit', 'vit_mae')}}


@dataclass
class TrainConfig:
    model: str = 'aot'                      # network: aot, crate, crate_mae, vit or vit_mae
    dataset: str = 'stdlib'                 # folder in data_dir that prepare/NAME.py wrote; or linear, sparse_linear
    train_share: float = 1.0                # share of each class's training pictures to learn from; the seed says which
    sparsity: int = 3                       # weights of a sparse_linear function that are not zero
    curriculum: int = 0                     # steps after which functions get a dimension, prompts two examples more; 0 never
    data_dir: str = 'data'                  # where prepared datasets lie
    out_dir: str = 'out'                    # run directory
    overwrite: bool = False                 # replace a run that out_dir already holds
    init_from: str = 'scratch'              # scratch, resume, resume_best, a checkpoint to fine-tune, or official:PATH
    new_head: bool = False                  # fine-tune with a fresh classifier, for other classes
    seed: int = 1337                        # of weights, batches and dropout
    batch_size: int = 12                    # sequences or pictures a forward pass
    gradient_accumulation_steps: int = 1    # forward passes a step, over all processes; the global batch is their product
    max_iters: int = 2000                   # steps of the run
    epochs: float = 0.0                     # the run in passes over the training set; 0 leaves it to max_iters
    optimizer: str = 'adamw'                # adamw, adam, lion, or muon (on matrices inside layers, adamw on the rest)
    learning_rate: float = 6e-4             # peak rate; with muon, of everything but the matrices inside layers
    muon_lr: float = 0.02                   # peak rate of muon
    momentum: float = 0.95                  # of muon
    beta1: float = 0.9                      # of adam, adamw, lion
    beta2: float = 0.95                     # of adam, adamw, lion
    weight_decay: float = 0.1               # on matrices only
    grad_clip: float = 1.0                  # largest norm of the gradient; 0 is no limit
    ema: float = 0.0                        # decay of an average of the weights, validated and used in their place; 0 none
    schedule: str = 'cosine'                # after the warm-up: cosine, linear or constant
    warmup_iters: int = 100                 # steps of linear warm-up
    warmup_epochs: float = 0.0              # the warm-up in passes; 0 leaves it to warmup_iters
    lr_decay_iters: int = 0                 # step at which min_lr is reached; 0 means max_iters
    min_lr: float = 6e-5                    # where learning_rate decays to; muon_lr decays in proportion
    eval_interval: int = 250                # steps between validations; each writes last.pt, the best so far best.pt
    eval_epochs: float = 0.0                # passes between validations; 0 leaves it to eval_interval
    eval_iters: int = 100                   # validation batches, spread evenly over the split, always the same
    eval_only: bool = False                 # validate, print, write nothing
    target_loss: float = 0.0                # stop at a validation loss this low; 0 never
    log_interval: int = 10                  # steps between printed and logged training losses
    telemetry: bool = False                 # log R^c and sparsity of every layer too, at each validation, on a fixed batch
    keep_checkpoints: bool = False          # keep the checkpoint of every validation too: step_N.pt
    workers: int = -1                       # processes that decode JPEG pictures; -1 one a core, at most 16
    device: str = 'auto'                    # cpu, cuda, cuda:1, mps; auto takes cuda, then mps, then cpu
    dtype: str = 'auto'                     # float32, bfloat16, float16; auto: bfloat16 where the hardware multiplies it
    compile: str = 'auto'                   # true, false; auto compiles on CUDA under Linux
    wandb_log: bool = False                 # log to Weights & Biases too (pip install wandb)
    wandb_project: str = 'nanocrate'        # its project
    wandb_run_name: str = ''                # its run name; empty means out_dir


MANY, BELOW_ONE = 2 ** 31 - 1, 1 - 1e-9
RANGES = {
    (1, MANY): ('batch_size', 'gradient_accumulation_steps', 'eval_interval', 'eval_iters', 'log_interval'),
    (0, MANY): ('max_iters', 'warmup_iters', 'lr_decay_iters', 'seed', 'sparsity', 'curriculum'),
    (1e-30, 1e30): ('learning_rate',),
    (1e-9, 1): ('train_share',),
    (0, 1e30): ('muon_lr', 'min_lr', 'weight_decay', 'grad_clip', 'target_loss'),
    (0, 1e6): ('epochs', 'warmup_epochs', 'eval_epochs'),
    (-1, 1024): ('workers',),
    (0, BELOW_ONE): ('beta1', 'beta2', 'momentum', 'ema')}
IN_EPOCHS = {'epochs': 'max_iters', 'warmup_epochs': 'warmup_iters', 'eval_epochs': 'eval_interval'}


# ---- settings, checkpoints ----------------------------------------------------------------------------------------


def settings(argv):
    """Command line -> (TrainConfig, AugmentConfig, the model's settings that were given, checkpoint to start from or None).

    A resumed run takes its settings from its checkpoint, then from the command line; a config file that is named
    again only says where the run is. Fine-tuning starts with the checkpoint's model, and unless a config file is named
    with its recipe too.
    """
    given = configurator.collect(argv)
    named = any(where != configurator.TYPED for _, where in given.values())
    start, out_dir, name = (str(given.get(k, (getattr(TrainConfig, k), ''))[0]) for k in ('init_from', 'out_dir', 'model'))
    resuming, checkpoint, old = start in ('resume', 'resume_best'), None, {}
    if resuming:
        checkpoint = load_checkpoint(Path(out_dir) / ('last.pt' if start == 'resume' else 'best.pt'))
    elif start != 'scratch' and not start.startswith('official:'):
        checkpoint = load_weights(start, name if 'model' in given else '')
    elif not named:
        if start != 'scratch' and 'dataset' not in given:
            raise ValueError(f'--init_from={start} does not say what to fine-tune on: give --dataset, such as '
                             '--dataset=cifar10')
        file = 'finetune.py' if start != 'scratch' else default_config(name, given)
        given = configurator.collect(argv, str(configurator.HERE / 'config' / file))
    if checkpoint:
        old, name = checkpoint['config'], checkpoint['config']['model']
    classes = TrainConfig, AugmentConfig, model_classes(name)[1]
    ours, augments, _ = ({f.name for f in dataclasses.fields(cls)} for cls in classes)
    checked = configurator.check(given, *classes)
    typed = {k: v for k, v in checked.items() if given[k][1] == configurator.TYPED}
    for epochs, iters in IN_EPOCHS.items():  # who types iterations means iterations
        if iters in typed and epochs not in typed:
            old, checked = ({k: v for k, v in d.items() if k != epochs} for d in (old, checked))
    if resuming:
        here = {'init_from': start, 'out_dir': out_dir, 'overwrite': False, 'eval_only': checked.get('eval_only', False)}
        other = {k for k, v in checked.items() if v != old.get(k) and (v, v) != old.get(k)}  # a size of 32 is 32 x 32
        for k in sorted(other & typed.keys() & old.keys()):
            if k not in ours | augments or k in ('model', 'dataset', 'train_share', 'sparsity', 'seed', 'optimizer'):
                raise ValueError(f'--{k}={configurator.show(typed[k])}: the run in {out_dir} has '
                                 f'{k}={configurator.show(old[k])}; '
                                 'leave it out, or start anew with another --out_dir')
        ignored = [k for k in checked if k in other and k not in typed and k not in here]
        if ignored:
            print(f'resuming with the settings of the run, not the config file\'s {", ".join(ignored)}; '
                  'type what you want to change')
        checked = old | typed | here
    elif checkpoint and not named:
        recipe = {k: v for k, v in old.items() if k in ours | augments}
        checked = recipe | {'out_dir': 'out', 'overwrite': False, 'eval_only': False, 'new_head': False} | checked
    checked['model'] = name
    c, a = (cls(**{k: v for k, v in checked.items() if k in names}) for cls, names in zip(classes, (ours, augments)))
    for (low, high), names in RANGES.items():
        for k in names:
            if not low <= getattr(c, k) <= high:
                raise ValueError(f'{k}={getattr(c, k)} must lie between {low} and {high}')
    if c.min_lr > c.learning_rate:
        raise ValueError(f'min_lr={c.min_lr} is above learning_rate={c.learning_rate}; set --min_lr too')
    model_settings = {k: v for k, v in checked.items() if k not in ours | augments}
    if start.startswith('official:'):
        checkpoint = load_weights(start, name, **model_settings)
    return c, a, model_settings, checkpoint


def default_config(name, given):
    """The name of the config for a network and the dataset that is asked for, if one is."""
    dataset, data_dir, causal = (str(given.get(k, ('',))[0]) for k in ('dataset', 'data_dir', 'causal'))
    is_text = dataset in tasks.TEXTS or name == 'aot' and not dataset
    kind = 'functions' if dataset in icl.FUNCTIONS else 'text' if is_text else 'images'
    with contextlib.suppress(ValueError):  # not prepared yet
        kind = data.read_meta(Path(data_dir or TrainConfig.data_dir) / dataset)['kind']
    if (name, kind) == ('crate', 'text') and causal.lower() == 'false':
        kind = 'hidden text'
    own = [file for (known, _), file in DEFAULTS.items() if known == name]
    return DEFAULTS.get((name, kind), own[0] if own else DEFAULTS['aot', 'text'])


# ---- the run ------------------------------------------------------------------------------------------------------


@torch.no_grad()
def evaluate(model, batches, autocast, processes, ranked):
    """Means over batches (x, y), of which each process has its own: the loss and, if ranked, the shares of classes or tokens y
    that are the likeliest and among the five likeliest (else 0). A y of -1 does not count."""
    was_training = model.training
    model.eval()
    total = torch.zeros(4, dtype=torch.float64)
    for x, y in batches:
        with autocast:
            logits, loss = model(x, y)
        hits = tasks.hits(logits, y) if ranked else torch.zeros(len(x), 5)
        count = len(hits)
        total += torch.tensor([count, loss.item() * count, hits[:, 0].sum().item(), hits.sum().item()], dtype=torch.float64)
    model.train(was_training)
    total = processes.sum(total)
    return (total[1:] / total[0]).tolist()


def check_finite(pending, processes, dtype):
    """The last mean training loss of pending (step, loss, gradient norm); raises at the first that is not finite.

    Looking at a loss waits for the device, so it is done every few steps, and before anything is saved.
    """
    losses = processes.sum(torch.stack([loss for _, loss, _ in pending])) / processes.world
    norms = torch.stack([norm for _, _, norm in pending])
    fine = losses.isfinite() & (norms.isfinite() | (dtype == torch.float16))  # float16's scaler skips such steps
    if not fine.all():
        step = pending[int((~fine).nonzero()[0])][0]
        raise ValueError(f'the loss or its gradient is not finite at step {step}; the last checkpoint is from before: '
                         'go on from it with --init_from=resume and a lower --learning_rate')
    pending.clear()
    return losses[-1].item()


def main(argv):
    if '--help' in argv or '-h' in argv:
        networks = dict.fromkeys(name for name, _ in DEFAULTS)
        print(configurator.help_text(__doc__, TrainConfig, AugmentConfig, *(model_classes(name)[1] for name in networks)))
        return
    c, a, given, checkpoint = settings(argv)
    resuming = c.init_from in ('resume', 'resume_best')
    processes = Processes()
    say = print if processes.main else lambda *a, **k: None
    passes, rows = processes.share(c)
    device = choose_device(c.device)
    processes.join(device)
    kind = torch.device(device).type
    dtype, compiled = choose_dtype(c.dtype, device), choose_compile(c.compile, device)

    # ---- data, and a model that fits it
    if processes.main:
        tasks.find_data(c)
    processes.wait()
    folder = tasks.find_data(c)
    meta = data.read_meta(folder) if folder else icl.META
    torch.manual_seed(c.seed)
    model = build(c.model, given, checkpoint, meta, folder, c.new_head and not resuming, resuming)
    mc, task = model.config, tasks.choose(c, a, meta, folder, model)
    model = model.to(device).train()

    # ---- lengths that were given in epochs, optimizers, and where a resumed run stood
    batch = passes * rows * processes.world  # the global batch: sequences or pictures a step
    for epochs, iters in IN_EPOCHS.items():
        if getattr(c, epochs):
            setattr(c, iters, max(1, round(getattr(c, epochs) * len(task.train) / batch)))
    optimizers = optim.build(model, c.optimizer, c.learning_rate, c.muon_lr, (c.beta1, c.beta2), c.weight_decay, c.momentum)
    scaler = torch.amp.GradScaler(kind, enabled=dtype == torch.float16)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(c.ema)) if c.ema else None
    first, best, seconds = 0, math.inf, 0.0
    if resuming:
        first, best, seconds = checkpoint['step'], checkpoint['best'], checkpoint['seconds']
        if first > c.max_iters:
            raise ValueError(f'the run in {c.out_dir} is at step {first} already; give a --max_iters above that')
        optim.restore(optimizers, checkpoint['optimizers'])
        scaler.load_state_dict(checkpoint['scaler'])
        if average and checkpoint['ema']:
            average.module.load_state_dict(checkpoint['ema'])
            average.n_averaged.fill_(first)
    del checkpoint
    schedule = functools.partial(optim.lr_factor, schedule=c.schedule, warmup_iters=c.warmup_iters,
                                 lr_decay_iters=c.lr_decay_iters or c.max_iters, min_factor=c.min_lr / c.learning_rate)
    schedule(first)  # refuse an unknown one now

    config = dataclasses.asdict(c) | (dataclasses.asdict(a) if meta['kind'] == 'images' else {}) | dataclasses.asdict(mc)
    say('settings: ' + ' '.join(f'{k}={configurator.show(v)}' for k, v in config.items()))
    unit, size = task.unit, task.size
    peak, flops = matmul_flops(device, dtype) * processes.world, train_flops(model) / size
    say(f'{c.model}: {model.num_params() / 1e6:.2f}M parameters on {kind} x {processes.world}, {str(dtype)[6:]}, '
        f'{"compiled" if compiled else "not compiled"}; a plain matmul reaches {peak / 1e12:.2f} TFLOP/s here')
    autocast = machine.autocast(device, dtype)
    forward = torch.compile(model) if compiled else model
    parallel = forward
    if processes.grouped:
        parallel = DistributedDataParallel(forward, device_ids=[device] if kind == 'cuda' else None)

    def validate():
        """What best.pt is chosen by, columns for the log, and the line that says them."""
        n = task.rows(c.batch_size)
        batches = task.valid.fixed(n, c.eval_iters * c.batch_size // n, processes.rank, processes.world, **task.numbers[1])
        batches = (task.take(batch, device, training=False) for batch in batches)
        scores = evaluate(average.module if average else forward, batches, autocast, processes, task.ranked)
        error, columns, line = task.judge(*scores)
        return error, {'loss': scores[0]} | columns, line

    if c.eval_only:
        say('validation ' + validate()[2])
        return

    watching, before, watched = 0.0, seconds, None
    if c.telemetry:
        watched = next(task.valid.fixed(min(c.batch_size, 16), 1, **task.numbers[1]))
        watched = task.take(watched, device, training=False)[:2 if meta['kind'] == 'functions' else 1]

    # ---- from here on the run writes
    log = wandb = None
    out = Path(c.out_dir)
    if not resuming:
        if not c.overwrite:
            refuse_held(c.out_dir)  # all processes end here, or none
        processes.wait()
    if processes.main:
        if c.wandb_log:
            try:
                import wandb
            except ImportError:
                raise ValueError('wandb_log=true needs Weights & Biases: pip install wandb') from None
        if not resuming:
            claim(c.out_dir)
        write_file(out / 'config.json', lambda f: json.dump(config, f, indent=1))
        log = Log(out / 'log.csv', first, inside.telemetry_columns(model) if c.telemetry else ())
        if wandb:
            wandb.init(project=c.wandb_project, name=c.wandb_run_name or c.out_dir, config=config)
    if task.note:
        say(task.note)

    def record(**row):
        if processes.main:
            row['seconds'] = round(seconds, 3)
            log.write(**row)
            if wandb:
                values = {f'{row["split"]}/{k}': v for k, v in row.items() if k not in ('step', 'split')}
                wandb.log(values, step=row['step'])

    def checkpoint_as(name, step):
        if processes.main:
            save(out / name, {
                'weights': model.state_dict(), 'ema': average.module.state_dict() if average else None,
                'model_config': dataclasses.asdict(mc), 'config': config, 'data': described(meta),
                'optimizers': [o.state_dict() for o in optimizers], 'scaler': scaler.state_dict(),
                'step': step, 'best': best, 'seconds': seconds})

    start = processes.rank * passes * rows  # of this process's part of the global batch, and that in forward passes:
    share = [slice(i, i + rows) for i in range(start, start + passes * rows, rows)]
    batches = task.train.batches(batch, c.seed, share, first, c.max_iters, **task.numbers[0])

    def train_step(step):
        """One step on the global batch; returns this process's mean loss and the norm of the whole gradient."""
        torch.manual_seed((c.seed * 1_000_003 + step) * 1_009 + processes.rank)  # dropout: a function of the step
        mean_loss = 0.0
        for i in range(passes):
            x, y = task.take(next(batches), device, training=True)
            if processes.grouped:  # gradients travel between processes once a step
                parallel.require_backward_grad_sync = i == passes - 1
            with autocast:
                loss = parallel(x, y)[1] / passes
            scaler.scale(loss).backward()
            mean_loss = mean_loss + loss.detach()
        for optimizer in optimizers:
            scaler.unscale_(optimizer)
        if c.grad_clip:
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), c.grad_clip)
        else:
            norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
        for optimizer in optimizers:
            if not scaler.is_enabled() or norm.isfinite():  # an overflow in float16 skips the step of all, not of one
                scaler.step(optimizer)
            optimizer.zero_grad(set_to_none=True)
        scaler.update()
        if average:
            average.update_parameters(model)
        return mean_loss, norm

    # ---- the loop
    pending = []  # (step, loss, gradient norm) that nobody has looked at yet
    clock = clock_step = None
    with noted_signals() as signals:
        for step in range(first, c.max_iters + 1):
            told = processes.sum(torch.tensor(len(signals))).item()
            factor = schedule(step)
            if told or step % c.eval_interval == 0 or step == c.max_iters:
                if pending:
                    check_finite(pending, processes, dtype)
                if clock:
                    seconds, clock = seconds + time.perf_counter() - clock, None
            if told:
                checkpoint_as('last.pt', step)
                say(f'stopped at step {step}; go on with: python train.py --init_from=resume --out_dir={c.out_dir}')
                break
            if step % c.eval_interval == 0 or step == c.max_iters:
                error, scores, line = validate()
                say(f'step {step:6d}  validation {line}  ({seconds:.0f} s of training)')
                if not math.isfinite(scores['loss']):
                    raise ValueError(f'the validation loss is not finite at step {step}; the last checkpoint is from '
                                     'before: go on from it with --init_from=resume and a lower --learning_rate')
                began = time.perf_counter()
                if c.telemetry and processes.main:
                    scores |= inside.telemetry(average.module if average else model, watched)
                watching += time.perf_counter() - began
                record(step=step, split='val', **scores, lr=c.learning_rate * factor, seen=step * batch * size)
                improved, best = error < best, min(error, best)
                if improved:
                    checkpoint_as('best.pt', step)
                if c.keep_checkpoints:
                    checkpoint_as(f'step_{step}.pt', step)
                checkpoint_as('last.pt', step)  # last: dying before repeats this from the last.pt before
                if c.target_loss and scores['loss'] <= c.target_loss:
                    say(f'reached the target loss {c.target_loss} at step {step} after {seconds:.1f} s of training')
                    break
            if step == c.max_iters:
                break
            if clock is None:
                clock, clock_step = time.perf_counter(), step
            optim.set_lr(optimizers, factor)
            pending.append((step, *train_step(step)))
            if step % c.log_interval == 0:
                loss, now = check_finite(pending, processes, dtype), time.perf_counter()
                speed = batch * size * (step + 1 - clock_step) / (now - clock)
                seconds, clock, clock_step = seconds + now - clock, now, step + 1
                say(f'step {step:6d}  loss {loss:.4f}  lr {c.learning_rate * factor:.2e}  {speed:,.0f} {unit}/s  '
                    f'mfu {flops * speed / peak:.0%}')
                record(step=step, split='train', loss=loss, lr=c.learning_rate * factor, seen=(step + 1) * batch * size)

    if c.telemetry:
        trained = seconds - before
        say(f'telemetry took {watching:.2f} s beside {trained:.0f} s of training, {watching / max(trained, 1e-9):.2%}')
    if processes.main:
        draw_curve(out)
    if signals:
        sys.exit(128 + signals[0])


def run(argv):
    """main, with a word of advice when memory does not suffice, and an orderly end of its processes."""
    code = None
    try:
        main(argv)
    except SystemExit as e:
        code = e.code
    except RuntimeError as e:
        if 'memory' not in str(e):
            raise
        raise ValueError(f'out of memory ({str(e).splitlines()[0][:120]}); try half the --batch_size and twice the '
                         '--gradient_accumulation_steps, or a smaller model') from None
    leave()
    if code:
        sys.exit(code)


if __name__ == '__main__':
    with configurator.one_line_errors():
        run(sys.argv[1:])
