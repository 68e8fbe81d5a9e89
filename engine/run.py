"""A training run: where it stands, what it logs and saves, and how it is told to stop."""
import dataclasses
import datetime
import json
import math
import shutil
import signal
import time
from collections import deque
from pathlib import Path
from statistics import median

import torch

from engine import lock, reader
from engine.log import Log, read_log
from engine.output import bar, quoted, write_file
from engine.plots import draw_curve
from engine.rundir import FORMAT, LOCK, check_states, claim, hold, refuse_held, save
from engine.settings import Mistake


class Run:
    """A training run: where it stands, what it logs and saves, and how it is told to stop. Use it
    as a context manager, which takes note of Ctrl-C and SIGTERM; a second Ctrl-C ends the program
    at once.

    c is the run's TrainConfig; unit, size and batch are the task's; flops() counts operations per
    row, peak is the machine's.
    """

    def __init__(self, c, machine, task, model, average, optimizers, settings, data, flops):
        self.c, self.machine, self.task, self.out = c, machine, task, Path(c.out_dir)
        self.model, self.average, self.optimizers, self.settings, self.data = model, average, optimizers, settings, data
        self.step, self.best, self.seconds = 0, math.inf, 0.0
        self.flops, self.peak = (flops() / task.size, machine.matmul_flops()) if machine.kind != 'cpu' else (0, 0)
        self.pending = []       # (step, loss, gradient norm) not yet read: reading waits for the device
        self.paces = deque(maxlen=20)  # seconds of a step, at the last log lines
        self.aside = 0.0        # seconds since the last log line that are not of steps: of compiling
        self.clock = self.clock_step = self.log = self.wandb = self.board = None
        self.saved = self.paused = time.monotonic()
        self.validations = []   # seconds that each took
        self.signals = []

    def resume(self, checkpoint):
        """Go on where a checkpoint's run stood, which any number of processes may have written."""
        self.step, self.best, self.seconds = (checkpoint[k] for k in ('step', 'best', 'seconds'))
        if self.step > self.c.max_iters:
            raise Mistake(f'the run in {self.c.out_dir} is at step {self.step} already; give a larger --max_iters')
        scaler, saved = self.machine.scaler, checkpoint['scaler']
        try:
            check_states(self.optimizers, checkpoint['optimizers'])
            if saved and scaler.is_enabled():
                reader.fit(saved, {k: type(v) for k, v in scaler.state_dict().items()}, 'scaler')
        except reader.Unfit as e:
            path = self.out / ('best.pt' if self.c.init_from == 'resume_best' else 'last.pt')
            raise Mistake(f'{path} cannot be resumed ({e}); start from its weights: train.py --init_from={path} '
                          '--out_dir=ANOTHER') from None
        if saved:
            scaler.load_state_dict(saved)
        if self.average and checkpoint['ema']:
            average = self.average.module
            average.load_state_dict(self.machine.shares(checkpoint['ema'], average.state_dict()))
            self.average.n_averaged.fill_(self.step)
        for optimizer, state in zip(self.optimizers, checkpoint['optimizers']):
            parameters = dict(enumerate(p for group in optimizer.param_groups for p in group['params']))
            state['state'] = {i: self.machine.shares(kept, dict.fromkeys(kept, parameters[i]))
                              for i, kept in state['state'].items()}
            state['param_groups'] = optimizer.state_dict()['param_groups']
            optimizer.load_state_dict(state)

    def finished(self):
        """Whether a resumed run stands at its last step, and was validated there."""
        try:
            rows = read_log(self.out / 'log.csv') if self.step == self.c.max_iters else []
        except (OSError, Mistake):
            return False
        return any(row['split'] == 'val' and int(row['step']) == self.step for row in rows)

    def open(self, resumed):
        """Make or reopen the run directory; from here on the run writes."""
        if not resumed:
            if not self.c.overwrite:
                refuse_held(self.c.out_dir)  # all processes end here, or none
            self.machine.wait()
        if not self.machine.main:
            return
        if self.c.wandb_log:
            try:
                import wandb
            except ImportError:
                raise Mistake('wandb_log=true needs Weights & Biases: pip install wandb') from None
            self.wandb = wandb
        if self.c.tensorboard:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                raise Mistake('tensorboard=true needs TensorBoard: pip install tensorboard') from None
        hold(self.c.out_dir)
        if not resumed:
            if not self.c.overwrite:
                refuse_held(self.c.out_dir)  # another run may have come and gone since
            claim(self.c.out_dir)
        if self.c.init_from == 'resume_best':  # before the log loses its later rows: a crash leaves no last.pt ahead
            with open(self.out / 'best.pt', 'rb') as best:
                write_file(self.out / 'last.pt', lambda f: shutil.copyfileobj(best, f), 'wb')
        write_file(self.out / 'config.json', lambda f: json.dump(self.settings, f, indent=1))
        self.log = Log(self.out / 'log.csv', self.step)
        if self.wandb:
            name = self.c.wandb_run_name or self.c.out_dir
            self.wandb.init(project=self.c.wandb_project, name=name, config=self.settings)
        if self.c.tensorboard:  # which then shows nothing of the steps that a resumed run repeats
            self.board = SummaryWriter(self.out, purge_step=self.step if resumed else None)

    def __enter__(self):
        def note(number, frame):
            self.signals.append(number)
            signal.signal(signal.SIGINT, signal.default_int_handler)
        self.before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *error):
        for number, handler in self.before.items():
            signal.signal(number, handler)
        if self.log:
            self.log.file.close()
            if self.board:
                self.board.close()
            if not any(error):
                draw_curve(self.out)
        lock.let_go(self.out / LOCK)

    # ---- in the loop

    def told_to_stop(self, step, metrics):
        """Whether any process got a signal; then the run is saved. It is also saved when
        checkpoint_minutes have passed since the last time. Not if it diverged: metrics are those of
        the validation before this step, {} if there was none."""
        late = self.machine.main and not self.due(step) and \
            0 < 60 * self.c.checkpoint_minutes < time.monotonic() - self.saved
        signals, late = self.machine.sum(torch.tensor([len(self.signals), int(late)])).tolist()
        if signals or late:
            self.pause()
            self.check_loss(step, metrics.get('loss', 0.0))
            self.save(step, 'last.pt')
        if signals:
            self.signals = self.signals or [signal.SIGTERM]  # another process got it
            self.machine.say(f'stopped at step {step}; go on with: python train.py --init_from=resume '
                             f'--out_dir={quoted(self.c.out_dir)}')
        return bool(signals)

    def until_told(self, batches):
        """Batches of validation, of which processes may have different numbers. They end early, in
        all processes at once, when any process gets a signal. If they take long, there is a
        bar."""
        batches = iter(bar(batches, 'validation', delay=3, leave=False))
        while True:
            batch = next(batches, None)
            signals, left = self.machine.sum(torch.tensor([len(self.signals), int(batch is not None)])).tolist()
            if signals or not left:
                return
            if batch is not None:
                yield batch

    def due(self, step):
        """Whether there is a validation before this step."""
        return step % self.c.eval_interval == 0 or step == self.c.max_iters

    def validates(self, step):
        """Whether there is a validation before this step; if so, the clock of training stops."""
        if self.due(step):
            self.pause()
            self.paused = time.monotonic()
        return self.due(step)

    def validated(self, step, metrics, lr, extra=None):
        """Print, log and save after a validation: best.pt if it is the best so far, and last.pt. Where
        losses cannot be compared, the last is the best. extra: logged only."""
        self.machine.say(f'{self.at(step)}  validation  {shown(metrics)}  ({self.seconds:.0f} s of training)')
        self.check_loss(step, metrics['loss'])
        warning = self.task.warning(metrics) if 10 * step >= self.c.max_iters else ''
        if warning:
            self.machine.say(f'{self.at(step)}  {warning}')
        self.record(step, 'val', metrics | (extra or {}), lr, seen=step)
        error = self.task.error(metrics)
        improved = error is None or error < self.best
        self.best = self.best if error is None else min(error, self.best)
        names = ['best.pt'] * improved + [f'step_{step}.pt'] * self.c.keep_checkpoints
        self.save(step, *names, 'last.pt')  # at the end: a run that dies earlier repeats all this from the old last.pt
        self.step = step
        self.validations.append(time.monotonic() - self.paused)
        if self.c.target_loss and metrics['loss'] <= self.c.target_loss:
            self.machine.say(f'reached the target loss {self.c.target_loss} at step {step} after {self.seconds:.1f} s '
                             'of training')
            return True
        return False

    def start_clock(self, step):
        if self.clock is None:
            self.clock, self.clock_step = time.perf_counter(), step

    def trained(self, step, loss, norm, lr, numbers):
        """After each step; prints and logs every log_interval steps. numbers: more to log, {name: tensor}."""
        self.pending.append((step, loss, norm))
        if step % self.c.log_interval:
            return
        loss, now = self.look(), time.perf_counter()
        each = (now - self.clock - self.aside) / (step + 1 - self.clock_step)
        speed = self.task.batch * self.task.size / each
        self.seconds, self.clock, self.clock_step, self.aside = self.seconds + now - self.clock, now, step + 1, 0.0
        share = f'  mfu {min(1, self.flops * speed / self.peak):.0%}' if self.flops else ''
        self.paces.append(each)
        known = [*self.paces][1:]  # not the first step, which is slower than all others
        left = f'  {lasting(self.left(step + 1, median(known)))} left' if known else ''
        self.machine.say(f'{self.at(step)}  loss {loss:.4f}  lr {lr:.2e}  {speed:,.0f} {self.task.unit}/s{share}{left}')
        means = {k: self.machine.sum(v).item() / self.machine.world for k, v in numbers.items()}
        self.record(step, 'train', means | {'loss': loss, 'grad_norm': norm.item()}, lr, seen=step + 1)

    # ---- helpers

    def at(self, step):
        return f'step {step:6d} of {self.c.max_iters}'

    def left(self, step, each):
        """Seconds that the steps from this one on will take, at `each` of them, and the
        validations."""
        validations = -(-self.c.max_iters // self.c.eval_interval) - (step - 1) // self.c.eval_interval
        mean = sum(self.validations) / max(1, len(self.validations))
        return (self.c.max_iters - step) * each + validations * mean

    def check_loss(self, step, loss):
        """Raises Mistake for a validation loss that is not finite."""
        if not math.isfinite(loss):
            raise Mistake(f'the validation loss is not finite at step {step}; the last checkpoint is from before: '
                          'go on from it with --init_from=resume and a lower --learning_rate')

    def look(self):
        """The last mean training loss. Raises Mistake at the first loss or gradient that is not
        finite."""
        losses = self.machine.sum(torch.stack([loss for _, loss, _ in self.pending])) / self.machine.world
        norms = torch.stack([norm for _, _, norm in self.pending])
        fine = losses.isfinite() & (norms.isfinite() | self.machine.scaler.is_enabled())  # float16 skips such steps
        if not fine.all():
            step = self.pending[int((~fine).nonzero()[0])][0]
            raise Mistake(f'the loss or its gradient is not finite at step {step}; the last checkpoint is from '
                          'before: go on from it with --init_from=resume and a lower --learning_rate')
        self.pending.clear()
        return losses[-1].item()

    def pause(self):
        """Stop the clock of training, and look at the losses before anything is saved."""
        if self.pending:
            self.look()
        if self.clock:
            self.seconds, self.clock = self.seconds + time.perf_counter() - self.clock, None

    def record(self, step, split, numbers, lr, seen):
        if not self.machine.main:
            return
        row = {'step': step, 'split': split, **numbers, 'lr': lr, 'seen': seen * self.task.batch * self.task.size,
               'seconds': round(self.seconds, 3)}
        self.log.write(**row)
        named = {f'{split}/{k}': v for k, v in row.items() if k not in ('step', 'split')}
        if self.wandb:
            self.wandb.log(named, step=step)
        for k, v in named.items() if self.board else ():
            self.board.add_scalar(k, v, step)

    def save(self, step, *names):
        """Write these checkpoints, all the same. All processes call it together."""
        whole = self.machine.gather({
            'weights': self.model.state_dict(keep_vars=True),  # which tells shared weights apart from equal ones
            'ema': self.average.module.state_dict(keep_vars=True) if self.average else None,
            'optimizers': [o.state_dict() for o in self.optimizers]})
        for k, _ in self.model.named_parameters() if self.machine.main else ():
            if not (whole['weights'][k].abs() < 1e18).all():  # products of larger numbers are no float32
                raise Mistake(f'{k} is not finite, or beyond 1e18, at step {step}, so nothing was saved; go on from the '
                              'last checkpoint with --init_from=resume and a lower --learning_rate')
        for name in names if self.machine.main else ():
            save(self.out / name, {
                'format': FORMAT, **whole, 'model_config': dataclasses.asdict(self.model.config),
                'config': self.settings, 'data': self.data, 'scaler': self.machine.scaler.state_dict(),
                'step': step, 'best': self.best, 'seconds': self.seconds})
        self.saved = time.monotonic()


def shown(metrics):
    return ', '.join(f'{k} {v:.4f}' for k, v in metrics.items())


def lasting(seconds):
    """Seconds as hours, minutes and seconds: 0:01:35."""
    return str(datetime.timedelta(seconds=round(seconds)))
