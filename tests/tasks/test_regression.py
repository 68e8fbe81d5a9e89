"""Functions in context: prompts of random functions, and training runs on them."""
import numpy as np
import pytest
import torch
from helpers import go
from torch._dynamo.testing import CompileCounter

from engine.checkpoint import read_log
from engine.compiled import compile_network
from model_aot import AoT, AoTConfig
from tasks import streams
from tasks.regression import Prompts
from weights.runs import open_run
from weights.surgery import load_model


@pytest.mark.parametrize('function, nonzero', [('linear', 20), ('sparse_linear', 3)])
def test_prompts_are_of_linear_functions(function, nonzero):
    prompts = Prompts(function, 20, 41)
    x, y = prompts.draw(np.random.default_rng(0), 400)
    assert x.shape == (400, 41, 20) and y.shape == (400, 41) and x.dtype == y.dtype == torch.float32
    w = torch.linalg.lstsq(x, y[..., None]).solution  # 41 equations, 20 unknowns: w itself
    assert (x @ w - y[..., None]).abs().max() < 1e-3
    assert ((w.abs() > 1e-4).sum(1) == nonzero).all()
    assert len(set((w[:, :, 0].abs() > 1e-4).nonzero()[:, 1].tolist())) == 20  # any of them
    assert x.mean().item() == pytest.approx(0, abs=0.01)
    assert x.var().item() == pytest.approx(1, abs=0.01)
    assert w[w.abs() > 1e-4].var().item() == pytest.approx(1, abs=0.2)
    assert (y ** 2).mean().item() / prompts.scale == pytest.approx(1, abs=0.1)
    validated, _ = next(prompts.fixed(4, 1, stream=streams.FIXED_PROMPTS))
    scored, _ = next(prompts.fixed(4, 1, stream=streams.SCORED_PROMPTS))  # for Figure 6
    assert not torch.equal(validated, scored)


def test_a_curriculum_grows_to_the_whole():
    prompts = Prompts('linear', 20, 41, curriculum=2000)
    stages = [prompts.stage(step) for step in (0, 1999, 2000, 29_999, 30_000, 50_000)]
    assert stages == [(5, 11), (5, 11), (6, 13), (19, 39), (20, 41), (20, 41)]
    x, y = next(prompts.batches(4, 0, [slice(None)], 2000, 2001))
    assert x.shape == (4, 13, 20) and (x[..., 6:] == 0).all() and (x[..., :6] != 0).all()
    assert Prompts('linear', 20, 41).stage(0) == (20, 41)
    sparse = Prompts('sparse_linear', 20, 41, curriculum=2000)
    _, y = next(sparse.batches(400, 0, [slice(None)], 0, 1))
    assert (y != 0).any(1).all()  # the non-zero weights are among the dimensions that are used


# ---- runs

def test_a_run_needs_no_data_and_logs_the_squared_error(tmp_path):
    """Beside it, its ratio to that of predicting zero."""
    go('--dataset=sparse_linear', '--sparsity=2', '--n_dims=4', '--block_size=12', '--n_layer=1',
       '--n_head=2', '--n_embd=16', '--batch_size=4', '--max_iters=6', '--eval_interval=3',
       '--eval_iters=2', '--dtype=float32', f'--out_dir={tmp_path}')
    run = open_run(tmp_path)
    model = load_model(run)
    rows = read_log(tmp_path)
    row = next(row for row in rows if (row['step'], row['split']) == (run.step, 'val'))
    fixed = Prompts('sparse_linear', 4, 6, sparsity=2).fixed(4, 2)
    expected = sum((model(x, y)[0] - y).square().mean().item() for x, y in fixed) / 2
    assert row['loss'] == pytest.approx(expected, rel=1e-5) == row['relative_loss'] * 2
    assert [row['seen'] for row in rows if row['split'] == 'val'] == [0, 12, 24]  # prompts


@pytest.mark.slow
def test_every_length_of_a_curriculum_is_compiled():
    torch._dynamo.reset()
    graphs = CompileCounter()

    class Net(AoT):
        def compile(self, **how):
            super().compile(backend=graphs, **how)
    model = Net(AoTConfig(n_layer=1, n_head=2, n_embd=8, n_dims=20, block_size=82))
    compile_network(model, in_one_piece=True)
    batches = Prompts('linear', 20, 41, curriculum=1).batches(2, 0, [slice(None)], 0, 10)
    for count, (x, y) in enumerate(batches, 1):  # PyTorch's own limit is 8
        model(x, y)
        assert graphs.frame_count == count
    torch._dynamo.reset()
