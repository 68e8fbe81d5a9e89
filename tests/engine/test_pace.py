"""What a few steps show: compiling and threads. A clock and a network stand in for real ones, except
in the slow tests."""
import shutil
from types import SimpleNamespace

import pytest
import torch
from helpers import column, go
from torch._dynamo.utils import counters

from engine import compiling, machine, pace
from model_crate import CRATE, CRATEConfig

COMPILER = pytest.mark.skipif(not shutil.which('g++') and not shutil.which('clang++'), reason='no C++ compiler')


class Clock:
    """Seconds as a test wants them to pass."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Net(torch.nn.Module):
    """A network whose forward pass takes `seconds[threads]`, or seconds['compiled']."""

    def __init__(self, clock, seconds):
        super().__init__()
        self.clock, self.seconds, self.weight = clock, seconds, torch.nn.Parameter(torch.ones(()))
        self.layers, self.broken = [], False

    def compile(self, dynamic):
        self._compiled_call_impl = self._call_impl

    @property
    def done(self):
        return self._compiled_call_impl is not None

    def forward(self, x, y):
        if self.done and self.broken:
            raise RuntimeError('InvalidCxxCompiler: no g++')
        self.clock.now += self.seconds.get('compiled' if self.done else torch.get_num_threads(), 1.0)
        return None, self.weight * 1.0


@pytest.fixture
def steps(monkeypatch, capsys):
    """steps(seconds, n, **settings) makes n steps of a run; returns (lines, network, settings of the run)."""
    monkeypatch.delenv('OMP_NUM_THREADS', raising=False)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    clock = Clock()
    monkeypatch.setattr(pace.time, 'perf_counter', clock)

    def steps(seconds, n, max_iters=10_000, compile='auto', broken=False, busy=None, validations=(), dtype='bfloat16'):
        here = machine.Machine('cpu', dtype, compile)
        c = SimpleNamespace(compile=compile, max_iters=max_iters)
        run = SimpleNamespace(c=c, aside=0.0, due=lambda step: step in validations, at='step {:6d}'.format)
        net = Net(clock, seconds)
        net.broken = broken
        its = pace.Pace(here, net, run)
        for step in range(n):
            if busy and step in busy:
                seconds.update(busy[step])
            for _ in range(2):  # passes of a step
                its.meet(step, None, None)
                net(None, None)
        return capsys.readouterr().out.splitlines(), net
    yield steps
    torch.set_num_threads(threads)


def test_one_thread_fewer_while_another_program_takes_a_core(steps):
    """Two threads take 0.1 s, one 0.16 s. From step 100 to 200 a core is taken."""
    busy = {100: {2: 0.4}, 200: {2: 0.1}}
    lines, net = steps({1: 0.16, 2: 0.1}, 400, compile='false', busy=busy)
    assert [line[13:] for line in lines] == ['1 thread instead of 2: another program needs a core',
                                             '2 threads instead of 1: the cores are free again']
    first, second = (int(line[5:11]) for line in lines)
    assert 100 < first < 120 and 200 < second < 300 and torch.get_num_threads() == 2


def test_threads_stay_where_they_are_faster(steps):
    lines, *_ = steps({1: 0.19, 2: 0.1}, 200, compile='false')
    assert not lines and torch.get_num_threads() == 2


def test_threads_that_the_user_chose_stay(steps, monkeypatch):
    monkeypatch.setenv('OMP_NUM_THREADS', '2')
    lines, *_ = steps({1: 0.01, 2: 0.1}, 200, compile='false')
    assert not lines and torch.get_num_threads() == 2


# ---- real compilation

@pytest.mark.slow
@COMPILER
def test_a_compiled_run_compiles_one_graph_once(pictures_data, tmp_path):
    """Steps, validations and smaller last batches: no second graph, no break in it, and the losses of plain steps."""
    words = ['--data_dir=' + str(pictures_data), '--dataset=quads', '--model=crate', '--n_layer=3', '--n_head=2',
             '--n_embd=32', '--patch_size=4', '--max_iters=12', '--eval_interval=4', '--batch_size=12',
             '--dtype=float32', '--log_interval=1']
    torch._dynamo.reset()
    counters.clear()
    plain, compiled = tmp_path / 'plain', tmp_path / 'compiled'
    go(*words, f'--out_dir={plain}', '--compile=false')
    with torch._dynamo.config.patch(error_on_recompile=True):
        go(*words, f'--out_dir={compiled}', '--compile=true')
    assert counters['stats']['unique_graphs'] == 1 and not counters['graph_break']
    assert column(compiled, 'train') == pytest.approx(column(plain, 'train'), rel=1e-4)
    assert column(compiled, 'val') == pytest.approx(column(plain, 'val'), rel=1e-4)


@pytest.mark.slow
@COMPILER
def test_layers_of_one_kind_are_compiled_once():
    torch.manual_seed(0)
    model = CRATE(CRATEConfig(image_size=16, patch_size=4, num_classes=5, n_layer=6, n_head=2, n_embd=32))
    x, y = torch.randn(4, 3, 16, 16), torch.randint(5, (4,))
    want = model(x, y)[1]
    torch._dynamo.reset()
    counters.clear()
    compiling.compile_layers(model)
    loss = model(x, y)[1]
    loss.backward()
    assert counters['stats']['unique_graphs'] == 1 and not counters['graph_break']
    assert torch.allclose(loss, want, atol=1e-5)
    compiling.plain_again(model)
    assert torch.equal(model(x, y)[1], want)
