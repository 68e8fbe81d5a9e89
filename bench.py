"""Speed, measured honestly: everything in turn, A B C A B C .., in one run; medians and ratios of that run.

A race trains configs to a validation loss:

    python bench.py config/race_aot_shakespeare_char.py config/race_gpt2_shakespeare_char.py --target_loss=1.88

Each round trains every config once, with the round as its seed, until its validation loss is at most the target or
its iterations end. Seconds are of training alone, without evaluation, unless said otherwise.
`--KEY=VALUE` beyond the settings below goes to every training run.

The word `pictures` measures how many pictures a second CRATE takes, against two others of equal batch and precision:

    python bench.py pictures
    python bench.py pictures --size=base --image_size=224 --patch_size=16 --batch_size=8 --rounds=7

One has CRATE's weights and values but does the work as the authors' released code writes it, the other is a ViT with as
many parameters. The pictures are noise, made once. A ratio is of two measurements of the same round.

Only ratios travel from one machine to another.
"""
import copy
import csv
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, fields
from pathlib import Path

import torch
import torch.nn.functional as F

import configurator
import optim
from machine import choose_compile, choose_device, choose_dtype
from model_crate import CRATE, ISTA, MSSA, CRATEConfig
from model_vit import ViT, ViTConfig


@dataclass
class RaceConfig:
    target_loss: float = 1.88   # validation loss that ends a training run
    rounds: int = 3             # times that each config is trained, interleaved


@dataclass
class PicturesConfig:
    size: str = 'tiny'            # of CRATE, as the papers name it: tiny, small, base or large
    image_size: int | tuple = 224  # pixels, or (height, width)
    patch_size: int | tuple = 16   # pixels, or (height, width)
    batch_size: int = 8           # pictures a step
    rounds: int = 7               # times that each model is measured, interleaved
    seconds: float = 1.0          # least time of one measurement
    train: bool = True            # forward, backward and optimizer step; false: forward alone
    optimizer: str = 'adamw'      # 'adamw' (fused), 'adam', 'lion', 'muon'; every learning rate is 0
    device: str = 'auto'          # auto takes cuda, mps or cpu, whichever is there first
    dtype: str = 'auto'           # float32, bfloat16, float16; auto takes bfloat16 where the hardware has it
    compile: str = 'auto'         # true, false; auto compiles on CUDA under Linux


# (n_layer, n_embd, n_head) of CRATE in the paper, and of the ViT with the nearest number of parameters that is as deep and
# has heads as wide; at tiny, ViT-T itself would be 6.1% smaller, so it gets a 13th layer. At base it is ViT-S.
SIZES = {'tiny': ((12, 384, 6), (13, 192, 3)), 'small': ((12, 576, 12), (12, 288, 6)),
         'base': ((12, 768, 12), (12, 384, 6)), 'large': ((24, 1024, 16), (24, 512, 8))}

# ---- a race to a loss


def race(config, target, seed, extra):
    """Train one config. Returns its last validation as a row of log.csv, and the seconds of the whole process."""
    with tempfile.TemporaryDirectory() as out:
        start = time.perf_counter()
        done = subprocess.run([sys.executable, str(configurator.HERE / 'train.py'), config, f'--target_loss={target}',
                               f'--seed={seed}', f'--out_dir={out}', *extra], capture_output=True, text=True)
        whole = time.perf_counter() - start
        if done.returncode:
            raise ValueError(f'{config}: {done.stderr.strip()}')
        with open(Path(out) / 'log.csv', newline='') as f:
            return [row for row in csv.DictReader(f) if row['split'] == 'val'][-1], whole


def race_all(argv):
    configs = [word for word in argv if not word.startswith('--')]
    ours = {f.name for f in fields(RaceConfig)}
    mine, extra = [], []
    for word in argv:
        if word.startswith('--'):
            (mine if word[2:].partition('=')[0] in ours else extra).append(word)
    c = RaceConfig(**configurator.check(configurator.collect(mine), RaceConfig))
    if c.rounds < 1:
        raise ValueError(f'rounds={c.rounds} must be at least 1')
    if not configs:
        raise ValueError('name the configs to race, such as config/race_aot_shakespeare_char.py')
    for word in configs:
        if not word.endswith('.py') and not Path(word).is_file():
            raise ValueError(f"'{word}' is unknown; say pictures, or name the configs to race, such as "
                             'config/race_aot_shakespeare_char.py')
    print(f'{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}, '
          f'validation loss {c.target_loss}, {c.rounds} rounds')
    seconds, missed = {config: [] for config in configs}, set()
    for seed in range(c.rounds):
        for config in configs:
            row, whole = race(config, c.target_loss, seed, extra)
            if row['step'] == '0':
                raise ValueError(f'{config} meets target_loss={c.target_loss} untrained; lower it')
            seconds[config].append(float(row['seconds']))
            if float(row['loss']) > c.target_loss:
                missed.add(config)
            print(f'seed {seed}  {Path(config).stem:<34} validation loss {float(row["loss"]):.4f} at step {row["step"]} '
                  f'after {seconds[config][-1]:.1f} s of training, {whole:.1f} s in all', flush=True)
    first = configs[0]
    for config in configs:
        note = '; the target was missed, so this is the time of the run, less than it would need' if config in missed else ''
        print(f'{Path(config).stem:<34} ' + spread(seconds[config], 's of training') + note)
    for config in configs[1:]:
        ratios = [a / b for a, b in zip(seconds[first], seconds[config])]
        print(f'{Path(first).stem} / {Path(config).stem}: ' + spread(ratios, 'of the time', '.2f') +
              (', at most' if config in missed and first not in missed else ''))


# ---- pictures a second


class NaiveMSSA(MSSA):
    """MSSA as the released code computes it: product, scale, softmax and product are operations of their own."""

    def forward(self, z):
        B, N, d = z.shape
        w = self.U(z).view(B, N, self.K, self.p).transpose(1, 2)                        # (B, K, N, p)
        h = torch.matmul((torch.matmul(w, w.mT) * self.p ** -0.5).softmax(-1), w)       # (B, K, N, p)
        return self.drop(self.W(h.transpose(1, 2).reshape(B, N, -1)))                   # (B, N, d)


class NaiveISTA(ISTA):
    """ISTA as the released code computes it: D^* Z and D^* (D Z) apart, three matmuls where two would do."""

    def forward(self, z):
        DDz, Dz = F.linear(F.linear(z, self.D), self.D.T), F.linear(z, self.D.T)        # each (B, N, d)
        return F.relu(z + (self.eta * (Dz - DDz) - self.eta * self.lam))


def naive(model):
    """A copy of a CRATE, same weights and values, that does the work as the released code writes it."""
    model = copy.deepcopy(model)
    for layer in model.layers:
        layer.mssa.__class__, layer.ista.__class__ = NaiveMSSA, NaiveISTA
    return model


def contestants(c):
    """{name: model}, CRATE first."""
    if c.size not in SIZES:
        raise ValueError(f"size='{c.size}' is unknown; choose {', '.join(SIZES)}")
    crate, vit = (dict(zip(('n_layer', 'n_embd', 'n_head'), shape)) for shape in SIZES[c.size])
    common = {'image_size': c.image_size, 'patch_size': c.patch_size}
    model = CRATE(CRATEConfig(**common, **crate))
    return {'CRATE': model, 'CRATE, naive': naive(model), 'ViT': ViT(ViTConfig(**common, **vit))}


def stepper(model, c, device, compiled, autocast, x, y):
    """A function that does the work to be timed once."""
    model = model.to(device).train(c.train)
    forward = torch.compile(model) if compiled else model
    if not c.train:
        def step():
            with torch.no_grad(), autocast:
                forward(x)
        return step
    # With rates of 0 the optimizer does all its work and the weights stay, so that every step computes the same.
    optimizers = optim.build(model, c.optimizer, lr=0.0, muon_lr=0.0)

    def step():
        with autocast:
            loss = forward(x, y)[1]
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        model.zero_grad(set_to_none=True)
    return step


def steps_a_second(step, seconds, device):
    """Steps a second over at least so many seconds. The clock is read after bursts of steps, as a GPU must then wait."""
    done, burst, spent, start = 0, 1, 0.0, time.perf_counter()
    while not done or spent < seconds:
        for _ in range(burst):
            step()
        kind = torch.device(device).type
        if kind != 'cpu':
            getattr(torch, kind).synchronize()
        done, spent = done + burst, time.perf_counter() - start
        burst = max(1, min(done, int(done * (seconds / spent - 1))))  # twice as far, but not past the end
    return done / spent


def pictures(argv):
    c = PicturesConfig(**configurator.check(configurator.collect(argv), PicturesConfig))
    for name, least in (('rounds', 1), ('batch_size', 1), ('seconds', 0)):
        if not getattr(c, name) >= least:
            raise ValueError(f'{name}={getattr(c, name)} must be at least {least}')
    device = choose_device(c.device)
    kind, dtype, compiled = torch.device(device).type, choose_dtype(c.dtype, device), choose_compile(c.compile, device)
    torch.manual_seed(0)
    models = contestants(c)
    size = models['CRATE'].config.image_size
    x, y = torch.randn(c.batch_size, 3, *size), torch.randint(1000, (c.batch_size,))
    with torch.no_grad():  # in float32 on the CPU, whatever is measured
        ours, theirs = (models[name](x[:1])[0] for name in ('CRATE', 'CRATE, naive'))
    torch.testing.assert_close(theirs, ours, rtol=1e-3, atol=1e-3)
    chip = torch.cuda.get_device_name() if kind == 'cuda' else platform.processor() or platform.machine()
    print(f'{chip}, {torch.get_num_threads()} threads, torch {torch.__version__}, {kind}, {str(dtype)[6:]}, '
          f'{"compiled" if compiled else "not compiled"}\n'
          f'{f"training steps with {c.optimizer}" if c.train else "forward passes"}, {c.batch_size} pictures of '
          f'{configurator.show(size)} in patches of {configurator.show(models["CRATE"].config.patch_size)}, '
          f'{c.rounds} rounds of at least {c.seconds:g} s')
    count = models['CRATE'].num_params()
    for name, model in models.items():
        more = f' ({model.num_params() / count - 1:+.1%})' if name == 'ViT' else ''
        print(f'{name:<14} {model.num_params():,} parameters{more}, {model.config.n_layer} layers of width '
              f'{model.config.n_embd}', flush=True)
    autocast = torch.autocast(kind, dtype, enabled=dtype != torch.float32)
    x, y = x.to(device), y.to(device)
    steps = {name: stepper(model, c, device, compiled, autocast, x, y) for name, model in models.items()}
    for step in steps.values():  # warm-up: first steps allocate and compile, then one measurement is thrown away
        step(), step()
        steps_a_second(step, c.seconds, device)
    speeds = {name: [] for name in steps}
    for _ in range(c.rounds):
        for name, step in steps.items():
            speeds[name].append(c.batch_size * steps_a_second(step, c.seconds, device))
    for name in steps:
        print(f'{name:<14} ' + spread(speeds[name], 'pictures/s'))
    for name in list(steps)[1:]:
        ratios = [a / b for a, b in zip(speeds['CRATE'], speeds[name])]
        print(f'CRATE / {name}: ' + spread(ratios, 'times the pictures/s', '.2f'))


def spread(values, unit, form='.1f'):
    return f'median {statistics.median(values):{form}} {unit} ({min(values):{form}} to {max(values):{form}})'


def main(argv):
    if '--help' in argv or '-h' in argv:
        print(configurator.help_text(__doc__, RaceConfig, PicturesConfig))
    elif 'pictures' in argv:
        pictures([word for word in argv if word != 'pictures'])
    else:
        race_all(argv)


if __name__ == '__main__':
    with configurator.one_line_errors():
        main(sys.argv[1:])
