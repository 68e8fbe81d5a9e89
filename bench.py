"""Speed, measured in turn, A B C A B C .., in one run; medians and ratios of that run.

A race trains configs to a validation loss:

    python bench.py config/race_aot_shakespeare_char.py config/race_gpt2_shakespeare_char.py --target_loss=1.88

Each round trains every config once, with the number of the round as its seed, until its validation
loss is at most the target or its iterations end. Seconds are training time without evaluation,
unless stated otherwise. Any `--KEY=VALUE` that is not a setting below goes to every training run.

The word `pictures` measures how many pictures per second CRATE processes:

    python bench.py pictures
    python bench.py pictures --size=base --image_size=224 --patch_size=16 --batch_size=8 --rounds=7

It is compared, in the same precision and on the same batches of noise, with CRATE written as in the
authors' released code (same results), and with a ViT with as many parameters. A ratio is of two
measurements of the same round.

Only ratios carry over from one machine to another.
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

import engine  # before torch
import torch
import torch.nn.functional as F

from engine import machine, optim, settings
from model_crate import CRATE, ISTA, MSSA, CRATEConfig
from model_vit import ViT, ViTConfig


@dataclass
class RaceConfig:
    target_loss: float = 1.88   # validation loss at which a run stops
    rounds: int = 3             # how often each config is trained, in turn


@dataclass
class PicturesConfig:
    size: str = 'tiny'              # of CRATE, as the paper names it: tiny, small, base or large
    image_size: int | tuple = 224   # pixels, or (height, width)
    patch_size: int | tuple = 16    # pixels, or (height, width)
    batch_size: int = 8             # pictures in a step
    rounds: int = 7                 # how often each network is measured, in turn
    seconds: float = 1.0            # one measurement takes at least so long
    train: bool = True              # forward, backward and optimizer step; false: forward only
    optimizer: str = 'adamw'        # 'adamw' (fused), 'adam', 'lion', 'muon', at a learning rate of 0
    device: str = 'auto'            # cpu, cuda, cuda:1, mps; auto takes cuda, then mps, then cpu
    dtype: str = 'auto'             # float32, bfloat16, float16; auto: bfloat16 where the hardware multiplies it
    compile: str = 'auto'           # true, false; auto compiles on CUDA under Linux


# (n_layer, n_embd, n_head) of the paper's CRATE, and of a ViT of the same depth and width of heads
# whose number of parameters differs by at most 5%. At base that is ViT-S, as in the paper; at tiny,
# ViT-T has 6.1% too few parameters, so it gets a 13th layer.
SIZES = {'tiny': ((12, 384, 6), (13, 192, 3)), 'small': ((12, 576, 12), (12, 288, 6)),
         'base': ((12, 768, 12), (12, 384, 6)), 'large': ((24, 1024, 16), (24, 512, 8))}


# ---- a race to a loss ----------------------------------------------------------------------------------------------

def race(config, target, seed, extra):
    """Train one config. Returns its last validation, a row of log.csv, and the seconds that the
    whole process took."""
    with tempfile.TemporaryDirectory() as out:
        start = time.perf_counter()
        done = subprocess.run([sys.executable, str(settings.HERE / 'train.py'), config, f'--target_loss={target}',
                               f'--seed={seed}', f'--out_dir={out}', *extra], capture_output=True, text=True)
        whole = time.perf_counter() - start
        if done.returncode:
            raise ValueError(f'{config}: {done.stderr.strip()}')
        with open(Path(out) / 'log.csv', newline='') as f:
            return [row for row in csv.DictReader(f) if row['split'] == 'val'][-1], whole


def race_all(argv):
    configs, typed = ([word for word, alone in settings.marked(argv) if alone == wanted] for wanted in (True, False))
    given, ours = settings.collect(typed), {f.name for f in fields(RaceConfig)}
    c = RaceConfig(**settings.check({k: v for k, v in given.items() if k in ours}, RaceConfig))
    extra = [f'--{k}={value}' for k, (value, _) in given.items() if k not in ours]
    settings.check_least(c, rounds=1)
    unknown = [f"'{word}' is unknown; " for word in configs if not word.endswith('.py') and not Path(word).is_file()]
    if unknown or not configs:
        raise ValueError(''.join(unknown[:1]) + 'name configs to race, such as config/race_aot_shakespeare_char.py, or '
                         'say pictures to measure pictures per second')
    print(f'{here("cpu")}, validation loss {c.target_loss}, {c.rounds} rounds')
    seconds, missed = {config: [] for config in configs}, set()
    for seed in range(c.rounds):
        for config in configs:
            row, whole = race(config, c.target_loss, seed, extra)
            if row['step'] == '0':
                raise ValueError(f'{config} reaches target_loss={c.target_loss} untrained; set a lower --target_loss')
            seconds[config].append(float(row['seconds']))
            if float(row['loss']) > c.target_loss:
                missed.add(config)
            print(f'seed {seed}  {Path(config).stem:<34} validation loss {float(row["loss"]):.4f} at step '
                  f'{row["step"]} after {seconds[config][-1]:.1f} s of training, {whole:.1f} s in all', flush=True)
    first = configs[0]
    for config in configs:
        note = '; the target was missed, so this is a lower bound: the time of the whole run' * (config in missed)
        print(f'{Path(config).stem:<34} ' + spread(seconds[config], 's of training') + note)
    for config in configs[1:]:
        ratios = [a / b for a, b in zip(seconds[first], seconds[config])]
        print(f'{Path(first).stem} / {Path(config).stem}: ' + spread(ratios, 'of the time', '.2f') +
              (', at most' if config in missed and first not in missed else ''))


# ---- pictures per second --------------------------------------------------------------------------------------------

class NaiveMSSA(MSSA):
    """MSSA as in the released code: product, scale, softmax, dropout, product, each an operation of
    its own."""

    def forward(self, z):
        w = self.U(z).unflatten(-1, (self.K, -1)).transpose(1, 2)                       # (B, K, N, p)
        a = self.drop((torch.matmul(w, w.mT) * w.size(-1) ** -0.5).softmax(-1))         # (B, K, N, N)
        h = torch.matmul(a, w)                                                          # (B, K, N, p)
        return self.drop(self.W(h.transpose(1, 2).flatten(2)))                          # (B, N, d)


class NaiveISTA(ISTA):
    """ISTA as in the released code: D^* D Z and D^* Z separately, three matmuls where two
    suffice."""

    def forward(self, z):
        a, b = F.linear(F.linear(z, self.D), self.D.T), F.linear(z, self.D.T)           # D^* D Z, D^* Z: (B, N, d)
        return F.relu(z + (self.eta * (b - a) - self.eta * self.lam))


def naive(model):
    """A copy of a CRATE with the same weights and results, computed as in the released code."""
    model = copy.deepcopy(model)
    for layer in model.layers:
        layer.attn.__class__, layer.ista.__class__ = NaiveMSSA, NaiveISTA
    return model


def contestants(size, image_size, patch_size):
    """{name: model}, CRATE first."""
    if size not in SIZES:
        raise ValueError(f"size='{size}' is unknown; choose {', '.join(SIZES)}")
    crate, vit = (dict(zip(('n_layer', 'n_embd', 'n_head'), shape), image_size=image_size, patch_size=patch_size)
                  for shape in SIZES[size])
    ours = CRATE(CRATEConfig(**crate))
    return {'CRATE': ours, 'CRATE, naive': naive(ours), 'ViT': ViT(ViTConfig(**vit))}


def stepper(model, c, compiled, autocast, x, y):
    """The step that is timed, a function without arguments."""
    model = model.to(x.device).train(c.train)
    forward = torch.compile(model) if compiled else model
    # At a learning rate of 0 an optimizer does all its work, but the weights stay, so every step
    # computes the same.
    optimizers = optim.build(model, c.optimizer, lr=0.0, muon_lr=0.0)

    def step():
        with torch.set_grad_enabled(c.train), autocast:
            loss = forward(x, y if c.train else None)[1]
        if c.train:
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            model.zero_grad(set_to_none=True)
    return step


def steps_a_second(step, seconds, device):
    """Steps per second, over at least so many seconds. A GPU has to finish before the clock is
    read, so steps come in bursts."""
    done, burst, spent, start = 0, 1, 0.0, time.perf_counter()
    while not done or spent < seconds:
        for _ in range(burst):
            step()
        if device.type != 'cpu':
            torch.accelerator.synchronize(device)
        done, spent = done + burst, time.perf_counter() - start
        burst = max(1, min(done, int(done * (seconds / spent - 1))))  # twice as many, but not beyond the end
    return done / spent


def pictures(argv):
    c = PicturesConfig(**settings.check(settings.collect(argv), PicturesConfig))
    settings.check_least(c, rounds=1, batch_size=1, seconds=0)
    device = torch.device(machine.choose_device(c.device))
    dtype, compiled = machine.choose_dtype(c.dtype, device), machine.choose_compile(c.compile, device)
    torch.manual_seed(0)
    models = contestants(c.size, c.image_size, c.patch_size)
    config = models['CRATE'].config
    x, y = torch.randn(c.batch_size, 3, *config.image_size), torch.randint(config.num_classes, (c.batch_size,))
    with torch.no_grad():  # in float32 on the CPU, whatever is measured below
        torch.testing.assert_close(models['CRATE, naive'](x[:1])[0], models['CRATE'](x[:1])[0], rtol=0, atol=1e-4)
    shown = ['x'.join(map(str, pixels)) for pixels in (config.image_size, config.patch_size)]
    print(f'{here(device)}, {str(dtype)[6:]}, {"compiled" if compiled else "not compiled"}; '
          f'{f"training with {c.optimizer}" if c.train else "forward only"}, {c.batch_size} pictures of {shown[0]} in '
          f'patches of {shown[1]}, {c.rounds} rounds')
    for name, model in models.items():
        more = model.num_params() / models['CRATE'].num_params() - 1
        print(f'{name:<14} {model.num_params():,} parameters' + (f' ({more:+.1%})' if more else ''), flush=True)
    autocast = machine.autocast(device, dtype)
    x, y = x.to(device), y.to(device)
    steps = {name: stepper(model, c, compiled, autocast, x, y) for name, model in models.items()}
    for step in steps.values():  # the first steps compile and allocate; then one measurement that does not count
        step(), step()
        steps_a_second(step, c.seconds, device)
    rounds = [{name: c.batch_size * steps_a_second(step, c.seconds, device) for name, step in steps.items()}
              for _ in range(c.rounds)]
    for name in models:
        print(f'{name:<14} ' + spread([speeds[name] for speeds in rounds], 'pictures/s'))
    for name in list(models)[1:]:
        print(f'CRATE / {name}: ' + spread([s['CRATE'] / s[name] for s in rounds], 'of the pictures/s', '.2f'))


def here(device):
    cuda = torch.device(device).type == 'cuda'
    chip = torch.cuda.get_device_name(device) if cuda else platform.processor() or platform.machine()
    return f'{chip}, {torch.get_num_threads()} threads, torch {torch.__version__}'


def spread(values, unit, form='.1f'):
    return f'median {statistics.median(values):{form}} {unit} ({min(values):{form}} to {max(values):{form}})'


def main(argv):
    if '--help' in argv or '-h' in argv:
        print(settings.help_text(__doc__, RaceConfig, PicturesConfig))
    elif 'pictures' in argv:
        pictures([word for word in argv if word != 'pictures'])
    else:
        race_all(argv)


if __name__ == '__main__':
    with settings.one_line_errors():
        main(sys.argv[1:])
