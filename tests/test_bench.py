"""bench.py at toy size: what others compute, what a row times, and tables. The tests of the README race its configs."""
import copy
import functools
import re
import shutil
import sys
from types import SimpleNamespace

import pytest
import torch
from helpers import ROOT, compile_graphs_alone, fails
from test_own_network import TINY
from torch._dynamo.utils import counters

import bench
from engine import networks, settings
from scoring import baselines
from weights.generate import Cache

SMALL = {'n_layer': 2, 'n_embd': 32, 'n_head': 4, 'block_size': 24, 'vocab_size': 50, 'image_size': 32}
TOY = ['--rounds=2', '--seconds=0', '--device=cpu', '--batch_size=1', *(f'--{k}={v}' for k, v in SMALL.items())]


def work(row, command='step', more=SMALL, **changes):
    return bench.Work(command, row, bench.BenchConfig(device='cpu', batch_size=1, tokens=2, **changes), more)


@pytest.mark.parametrize('base, Way, more', [
    *(('crate-tiny', baselines.ReleasedCRATE, {'patch_size': 8} | more) for more in (
        {}, {'head_dim': 12, 'eta': 0.2, 'lam': 0.3, 'pool': 'mean'}, {'n_head': 1})),
    *(('gpt2-base', baselines.NanoGPT, {'bias': bias}) for bias in (False, True))])
def test_the_authors_way_equals_ours_in_value_and_gradient(base, Way, more):
    ours, theirs = (bench.build(base, way, SMALL | {'n_layer': 3} | more) for way in (None, Way))
    (x, y), results = bench.batch(ours.config, 5), []
    if base == 'gpt2-base':
        y[0, :5] = -1
    for model in (ours, theirs):
        logits, loss = model(x, y)
        loss.backward()
        results.append([logits, loss, *(p.grad for p in model.parameters())])
    for a, b in zip(*results, strict=True):
        assert a is not b
        torch.testing.assert_close(a.flatten(), b.flatten(), rtol=1e-4, atol=1e-6)


def test_each_way_does_what_its_authors_code_does():
    """CRATE: three products with D a layer and no fused attention, where ours has two and fuses."""
    calls = {}
    for way in (None, baselines.ReleasedCRATE):
        crate = bench.build('crate-tiny', way, SMALL | {'n_layer': 1, 'patch_size': 8})
        with torch.profiler.profile() as trace, torch.no_grad():
            crate.layers[0](torch.randn(2, 17, 32))
        count = {e.key: e.count for e in trace.key_averages()}
        products = count['aten::mm'] + count['aten::addmm']
        calls[way] = products, count.get('aten::scaled_dot_product_attention', 0)
    assert calls == {None: (4, 1), baselines.ReleasedCRATE: (5, 0)}  # U, W and D


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which('g++') and not shutil.which('clang++'), reason='no C++ compiler')
@pytest.mark.parametrize('words, compiled', [('plain', False), ('released-compiled', True)])
def test_a_row_is_compiled_if_it_says_so(words, compiled, monkeypatch):
    compile_graphs_alone(monkeypatch)
    torch._dynamo.reset()
    counters.clear()
    work(f'crate-tiny-{words}', more=SMALL | {'n_layer': 1}).run()
    assert bool(counters['stats']['unique_graphs']) == compiled


@pytest.mark.parametrize('row, command, dtype', [
    ('crate-tiny', 'step', 'bfloat16'), ('crate-tiny-float32', 'step', 'float32'),
    ('crate-tiny-released', 'step', 'float32'), ('gpt2-base', 'generate', 'float32')])  # as sample.py does with a small network
def test_words_say_how_precisely_a_row_is_computed(row, command, dtype, monkeypatch):
    """Where bfloat16 is fast."""
    choose = bench.choose_dtype
    monkeypatch.setattr(bench, 'choose_dtype', lambda asked, device: choose(asked.replace('auto', 'bfloat16'), device))
    assert work(row, command).dtype == getattr(torch, dtype)


@pytest.mark.parametrize('row, config', [
    ('crate-base', 'train_crate_imagenet'), ('vit-small', 'train_vit_imagenet'), ('aot-mssa-base', 'train_aot_owt'),
    ('aot-mhsa-base', 'train_aot_mhsa_owt'), ('gpt2-base', 'train_gpt2_owt'),
    ('tost-base', 'train_tost_owt'), ('aot-stdlib', 'train_aot_stdlib')])
def test_rows_are_the_networks_of_config(row, config, monkeypatch):
    monkeypatch.chdir(ROOT)
    given = settings.read_file(f'config/{config}.py')
    with torch.device('meta'):
        c = bench.build(row).config
    for name in ('n_layer', 'n_embd', 'n_head', 'block_size', 'vocab_size', 'attn', 'mlp', 'causal'):
        if name in given and hasattr(c, name):
            assert getattr(c, name) == given[name], name
    assert bench.NETWORKS[row][0] == given.get('model', 'aot')


def test_the_vit_has_as_many_parameters_as_crate():
    with torch.device('meta'):
        crate, vit = (networks.num_params(bench.build(name)) for name in ('crate-tiny', 'vit-6m'))
    assert abs(vit / crate - 1) < 0.02


@pytest.mark.parametrize('optimizer', ['lion', 'muon'])
def test_measuring_changes_no_weights(optimizer):
    """So the hundredth step computes what the first did."""
    step = work('crate-tiny-float32', optimizer=optimizer)
    before = copy.deepcopy(step.model.state_dict())
    step.run(), step.run()
    assert all(torch.equal(t, before[k]) for k, t in step.model.state_dict().items())


def test_rows_take_turns_and_a_measurement_lasts_as_long_as_asked(monkeypatch):
    clock, order = [0.0], []

    def run(name):
        order.append(name)
        clock[0] += 0.01
    monkeypatch.setattr(bench, 'Timer', functools.partial(bench.Timer, timer=lambda: clock[0]))
    works = [SimpleNamespace(run=lambda name=name: run(name)) for name in 'AB']
    seconds = bench.in_turn(works, bench.BenchConfig(rounds=3, seconds=1.0, device='cpu'))
    assert re.fullmatch('A+B+A+B+A+B+A+B+', ''.join(order))
    assert [s for own in seconds for s in own] == pytest.approx([0.01] * 6) and 6.0 <= clock[0] < 6.3


@pytest.mark.parametrize('command', ['step', 'generate'])
def test_a_table_has_every_row_and_ratios_to_the_first(command, capsys):
    rows = 'crate-tiny,crate-tiny-released,aot-stdlib,gpt2-6x384-nanogpt' if command == 'step' else bench.ROWS[command]
    bench.main([command, f'--rows={rows}', *TOY, '--tokens=3'])
    _, _, *lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == rows.split(',')
    assert lines[0].endswith('1.00 (1.00 to 1.00)')


def test_a_race_trains_each_config_once_a_round(monkeypatch, capsys):
    runs, times = [], iter((10.0, 20.0, 12.0, 30.0))

    def race(config, target, seed, extra):
        runs.append((config, target, seed, extra))
        return {'step': 5, 'loss': 1.9 if config == 'b.py' else 1.5, 'seconds': next(times)}
    monkeypatch.setattr(bench, 'race', race)
    bench.main(['a.py', 'b.py', '--target_loss', '1.8', '--rounds=2', '--n_layer=3'])
    assert runs == [(config, 1.8, seed, ['--n_layer=3']) for seed in (0, 1) for config in ('a.py', 'b.py')]
    *_, a, b = capsys.readouterr().out.splitlines()
    assert re.findall(r'\d+\.\d+', a)[:3] == ['11.00', '10.00', '12.00'] and 'missed' in b and 'missed' not in a
    assert re.findall(r'\d+\.\d+', b)[:6] == ['25.00', '20.00', '30.00', '0.45', '0.40', '0.50']


# ---- networks that somebody added

# of each token the next one; `gain` and `side` are no names of another network, and `side` may be an int by default
FORK = """
from dataclasses import dataclass
import torch
from torch import nn

@dataclass
class Config:
    block_size: int = 6
    vocab_size: int = 256
    image_size: int | tuple = {image_size}
    gain: float = 1.0
    task = '{task}'

class Network(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config, self.table = config, nn.Embedding(config.vocab_size, 256)
        self.text = config.task == 'text'
        self.size = self.table.weight.std().item()      # so it cannot be built without numbers
        if not self.text:
            height, width = config.image_size
            self.head = nn.Linear(3 * height * width, 10)

    def forward(self, x, y=None):
        out = self.config.gain * (self.table(x) if self.text else self.head(x.flatten(1)))
        return out, None if y is None else nn.functional.cross_entropy(out.flatten(0, -2), y.flatten())

    def generate(self, prompt, n):
        raise AssertionError('another signature than that of weights/generate.py')
"""


@pytest.fixture
def fork(tmp_path, monkeypatch):
    """fork(name, text) writes model_NAME.py, as if it lay beside the others."""
    monkeypatch.setattr(networks, 'HERE', tmp_path)
    monkeypatch.setattr(sys, 'path', [*sys.path, str(tmp_path)])
    for path in ROOT.glob('model_*.py'):
        (tmp_path / path.name).touch()  # Python finds those of the project first

    def fork(name, text=FORK, task='text', image_size=0):
        text = text.replace('{image_size}', str(image_size)).replace('{task}', task)
        (tmp_path / f'model_{name}.py').write_text(text)
    return fork


def rows_of(capsys):
    return {line.split()[0]: line for line in capsys.readouterr().out.splitlines()[2:]}


@pytest.mark.slow
@pytest.mark.parametrize('command', ['step', 'generate'])
def test_the_network_of_extend_md_is_a_row(command, fork, capsys):
    """In every way but those of others, with the sizes of its Config or the typed ones."""
    fork('tiny_row', TINY)
    rows = 'tiny_row', 'tiny_row-uncached', 'tiny_row-float32-plain', 'aot-stdlib'
    quick = ['--rounds=1', '--seconds=0', '--device=cpu', '--tokens=3']
    bench.main([command, f'--rows={",".join(rows)}', *quick])
    table = rows_of(capsys)
    assert tuple(table) == rows and all(' tokens ' in line for line in table.values())
    work = bench.Work(command, 'tiny_row', bench.BenchConfig(device='cpu'), {})
    assert work.x.shape == (8, 64) and f' {networks.num_params(work.model):,} ' in table['tiny_row']
    smaller = bench.Work(command, 'tiny_row', bench.BenchConfig(device='cpu', batch_size=3),
                         {'block_size': 5, 'n_embd': 4, 'n_layer': 1, 'patch_size': 7})
    assert smaller.x.shape == (3, 5) and smaller.model.config.n_embd == 4 and len(smaller.model.layers) == 1
    if command == 'step':
        bench.main([command, '--rows=tiny_row,crate-tiny', '--image_size=32', *quick, '--n_layer=1', '--patch_size=16'])
        assert all(' pictures ' in line for line in rows_of(capsys).values())


def test_a_row_of_ones_own_needs_only_what_training_needs(fork, capsys):
    """A network that cannot lie on the meta device, with a size that is an int, settings and a `generate` of its own."""
    fork('least_row'), fork('least_picture', task='image', image_size=8)
    bench.main(['step', '--rows=least_row,least_picture', '--gain=2', '--rounds=1', '--seconds=0', '--device=cpu'])
    assert 'tokens' in capsys.readouterr().out
    written = work('least_row', 'generate', {'gain': 2.0})
    written.run()
    assert written.model.config.gain == 2.0 and written.x.shape == (1, 6)


@pytest.mark.parametrize('word, has_cache', [('aot', True), ('aot-uncached', False), ('gpt2-base-nanogpt', False)])
def test_text_is_written_with_a_cache_unless_the_row_says_otherwise(word, has_cache, monkeypatch):
    made, read = [], Cache.read
    monkeypatch.setattr(Cache, 'read', lambda cache, z: made.append(cache) or read(cache, z))
    work(word, 'generate', {'n_layer': 1, 'n_head': 2, 'n_embd': 16, 'block_size': 24, 'vocab_size': 50}).run()
    assert bool(made) == has_cache


@pytest.mark.parametrize('row', ['tost', 'vit', 'crate_alpha', 'vit_mae', 'dino'])
def test_every_network_of_the_project_is_a_row(row):
    more = {'n_layer': 1, 'n_head': 2, 'n_embd': 16, 'image_size': 32, 'block_size': 8, 'decoder_n_layer': 1,
            'decoder_n_embd': 16, 'out_dim': 8, 'hidden_dim': 8}
    step = work(row, more=more)
    before = copy.deepcopy(list(step.model.parameters()))
    step.run()
    assert step.flops > 0 and all(map(torch.equal, before, step.model.parameters()))


def test_what_is_no_row_is_said_in_a_line(fork, capsys):
    fork('odd', task='rotations', image_size=8)
    said = fails(capsys, bench.main, 'step', '--rows=od')
    assert 'model_x.py' in said and 'odd' in said and 'gpt2-base' in said
    assert "'rotations'" in fails(capsys, bench.main, 'step', '--rows=odd', '--device=cpu')
    assert 'no text' in fails(capsys, bench.main, 'generate', '--rows=vit', '--device=cpu')
    assert 'lion' in fails(capsys, bench.main, 'step', '--rows=vit', '--device=cpu', '--optimizer=sgd')
