"""Train a white-box transformer, or the black box that it is compared with.

    python train.py                                      # AoT on Python's own source code, on any machine
    python train.py config/train_aot_owt.py --batch_size=8
    torchrun --nproc_per_node=4 train.py config/train_aot_owt.py
    python train.py --init_from=resume --out_dir=out/aot_owt
    python train.py --help                               # every setting, its default and its meaning

A run directory holds config.json, log.csv, last.pt, best.pt and, with matplotlib, curve.png. The batch and the
dropout of a step depend on (seed, step) alone, so a run that was stopped anywhere goes on as if it never had been.
"""
import dataclasses
import functools
import json
import math
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

import configurator
import data
import optim
from machine import Processes, choose_compile, choose_device, choose_dtype, matmul_flops, noted_signals
from rundir import Log, claim, draw_curve, load_checkpoint, refuse_held, save, write_file

DEFAULT_CONFIG = str(configurator.HERE / 'config' / 'train_aot_stdlib.py')
OFFLINE = ('stdlib',)  # datasets that are prepared without a network, and so without asking


@dataclass
class TrainConfig:
    model: str = 'aot'                      # network: aot
    dataset: str = 'stdlib'                 # folder in data_dir that prepare/NAME.py wrote
    data_dir: str = 'data'                  # where prepared datasets lie
    out_dir: str = 'out'                    # run directory
    overwrite: bool = False                 # replace a run that out_dir already holds
    init_from: str = 'scratch'              # scratch, resume, resume_best, or a checkpoint to fine-tune
    seed: int = 1337                        # of weights, batches and dropout
    batch_size: int = 12                    # sequences a forward pass
    gradient_accumulation_steps: int = 1    # forward passes a step, over all processes; the global batch is their product
    max_iters: int = 2000                   # steps of the run
    optimizer: str = 'adamw'                # adamw, adam, lion, or muon (on matrices inside layers, adamw on the rest)
    learning_rate: float = 6e-4             # peak rate; with muon, of everything but the matrices inside layers
    muon_lr: float = 0.02                   # peak rate of muon
    momentum: float = 0.95                  # of muon
    beta1: float = 0.9                      # of adam, adamw, lion
    beta2: float = 0.95                     # of adam, adamw, lion
    weight_decay: float = 0.1               # on matrices only
    grad_clip: float = 1.0                  # largest norm of the gradient; 0 is no limit
    schedule: str = 'cosine'                # after the warm-up: cosine, linear or constant
    warmup_iters: int = 100                 # steps of linear warm-up
    lr_decay_iters: int = 0                 # step at which min_lr is reached; 0 means max_iters
    min_lr: float = 6e-5                    # where learning_rate decays to; muon_lr decays in proportion
    eval_interval: int = 250                # steps between validations; each writes last.pt, the best so far best.pt
    eval_iters: int = 100                   # validation batches, spread evenly over the split, always the same
    eval_only: bool = False                 # validate, print, write nothing
    target_loss: float = 0.0                # stop at a validation loss this low; 0 never
    log_interval: int = 10                  # steps between printed and logged training losses
    device: str = 'auto'                    # cpu, cuda, cuda:1, mps; auto takes cuda, then mps, then cpu
    dtype: str = 'auto'                     # float32, bfloat16, float16; auto: bfloat16 where the hardware multiplies it
    compile: str = 'auto'                   # true, false; auto compiles on CUDA under Linux
    wandb_log: bool = False                 # log to Weights & Biases too (pip install wandb)
    wandb_project: str = 'nanocrate'        # its project
    wandb_run_name: str = ''                # its run name; empty means out_dir


MANY, BELOW_ONE = 2 ** 31 - 1, 1 - 1e-9
RANGES = {
    (1, MANY): ('batch_size', 'gradient_accumulation_steps', 'eval_interval', 'eval_iters', 'log_interval'),
    (0, MANY): ('max_iters', 'warmup_iters', 'lr_decay_iters', 'seed'),
    (1e-30, 1e30): ('learning_rate',),
    (0, 1e30): ('muon_lr', 'min_lr', 'weight_decay', 'grad_clip', 'target_loss'),
    (0, BELOW_ONE): ('beta1', 'beta2', 'momentum')}


def model_classes(name):
    """(Model, Config) by name."""
    if name == 'aot':
        import model_aot
        return model_aot.AoT, model_aot.AoTConfig
    raise ValueError(f"model='{name}' is unknown; choose aot")


# ---- settings, checkpoints ----------------------------------------------------------------------------------------


def settings(argv):
    """Command line -> (TrainConfig, the model's settings that were given, checkpoint to go on from or None).

    A resumed run takes its settings from its checkpoint, then from the command line; a config file that is named
    again only says where the run is.
    """
    given = configurator.collect(argv, DEFAULT_CONFIG)
    Config = model_classes(given.get('model', ('aot', ''))[0])[1]
    checked = configurator.check(given, TrainConfig, Config)
    ours = {f.name for f in dataclasses.fields(TrainConfig)}
    c = TrainConfig(**{k: v for k, v in checked.items() if k in ours})
    checkpoint = None
    if c.init_from in ('resume', 'resume_best'):
        checkpoint = load_checkpoint(Path(c.out_dir) / ('last.pt' if c.init_from == 'resume' else 'best.pt'))
        here = {'init_from': c.init_from, 'out_dir': c.out_dir, 'overwrite': False, 'eval_only': c.eval_only}
        old, typed = checkpoint['config'], {k: v for k, v in checked.items() if given[k][1] == configurator.TYPED}
        for k, v in typed.items():
            if v != old.get(k, v) and (k not in ours or k in ('model', 'dataset', 'seed', 'optimizer')):
                raise ValueError(f'--{k}={v}: the run in {c.out_dir} has {k}={old[k]}; leave it out, '
                                 'or start anew with another --out_dir')
        ignored = [k for k, (_, where) in given.items() if where not in (configurator.TYPED, DEFAULT_CONFIG)
                   and checked[k] != old.get(k) and k not in here]
        if ignored:
            print(f'resuming with the settings of the run, not the config file\'s {", ".join(ignored)}; '
                  'type what you want to change')
        checked = old | typed | here
        c = TrainConfig(**{k: v for k, v in checked.items() if k in ours})
        if checkpoint['step'] > c.max_iters:
            raise ValueError(f'the run in {c.out_dir} is at step {checkpoint["step"]} already; '
                             'give a --max_iters above that')
    elif c.init_from != 'scratch':  # the model is the checkpoint's, except for what the user asked
        checkpoint = load_checkpoint(c.init_from)
        checked = {k: v for k, v in checked.items() if k in ours or given[k][1] != DEFAULT_CONFIG}
    for (low, high), names in RANGES.items():
        for name in names:
            if not low <= getattr(c, name) <= high:
                raise ValueError(f'{name}={getattr(c, name)} must lie between {low} and {high}')
    if c.min_lr > c.learning_rate:
        raise ValueError(f'min_lr={c.min_lr} is above learning_rate={c.learning_rate}; set --min_lr too')
    return c, {k: v for k, v in checked.items() if k not in ours}, checkpoint


def load_model(checkpoint, **overrides):
    """The model that a checkpoint holds, in evaluation mode. Raises ValueError if overrides do not fit its weights."""
    Model, Config = model_classes(checkpoint['config']['model'])
    try:
        model = Model(Config(**checkpoint['model_config'] | overrides))
    except TypeError as e:
        raise ValueError(f'the checkpoint is from another version of {Config.__name__} ({e})') from None
    new, weights = model.state_dict(), checkpoint['weights']
    wrong = [k for k in sorted(new.keys() | weights.keys())
             if k not in new or k not in weights or new[k].shape != weights[k].shape]
    if wrong:
        raise ValueError(f'the checkpoint does not fit {", ".join(f"{k}={v}" for k, v in overrides.items())} '
                         f'({wrong[0]} differs); leave out what its own config.json says otherwise')
    model.load_state_dict(weights)
    return model.eval()


# ---- the run ------------------------------------------------------------------------------------------------------


def find_data(c):
    """The folder of the dataset, prepared now if that needs no network. Raises ValueError with the command to type."""
    folder = Path(c.data_dir) / c.dataset
    if not (folder / 'meta.json').exists():
        script = configurator.HERE / 'prepare' / f'{c.dataset}.py'
        if c.dataset not in OFFLINE:
            known = sorted(p.name for p in Path(c.data_dir).glob('*') if (p / 'meta.json').exists())
            command = f'run: python prepare/{c.dataset}.py' if script.exists() else \
                f'prepared are {", ".join(known) or "none"}; for your own text: python prepare/text.py FILES --out {folder}'
            raise ValueError(f'no data in {folder}; {command}')
        print(f'no data in {folder} yet; running python prepare/{c.dataset}.py')
        if subprocess.run([sys.executable, str(script), '--out', str(folder)]).returncode:
            raise ValueError(f'python prepare/{c.dataset}.py failed')
    return folder


@torch.no_grad()
def evaluate(model, batches, device, autocast, processes):
    """Mean loss over batches, which the processes share."""
    model.eval()
    total = torch.zeros(2, dtype=torch.float64)
    for i, (x, y) in enumerate(batches):
        if i % processes.world == processes.rank:
            with autocast:
                loss = model(x.to(device), y.to(device))[1]
            total += torch.tensor([loss.item() * len(x), len(x)], dtype=torch.float64)
    model.train()
    loss_sum, count = processes.sum(total).tolist()
    return loss_sum / count


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
        print(configurator.help_text(__doc__, TrainConfig, model_classes('aot')[1]))
        return
    c, given, checkpoint = settings(argv)
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
        find_data(c)
    processes.wait()
    folder = find_data(c)
    meta = data.read_meta(folder)
    torch.manual_seed(c.seed)
    if checkpoint:
        if checkpoint['tokenizer'] != meta['tokenizer']:
            raise ValueError(f'the checkpoint reads {checkpoint["tokenizer"]["name"]} tokens, {folder} holds other ones '
                             f'({meta["tokenizer"]["name"]}); prepare it with the same tokenizer, or start from scratch')
        model = load_model(checkpoint, **{} if resuming else given)
    else:
        Model, ModelConfig = model_classes(c.model)
        model = Model(ModelConfig(**{'vocab_size': meta['vocab_size']} | given))
    mc = model.config
    if mc.vocab_size < meta['vocab_size']:
        raise ValueError(f'vocab_size={mc.vocab_size} is too small for {folder}, which needs {meta["vocab_size"]}; '
                         'leave it out')
    train_data, val_data = (data.Text(folder, split, mc.block_size) for split in ('train', 'val'))
    model = model.to(device).train()

    # ---- optimizers, and where a resumed run stood
    optimizers = optim.build(model, c.optimizer, c.learning_rate, c.muon_lr, (c.beta1, c.beta2), c.weight_decay, c.momentum)
    scaler = torch.amp.GradScaler(kind, enabled=dtype == torch.float16)
    first, best, seconds = 0, math.inf, 0.0
    if resuming:
        first, best, seconds = checkpoint['step'], checkpoint['best'], checkpoint['seconds']
        optim.restore(optimizers, checkpoint['optimizers'])
        scaler.load_state_dict(checkpoint['scaler'])
    del checkpoint
    schedule = functools.partial(optim.lr_factor, schedule=c.schedule, warmup_iters=c.warmup_iters,
                                 lr_decay_iters=c.lr_decay_iters or c.max_iters, min_factor=c.min_lr / c.learning_rate)
    schedule(first)  # refuse an unknown one now

    config = dataclasses.asdict(c) | dataclasses.asdict(mc)
    say('settings: ' + ' '.join(f'{k}={configurator.show(v)}' for k, v in config.items()))
    tokens_per_step = c.gradient_accumulation_steps * c.batch_size * mc.block_size
    peak, flops = matmul_flops(device, dtype) * processes.world, model.flops_per_token()
    say(f'{c.model}: {model.num_params() / 1e6:.2f}M parameters on {kind} x {processes.world}, {str(dtype)[6:]}, '
        f'{"compiled" if compiled else "not compiled"}; a plain matmul reaches {peak / 1e12:.2f} TFLOP/s here')
    autocast = torch.autocast(kind, dtype, enabled=dtype != torch.float32)
    forward = torch.compile(model) if compiled else model
    parallel = forward
    if processes.grouped:
        parallel = DistributedDataParallel(forward, device_ids=[device] if kind == 'cuda' else None)

    def validate():
        loss = evaluate(forward, val_data.fixed(c.batch_size, c.eval_iters), device, autocast, processes)
        return loss, loss / math.log(2) * val_data.tokens_per_byte

    if c.eval_only:
        say('validation loss {:.4f} nats a token, {:.4f} bits per byte'.format(*validate()))
        processes.leave()
        return

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
        log = Log(out / 'log.csv', first)
        if wandb:
            wandb.init(project=c.wandb_project, name=c.wandb_run_name or c.out_dir, config=config)

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
                'weights': model.state_dict(), 'model_config': dataclasses.asdict(mc), 'config': config,
                'optimizers': [o.state_dict() for o in optimizers], 'scaler': scaler.state_dict(),
                'tokenizer': meta['tokenizer'], 'step': step, 'best': best, 'seconds': seconds})

    def train_step(step):
        """One step on the global batch; returns this process's mean loss and the norm of the whole gradient."""
        torch.manual_seed((c.seed * 1_000_003 + step) * 1_009 + processes.rank)  # dropout: a function of the step
        x, y = train_data.batch(passes * rows * processes.world, c.seed, step, processes.rank, processes.world)
        if kind == 'cuda':
            x, y = x.pin_memory(), y.pin_memory()
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        mean_loss = 0.0
        for i, (xi, yi) in enumerate(zip(x.split(rows), y.split(rows))):
            if processes.grouped:  # gradients travel between processes once a step
                parallel.require_backward_grad_sync = i == passes - 1
            with autocast:
                loss = parallel(xi, yi)[1] / passes
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
                loss, bits = validate()
                say(f'step {step:6d}  validation loss {loss:.4f}, {bits:.4f} bits per byte  ({seconds:.0f} s of training)')
                if not math.isfinite(loss):
                    raise ValueError(f'the validation loss is not finite at step {step}; the last checkpoint is from '
                                     'before: go on from it with --init_from=resume and a lower --learning_rate')
                record(step=step, split='val', loss=loss, bits_per_byte=bits, lr=c.learning_rate * factor,
                       tokens=step * tokens_per_step)
                improved, best = loss < best, min(loss, best)
                if improved:
                    checkpoint_as('best.pt', step)
                checkpoint_as('last.pt', step)  # second: dying between the two repeats this from the last.pt before
                if c.target_loss and loss <= c.target_loss:
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
                speed = tokens_per_step * (step + 1 - clock_step) / (now - clock)
                seconds, clock, clock_step = seconds + now - clock, now, step + 1
                say(f'step {step:6d}  loss {loss:.4f}  lr {c.learning_rate * factor:.2e}  {speed:,.0f} tokens/s  '
                    f'mfu {flops * speed / peak:.0%}')
                record(step=step, split='train', loss=loss, lr=c.learning_rate * factor,
                       tokens=(step + 1) * tokens_per_step)

    if processes.main:
        draw_curve(out)
    processes.leave()
    if signals:
        sys.exit(128 + signals[0])


def run(argv):
    """main, with a word of advice when memory does not suffice."""
    try:
        main(argv)
    except RuntimeError as e:
        if 'memory' not in str(e):
            raise
        raise ValueError(f'out of memory ({str(e).splitlines()[0][:120]}); try half the --batch_size and twice the '
                         '--gradient_accumulation_steps, or a smaller model') from None


if __name__ == '__main__':
    with configurator.one_line_errors():
        run(sys.argv[1:])
